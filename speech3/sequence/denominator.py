"""The denominator graph of LF-MMI: every phone sequence that the phone language model allows (Povey et al. 2016).

Its states are those of the phone language model. Each state determines the last two phones, so the left-biphone tree
gives its pdfs: an arc into a state emits the pdf of its phone's first frame, and the state's loop emits the loop pdf.
HMM transitions have no probabilities, since these would be the same constant in each frame.

A chunk begins anywhere in an utterance, so the initial weight of a state is its average occupancy over the first
hundred output frames; a chunk may end in any state.

Axes: J states, A arcs.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.first_and_loop import left_biphone_pdfs
from speech3.hmm.model import Hmm, load_hmm
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.sequence.graph import Graph, average_occupancy, graph_arrays
from speech3.sequence.phone_lm import START, PhoneLm

_INITIAL_FRAMES = 100  # output frames, as in Kaldi's DenominatorGraph::SetInitialProbs
_STAY = 0.5  # probability of a phone's loop while occupancies are computed
_NAME = "denominator.safetensors"


@dataclass(frozen=True, eq=False)
class Denominator(Graph):
    """The graph as arrays, and the phone language model from which it was made.

    Attributes
    ----------
    pdfs_PP2
        int32, by left phone (0: the beginning) and phone: the pdf of the phone's first frame, and that of the others.
    """

    lm: PhoneLm
    pdfs_PP2: np.ndarray

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
    """Read what `Denominator.save` wrote; repeated calls return the same object until the file changes.

    Raises
    ------
    Speech3Error
        There is no such file, or it cannot be read.
    """
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


def check_tree(directory: Path | str) -> None:
    """Check that the denominator in a model directory is that of its tree: others may have as many pdfs.

    Raises
    ------
    Speech3Error
        It is not; or as for `load_denominator`, `load_hmm` and `left_biphone_pdfs`.
    """
    denominator, hmm = load_denominator(directory), load_hmm(directory)
    if denominator.num_pdfs != hmm.num_pdfs or not np.array_equal(denominator.pdfs_PP2, left_biphone_pdfs(hmm)):
        raise Speech3Error(
            f"{directory}: its denominator, with {denominator.num_pdfs} pdfs, belongs to another tree than the one"
            f" there, which has {hmm.num_pdfs}; run the recipe's stage hmm again"
        )


def assemble(lm: PhoneLm, num_pdfs: int, pdfs_PP2: np.ndarray) -> Denominator:
    """The graph of a phone language model, with the pdfs of each phone after each left phone (`pdfs_PP2`)."""
    first_J, loop_J = (pdfs_PP2[lm.left_J, lm.phone_J, place] for place in (0, 1))
    loops_J = np.where(np.arange(lm.num_states) == START, 0, 1)
    initial_J = average_occupancy(lm, np.where(loops_J, _STAY, 0), _INITIAL_FRAMES)
    graph = graph_arrays(lm, num_pdfs, first_J, loop_J, loops_J, lm.prob_A, initial_J)
    return Denominator(**graph, lm=lm, pdfs_PP2=pdfs_PP2)
