"""Graphs as arrays, for the forward-backward computation: states with loops, and arcs that emit a pdf.

An arc into a state emits the state's first pdf, its loop emits the loop pdf. The structure is that of a language model
(`speech3.sequence.phone_lm`), over phones for LF-MMI and over senones for MMI and sMBR.

Axes: J states, A arcs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from speech3.sequence.numerators import UNSEEN
from speech3.sequence.phone_lm import START, PhoneLm


@dataclass(frozen=True, eq=False)
class Graph:
    """The arrays of a graph.

    Attributes
    ----------
    num_pdfs
        Number of outputs that a network must have.
    first_J, loop_J
        int32: the pdf of the arcs into each state, and that of its loop.
    loops_J
        float32: weight of each state's loop, 0 for the start, which has none.
    in_ptr_J1, in_src_A, in_weight_A
        Arcs sorted by the state that they enter: int32, int32, float32. Those of state j are ``ptr[j]`` up to
        ``ptr[j + 1]``.
    out_ptr_J1, out_dst_A, out_weight_A
        The same arcs sorted by the state that they leave.
    initial_J
        float32 initial weights, which sum to one.
    """

    num_pdfs: int
    first_J: np.ndarray
    loop_J: np.ndarray
    loops_J: np.ndarray
    in_ptr_J1: np.ndarray
    in_src_A: np.ndarray
    in_weight_A: np.ndarray
    out_ptr_J1: np.ndarray
    out_dst_A: np.ndarray
    out_weight_A: np.ndarray
    initial_J: np.ndarray

    @property
    def num_states(self) -> int:
        """Number of states, J."""
        return len(self.first_J)


def graph_arrays(
    lm: PhoneLm, num_pdfs: int, first_J: np.ndarray, loop_J: np.ndarray, loops_J: np.ndarray, weight_A: np.ndarray,
    initial_J: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a `Graph` with the states and arcs of a language model; `weight_A` is in the order of its arcs."""
    by_target = np.argsort(lm.next_A, kind="stable")
    return {
        "num_pdfs": num_pdfs, "first_J": first_J.astype(np.int32), "loop_J": loop_J.astype(np.int32),
        "loops_J": loops_J.astype(np.float32),
        "in_ptr_J1": np.searchsorted(lm.next_A[by_target], np.arange(lm.num_states + 1)).astype(np.int32),
        "in_src_A": sources(lm)[by_target], "in_weight_A": weight_A[by_target].astype(np.float32),
        "out_ptr_J1": lm.ptr_J1, "out_dst_A": lm.next_A, "out_weight_A": weight_A.astype(np.float32),
        "initial_J": initial_J.astype(np.float32),
    }  # fmt: skip


def sources(lm: PhoneLm) -> np.ndarray:
    """The state that each arc leaves, (A,) int32."""
    return np.repeat(np.arange(lm.num_states, dtype=np.int32), np.diff(lm.ptr_J1))


def average_occupancy(lm: PhoneLm, stay_J: np.ndarray, frames: int) -> np.ndarray:
    """Average occupancy (J,) of the states over the first `frames`; the end of an utterance leads back to the start.

    Parameters
    ----------
    stay_J
        Probability that a state's loop is taken.

    Returns
    -------
    ndarray
        No state has zero, so that a chunk may begin in any, also in one that no utterance reaches so early.
    """
    source_A = sources(lm)
    ends_J = 1.0 - np.bincount(source_A, lm.prob_A, lm.num_states)
    occupancy_J, total_J = np.zeros(lm.num_states), np.zeros(lm.num_states)
    occupancy_J[START] = 1.0
    for _ in range(frames):
        total_J += occupancy_J
        leaving_J = occupancy_J * (1 - stay_J)
        moved_J = np.bincount(lm.next_A, leaving_J[source_A] * lm.prob_A, lm.num_states)
        moved_J[START] += leaving_J @ ends_J
        occupancy_J = occupancy_J - leaving_J + moved_J
    average_J = np.maximum(total_J / total_J.sum(), UNSEEN)
    return average_J / average_J.sum()
