"""Acoustic scale and word penalty by word error rate on the dev set, never on test."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jiwer

from speech3.config import DecodeConfig
from speech3.decoding.graph import Graph
from speech3.decoding.search import Scores, grid_words
from speech3.errors import Speech3Error
from speech3.io.progress import say


@dataclass(frozen=True)
class Point:
    """One point of the grid; `wer` is a fraction."""

    acoustic_scale: float
    word_penalty: float
    wer: float


@dataclass(frozen=True)
class Tuning:
    """The best point, and all of them."""

    best: Point
    table: tuple[Point, ...]


def tune(
    graph: Graph,
    scores: Callable[[], Scores],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
) -> Tuning:
    """Find the scale and penalty of the grid in `config` with the lowest word error rate; of equals the most central.

    Lattices made at the middle of the scales judge the whole grid. If another scale wins, new lattices are made there,
    for a lattice is most exact around its own scale; each point keeps the figure of the nearest lattices. This ends
    when the best scale has lattices of its own: after one or two rounds, in practice.

    Parameters
    ----------
    scores
        Called for each round: pairs of utterance and float32 (T, P) unscaled log likelihoods.
    references
        Words of each utterance; those without reference are an error.

    Raises
    ------
    Speech3Error
        No utterances, or one without a reference; what `grid_words` raises.
    """
    scales, penalties = sorted(config.acoustic_scales), sorted(config.word_penalties)
    grid = [(scale, penalty) for scale in scales for penalty in penalties]
    wers = dict.fromkeys(grid, float("inf"))
    made: list[float] = []
    centre = scales[len(scales) // 2]
    while centre not in made:
        made.append(centre)
        found = grid_words(graph, scores(), config, grid, centre, jobs)
        for index, point in enumerate(grid):
            if _nearest(made, point[0]) == centre:
                wers[point] = _wer(references, {utterance: words[index] for utterance, words in found.items()})
        best = min(grid, key=lambda point: (wers[point], _eccentricity(point, scales, penalties)))
        centre = best[0]
    if len(scales) > 2 and best[0] in (scales[0], scales[-1]):
        say(f"the best acoustic scale, {best[0]}, is the last of decode.acoustic_scales: give it more that way")
    return Tuning(Point(*best, wers[best]), tuple(Point(*point, wers[point]) for point in grid))


def _nearest(scales: list[float], scale: float) -> float:
    return min(scales, key=lambda other: abs(math.log(other / scale)))


def _eccentricity(point: tuple[float, float], scales: list[float], penalties: list[float]) -> float:
    axes = zip(point, (scales, penalties), strict=True)
    return sum(abs(values.index(value) - (len(values) - 1) / 2) / len(values) for value, values in axes)


def _wer(references: Mapping[str, Sequence[str]], hypotheses: Mapping[str, Sequence[str]]) -> float:
    missing = [utterance for utterance in hypotheses if not references.get(utterance)]
    if missing or not hypotheses:
        raise Speech3Error(
            f"dev: {', '.join(missing[:5])}: no reference words to tune on"
            if missing
            else "dev: no utterances to tune on"
        )
    pairs = [(" ".join(references[utterance]), " ".join(words)) for utterance, words in hypotheses.items()]
    return float(jiwer.wer([reference for reference, _ in pairs], [hypothesis for _, hypothesis in pairs]))
