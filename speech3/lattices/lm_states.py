"""Language models as automata with failure transitions (Mohri et al. 2008), for rescoring lattices.

A state is a history. A word without an arc there is looked up in the state's back-off state, at the cost of backing
off. So every word sequence has one path, with the cost that the ARPA format defines.

Axes: S states, S1 one more, A arcs.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.compiled import jit
from speech3.io.fst import Fst
from speech3.lm.ngrams import ArpaLm
from speech3.lm.states import states_of

NO_WORD = -1
_TEN = np.log(10.0)


class LmStates(NamedTuple):
    """Arrays for compiled code, made only by `of_arpa` and `of_grammar`.

    Attributes
    ----------
    start
        The state in which a sentence begins.
    begin_S1
        int64: the arcs of state s are those from begin_S1[s] to begin_S1[s + 1], in the order of their words.
    word_A, target_A, cost_A
        int64 words and states; float64 costs, minus natural logarithms of probabilities.
    backoff_S, backoff_cost_S
        int64 state in which words without an arc are looked up, -1 if there is none; float64 cost of backing off.
    final_S
        float64 final costs; infinite if the final cost is to be looked up in the back-off state.
    """

    start: int
    begin_S1: np.ndarray
    word_A: np.ndarray
    target_A: np.ndarray
    cost_A: np.ndarray
    backoff_S: np.ndarray
    backoff_cost_S: np.ndarray
    final_S: np.ndarray


def of_arpa(lm: ArpaLm) -> tuple[LmStates, dict[str, int]]:
    """The states of an n-gram model, and the number of each of its words."""
    states = states_of(lm)
    columns = np.zeros(len(states.node_A), [("source", "i8"), ("word", "i8"), ("target", "i8"), ("cost", "f8")])
    columns["source"], columns["target"] = states.source_A, states.target_A
    columns["word"], columns["cost"] = lm.word_G[states.node_A], -_TEN * lm.prob_G[states.node_A]
    backoff_cost_S = np.where(states.backoff_S >= 0, -_TEN * lm.backoff_H[states.node_S], 0.0)
    return _arranged(states.start, columns, states.backoff_S, backoff_cost_S, -_TEN * states.final_S), lm.numbers


def of_grammar(fst: Fst, backoff_label: int, path: Path | str) -> LmStates:
    """The states of the G that a graph was made from (`grammar.Grammar`); words are its labels.

    Raises
    ------
    Speech3Error
        A sequence of words may have several paths, as in some grammars; `path` is for messages.
    """
    ilabel_A, states = fst.arcs_A["ilabel"], len(fst.final_S)
    back_A = ilabel_A == backoff_label
    source_A, arcs_A = fst.source_A[~back_A], fst.arcs_A[~back_A]
    backs, back_arcs = fst.source_A[back_A], fst.arcs_A[back_A]
    pairs = np.stack([source_A, arcs_A["ilabel"]])
    several = len(np.unique(pairs, axis=1).T) < pairs.shape[1] or len(np.unique(backs)) < len(backs)
    if several or (arcs_A["ilabel"] == 0).any() or fst.start < 0:
        raise Speech3Error(
            f"{path}: a sequence of words may have several paths in this grammar, so its cost cannot be removed from"
            " lattices; decode with the graph of an n-gram model"
        )
    backoff_S, backoff_cost_S = np.full(states, -1), np.zeros(states)
    backoff_S[backs], backoff_cost_S[backs] = back_arcs["nextstate"], back_arcs["weight"]
    columns = np.zeros(len(arcs_A), [("source", "i8"), ("word", "i8"), ("target", "i8"), ("cost", "f8")])
    columns["source"], columns["word"] = source_A, arcs_A["ilabel"]
    columns["target"], columns["cost"] = arcs_A["nextstate"], arcs_A["weight"]
    return _arranged(int(fst.start), columns, backoff_S, backoff_cost_S, fst.final_S.astype(np.float64))


def _arranged(
    start: int, columns: np.ndarray, backoff_S: np.ndarray, backoff_cost_S: np.ndarray, final_S: np.ndarray
) -> LmStates:
    columns = columns[np.lexsort((columns["word"], columns["source"]))]
    begin_S1 = np.searchsorted(columns["source"], np.arange(len(final_S) + 1))
    word_A, target_A, cost_A = (np.ascontiguousarray(columns[name]) for name in ("word", "target", "cost"))
    return LmStates(start, begin_S1, word_A, target_A, cost_A, backoff_S.astype(np.int64), backoff_cost_S, final_S)


@jit
def arc_of(lm, state, word):  # type: ignore[no-untyped-def] # pragma: no cover
    """The arc of a state that reads a word, -1 if it has none."""
    low, end = lm.begin_S1[state], lm.begin_S1[state + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if lm.word_A[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low if low < end and lm.word_A[low] == word else -1


@jit
def step(lm, state, word):  # type: ignore[no-untyped-def] # pragma: no cover
    """Cost of a word in a state, and the state after it; the cost is infinite if the model lacks the word."""
    total = 0.0
    while state >= 0:
        arc = arc_of(lm, state, word)
        if arc >= 0:
            return total + lm.cost_A[arc], lm.target_A[arc]
        total += lm.backoff_cost_S[state]
        state = lm.backoff_S[state]
    return np.inf, lm.start


@jit
def end_cost(lm, state):  # type: ignore[no-untyped-def] # pragma: no cover
    """Cost of ending a sentence in a state."""
    total = 0.0
    while state >= 0:
        if lm.final_S[state] < np.inf:
            return total + lm.final_S[state]
        total += lm.backoff_cost_S[state]
        state = lm.backoff_S[state]
    return np.inf
