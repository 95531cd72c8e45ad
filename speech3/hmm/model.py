"""The HMM behind an acoustic model's outputs: topology, tied states, lexicon and transition probabilities.

`Topology` is the HMM of a phone without its pdfs: its states, which of them have self-loops, and from which the phone
may end. `Tree` is the phonetic decision tree as a function from (left phone, phone, right phone, state) to pdf (Young
et al. 1994); `speech3.hmm.clustering` grows it. `Hmm` holds both, and is saved with the model; `with_nearest_pdfs`
makes that of another language.

Axes: T frames, P phones, S states of a phone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.errors import DataError, MismatchError, MissingError
from speech3.io import HMM_FILE, TREE_FILE, check_is_directory, load_tensors, save_tensors
from speech3.language import SPOKEN_NOISE, Lexicon, Nearest, Silences, nearest_phones, read_lexicon, write_lexicon
from speech3.runtime import read_json, write_json

LEFT, CENTRE, RIGHT = 0, 1, 2
ARRAYS = ("root", "side", "member", "yes", "no")  # of a tree


@dataclass(frozen=True)
class Topology:
    """States in a row: a phone is entered at the first state, and each state leads to the next."""

    name: str  # its name in `hmm.json`
    loops: tuple[bool, ...]  # for each state: does it have a self-loop?
    exits: tuple[int, ...]  # states from which the phone may be left
    weighted: bool  # whether staying and leaving have probabilities; if not, their log probabilities are 0

    @property
    def states(self) -> int:
        return len(self.loops)

    @property
    def min_frames(self) -> int:
        """Smallest number of frames of a phone."""
        return min(self.exits) + 1

    @cached_property
    def loops_S(self) -> np.ndarray:
        return np.array(self.loops)

    def states_of_parts(self, part_T: np.ndarray) -> np.ndarray:
        """(T,) int8 state of each frame, where each phone was divided into `min_frames` parts.

        Part k of a phone is in state k; if that state has no self-loop, the later frames of the part are in the next.

        `part_T`: (T,) int: the part of each frame; parts are numbered through all phones of the utterance.
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


def _topology_named(name: str, path: Path) -> Topology:
    if name not in _KNOWN:
        raise MissingError(
            f"{path}: no topology {name!r}, only {', '.join(_KNOWN)}; use the version of speech3 that wrote it"
        )
    return _KNOWN[name]


def num_outputs(frames: int, subsampling: int) -> int:
    """Outputs of a model that has one per `subsampling` frames; the last may stand for fewer."""
    return -(-frames // subsampling)


@dataclass(frozen=True, eq=False)
class Tree:
    """Binary trees in arrays, one root for each (phone, state)."""

    root: np.ndarray  # (P + 1, states) int32: the node at which to start; row 0 is unused
    side: np.ndarray  # (nodes,) int8: which phone the node asks about, LEFT, CENTRE or RIGHT; -1 at a leaf
    member: np.ndarray  # (nodes, P + 1) bool: is the phone in the question's set? Column 0 is "beyond the end"
    # `yes`, `no`: (nodes,) int32: the next node; at a leaf both hold the pdf
    yes: np.ndarray
    no: np.ndarray
    _known: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    def same_as(self, other: "Tree") -> bool:
        """Whether both have the same nodes, and so lead to the same pdfs."""
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ARRAYS)

    @cached_property
    def phone_classes(self) -> np.ndarray:
        """(P + 1,) int: phones that share a pdf have the same number, that of the first of them."""
        first: dict[int, int] = {}  # pdf -> first phone that has it
        number = np.arange(len(self.root))
        for phone in range(1, len(self.root)):
            for other in {int(number[first.setdefault(pdf, phone)]) for pdf in self.pdfs_below(self.root[phone])}:
                number[number == number[phone]] = min(other, number[phone])
                number[number == other] = number[phone]
        return number

    def pdfs_below(self, nodes: Iterable[int]) -> Iterator[int]:
        """The pdfs of the leaves below these nodes; one may occur several times."""
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if self.side[node] < 0:
                yield int(self.yes[node])
            else:
                waiting += [int(self.yes[node]), int(self.no[node])]

    @property
    def states(self) -> int:
        return int(self.root.shape[1])

    @cached_property
    def sides(self) -> frozenset[int]:
        """The phones that any question asks about: some of LEFT, CENTRE and RIGHT."""
        return frozenset(self.side[self.side >= 0].tolist())

    @property
    def width(self) -> int:
        """Width of the window of phones that questions ask about; the phone itself is at index ``width // 2``."""
        return 3 if RIGHT in self.sides else 2 if LEFT in self.sides else 1

    @property
    def num_pdfs(self) -> int:
        """Number of pdfs: one more than the largest."""
        return int(self.yes[self.side < 0].max()) + 1

    def pdf(self, left: int, phone: int, right: int, state: int) -> int:
        """Pdf of HMM state `state` (from 0) of `phone` between `left` and `right` (0: beyond the end)."""
        node, window = int(self.root[phone, state]), (left, phone, right)
        while self.side[node] >= 0:
            node = int(self.yes[node] if self.member[node, window[self.side[node]]] else self.no[node])
        return int(self.yes[node])

    def pdfs(self, left: int, phone: int, right: int) -> tuple[int, ...]:
        """The pdfs of all states; cached, since the same contexts recur."""
        window = (left, phone, right)
        if window not in self._known:
            self._known[window] = tuple(self.pdf(*window, state) for state in range(self.states))
        return self._known[window]

    def pdfs_of(self, phones_W3: np.ndarray) -> np.ndarray:
        """(W, states) int32: the pdfs of all states of many windows (left, phone, right) at once."""
        pdfs_WS = np.empty((len(phones_W3), self.states), np.int32)
        for state in range(self.states):
            node_W = self.root[phones_W3[:, CENTRE], state].copy()
            while (asks_W := np.flatnonzero(self.side[node_W] >= 0)).size:
                node = node_W[asks_W]
                answer = self.member[node, phones_W3[asks_W, self.side[node]]]
                node_W[asks_W] = np.where(answer, self.yes[node], self.no[node])
            pdfs_WS[:, state] = self.yes[node_W]
        return pdfs_WS


@dataclass
class TreeNodes:
    """The nodes of a tree that is being built."""

    phones: int
    side: list[int] = field(default_factory=list)
    member: list[np.ndarray] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)

    def add(self, side: int = -1, members: Iterable[int] = (), yes: int = -1, no: int = -1) -> int:
        """Add a question about phones, or a leaf, and return its number."""
        member = np.zeros(self.phones + 1, bool)
        member[list(members)] = True
        for column, value in zip((self.side, self.yes, self.no), (side, yes, no), strict=True):
            column.append(value)
        self.member.append(member)
        return len(self.side) - 1

    def tree(self, root: np.ndarray) -> Tree:
        side, yes, no = np.array(self.side, np.int8), np.array(self.yes, np.int32), np.array(self.no, np.int32)
        return Tree(root, side, np.stack(self.member), yes, no)


def context_free_tree(pdfs_PS: np.ndarray) -> Tree:
    """A tree that ignores neighbours: `pdfs_PS` (P, states) holds the pdf of each state of each phone, from phone 1."""
    root = np.zeros((len(pdfs_PS) + 1, pdfs_PS.shape[1]), np.int32)
    root[1:] = pdfs_PS  # node j is the leaf of pdf j
    pdfs = np.arange(pdfs_PS.max() + 1, dtype=np.int32)
    return Tree(root, np.full(len(pdfs), -1, np.int8), np.zeros((len(pdfs), len(root)), bool), pdfs, pdfs.copy())


def monophone_tree(number_P: np.ndarray, states: int = THREE_STATES.states) -> Tree:
    """A tree with one pdf per state of a phone; phones with one number in `number_P` (from 0, no gaps) share theirs."""
    return context_free_tree(np.asarray(number_P)[:, None] * states + np.arange(states))


@dataclass(frozen=True, eq=False)
class Hmm:
    """Phones with the states of `topology`; within a phone, a path stays in a state or goes to the next one."""

    lexicon: Lexicon
    tree: Tree
    # (num_pdfs,) float64: self-loop probability, shared by all states of a pdf. (Kaldi has one for each combination of
    # phone, state and pdf; on the corpora measured here that made no difference.) Not used if the topology is not
    # weighted.
    self_loop: np.ndarray
    topology: Topology = THREE_STATES
    # frames of features per score: 1, or 3 for outputs at a third of the frames. A state lasts at least one score.
    subsampling: int = 1

    @property
    def num_pdfs(self) -> int:
        return len(self.self_loop)

    def pdfs(self, left: int, phone: int, right: int) -> tuple[int, ...]:
        """The pdfs of all states of `phone` between `left` and `right` (0: beyond the end)."""
        return self.tree.pdfs(left, phone, right)

    def transitions(self, pdf_S: np.ndarray, state_S: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Log probabilities (S,) float32, times `scale`, of staying in each of S states and of leaving it.

        `pdf_S`, `state_S`: the pdf of each state, and its index within the phone.
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
        write_json(
            directory / HMM_FILE,
            {
                "phones": list(self.lexicon.phones),
                "silence_phones": list(self.lexicon.silence_phones),
                "noise_phones": list(self.lexicon.noise_phones),
                "silence_prob": self.lexicon.silence_prob,
                "end": end and asdict(end),
                "position_dependent": self.lexicon.position_dependent,
                "states": self.topology.states,
                "pdfs": self.num_pdfs,
                "topology": self.topology.name,
                "subsampling": self.subsampling,
                "language": self.lexicon.language,
            },
        )
        arrays = {name: getattr(self.tree, name) for name in ARRAYS} | {"self_loop": self.self_loop}
        save_tensors(directory / TREE_FILE, arrays, {"kind": "tree"})


@dataclass(frozen=True)
class PdfsOnly:
    """The outputs of a model that an `Hmm` cannot represent: their number, and the reason.

    Such a model can be trained and can score frames; it decodes only with the graph that came with it.
    """

    num_pdfs: int
    why: str

    def save(self, directory: Path | str) -> None:
        write_json(Path(directory) / HMM_FILE, {"pdfs": self.num_pdfs, "pdfs_only": self.why})


def output_difference(one: Hmm | PdfsOnly, other: Hmm | PdfsOnly) -> str:
    """How the outputs of two models differ, in words; empty if they are the same, as far as that is known."""
    if one.num_pdfs != other.num_pdfs:
        return f"one has {one.num_pdfs} senones, the other {other.num_pdfs}"
    if not (isinstance(one, Hmm) and isinstance(other, Hmm)):
        return ""  # only the number is known
    same = (one.lexicon.phones, one.subsampling) == (other.lexicon.phones, other.subsampling)
    return "" if same and one.tree.same_as(other.tree) else f"{one.num_pdfs} senones in both, but of different trees"


def load_outputs(directory: Path | str) -> Hmm | PdfsOnly:
    """Read what `Hmm.save` or `PdfsOnly.save` wrote."""
    about = read_json(Path(directory) / HMM_FILE)
    if isinstance(about, dict) and "pdfs_only" in about:
        return PdfsOnly(about["pdfs"], about["pdfs_only"])
    return load_hmm(directory)


def load_hmm(directory: Path | str) -> Hmm:
    """Read what `Hmm.save` wrote.

    Raises Speech3Error: a file is missing or was written by another version, or lexicon, tree and topology do not
    match.
    """
    directory = Path(directory)
    check_is_directory(directory)
    if not (directory / HMM_FILE).exists():
        raise MissingError(f"{directory / 'hmm.json'}: no such file, so {directory} is not a model directory")
    about = read_json(directory / HMM_FILE)
    if isinstance(about, dict) and "pdfs_only" in about:
        raise DataError(
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
        topology = _topology_named(about.get("topology", THREE_STATES.name), directory / HMM_FILE)
        subsampling = int(about.get("subsampling", 1))
    except (KeyError, TypeError) as error:
        raise MismatchError(f"{directory / 'hmm.json'}: has keys of another version of speech3; train again") from error
    lexicon = read_lexicon(directory / _lexicon_name(end is not None), silence_prob)
    lexicon = replace(lexicon, silence_phones=silence_phones, noise_phones=noise_phones)
    lexicon = replace(lexicon, position_dependent=positions, end=end, language=str(about.get("language", "")))
    arrays, _ = load_tensors(directory / TREE_FILE, "tree")
    if list(lexicon.phones) != phones or arrays["root"].shape[0] != len(lexicon.phones) + 1:
        raise MismatchError(f"{directory}: the lexicon has other phones than the tree; restore the model's lexicon")
    tree = Tree(*(arrays[name] for name in ARRAYS))
    if tree.states != topology.states:
        raise DataError(
            f"{directory}: hmm.json says {topology.name}, but tree.safetensors has {tree.states} states per phone;"
            " restore both"
        )
    return Hmm(lexicon, tree, arrays["self_loop"], topology, subsampling)


def _lexicon_name(silences: bool) -> str:
    return "lexiconp_silprob.txt" if silences else "lexiconp.txt"


def with_nearest_pdfs(hmm: Hmm, lexicon: Lexicon) -> tuple[Hmm, Mapping[str, Nearest]] | None:
    """The HMM of `lexicon`, and the nearest phone of `hmm` to each of its phones (without positions in the word).

    Silence has the pdfs of silence, noises those of noise. None if a phone is in neither IPA nor the symbols of TIMIT
    or CMUdict.

    `hmm`: of monophones.
    """
    numbers: dict[str, int] = {}
    for phone, number in hmm.lexicon.phone_ids.items():
        numbers.setdefault(hmm.lexicon.base_phone(phone), number)
    silent, noises = hmm.lexicon.silence_phones, hmm.lexicon.noise_phones
    bases = [lexicon.base_phone(phone) for phone in lexicon.phones]
    like = dict.fromkeys(lexicon.silence_phones, silent[0])
    like |= dict.fromkeys(lexicon.noise_phones, (*noises, *silent)[0])
    spoken = dict.fromkeys(base for base in bases if base not in like)
    nearest = nearest_phones(spoken, numbers.keys() - {*silent, *noises})
    if len(nearest) < len(spoken):
        return None
    like |= {phone: found.phone for phone, found in nearest.items()}
    pdfs_PS = np.array([hmm.pdfs(0, numbers[like[base]], 0) for base in bases])
    return replace(hmm, lexicon=lexicon, tree=context_free_tree(pdfs_PS)), nearest
