"""Walking through an n-gram model's trie, compiled (the trie: `ngrams`; failure links as in Aho and Corasick 1975).

A state is the longest end of what was said that is a history of the model; its failure link leads to the longest proper
end of it that is one. A word is looked for among the children of the state, then of the state's failure link, and so
on, adding the back-off weights of the states that lack it.

Compiled code that looks at no bounds: an `ArpaLm` makes the arrays, its callers number the words.

Axes: G n-grams of all orders, H those below the highest order (histories), T words of a text, X nodes of another trie.
"""

from typing import NamedTuple

import numba
import numpy as np

ROOT = 0

jit = numba.njit(cache=True, nogil=True, error_model="numpy")


class Trie(NamedTuple):
    """Arrays of an `ArpaLm`, and its failure links."""

    first_H: np.ndarray
    word_G: np.ndarray
    prob_G: np.ndarray
    backoff_H: np.ndarray
    fail_H: np.ndarray


@jit
def child(first_H, word_G, node, word):  # type: ignore[no-untyped-def] # pragma: no cover
    """The n-gram that is `node` with one more word, -1 if the model lacks it."""
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
    """For each history the longest proper end of it that is a history."""
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
    """The longest n-gram that ends in `word` (-1: the model lacks it), its log10 probability, the state after it."""
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
    while after < 0 or after >= len(trie.fail_H):  # of the highest order, a history of nothing
        if state == ROOT:
            return node, total, ROOT
        state = trie.fail_H[state]
        after = child(trie.first_H, trie.word_G, state, word)
    return node, total, after


@jit
def score(trie, word_T, start, end_word):  # type: ignore[no-untyped-def] # pragma: no cover
    """N-gram (-1: unknown word) and log10 probability of each word of sentences that `end_word` ends."""
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
    """Log10 probability that the model gives to the last word of each n-gram of another trie, parents first."""
    prob_X = np.zeros(len(word_X), np.float64)
    state_X = np.zeros(len(word_X), np.int64)
    for x in range(1, len(word_X)):
        _, prob_X[x], state_X[x] = step(trie, state_X[parent_X[x]], word_X[x])
    return prob_X


@jit
def backed_off(trie, history_G, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """Log10 probability of the last words of n-grams `begin` to `end` after their histories without the first word."""
    prob_G = np.empty(end - begin, np.float64)
    for node in range(begin, end):
        _, prob_G[node - begin], _ = step(trie, trie.fail_H[history_G[node]], trie.word_G[node])
    return prob_G


@jit
def fill(trie, history_G):  # type: ignore[no-untyped-def] # pragma: no cover
    """Give the n-grams whose probability is NaN the one that they have by backing off, shorter ones first."""
    for node in range(1, len(trie.word_G)):
        if np.isnan(trie.prob_G[node]):
            history = history_G[node]
            _, prob, _ = step(trie, trie.fail_H[history], trie.word_G[node])
            trie.prob_G[node] = prob + trie.backoff_H[history]
