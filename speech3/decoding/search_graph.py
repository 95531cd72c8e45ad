"""A decoding graph as the search walks it: the arcs of each state in a row, those that read a frame before the others.

Axes: S states, S1 one more, A arcs; the 4 columns of an arc are those of `fst.ARC`.
"""

from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from speech3.decoding.fst import Fst
from speech3.errors import Speech3Error


class SearchGraph(NamedTuple):
    """Arrays that compiled code reads without looking at their bounds: made by `search_graph` alone.

    Attributes
    ----------
    num_pdfs
        Columns that scores must have.
    start
        Number of the start state.
    arcs_A4, weight_A4
        int32 and float32 views of the same memory: input label (pdf + 1), output label, weight (in the second), next
        state.
    begin_S1, silent_S
        int32: the arcs of state s are those from begin_S1[s] to begin_S1[s + 1]; from silent_S[s] on they read nothing.
    final_S
        float32 final costs; infinity where a state is not final.
    level_S
        int32: the most arcs that read nothing in a row on a way to this state.
    """

    num_pdfs: int
    start: int
    arcs_A4: np.ndarray
    weight_A4: np.ndarray
    begin_S1: np.ndarray
    silent_S: np.ndarray
    final_S: np.ndarray
    level_S: np.ndarray


def search_graph(fst: Fst, num_pdfs: int, path: Path | str) -> SearchGraph:
    """Arrange a graph for the search; `path` is for messages.

    Raises
    ------
    Speech3Error
        The graph is empty, a label or state lies outside its range, a weight is no finite number, or arcs that read
        nothing go round in a circle.
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
                f"{path}: {name} reach from {values.min()} to {values.max()}, but there are {size}; build the graph"
                " again"
            )
    if not np.isfinite(fst.arcs_A["weight"]).all() or np.isnan(fst.final_S).any() or np.isneginf(fst.final_S).any():
        raise Speech3Error(f"{path}: a weight is no finite number; build the graph again")
    order_A, begin_S1, silent_S = _arranged(fst.source_A, fst.arcs_A["ilabel"], states)
    arcs_A = np.ascontiguousarray(fst.arcs_A[order_A])
    arcs_A4 = arcs_A.view(np.int32).reshape(arcs, 4)
    level_S, ordered = _levels(arcs_A4, begin_S1, silent_S)
    if not ordered:
        raise Speech3Error(
            f"{path}: arcs that read no frame go round in a circle, so the search would not end; build the graph of a"
            " grammar or language model in which every word has a pronunciation"
        )
    final_S = np.ascontiguousarray(fst.final_S, np.float32)
    return SearchGraph(
        num_pdfs, int(fst.start), arcs_A4, arcs_A4.view(np.float32), begin_S1, silent_S, final_S, level_S
    )


def with_word_penalty(graph: SearchGraph, word_penalty: float) -> SearchGraph:
    """The same graph with a cost added to each arc that writes a word; the graph itself if that is nothing."""
    if not word_penalty:
        return graph
    arcs_A4 = graph.arcs_A4.copy()
    weight_A4 = arcs_A4.view(np.float32)
    weight_A4[:, 2] += np.where(arcs_A4[:, 1] > 0, np.float32(word_penalty), np.float32(0))
    return graph._replace(arcs_A4=arcs_A4, weight_A4=weight_A4)


@numba.njit(cache=True, nogil=True)
def _arranged(source, ilabel, states):  # type: ignore[no-untyped-def] # pragma: no cover
    """Order of the arcs by state, then those that read before the others; where each state's and the latter begin."""
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
def _levels(arcs, begin, silent):  # type: ignore[no-untyped-def] # pragma: no cover
    """Levels by removing states that no silent arc leads to (Kahn 1962), and whether that removed them all."""
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
