"""The HMM of a phone without its pdfs: which states there are, which can be stayed in, and where a phone may be left.

Axes: T frames.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Topology:
    """States in a row: a phone is entered at the first, and goes from each to the next.

    Attributes
    ----------
    name
        What `hmm.json` calls it.
    loops
        Of each state: can it be stayed in?
    exits
        States from which the phone may be left.
    weighted
        Staying and leaving have probabilities; if not, both are free.
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
        """Frames of the shortest phone."""
        return min(self.exits) + 1

    @cached_property
    def loops_S(self) -> np.ndarray:
        """`loops` as an array."""
        return np.array(self.loops)

    def states_of_parts(self, part_T: np.ndarray) -> np.ndarray:
        """(T,) int8 state of each frame, where phones were cut into `min_frames` parts each.

        A part stays in the state of its number; if that cannot be stayed in, its later frames are in the next.

        Parameters
        ----------
        part_T
            (T,) int: the part of each frame, counted through the utterance, all parts of all phones.
        """
        state_T = part_T % self.min_frames
        later_T = np.concatenate([[False], part_T[1:] == part_T[:-1]])[: len(part_T)]
        states_T: np.ndarray = (state_T + (later_T & ~self.loops_S[state_T])).astype(np.int8)
        return states_T


THREE_STATES = Topology("three-states", (True, True, True), (2,), weighted=True)
# Kaldi's chain topology (nnet3/chain/gen_topo.py): one pdf for a phone's first frame, another for those after it. All
# transitions have probability one half there, which changes no comparison of paths.
FIRST_AND_LOOP = Topology("first-and-loop", (False, True), (0, 1), weighted=False)
_KNOWN = {topology.name: topology for topology in (THREE_STATES, FIRST_AND_LOOP)}


def topology_named(name: str, path: Path) -> Topology:
    """The topology that `Topology.name` names; `path` is the file that says so.

    Raises
    ------
    Speech3Error
        There is none of that name.
    """
    if name not in _KNOWN:
        raise Speech3Error(
            f"{path}: no topology {name!r}, only {', '.join(_KNOWN)}; written by a later version of speech3?"
        )
    return _KNOWN[name]


def num_outputs(frames: int, subsampling: int) -> int:
    """Outputs of a model that has one for each `subsampling` frames: the last may stand for fewer."""
    return -(-frames // subsampling)
