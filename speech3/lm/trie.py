"""Compiled traversal of an n-gram model's trie (see `ngrams`), with failure links (Aho and Corasick 1975).

A state is the longest suffix of the words so far that is a history of the model; its failure link leads to its longest
proper suffix that is a history. A word is looked up among the children of the state, then of the state's failure link,
and so on, adding the back-off weights of the states that lack it.

The compiled code does no bounds checks: an `ArpaLm` makes the arrays, and callers must pass valid word numbers.

Axes: G n-grams of all orders, H those below the highest order (histories), T words of a text, X nodes of another trie.
"""

from typing import NamedTuple

import numpy as np

from speech3.io.compiled import jit

ROOT = 0


class Trie(NamedTuple):
    """The arrays of an `ArpaLm` and its failure links."""

    first_H: np.ndarray
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_H: np.ndarray
    fail_H: np.ndarray


@jit
def child(first_H, word_G, node, word):  # type: ignore[no-untyped-def] # pragma: no cover
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
def failure_links(first_H, word_G):  # type: ignore[no-untyped-def] # pragma: no cover
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
def step(trie, state, word):  # type: ignore[no-untyped-def] # pragma: no cover
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
    total += trie.prob_G[node]
    after = node
    while after < 0 or after >= len(trie.fail_H):  # n-grams of the highest order are not histories
        if state == ROOT:
            return node, total, ROOT
        state = trie.fail_H[state]
        after = child(trie.first_H, trie.word_G, state, word)
    return node, total, after


@jit
def score(trie, word_T, start, end_word):  # type: ignore[no-untyped-def] # pragma: no cover
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
def follow(trie, parent_X, word_X):  # type: ignore[no-untyped-def] # pragma: no cover
    """Log10 probability in this model of the last word of each n-gram of another trie, whose parents come first."""
    prob_X = np.zeros(len(word_X), np.float64)
    state_X = np.zeros(len(word_X), np.int64)
    for x in range(1, len(word_X)):
        _, prob_X[x], state_X[x] = step(trie, state_X[parent_X[x]], word_X[x])
    return prob_X


@jit
def backed_off(trie, history_G, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """Log10 probability of the last word of n-grams `begin` to `end` after the failure link of their histories."""
    prob_G = np.empty(end - begin, np.float64)
    for node in range(begin, end):
        _, prob_G[node - begin], _ = step(trie, trie.fail_H[history_G[node]], trie.word_G[node])
    return prob_G


@jit
def fill(trie, history_G):  # type: ignore[no-untyped-def] # pragma: no cover
    """Replace NaN probabilities of n-grams by their back-off probabilities, in place, from short to long."""
    for node in range(1, len(trie.word_G)):
        if np.isnan(trie.prob_G[node]):
            history = history_G[node]
            _, prob, _ = step(trie, trie.fail_H[history], trie.word_G[node])
            trie.prob_G[node] = prob + trie.backoff_H[history]
