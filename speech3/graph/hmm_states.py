"""H o (C o L o G) with self-loops, made by replacing each phone arc of C o L o G with the phone's states.

Phones are expanded without self-loops, with input labels unit + 1. A unit is the pdf read on entering a state and the
pdf of its self-loop. With three states per phone, a unit is one pdf and a phone is three units; with a first and a loop
pdf, a unit is these two and a phone is one unit.

Axes: S states, A arcs, P pdfs, U units, W context windows, L ways to read a phone (labels), N units of a phone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP
from speech3.io.fst import ARC, Fst

_GRAIN = 8192  # costs are compared after rounding to multiples of 1 / _GRAIN
_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_ODD = np.uint64(0xFF51AFD7ED558CCD)  # MurmurHash3's finaliser


@dataclass(frozen=True, eq=False)
class Units:
    """The units that input labels stand for before self-loops are added.

    Attributes
    ----------
    enter_U, loop_U
        int pdfs of entering a state and of staying in it.
    leave_U, stay_U
        float64 costs of leaving, once per entry, and of staying.
    """

    enter_U: np.ndarray
    loop_U: np.ndarray
    leave_U: np.ndarray
    stay_U: np.ndarray


@dataclass(frozen=True, eq=False)
class Labels:
    """The input labels of C o L o G.

    Attributes
    ----------
    of_W
        int32: label of each context window: 0 for none, 1 to L for phones, above L for disambiguation symbols.
    pdfs_LN
        int32: the pdfs of the phone's states for labels 1 to L, in sorted order.
    """

    of_W: np.ndarray
    pdfs_LN: np.ndarray


def labels_of(hmm: Hmm, windows: Sequence[Sequence[int]]) -> Labels:
    """Labels for the context windows of kaldifst's `compose_context`; windows with the same pdfs share a label."""
    passing, phones_W3 = [], np.zeros((len(windows), 3), np.int64)
    for number, window in enumerate(windows):
        if len(window) == 1 and window[0] <= 0:  # [0]: context-fst.cc's #-1; [-d]: disambiguation symbol d
            passing.append(number)
        elif window:
            phones_W3[number] = {1: (0, *window, 0), 2: (*window, 0), 3: tuple(window)}[len(window)]
    spoken_W = phones_W3[:, 1] > 0
    pdfs_LN, label_W = np.unique(hmm.tree.pdfs_of(phones_W3[spoken_W]), axis=0, return_inverse=True)
    of_W = np.zeros(len(windows), np.int32)
    of_W[spoken_W] = label_W.reshape(-1) + 1
    of_W[passing] = len(pdfs_LN) + 1 + np.arange(len(passing))
    return Labels(of_W, pdfs_LN.astype(np.int32))


def units_of(hmm: Hmm, labels: Labels, scale: float) -> tuple[Units, np.ndarray]:
    """The units, and the units of each label, int (L, N); `scale` is the self-loop scale."""
    if hmm.topology == FIRST_AND_LOOP:
        first_L, loop_L = labels.pdfs_LN.reshape(-1, 2).T
        free_L = np.zeros(len(first_L))
        return Units(first_L, loop_L, free_L, free_L), np.arange(len(first_L))[:, None]
    pdf_U = np.arange(hmm.num_pdfs, dtype=np.int32)
    leave_U, stay_U = -scale * np.log1p(-hmm.self_loop), -scale * np.log(hmm.self_loop)
    return Units(pdf_U, pdf_U, leave_U, stay_U), labels.pdfs_LN


def expanded(clg: Fst, read_LN: np.ndarray, units: Units) -> Fst:
    """H o (C o L o G) without self-loops: each arc that reads a phone becomes a chain of the phone's units.

    Arcs of a state whose phones begin with the same units share the arcs of these units, at the lowest of their costs,
    so that a deterministic transducer stays deterministic; an output label is placed on the first arc where it is
    unambiguous. States with identical continuations are merged. Disambiguation symbols become epsilon.
    """
    order_A = np.lexsort((clg.arcs_A["ilabel"], clg.source_A))
    source_A, arcs_A = clg.source_A[order_A], clg.arcs_A[order_A]
    reads_A = (arcs_A["ilabel"] > 0) & (arcs_A["ilabel"] <= len(read_LN))
    silent = arcs_A[~reads_A].copy()
    silent["ilabel"] = 0
    levels = _levels(source_A[reads_A], arcs_A[reads_A], read_LN, units)
    sources, arcs, states = [source_A[~reads_A]], [silent], len(clg.final_S)
    for (parent_A, step), (_, before) in zip(levels[:0:-1], levels[-2::-1], strict=True):
        number_G, kept_A = _merged(parent_A, step)
        before["nextstate"] = states + number_G[before["nextstate"]]
        sources.append(states + number_G[parent_A[kept_A]])
        arcs.append(step[kept_A])
        states += int(number_G.max(initial=-1)) + 1
    sources.append(levels[0][0])
    arcs.append(levels[0][1])
    final_S = np.concatenate([clg.final_S, np.full(states - len(clg.final_S), np.inf, np.float32)])
    return Fst(clg.start, final_S, np.concatenate(sources).astype(np.int32), np.concatenate(arcs))


def _levels(
    source_A: np.ndarray, arcs_A: np.ndarray, read_LN: np.ndarray, units: Units
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each unit position: what precedes each arc, and the arcs that read the unit in that position.

    Input arcs are sorted by source state, then by label, so arcs with a common prefix are neighbours. An arc of the
    first level is preceded by a state, one of a later level by an arc of the previous level. Arcs of the last level
    lead to states; the others lead to groups of arcs of the next level.
    """
    read_AN = read_LN[arcs_A["ilabel"] - 1]
    cost_A = arcs_A["weight"].astype(np.float64) + units.leave_U[read_AN].sum(axis=1)
    word_A, paid_A, parent_A = arcs_A["olabel"], np.zeros(len(arcs_A)), source_A.astype(np.int64)
    levels = []
    for place in range(read_AN.shape[1]):
        fresh_A = np.ones(len(arcs_A), bool)
        if place + 1 < read_AN.shape[1]:
            fresh_A[1:] = (parent_A[1:] != parent_A[:-1]) | (read_AN[1:, place] != read_AN[:-1, place])
        first_G, group_A = np.flatnonzero(fresh_A), np.cumsum(fresh_A) - 1
        step = np.zeros(len(first_G), ARC)
        if len(first_G):
            least_G = np.minimum.reduceat(cost_A, first_G)
            low_G, high_G = np.minimum.reduceat(word_A, first_G), np.maximum.reduceat(word_A, first_G)
            step["ilabel"] = read_AN[first_G, place] + 1
            step["olabel"] = np.where(low_G == high_G, low_G, 0)
            step["weight"] = least_G - paid_A[first_G]
            step["nextstate"] = arcs_A["nextstate"] if place + 1 == read_AN.shape[1] else np.arange(len(first_G))
            word_A = np.where((low_G == high_G)[group_A], 0, word_A)
            paid_A = least_G[group_A]
        levels.append((parent_A[first_G], step))
        parent_A = group_A
    return levels


def _merged(parent_A: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge states with the same outgoing arcs: the new number (G,) of each state, and which arcs to keep.

    States are compared by two independent 64-bit hash sums over their arcs.
    """
    if not len(step):
        return np.zeros(0, np.int64), np.zeros(0, bool)
    columns = [step[name].astype(np.uint64) for name in ("ilabel", "olabel", "nextstate")]
    columns.append(np.round(step["weight"].astype(np.float64) * _GRAIN).astype(np.int64).astype(np.uint64))
    first_G = np.flatnonzero(np.diff(parent_A, prepend=-1))
    sums_G2 = np.empty((len(first_G), 2), np.uint64)
    for side, seed in enumerate(_SEEDS):
        mixed_A = np.full(len(step), seed, np.uint64)
        for column in columns:
            mixed_A = (mixed_A ^ column) * _ODD
            mixed_A ^= mixed_A >> np.uint64(29)
        sums_G2[:, side] = np.add.reduceat(mixed_A, first_G)
    pairs_G = sums_G2.view([("one", np.uint64), ("other", np.uint64)])[:, 0]
    _, representative, number_G = np.unique(pairs_G, return_index=True, return_inverse=True)
    stays_G = np.zeros(len(first_G), bool)
    stays_G[representative] = True
    return number_G.reshape(-1), stays_G[parent_A]


def add_self_loops(fst: Fst, units: Units) -> Fst:
    """Add a self-loop to every state entered by reading a unit, and turn units into pdfs.

    A state entered in several ways (by units with different loops, or by epsilon) cannot have a self-loop: each loop is
    put on a new state before it, with an epsilon arc to it (Kaldi's MakePrecedingInputSymbolsSame).
    """
    states, arcs_A = len(fst.final_S), fst.arcs_A.copy()
    loop_L, enter_L = (np.concatenate([[0], pdf_U + 1]) for pdf_U in (units.loop_U, units.enter_U))
    span = int(loop_L.max()) + 1
    stay_P = np.zeros(span)
    stay_P[loop_L[1:]] = units.stay_U
    key_A = arcs_A["nextstate"].astype(np.int64) * span + loop_L[arcs_A["ilabel"]]
    key_K, which_A = np.unique(key_A, return_inverse=True)
    state_K, label_K = key_K // span, key_K % span
    ways_S = np.bincount(state_K, minlength=states)
    if fst.start >= 0:
        ways_S[fst.start] += 1
    crowded_K = (ways_S[state_K] > 1) & (label_K > 0)
    place_K = state_K.copy()
    place_K[crowded_K] = states + np.arange(int(crowded_K.sum()))
    arcs_A["nextstate"], arcs_A["ilabel"] = place_K[which_A], enter_L[arcs_A["ilabel"]]
    emitting_K = label_K > 0
    loops = _arcs(label_K[emitting_K], stay_P[label_K[emitting_K]], place_K[emitting_K])
    onward = _arcs(0, 0.0, state_K[crowded_K])
    return Fst(
        fst.start,
        np.concatenate([fst.final_S, np.full(int(crowded_K.sum()), np.inf, np.float32)]),
        np.concatenate([fst.source_A, place_K[emitting_K], place_K[crowded_K]]).astype(np.int32),
        np.concatenate([arcs_A, loops, onward]),
    )


def _arcs(ilabel: Any, weight: Any, nextstate: np.ndarray) -> np.ndarray:
    arcs_A = np.zeros(len(nextstate), ARC)
    arcs_A["ilabel"], arcs_A["weight"], arcs_A["nextstate"] = ilabel, weight, nextstate
    return arcs_A
