"""A recording at another speed: pitch and length move together, and the copy is somebody else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sounds import RATE_HZ, tone

from speech3.data import audio
from speech3.data.augment.augmenter import add_background, has_no_background, perturb_speed, without_background
from speech3.data.datadir import read_datadir
from speech3.data.validation import validate
from speech3.errors import Speech3Error
from speech3.runtime import parallel

FREQUENCY_HZ = 440.0


def peak_hz(wave_S: np.ndarray) -> float:
    """Frequency of the strongest partial, between the bins of a long transform."""
    spectrum = np.abs(np.fft.rfft(wave_S * np.hanning(len(wave_S)), 1 << 18))
    return float(spectrum.argmax() * RATE_HZ / (1 << 18))


@pytest.mark.parametrize("factor", [0.9, 1.1, 0.5, 2.0])
def test_pitch_and_length_move_with_the_speed(make: Callable[..., Path], tmp_path: Path, factor: float) -> None:
    data = read_datadir(make())
    result = perturb_speed(data, tmp_path / "out", [factor], jobs=1)
    original, _ = audio.load(data, "u1")
    wave_S, rate_hz = audio.load(result, f"sp{factor:g}-u1")
    assert rate_hz == RATE_HZ
    assert len(wave_S) == pytest.approx(len(original) / factor, abs=1)
    assert peak_hz(wave_S) == pytest.approx(FREQUENCY_HZ * factor, rel=1e-3)
    middle = slice(len(wave_S) // 4, -len(wave_S) // 4)
    assert wave_S[middle].std() == pytest.approx(original.std(), rel=0.02)  # as loud as it was


def test_originals_stay_and_copies_are_other_speakers(make: Callable[..., Path], tmp_path: Path) -> None:
    data = read_datadir(make(spk2gender="a f\nb m\n"))
    out = tmp_path / "out"
    result = perturb_speed(data, out, [0.9, 1.1], jobs=1)
    again = read_datadir(out)
    assert again.utterances == result.utterances and again.recordings == result.recordings
    assert list(again.utterances) == sorted([*data.utterances, *(f"sp{f}-u{n}" for f in (0.9, 1.1) for n in (1, 2, 3))])
    for key, utterance in data.utterances.items():
        assert again.utterances[key] == utterance
        for factor in ("0.9", "1.1"):
            copy = again.utterances[f"sp{factor}-{key}"]
            assert (copy.text, copy.gender) == (utterance.text, utterance.gender)
            assert copy.speaker == f"sp{factor}-{utterance.speaker}"
    assert set(again.speakers()) == {"a", "b", "sp0.9-a", "sp0.9-b", "sp1.1-a", "sp1.1-b"}
    assert not validate(out, jobs=1).faults
    assert all(soundfile.info(path).subtype == "PCM_16" for path in (out / "wav").iterdir())


def test_utterances_that_cannot_be_read_have_no_copy(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [f"v{n}" for n in range(40)]
    directory = make(
        wav_scp="".join(f"{name} wav/u1.wav\n" for name in many) + "bad wav/bad.wav\n",
        text="".join(f"{name} a\n" for name in [*many, "bad"]),
        utt2spk="".join(f"{n} {n}\n" for n in [*many, "bad"]),
    )
    (directory / "wav" / "bad.wav").touch()
    result = perturb_speed(read_datadir(directory), tmp_path / "out", [0.9, 1.1], jobs=1)
    assert len(result.utterances) == 41 + 2 * 40 and "sp0.9-bad" not in result.utterances
    assert capsys.readouterr().err.count("no copy of bad: ") == 1
    with pytest.raises(Speech3Error, match="cannot be read"):
        perturb_speed(read_datadir(directory).subset(["v1", "bad"]), tmp_path / "few", [0.9], jobs=1)


def test_segments_are_cut_before_their_speed_changes(make: Callable[..., Path], tmp_path: Path) -> None:
    directory = make(wav_scp="rec wav/rec.wav\n", segments="u1 rec 0.0 0.4\nu2 rec 0.5 1.0\nu3 rec 1.0 1.5\n")
    parts = [tone(0.5, frequency_hz=hz) for hz in (300.0, 600.0, 900.0)]
    soundfile.write(directory / "wav" / "rec.wav", np.concatenate(parts), RATE_HZ)
    out = tmp_path / "out"
    perturb_speed(read_datadir(directory), out, [1.25], jobs=1)
    result = read_datadir(out)
    assert (result.utterances["u2"].start_s, result.utterances["u2"].end_s) == (0.5, 1.0)
    for key, hz, duration_s in (("u1", 300.0, 0.4), ("u2", 600.0, 0.5), ("u3", 900.0, 0.5)):
        wave_S, _ = audio.load(result, f"sp1.25-{key}")
        assert peak_hz(wave_S) == pytest.approx(1.25 * hz, rel=1e-3)
        assert len(wave_S) / RATE_HZ == pytest.approx(duration_s / 1.25, abs=2e-3)
        assert peak_hz(audio.load(result, key)[0]) == pytest.approx(hz, rel=1e-3)
    assert not validate(out, jobs=1).faults


def test_relative_audio_is_found_from_the_new_directory(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.chdir(tmp_path)
    result = perturb_speed(read_datadir("data"), Path("deep/out"), [1.1], jobs=1)
    assert np.array_equal(audio.load(result, "u1")[0], audio.load(read_datadir("data"), "u1")[0])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = read_datadir("../deep/out")
    assert {len(audio.load(again, key)[0]) for key in again.utterances} == {4000, 3637}
    assert not validate(tmp_path / "deep" / "out", jobs=1).faults


def test_same_bytes_from_several_processes(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_datadir(make())
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)
    for name, jobs in (("one", 1), ("two", 2)):
        perturb_speed(data, tmp_path / name, [0.9], jobs=jobs)
    for path in (tmp_path / "one" / "wav").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / "wav" / path.name).read_bytes()
    assert len(list((tmp_path / "two" / "wav").iterdir())) == 3


@pytest.mark.parametrize("factors", [[0.4], [2.1], [1.0], [0.0], [-1.0], [1.1, 3.0], [float("nan")]])
def test_factors_that_make_no_sense(make: Callable[..., Path], tmp_path: Path, factors: list[float]) -> None:
    with pytest.raises(Speech3Error, match=rf"factor {factors[-1]:g}: factors must be from 0.5 to 2, other than 1"):
        perturb_speed(read_datadir(make()), tmp_path / "out", factors, jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_copy_never_takes_the_place_of_an_utterance(make: Callable[..., Path], tmp_path: Path) -> None:
    first = perturb_speed(read_datadir(make()), tmp_path / "out", [1.1], jobs=1)
    with pytest.raises(Speech3Error, match=r"sp1\.1-u1: .*already"):
        perturb_speed(first, tmp_path / "again", [1.1], jobs=1)
    with pytest.raises(Speech3Error, match=r"sp1\.1-u1: .*already"):
        perturb_speed(read_datadir(make()), tmp_path / "twice", [1.1, 1.1], jobs=1)
    assert not (tmp_path / "again").exists() and not (tmp_path / "twice").exists()


def test_a_recording_that_cannot_be_read_is_named(make: Callable[..., Path], tmp_path: Path) -> None:
    directory = make()
    (directory / "wav" / "u2.wav").unlink()
    with pytest.raises(Speech3Error, match="u2"):
        perturb_speed(read_datadir(directory), tmp_path / "out", [1.1], jobs=1)
    assert not (tmp_path / "out" / "wav.scp").exists()


def test_copies_with_background(make: Callable[..., Path]) -> None:
    directory = make()
    data = read_datadir(directory)
    result = add_background(data, jobs=1)
    assert result == read_datadir(directory) and set(result.utterances) == {
        *data.utterances,
        *map("background-{}".format, data.utterances),
    }
    assert not validate(directory, jobs=1).faults
    for key, utterance in data.utterances.items():
        (wave_S, rate_hz), (room_S, _) = audio.load(data, key), audio.load(result, f"background-{key}")
        copy = result.utterances[f"background-{key}"]
        assert (copy.text, copy.speaker) == (utterance.text, f"background-{utterance.speaker}")
        assert 0.2 * rate_hz <= len(room_S) - len(wave_S) <= 1.2 * rate_hz
        before = int(np.argmax(np.correlate(room_S, wave_S)))
        edge_S, loud = room_S[: int(0.1 * rate_hz)], float(wave_S.std())
        assert before >= 0.1 * rate_hz and 0 < edge_S.std() < 0.2 * loud
    again = perturb_speed(result, directory.parent / "faster", [0.9], jobs=1)
    assert set(again.utterances) == {*result.utterances, *(f"sp0.9-{key}" for key in data.utterances)}
    assert set(without_background(again).utterances) == {*data.utterances, *(f"sp0.9-{key}" for key in data.utterances)}
    assert without_background(data) is data
    with pytest.raises(Speech3Error, match=r"background-u1: .*already"):
        add_background(result, jobs=1)


def test_a_copy_takes_the_place_of_no_recording(make: Callable[..., Path]) -> None:
    directory = make()
    data = read_datadir(directory)
    recordings = {**data.recordings, "background-u1": data.recordings[data.utterances["u1"].recording]}
    with pytest.raises(Speech3Error, match=r"background-u1: .*already has .* recording"):
        add_background(replace(data, recordings=recordings), jobs=1)


@pytest.mark.parametrize("snr_db", [40, 10])
@pytest.mark.parametrize("zeros_s", [0.0, 0.5])
@pytest.mark.parametrize(("edges_s", "expected"), [(0.0, True), (0.1, True), (0.16, False), (0.5, False)])
def test_recordings_that_begin_and_end_with_speech(
    tmp_path: Path, edges_s: float, expected: bool, zeros_s: float, snr_db: float
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "bad.wav").write_bytes(b"")
    for number in range(5):
        level_S = 0.1 * (1 + np.sin(2 * np.pi * 4 * np.arange(8000) / 8000))  # of syllables
        speech_S = np.pad(level_S * rng.normal(size=8000), round(8000 * edges_s))
        noisy_S = speech_S + 0.1 * 10 ** (-snr_db / 20) * rng.normal(size=len(speech_S))
        soundfile.write(tmp_path / f"{number}.wav", np.pad(noisy_S, round(8000 * zeros_s)), 8000)
    names = [*map(str, range(5)), "bad"]
    (tmp_path / "wav.scp").write_text("".join(f"{name} {tmp_path / name}.wav\n" for name in names))
    (tmp_path / "utt2spk").write_text("".join(f"{name} anna\n" for name in names))
    assert has_no_background(read_datadir(tmp_path)) is expected
