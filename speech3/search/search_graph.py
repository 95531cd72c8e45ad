"""A decoding graph arranged for the search: the arcs of each state together, emitting arcs before non-emitting ones.

An emitting arc has a pdf as its input label and consumes a frame; a non-emitting arc has none (epsilon).

Axes: S states, S1 one more, A arcs, E emitting arcs; the 4 columns of an arc are those of `fst.ARC`.
"""

from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from speech3.errors import Speech3Error
from speech3.io.fst import Fst


class SearchGraph(NamedTuple):
    """Arrays that compiled code reads without bounds checks; made only by `search_graph`, which checks them.

    Attributes
    ----------
    num_pdfs
        Number of columns that scores must have.
    start
        Number of the start state.
    arcs_A4, weight_A4
        int32 and float32 views of the same memory: input label (pdf + 1, 0 for none), output label, weight (in the
        float32 view), next state.
    begin_S1, silent_S
        int32: the arcs of state s are begin_S1[s] to begin_S1[s + 1] - 1; from silent_S[s] on they are non-emitting.
    final_S
        float32 final costs; infinity if a state is not final.
    level_S
        int32: the largest number of consecutive non-emitting arcs on a path to this state.
    into_E2, into_S1
        int32: source state and number of each emitting arc, ordered by target; those of arcs into state s are
        into_S1[s] to into_S1[s + 1] - 1.
    """

    num_pdfs: int
    start: int
    arcs_A4: np.ndarray
    weight_A4: np.ndarray
    begin_S1: np.ndarray
    silent_S: np.ndarray
    final_S: np.ndarray
    level_S: np.ndarray
    into_E2: np.ndarray
    into_S1: np.ndarray


def search_graph(fst: Fst, num_pdfs: int, path: Path | str) -> SearchGraph:
    """Arrange a graph for the search; `path` is for messages.

    Raises
    ------
    Speech3Error
        The graph is empty, a label or state is out of range, a weight is not a finite number, or there is a cycle of
        non-emitting arcs.
    """
    states, arcs = len(fst.final_S), len(fst.arcs_A)
    if not 0 <= fst.start < states or not arcs or np.isinf(fst.final_S).all():
        raise Speech3Error(f"{path}: the graph is empty or has no final state; build it again")
    for name, values, size in (
        ("ilabels", fst.arcs_A["ilabel"], num_pdfs + 1),
        ("next states", fst.arcs_A["nextstate"], states),
        ("source states", fst.source_A, states),
    ):
        if values.min() < 0 or values.max() >= size:
            raise Speech3Error(
                f"{path}: {name} range from {values.min()} to {values.max()}, but there are {size}; build the graph"
                " again"
            )
    if not np.isfinite(fst.arcs_A["weight"]).all() or np.isnan(fst.final_S).any() or np.isneginf(fst.final_S).any():
        raise Speech3Error(f"{path}: a weight is not a finite number; build the graph again")
    order_A, begin_S1, silent_S = _arranged(fst.source_A, fst.arcs_A["ilabel"], states)
    arcs_A = np.ascontiguousarray(fst.arcs_A[order_A])
    arcs_A4 = arcs_A.view(np.int32).reshape(arcs, 4)
    level_S, ordered = _levels(arcs_A4, begin_S1, silent_S)
    if not ordered:
        raise Speech3Error(
            f"{path}: arcs that read no frame form a cycle, so the search would not end; build the graph from a"
            " grammar or language model in which every word has a pronunciation"
        )
    final_S = np.ascontiguousarray(fst.final_S, np.float32)
    return SearchGraph(
        num_pdfs,
        int(fst.start),
        arcs_A4,
        arcs_A4.view(np.float32),
        begin_S1,
        silent_S,
        final_S,
        level_S,
        *_by_target(arcs_A4, begin_S1, silent_S),
    )


def with_word_penalty(graph: SearchGraph, word_penalty: float) -> SearchGraph:
    """The graph with a cost added to each arc that writes a word; the same object if the cost is 0."""
    if not word_penalty:
        return graph
    arcs_A4 = graph.arcs_A4.copy()
    weight_A4 = arcs_A4.view(np.float32)
    weight_A4[:, 2] += np.where(arcs_A4[:, 1] > 0, np.float32(word_penalty), np.float32(0))
    return graph._replace(arcs_A4=arcs_A4, weight_A4=weight_A4)


@numba.njit(cache=True, nogil=True)
def _arranged(source, ilabel, states):  # type: ignore[no-untyped-def] # pragma: no cover
    """Order of the arcs by state, emitting ones first; where each state's arcs and its non-emitting arcs begin."""
    begin = np.zeros(states + 1, np.int32)
    silent = np.zeros(states, np.int32)
    for a in range(len(source)):
        begin[source[a] + 1] += 1
        silent[source[a]] += ilabel[a] != 0
    for s in range(states):
        begin[s + 1] += begin[s]
        silent[s] += begin[s]
    order = np.empty(len(source), np.int64)
    reading, other = begin[:-1].copy(), silent.copy()
    for a in range(len(source)):
        s = source[a]
        if ilabel[a] != 0:
            order[reading[s]] = a
            reading[s] += 1
        else:
            order[other[s]] = a
            other[s] += 1
    return order, begin, silent


@numba.njit(cache=True, nogil=True)
def _by_target(arcs, begin, silent):  # type: ignore[no-untyped-def] # pragma: no cover
    """Source state and number of the emitting arcs, ordered by target, and where those into each state begin."""
    states = len(silent)
    into_begin = np.zeros(states + 1, np.int32)
    for s in range(states):
        for a in range(begin[s], silent[s]):
            into_begin[arcs[a, 3] + 1] += 1
    for s in range(states):
        into_begin[s + 1] += into_begin[s]
    into, filled = np.empty((into_begin[states], 2), np.int32), into_begin[:-1].copy()
    for s in range(states):
        for a in range(begin[s], silent[s]):
            place = filled[arcs[a, 3]]
            filled[arcs[a, 3]] += 1
            into[place, 0], into[place, 1] = s, a
    return into, into_begin


@numba.njit(cache=True, nogil=True)
def _levels(arcs, begin, silent):  # type: ignore[no-untyped-def] # pragma: no cover
    """Levels of the states along non-emitting arcs by topological sorting (Kahn 1962); false if there is a cycle."""
    states = len(silent)
    level, waiting = np.zeros(states, np.int32), np.zeros(states, np.int32)
    for s in range(states):
        for a in range(silent[s], begin[s + 1]):
            waiting[arcs[a, 3]] += 1
    queue, filled = np.empty(states, np.int32), 0
    for s in range(states):
        if waiting[s] == 0:
            queue[filled] = s
            filled += 1
    done = 0
    while done < filled:
        s = queue[done]
        done += 1
        for a in range(silent[s], begin[s + 1]):
            target = arcs[a, 3]
            level[target] = max(level[target], level[s] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                queue[filled] = target
                filled += 1
    return level, filled == states
