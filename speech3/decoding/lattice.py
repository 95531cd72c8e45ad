"""Lattices as flat arrays: what a search found worth keeping, with the costs of graph and acoustics apart.

Axes: S states, A arcs.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Lattice:
    """An acyclic transducer from pdfs to words, one path for each way through the graph (Kaldi's Lattice).

    State 0 is the start; every arc leads to a higher state, and arcs are sorted by the state that they leave.

    Attributes
    ----------
    source_A, target_A
        int32 states that each arc leaves and leads to.
    ilabel_A, olabel_A
        int32: pdf + 1, and the index of a word; 0 where an arc reads or writes nothing.
    graph_A
        float32 cost in the graph that was searched, its word penalty included.
    acoustic_A
        float32 cost, unscaled: minus the log likelihood.
    final_S
        float32 costs of ending; infinity where a path cannot.
    frame_S
        int32: how many frames are read on the way to a state.
    reached_final
        False: no path ended in a final state of the graph, and any state after the last frame ends one.
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
        """How many frames every path reads."""
        return int(self.frame_S.max()) if len(self.frame_S) else 0
