"""A compiled parser for the plain lines of an ARPA file, which are nearly all of them.

A line is plain if it consists of a number, words of the vocabulary and perhaps another number, separated by ASCII
spaces; numbers have only digits and at most one point, after a minus sign if negative. Other lines, and their errors,
are left to the caller.

Axes: C bytes, V words, S slots of a hash table (a power of two, FNV-1a), R n-grams.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from speech3.io.compiled import jit

_FNV_OFFSET, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_TENS = 10.0 ** np.arange(19)
_NEWLINE, _SPACE, _MINUS, _POINT, _ZERO, _NINE = np.frombuffer(b"\n -.09", np.uint8).tolist()


class Words(NamedTuple):
    """The vocabulary: the bytes of its words joined together, where each word ends (0 first), and a hash table."""

    text_C: np.ndarray
    ends_V: np.ndarray
    slots_S: np.ndarray


class Parsed(NamedTuple):
    """Memory for the n-grams of a piece of text: word numbers, log10 probability and back-off, line number."""

    words_RN: np.ndarray
    prob_R: np.ndarray
    backoff_R: np.ndarray
    line_R: np.ndarray


def words(vocabulary: Iterable[str]) -> Words:
    """Prepare a vocabulary for `parse`."""
    encoded = [word.encode() for word in vocabulary]
    text_C = np.frombuffer(b"".join(encoded), np.uint8)
    ends_V = np.concatenate([[0], np.cumsum([len(word) for word in encoded])])
    slots_S = np.full(1 << (2 * len(encoded)).bit_length(), -1, np.int32)
    _fill(text_C, ends_V, slots_S)
    return Words(text_C, ends_V, slots_S)


@jit
def _slot(text_C, begin, end, slots):  # type: ignore[no-untyped-def] # pragma: no cover
    code = _FNV_OFFSET
    for i in range(begin, end):
        code = (code ^ np.uint64(text_C[i])) * _FNV_PRIME
    return np.int64((code ^ (code >> np.uint64(32))) & np.uint64(slots - 1))


@jit
def _fill(text_C, ends_V, slots_S):  # type: ignore[no-untyped-def] # pragma: no cover
    for word in range(len(ends_V) - 1):
        slot = _slot(text_C, ends_V[word], ends_V[word + 1], len(slots_S))
        while slots_S[slot] >= 0:
            slot = (slot + 1) & (len(slots_S) - 1)
        slots_S[slot] = word


@jit
def _number_of(table, text_C, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """The number of a word, -1 if it is not in the vocabulary."""
    slot = _slot(text_C, begin, end, len(table.slots_S))
    while True:
        word = table.slots_S[slot]
        if word < 0:
            return -1
        start = table.ends_V[word]
        if table.ends_V[word + 1] - start == end - begin:
            i = 0
            while i < end - begin and table.text_C[start + i] == text_C[begin + i]:
                i += 1
            if i == end - begin:
                return word
        slot = (slot + 1) & (len(table.slots_S) - 1)


@jit
def _value(text_C, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """The value of the number in text_C[begin:end], NaN if it is not a plain one."""
    at = begin + (text_C[begin] == _MINUS)
    whole, digits, behind, point = 0, 0, 0, False
    for i in range(at, end):
        byte = text_C[i]
        if byte == _POINT and not point:
            point = True
        elif _ZERO <= byte <= _NINE:
            digits += 1
            whole = whole * 10 + (byte - _ZERO)
            behind += point
        else:
            return np.nan
    if not 0 < digits <= 18:
        return np.nan
    value = whole / _TENS[behind]
    return -value if at > begin else value


@jit
def parse(text_C, at, line, table, last, found):  # type: ignore[no-untyped-def] # pragma: no cover
    """Read plain lines from `at` to the first line that is not plain or to the end of the text, which has whole lines.

    Returns the number of n-grams found, and the position and number (less one) of the first line that was not read.
    `last`: the n-grams are of the highest order and have no back-off weights. Lines with impossible probabilities are
    not plain.
    """
    rows, order = 0, found.words_RN.shape[1]
    while at < len(text_C):
        field, place = 0, at
        backoff = 0.0
        while True:
            while place < len(text_C) and text_C[place] <= _SPACE and text_C[place] != _NEWLINE:
                place += 1
            if place == len(text_C) or text_C[place] == _NEWLINE:
                break
            begin = place
            while place < len(text_C) and text_C[place] > _SPACE:
                place += 1
            if field == 0:
                value = _value(text_C, begin, place)
                if not value <= 1e-4:
                    return rows, at, line
                found.prob_R[rows] = value
            elif field <= order:
                word = _number_of(table, text_C, begin, place)
                if word < 0:
                    return rows, at, line
                found.words_RN[rows, field - 1] = word
            else:
                backoff = _value(text_C, begin, place)
                if last or field > order + 1 or np.isnan(backoff):
                    return rows, at, line
            field += 1
        if 0 < field <= order:
            return rows, at, line
        line += 1
        at = min(place + 1, len(text_C))
        if field:
            found.backoff_R[rows] = backoff
            found.line_R[rows] = line
            rows += 1
    return rows, at, line
