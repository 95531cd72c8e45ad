"""Interpolated modified Kneser-Ney n-gram estimation (Chen and Goodman 1998, section 3; Kneser and Ney 1995).

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h) + gamma(h) p(w | h without its first word)

c is the count in the text for n-grams of the highest order and those that begin with `<s>`; for all others it is the
number of distinct words seen before the n-gram. The recursion ends in the uniform distribution over the vocabulary.
N-grams that are too rare for the model pass all of their count to gamma(h).

For texts that do not fit in memory, the vocabulary is split into ranges, and each step processes one of them at a time;
memory is needed for the vocabulary and one range, which has about four million words of the text, and more only if a
single word has more. A text is read as word numbers in blocks of whole sentences, int32 (T,), where each sentence ends
in the number of `</s>`; arrays are sorted on disk by way of a `Spool`. A small text is one range and stays in memory.

Counting: only n-grams of the highest order are extracted, one for each word and each end of a sentence, with `<s>`
repeated before the start of a sentence. They are sorted by their last word, then by the one before it, and so on, for
each range of last words. In this order the n-grams of lower orders (suffixes of the longer ones) are contiguous, too,
so one pass counts them all (as in Heafield et al. 2013).

Estimating: c(h) and gamma(h) are computed where n-grams are sorted by their first words, p where they are sorted by
their last words, and results are passed between the two orders by each n-gram's place in the other.

Axes: T words of the text, R n-grams of one order in a range, N words of an n-gram or orders, K integers into which the
words are packed, H histories, V words of the vocabulary, B ranges.
"""

import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType

import numpy as np

from speech3.data import read_sentences, with_progress
from speech3.errors import DataError, Speech3Error
from speech3.language.arpa import write_rows
from speech3.language.ngrams import BOS, EOS, NEVER, UNKNOWN, ArpaLm, Rows, from_rows
from speech3.runtime import explained_disk_errors, progress

_ROOM = 1 << 28  # bytes that a spool keeps in memory
Key = tuple[str | int, ...]
_BLOCK_SENTENCES = 1 << 14
RANGE = 1 << 22  # words of the text, or n-grams
BOS_NUMBER, EOS_NUMBER = 0, 1
SUFFIX = np.dtype([("first", "i4"), ("lower", "i8")])
_TERMS = np.dtype([("place", "i8"), ("rank", "i8"), ("direct", "f8"), ("gamma", "f8")])
_PROBS = np.dtype([("rank", "i8"), ("prob", "f8")])


def estimate_lm(
    sentences: Iterable[Sequence[str]],
    order: int,
    vocabulary: Collection[str] | None = None,
    source: str = "Kneser-Ney",
) -> ArpaLm:
    """Estimate a language model in which the probabilities after every history sum to one.

    Parameters
    ----------
    sentences
        Words of each sentence, without `<s>` and `</s>`.
    order
        Length of the longest n-gram, 1 to 6; the model's is shorter if no sentence is that long.
    vocabulary
        Words that get a probability, seen or not; others in the text count as ``<unk>``. None: the words of the text.

    Raises
    ------
    Speech3Error
        There are no sentences, or one contains ``<s>`` or ``</s>``.
    """
    check_order(order, source)
    with Spool() as spool:
        numbers = Numbers(vocabulary)
        windows = windows_of_text(number_sentences(sentences, numbers, source), order, spool)
        return estimated(windows, numbers, spool, source).model(source)


def check_order(order: int, source: str) -> None:
    if not 1 <= order <= 6:
        raise DataError(f"{source}: n-gram order {order}: must be from 1 to 6")


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated model, read piece by piece from the spool."""

    vocabulary: tuple[str, ...]
    sizes: tuple[int, ...]  # number of n-grams of each order from 1
    # For each order from 1, its n-grams in pieces, sorted by their words' numbers. Can be read once, in this order.
    orders: Iterator[Iterator[Rows]]

    def model(self, source: str) -> ArpaLm:
        rows = [Rows(*map(np.concatenate, zip(*pieces, strict=True))) for pieces in self.orders]
        return from_rows(self.vocabulary, rows, source)

    def write(self, path: Path) -> None:
        """Write the model to an ARPA file without loading it into memory."""
        write_rows(path, self.vocabulary, self.sizes, self.orders)


class Spool:
    """Stores pieces of arrays under keys and returns those of a key as one array; a context manager.

    When there are more than `_ROOM` bytes, the pieces go to files in a directory that Python's `tempfile` chooses
    (`TMPDIR`).
    """

    def __init__(self) -> None:
        self._held = 0
        self._pieces: dict[Key, list[np.ndarray]] = defaultdict(list)
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._directory:
            self._directory.cleanup()

    def add(self, key: Key, piece: np.ndarray) -> None:
        """Append a piece to those under the key."""
        self._pieces[key].append(piece)
        self._held += piece.nbytes
        if self._held > _ROOM:
            self._write()

    def add_split(self, name: Key, part_R: np.ndarray, rows_R: np.ndarray) -> None:
        """Append each row under the key of `name` and the row's part; the order within a part is kept."""
        sorted_R = np.argsort(part_R, kind="stable")
        rows_R, part_R = rows_R[sorted_R], part_R[sorted_R]
        bounds = [*np.flatnonzero(np.diff(part_R, prepend=-1)), len(part_R)]
        for begin, end in pairwise(bounds):
            self.add((*name, int(part_R[begin])), rows_R[begin:end].copy())

    def take(self, key: Key, dtype: np.dtype | type) -> np.ndarray:
        """Remove and return all pieces under the key as one array; empty if there are none."""
        pieces = self._pieces.pop(key, [])
        self._held -= sum(piece.nbytes for piece in pieces)
        if self._directory and (path := self._path(key)).exists():
            pieces.insert(0, np.fromfile(path, dtype))
            path.unlink()
        return np.concatenate([np.zeros(0, dtype), *pieces])

    def _path(self, key: Key) -> Path:
        assert self._directory
        return Path(self._directory.name) / "-".join(map(str, key))

    def _write(self) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="speech3-lm-")
        try:
            with explained_disk_errors(self._directory.name):
                for key, pieces in self._pieces.items():
                    with self._path(key).open("ab") as stream:
                        for piece in pieces:
                            stream.write(np.ascontiguousarray(piece).view(np.uint8).data)
        except Speech3Error as error:
            raise error.restated(f"{error}; or set TMPDIR to a directory with more space") from error
        self._pieces.clear()
        self._held = 0


@dataclass(frozen=True)
class Windows:
    """The n-grams of the highest order, not yet merged: an n-gram can occur several times."""

    order: int
    ends_V: np.ndarray  # int64: how many n-grams end in each word
    occurs_V: np.ndarray  # int64: how often each word occurs in the text
    # The number of pieces, and an iterator over them: words (R, N) int32, the last word first, and counts (R,) int64.
    pieces: tuple[int, Iterator[tuple[np.ndarray, np.ndarray]]]


def estimated(
    windows: Windows, numbers: dict[str, int], spool: Spool, source: str, minimums: Sequence[int] = ()
) -> Estimate:
    """Estimate a language model from `windows`, whose words must all be in `numbers` by now.

    `minimums`: for each order from 1, how often an n-gram must occur in the text to be in the model; not decreasing
    from order to order, so that the prefixes and suffixes of kept n-grams are kept. Missing ones equal the last, or 1.
    """
    if not windows.order:
        raise DataError(f"{source}: no sentences to estimate a language model from")
    given = list(minimums) or [1]
    counts = count(windows, len(numbers), [*given, *given[-1:] * windows.order], spool)
    discounts_N4 = [discounts(seen) for seen in counts.of_counts_N4]
    prob_V = _unigrams(counts.count_V, discounts_N4[1])
    backoff_V = np.ones(len(numbers))
    ranges = range(len(counts.first_B))
    for part in progress(ranges, len(ranges), "histories: ranges of words"):
        _histories(counts, discounts_N4, backoff_V, part, spool)
    for part in progress(ranges, len(ranges), "probabilities: ranges of words"):
        _interpolate(counts, prob_V, part, spool)
    order = max(order for order, kept in enumerate(counts.kept_N) if kept)
    orders = (_pieces(counts, prob_V, backoff_V, length, spool) for length in range(1, order + 1))
    return Estimate(tuple(numbers), tuple(counts.kept_N[1 : order + 1].tolist()), orders)


def discounts(of_counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Discounts (4,) float64 for counts 0, 1, 2 and 3 or more (Chen and Goodman's equation 26).

    If counts of counts are 0 or imply an impossible discount, as in tiny or repetitive texts, all counts have the same
    discount (Kneser and Ney's n1 / (n1 + 2 n2)), or 0.5 if that is not defined either.

    `of_counts`: number of n-grams with the counts 1, 2, 3 and 4.
    """
    n1, n2, n3, n4 = (int(seen) for seen in of_counts)
    shared = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if n1 and n2 and n3 and n4:
        modified = np.array([0, 1 - 2 * shared * n2 / n1, 2 - 3 * shared * n3 / n2, 3 - 4 * shared * n4 / n3])
        if (modified[1:] > 0).all() and (modified[1:] < (1, 2, 3)).all():
            return modified
    return np.array([0, shared, shared, shared])


def _unigrams(count_V: np.ndarray, discount_4: np.ndarray) -> np.ndarray:
    """Unigram probabilities; the uniform distribution is over all words but `<s>`, which is never predicted."""
    taken_V, total = discount_4[np.minimum(count_V, 3)], count_V.sum()
    return (count_V - taken_V) / total + taken_V.sum() / total / (len(count_V) - 1)


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """Counted n-grams: those of order 1 here, the others in the spool.

    For an order k from 2 and a range b, the spool has under ("grams", k, b) the n-grams whose first word is in range b,
    as `grams_dtype`; and under ("suffix", k, b) those whose last word is in range b, in the order of their places:
    their first word, and the place of the n-gram without it (if that is a single word, its number).
    """

    order: int  # the highest order that the text has, at most the one requested
    first_B: np.ndarray  # the first word of each range
    count_V: np.ndarray  # int64: the counts c of the formula, as are all counts here
    of_counts_N4: np.ndarray  # for each order from 0: how many n-grams have the count 1, 2, 3 and 4
    kept_N: np.ndarray  # for each order from 0: how many n-grams are frequent enough

    def range_of(self, word_R: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.first_B, word_R, "right") - 1


def _histories(
    counts: NgramCounts, discounts_N4: Sequence[np.ndarray], backoff_V: np.ndarray, part: int, spool: Spool
) -> None:
    """Both terms of the formula for n-grams whose first words are in a range, and their histories' back-off weights."""
    size, keys_N = len(backoff_V), [np.zeros(0, np.int64)] * 2
    for order in range(2, counts.order + 1):
        rows_R = spool.take(("grams", order, part), grams_dtype(order))
        history_R = rows_R["words"][:, 0].astype(np.int64)
        for column in range(1, order - 1):
            history_R = np.searchsorted(keys_N[column + 1], history_R * size + rows_R["words"][:, column])
        key_R = history_R * size + rows_R["words"][:, -1]
        sorted_R = np.argsort(key_R)
        rows_R, history_R = rows_R[sorted_R], history_R[sorted_R]
        keys_N.append(key_R[sorted_R])
        starts = np.flatnonzero(np.diff(history_R, prepend=-1))
        if not len(starts):
            continue
        sizes = np.diff(starts, append=len(rows_R))
        count_R = rows_R["count"].astype(np.float64)
        taken_R = np.where(rows_R["kept"], discounts_N4[order][np.minimum(rows_R["count"], 3)], count_R)
        total_H = np.add.reduceat(count_R, starts)
        gamma_H = np.add.reduceat(taken_R, starts) / total_H
        backoff_G = backoff_V if order == 2 else np.ones(len(keys_N[order - 1]))
        backoff_G[history_R[starts]] = gamma_H
        if order > 2:
            spool.add(("backoff", order - 1, part), backoff_G)
        words_R = np.empty(len(rows_R), _words_dtype(order))
        words_R["words"], words_R["kept"] = rows_R["words"], rows_R["kept"]
        spool.add(("words", order, part), words_R)
        terms_R = np.empty(len(rows_R), _TERMS)
        terms_R["place"], terms_R["rank"] = rows_R["place"], np.arange(len(rows_R))
        terms_R["direct"] = (count_R - taken_R) / np.repeat(total_H, sizes)
        terms_R["gamma"] = np.repeat(gamma_H, sizes)
        spool.add_split(("terms", order), counts.range_of(rows_R["words"][:, -1]), terms_R)


def _interpolate(counts: NgramCounts, prob_V: np.ndarray, part: int, spool: Spool) -> None:
    """Probabilities of n-grams whose last words are in a range, from the shortest to the longest."""
    lower_R = prob_V
    for order in range(2, counts.order + 1):
        suffix_R = spool.take(("suffix", order, part), SUFFIX)
        terms_R = np.empty(len(suffix_R), _TERMS)
        unordered_R = spool.take(("terms", order, part), _TERMS)
        terms_R[unordered_R["place"]] = unordered_R
        found_R = np.empty(len(suffix_R), _PROBS)
        found_R["rank"] = terms_R["rank"]
        found_R["prob"] = terms_R["direct"] + terms_R["gamma"] * lower_R[suffix_R["lower"]]
        spool.add_split(("probs", order), counts.range_of(suffix_R["first"]), found_R)
        lower_R = found_R["prob"]


def _pieces(counts: NgramCounts, prob_V: np.ndarray, backoff_V: np.ndarray, order: int, spool: Spool) -> Iterator[Rows]:
    if order == 1:
        log_V = np.log10(prob_V)
        log_V[0] = NEVER
        yield Rows(np.arange(len(prob_V), dtype=np.int32)[:, None], log_V, np.log10(backoff_V))
        return
    for part in range(len(counts.first_B)):
        rows_R = spool.take(("words", order, part), _words_dtype(order))
        prob_R = np.empty(len(rows_R))
        found_R = spool.take(("probs", order, part), _PROBS)
        prob_R[found_R["rank"]] = found_R["prob"]
        backoff_R = spool.take(("backoff", order, part), np.float64)
        backoff_R = backoff_R if len(backoff_R) else np.ones(len(rows_R))
        kept_R = rows_R["kept"]
        yield Rows(rows_R["words"][kept_R], np.log10(prob_R[kept_R]), np.log10(backoff_R[kept_R]))


def _words_dtype(order: int) -> np.dtype:
    return np.dtype([("words", "i4", (order,)), ("kept", "?")])


def count(windows: Windows, words: int, minimums: Sequence[int], spool: Spool) -> NgramCounts:
    """Count the n-grams of all orders.

    `minimums`: for each order from 1: how often an n-gram must occur in the text to be in the model.
    """
    order = windows.order
    first_B = _ranges(_padded_sum(windows.ends_V, np.zeros(words, np.int64)))
    packing = _Packing(order, words)
    total, pieces = windows.pieces
    for words_RN, count_R in progress(pieces, total, "counting: pieces"):
        rows_R = packing.merged(packing.packed(words_RN, count_R))
        last_R = packing.words(rows_R)[:, 0]
        spool.add_split(("packed",), np.searchsorted(first_B, last_R, "right") - 1, rows_R)
    counts = NgramCounts(
        order, first_B, np.zeros(words, np.int64), np.zeros((order + 1, 4), np.int64), np.zeros(order + 1, np.int64)
    )
    for part in progress(range(len(first_B)), len(first_B), "counting: ranges of words"):
        rows_R = packing.merged(spool.take(("packed", part), packing.dtype))
        if len(rows_R):
            _count_range(counts, packing.words(rows_R), rows_R["count"], part, minimums, spool)
    counts.of_counts_N4[1] = [np.count_nonzero(counts.count_V == count) for count in (1, 2, 3, 4)]
    counts.kept_N[1] = words
    return counts


def _count_range(
    counts: NgramCounts, words_RN: np.ndarray, raw_R: np.ndarray, part: int, minimums: Sequence[int], spool: Spool
) -> None:
    """Count the n-grams of all orders, given the sorted n-grams of the highest whose last words are in one range."""
    order = counts.order
    lower_R = words_RN[:, 0].astype(np.int64)  # place of each row's n-gram of the order below
    new_R = _changes(words_RN[:, :1])
    for length in range(1, order + 1):
        # Rows with the same last `length` words are one n-gram of this order.
        longer_R = new_R | _changes(words_RN[:, length : length + 1]) if length < order else new_R
        starts = np.flatnonzero(new_R)
        raw, first = _sums(raw_R, starts), words_RN[starts, length - 1]
        seen = raw if length == order else np.where(first == BOS_NUMBER, raw, _sums(longer_R.astype(np.int64), starts))
        if length == 1:
            counts.count_V[first] = seen
        else:
            # Leave out those that begin with two `<s>`, and keep the others by first and by last word.
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


def _ranges(ends_V: np.ndarray) -> np.ndarray:
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
    return np.add.reduceat(value_R, starts) if len(starts) else value_R[:0]


def grams_dtype(order: int) -> np.dtype:
    """Rows of `NgramCounts` under "grams": words, count, whether frequent enough, place in the last word's range."""
    return np.dtype([("words", "i4", (order,)), ("count", "i8"), ("kept", "?"), ("place", "i8")])


def windows_of_text(blocks: Iterable[np.ndarray], order: int, spool: Spool) -> Windows:
    """`Windows` of sentences in blocks, kept in the spool until all words have numbers.

    The order is at most the length of the longest sentence with its `<s>` and `</s>`; 0 if there is no sentence.
    """
    ends_V, longest = np.zeros(0, np.int64), 0
    sizes: list[int] = []
    for word_T in blocks:
        ends_V = _padded_sum(ends_V, np.bincount(word_T))
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
        ends_V = _padded_sum(ends_V, np.bincount(words_RN[:, 0]))
        occurs_V = _padded_sum(occurs_V, np.bincount(words_RN[:, 0], count_R).astype(np.int64))
        spool.add(("text", blocks), rows_R)
        blocks += 1
    taken = (spool.take(("text", block), dtype) for block in range(blocks))
    rows = ((rows_R["words"], rows_R["count"]) for rows_R in taken)
    return Windows(order if blocks else 0, ends_V, occurs_V, (blocks, rows))


def _padded_sum(one_V: np.ndarray, other_V: np.ndarray) -> np.ndarray:
    longer = max(len(one_V), len(other_V))
    return np.pad(one_V, (0, longer - len(one_V))) + np.pad(other_V, (0, longer - len(other_V)))


def read_tokens(paths: Sequence[Path], numbers: dict[str, int]) -> Iterator[np.ndarray]:
    """Read text files with one sentence per line, in blocks; lines without words are skipped."""
    for lines in with_progress(read_sentences(paths), paths, "reading text"):
        words = lines.text.replace("\n", f" {EOS} ").split()
        if not lines.text.endswith("\n"):
            words.append(EOS)
        word_T = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
        end_T = word_T == numbers[EOS]
        empty_T = end_T & np.concatenate([[True], end_T[:-1]])
        if len(word_T := word_T[~empty_T]):
            yield word_T


def number_sentences(sentences: Iterable[Sequence[str]], numbers: dict[str, int], source: str) -> Iterator[np.ndarray]:
    """Number the words of sentences, in blocks."""
    remaining = iter(sentences)
    while some := list(islice(remaining, _BLOCK_SENTENCES)):
        words: list[int] = []
        for sentence in some:
            if BOS in sentence or EOS in sentence:
                raise DataError(f"{source}: {BOS} or {EOS} inside a sentence; write the words alone")
            words += map(numbers.__getitem__, sentence)
            words.append(numbers[EOS])
        yield np.array(words, np.int32)


class Numbers(dict[str, int]):
    """Numbers of words, starting with `<s>` 0 and `</s>` 1; a new word gets the next number, or that of `<unk>`.

    `vocabulary`: words that have a number, seen or not; others count as `<unk>`, which gets a number when it is first
    needed if it is not in the vocabulary. If None, every word gets a number.
    """

    def __init__(self, vocabulary: Collection[str] | None = None) -> None:
        words = (BOS, EOS, *sorted(set(vocabulary or ()) - {BOS, EOS}))
        super().__init__((word, number) for number, word in enumerate(words))
        self.closed = vocabulary is not None

    def __missing__(self, word: str) -> int:
        return self.setdefault(UNKNOWN if self.closed else word, len(self))


class Known(dict[str, int]):
    """Numbers of a model's words; other words have the number of `<unk>`, or -1 if the model has no `<unk>`."""

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__(numbers)
        self.unknown = numbers.get(UNKNOWN, -1)

    def __missing__(self, word: str) -> int:
        return self.unknown
