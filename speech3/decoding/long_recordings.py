"""Cut a long recording where it is quietest, into parts that are recognised as utterances.

Only audio that has not been cut yet is in memory. A part that is equally loud throughout contains no speech and is
left out: if its features were normalised by themselves, such noise would look like speech. Silence at the ends of a
part is trimmed to half a second, because more would shift the mean and variance of the features.

Axes: S samples, T stretches of 10 ms.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

LONG_S = 60.0  # a recording longer than this is cut
_SHORTEST_S, _LONGEST_S = 10.0, 28.0  # of a part, before its silence is trimmed
_LEAST_LEFT_S = 2.0  # at least this much audio must follow a cut
_PAUSE_S = 0.4  # the cut is in the middle of the quietest stretch of this length
_SYLLABLE_S = 0.2  # duration over which loudness is averaged to tell speech from noise
_LEAST_RANGE_DB = 6.0  # smallest difference between the loudest and the quietest syllable of speech
_SHORT_S = 2.0  # a shorter part may be a word that is equally loud throughout
_QUIET = 0.25  # silence is below this fraction of the range, in dB, from the quietest to the loudest syllable
_MARGIN_S = 0.5  # silence that is kept at both ends
_STEP_S = 0.01
_FLOOR = 1e-9  # power; below it, -90 dB, everything counts as silence


@dataclass(frozen=True, eq=False)
class Cut:
    """A part of a recording: its start in seconds, and its samples, float32 (S,)."""

    begin_s: float
    wave_S: np.ndarray


def cut_at_pauses(blocks: Iterable[np.ndarray], rate_hz: int) -> Iterator[Cut]:
    """Yield the parts of a recording that contain speech.

    Parameters
    ----------
    blocks
        The recording's samples, float32, in blocks of any size.
    """
    waiting_S, begin, enough = np.zeros(0, np.float32), 0, math.ceil((_LONGEST_S + _LEAST_LEFT_S) * rate_hz)
    for block_S in blocks:
        waiting_S = np.concatenate([waiting_S, block_S])
        while len(waiting_S) >= enough:
            at = _quietest(waiting_S[:enough], rate_hz)  # a block may be much longer than a part
            yield from _spoken(waiting_S[:at], begin, rate_hz)
            begin, waiting_S = begin + at, waiting_S[at:]
    yield from _spoken(waiting_S, begin, rate_hz)


def _spoken(wave_S: np.ndarray, begin: int, rate_hz: int) -> Iterator[Cut]:
    """Yield a part with the silence at its ends trimmed; nothing if it contains no speech."""
    if not len(wave_S):
        return
    level_T = _syllable_levels(wave_S, rate_hz)
    first, last = 0, len(wave_S)
    if len(level_T):
        quietest, loudest = level_T.min(), level_T.max()
        long = len(wave_S) > _SHORT_S * rate_hz or loudest <= 10 * np.log10(_FLOOR)
        if loudest - quietest < _LEAST_RANGE_DB and long:
            return
        loud_T = np.flatnonzero(level_T >= quietest + _QUIET * (loudest - quietest))
        first = max(0, round((loud_T[0] * _STEP_S - _MARGIN_S) * rate_hz))
        last = min(last, round((loud_T[-1] * _STEP_S + _SYLLABLE_S + _MARGIN_S) * rate_hz))
    yield Cut((begin + first) / rate_hz, wave_S[first:last])


def _quietest(wave_S: np.ndarray, rate_hz: int) -> int:
    """Index of the sample in the middle of the quietest stretch; of the last one if several are equally quiet."""
    first, last = round(_SHORTEST_S / _STEP_S), round(_LONGEST_S / _STEP_S)
    pause = round(_PAUSE_S / _STEP_S)
    level_T = _means(10 * np.log10(_powers(wave_S, rate_hz)), pause)[first - pause // 2 : last - pause // 2]
    quietest = len(level_T) - 1 - int(np.argmin(level_T[::-1]))
    return round((first + quietest) * _STEP_S * rate_hz)


def _syllable_levels(wave_S: np.ndarray, rate_hz: int) -> np.ndarray:
    """(T,) level in dB of each syllable-long stretch, one step apart; empty if the audio is shorter."""
    return 10 * np.log10(_means(_powers(wave_S, rate_hz), round(_SYLLABLE_S / _STEP_S)))


def _powers(wave_S: np.ndarray, rate_hz: int) -> np.ndarray:
    """(T,) float64: mean square of each 10 ms."""
    step = round(_STEP_S * rate_hz)
    steps = len(wave_S) // step
    powers_T: np.ndarray = np.square(wave_S[: steps * step], dtype=np.float64).reshape(steps, step).mean(1)
    return np.maximum(powers_T, _FLOOR)


def _means(values_T: np.ndarray, width: int) -> np.ndarray:
    """The moving average over `width` values."""
    if len(values_T) < width:
        return values_T[:0]
    sums_T = np.concatenate([[0.0], np.cumsum(values_T)])
    means_T: np.ndarray = (sums_T[width:] - sums_T[:-width]) / width
    return means_T
