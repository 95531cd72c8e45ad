"""Parse the states and arcs of a binary lattice (OpenFst's vector-fst.h, Kaldi's lattice-weight.h).

A state is its final weight, the number of its arcs (8 bytes), and the arcs: input and output label, weight, next state.
A weight is two float32 costs; in a compact lattice, the number of its labels and the labels follow.

Axes: N bytes, S states, S1 one more, A arcs, A1 one more, K labels of all arcs, L labels of all final weights.
"""

from typing import NamedTuple

import numpy as np

from speech3.io.compiled import jit


class LatticeBody(NamedTuple):
    """The states and arcs returned by `read_body`.

    Attributes
    ----------
    arcs_A4
        int64: source, target, input label, output label.
    costs_A2, final_costs_S2
        float32: graph and acoustic cost.
    labels_K, begin_A1, final_labels_L, final_begin_S1
        int32 labels, and int64 offsets where the labels of each arc and of each final weight begin.
    """

    arcs_A4: np.ndarray
    costs_A2: np.ndarray
    labels_K: np.ndarray
    begin_A1: np.ndarray
    final_costs_S2: np.ndarray
    final_labels_L: np.ndarray
    final_begin_S1: np.ndarray


def read_body(data_N: np.ndarray, at: int, states: int, compact: bool) -> tuple[LatticeBody, int]:
    """Parse the states from byte `at` on; return them and the offset of the byte after them.

    Raises
    ------
    ValueError
        The bytes end before the states do, or contain an impossible number.
    """
    if not 0 <= states <= len(data_N) // 16:
        raise ValueError(f"{states} states")
    arcs, labels, final_labels, end = _sizes(data_N, at, states, compact)
    if end < 0:
        raise ValueError("the file ends within it")
    body = LatticeBody(
        np.empty((arcs, 4), np.int64), np.empty((arcs, 2), np.float32), np.empty(labels, np.int32),
        np.zeros(arcs + 1, np.int64), np.empty((states, 2), np.float32), np.empty(final_labels, np.int32),
        np.zeros(states + 1, np.int64),
    )  # fmt: skip
    views = body.costs_A2.view(np.int32), body.final_costs_S2.view(np.int32)
    _fill(data_N, at, states, compact, body, *views)
    return body, int(end)


@jit
def _int32(data, at):  # type: ignore[no-untyped-def] # pragma: no cover
    number = np.uint32(0)
    for place in range(4):
        number |= np.uint32(data[at + place]) << np.uint32(8 * place)
    return np.int32(number)


@jit
def _int64(data, at):  # type: ignore[no-untyped-def] # pragma: no cover
    number = np.uint64(0)
    for place in range(8):
        number |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return np.int64(number)


@jit
def _weight_end(data, at, compact):  # type: ignore[no-untyped-def] # pragma: no cover
    """The end of the weight that begins at byte `at`, and its number of labels; -1 and 0 if the bytes end before it."""
    size = 12 if compact else 8
    if at + size > len(data):
        return -1, 0
    labels = _int32(data, at + 8) if compact else 0
    if labels < 0 or at + size + 4 * labels > len(data):
        return -1, 0
    return at + size + 4 * labels, labels


@jit
def _sizes(data, at, states, compact):  # type: ignore[no-untyped-def] # pragma: no cover
    arcs, labels, final_labels = 0, 0, 0
    for _ in range(states):
        at, more = _weight_end(data, at, compact)
        if at < 0 or at + 8 > len(data):
            return 0, 0, 0, -1
        final_labels += more
        leaving = _int64(data, at)
        at += 8
        if leaving < 0 or leaving > (len(data) - at) // 20:
            return 0, 0, 0, -1
        for _ in range(leaving):
            if at + 8 > len(data):
                return 0, 0, 0, -1
            at, more = _weight_end(data, at + 8, compact)
            if at < 0 or at + 4 > len(data):
                return 0, 0, 0, -1
            labels += more
            at += 4
        arcs += leaving
    return arcs, labels, final_labels, at


@jit
def _fill(data, at, states, compact, body, costs, final_costs):  # type: ignore[no-untyped-def] # pragma: no cover
    """Fill the arrays, after `_sizes` has checked that all bytes exist; costs are copied as raw bits."""
    size = 12 if compact else 8
    a = 0
    for s in range(states):
        final_costs[s, 0], final_costs[s, 1] = _int32(data, at), _int32(data, at + 4)
        labels = _int32(data, at + 8) if compact else 0
        body.final_begin_S1[s + 1] = body.final_begin_S1[s] + labels
        for place in range(labels):
            body.final_labels_L[body.final_begin_S1[s] + place] = _int32(data, at + 12 + 4 * place)
        at += size + 4 * labels
        leaving = _int64(data, at)
        at += 8
        for _ in range(leaving):
            body.arcs_A4[a, 0] = s
            body.arcs_A4[a, 2], body.arcs_A4[a, 3] = _int32(data, at), _int32(data, at + 4)
            at += 8
            costs[a, 0], costs[a, 1] = _int32(data, at), _int32(data, at + 4)
            labels = _int32(data, at + 8) if compact else 0
            body.begin_A1[a + 1] = body.begin_A1[a] + labels
            for place in range(labels):
                body.labels_K[body.begin_A1[a] + place] = _int32(data, at + 12 + 4 * place)
            at += size + 4 * labels
            body.arcs_A4[a, 1] = _int32(data, at)
            at += 4
            a += 1


@jit
def frames_read(source, target, frames, start, states):  # type: ignore[no-untyped-def] # pragma: no cover
    """(S,) int64 number of frames read up to each state, -1 if unreachable; and a state with two such numbers, or -1.

    Arcs are ordered such that all arcs into a state come before all arcs out of it.
    """
    frame = np.full(states, -1, np.int64)
    frame[start] = 0
    for a in range(len(source)):
        if frame[source[a]] >= 0:
            there = frame[source[a]] + frames[a]
            if frame[target[a]] >= 0 and frame[target[a]] != there:
                return frame, target[a]
            frame[target[a]] = there
    return frame, np.int64(-1)
