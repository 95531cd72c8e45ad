"""From wav files to an archive, and what goes wrong on the way."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import typer
from extracted import extracted
from typer.testing import CliRunner

from speech3.cli import data as extract_verb
from speech3.config import AugmentConfig, FeatureConfig, load_preset, parse, read_yaml
from speech3.data.augment.augmenter import make_augmenter
from speech3.data.datadir import DataDir, Utterance, read_datadir
from speech3.errors import DataError, Speech3Error
from speech3.features.cmvn import cmvn_stats
from speech3.features.compute import finish_features, static_features
from speech3.features.extraction import extract
from speech3.io.ark import ArkReader, _kaldi_io as kaldi_io
from speech3.runtime import parallel

RATE_HZ = 8000


def sound(name: str, samples: int = 4000) -> np.ndarray:
    """Noise that depends on the name, as 16-bit values."""
    random = np.random.default_rng(list(name.encode()))
    return (random.standard_normal(samples) * 3000).astype(np.int16)


def data_of(directory: Path, speakers: dict[str, str], **sounds: np.ndarray | None) -> DataDir:
    """A data directory with these utterances and their speakers; None leaves the file out."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in speakers:
        samples = sounds.get(name, sound(name))
        if samples is not None:
            soundfile.write(directory / f"{name}.wav", samples, RATE_HZ)
    (directory / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in speakers))
    (directory / "utt2spk").write_text("".join(f"{name} {speaker}\n" for name, speaker in speakers.items()))
    (directory / "text").write_text("".join(f"{name} WORD\n" for name in speakers))
    return read_datadir(directory)


def twenty(**more: str) -> dict[str, str]:
    return {f"u{i:02}": "ab"[i % 2] for i in range(20)} | more


@pytest.mark.parametrize("jobs", [1, 2])
def test_end_to_end_readable_by_kaldi_io(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)  # so little work would start no process
    lengths = {"b1": 4000, "a2": 2345, "c3": 8001, "a0": 200}
    speakers = {"b1": "x", "a2": "y", "c3": "z", "a0": "x"}
    data = data_of(tmp_path / "data", speakers, **{name: sound(name, n) for name, n in lengths.items()})
    config = FeatureConfig(kind="mfcc", deltas=2, cmvn="speaker", norm_vars=True)
    report = extract(data, tmp_path / "out", config, jobs)
    expected, everything = {}, []
    for speaker in ("x", "y", "z"):
        names = [name for name in lengths if speakers[name] == speaker]
        waves = [torch.from_numpy(sound(name, lengths[name]).astype(np.float32) / 32768) for name in names]
        statics = [
            static_features(wave_S[None], torch.tensor([len(wave_S)]), config, RATE_HZ)[0][0] for wave_S in waves
        ]
        expected.update(zip(names, finish_features(statics, config), strict=True))
        everything += statics
    found = dict(kaldi_io.read_mat_scp(str(tmp_path / "out" / "feats.scp")))
    assert list(found) == sorted(lengths)
    assert set(dict(kaldi_io.read_mat_ark(str(tmp_path / "out" / "feats.ark")))) == set(lengths)
    for name, feats_TF in found.items():
        np.testing.assert_allclose(feats_TF, expected[name].numpy(), atol=1e-5)
    assert (report.utterances, report.values, report.sample_rate_hz, report.skipped) == (4, 39, RATE_HZ, {})
    assert report.frames == sum(map(len, found.values()))
    assert not (tmp_path / "out" / "skipped.txt").exists()
    written = tmp_path / "out" / "features.yaml"
    read = parse(FeatureConfig, read_yaml(written), written)
    assert read == report.config and read.global_stats is not None  # the statistics are for streams
    assert read.model_copy(update={"global_stats": None}) == config.model_copy(update={"sample_frequency": RATE_HZ})
    np.testing.assert_allclose(read.global_stats, cmvn_stats(torch.cat(everything)), rtol=1e-5)


def test_dither_is_the_same_every_time_and_differs_between_utterances(tmp_path: Path) -> None:
    silence = np.zeros(4000, dtype=np.int16)
    data = data_of(tmp_path / "data", {"u1": "a", "u2": "a"}, u1=silence, u2=silence)
    first, again = (extracted(data, FeatureConfig(dither=1.0)) for _ in range(2))
    np.testing.assert_array_equal(first["u1"], again["u1"])
    assert not np.allclose(first["u1"], first["u2"], atol=0.1)
    # The variance of white noise, 1, shows in the energy of a frame of 200 samples without its mean.
    energies = extracted(data, FeatureConfig(dither=1.0, use_energy=True))["u1"][:, 0]
    assert abs(np.exp(energies).mean() - 199) < 20


def test_a_bad_utterance_is_skipped_and_listed(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data", twenty(short="a"), short=sound("short", 199))
    report = extract(data, tmp_path / "out", FeatureConfig(cmvn="speaker"), 1)
    assert report.utterances == 20
    assert list(report.skipped) == ["short"]
    listed = (tmp_path / "out" / "skipped.txt").read_text()
    assert listed.startswith("short short: shorter than one frame (199 samples at 8000 Hz")
    assert sorted(ArkReader(tmp_path / "out" / "feats.scp")) == sorted(twenty())
    extract(data.subset(twenty()), tmp_path / "out", FeatureConfig(cmvn="speaker"), 1)
    assert not (tmp_path / "out" / "skipped.txt").exists()


def test_more_than_five_per_cent_stops_and_leaves_what_was_there(tmp_path: Path) -> None:
    good = data_of(tmp_path / "good", {"u1": "a"})
    extract(good, tmp_path / "out", FeatureConfig(), 1)
    before = (tmp_path / "out" / "feats.ark").read_bytes()
    bad = data_of(tmp_path / "bad", twenty(x1="a", x2="b"), x1=None, x2=sound("x2", 10))
    with pytest.raises(DataError, match=r"2 of 22 utterances.*more than 5 %(.|\n)*x1.*no"):
        extract(bad, tmp_path / "out", FeatureConfig(cmvn="speaker"), 1)
    assert (tmp_path / "out" / "feats.ark").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["feats.ark", "feats.scp", "features.yaml"]


def test_another_sample_rate_is_named_with_the_remedy(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data", {"u1": "a", "u2": "a"})
    soundfile.write(tmp_path / "data" / "u2.wav", sound("u2", 22050), 11025)
    with pytest.raises(Speech3Error, match=r"u2: .*11025 Hz where 8000 Hz .*resample"):
        extract(data, tmp_path / "out", FeatureConfig(), 1)
    resampled = extracted(data, FeatureConfig(resample=True))
    assert len(resampled["u2"]) == 1 + (16000 - 200) // 80


def test_digital_silence_is_finite_and_reported(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data", {"u1": "a", "u2": "b"}, u1=np.zeros(4000, dtype=np.int16))
    config = load_preset(FeatureConfig, "features", "fbank40_d2")
    assert extract(data, tmp_path / "out", config, 1).silent == ["u1"]
    silent_TF = ArkReader(tmp_path / "out" / "feats.scp")["u1"]
    assert np.abs(silent_TF).max() < 1e-2


def test_a_directory_without_usable_utterances_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match="holds no utterance"):
        extract(DataDir(tmp_path, {}, {}), tmp_path / "out", FeatureConfig(), 1)
    lost = DataDir(tmp_path, {"r": "lost.wav"}, {"u": Utterance("u", "r", "s", "WORD")})
    with pytest.raises(Speech3Error, match=r"none of 1 recordings can be read.*lost\.wav"):
        extract(lost, tmp_path / "out", FeatureConfig(), 1)
    assert not (tmp_path / "out" / "feats.ark").exists()


def test_the_verb(tmp_path: Path) -> None:
    data_of(tmp_path / "data", twenty(short="a"), short=sound("short", 100))
    app = typer.Typer()
    app.command()(extract_verb.extract)
    arguments = [str(tmp_path / "data"), str(tmp_path / "out"), "--features", "fbank40", "--jobs", "1"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "20 utterances, 960 frames" in result.stdout
    assert "1 utterance skipped" in result.stdout
    with pytest.raises(Speech3Error, match=r"nothing: neither a YAML file nor a preset .*fbank40"):
        CliRunner().invoke(app, [*arguments[:3], "nothing"], catch_exceptions=False)


@pytest.mark.parametrize("jobs", [1, 2])
def test_augmented_on_the_way(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_ALONE_S", -1.0)
    data, config = data_of(tmp_path / "data", {"u1": "a", "u2": "b", "u3": "a"}), FeatureConfig(cmvn="speaker")
    augment = AugmentConfig(noise_prob=1, noise_snr_db=(0, 5), reverb_prob=0.5)
    augmenter = make_augmenter(augment, data, 7)
    extract(data, tmp_path / "out", config, jobs, augmenter=augmenter)
    found = ArkReader(tmp_path / "out" / "feats.scp")
    for speaker, names in {"a": ["u1", "u3"], "b": ["u2"]}.items():
        waves = [
            torch.from_numpy(augmenter(sound(n) / np.float32(32768), RATE_HZ, data.utterances[n])[0]) for n in names
        ]
        statics = [static_features(w[None], torch.tensor([len(w)]), config, RATE_HZ)[0][0] for w in waves]
        for name, feats_TF in zip(names, finish_features(statics, config), strict=True):
            np.testing.assert_allclose(found[name], feats_TF.numpy(), atol=1e-5, err_msg=speaker)
    plain = extracted(data, config)
    assert all(np.abs(found[name] - plain[name]).max() > 0.5 for name in plain)


def test_given_features_cannot_be_augmented(tmp_path: Path) -> None:
    data = data_of(tmp_path / "data", {"u1": "a", "u2": "b"})
    augmenter = make_augmenter(AugmentConfig(reverb_prob=1), data, 1)
    with pytest.raises(Speech3Error, match="augmentation changes audio, but kind: given"):
        extract(data, tmp_path / "out", FeatureConfig(kind="given"), 1, augmenter=augmenter)
