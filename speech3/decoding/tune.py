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

    All scales are tried at the penalty nearest zero, then all penalties at the best scale, and so on while that helps.
    Of equally good values the most central counts as best. The search is the final one with
    ``config.tuning_max_active`` states: lattices (LatticeSimpleDecoder knows no such limit) took ten times as long and
    were less exact.

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

    def best_of(settings: list[Setting]) -> Setting:
        new = [setting for setting in settings if setting not in rates]
        found = decode_settings(graph, scores(), quick, new, jobs) if new else {}
        for index, setting in enumerate(new):
            rates[setting] = _rate(references, {key: words[index] for key, words in found.items()}, error_rate)
        lowest = min(rates[setting] for setting in settings)
        ties = [place for place, setting in enumerate(settings) if rates[setting] == lowest]
        return settings[min(ties, key=lambda place: abs(place - (len(settings) - 1) / 2))]

    start = best_of([(scale, min(penalties, key=abs)) for scale in scales])
    best = best_of([(start[0], penalty) for penalty in penalties])
    while rates[again := best_of([(scale, best[1]) for scale in scales])] < rates[best]:
        best = best_of([(again[0], penalty) for penalty in penalties])
    if len(scales) > 2 and best[0] in (scales[0], scales[-1]):
        say(f"the best acoustic scale, {best[0]}, is the last of decode.acoustic_scales; try more beyond it")
    return Tuning(Point(*best, rates[best]), tuple(Point(*setting, rate) for setting, rate in sorted(rates.items())))


def _rate(references: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], error_rate: ErrorRate) -> float:
    missing = [utterance for utterance in found if not references.get(utterance)]
    if not found or missing:
        raise Speech3Error(f"dev: no words to tune on for {', '.join(missing[:5]) or 'there are no utterances'}")
    truth = [" ".join(references[utterance]) for utterance in found]
    return float(error_rate(truth, [" ".join(words) for words in found.values()]))
