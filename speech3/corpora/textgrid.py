"""Read Praat's TextGrid: the long and the short text format, in UTF-8 or UTF-16.

Praat reads only free-standing numbers, texts in double quotes and flags in angle brackets, and skips all else
(https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html), so both formats are the same sequence of values.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from speech3.corpora.tiers import Annotation, Tier
from speech3.errors import Speech3Error
from speech3.io.text import read_utf8

_VALUE = re.compile(
    r'"(?P<text>(?:[^"]|"")*)"|![^\n]*|<[^>\s]*>|(?<!\S)(?P<number>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?!\S)'
)
_SAVE = "open it in Praat and save it with Save as text file"


def read_textgrid(path: Path) -> list[Tier]:
    """Read the interval tiers; point tiers have no intervals of speech and are left out.

    Raises
    ------
    Speech3Error
        The file cannot be read, is not UTF-8 or UTF-16, is no TextGrid in a text format, or ends too early.
    """
    values = _values(read_utf8(path))
    try:
        if next(values) not in ("ooTextFile", "ooTextFile short") or next(values) != "TextGrid":
            raise Speech3Error(f"{path}: is not a TextGrid in a text format; {_SAVE}")
        span_s = _seconds(next(values)), _seconds(next(values))
        tiers = [tier for _ in range(_whole(next(values))) if (tier := _tier(values))]
        return [replace(tier, span_s=span_s) for tier in tiers]
    except (StopIteration, TypeError, ValueError, OverflowError) as error:
        raise Speech3Error(f"{path}: is not a complete TextGrid; {_SAVE}") from error


def _tier(values: Iterator[str | float]) -> Tier | None:
    """Read the next tier; None for a point tier."""
    kind, name = next(values), str(next(values))
    if kind not in ("IntervalTier", "TextTier"):
        raise ValueError(kind)
    next(values), next(values)
    count, annotations = _whole(next(values)), []
    for _ in range(count):
        start, end = next(values), next(values) if kind == "IntervalTier" else 0.0
        annotations.append(Annotation(_seconds(start), _seconds(end), str(next(values))))
    return Tier(name, tuple(annotations)) if kind == "IntervalTier" else None


def _whole(value: str | float) -> int:
    return int(_seconds(value))


def _seconds(value: str | float) -> float:
    if isinstance(value, str):
        raise TypeError(value)
    return value


def _values(text: str) -> Iterator[str | float]:
    for match in _VALUE.finditer(text):
        if match["text"] is not None:
            yield match["text"].replace('""', '"')
        elif match["number"]:
            yield float(match["number"])
