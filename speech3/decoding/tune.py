"""Acoustic scale and word penalty by error rate on the dev set, never on test.

Axes: T frames, P pdfs.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np

from speech3.config import DecodeConfig
from speech3.decoding.graph import Graph
from speech3.decoding.search import Scores, Setting, decode_settings
from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors
from speech3.io.progress import progress, say

ErrorRate = Callable[[list[str], list[str]], float]
_IN_MEMORY = 512 * 2**20  # bytes of scores; more go to a temporary file


@dataclass(frozen=True)
class Point:
    """One point of the grid; `error_rate` is a fraction."""

    acoustic_scale: float
    word_penalty: float
    error_rate: float


@dataclass(frozen=True)
class Tuning:
    """The best point, and all that were tried.

    Attributes
    ----------
    words
        What the best point found in each utterance.
    """

    best: Point
    table: tuple[Point, ...]
    words: Mapping[str, tuple[str, ...]]


class _Kept:
    """Scores that are computed when first drawn, and kept as float32 for the next time."""

    def __init__(self, scores: Scores) -> None:
        self._fresh = iter(scores)
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="speech3-")  # noqa: SIM115  # lives as we do
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}

    def __iter__(self) -> Iterator[tuple[str, np.ndarray]]:
        for utterance, (offset, shape) in list(self._places.items()):
            self._file.seek(offset)
            content = self._file.read(4 * int(np.prod(shape)))
            yield utterance, np.frombuffer(content, np.float32).reshape(shape)
        for utterance, scores_TP in self._fresh:
            with explained_disk_errors(Path(tempfile.gettempdir())):
                self._places[utterance] = self._file.seek(0, 2), scores_TP.shape
                self._file.write(scores_TP.astype(np.float32, copy=False).tobytes())
            yield utterance, scores_TP

    def close(self) -> None:
        self._file.close()


def tune(
    graph: Graph,
    scores: Scores,
    references: Mapping[str, Sequence[str]],
    config: DecodeConfig,
    jobs: int = 1,
    error_rate: ErrorRate = jiwer.wer,
    *,
    pseudo_likelihoods: bool = False,
) -> Tuning:
    """Find the acoustic scale and the word penalty of the grid in `config` with the lowest error rate.

    From the middle scale and the penalty nearest zero, the scale moves to its better neighbour until neither is better,
    then the penalty, and so on while that helps: small scales, with which the search is slow, are rarely tried. The
    search is the final one with ``config.tuning_max_active`` states: lattices (LatticeSimpleDecoder knows no such
    limit) took ten times as long and were less exact. Each point is reported as soon as it is known.

    Parameters
    ----------
    scores
        Pairs of utterance and float32 (T, P) unscaled log likelihoods; drawn once, then kept.
    references
        Words of each utterance.
    error_rate
        Of texts against their references, a fraction: word error rate, or another where that is what counts.
    pseudo_likelihoods
        The scores are those of a network trained with LF-MMI: ``config.lfmmi_acoustic_scales`` is the grid.

    Raises
    ------
    Speech3Error
        No utterances, one without a reference, or what `decode_settings` raises.
    """
    quick = config.model_copy(update={"max_active": config.tuning_max_active})
    key = "lfmmi_acoustic_scales" if pseudo_likelihoods else "acoustic_scales"
    scales, penalties = sorted(set(getattr(config, key))), sorted(set(config.word_penalties))
    kept = _Kept(scores)
    found: dict[Setting, dict[str, tuple[str, ...]]] = {}
    rates: dict[Setting, float] = {}

    def measure(settings: list[Setting]) -> None:
        new = [setting for setting in settings if setting not in rates]
        if not new:
            return
        shown = progress(kept, len(references), f"tuning {', '.join(f'{scale:g}/{cost:g}' for scale, cost in new)}")
        words = decode_settings(graph, shown, quick, new, jobs)
        for index, setting in enumerate(new):
            found[setting] = {utterance: each[index] for utterance, each in words.items()}
            rates[setting] = rate_of(references, found[setting], error_rate)
            say(f"  acoustic scale {setting[0]:g}, word penalty {setting[1]:g}: {100 * rates[setting]:.2f} %")

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
    kept.close()
    setting = scales[scale], penalties[penalty]
    _say_if_last("acoustic scale", setting[0], scales, key)
    _say_if_last("word penalty", setting[1], penalties, "word_penalties")
    table = tuple(Point(*each, rate) for each, rate in sorted(rates.items()))
    return Tuning(Point(*setting, rates[setting]), table, found[setting])


def _say_if_last(name: str, value: float, grid: Sequence[float], key: str) -> None:
    if len(grid) > 2 and value in (grid[0], grid[-1]):
        say(f"the best {name}, {value:g}, is the last of decode.{key}; try more beyond it")


def drawn(lengths_s: Mapping[str, float], minutes: float) -> list[str]:
    """Draw utterances until they last so long; the same ones each time, in their order. All, if they are no longer.

    Parameters
    ----------
    lengths_s
        Length of each utterance in seconds.
    """
    if sum(lengths_s.values()) <= 60 * minutes:
        return list(lengths_s)
    names, left_s, taken = sorted(lengths_s), 60 * minutes, set[str]()
    for index in np.random.default_rng(1).permutation(len(names)):
        if left_s <= 0:
            break
        taken.add(names[index])
        left_s -= lengths_s[names[index]]
    return [name for name in lengths_s if name in taken]


def rate_of(
    references: Mapping[str, Sequence[str]], found: Mapping[str, Sequence[str]], error_rate: ErrorRate
) -> float:
    """Error rate of what was found, over all its utterances.

    Raises
    ------
    Speech3Error
        Nothing was found, or an utterance has no reference.
    """
    missing = [utterance for utterance in found if not references.get(utterance)]
    if not found or missing:
        raise Speech3Error(f"dev: no words to tune on for {', '.join(missing[:5]) or 'there are no utterances'}")
    truth = [" ".join(references[utterance]) for utterance in found]
    return float(error_rate(truth, [" ".join(words) for words in found.values()]))
