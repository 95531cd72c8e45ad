"""The states of phones, in place of the arcs of C o L o G that read a phone each: H o (C o L o G), with its self-loops.

While phones are written out there are no self-loops, and input labels are unit + 1: a unit is what is read on entering
a state, and what may be read again and again there. With three states a phone that is one pdf, with a first and a loop
pdf it is the two, and a phone is one unit.

Axes: S states, A arcs, P pdfs, U units, W context windows, L ways to read a phone (labels), N units of a phone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech3.decoding.fst import ARC, Fst
from speech3.hmm.model import Hmm
from speech3.hmm.topology import FIRST_AND_LOOP


@dataclass(frozen=True, eq=False)
class Units:
    """What the arcs of a graph read before it has self-loops.

    Attributes
    ----------
    enter_U, loop_U
        int: the pdf of entering a state, and that of staying in it.
    leave_U, stay_U
        float64 costs of leaving, once for each entering, and of staying.
    """

    enter_U: np.ndarray
    loop_U: np.ndarray
    leave_U: np.ndarray
    stay_U: np.ndarray


@dataclass(frozen=True, eq=False)
class Labels:
    """What the arcs of C o L o G read.

    Attributes
    ----------
    of_W
        int32: label of each context window: 0 for none, 1 to L for phones, above that for disambiguation symbols.
    pdfs_LN
        int32: the pdfs of the phone's states under labels 1 to L, sorted.
    """

    of_W: np.ndarray
    pdfs_LN: np.ndarray


def labels_of(hmm: Hmm, windows: Sequence[Sequence[int]]) -> Labels:
    """Labels of context windows as kaldifst's `compose_context` has them; those with the same pdfs share one."""
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
    """The units, and int (L, N) those of each label; `scale` is that of self-loops."""
    if hmm.topology == FIRST_AND_LOOP:
        first_L, loop_L = labels.pdfs_LN.reshape(-1, 2).T
        free_L = np.zeros(len(first_L))
        return Units(first_L, loop_L, free_L, free_L), np.arange(len(first_L))[:, None]
    pdf_U = np.arange(hmm.num_pdfs, dtype=np.int32)
    leave_U, stay_U = -scale * np.log1p(-hmm.self_loop), -scale * np.log(hmm.self_loop)
    return Units(pdf_U, pdf_U, leave_U, stay_U), labels.pdfs_LN


def expanded(clg: Fst, read_LN: np.ndarray, units: Units) -> Fst:
    """H o (C o L o G) without self-loops: each arc that reads a phone becomes its units, one after the other.

    Arcs of one state whose phones begin with the same units share these, at the lowest cost of them, so that what was
    deterministic stays so; what they write stands where it is certain. Disambiguation symbols become epsilon.
    """
    order_A = np.lexsort((clg.arcs_A["ilabel"], clg.source_A))
    source_A, arcs_A = clg.source_A[order_A].astype(np.int64), clg.arcs_A[order_A]
    reads_A = (arcs_A["ilabel"] > 0) & (arcs_A["ilabel"] <= len(read_LN))
    silent = arcs_A[~reads_A].copy()
    silent["ilabel"] = 0
    sources, arcs = [source_A[~reads_A]], [silent]
    source_A, arcs_A = source_A[reads_A], arcs_A[reads_A]
    read_AN = read_LN[arcs_A["ilabel"] - 1]
    cost_A = arcs_A["weight"].astype(np.float64) + units.leave_U[read_AN].sum(axis=1)
    states, word_A = len(clg.final_S), arcs_A["olabel"].copy()
    paid_A = np.zeros(len(arcs_A))
    for place in range(read_AN.shape[1]):
        last = place + 1 == read_AN.shape[1]
        fresh_A = np.ones(len(arcs_A), bool)
        if not last:
            fresh_A[1:] = (source_A[1:] != source_A[:-1]) | (read_AN[1:, place] != read_AN[:-1, place])
        first_G = np.flatnonzero(fresh_A)  # arcs that share what is read here are neighbours
        group_A = np.cumsum(fresh_A) - 1
        step = np.zeros(len(first_G), ARC)
        step["ilabel"] = read_AN[first_G, place] + 1
        if len(first_G):
            least_G = np.minimum.reduceat(cost_A, first_G)
            low_G, high_G = np.minimum.reduceat(word_A, first_G), np.maximum.reduceat(word_A, first_G)
            step["weight"] = least_G - paid_A[first_G]
            step["olabel"] = np.where(low_G == high_G, low_G, 0)
            paid_A = least_G[group_A]
            word_A = np.where((low_G == high_G)[group_A], 0, word_A)
        step["nextstate"] = arcs_A["nextstate"] if last else states + np.arange(len(first_G))
        sources.append(source_A[first_G])
        arcs.append(step)
        source_A = states + group_A
        states += 0 if last else len(first_G)
    more = states - len(clg.final_S)
    final_S = np.concatenate([clg.final_S, np.full(more, np.inf, np.float32)])
    return Fst(clg.start, final_S, np.concatenate(sources).astype(np.int32), np.concatenate(arcs))


def add_self_loops(fst: Fst, units: Units) -> Fst:
    """Let every state that was entered by reading a unit stay there, and turn units into pdfs.

    A state entered in several ways (by units of different loops, or by epsilon) cannot have a loop of its own: each
    loop gets a state before it, and an epsilon arc onwards (Kaldi's MakePrecedingInputSymbolsSame).
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
