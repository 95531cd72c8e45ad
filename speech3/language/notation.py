"""Notations of pronunciations other than ``word phone phone ...``, as spreadsheets, linguists and web pages have them.

What most lines of a lexicon have is its notation: slashes or brackets around the phones, quotes around the words, a
comma or a colon after the word, commas between the phones. It is removed, and that is said. Words of several words, and
phones without spaces between them, are errors: how to cut them is not known.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from speech3.errors import FormatError

Row = tuple[int, list[str]]  # the number of a line, and its fields, the word first
_MOST = 0.8  # share of the lines
_PAIRS = ("//", "[]", "{}", "()", '""', "“”", "||", "<>")
_AFTER_WORD, _BETWEEN = ",:;=", ",;"
_JOINED = re.compile(r"(?:[^\W\d_]{1,3}\d?[.\-])+[^\W\d_]{1,3}\d?")  # z.iy.r.ow, z-iy-r-ow
_IPA = re.compile(r"[\u0250-\u02af\u02b0-\u02ff\u1d00-\u1dbf\u0361θðŋβχɡæøœçˈˌ]")
_LEAST_WORDS = 3
_LEAST_AT_ENDS = 0.1  # of the lines with a marked phone, in which that is the last one
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?")


def without_notation(rows: Sequence[Row], path: Path) -> tuple[list[Row], list[str]]:
    """The rows of a lexicon with words and phones alone, and what was removed, in words.

    Raises FormatError: phones are not separated by spaces, or some lines have several pronunciations.
    """
    removed: list[str] = []
    changed = _without_marks_of_words(rows, removed)
    changed = _without_pairs(changed, removed)
    changed = _without_marks_between(changed, removed)
    _check_cut(changed, path)
    return changed, removed


def check_words(text: str, rows: Sequence[Row], path: Path) -> None:
    """Refuse a lexicon whose words are followed by tabs if one of them consists of several words.

    Tabs between the phones as well say nothing of where a word ends.
    """
    lines = text.splitlines()
    before = [(number, lines[number - 1].strip().partition("\t")) for number, _ in rows]
    if sum(bool(tab) for _, (_, tab, _) in before) < _MOST * len(rows):
        return
    columns = [rest.rpartition("\t") for _, (_, tab, rest) in before if tab]
    if sum(" " not in last for _, tab, last in columns if tab) > sum(" " in last for *_, last in columns):
        return
    for number, (word, tab, _) in before:
        first, *others = word.split()
        if tab and any(any(map(str.isalpha, other)) for other in others):
            raise FormatError(
                f"{path}:{number}: {' '.join([first, *others])} is an entry of {len(others) + 1} words; write one line"
                " for each of its words, or join them as the transcripts do, with _ or -"
            )


def _most(found: Sequence[object]) -> bool:
    return len(found) > 0 and sum(map(bool, found)) >= _MOST * len(found)


def _without_marks_of_words(rows: Sequence[Row], removed: list[str]) -> list[Row]:
    words = [fields[0].rstrip(_AFTER_WORD) for _, fields in rows]
    quoted = [len(word) > 2 and word[0] + word[-1] in ('""', "“”") for word in words]
    if _most(quoted):
        removed.append("quotes around words")
        rows = [(number, [_stripped(fields[0], '"“”'), *fields[1:]]) for number, fields in rows]
    for mark in _AFTER_WORD:
        if _most([len(fields) > 2 and fields[1] == mark for _, fields in rows]):
            removed.append(f"{mark} after words")
            return [(number, [fields[0], *fields[1 + (fields[1:2] == [mark]) :]]) for number, fields in rows]
        if _most([len(fields[0]) > 1 and fields[0].endswith(mark) for _, fields in rows]):
            removed.append(f"{mark} after words")
            return [(number, [fields[0].removesuffix(mark) or mark, *fields[1:]]) for number, fields in rows]
    return list(rows)


def _stripped(word: str, quotes: str) -> str:
    tail = word[len(word.rstrip(_AFTER_WORD)) :]
    return (word.rstrip(_AFTER_WORD).strip(quotes) or word.rstrip(_AFTER_WORD)) + tail


def _without_pairs(rows: Sequence[Row], removed: list[str]) -> list[Row]:
    """Rows without the slashes or brackets around all phones; a phone that is the word, as in ``[breath]``, stays."""
    starts = [1 + len(list(takewhile(_NUMBER.fullmatch, fields[1:-1]))) for _, fields in rows]
    phones = [" ".join(fields[start:]) for (_, fields), start in zip(rows, starts, strict=True)]
    for pair in _PAIRS:
        first, last = pair[0], pair[1]
        around = [
            len(each) > 2 and each[0] == first and each[-1] == last and each != fields[0]
            for each, (_, fields) in zip(phones, rows, strict=True)
        ]
        if _most(around):
            removed.append(f"{first} {last} around phones")
            return [
                (number, [*fields[:start], *each[1:-1].split()] if inside else fields)
                for (number, fields), start, each, inside in zip(rows, starts, phones, around, strict=True)
            ]
    return list(rows)


def _without_marks_between(rows: Sequence[Row], removed: list[str]) -> list[Row]:
    for mark in _BETWEEN:
        longer = [fields for _, fields in rows if len(fields) > 2]
        if _most([all(phone.endswith(mark) for phone in fields[1:-1]) for fields in longer]):
            removed.append(f"{mark} between phones")
            return [(number, [f[0], *(phone.strip(mark) or phone for phone in f[1:])]) for number, f in rows]
    return list(rows)


def _check_cut(rows: Sequence[Row], path: Path) -> None:
    # A phone that has its word's name is the model of a word.
    single = [
        (number, fields[0], fields[1])
        for number, fields in rows
        if len(fields) == 2 and len(fields[0]) > 1 and fields[0].casefold() not in fields[1].casefold()
    ]
    long = [len(fields) for _, fields in rows if len(fields[0]) > 1]
    if len(single) >= max(_MOST * len(long), _LEAST_WORDS):
        different = len(Counter(phones for *_, phones in single)) >= _MOST * len(single)
        joined = [bool(_JOINED.fullmatch(phones)) for *_, phones in single]
        spelled = [len(phones) > 2 and bool(_IPA.search(phones)) for *_, phones in single]
        if different and (_most(joined) or sum(spelled) >= len(single) / 2):
            place = next(place for place, found in enumerate(map(max, joined, spelled)) if found)
            number, word, phones = single[place]
            raise FormatError(
                f"{path}:{number}: {word}: {phones} counts as one phone; put spaces between phones"
                + (": sed 's/[.-]/ /g'" if _most(joined) else "")
            )
    # A separator never ends a line: a mark that often does is part of phones, as in Kirshenbaum's palatal `t;`.
    marks = [[phone[-1] for phone in fields[1:] if len(phone) > 1 and phone[-1] in _BETWEEN] for _, fields in rows]
    lasts = Counter(fields[-1][-1] for _, fields in rows if len(fields) > 1 and len(fields[-1]) > 1)
    separators = [mark for mark in _BETWEEN if lasts[mark] < _LEAST_AT_ENDS * sum(mark in each for each in marks)]
    for number, fields in rows:
        if mark := next((phone for phone in fields[1:] if len(phone) > 1 and phone[-1] in separators), ""):
            raise FormatError(
                f"{path}:{number}: {fields[0]}: {mark} has a mark that is no part of a phone; write one pronunciation a"
                " line, with spaces between its phones"
            )
