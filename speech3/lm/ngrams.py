"""A back-off n-gram model in memory: a trie in arrays, as in KenLM and SRILM.

The trie's nodes are the n-grams: the empty one first (the root), then those of order 1, 2, ...; within an order they
are sorted by their history (the n-gram without its last word), then by their last word. So the children of a node, the
n-grams of which it is the history, are contiguous, and a word is found among them by binary search.

Axes: G n-grams of all orders, H those below the highest order, N orders, R n-grams of one order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from speech3.lm.trie import ROOT, Trie, failure_links, fill, step

BOS, EOS = "<s>", "</s>"
UNKNOWN = "<unk>"
NEVER = -99.0  # log10 probability or back-off weight that stands for zero in ARPA files

Ngrams = Mapping[tuple[str, ...], tuple[float, float]]


class Rows(NamedTuple):
    """N-grams of one order n: word numbers (R, n) int32, log10 probabilities and back-off weights (R,) float64."""

    words_RN: np.ndarray
    prob_R: np.ndarray
    backoff_R: np.ndarray


class RepeatedNgramError(ValueError):
    """An n-gram occurs twice among the rows of its order; `row` is the index of the second, from 0."""

    def __init__(self, order: int, row: int) -> None:
        super().__init__(f"{order}-gram {row} occurs twice")
        self.order, self.row = order, row


class _MissingHistoryError(Exception):
    pass


@dataclass(frozen=True, eq=False)
class ArpaLm:
    """An n-gram language model.

    Attributes
    ----------
    vocabulary
        The words by number, including `<s>` and `</s>`: the 1-grams in the order of the file.
    starts_N
        (order + 2,) int64: the first node of each order, from the root (order 0), and the number of nodes.
    first_H
        (H + 1,) int64: the first child of each history.
    word_G
        int32: last word of each n-gram; -1 for the root.
    prob_G, backoff_H
        float64, log10. The root's are 0.
    source
        Name of the model in messages: its file, or how it was made.
    """

    vocabulary: tuple[str, ...]
    starts_N: np.ndarray
    first_H: np.ndarray
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_H: np.ndarray
    source: str

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.starts_N) - 2

    @property
    def words(self) -> list[str]:
        """Words other than `<s>` and `</s>`, in the order of the file."""
        return [word for word in self.vocabulary if word not in (BOS, EOS)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.vocabulary)}

    @cached_property
    def trie(self) -> Trie:
        """The model as the functions of `speech3.lm.trie` take it."""
        return Trie(self.first_H, self.word_G, self.prob_G, self.backoff_H, failure_links(self.first_H, self.word_G))

    @property
    def start(self) -> int:
        """The state at the start of a sentence: the node of `<s>`, or the root of a unigram model."""
        return 1 + self.numbers[BOS] if self.order > 1 else ROOT

    def history_G(self) -> np.ndarray:
        """The node of each n-gram's history, int64; for the root, the root itself."""
        history_G = np.repeat(np.arange(len(self.first_H) - 1), np.diff(self.first_H))
        return np.concatenate([[ROOT], history_G])

    def rows(self, order: int) -> Rows:
        """The n-grams of one order; the back-off weights of the highest order are 0."""
        history_G, words = self.history_G(), []
        node_R = np.arange(self.starts_N[order], self.starts_N[order + 1])
        last = slice(self.starts_N[order], self.starts_N[order + 1])
        for _ in range(order):
            words.append(self.word_G[node_R])
            node_R = history_G[node_R]
        backoff_R = self.backoff_H[last] if order < self.order else np.zeros(last.stop - last.start)
        return Rows(np.stack(words[::-1], axis=1), self.prob_G[last], backoff_R)

    def ngram(self, node: int) -> tuple[str, ...]:
        """The words of a node."""
        words: list[str] = []
        while node != ROOT:
            words.insert(0, self.vocabulary[self.word_G[node]])
            node = int(np.searchsorted(self.first_H, node, "right")) - 1
        return tuple(words)

    @cached_property
    def ngrams(self) -> tuple[Ngrams, ...]:
        """For each order from 1: the n-grams with (log10 probability, log10 back-off weight), for small models."""
        tables = []
        for order in range(1, self.order + 1):
            rows = self.rows(order)
            names = (tuple(self.vocabulary[number] for number in words) for words in rows.words_RN.tolist())
            values = zip(rows.prob_R.tolist(), rows.backoff_R.tolist(), strict=True)
            tables.append(dict(zip(names, values, strict=True)))
        return tuple(tables)

    def log10_prob(self, history: Sequence[str], word: str) -> float:
        """Log10 probability of `word` after `history`; minus infinity if the model lacks the word."""
        number, state = self.numbers.get(word), ROOT
        if number is None:
            return -math.inf
        for before in list(history)[max(0, len(history) - self.order + 1) :]:
            state = step(self.trie, state, self.numbers.get(before, -1))[2]
        return float(step(self.trie, state, number)[1])


def from_ngrams(ngrams: Sequence[Ngrams], source: str) -> ArpaLm:
    """Make a model from n-grams in the form of `ArpaLm.ngrams`; those of order 1 are the vocabulary.

    Raises
    ------
    KeyError
        An n-gram has a word that is not a 1-gram.
    """
    numbers = {word: number for number, (word,) in enumerate(ngrams[0])}
    rows = []
    for order, table in enumerate(ngrams, 1):
        words = np.array([[numbers[word] for word in ngram] for ngram in table], np.int32).reshape(-1, order)
        prob, backoff = np.array(list(table.values()), np.float64).reshape(-1, 2).T
        rows.append(Rows(words, prob, backoff))
    return from_rows(tuple(numbers), rows, source)


def from_rows(vocabulary: tuple[str, ...], orders: Sequence[Rows], source: str) -> ArpaLm:
    """Make a model from unsorted n-grams; those of order 1 must be all words, in the vocabulary's order.

    Histories that are not n-grams, because some tools leave them out, are added with their back-off probability and the
    back-off weight 1, which does not change the model.

    Raises
    ------
    RepeatedNgramError
        An n-gram occurs twice.
    """
    try:
        lm = _from_rows(vocabulary, orders, source)
    except _MissingHistoryError:
        lm = _from_rows(vocabulary, _with_histories(orders), source)
        fill(lm.trie, lm.history_G())
    return lm


def _from_rows(vocabulary: tuple[str, ...], orders: Sequence[Rows], source: str) -> ArpaLm:
    size = len(vocabulary)
    starts, keys_N = [0, 1], [np.arange(size)]
    firsts, columns = [np.array([1])], [(np.array([-1], np.int32), np.zeros(1), np.zeros(1))]
    for order, rows in enumerate(orders, 1):
        key_R = _history_places(rows.words_RN, keys_N, size) * size + rows.words_RN[:, -1]
        if (np.diff(key_R) <= 0).any():
            sorted_R = np.argsort(key_R, kind="stable")
            key_R, rows = key_R[sorted_R], Rows(*(column[sorted_R] for column in rows))
            if len(twice := np.flatnonzero(np.diff(key_R) == 0)):
                raise RepeatedNgramError(order, int(sorted_R[twice + 1].min()))
        starts.append(starts[-1] + len(key_R))
        histories = len(keys_N[-1]) if order > 1 else 1
        firsts.append(starts[-2] + np.searchsorted(key_R, np.arange(1, histories + 1) * size))
        columns.append((rows.words_RN[:, -1].astype(np.int32), rows.prob_R, rows.backoff_R))
        keys_N = [*keys_N, key_R] if order > 1 else keys_N
    word_G, prob_G, backoff_G = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    first_H, backoff_H = np.concatenate(firsts), backoff_G[: starts[-2]].copy()
    return ArpaLm(vocabulary, np.array(starts), first_H, word_G, prob_G.astype(np.float64), backoff_H, source)


def _history_places(words_RN: np.ndarray, keys_N: Sequence[np.ndarray], size: int) -> np.ndarray:
    """The index of each n-gram's history among the n-grams of the history's order."""
    if words_RN.shape[1] == 1:
        return np.zeros(len(words_RN), np.int64)
    place_R = words_RN[:, 0].astype(np.int64)
    for column in range(1, words_RN.shape[1] - 1):
        wanted_R, keys_R = place_R * size + words_RN[:, column], keys_N[column]
        place_R = np.searchsorted(keys_R, wanted_R)
        if len(wanted_R) and (not len(keys_R) or (keys_R[np.minimum(place_R, len(keys_R) - 1)] != wanted_R).any()):
            raise _MissingHistoryError
    return place_R


def _with_histories(orders: Sequence[Rows]) -> list[Rows]:
    """The n-grams with all missing histories added; the probabilities of those added are NaN."""
    closed = list(orders)
    for place in range(len(closed) - 1, 1, -1):
        words_RN, prob_R, backoff_R = closed[place - 1]
        known = set(map(tuple, words_RN.tolist()))
        missing = sorted(set(map(tuple, closed[place].words_RN[:, :-1].tolist())) - known)
        if missing:
            added = np.array(missing, np.int32)
            nothing = np.full(len(missing), np.nan)
            closed[place - 1] = Rows(
                np.concatenate([words_RN, added]),
                np.concatenate([prob_R, nothing]),
                np.concatenate([backoff_R, np.zeros(len(missing))]),
            )
    return closed
