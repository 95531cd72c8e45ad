"""`inspect`: what is said of files that were spoilt on purpose, and that their pictures show what they should."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import soundfile

from speech3.config import FeatureConfig, load_preset
from speech3.errors import Speech3Error
from speech3.evaluate import inspection as room
from speech3.evaluate.inspection import inspect, picture_path
from speech3.evaluate.picture import FeatureStatistics, Picture, draw, write_picture
from speech3.features import extract
from speech3.frames.packed import write_frames
from speech3.io import ArkReader
from speech3.io.ark import write_ark

RATE_HZ = 16000
RNG = np.random.default_rng(0)
PRESET = load_preset(FeatureConfig, "features", "fbank40")
FEATS = {f"u{i}": RNG.normal(np.arange(4), 1 + np.arange(4), (30 + 10 * i, 4)).astype(np.float32) for i in range(5)}


def said(path: Path, utterance: str | None = None) -> dict[str, str]:
    return dict(inspect(path, PRESET, utterance).lines)


@pytest.fixture
def spoilt(tmp_path: Path) -> Path:
    """Features whose third dimension is constant, with numbers that are none and digital silence."""
    feats = {name: feats_TF.copy() for name, feats_TF in FEATS.items()}
    for feats_TF in feats.values():
        feats_TF[:, 2] = 7
    feats["u1"][3, 0] = np.nan
    feats["u3"][5:8, 1] = np.inf
    feats["u4"][10:21] = feats["u4"][10]
    write_ark(tmp_path / "feats.ark", feats.items(), tmp_path / "feats.scp")
    return tmp_path


def test_statistics_are_those_of_all_frames_together() -> None:
    statistics = FeatureStatistics(4)
    for name, feats_TF in FEATS.items():
        statistics.add(name, feats_TF + 1e6)
    together_TF = np.concatenate([feats_TF + 1e6 for feats_TF in FEATS.values()]).astype(np.float64)
    np.testing.assert_allclose(statistics.mean_F, together_TF.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.deviation_F, together_TF.std(0), rtol=1e-9)
    np.testing.assert_array_equal(statistics.lowest_F, together_TF.min(0))
    np.testing.assert_array_equal(statistics.highest_F, together_TF.max(0))


@pytest.mark.parametrize("name", ["feats.scp", "feats.ark"])
def test_faults_of_features_are_named(spoilt: Path, name: str) -> None:
    lines = said(spoilt / name)
    assert "5 utterances" in lines["file"]
    assert lines["frames"].startswith("250 (2.50 s at 10 ms per frame) of 4 dimensions")
    assert lines["lengths"] == "30 frames (u0) to 70 frames (u4)"
    assert lines["constant"] == "dimension 2"
    assert lines["not finite"] == "1 NaN, 3 infinite values in u3, u1"
    assert lines["silence"] == "digital: 10 frames equal the preceding frame, in u4"
    assert lines["drawn"] == "u0: 30 frames"
    assert said(spoilt / name, "u3")["drawn"] == "u3: 60 frames"
    with pytest.raises(Speech3Error, match=rf"{name}: no utterance nobody; .*for instance: u0, u1, u2"):
        said(spoilt / name, "nobody")


def test_of_large_files_only_so_much_is_read(spoilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_READ", 2)
    read: list[str] = []
    before = room._matrix
    monkeypatch.setattr(room, "_matrix", lambda path, name, place: read.append(name) or before(path, name, place))
    for name in ("feats.scp", "feats.ark"):
        read.clear()
        lines = said(spoilt / name, "u4")
        assert sorted(read) == ["u0", "u1", "u4"]
        assert lines["frames"].startswith("70 (") and lines["drawn"] == "u4: 70 frames"
        assert lines["read"].startswith("the first 2 utterances")
        with pytest.raises(Speech3Error, match="no utterance u9"):
            said(spoilt / name, "u9")
    # what comes after the first is not even looked at
    content = (spoilt / "feats.ark").read_bytes()
    (spoilt / "feats.ark").write_bytes(content[: content.index(b"u3 ")] + b"rubbish")
    assert said(spoilt / "feats.ark")["drawn"] == "u0: 30 frames"


def test_one_unreadable_utterance_does_not_hide_the_others(spoilt: Path) -> None:
    lines = (spoilt / "feats.scp").read_text().splitlines()
    (spoilt / "feats.scp").write_text("\n".join([*lines, "u9 gone.ark:3"]) + "\n")
    assert said(spoilt / "feats.scp")["unreadable"].startswith("1 utterance; the first: ")
    assert "gone.ark:3" in said(spoilt / "feats.scp")["unreadable"]
    with pytest.raises(Speech3Error, match=r"u9: gone\.ark:3: No such file"):
        said(spoilt / "feats.scp", "u9")


def test_packed_frames(tmp_path: Path) -> None:
    senones = {name: np.repeat([3, 0, 3], [10, 10, len(feats_TF) - 20]) for name, feats_TF in FEATS.items()}
    write_frames(tmp_path / "train.frames", FEATS, senones, 6, utterances=list(FEATS), info={"corpus": "toy"})
    lines = said(tmp_path / "train.frames", "u2")
    assert "packed frames (float32), 5 utterances, 250 frames" in lines["file"]
    share = 50 / 250
    perplexity = np.exp(-share * np.log(share) - (1 - share) * np.log(1 - share))
    assert lines["senones"] == f"6, of which 4 never occur; perplexity {perplexity:.1f}"
    assert lines["most often"].startswith("3 (80.0 %), 0 (20.0 %)")
    assert lines["noted"] == "corpus: toy" and lines["drawn"] == "u2: 50 frames"
    picture = inspect(tmp_path / "train.frames", PRESET, "u2").picture
    np.testing.assert_array_equal(picture.senones_T, senones["u2"])
    np.testing.assert_array_equal(picture.feats_TF, FEATS["u2"])


def sound(seconds: float, hertz: float = 150.0) -> np.ndarray:
    """A voice of that pitch, clipped at one place, with a stretch of digital silence at its end."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    wave_S = sum(0.1 * np.sin(2 * np.pi * hertz * k * time_s) for k in range(1, 6)) + RNG.normal(0, 1e-3, len(time_s))
    wave_S[1000:1007] = 1.0
    wave_S[-RATE_HZ // 4 :] = 0
    return wave_S


def test_a_recording(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", sound(2.0), RATE_HZ)
    lines = said(tmp_path / "a.flac")
    assert "recording, 16,000 Hz, 1 channel, 2.00 s" in lines["file"]
    assert lines["level"].startswith("peak -0.0 dB, RMS -1")
    assert lines["clipped"].startswith("7 samples")
    assert "0.25 s in which samples do not change" in next(
        text for name, text in inspect(tmp_path / "a.flac", PRESET).lines if name == "silence"
    )
    assert "median 150 Hz" in lines["pitch"] or "median 149 Hz" in lines["pitch"]
    picture = inspect(tmp_path / "a.flac", PRESET).picture
    extract(_data(tmp_path), tmp_path / "feats", PRESET, 1)
    (expected_TF,) = ArkReader(tmp_path / "feats" / "feats.scp").values()
    np.testing.assert_allclose(picture.feats_TF, expected_TF, atol=1e-4)
    assert picture.pitch is not None and len(picture.pitch.hz) == len(expected_TF)
    with pytest.raises(Speech3Error, match=r"a\.flac: --utterance u: the file is a single recording"):
        inspect(tmp_path / "a.flac", PRESET, "u")


def test_a_recording_of_so_low_a_rate_that_pitch_is_not_looked_for(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", sound(0.1), 1600)
    found = inspect(tmp_path / "a.wav", PRESET.model_copy(update={"num_mel_bins": 6}))
    assert dict(found.lines)["pitch"].startswith("none: ") and found.picture.pitch is None


def _data(directory: Path):
    from speech3.data.datadir import read_datadir

    (directory / "wav.scp").write_text("u a.flac\n")
    (directory / "utt2spk").write_text("u s\n")
    return read_datadir(directory)


def test_of_long_recordings_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from speech3.evaluate import inspection as inspect_sound

    monkeypatch.setattr(room, "MOST_DRAWN_S", 1.5)
    monkeypatch.setattr(inspect_sound, "_MOST_HEARD_S", 2.5)
    monkeypatch.setattr(inspect_sound, "_PIECE_S", 1.0)
    stereo = np.stack([sound(3.0), sound(3.0)], 1)
    soundfile.write(tmp_path / "a.wav", stereo, RATE_HZ)
    lines = said(tmp_path / "a.wav")
    assert "2 channels, which are averaged, 3.00 s" in lines["file"]
    assert lines["heard"] == "the first 2.5 s" and lines["drawn"] == "a.wav (the first 1.5 s of 3.0)"
    assert lines["frames"].startswith("148 (")


def test_a_silent_channel_is_not_said_to_be_averaged(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([sound(1.0), np.zeros(RATE_HZ)], 1), RATE_HZ)
    assert "2 channels (channel 1 is used" in said(tmp_path / "a.wav")["file"]


def test_a_list_of_recordings(tmp_path: Path) -> None:
    for name, seconds in (("a", 1.0), ("b", 2.0)):
        soundfile.write(tmp_path / f"{name}.wav", sound(seconds), RATE_HZ)
    (tmp_path / "wav.scp").write_text("a a.wav\nb b.wav\nc gone.wav\nd cat b.wav |\n")
    lines = said(tmp_path / "wav.scp", "d")
    assert "list of 4 recordings" in lines["file"]
    assert lines["lengths"] == "1.00 s (a) to 2.00 s (b)"
    assert lines["unreadable"].startswith("1; the first: gone.wav: no such file")
    assert lines["drawn"] == "d"
    with pytest.raises(Speech3Error, match=r"gone\.wav: no such file"):
        said(tmp_path / "wav.scp", "c")
    (tmp_path / "segments").write_text("b-1 b 0.5 1.25\nb-3 b 2.5 3\n")
    (tmp_path / "utt2spk").write_text("b-1 s\nb-3 s\n")
    picture = inspect(tmp_path / "wav.scp", PRESET, "b-1").picture
    assert picture.wave_S is not None and picture.title == "b-1"
    np.testing.assert_array_equal(picture.wave_S, soundfile.read(tmp_path / "b.wav", dtype="float32")[0][8000:20000])
    with pytest.raises(Speech3Error, match=r"segments: no utterance b-2; .*for instance: b-1"):
        said(tmp_path / "wav.scp", "b-2")
    with pytest.raises(Speech3Error, match=r"b-3: begins at 2\.5 s, but its recording ends at 2 s"):
        said(tmp_path / "wav.scp", "b-3")


def test_what_is_known_of_the_features_beside_them(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.flac", sound(1.0), RATE_HZ)
    config = load_preset(FeatureConfig, "features", "plp13_pitch1_d2")
    extract(_data(tmp_path), tmp_path / "out", config, 1)
    picture = inspect(tmp_path / "out" / "feats.scp", PRESET).picture
    assert (picture.blocks, picture.curves) == (3, [("normalised log pitch", 13)])
    assert picture.offset_s == pytest.approx(0.0075)
    extract(_data(tmp_path), tmp_path / "out", PRESET, 1)
    centres_hz = inspect(tmp_path / "out" / "feats.ark", PRESET).picture.centres_hz
    assert centres_hz is not None and len(centres_hz) == 40 and 20 < centres_hz[0] < centres_hz[-1] < 8000


def test_files_of_other_kinds(tmp_path: Path) -> None:
    understood = "reads recordings .* archives of features .* packed frames"
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "prose.md").write_text("# Some words\n\nNothing of a list.\n```\n")
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty").touch()
    for name in ("a.txt", "prose.md", "a.bin", "empty"):
        with pytest.raises(Speech3Error, match=rf"(?s){name}.*{understood}"):
            said(tmp_path / name)
    write_ark(tmp_path / "ali.ark", [("u", np.arange(3))])
    with pytest.raises(Speech3Error, match=f"integer vectors.*{understood}"):
        said(tmp_path / "ali.ark")
    for place, what in ((tmp_path, "a directory"), (tmp_path / "none", "no such file")):
        with pytest.raises(Speech3Error, match=f"{what}.*{understood}"):
            said(place)
    soundfile.write(tmp_path / "short.wav", np.zeros(100), RATE_HZ)
    with pytest.raises(Speech3Error, match=r"short\.wav: shorter than one frame"):
        said(tmp_path / "short.wav")
    soundfile.write(tmp_path / "cut.wav", sound(1.0), RATE_HZ)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "cut.wav").read_bytes()[:-4000])
    with pytest.raises(Speech3Error, match=r"cut\.wav: is cut short"):
        said(tmp_path / "cut.wav")
    with pytest.raises(Speech3Error, match="given features are not computed"):
        soundfile.write(tmp_path / "a.wav", sound(1.0), RATE_HZ)
        inspect(tmp_path / "a.wav", load_preset(FeatureConfig, "features", "given"))


def drawn(picture: Picture, path: Path) -> np.ndarray:
    write_picture(picture, path)
    return matplotlib.image.imread(path)[..., :3]


def test_the_panels_share_one_time_axis(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", sound(2.0), RATE_HZ)
    figure = draw(inspect(tmp_path / "a.wav", PRESET).picture)
    figure.draw_without_rendering()
    named = {axes.get_ylabel(): axes for axes in figure.axes if axes.get_ylabel()}
    assert set(named) == {"amplitude", "mel bin", "pitch, Hz"}
    assert named["pitch, Hz"].get_xlabel() == "seconds"
    places = [axes.get_position() for axes in named.values()]
    assert {axes.get_xlim() for axes in named.values()} == {(0.0, 2.0)}
    assert np.ptp([place.x0 for place in places]) < 1e-6 and np.ptp([place.x1 for place in places]) < 1e-6


def test_numbers_that_are_none_are_seen(spoilt: Path, tmp_path: Path) -> None:
    green = np.array([0x35, 0xB7, 0x79]) / 255
    for name, there in (("u1", True), ("u3", True), ("u0", False)):
        image = drawn(inspect(spoilt / "feats.scp", PRESET, name).picture, tmp_path / "a.png")
        assert ((np.abs(image - green) < 0.02).all(2).sum() > 20) == there


def test_a_picture_replaces_only_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: Path) -> None:
    monkeypatch.chdir(tmp_path)
    place = picture_path(spoilt / "feats.scp", None)
    assert place == Path("feats.png")
    write_picture(inspect(spoilt / "feats.scp", PRESET).picture, place)
    assert picture_path(spoilt / "feats.scp", None) == place
    place.write_bytes(b"a photograph")
    with pytest.raises(Speech3Error, match=r"feats\.png: exists, and was not written by speech3 inspect"):
        picture_path(spoilt / "feats.scp", None)
    with pytest.raises(Speech3Error, match=r"--out feats\.png: exists and is not a PNG picture"):
        picture_path(spoilt / "feats.scp", place)
    place.write_bytes(b"\x89PNG\r\n\x1a\n of another program")
    assert picture_path(spoilt / "feats.scp", place) == place


def test_the_verb(spoilt: Path, tmp_path: Path, speech3) -> None:
    process = speech3("inspect", spoilt / "feats.scp", "--out", tmp_path / "new" / "p.png", "--utterance", "u4")
    assert process.returncode == 0, process.stderr
    assert f"picture     {tmp_path}/new/p.png" in process.stdout
    assert (tmp_path / "new" / "p.png").read_bytes().startswith(b"\x89PNG")
    process = speech3("inspect", spoilt / "nothing.ark")
    assert process.returncode == 1 and "no such file" in process.stderr and "Traceback" not in process.stderr
