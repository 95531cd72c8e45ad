"""The HMM of a phone without its pdfs: its states, which of them have self-loops, and from which the phone may end.

Axes: T frames.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Topology:
    """States in a row: a phone is entered at the first state, and each state leads to the next.

    Attributes
    ----------
    name
        Its name in `hmm.json`.
    loops
        For each state: does it have a self-loop?
    exits
        States from which the phone may be left.
    weighted
        Whether staying and leaving have probabilities; if not, their log probabilities are 0.
    """

    name: str
    loops: tuple[bool, ...]
    exits: tuple[int, ...]
    weighted: bool

    @property
    def states(self) -> int:
        """Number of emitting states."""
        return len(self.loops)

    @property
    def min_frames(self) -> int:
        """Smallest number of frames of a phone."""
        return min(self.exits) + 1

    @cached_property
    def loops_S(self) -> np.ndarray:
        """`loops` as an array."""
        return np.array(self.loops)

    def states_of_parts(self, part_T: np.ndarray) -> np.ndarray:
        """(T,) int8 state of each frame, where each phone was divided into `min_frames` parts.

        Part k of a phone is in state k; if that state has no self-loop, the later frames of the part are in the next.

        Parameters
        ----------
        part_T
            (T,) int: the part of each frame; parts are numbered through all phones of the utterance.
        """
        state_T = part_T % self.min_frames
        later_T = np.concatenate([[False], part_T[1:] == part_T[:-1]])[: len(part_T)]
        states_T: np.ndarray = (state_T + (later_T & ~self.loops_S[state_T])).astype(np.int8)
        return states_T


THREE_STATES = Topology("three-states", (True, True, True), (2,), weighted=True)
# Kaldi's chain topology (nnet3/chain/gen_topo.py): one pdf for a phone's first frame, another for the later frames. In
# Kaldi all transitions have probability one half, which does not change which path is best.
FIRST_AND_LOOP = Topology("first-and-loop", (False, True), (0, 1), weighted=False)
_KNOWN = {topology.name: topology for topology in (THREE_STATES, FIRST_AND_LOOP)}


def topology_named(name: str, path: Path) -> Topology:
    """The topology called `name`; `path` is the file that names it.

    Raises
    ------
    Speech3Error
        There is no topology of that name.
    """
    if name not in _KNOWN:
        raise Speech3Error(
            f"{path}: no topology {name!r}, only {', '.join(_KNOWN)}; use the version of speech3 that wrote it"
        )
    return _KNOWN[name]


def num_outputs(frames: int, subsampling: int) -> int:
    """Outputs of a model that has one per `subsampling` frames; the last may stand for fewer."""
    return -(-frames // subsampling)
