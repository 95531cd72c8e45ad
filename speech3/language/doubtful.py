"""Warnings about lines of a lexicon that are probably not meant so."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from speech3.language.lexicon import NOISES, LexiconLine, is_word
from speech3.runtime import say

_ENOUGH_LINES = 100  # in a lexicon of fewer lines, a phone that occurs once is not rare
_SHOWN = 5
_SEPARATORS = frozenset({".", "-", "|", "_", "ˈ", "ˌ", "'", '"', "%", "/", ","})


def warnings(lines: Sequence[LexiconLine], path: Path) -> list[str]:
    """What is doubtful in a lexicon: phones that occur once, with their lines; separators that stand as phones.

    Marks of stress and syllables are separators in IPA and X-SAMPA if spaces are around them.
    """
    words = [line for line in lines if is_word(line.word) and NOISES.isdisjoint(line.phones)]
    counts = Counter(phone for line in words for phone in line.phones)
    found = []
    if len(words) >= _ENOUGH_LINES:
        once = [(line, phone) for line in words for phone in line.phones if counts[phone] == 1]
        found += [
            f"{path}:{line.number}: {line.word}: no other word has the phone {phone}; correct it if it is a slip"
            for line, phone in once[:_SHOWN]
        ]
        if len(once) > _SHOWN:
            found.append(f"{path}: {len(once) - _SHOWN} more phones occur once")
    for mark in sorted(_SEPARATORS & counts.keys()):
        first = next(line for line in words if mark in line.phones)
        found.append(
            f"{path}:{first.number}: {first.word}: {mark} is a phone of its own here, in {counts[mark]:,} places;"
            " remove it if it only separates syllables or marks stress"
        )
    return found


def say_doubtful(lines: Sequence[LexiconLine], path: Path) -> None:
    _say_once("\n".join(f"warning: {each}" for each in warnings(lines, path)))


@lru_cache
def _say_once(text: str) -> None:
    if text:
        say(text)
