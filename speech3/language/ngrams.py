"""A back-off n-gram model in memory: a trie in arrays, as in KenLM and SRILM.

The trie's nodes are the n-grams: the empty one first (the root), then those of order 1, 2, ...; within an order they
are sorted by their history (the n-gram without its last word), then by their last word. So the children of a node, the
n-grams of which it is the history, are contiguous, and a word is found among them by binary search.

The trie is traversed with failure links (Aho and Corasick 1975). A state is the longest suffix of the words so far that
is a history of the model; its failure link leads to its longest proper suffix that is a history. A word is looked up
among the children of the state, then of the state's failure link, and so on, adding the back-off weights of the states
that lack it. The compiled code does no bounds checks: an `ArpaLm` makes the arrays, and callers must pass valid word
numbers.

As an automaton (`states_of`), a history is a state if it has a child in the trie or a back-off weight; the root and the
start of a sentence are always states. The arc of an n-gram leads to its longest suffix that is a state (Mohri et al.
2008, section 3).

Axes: G n-grams of all orders, H those below the highest order (histories), N orders, R n-grams of one order, T words of
a text, X nodes of another trie, V words, S states, A arcs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from speech3.runtime import jit

ROOT = 0
BOS = "<s>"
EOS = "</s>"
UNKNOWN = "<unk>"
NEVER = -99.0  # log10 probability or back-off weight that stands for zero in ARPA files
Ngrams = Mapping[tuple[str, ...], tuple[float, float]]


class Trie(NamedTuple):
    """The arrays of an `ArpaLm` and its failure links."""

    first_H: np.ndarray
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_H: np.ndarray
    fail_H: np.ndarray


@jit
def child(first_H, word_G, node, word):  # type: ignore[no-untyped-def]
    """The n-gram of `node` and one more word, -1 if the model lacks it."""
    low, end = first_H[node], first_H[node + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if word_G[middle] < word:
            low = middle + 1
        else:
            high = middle
    if low < end and word_G[low] == word:
        return low
    return -1


@jit
def failure_links(first_H, word_G):  # type: ignore[no-untyped-def]
    """For each history, its longest proper suffix that is a history."""
    histories = len(first_H) - 1
    fail_H = np.zeros(histories, np.int64)
    for history in range(1, histories):
        for node in range(first_H[history], min(first_H[history + 1], histories)):
            state = history
            while state != ROOT:
                state = fail_H[state]
                found = child(first_H, word_G, state, word_G[node])
                if found >= 0:
                    fail_H[node] = found
                    break
    return fail_H


@jit
def step(trie, state, word):  # type: ignore[no-untyped-def]
    """The longest n-gram that ends in `word` (-1: unknown word), its log10 probability, and the state after it."""
    total = 0.0
    while True:
        node = child(trie.first_H, trie.word_G, state, word)
        if node >= 0:
            break
        if state == ROOT:
            return -1, -np.inf, ROOT
        total += trie.backoff_H[state]
        state = trie.fail_H[state]
    # The state after it: the longest suffix that is a history.
    total += trie.prob_G[node]
    after = node
    while after < 0 or after >= len(trie.fail_H):  # n-grams of the highest order are not histories
        if state == ROOT:
            return node, total, ROOT
        state = trie.fail_H[state]
        after = child(trie.first_H, trie.word_G, state, word)
    return node, total, after


@jit
def score(trie, word_T, start, end_word):  # type: ignore[no-untyped-def]
    """N-gram (-1: unknown word) and log10 probability of each word of sentences that end in `end_word`."""
    node_T = np.empty(len(word_T), np.int64)
    prob_T = np.empty(len(word_T), np.float64)
    state = start
    for i in range(len(word_T)):
        node_T[i], prob_T[i], state = step(trie, state, word_T[i])
        if word_T[i] == end_word:
            state = start
    return node_T, prob_T


@jit
def follow(trie, parent_X, word_X):  # type: ignore[no-untyped-def]
    """Log10 probability in this model of the last word of each n-gram of another trie, whose parents come first."""
    prob_X = np.zeros(len(word_X), np.float64)
    state_X = np.zeros(len(word_X), np.int64)
    for x in range(1, len(word_X)):
        _, prob_X[x], state_X[x] = step(trie, state_X[parent_X[x]], word_X[x])
    return prob_X


@jit
def backed_off(trie, history_G, begin, end):  # type: ignore[no-untyped-def]
    """Log10 probability of the last word of n-grams `begin` to `end` after the failure link of their histories."""
    prob_G = np.empty(end - begin, np.float64)
    for node in range(begin, end):
        _, prob_G[node - begin], _ = step(trie, trie.fail_H[history_G[node]], trie.word_G[node])
    return prob_G


@jit
def fill(trie, history_G):  # type: ignore[no-untyped-def]
    """Replace NaN probabilities of n-grams by their back-off probabilities, in place, from short to long."""
    for node in range(1, len(trie.word_G)):
        if np.isnan(trie.prob_G[node]):
            history = history_G[node]
            _, prob, _ = step(trie, trie.fail_H[history], trie.word_G[node])
            trie.prob_G[node] = prob + trie.backoff_H[history]


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
    """An n-gram language model."""

    vocabulary: tuple[str, ...]  # the words by number, including `<s>` and `</s>`: the 1-grams in the order of the file
    # (order + 2,) int64: the first node of each order, from the root (order 0), and the number of nodes
    starts_N: np.ndarray
    first_H: np.ndarray  # (H + 1,) int64: the first child of each history
    word_G: np.ndarray  # int32: last word of each n-gram; -1 for the root
    # `prob_G`, `backoff_H`: float64, log10. The root's are 0.
    prob_G: np.ndarray
    backoff_H: np.ndarray
    source: str  # name of the model in messages: its file, or how it was made

    @property
    def order(self) -> int:
        return len(self.starts_N) - 2

    @property
    def words(self) -> list[str]:
        """Words other than `<s>` and `</s>`, in the order of the file."""
        return [word for word in self.vocabulary if word not in (BOS, EOS)]

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.vocabulary)}

    @cached_property
    def trie(self) -> Trie:
        """The model as the compiled functions take it."""
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

    Raises KeyError if an n-gram has a word that is not a 1-gram.
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

    Raises RepeatedNgramError if an n-gram occurs twice.
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
            words_RN = np.concatenate([words_RN, np.array(missing, np.int32)])
            prob_R, backoff_R = np.append(prob_R, [np.nan] * len(missing)), np.append(backoff_R, [0.0] * len(missing))
            closed[place - 1] = Rows(words_RN, prob_R, backoff_R)
    return closed


class States(NamedTuple):
    """The automaton."""

    start: int  # the state at the start of a sentence
    node_S: np.ndarray  # int64: the node (n-gram) of each state. The start is first; the others are sorted by length.
    backoff_S: np.ndarray  # int64: the state that each state backs off to; -1 for the root
    # int64: the n-grams that are arcs, without those that end in `</s>` and those of probability zero.
    node_A: np.ndarray
    # source_A, target_A: int64: the states that the arcs leave and reach.
    source_A: np.ndarray
    target_A: np.ndarray
    # float64 log10 probability of the end of a sentence; minus infinity if the state does not list it.
    final_S: np.ndarray


def states_of(lm: ArpaLm, known_V: np.ndarray | None = None) -> States:
    """Make the automaton of a model.

    `known_V`: bool: words that may occur; others have neither arcs nor states. If None, all words may occur.
    """
    trie, histories, history_G = lm.trie, len(lm.first_H) - 1, lm.history_G()
    bos, eos = lm.numbers[BOS], lm.numbers[EOS]
    known_V = np.ones(len(lm.vocabulary), bool) if known_V is None else known_V.copy()
    known_V[[bos, eos]] = False
    # The states: histories of usable words with a child or a back-off weight, the start first.
    usable_G = np.zeros(len(lm.word_G), bool)
    usable_G[ROOT] = True
    for order in range(1, lm.order + 1):  # histories come before their n-grams
        here = slice(lm.starts_N[order], lm.starts_N[order + 1])
        usable_G[here] = usable_G[history_G[here]] & known_V[lm.word_G[here]]
        if order == 1:
            usable_G[1 + bos] = True
    is_state_H = usable_G[:histories] & ((np.diff(lm.first_H) > 0) | (lm.backoff_H != 0))
    is_state_H[[ROOT, lm.start]] = True
    nodes = np.flatnonzero(is_state_H)
    node_S = np.concatenate([[lm.start], nodes[nodes != lm.start]])
    state_H = np.full(histories, -1)
    state_H[node_S] = np.arange(len(node_S))
    # Where the arcs lead, and which n-grams are arcs or ends.
    after_G, shorter_H = _arc_targets(trie, history_G, is_state_H)
    backoff_S = np.where(node_S == ROOT, -1, state_H[shorter_H[node_S]])
    leaves_G = np.append(False, is_state_H[history_G[1:]])  # the root is no arc
    node_A = np.flatnonzero(leaves_G & known_V[lm.word_G] & (lm.prob_G > NEVER))
    ends = np.flatnonzero(leaves_G & (lm.word_G == eos) & (lm.prob_G > NEVER))
    final_S = np.full(len(node_S), -np.inf)
    final_S[state_H[history_G[ends]]] = lm.prob_G[ends]
    return States(0, node_S, backoff_S, node_A, state_H[history_G[node_A]], state_H[after_G[node_A]], final_S)


@jit
def _arc_targets(trie, history_G, is_state_H):  # type: ignore[no-untyped-def]
    """For each n-gram, its longest suffix that is a state; for each history, its longest proper suffix that is one."""
    histories = len(is_state_H)
    after_G = np.zeros(len(history_G), np.int64)
    shorter_H = np.zeros(histories, np.int64)
    for node in range(1, len(history_G)):
        # Shorten the n-gram word by word, until it is a state.
        after, state = node, history_G[node]
        while after < 0 or after >= histories or not is_state_H[after]:
            if state == ROOT:
                after = ROOT
                break
            state = trie.fail_H[state]
            after = child(trie.first_H, trie.word_G, state, trie.word_G[node])
        after_G[node] = after
    for node in range(1, histories):
        state = trie.fail_H[node]
        while not is_state_H[state]:
            state = trie.fail_H[state]
        shorter_H[node] = state
    return after_G, shorter_H
