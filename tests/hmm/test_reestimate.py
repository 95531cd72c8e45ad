"""GMMs re-estimated along refined boundaries: where these are moved to, and drawn utterances that stay aligned."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from drawn import draw

from speech3.config import HmmConfig
from speech3.hmm.alignment.boundaries import Refinement, _divided, along_boundaries, nearest_frames
from speech3.hmm.alignment.times import FrameClock
from speech3.hmm.model import Hmm
from speech3.hmm.train import train_monophone
from speech3.hmm.transcript import Alignment
from speech3.hmm.workers import Workers, WorkerShare
from speech3.language.lexicon import Lexicon
from speech3.runtime.files import Metrics

CONFIG = HmmConfig.model_validate({"mono": {"iterations": 8, "gaussians": 20, "max_iteration_increase": 6}})


def _found(starts: list[int], edges: list[float], words: list[int]) -> Alignment:
    count = len(words)
    return Alignment(
        np.zeros(count, np.int32),
        np.array(words, np.int32),
        np.array(starts, np.int32),
        np.zeros(starts[-1], np.int8),
        0.0,
        np.array(edges),
    )


def test_boundaries_beside_silence_stay_and_phones_keep_their_length() -> None:
    words = [-1, 0, 0, 0, -1]
    found = _found([0, 10, 20, 30, 40, 50], [0, 7.2, 18.5, 33.4, 43.0, 50], words)
    assert nearest_frames(found, 3).tolist() == [0, 10, 19, 33, 40, 50]
    near = _found([0, 10, 20, 30, 40, 50], [0, 7.2, 10.4, 13.5, 43.0, 50], words)
    assert nearest_frames(near, 3).tolist() == [0, 10, 13, 16, 40, 50]
    late = _found([0, 10, 20, 30, 40, 50], [0, 7.2, 38.8, 43.5, 47.0, 50], words)
    assert nearest_frames(late, 3).tolist() == [0, 10, 34, 37, 40, 50]


def test_any_refined_boundaries_become_a_valid_alignment() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        lengths = generator.integers(3, 9, 6)
        starts = [0, *np.cumsum(lengths).tolist()]
        inner = np.sort(generator.uniform(3, starts[-1] - 3, 5))
        words = [-1, 0, 0, generator.choice([-1, 1]), 1, 1]
        frames = nearest_frames(_found(starts, [0, *inner, starts[-1]], words), 3)
        assert (np.diff(frames) >= 3).all() and frames[0] == 0 and frames[-1] == starts[-1]


def test_a_phone_is_divided_as_is_likeliest() -> None:
    generator = np.random.default_rng(1)
    loglikes = generator.normal(0, 1, (12, 6)).astype(np.float32)
    column, starts = np.array([[0, 1, 2], [3, 4, 5]], np.int32), np.array([0, 7, 12], np.int32)
    states = _divided(loglikes, column, starts)
    for phone, (begin, end) in enumerate([(0, 7), (7, 12)]):
        best = max(
            (
                [0] * i + [1] * (j - i) + [2] * (end - begin - j)
                for i, j in itertools.combinations(range(1, end - begin), 2)
            ),
            key=lambda split: sum(loglikes[begin + t, column[phone, k]] for t, k in enumerate(split)),
        )
        assert states[begin:end].tolist() == best


@pytest.mark.parametrize("jobs", [1, 2])
def test_drawn_utterances_stay_aligned(lexicon: Lexicon, hmm: Hmm, tmp_path: Path, jobs: int) -> None:
    drawn = draw(hmm, 30, seed=0)
    with Workers(drawn.words, drawn.feats, jobs) as workers:
        metrics = Metrics(tmp_path / "metrics.jsonl")
        system = train_monophone(workers, lexicon, CONFIG, np.random.default_rng(0), metrics)
        better = along_boundaries(workers, system, CONFIG, Refinement(FrameClock(0.01, 0.0)))
        found = {key: value for share in workers.run(_alignments) for key, value in share.items()}
    assert not better.failed and better.gmm.mean.shape == system.gmm.mean.shape
    assert np.isfinite(better.gmm.mean).all() and (better.gmm.mean != system.gmm.mean).any()
    right = total = 0
    for name, alignment in found.items():
        truth = drawn.states[name] // 3 + 1
        right += int((alignment.phones[alignment.segment] == truth).sum())
        total += len(truth)
    assert right > 0.96 * total


def _alignments(share: WorkerShare) -> dict[str, Alignment]:
    return dict(share.alignments)
