"""Lattices as flat arrays: the paths that a search kept, with separate graph and acoustic costs.

Axes: S states, A arcs.
"""

from dataclasses import dataclass

import numpy as np

from speech3.io.compiled import jit


@dataclass(frozen=True, eq=False)
class Lattice:
    """An acyclic transducer from pdfs to words, with one path for each path through the graph (Kaldi's Lattice).

    State 0 is the start; every arc leads to a higher state, and arcs are sorted by source state.

    Attributes
    ----------
    source_A, target_A
        int32 source and target states.
    ilabel_A, olabel_A
        int32: pdf + 1, and the index of a word; 0 for epsilon.
    graph_A
        float32 cost in the graph that was searched, word penalty included.
    acoustic_A
        float32 cost, unscaled: minus the log likelihood.
    final_S
        float32 final costs; infinity for states that are not final.
    frame_S
        int32: number of frames read on the paths to a state.
    reached_final
        False if no path ended in a final state of the graph; then every state after the last frame is final.
    """

    source_A: np.ndarray
    target_A: np.ndarray
    ilabel_A: np.ndarray
    olabel_A: np.ndarray
    graph_A: np.ndarray
    acoustic_A: np.ndarray
    final_S: np.ndarray
    frame_S: np.ndarray
    reached_final: bool

    @property
    def frames(self) -> int:
        """Number of frames that every path reads."""
        return int(self.frame_S.max()) if len(self.frame_S) else 0

    def costs_A(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """Cost of each arc, float64; the word penalty is added to the one already in the graph costs."""
        penalty_A = word_penalty * (self.olabel_A > 0)
        return self.graph_A.astype(np.float64) + acoustic_scale * self.acoustic_A.astype(np.float64) + penalty_A


def rest_costs(lattice: Lattice, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
    """(S,) float64: the cost of the best path from each state to the end, final cost included."""
    costs_A = lattice.costs_A(acoustic_scale, word_penalty)
    return costs_to_end(lattice.source_A, lattice.target_A, costs_A, lattice.final_S.astype(np.float64))


def best_words(lattice: Lattice, acoustic_scale: float, word_penalty: float = 0.0) -> tuple[int, ...]:
    """The words of the best path at an acoustic scale, with a word penalty in addition to the graph's."""
    olabels = lattice.olabel_A[best_arcs(lattice, acoustic_scale, word_penalty)]
    return tuple(olabels[olabels > 0].tolist())


def best_arcs(lattice: Lattice, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
    """The arcs of the best path at an acoustic scale, in order; parameters as for `best_words`."""
    costs_A = lattice.costs_A(acoustic_scale, word_penalty)
    found: np.ndarray = _best_arcs(lattice.source_A, lattice.target_A, costs_A, lattice.final_S.astype(np.float64))
    return found


@jit
def costs_to_end(source, target, costs, final):  # type: ignore[no-untyped-def] # pragma: no cover
    """(S,) costs of the best path from each state to the end, final cost included; arcs are sorted by source state."""
    rest = final.copy()
    for a in range(len(source) - 1, -1, -1):
        rest[source[a]] = min(rest[source[a]], costs[a] + rest[target[a]])
    return rest


@jit
def _best_arcs(source, target, costs, final):  # type: ignore[no-untyped-def] # pragma: no cover
    """The arcs of the best path, in order."""
    rest, by = final.copy(), np.full(len(final), -1, np.int64)
    for a in range(len(source) - 1, -1, -1):
        cost = costs[a] + rest[target[a]]
        if cost < rest[source[a]]:
            rest[source[a]] = cost
            by[source[a]] = a
    path = [np.int64(0)]
    path.clear()
    at = 0
    while by[at] >= 0:
        path.append(by[at])
        at = target[by[at]]
    return np.array(path)
