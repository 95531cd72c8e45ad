"""The denominator graph of LF-MMI: every phone sequence that the phone language model allows (Povey et al. 2016).

Its states are those of the phone language model. Each state knows the last two phones, so the left-biphone tree gives
its pdfs: an arc into a state emits the pdf of its phone's first frame, and the state's loop emits the loop pdf. HMM
transitions have no probabilities, which would be the same constant for each frame.

A chunk begins anywhere in an utterance, so the initial weight of a state is its average occupancy over the first
hundred frames; a chunk may end in any state.

Axes: J states, A arcs.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.first_and_loop import left_biphone_pdfs
from speech3.hmm.model import Hmm
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.sequence.phone_lm import START, PhoneLm

_INITIAL_FRAMES = 100  # as in Kaldi's DenominatorGraph::SetInitialProbs
_STAY = 0.5  # probability of a phone's loop while occupancies are computed
_NAME = "denominator.safetensors"


@dataclass(frozen=True, eq=False)
class Denominator:
    """The graph as arrays, and the phone language model from which it was made.

    Attributes
    ----------
    pdfs_PP2
        int32, by left phone (0: the beginning) and phone: the pdf of the phone's first frame, and that of the others.
    first_J, loop_J
        int32: these two pdfs for each state.
    loops_J
        float32: 1 for states with a loop, 0 for the start, which has none.
    in_ptr_J1, in_src_A, in_weight_A
        Arcs sorted by the state that they enter: int32, int32, float32.
    out_ptr_J1, out_dst_A, out_weight_A
        The same arcs sorted by the state that they leave.
    initial_J
        float32 initial weights, which sum to one.
    num_pdfs
        Number of outputs that a network must have.
    """

    lm: PhoneLm
    num_pdfs: int
    pdfs_PP2: np.ndarray
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

    def save(self, directory: Path | str, about: dict[str, object] | None = None) -> None:
        """Write denominator.safetensors: the phone language model and the pdfs of its states."""
        lm = self.lm
        arrays = {
            "left": lm.left_J, "phone": lm.phone_J, "ptr": lm.ptr_J1, "arc_phone": lm.arc_phone_A, "next": lm.next_A,
            "prob": lm.prob_A, "pdfs": self.pdfs_PP2,
        }  # fmt: skip
        save_tensors(
            Path(directory) / _NAME, arrays, {**(about or {}), "kind": "denominator", "num_pdfs": self.num_pdfs}
        )


def make_denominator(lm: PhoneLm, hmm: Hmm) -> Denominator:
    """The denominator graph of a phone language model and a left-biphone tree.

    Raises
    ------
    Speech3Error
        The tree was made for another set of phones, or for another topology.
    """
    phones = len(hmm.lexicon.phones)
    if phones < int(lm.phone_J.max()):
        raise Speech3Error(
            f"the phone language model has phone {int(lm.phone_J.max())}, but the lexicon of the model has only "
            f"{phones} phones, so it was made for another lexicon; build the denominator again"
        )
    return assemble(lm, hmm.num_pdfs, left_biphone_pdfs(hmm))


def load_denominator(directory: Path | str) -> Denominator:
    """Read what `Denominator.save` wrote; repeated calls return the same object until the file changes."""
    path = Path(directory).resolve() / _NAME
    if not path.exists():
        raise Speech3Error(
            f"{path}: no such file, so {directory} cannot be used for LF-MMI; for training.objective=lfmmi give the "
            "HMM that the stage `hmm/lfmmi` of a recipe makes"
        )
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: Path, _: int) -> Denominator:
    arrays, about = load_tensors(path, "denominator")
    lm = PhoneLm(*(arrays[name] for name in ("left", "phone", "ptr", "arc_phone", "next", "prob")))
    return assemble(lm, about["num_pdfs"], arrays["pdfs"])


def assemble(lm: PhoneLm, num_pdfs: int, pdfs_PP2: np.ndarray) -> Denominator:
    """The graph of a phone language model, with the pdfs of each phone after each left phone (`pdfs_PP2`)."""
    source_A = np.repeat(np.arange(lm.num_states, dtype=np.int32), np.diff(lm.ptr_J1))
    by_target = np.argsort(lm.next_A, kind="stable")
    loops_J = np.ones(lm.num_states, np.float32)
    loops_J[START] = 0
    return Denominator(
        lm=lm, num_pdfs=num_pdfs, pdfs_PP2=pdfs_PP2, first_J=pdfs_PP2[lm.left_J, lm.phone_J, 0],
        loop_J=pdfs_PP2[lm.left_J, lm.phone_J, 1], loops_J=loops_J,
        in_ptr_J1=np.searchsorted(lm.next_A[by_target], np.arange(lm.num_states + 1)).astype(np.int32),
        in_src_A=source_A[by_target], in_weight_A=lm.prob_A[by_target].astype(np.float32),
        out_ptr_J1=lm.ptr_J1, out_dst_A=lm.next_A, out_weight_A=lm.prob_A.astype(np.float32),
        initial_J=_initial(lm, source_A).astype(np.float32),
    )  # fmt: skip


def _initial(lm: PhoneLm, source_A: np.ndarray) -> np.ndarray:
    """Average occupancy of the states over the first frames; the end of an utterance leads back to the start."""
    ends_J = 1.0 - np.bincount(source_A, lm.prob_A, lm.num_states)
    occupancy_J, total_J = np.zeros(lm.num_states), np.zeros(lm.num_states)
    occupancy_J[START] = 1.0
    for _ in range(_INITIAL_FRAMES):
        total_J += occupancy_J
        leaving_J = occupancy_J * (1 - _STAY)
        leaving_J[START] = occupancy_J[START]
        moved_J = np.bincount(lm.next_A, leaving_J[source_A] * lm.prob_A, lm.num_states)
        moved_J[START] += leaving_J @ ends_J
        occupancy_J = occupancy_J - leaving_J + moved_J
    initial_J: np.ndarray = total_J / total_J.sum()
    return initial_J
