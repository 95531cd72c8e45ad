"""Acoustic scale and word penalty by error rate on the dev set, never on test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jiwer

from speech3.config import DecodeConfig
from speech3.decoding.graph import Graph
from speech3.decoding.search import Scores, Setting, decode_settings
from speech3.errors import Speech3Error
from speech3.io.progress import say

ErrorRate = Callable[[list[str], list[str]], float]


@dataclass(frozen=True)
class Point:
    """One point of the grid; `error_rate` is a fraction."""

    acoustic_scale: float
    word_penalty: float
    error_rate: float


@dataclass(frozen=True)
class Tuning:
    """The best point, and all that were tried."""

    best: Point
    table: tuple[Point, ...]


def tune(
    graph: Graph,
    scores: Callable[[], Scores],
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
) -> Tuning:
    """Find the acoustic scale and the word penalty of the grid in `config` with the lowest error rate.

    From the middle scale and the penalty nearest zero, the scale moves to its better neighbour until neither is better,
    then the penalty, and so on while that helps: small scales, with which the search is slow, are rarely tried. The
    search is the final one with ``config.tuning_max_active`` states: lattices (LatticeSimpleDecoder knows no such
    limit) took ten times as long and were less exact.

    Parameters
    ----------
    scores
        Called for each round: pairs of utterance and float32 (T, P) unscaled log likelihoods.
    references
        Words of each utterance.
    error_rate
        Of texts against their references, a fraction: word error rate, or another where that is what counts.

    Raises
    ------
    Speech3Error
        No utterances, one without a reference, or what `decode_settings` raises.
    """
    quick = config.model_copy(update={"max_active": config.tuning_max_active})
    scales, penalties = sorted(config.acoustic_scales), sorted(config.word_penalties)
    rates: dict[Setting, float] = {}

    def measure(settings: list[Setting]) -> None:
        new = [setting for setting in settings if setting not in rates]
        found = decode_settings(graph, scores(), quick, new, jobs) if new else {}
        for index, setting in enumerate(new):
            rates[setting] = _rate(references, {key: words[index] for key, words in found.items()}, error_rate)

    def climb(line: list[Setting], place: int) -> int:
        while True:
            around = range(max(place - 1, 0), min(place + 2, len(line)))
            measure([line[index] for index in around])
            better = min(around, key=lambda index: (rates[line[index]], index != place))
            if better == place:
                return place
            place = better

    scale, penalty = (len(scales) - 1) // 2, penalties.index(min(penalties, key=abs))
    best = None
    while best != (scale, penalty):
        best = scale, penalty
        scale = climb([(each, penalties[penalty]) for each in scales], scale)
        penalty = climb([(scales[scale], each) for each in penalties], penalty)
    setting = scales[scale], penalties[penalty]
    if len(scales) > 2 and setting[0] in (scales[0], scales[-1]):
        say(f"the best acoustic scale, {setting[0]}, is the last of decode.acoustic_scales; try more beyond it")
    return Tuning(Point(*setting, rates[setting]), tuple(Point(*each, rate) for each, rate in sorted(rates.items())))


def _rate(references: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], error_rate: ErrorRate) -> float:
    missing = [utterance for utterance in found if not references.get(utterance)]
    if not found or missing:
        raise Speech3Error(f"dev: no words to tune on for {', '.join(missing[:5]) or 'there are no utterances'}")
    truth = [" ".join(references[utterance]) for utterance in found]
    return float(error_rate(truth, [" ".join(words) for words in found.values()]))
