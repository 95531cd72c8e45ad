"""The input and output types of the recogniser's Python interface: samples, words and results.

Axes: S samples.
"""

import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from speech3.alignment.times import Segment
from speech3.errors import Speech3Error
from speech3.io.progress import say


def warn_of_rate(name: str, rate_hz: int, model_hz: int) -> None:
    """Print a warning if audio of this sample rate lacks a part of the spectrum that the model was trained on."""
    if rate_hz < model_hz:
        say(
            f"{name}: {rate_hz} Hz, resampled to the model's {model_hz} Hz: the upper part of the spectrum is missing;"
            " expect more errors"
        )


@dataclass(frozen=True)
class Word:
    """A recognised word.

    Attributes
    ----------
    word
        The word as spelled in the graph's vocabulary.
    start_s, end_s
        Seconds from the beginning of the recording; None if the model cannot align.
    confidence
        Calibrated posterior of the word at its position, from 0 to 1; None if unknown.
    """

    word: str
    start_s: float | None
    end_s: float | None
    confidence: float | None


@dataclass(frozen=True)
class Result:
    """A recognition result: the text, and its words with times and confidences."""

    text: str
    words: tuple[Word, ...]


def result_of(words: Iterable[Word]) -> Result:
    """The result with these words."""
    words = tuple(words)
    return Result(" ".join(word.word for word in words), words)


def words_of_segments(segments: Sequence[Segment], begin_s: float = 0.0) -> tuple[Word, ...]:
    """Words from the segments of an alignment, shifted by `begin_s`, where the aligned part begins."""
    return tuple(Word(s.label, begin_s + s.start_s, begin_s + s.end_s, s.confidence) for s in segments)


def checked_rate(rate_hz: Any) -> int:
    """Return a sample rate as an int.

    Raises
    ------
    Speech3Error
        It is not a positive whole number.
    """
    number = float(rate_hz) if isinstance(rate_hz, numbers.Real) and not isinstance(rate_hz, bool) else 0.0
    if not (number > 0 and number.is_integer()):
        raise Speech3Error(f"rate={rate_hz!r}: not a sample rate; give samples per second, such as 16000")
    return int(number)


def checked_samples(samples: ArrayLike) -> np.ndarray:
    """Samples as float32 (S,) in [-1, 1).

    Parameters
    ----------
    samples
        One channel, anything that numpy can convert to an array: floats from -1 to 1, or integers of 8 bits (unsigned),
        16, 24 (in 32) or 32 bits over their whole range, as sound libraries return them.

    Raises
    ------
    Speech3Error
        There are several channels, the samples have another type, or values are not finite.
    """
    array = np.asarray(samples)
    if array.ndim == 2 and 1 in array.shape:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise Speech3Error(
            f"samples of shape {array.shape}, but one channel is expected, (samples,); average the channels, or"
            " recognise them one at a time"
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
