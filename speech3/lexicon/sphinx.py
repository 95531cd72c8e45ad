"""Sphinx dictionaries, as AN4 and TED-LIUM have them: ``WORD PH PH ...``, ``WORD(2) ...`` a second pronunciation.

CMUdict is one, too: ``cmudict-0.7b`` in Latin-1, and ``cmudict.dict`` with comments behind the phones (``# place,
danish``).
"""

import re
from pathlib import Path

from speech3.io.text import read_utf8

_VARIANT = re.compile(r"[(][0-9]+[)]$")
_NO_WORD = ("<", "##", ";;")  # <s>, </s>, <unk>; lines of comment, as Sphinx has them


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
    lines = read_utf8(path, otherwise="latin-1").splitlines()
    rows = (line.partition(" #")[0].split() for line in lines)  # `#HASH-MARK HH AE1 SH ...` is a word
    return [
        (without_variant(word), tuple(phones))
        for word, *phones in (row for row in rows if row)
        if phones and not word.startswith(_NO_WORD)
    ]


def as_lexicon(entries: list[tuple[str, tuple[str, ...]]]) -> str:
    """The text of Kaldi's lexicon.txt."""
    return "".join(f"{word} {' '.join(phones)}\n" for word, phones in entries)
