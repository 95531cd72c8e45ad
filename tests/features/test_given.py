"""Features that the data directory brings along."""

from pathlib import Path

import numpy as np
import pytest
import torch
from extracted import extracted

from speech3.config import FeatureConfig, load_preset
from speech3.data.datadir import read_datadir
from speech3.errors import DataError, Speech3Error
from speech3.features.context import add_deltas
from speech3.features.extraction import extract
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
    for name, found in extracted(read_datadir(data), config).items():
        (total, squares), count = sums[name[0]][:, :-1], sums[name[0]][0, -1]
        mean = total / count
        expected = (FEATS[name] - mean) / np.sqrt(squares / count - mean**2)
        np.testing.assert_allclose(found, add_deltas(torch.from_numpy(expected), order=1).numpy(), atol=1e-4)


def test_without_statistics_they_are_computed(data: Path) -> None:
    config = load_preset(FeatureConfig, "features", "given_cmvn")
    found = extracted(read_datadir(data), config)
    for speaker in "ab":
        together = np.concatenate([found[name] for name in found if name[0] == speaker])
        np.testing.assert_allclose(together.mean(0), 0, atol=1e-5)
    assert all(np.abs(feats_TF.mean(0)).max() > 0.01 for feats_TF in found.values())
    for feats_TF in extracted(read_datadir(data), FeatureConfig(kind="given", cmvn="utterance")).values():
        np.testing.assert_allclose(feats_TF.mean(0), 0, atol=1e-5)


def test_what_is_missing_is_named(data: Path) -> None:
    config = FeatureConfig(kind="given", cmvn="speaker")
    stats(data, "a")
    with pytest.raises(
        DataError,
        match=r"3 of 6 utterances .*cannot be used, more than 5 %",
    ):
        extract(read_datadir(data), data / "out", config, jobs=1)
    write_ark(data / "cmvn.ark", [("a", np.ones((2, 4))), ("b", np.ones((2, 5)))], data / "cmvn.scp")
    with pytest.raises(DataError, match="speaker a: statistics of 2 by 4 values"):
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


@pytest.mark.parametrize("cmvn", ["none", "utterance", "speaker", "global"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_bad_utterance_among_many_is_named_and_left_out(data: Path, cmvn: str, jobs: int) -> None:
    config = FeatureConfig(kind="given", cmvn=cmvn)
    bad = {
        "a-nan": np.where(np.arange(20).reshape(5, 4) == 14, np.nan, 1.0),
        "a-narrow": np.ones((5, 3)),
        "b-inf": np.full((5, 4), np.inf),
    }
    fine = {f"{speaker}-{number}": FEATS[f"{speaker}-0"] + number for speaker in "ab" for number in range(40)}
    everything = {**bad, **fine}
    write_ark(data / "feats.ark", everything.items(), data / "feats.scp")
    (data / "utt2spk").write_text("".join(f"{name} {name[0]}\n" for name in sorted(everything)))
    with (data / "feats.scp").open("a") as scp:
        scp.write(f"b-cut {data / 'feats.ark'}:7\n")
    with (data / "utt2spk").open("a") as speakers:
        speakers.write("b-cut b\n")
    scp = data / "feats.scp"
    report = extract(read_datadir(data), data / "out", config, jobs=jobs)
    assert report.utterances == 80 and sorted(ArkReader(data / "out" / "feats.scp")) == sorted(fine)
    assert report.skipped["a-nan"].startswith(f"a-nan: {scp}: value 2 of frame 3 is nan (1 of 5 frames")
    assert report.skipped["a-narrow"].startswith(f"a-narrow: {scp}: 3 values per frame, but most utterances have 4")
    assert report.skipped["b-inf"].startswith(f"b-inf: {scp}: value 0 of frame 0 is inf (5 of 5 frames")
    assert "is truncated or not a Kaldi matrix" in report.skipped["b-cut"]
    assert len((data / "out" / "skipped.txt").read_text().splitlines()) == 4


def test_many_bad_utterances_stop_with_their_reasons(data: Path) -> None:
    bad = {**FEATS, "b-1": np.full((5, 4), np.nan)}
    write_ark(data / "feats.ark", bad.items(), data / "feats.scp")
    with pytest.raises(DataError, match=r"1 of 6 utterances .*more than 5 %(?s:.*)b-1"):
        extract(read_datadir(data), data / "out", FeatureConfig(kind="given"), jobs=1)


def test_statistics_that_are_no_numbers_are_named(data: Path) -> None:
    write_ark(data / "cmvn.ark", [("a", np.ones((2, 5))), ("b", np.full((2, 5), np.nan))], data / "cmvn.scp")
    with pytest.raises(DataError, match=r"3 of 6 .*(?s:.*)cmvn\.scp"):
        extract(read_datadir(data), data / "out", FeatureConfig(kind="given", cmvn="speaker"), jobs=1)
