"""Counting the n-grams of texts that do not fit in memory, by sorting one range of words at a time.

Only n-grams of the highest order are extracted, one for each word and each end of a sentence, with `<s>` repeated
before the start of a sentence. They are sorted by their last word, then by the one before it, and so on. In this order
the n-grams of lower orders (suffixes of the longer ones) are contiguous, too, so one pass counts them all (as in
Heafield et al. 2013). The vocabulary is split into ranges, and n-grams are sorted separately for each range of last
words. Memory is needed for the vocabulary and one range, which has about four million words of the text, and more only
if a single word has more.

Axes: T words of the text, R n-grams of one order, N words of an n-gram, K integers into which they are packed, V words
of the vocabulary, B ranges.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from speech3.io.progress import progress
from speech3.lm.spool import Spool

RANGE = 1 << 22  # words of the text, or n-grams
BOS_NUMBER, EOS_NUMBER = 0, 1

SUFFIX = np.dtype([("first", "i4"), ("lower", "i8")])


def grams_dtype(order: int) -> np.dtype:
    """Rows of `Counts` under "grams": words, count, whether frequent enough, place in the range of the last word."""
    return np.dtype([("words", "i4", (order,)), ("count", "i8"), ("kept", "?"), ("place", "i8")])


@dataclass(frozen=True, eq=False)
class Counts:
    """Counted n-grams: those of order 1 here, the others in the spool.

    For an order k from 2 and a range b, the spool has under ("grams", k, b) the n-grams whose first word is in range b,
    as `grams_dtype`; and under ("suffix", k, b) those whose last word is in range b, in the order of their places:
    their first word, and the place of the n-gram without it (if that is a single word, its number).

    Attributes
    ----------
    order
        The highest order that the text has, at most the one requested.
    first_B
        The first word of each range.
    count_V
        int64: the counts c of `kneser_ney`, as are all counts here.
    of_counts_N4
        For each order from 0: how many n-grams have the count 1, 2, 3 and 4.
    kept_N
        For each order from 0: how many n-grams are frequent enough.
    """

    order: int
    first_B: np.ndarray
    count_V: np.ndarray
    of_counts_N4: np.ndarray
    kept_N: np.ndarray

    def range_of(self, word_R: np.ndarray) -> np.ndarray:
        """The range of each word."""
        return np.searchsorted(self.first_B, word_R, "right") - 1


@dataclass(frozen=True)
class Windows:
    """The n-grams of the highest order, not yet merged: an n-gram can occur several times.

    Attributes
    ----------
    ends_V
        int64: how many n-grams end in each word.
    occurs_V
        int64: how often each word occurs in the text.
    pieces
        The number of pieces, and an iterator over them: words (R, N) int32, the last word first, and counts (R,) int64.
    """

    order: int
    ends_V: np.ndarray
    occurs_V: np.ndarray
    pieces: tuple[int, Iterator[tuple[np.ndarray, np.ndarray]]]


def windows_of_text(blocks: Iterable[np.ndarray], order: int, spool: Spool) -> Windows:
    """`Windows` of sentences in blocks of `speech3.lm.text`, kept in the spool until all words have numbers.

    The order is at most the length of the longest sentence with its `<s>` and `</s>`; 0 if there is no sentence.
    """
    ends_V, longest = np.zeros(0, np.int64), 0
    sizes: list[int] = []
    for word_T in blocks:
        ends_V = _sum(ends_V, np.bincount(word_T))
        longest = max(longest, int(np.diff(np.flatnonzero(word_T == EOS_NUMBER), prepend=-1).max()))
        spool.add(("text", len(sizes)), word_T)
        sizes.append(len(word_T))
    order = min(order, longest + 1) if sizes else 0

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for block, size in enumerate(sizes):
            word_T = spool.take(("text", block), np.int32)
            for begin in range(0, size, RANGE):
                yield _windows(word_T, begin, min(begin + RANGE, size), order)

    return Windows(order, ends_V, ends_V, (sum(-(-size // RANGE) for size in sizes), pieces()))


def _windows(word_T: np.ndarray, begin: int, end: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams that end at the words from `begin` to `end`, with their counts (1 each)."""
    padded_T = np.concatenate([np.full(order - 1, EOS_NUMBER, np.int32), word_T[max(0, begin - order + 1) : end]])
    over_T, columns = np.zeros(end - begin, bool), []
    for back in range(order):
        column_T = padded_T[len(padded_T) - (end - begin) - back : len(padded_T) - back]
        over_T |= (column_T == EOS_NUMBER) & (back > 0)  # words of the sentence before
        columns.append(np.where(over_T, BOS_NUMBER, column_T))
    return np.stack(columns, axis=1), np.ones(end - begin, np.int64)


def windows_of_rows(pieces: Iterable[tuple[np.ndarray, np.ndarray]], order: int, spool: Spool) -> Windows:
    """`Windows` of counted n-grams, given as pieces; they are kept in the spool until all words have numbers."""
    ends_V, occurs_V, blocks = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    dtype = np.dtype([("words", "i4", (order,)), ("count", "i8")])
    for words_RN, count_R in pieces:
        rows_R = np.empty(len(words_RN), dtype)
        rows_R["words"], rows_R["count"] = words_RN, count_R
        ends_V = _sum(ends_V, np.bincount(words_RN[:, 0]))
        occurs_V = _sum(occurs_V, np.bincount(words_RN[:, 0], count_R).astype(np.int64))
        spool.add(("text", blocks), rows_R)
        blocks += 1
    taken = (spool.take(("text", block), dtype) for block in range(blocks))
    rows = ((rows_R["words"], rows_R["count"]) for rows_R in taken)
    return Windows(order if blocks else 0, ends_V, occurs_V, (blocks, rows))


def _sum(one_V: np.ndarray, other_V: np.ndarray) -> np.ndarray:
    longer = max(len(one_V), len(other_V))
    return np.pad(one_V, (0, longer - len(one_V))) + np.pad(other_V, (0, longer - len(other_V)))


def count(windows: Windows, words: int, minimums: Sequence[int], spool: Spool) -> Counts:
    """Count the n-grams of all orders.

    Parameters
    ----------
    words
        Size of the vocabulary.
    minimums
        For each order from 1: how often an n-gram must occur in the text to be in the model.
    """
    order = windows.order
    first_B = _ranges(_sum(windows.ends_V, np.zeros(words, np.int64)))
    packing = _Packing(order, words)
    total, pieces = windows.pieces
    for words_RN, count_R in progress(pieces, total, "counting: pieces"):
        rows_R = packing.merged(packing.packed(words_RN, count_R))
        last_R = packing.words(rows_R)[:, 0]
        spool.add_split(("packed",), np.searchsorted(first_B, last_R, "right") - 1, rows_R)
    counts = Counts(
        order, first_B, np.zeros(words, np.int64), np.zeros((order + 1, 4), np.int64), np.zeros(order + 1, np.int64)
    )
    for part in progress(range(len(first_B)), len(first_B), "counting: ranges of words"):
        rows_R = packing.merged(spool.take(("packed", part), packing.dtype))
        if len(rows_R):
            _count_range(counts, packing.words(rows_R), rows_R["count"], part, minimums, spool)
    counts.of_counts_N4[1] = [np.count_nonzero(counts.count_V == count) for count in (1, 2, 3, 4)]
    counts.kept_N[1] = words
    return counts


def _ranges(ends_V: np.ndarray) -> np.ndarray:
    """The first words of ranges with about `RANGE` n-grams each."""
    firsts, held = [0], 0
    for word, ends in enumerate(ends_V.tolist()):
        if held and held + ends > RANGE:
            firsts.append(word)
            held = 0
        held += ends
    return np.array(firsts)


class _Packing:
    """Packs the words of an n-gram, the last first, into as few 64-bit integers as possible; keeps the sort order."""

    def __init__(self, order: int, words: int) -> None:
        self.order, self.bits = order, max(1, (words - 1).bit_length())
        self.each = 64 // self.bits
        self.dtype = np.dtype([("key", "u8", (-(-order // self.each),)), ("count", "i8")])

    def packed(self, words_RN: np.ndarray, count_R: np.ndarray) -> np.ndarray:
        rows_R = np.zeros(len(words_RN), self.dtype)
        for place in range(self.order):
            key_R = rows_R["key"][:, place // self.each]
            key_R <<= np.uint64(self.bits)
            key_R |= words_RN[:, place].astype(np.uint64)
        rows_R["count"] = count_R
        return rows_R

    def words(self, rows_R: np.ndarray) -> np.ndarray:
        words_RN, mask = np.empty((len(rows_R), self.order), np.int32), np.uint64((1 << self.bits) - 1)
        for place in range(self.order):
            column = place // self.each
            behind = min(self.order, (column + 1) * self.each) - 1 - place  # words after it in the same integer
            words_RN[:, place] = rows_R["key"][:, column] >> np.uint64(behind * self.bits) & mask
        return words_RN

    def merged(self, rows_R: np.ndarray) -> np.ndarray:
        """Sort the rows and sum the counts of equal n-grams."""
        key_RK = rows_R["key"]
        sorted_R = np.argsort(key_RK[:, 0]) if key_RK.shape[1] == 1 else np.lexsort(key_RK.T[::-1])
        rows_R = rows_R[sorted_R]
        starts = np.flatnonzero(_changes(rows_R["key"]))
        merged_R = rows_R[starts]
        merged_R["count"] = _sums(rows_R["count"], starts)
        return merged_R


def _changes(columns_RN: np.ndarray) -> np.ndarray:
    """Which rows differ from the row before; true for the first."""
    new_R = np.ones(len(columns_RN), bool)
    new_R[1:] = (columns_RN[1:] != columns_RN[:-1]).any(axis=1)
    return new_R


def _sums(value_R: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The sum of each group of rows, given where the groups start."""
    return np.add.reduceat(value_R, starts) if len(starts) else value_R[:0]


def _count_range(
    counts: Counts, words_RN: np.ndarray, raw_R: np.ndarray, part: int, minimums: Sequence[int], spool: Spool
) -> None:
    """Count the n-grams of all orders, given the sorted n-grams of the highest whose last words are in one range."""
    order = counts.order
    lower_R = words_RN[:, 0].astype(np.int64)  # place of each row's n-gram of the order below
    new_R = _changes(words_RN[:, :1])
    for length in range(1, order + 1):
        longer_R = new_R | _changes(words_RN[:, length : length + 1]) if length < order else new_R
        starts = np.flatnonzero(new_R)
        raw, first = _sums(raw_R, starts), words_RN[starts, length - 1]
        seen = raw if length == order else np.where(first == BOS_NUMBER, raw, _sums(longer_R.astype(np.int64), starts))
        if length == 1:
            counts.count_V[first] = seen
        else:
            real = ~((first == BOS_NUMBER) & (words_RN[starts, length - 2] == BOS_NUMBER))
            place = np.cumsum(real) - 1
            rows = np.empty(np.count_nonzero(real), grams_dtype(length))
            rows["words"], rows["count"] = words_RN[starts[real], length - 1 :: -1], seen[real]
            rows["kept"], rows["place"] = raw[real] >= minimums[length - 1], place[real]
            counts.of_counts_N4[length] += np.bincount(np.minimum(rows["count"], 5), minlength=6)[1:5]
            counts.kept_N[length] += np.count_nonzero(rows["kept"])
            suffix = np.empty(len(rows), SUFFIX)
            suffix["first"], suffix["lower"] = first[real], lower_R[starts[real]]
            spool.add(("suffix", length, part), suffix)
            spool.add_split(("grams", length), counts.range_of(first[real]), rows)
            lower_R = place[np.cumsum(new_R) - 1]
        new_R = longer_R
