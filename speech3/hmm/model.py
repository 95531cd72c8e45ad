"""The HMM behind an acoustic model's outputs: lexicon, tied states and transition probabilities, saved together."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.topology import THREE_STATES, Topology, topology_named
from speech3.hmm.tree import ARRAYS, Tree
from speech3.io.atomic import read_json, write_json
from speech3.io.checkpoint import load_tensors, save_tensors
from speech3.lexicon.lexicon import SPOKEN_NOISE, Lexicon, Silences, read_lexicon, write_lexicon


@dataclass(frozen=True, eq=False)
class Hmm:
    """Phones with the states of `topology`; within a phone, a path stays in a state or goes to the next one.

    Attributes
    ----------
    self_loop
        (num_pdfs,) float64: self-loop probability, shared by all states of a pdf. (Kaldi has one for each combination
        of phone, state and pdf; on the corpora measured here that made no difference.) Not used if the topology is not
        weighted.
    subsampling
        Frames of features per score: 1, or 3 for outputs at a third of the frames. A state lasts at least one score.
    """

    lexicon: Lexicon
    tree: Tree
    self_loop: np.ndarray
    topology: Topology = THREE_STATES
    subsampling: int = 1

    @property
    def num_pdfs(self) -> int:
        """Number of senones."""
        return len(self.self_loop)

    def pdfs(self, left: int, phone: int, right: int) -> tuple[int, ...]:
        """The pdfs of all states of `phone` between `left` and `right` (0: beyond the end)."""
        return self.tree.pdfs(left, phone, right)

    def transitions(self, pdf_S: np.ndarray, state_S: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Log probabilities (S,) float32, times `scale`, of staying in each of S states and of leaving it.

        Parameters
        ----------
        pdf_S, state_S
            The pdf of each state, and its index within the phone.
        """
        if self.topology.weighted:
            stay = self.self_loop[pdf_S]
            return (scale * np.log(stay)).astype(np.float32), (scale * np.log1p(-stay)).astype(np.float32)
        stays_S = self.topology.loops_S[state_S]
        return np.where(stays_S, 0.0, -np.inf).astype(np.float32), np.zeros(len(pdf_S), np.float32)

    def save(self, directory: Path | str) -> None:
        """Write lexiconp.txt or lexiconp_silprob.txt, hmm.json and tree.safetensors into `directory`."""
        directory, end = Path(directory), self.lexicon.end
        write_lexicon(self.lexicon, directory / _lexicon_name(end is not None))
        write_json(directory / "hmm.json", {
            "phones": list(self.lexicon.phones), "silence_phones": list(self.lexicon.silence_phones),
            "noise_phones": list(self.lexicon.noise_phones),
            "silence_prob": self.lexicon.silence_prob, "end": end and asdict(end),
            "position_dependent": self.lexicon.position_dependent, "states": self.topology.states,
            "pdfs": self.num_pdfs, "topology": self.topology.name, "subsampling": self.subsampling,
        })  # fmt: skip
        arrays = {name: getattr(self.tree, name) for name in ARRAYS} | {"self_loop": self.self_loop}
        save_tensors(directory / "tree.safetensors", arrays, {"kind": "tree"})


@dataclass(frozen=True)
class PdfsOnly:
    """The outputs of a model that an `Hmm` cannot represent: their number, and the reason.

    Such a model can be trained and can score frames; it decodes only with the graph that came with it.
    """

    num_pdfs: int
    why: str

    def save(self, directory: Path | str) -> None:
        """Write hmm.json into `directory`."""
        write_json(Path(directory) / "hmm.json", {"pdfs": self.num_pdfs, "pdfs_only": self.why})


def difference(one: Hmm | PdfsOnly, other: Hmm | PdfsOnly) -> str:
    """How the outputs of two models differ, in words; empty if they are the same, as far as that is known."""
    if one.num_pdfs != other.num_pdfs:
        return f"one has {one.num_pdfs} senones, the other {other.num_pdfs}"
    if not (isinstance(one, Hmm) and isinstance(other, Hmm)):
        return ""  # only the number is known
    same = (one.lexicon.phones, one.subsampling) == (other.lexicon.phones, other.subsampling)
    return "" if same and one.tree.same_as(other.tree) else f"{one.num_pdfs} senones in both, but of different trees"


def load_outputs(directory: Path | str) -> Hmm | PdfsOnly:
    """Read what `Hmm.save` or `PdfsOnly.save` wrote."""
    about = read_json(Path(directory) / "hmm.json")
    if isinstance(about, dict) and "pdfs_only" in about:
        return PdfsOnly(about["pdfs"], about["pdfs_only"])
    return load_hmm(directory)


def load_hmm(directory: Path | str) -> Hmm:
    """Read what `Hmm.save` wrote.

    Raises
    ------
    Speech3Error
        A file is missing or was written by another version, or lexicon, tree and topology do not match.
    """
    directory = Path(directory)
    if not (directory / "hmm.json").exists():
        raise Speech3Error(f"{directory / 'hmm.json'}: no such file, so {directory} is not a model directory")
    about = read_json(directory / "hmm.json")
    if isinstance(about, dict) and "pdfs_only" in about:
        raise Speech3Error(
            f"{directory}: only the number of its outputs is known, so it cannot align, and no graph can be built for"
            f" it: {about['pdfs_only']}; use the graph that came with it"
        )
    try:
        phones, silence_phones = about["phones"], tuple(about["silence_phones"])
        # Models saved before noises were listed have one kind that does not depend on its neighbours.
        noise_phones = tuple(about.get("noise_phones", (SPOKEN_NOISE,)))
        silence_prob, positions = about["silence_prob"], about["position_dependent"]
        end = about["end"] and Silences(**about["end"])
        # Models saved before topologies were added do not name one.
        topology = topology_named(about.get("topology", THREE_STATES.name), directory / "hmm.json")
        subsampling = int(about.get("subsampling", 1))
    except (KeyError, TypeError) as error:
        raise Speech3Error(f"{directory / 'hmm.json'}: has keys of another version of speech3; train again") from error
    lexicon = replace(
        read_lexicon(directory / _lexicon_name(end is not None), silence_prob),
        silence_phones=silence_phones, noise_phones=noise_phones, position_dependent=positions, end=end,
    )  # fmt: skip
    arrays, _ = load_tensors(directory / "tree.safetensors", "tree")
    if list(lexicon.phones) != phones or arrays["root"].shape[0] != len(lexicon.phones) + 1:
        raise Speech3Error(f"{directory}: the lexicon has other phones than the tree; restore the model's lexicon")
    tree = Tree(*(arrays[name] for name in ARRAYS))
    if tree.states != topology.states:
        raise Speech3Error(
            f"{directory}: hmm.json says {topology.name}, but tree.safetensors has {tree.states} states per phone;"
            " restore both"
        )
    return Hmm(lexicon, tree, arrays["self_loop"], topology, subsampling)


def _lexicon_name(silences: bool) -> str:
    return "lexiconp_silprob.txt" if silences else "lexiconp.txt"
