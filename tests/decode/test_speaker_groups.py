"""Utterances grouped by speaker: against the densities of literal Gaussians, drawn speakers, and what cannot be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_speakers_everywhere import BINS, adaptive
from whistles import RATE_HZ, SAID, whistled

from speech3.data import read_datadir
from speech3.decode.recognizer import load_recognizer
from speech3.decode.speaker_groups import Evidence, find_speakers, groups_of
from speech3.decode.speaker_passes import write_speakers
from speech3.errors import DataError, MismatchError
from speech3.hmm.transforms import identity


def drawn(speakers: int, utterances: int, counts: tuple[float, float], seed: int = 1) -> tuple[Evidence, np.ndarray]:
    rng = np.random.default_rng(seed)
    variance_K = np.array([4.0, 1.0, 0.5, 0.2])
    x_SK = rng.standard_normal((speakers, 4)) * np.sqrt(variance_K)
    speaker_U = np.arange(speakers * utterances) % speakers
    count_U = rng.uniform(*counts, len(speaker_U))
    noise_UK = np.sqrt(count_U)[:, None] * rng.standard_normal((len(speaker_U), 4))
    return Evidence(count_U[:, None] * x_SK[speaker_U] + noise_UK, count_U, variance_K), speaker_U


def test_joining_gains_what_the_joint_density_has_more() -> None:
    evidence, _ = drawn(1, 3, (1.0, 5.0))

    def log_density(chosen: list[int]) -> float:
        """Of the sums of utterances of one speaker, from their joint covariance."""
        count, total = evidence.count_U[chosen], 0.0
        for k, variance in enumerate(evidence.variance_K):
            covariance = variance * np.outer(count, count) + np.diag(count)
            values = evidence.sums_UK[chosen, k]
            total -= 0.5 * (values @ np.linalg.solve(covariance, values) + np.linalg.slogdet(2 * np.pi * covariance)[1])
        return total

    def ours(chosen: list[int]) -> float:
        sums, count = evidence.sums_UK[chosen].sum(0, keepdims=True), evidence.count_U[chosen].sum(keepdims=True)
        return float(evidence.log_probability(sums, count)[0])

    for one, other in (([0], [1]), ([0, 2], [1])):
        expected = log_density(one + other) - log_density(one) - log_density(other)
        assert ours(one + other) - ours(one) - ours(other) == pytest.approx(expected)


def test_drawn_speakers_are_found_and_no_more_than_asked_for() -> None:
    evidence, speaker_U = drawn(5, 6, (100.0, 300.0))
    assert groups_of(evidence) == speaker_U.tolist()  # both are numbered by their first utterances
    assert len(set(groups_of(evidence, 2))) == 2 and groups_of(evidence, 30) == speaker_U.tolist()
    # One of which nothing is known is alone, unless it must not be.
    evidence.sums_UK[7], evidence.count_U[7] = 0.0, 0.0
    assert groups_of(evidence).count(groups_of(evidence)[7]) == 1 and len(set(groups_of(evidence))) == 6
    assert len(set(groups_of(evidence, 5))) == 5


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Two whistlers, one of whom is low in the upper bins: six utterances, each as if of a speaker of its own."""
    path = tmp_path / "talk"
    path.mkdir()
    rng, scp = np.random.default_rng(1), ""
    for number in range(6):
        wave_S = whistled(*SAID["a-bb"][1], *SAID["a-bb"][1])
        hiss_S = rng.standard_normal(len(wave_S)) * (0.03 if number % 2 else 0.0)
        soundfile.write(path / f"u{number}.wav", wave_S + np.diff(hiss_S, prepend=0.0), RATE_HZ)
        scp += f"u{number} {path}/u{number}.wav\n"
    (path / "wav.scp").write_text(scp)
    (path / "utt2spk").write_text("".join(f"u{number} u{number}\n" for number in range(6)))
    return path


@pytest.fixture
def whistlers(model: Path) -> Path:
    """A model that adapts to speakers, who differ by what is added to their features."""
    rng = np.random.default_rng(2)
    shifts = {f"s{number}": identity(BINS) for number in range(12)}
    for each in shifts.values():
        each[:, -1] += 2.0 * rng.standard_normal(BINS)
    write_speakers(adaptive(model), shifts, {speaker: speaker for speaker in shifts})
    return model


def test_whistlers_are_told_apart_in_a_new_directory(speech3, whistlers: Path, talk: Path) -> None:  # type: ignore[no-untyped-def]
    given = {path.name: path.read_bytes() for path in talk.iterdir()}
    done = speech3("speakers", talk, "--model", whistlers, "--jobs", 1)
    assert done.returncode == 0 and done.stdout == f"{talk}_speakers: 6 utterances, 2 speakers\n", done.stderr
    assert {path.name: path.read_bytes() for path in talk.iterdir()} == given
    found = read_datadir(Path(f"{talk}_speakers"))
    assert found.speakers() == {"speaker1": ["u0", "u2", "u4"], "speaker2": ["u1", "u3", "u5"]}
    assert found.recordings == read_datadir(talk).recordings
    again = speech3("speakers", talk, "--model", whistlers, "--out", talk)
    assert again.returncode == 1 and f"{talk}: is one of the inputs" in again.stderr


def test_what_cannot_be_grouped_is_named(whistlers: Path, gmm: Path, talk: Path, tmp_path: Path) -> None:
    data, recognizer = read_datadir(talk), load_recognizer(whistlers)
    with pytest.raises(DataError, match="talk: has one utterance"):
        find_speakers(recognizer, data.subset(["u0"]))
    with pytest.raises(MismatchError, match=f"{gmm}: not trained with adaptation"):
        find_speakers(load_recognizer(gmm), data)
    soundfile.write(talk / "silent.wav", np.zeros(RATE_HZ, np.float32), RATE_HZ)
    silent = replace(data, recordings=dict.fromkeys(data.recordings, str(talk / "silent.wav")))
    with pytest.raises(DataError, match="talk: no utterance has speech"):
        find_speakers(recognizer, silent)
    write_speakers(whistlers, {"s1": identity(BINS)}, {"s1": "s1"})
    with pytest.raises(MismatchError, match=f"{whistlers}: has the transforms of 1 speaker,"):
        find_speakers(recognizer, data)
