"""Word lattices, which contain each word sequence once (Kaldi's CompactLattice).

Axes: S states, A arcs, A1 one more, K pdfs of all arcs.
"""

from dataclasses import dataclass

import numpy as np

from speech3.io.compiled import jit
from speech3.lattices.determinize import LatticeArrays, determinized
from speech3.search.lattice import Lattice, rest_costs

_MOST = 250_000  # elements (states of the old lattice in each state of the new one): seconds of work, 25 MB
_NARROWEST = 1e-3  # beam; far above the rounding errors of a path's cost, so the best path lies within it


@dataclass(frozen=True, eq=False)
class WordLattice:
    """An acyclic acceptor of words in which no state has two arcs with the same word.

    State 0 is the start; every arc leads to a higher state, and arcs are sorted by the state that they leave.

    Attributes
    ----------
    source_A, target_A, word_A
        int32.
    graph_A, acoustic_A
        float64 costs; acoustic costs are unscaled.
    final_graph_S, final_acoustic_S
        float64 costs of ending in each state; infinite if no path ends there.
    pdfs_K, begin_A1
        int32: arc a reads ``pdfs_K[begin_A1[a] : begin_A1[a + 1]]``, a pdf for each frame. A word's arc need not read
        all of its frames, and may read some of its neighbours'.
    final_pdfs_S
        int32 arrays: the pdfs of the frames read when a path ends in each state.
    frame_S
        int32: number of frames read on a path to each state.
    frames
        Number of frames that every path reads.
    """

    source_A: np.ndarray
    target_A: np.ndarray
    word_A: np.ndarray
    graph_A: np.ndarray
    acoustic_A: np.ndarray
    final_graph_S: np.ndarray
    final_acoustic_S: np.ndarray
    pdfs_K: np.ndarray
    begin_A1: np.ndarray
    final_pdfs_S: tuple[np.ndarray, ...]
    frame_S: np.ndarray
    frames: int

    def costs_A(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """Cost of each arc, float64; the penalty is added to the one already in the graph costs."""
        return self.graph_A + acoustic_scale * self.acoustic_A + word_penalty * (self.word_A > 0)

    def final_costs_S(self, acoustic_scale: float) -> np.ndarray:
        """Cost of ending in each state, float64."""
        ends = np.isfinite(self.final_graph_S)
        return np.where(ends, self.final_graph_S + acoustic_scale * np.where(ends, self.final_acoustic_S, 0.0), np.inf)

    @property
    def density(self) -> float:
        """Average number of arcs per frame (Kaldi's lattice-depth)."""
        return (len(self.pdfs_K) + sum(map(len, self.final_pdfs_S))) / max(self.frames, 1)


def words_of(lattice: Lattice, acoustic_scale: float, beam: float = np.inf) -> WordLattice:
    """Determinise a lattice on words: of each word sequence, only the best path at this scale is kept.

    Parameters
    ----------
    beam
        Word sequences whose cost exceeds that of the best one by more than this are pruned; the beam is narrowed if
        the lattice becomes too large.
    """
    states = len(lattice.final_S)
    arrays = LatticeArrays(
        np.searchsorted(lattice.source_A, np.arange(states + 1)).astype(np.int64), lattice.target_A.astype(np.int64),
        lattice.ilabel_A.astype(np.int32), lattice.olabel_A.astype(np.int64), lattice.graph_A.astype(np.float64),
        lattice.acoustic_A.astype(np.float64), lattice.final_S.astype(np.float64), rest_costs(lattice, acoustic_scale),
    )  # fmt: skip
    beam, most = float(beam) + 1e-6, _MOST
    while True:
        arcs, costs, finals, final_costs, pdfs, reached = determinized(arrays, float(acoustic_scale), beam, most)
        if reached >= beam:
            break
        # The next attempt may have twice as many elements: in a long utterance even the best path may need them.
        beam, most = min(beam, max(0.999 * reached, _NARROWEST)), 2 * most
    arcs_A5 = np.array(arcs, np.int64).reshape(-1, 5)
    order_S = topological(arcs_A5[:, 0], arcs_A5[:, 1], len(finals))
    number_S = np.empty(len(finals), np.int64)
    number_S[order_S] = np.arange(len(finals))
    source_A, target_A = number_S[arcs_A5[:, 0]], number_S[arcs_A5[:, 1]]
    order_A = np.lexsort((arcs_A5[:, 2], source_A))
    source_A, target_A, word_A, at_A, length_A = np.array([source_A, target_A, *arcs_A5[:, 2:].T])[:, order_A]
    pdfs_K = pdfs - np.int32(1)
    begin_A1 = np.concatenate([[0], np.cumsum(length_A)])
    picked = np.repeat(at_A - begin_A1[:-1], length_A) + np.arange(begin_A1[-1])
    costs_A2 = np.array(costs, np.float64).reshape(-1, 2)[order_A]
    finals_S2, final_costs_S2 = np.array(finals)[order_S], np.array(final_costs)[order_S]
    frame_S = np.zeros(len(finals), np.int64)
    for source, target, length in zip(source_A.tolist(), target_A.tolist(), length_A.tolist(), strict=True):
        frame_S[target] = frame_S[source] + length
    return WordLattice(
        source_A.astype(np.int32), target_A.astype(np.int32), word_A.astype(np.int32), costs_A2[:, 0], costs_A2[:, 1],
        final_costs_S2[:, 0], final_costs_S2[:, 1], pdfs_K[picked], begin_A1.astype(np.int32),
        tuple(pdfs_K[begin : begin + length] for begin, length in finals_S2.tolist()), frame_S.astype(np.int32),
        lattice.frames,
    )  # fmt: skip


@jit
def topological(source, target, states):  # type: ignore[no-untyped-def] # pragma: no cover
    """States in topological order (Kahn 1962); not all of them if there is a cycle."""
    waiting = np.zeros(states, np.int64)
    begin = np.zeros(states + 1, np.int64)
    for a in range(len(source)):
        waiting[target[a]] += 1
        begin[source[a] + 1] += 1
    begin = np.cumsum(begin)
    leaving, filled = np.empty(len(source), np.int64), begin[:-1].copy()
    for a in range(len(source)):
        leaving[filled[source[a]]] = target[a]
        filled[source[a]] += 1
    order, end = np.zeros(states, np.int64), 0
    for s in range(states):
        if waiting[s] == 0:
            order[end] = s
            end += 1
    done = 0
    while done < end:
        s = order[done]
        done += 1
        for place in range(begin[s], begin[s + 1]):
            t = leaving[place]
            waiting[t] -= 1
            if waiting[t] == 0:
                order[end] = t
                end += 1
    return order[:end]
