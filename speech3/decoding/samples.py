"""The output types of the recogniser's Python interface: words and results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from speech3.alignment.times import Segment
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
