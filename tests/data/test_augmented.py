"""Copies of a data directory: what they are made of, that they depend on seed and name alone, what is refused."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.config import AugmentConfig
from speech3.data import audio
from speech3.data.augment.augmenter import augment_data, make_augmenter
from speech3.data.datadir import DataDir, read_datadir
from speech3.data.validation import validate
from speech3.errors import DataError, Speech3Error
from speech3.runtime import parallel

RATE_HZ = 8000
EVERYTHING = AugmentConfig(
    speed=(0.9, 1.0, 1.1),
    reverb_prob=0.5,
    overlap_prob=0.3,
    noise_prob=0.4,
    babble_prob=0.4,
    telephone_prob=0.3,
    volume_prob=0.5,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Utterances u0 to u23 of four speakers, each a tone of its own; s12 and after in one recording."""
    out, time_s = tmp_path / "data", np.arange(6000) / RATE_HZ
    (out / "wav").mkdir(parents=True)
    waves = [0.2 * np.sin(2 * np.pi * (200 + 50 * n) * time_s) for n in range(24)]
    for n in range(12):
        soundfile.write(out / "wav" / f"u{n:02}.wav", waves[n], RATE_HZ)
    soundfile.write(out / "wav" / "rec.wav", np.concatenate(waves[12:]), RATE_HZ)
    ids = [f"u{n:02}" for n in range(24)]
    (out / "wav.scp").write_text("rec wav/rec.wav\n" + "".join(f"{u} wav/{u}.wav\n" for u in ids[:12]))
    starts = {u: 0.75 * n for n, u in enumerate(ids[12:])}
    lines = [f"{u} rec {starts[u]} {starts[u] + 0.75}" if u in starts else f"{u} {u} 0 -1" for u in ids]
    (out / "segments").write_text("\n".join(lines) + "\n")
    (out / "text").write_text("".join(f"{u} WORD {n}\n" for n, u in enumerate(ids)))
    (out / "utt2spk").write_text("".join(f"{u} s{n // 6}\n" for n, u in enumerate(ids)))
    (out / "spk2gender").write_text("s0 f\ns1 m\ns2 f\ns3 m\n")
    return out


def done(out: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (out / "augment.txt").read_text().splitlines())


def snr_db(clean: np.ndarray, heard: np.ndarray) -> float:
    return 10 * np.log10(np.square(clean).mean() / np.square(heard - clean).mean())


def test_copies_are_other_speakers_with_the_same_words(directory: Path, tmp_path: Path) -> None:
    data, out = read_datadir(directory), tmp_path / "out"
    report = augment_data(data, out, EVERYTHING, copies=2, jobs=1)
    again = read_datadir(out)
    assert again.utterances == report.data.utterances and again.recordings == report.data.recordings
    assert set(again.utterances) == {f"aug{copy}-{key}" for copy in (1, 2) for key in data.utterances}
    for key, copy in again.utterances.items():
        prefix, original = key[:5], data.utterances[key[5:]]
        assert (copy.text, copy.gender, copy.speaker) == (original.text, original.gender, prefix + original.speaker)
    assert not validate(out, jobs=1).faults
    assert done(out) == report.done and set(report.done) == set(again.utterances)
    assert all(soundfile.info(path).subtype == "PCM_16" for path in (out / "wav").iterdir())
    kinds = {word.split("=")[0] for line in report.done.values() for word in line.split()}
    assert kinds >= {"speed", "reverb", "overlap", "noise", "telephone", "volume"}
    assert report.done["aug1-u03"] != report.done["aug2-u03"]


def test_each_copy_is_what_the_list_says(directory: Path, tmp_path: Path) -> None:
    data, out = read_datadir(directory), tmp_path / "out"
    config = AugmentConfig(noise_prob=0.5, noise_snr_db=(0, 10), babble_prob=0.3, babble_snr_db=(20, 30))
    augment_data(data, out, config, jobs=1)
    result, kinds = read_datadir(out), set()
    for key, line in done(out).items():
        clean, heard = audio.load(data, key[5:])[0], audio.load(result, key)[0]
        assert len(clean) == len(heard)
        if line == "clean":
            np.testing.assert_array_equal(clean, heard)
            continue
        match = re.fullmatch(r"noise=(coloured|hum|babble:[3-7]),(\d+\.\d)dB", line)
        assert match, line
        kinds.add(match[1].split(":")[0])
        asked = float(match[2])
        assert (20 <= asked <= 30) if "babble" in match[1] else (0 <= asked <= 10)
        peak = np.abs(heard).max()
        if peak < 0.999:  # else made softer lest it clip
            assert snr_db(clean, heard) == pytest.approx(asked, abs=0.1)
    assert kinds == {"coloured", "hum", "babble"}


def test_noise_and_rooms_of_the_users_own(directory: Path, tmp_path: Path) -> None:
    noise, rirs = tmp_path / "musan", tmp_path / "rirs"
    for path in (noise / "noise", noise / "speech", rirs):
        path.mkdir(parents=True)
    time_s = np.arange(3 * RATE_HZ) / RATE_HZ
    soundfile.write(noise / "noise" / "whistle.wav", 0.1 * np.sin(2 * np.pi * 3000 * time_s), RATE_HZ)
    soundfile.write(noise / "speech" / "a.wav", 0.1 * np.sin(2 * np.pi * 100 * time_s), RATE_HZ)
    pulse = np.zeros(500)
    pulse[333] = 0.4
    soundfile.write(rirs / "pulse.wav", pulse, RATE_HZ)
    config = AugmentConfig(noise_prob=0.5, babble_prob=0.5, noise_dir=str(noise), reverb_prob=1, rir_dir=str(rirs))
    data, out = read_datadir(directory), tmp_path / "out"
    augment_data(data, out, config, jobs=1)
    result, kinds = read_datadir(out), set()
    for key, line in done(out).items():
        match = re.fullmatch(r"reverb=pulse\.wav noise=(noise/whistle\.wav|babble:\d),(\d+\.\d)dB", line)
        assert match, line
        kinds.add(match[1][:6])
        clean, heard = audio.load(data, key[5:])[0], audio.load(result, key)[0]
        assert snr_db(clean, heard) == pytest.approx(float(match[2]), abs=0.1), "a lone pulse is no room"
        hz = np.abs(np.fft.rfft(heard - clean)).argmax() * RATE_HZ / len(clean)
        assert hz == pytest.approx(3000 if match[1].startswith("noise") else 100, abs=3)
    assert kinds == {"noise/", "babble"}


def test_another_speaker_is_never_the_same_speaker(directory: Path, tmp_path: Path) -> None:
    data, out = read_datadir(directory), tmp_path / "out"
    augment_data(data, out, AugmentConfig(overlap_prob=1, overlap_snr_db=(-3, 3)), copies=3, jobs=1)
    for key, line in done(out).items():
        other = line.removeprefix("overlap=").split(",")[0]
        assert data.utterances[other].speaker != data.utterances[key[5:]].speaker
    alone = data.subset(["u00", "u01"])
    augment_data(alone, tmp_path / "alone", AugmentConfig(overlap_prob=1), jobs=1)
    assert {line[:11] for line in done(tmp_path / "alone").values()} == {"overlap=u00", "overlap=u01"}


@pytest.mark.usefixtures("one_thread")  # by which code of mu-law a sample is may depend on a last bit
def test_the_same_whatever_the_processes_and_the_order(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_datadir(directory)
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)
    reports = [augment_data(data, tmp_path / f"{jobs}", EVERYTHING, copies=2, jobs=jobs) for jobs in (1, 2)]
    assert reports[0].done == reports[1].done
    for path in (tmp_path / "1" / "wav").iterdir():
        assert path.read_bytes() == (tmp_path / "2" / "wav" / path.name).read_bytes()
    other = augment_data(data, tmp_path / "other", EVERYTHING, seed=2, jobs=1)
    assert sum(other.done[key] != reports[0].done[key] for key in other.done) > 20

    augmenter = pickle.loads(pickle.dumps(make_augmenter(EVERYTHING, data, 1)))
    for key in reversed(data.utterances):
        wave_S, rate_hz = audio.load(data, key)
        alone_S, about = augmenter(wave_S, rate_hz, data.utterances[key], f"aug1-{key}")
        assert alone_S.dtype == np.float32 and np.abs(alone_S).max() < 1 and about == reports[0].done[f"aug1-{key}"]
        on_disk = audio.load(reports[0].data, f"aug1-{key}")[0]
        np.testing.assert_allclose(alone_S, on_disk, atol=1 / 32768)
        np.testing.assert_array_equal(alone_S, augmenter(wave_S, rate_hz, data.utterances[key], f"aug1-{key}")[0])
        by_id = augmenter(wave_S, rate_hz, data.utterances[key])[0]
        assert np.array_equal(by_id, augmenter(wave_S, rate_hz, data.utterances[key], key)[0])


@pytest.mark.parametrize("samples", [1, 7, 300])
def test_hardly_anything_is_augmented_all_the_same(directory: Path, samples: int) -> None:
    config = EVERYTHING.model_copy(
        update={key: 1.0 for key in ("reverb_prob", "overlap_prob", "telephone_prob", "volume_prob")}
    )
    data = read_datadir(directory)
    augmenter = make_augmenter(config.model_copy(update={"speed": ()}), data, 1)
    wave_S = np.linspace(-0.5, 0.5, samples, dtype=np.float32) if samples > 1 else np.float32([0.5])
    for wave in (wave_S, 0 * wave_S):
        for copy in range(20):
            heard, _ = augmenter(wave, RATE_HZ, data.utterances["u05"], f"{copy}")
            assert len(heard) == samples and heard.dtype == np.float32 and np.isfinite(heard).all()
            assert np.abs(heard).max() < 1


def test_what_cannot_be_read_is_listed_or_too_much(directory: Path, tmp_path: Path) -> None:
    (directory / "wav" / "u03.wav").write_bytes(b"RIFF")
    data = read_datadir(directory)
    report = augment_data(data, tmp_path / "out", EVERYTHING, copies=2, jobs=1)
    assert set(report.skipped) == {"u03"} and len(report.data.utterances) == 46
    assert (tmp_path / "out" / "skipped.txt").read_text().startswith("u03 u03: ")
    (directory / "wav" / "u04.wav").unlink()
    with pytest.raises(Speech3Error, match=r"2 of 24 utterances cannot be used, more than 5 %"):
        augment_data(data, tmp_path / "bad", EVERYTHING, jobs=1)
    assert not (tmp_path / "bad" / "wav.scp").exists()


def test_what_is_refused(directory: Path, tmp_path: Path) -> None:
    data = read_datadir(directory)
    with pytest.raises(Speech3Error, match="is one of the inputs"):
        augment_data(data, directory, EVERYTHING)
    with pytest.raises(Speech3Error, match="nowhere: no such directory"):
        augment_data(data, tmp_path / "out", AugmentConfig(noise_prob=1, noise_dir=str(tmp_path / "nowhere")))
    with pytest.raises(Speech3Error, match="there is no other utterance"):
        augment_data(data.subset(["u00"]), tmp_path / "out", AugmentConfig(overlap_prob=1))
    speech = tmp_path / "musan" / "speech"
    speech.mkdir(parents=True)
    soundfile.write(speech / "a.wav", np.zeros(100), RATE_HZ)
    with pytest.raises(Speech3Error, match="has only speech"):
        augment_data(data, tmp_path / "out", AugmentConfig(noise_prob=1, noise_dir=str(tmp_path / "musan")))
    (speech.parent / "n.wav").write_bytes(b"no sound")
    with pytest.raises(Speech3Error, match=r"n\.wav: is not audio"):
        augment_data(data, tmp_path / "out", AugmentConfig(noise_prob=1, noise_dir=str(tmp_path / "musan")), jobs=1)
    with pytest.raises(DataError, match="musan/speech"):
        augment_data(data, tmp_path / "out", AugmentConfig(babble_prob=1, noise_dir=str(speech)))
    with pytest.raises(Speech3Error, match=r"no audio: the directory has features"):
        augment_data(DataDir(tmp_path / "f", {}, data.utterances, {"u00": "x"}), tmp_path / "out", EVERYTHING)
    assert not (tmp_path / "out" / "wav.scp").exists()


def test_a_line_may_be_uncoded_and_a_gain_fixed(directory: Path) -> None:
    data = read_datadir(directory)
    wave_S = np.random.default_rng(1).uniform(-0.5, 0.5, 6000).astype(np.float32)

    def heard(**keys: object) -> np.ndarray:
        return make_augmenter(AugmentConfig(**keys), data, 1)(wave_S, RATE_HZ, data.utterances["u05"])[0]

    coded, uncoded = (heard(telephone_prob=1.0, telephone_mu_law=mu_law) for mu_law in (True, False))
    assert len(np.unique(coded)) <= 256 < len(np.unique(uncoded)), "8 bits"
    assert np.allclose(heard(volume_prob=1.0, volume_db=(-6.0, -6.0)), 10 ** (-6 / 20) * wave_S, atol=1e-6)
