"""Sphinx dictionaries, as AN4 and TED-LIUM have them: ``WORD PH PH ...``, ``WORD(2) ...`` a second pronunciation."""

import re
from pathlib import Path

from speech3.lexicon.langdir import read_utf8

_VARIANT = re.compile(r"[(][0-9]+[)]$")


def without_variant(word: str) -> str:
    """``TOMATO`` of ``TOMATO(2)``."""
    return _VARIANT.sub("", word)


def read_dictionary(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Words with their phones, a word as often as it has pronunciations; ``<s>``, ``</s>`` and ``<unk>`` left out.

    Raises
    ------
    Speech3Error
        The file cannot be read.
    """
    rows = (line.split() for line in read_utf8(path).splitlines())
    return [
        (without_variant(word), tuple(phones))
        for word, *phones in (row for row in rows if row)
        if phones and not word.startswith("<")
    ]


def as_lexicon(entries: list[tuple[str, tuple[str, ...]]]) -> str:
    """The text of Kaldi's lexicon.txt."""
    return "".join(f"{word} {' '.join(phones)}\n" for word, phones in entries)
