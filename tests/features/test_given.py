"""Features that the data directory brings along."""

from pathlib import Path

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig, load_preset
from speech3.corpus.datadir import read_datadir
from speech3.errors import Speech3Error
from speech3.features.deltas import add_deltas
from speech3.features.extract import extract, features_of
from speech3.io.ark import ArkReader, write_ark

RNG = np.random.default_rng(0)
FEATS = {
    f"{speaker}-{number}": RNG.normal(3, 2, (20 + number, 4)).astype(np.float32)
    for speaker in "ab"
    for number in range(3)
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_ark(tmp_path / "feats.ark", FEATS.items(), tmp_path / "feats.scp")
    (tmp_path / "utt2spk").write_text("".join(f"{name} {name[0]}\n" for name in FEATS))
    return tmp_path


def stats(data: Path, speakers: str) -> dict[str, np.ndarray]:
    """Write cmvn.scp with made-up sums, so that nobody can mistake them for computed ones."""
    found = {
        name: np.array([[50.0, 10, 20, 30, 10], [500, 50, 100, 200, 0]]) * (1 + i) for i, name in enumerate(speakers)
    }
    found = {name: np.stack([sums[0] * [1, 2, 1, 1, 1], sums[1]]) for name, sums in found.items()}
    write_ark(data / "cmvn.ark", found.items(), data / "cmvn.scp")
    return found


def test_as_they_are(data: Path) -> None:
    config = load_preset(FeatureConfig, "features", "given")
    report = extract(read_datadir(data), data / "out", config, jobs=1)
    assert (report.utterances, report.values, report.sample_rate_hz) == (6, 4, None)
    found = ArkReader(data / "out" / "feats.scp")
    assert sorted(found) == sorted(FEATS)
    for name, expected in FEATS.items():
        np.testing.assert_array_equal(found[name], expected)


def test_normalised_by_the_statistics_of_the_speaker_then_derived(data: Path) -> None:
    sums = stats(data, "ab")
    config = FeatureConfig(kind="given", cmvn="speaker", norm_vars=True, deltas=1)
    for name, found in features_of(read_datadir(data), config):
        (total, squares), count = sums[name[0]][:, :-1], sums[name[0]][0, -1]
        mean = total / count
        expected = (FEATS[name] - mean) / np.sqrt(squares / count - mean**2)
        np.testing.assert_allclose(found, add_deltas(torch.from_numpy(expected), order=1).numpy(), atol=1e-4)


def test_without_statistics_they_are_computed(data: Path) -> None:
    config = load_preset(FeatureConfig, "features", "given_cmvn")
    found = dict(features_of(read_datadir(data), config))
    for speaker in "ab":
        together = np.concatenate([found[name] for name in found if name[0] == speaker])
        np.testing.assert_allclose(together.mean(0), 0, atol=1e-5)
    assert all(np.abs(feats_TF.mean(0)).max() > 0.01 for feats_TF in found.values())
    for feats_TF in dict(features_of(read_datadir(data), FeatureConfig(kind="given", cmvn="utterance"))).values():
        np.testing.assert_allclose(feats_TF.mean(0), 0, atol=1e-5)


def test_what_is_missing_is_named(data: Path) -> None:
    config = FeatureConfig(kind="given", cmvn="speaker")
    stats(data, "a")
    with pytest.raises(
        Speech3Error,
        match=r"3 of 6 utterances .*cannot be used, more than 5 %; make the (?s:.*):\n  b-0: speaker b: .*cmvn\.scp",
    ):
        extract(read_datadir(data), data / "out", config, jobs=1)
    write_ark(data / "cmvn.ark", [("a", np.ones((2, 4))), ("b", np.ones((2, 5)))], data / "cmvn.scp")
    with pytest.raises(
        Speech3Error, match="speaker a: statistics of 2 by 4 values over 1 frames do not fit features of 4"
    ):
        extract(read_datadir(data), data / "out", config, jobs=1)
    assert not list((data / "out").iterdir())
    (data / "feats.scp").unlink()
    (data / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name in FEATS))
    with pytest.raises(Speech3Error, match=r"has no feats\.scp, .*kind: given.*add it"):
        extract(read_datadir(data), data / "out", config, jobs=1)


def test_global_statistics_are_of_the_whole_directory(data: Path) -> None:
    report = extract(read_datadir(data), data / "out", FeatureConfig(kind="given", cmvn="global", deltas=1), jobs=1)
    found = ArkReader(data / "out" / "feats.scp")
    together_TF = np.concatenate([FEATS[name] for name in FEATS]).astype(np.float64)
    assert report.config.global_stats is not None and report.config.global_stats[0][-1] == len(together_TF)
    for name, feats_TF in FEATS.items():
        np.testing.assert_allclose(found[name][:, :4], feats_TF - together_TF.mean(0), atol=1e-5)


@pytest.mark.parametrize("cmvn", ["none", "speaker", "global"])
def test_sizes_that_differ_and_no_numbers(data: Path, cmvn: str) -> None:
    config = FeatureConfig(kind="given", cmvn=cmvn)
    write_ark(data / "feats.ark", [*FEATS.items(), ("a-9", np.ones((5, 3)))], data / "feats.scp")
    (data / "utt2spk").write_text("".join(f"{name} {name[0]}\n" for name in [*FEATS, "a-9"]))
    with pytest.raises(
        Speech3Error, match=r"features of different sizes: 4 values per frame in .*, 3 values .* in a-9"
    ):
        extract(read_datadir(data), data / "out", config, jobs=1)
    (data / "utt2spk").write_text("".join(f"{name} {name}\n" for name in [*FEATS, "a-9"]))
    with pytest.raises(Speech3Error, match=r"features of different sizes: 4 .*3 values"):
        extract(read_datadir(data), data / "out", config, jobs=1)
    if cmvn == "global":
        bad = {**FEATS, "b-1": np.full((5, 4), np.nan)}
        write_ark(data / "feats.ark", bad.items(), data / "feats.scp")
        (data / "utt2spk").write_text("".join(f"{name} {name[0]}\n" for name in FEATS))
        with pytest.raises(Speech3Error, match="b-1: features are not finite numbers"):
            extract(read_datadir(data), data / "out", config, jobs=1)
