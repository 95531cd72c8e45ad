"""An n-gram model as an automaton: which n-grams are states, and where its word arcs and back-off arcs lead.

A history is a state if it has a child in the trie or a back-off weight; the root and the start of a sentence are always
states. The arc of an n-gram leads to its longest suffix that is a state (Mohri et al. 2008, section 3).

Axes: G n-grams of all orders, H histories, V words, S states.
"""

from typing import NamedTuple

import numpy as np

from speech3.io.compiled import jit
from speech3.lm.ngrams import BOS, EOS, NEVER, ArpaLm
from speech3.lm.trie import ROOT, child


class States(NamedTuple):
    """The automaton.

    Attributes
    ----------
    start
        The state at the start of a sentence.
    node_S
        int64: the node (n-gram) of each state. The start is first; the others are sorted by length.
    backoff_S
        int64: the state that each state backs off to; -1 for the root.
    node_A
        int64: the n-grams that are arcs, without those that end in `</s>` and those of probability zero.
    source_A, target_A
        int64: the states that the arcs leave and reach.
    final_S
        float64 log10 probability of the end of a sentence; minus infinity if the state does not list it.
    """

    start: int
    node_S: np.ndarray
    backoff_S: np.ndarray
    node_A: np.ndarray
    source_A: np.ndarray
    target_A: np.ndarray
    final_S: np.ndarray


def states_of(lm: ArpaLm, known_V: np.ndarray | None = None) -> States:
    """Make the automaton of a model.

    Parameters
    ----------
    known_V
        bool: words that may occur; others have neither arcs nor states. If None, all words may occur.
    """
    trie, histories, history_G = lm.trie, len(lm.first_H) - 1, lm.history_G()
    bos, eos = lm.numbers[BOS], lm.numbers[EOS]
    known_V = np.ones(len(lm.vocabulary), bool) if known_V is None else known_V.copy()
    known_V[[bos, eos]] = False
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
    after_G, shorter_H = _ends(trie, history_G, is_state_H)
    backoff_S = np.where(node_S == ROOT, -1, state_H[shorter_H[node_S]])
    leaves_G = np.append(False, is_state_H[history_G[1:]])  # the root is no arc
    node_A = np.flatnonzero(leaves_G & known_V[lm.word_G] & (lm.prob_G > NEVER))
    ends = np.flatnonzero(leaves_G & (lm.word_G == eos) & (lm.prob_G > NEVER))
    final_S = np.full(len(node_S), -np.inf)
    final_S[state_H[history_G[ends]]] = lm.prob_G[ends]
    return States(0, node_S, backoff_S, node_A, state_H[history_G[node_A]], state_H[after_G[node_A]], final_S)


@jit
def _ends(trie, history_G, is_state_H):  # type: ignore[no-untyped-def] # pragma: no cover
    """For each n-gram, its longest suffix that is a state; for each history, its longest proper suffix that is one."""
    histories = len(is_state_H)
    after_G = np.zeros(len(history_G), np.int64)
    shorter_H = np.zeros(histories, np.int64)
    for node in range(1, len(history_G)):
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
