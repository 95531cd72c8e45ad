"""Interpolated modified Kneser-Ney n-gram estimation (Chen and Goodman 1998, section 3; Kneser and Ney 1995).

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h) + gamma(h) p(w | h without its first word)

c is the count in the text for n-grams of the highest order and those that begin with `<s>`; for all others it is the
number of distinct words seen before the n-gram. The recursion ends in the uniform distribution over the vocabulary.
N-grams that are too rare for the model give all of their count to gamma(h).

For texts that do not fit in memory, each step processes one of the word ranges of `counts` at a time: c(h) and gamma(h)
are computed where n-grams are sorted by their first words, p where they are sorted by their last words, and results
are passed between the two orders by each n-gram's place in the other. A small text is one range and stays in memory.

Axes: R n-grams of one order in a range, H histories, V words of the vocabulary, N orders.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.progress import progress
from speech3.lm.arpa import write_rows
from speech3.lm.counts import SUFFIX, Counts, Windows, count, grams_dtype, windows_of_text
from speech3.lm.ngrams import NEVER, ArpaLm, Rows, from_rows
from speech3.lm.spool import Spool
from speech3.lm.text import Numbers, number_sentences

_TERMS = np.dtype([("place", "i8"), ("rank", "i8"), ("direct", "f8"), ("gamma", "f8")])
_PROBS = np.dtype([("rank", "i8"), ("prob", "f8")])


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimated model, read piece by piece from the spool.

    Attributes
    ----------
    sizes
        Number of n-grams of each order from 1.
    orders
        For each order from 1, its n-grams in pieces, sorted by their words' numbers. Can be read once, in this order.
    """

    vocabulary: tuple[str, ...]
    sizes: tuple[int, ...]
    orders: Iterator[Iterator[Rows]]

    def model(self, source: str) -> ArpaLm:
        """Load the model into memory."""
        rows = [Rows(*map(np.concatenate, zip(*pieces, strict=True))) for pieces in self.orders]
        return from_rows(self.vocabulary, rows, source)

    def write(self, path: Path) -> None:
        """Write the model to an ARPA file without loading it into memory."""
        write_rows(path, self.vocabulary, self.sizes, self.orders)


def estimate(
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
        Words to give a probability, seen or not; others in the text count as ``<unk>``. None: the words of the text.

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
    """Raise an error if the order is not in 1 to 6."""
    if not 1 <= order <= 6:
        raise Speech3Error(f"{source}: n-gram order {order}: must be from 1 to 6")


def estimated(
    windows: Windows, numbers: dict[str, int], spool: Spool, source: str, minimums: Sequence[int] = ()
) -> Estimate:
    """Estimate a language model from `windows`, whose words must all be in `numbers` by now.

    Parameters
    ----------
    minimums
        For each order from 1, how often an n-gram must occur in the text to be in the model; not decreasing from order
        to order, so that the prefixes and suffixes of kept n-grams are kept. Missing ones equal the last, or 1.

    Raises
    ------
    Speech3Error
        There are no sentences.
    """
    if not windows.order:
        raise Speech3Error(f"{source}: no sentences to estimate a language model from")
    given = list(minimums) or [1]
    counts = count(windows, len(numbers), [*given, *given[-1:] * windows.order], spool)
    discounts_N4 = [discounts(seen) for seen in counts.of_counts_N4]
    prob_V = _words(counts.count_V, discounts_N4[1])
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

    If counts of counts are 0 or give an impossible discount, as in tiny or repetitive texts, all counts have the same
    discount (Kneser and Ney's n1 / (n1 + 2 n2)), or 0.5 if that is not defined either.

    Parameters
    ----------
    of_counts
        Number of n-grams with the counts 1, 2, 3 and 4.
    """
    n1, n2, n3, n4 = (int(seen) for seen in of_counts)
    shared = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if n1 and n2 and n3 and n4:
        modified = np.array([0, 1 - 2 * shared * n2 / n1, 2 - 3 * shared * n3 / n2, 3 - 4 * shared * n4 / n3])
        if (modified[1:] > 0).all() and (modified[1:] < (1, 2, 3)).all():
            return modified
    return np.array([0, shared, shared, shared])


def _words_dtype(order: int) -> np.dtype:
    return np.dtype([("words", "i4", (order,)), ("kept", "?")])


def _words(count_V: np.ndarray, discount_4: np.ndarray) -> np.ndarray:
    """Unigram probabilities; the uniform distribution is over all words but `<s>`, which is never predicted."""
    taken_V, total = discount_4[np.minimum(count_V, 3)], count_V.sum()
    return (count_V - taken_V) / total + taken_V.sum() / total / (len(count_V) - 1)


def _histories(
    counts: Counts, discounts_N4: Sequence[np.ndarray], backoff_V: np.ndarray, part: int, spool: Spool
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


def _interpolate(counts: Counts, prob_V: np.ndarray, part: int, spool: Spool) -> None:
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


def _pieces(counts: Counts, prob_V: np.ndarray, backoff_V: np.ndarray, order: int, spool: Spool) -> Iterator[Rows]:
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
