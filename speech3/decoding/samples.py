"""What a program hands over for recognition, and what it gets back.

Axes: S samples.
"""

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from speech3.errors import Speech3Error
from speech3.hmm.times import Stretch


@dataclass(frozen=True)
class Word:
    """A recognised word.

    Attributes
    ----------
    word
        As the graph's vocabulary spells it.
    start_s, end_s
        Seconds from the beginning of the recording; None where the model cannot align.
    confidence
        Posterior of the word in its place, from 0 to 1; None where it is not known.
    """

    word: str
    start_s: float | None
    end_s: float | None
    confidence: float | None


@dataclass(frozen=True)
class Result:
    """What was said: the text, and its words one by one."""

    text: str
    words: tuple[Word, ...]


def result_of(words: Iterable[Word]) -> Result:
    """The result that consists of these words."""
    words = tuple(words)
    return Result(" ".join(word.word for word in words), words)


def words_of_stretches(stretches: Sequence[Stretch], begin_s: float = 0.0) -> tuple[Word, ...]:
    """Words from what an alignment found in a part that begins at `begin_s`."""
    return tuple(Word(s.label, begin_s + s.start_s, begin_s + s.end_s, s.confidence) for s in stretches)


def checked_rate(rate_hz: Any) -> int:
    """A sample rate as an int.

    Raises
    ------
    Speech3Error
        It is no whole, positive number.
    """
    number = float(rate_hz) if isinstance(rate_hz, numbers.Real) and not isinstance(rate_hz, bool) else 0.0
    if not (number > 0 and number.is_integer()):
        raise Speech3Error(f"rate={rate_hz!r}: not a sample rate; give samples a second, such as 16000")
    return int(number)


def checked_samples(samples: ArrayLike) -> np.ndarray:
    """Samples as float32 (S,) in [-1, 1).

    Parameters
    ----------
    samples
        One channel, anything that numpy takes for an array: floats from -1 to 1, or integers of 8 (unsigned), 16, 24
        (in 32) or 32 bits over their whole range, as sound libraries give them.

    Raises
    ------
    Speech3Error
        Several channels, another type, or values that are not finite numbers.
    """
    array = np.asarray(samples)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise Speech3Error(
            f"samples of shape {array.shape}, but one channel is wanted, (samples,); average the channels, or recognise"
            " them one by one"
        )
    if not array.size:
        return np.zeros(0, np.float32)
    if array.dtype == np.uint8:
        return (array.astype(np.float32) - 128) / 128
    if array.dtype in (np.int16, np.int32):
        return (array / -float(np.iinfo(array.dtype).min)).astype(np.float32)
    if array.dtype.kind != "f":
        raise Speech3Error(
            f"samples of type {array.dtype}; give float from -1 to 1, or int16 (or int32, uint8) over its whole range"
        )
    if not np.isfinite(array).all():
        raise Speech3Error(f"sample {int(np.flatnonzero(~np.isfinite(array))[0])} is not a finite number")
    return array.astype(np.float32)
