"""Kaldi's `tree`, transition model and `lang/` directory.

A tree maps a window of phones and a pdf class to a pdf (Kaldi tree/context-dep, tree/event-map). There are three kinds
of nodes: `CE pdf`, a leaf; `SE key [ set ] { yes no }`, a question; `TE key n ( ... )`, a table, which may hold `NULL`.
Keys 0, 1, ... are the phones of the window, key -1 is the pdf class.

The transition model defines transition-ids; it is the first object of a `final.mdl` (hmm/transition-model). A
transition-state is a tuple (phone, HMM state, forward pdf, self-loop pdf); the transition-ids number the arcs out of
all transition-states, from 1. The topology defines the arcs. Whatever follows (GMMs, a network) is not read.

A lexicon is read from ``phones.txt``, ``phones/align_lexicon.txt``, ``phones/optional_silence.txt`` and ``oov.txt``
(Kaldi utils/prepare_lang.sh). Pronunciation probabilities, which `lang/` has only inside L.fst, come from
``../local/lang/lexiconp.txt`` or ``../local/dict/lexiconp.txt``, where prepare_lang.sh usually writes or finds them.

Axes: K transition-ids, entry 0 unused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from speech3.errors import DataError, FormatError, MismatchError, MissingError
from speech3.hmm.model import LEFT, RIGHT, THREE_STATES, Tree, TreeNodes
from speech3.io import KaldiObject, opened_object
from speech3.language import SPOKEN_NOISE, UNKNOWN, Lexicon, Pronunciation, read_lexicon
from speech3.runtime import read_utf8, to_one_form

_CLASS = -1  # the key of the pdf class
NO_PDF = -1
_EPSILON = "<eps>"


@dataclass(frozen=True, eq=False)
class Leaf:
    pdf: int


@dataclass(frozen=True, eq=False)
class Question:
    key: int
    members: frozenset[int]
    yes: "Node"
    no: "Node"


@dataclass(frozen=True, eq=False)
class NodeTable:
    """One node for each value of `key`; None where there is none."""

    key: int
    ways: tuple["Node | None", ...]


Node = Leaf | Question | NodeTable


@dataclass(frozen=True, eq=False)
class KaldiTree:
    """A tree that asks about `width` phones, of which the one at `centre` is the phone itself."""

    width: int
    centre: int
    root: Node

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf."""
        return max(leaf.pdf for leaf in _leaves(self.root)) + 1


def _leaves(node: Node | None) -> Iterator[Leaf]:
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Leaf):
            yield node
        elif isinstance(node, Question):
            stack += [node.yes, node.no]
        elif node is not None:
            stack += node.ways


def read_tree(path: Path | str) -> KaldiTree:
    """Read a `tree`, binary or text.

    Raises Speech3Error: the file is missing, is not a tree, or is truncated.
    """
    with opened_object(path, "a Kaldi tree", "pass the tree that belongs to final.mdl") as stream:
        stream.expect("ContextDependency")
        width, centre = stream.integer(), stream.integer()
        if stream.expect("ToPdf", "ToLength") == "ToLength":  # in very old trees; Kaldi skips it as well
            _read_node(stream)
            stream.expect("ToPdf")
        root = _read_node(stream)
        if root is None or not any(_leaves(root)) or not 0 <= centre < width:
            raise ValueError("it has no leaf")
        stream.expect("EndContextDependency")
    return KaldiTree(width, centre, root)


def _read_node(stream: KaldiObject) -> Node | None:
    kind = stream.expect("CE", "SE", "TE", "NULL")
    if kind == "NULL":
        return None
    if kind == "CE":
        return Leaf(stream.integer())
    key = stream.integer()
    if kind == "TE":
        count = stream.integer()
        stream.expect("(")
        table = NodeTable(key, tuple(_read_node(stream) for _ in range(count)))
        stream.expect(")")
        return table
    members = frozenset(stream.integers())
    stream.expect("{")
    yes, no = _read_node(stream), _read_node(stream)
    stream.expect("}")
    if yes is None or no is None:
        raise ValueError("a question without an answer")
    return Question(key, members, yes, no)


def tree_text(root: Node, width: int, centre: int) -> str:
    """A tree in Kaldi's text form (``copy-tree --binary=false``)."""
    return f"ContextDependency {width} {centre} ToPdf {_node_text(root)}EndContextDependency "


def _node_text(node: Node | None) -> str:
    if node is None:
        return "NULL "
    if isinstance(node, Leaf):
        return f"CE {node.pdf} "
    if isinstance(node, NodeTable):
        return f"TE {node.key} {len(node.ways)} ( {''.join(map(_node_text, node.ways))}) \n"
    members = " ".join(map(str, sorted(node.members)))
    return f"SE {node.key} [ {members} ]\n{{ {_node_text(node.yes)}{_node_text(node.no)}}} \n"


class _Builder:
    """Collects the nodes of a `Tree`; a part of Kaldi's tree that asks about neighbours only is built once."""

    def __init__(self, tree: KaldiTree, number: Mapping[int, int]) -> None:
        self.tree, self.number = tree, number  # Kaldi's phones to ours
        self.nodes = TreeNodes(max(number.values()))
        self.built: dict[tuple[Node, int | None, int | None], int] = {}
        self.keys: dict[Node, frozenset[int]] = {}

    def add(self, side: int, members: frozenset[int], yes: int, no: int) -> int:
        ours = {self.number[phone] for phone in members if phone in self.number} | members & {0}
        return self.nodes.add(side, ours, yes, no)

    def asked(self, node: Node | None) -> frozenset[int]:
        """Keys that `node` or a node below it asks about."""
        if node is None or isinstance(node, Leaf):
            return frozenset()
        if node not in self.keys:
            below = (node.yes, node.no) if isinstance(node, Question) else node.ways
            self.keys[node] = frozenset([node.key]).union(*(self.asked(each) for each in below))
        return self.keys[node]

    def build(self, node: Node | None, phone: int, state: int) -> int:
        """Build `node` for `state` of Kaldi's `phone`; return the number of the node of our tree."""
        if node is None:
            raise FormatError(f"phone {phone}, state {state}: has no pdf")
        if not isinstance(node, Leaf) and node.key in (_CLASS, self.tree.centre):
            return self.build(_way(node, state if node.key == _CLASS else phone), phone, state)
        asked = self.asked(node)
        key = (node, phone if self.tree.centre in asked else None, state if _CLASS in asked else None)
        if key not in self.built:
            self.built[key] = self._question(node, phone, state)
        return self.built[key]

    def _question(self, node: Node, phone: int, state: int) -> int:
        if isinstance(node, Leaf):
            return self.add(-1, frozenset(), node.pdf, node.pdf)
        side = LEFT if node.key < self.tree.centre else RIGHT
        if isinstance(node, Question):
            return self.add(side, node.members, self.build(node.yes, phone, state), self.build(node.no, phone, state))
        values = [value for value, way in enumerate(node.ways) if way is not None]
        place = self.build(node.ways[values[-1]], phone, state)
        for value in reversed(values[:-1]):
            place = self.add(side, frozenset([value]), self.build(node.ways[value], phone, state), place)
        return place


def _way(node: Question | NodeTable, value: int) -> Node | None:
    if isinstance(node, Question):
        return node.yes if value in node.members else node.no
    return node.ways[value] if value < len(node.ways) else None


def to_tree(tree: KaldiTree, number: Mapping[int, int]) -> Tree:
    """Convert a tree that asks about at most one neighbour on either side, for phones of three states.

    `number`: our number of each Kaldi phone to convert.
    Raises Speech3Error: the window of the tree is wider, or it has no pdf for a phone of `number`.
    """
    if tree.width - tree.centre > 2 or tree.centre > 1:
        raise DataError(f"the tree's window is {tree.width} phones wide, the phone itself at index {tree.centre}")
    builder = _Builder(tree, number)
    root = np.zeros((max(number.values()) + 1, THREE_STATES.states), np.int32)
    for phone, ours in number.items():
        root[ours] = [builder.build(tree.root, phone, state) for state in range(THREE_STATES.states)]
    return builder.nodes.tree(root)


@dataclass(frozen=True)
class TopologyState:
    """One state of a phone: pdf classes (`NO_PDF`: non-emitting) and arcs (target state, initial probability)."""

    forward_class: int
    loop_class: int
    arcs: tuple[tuple[int, float], ...]


Topology = dict[int, tuple[TopologyState, ...]]  # by phone


@dataclass(frozen=True, eq=False)
class TransitionModel:
    """Kaldi's transition model."""

    topology: Topology
    tuples: np.ndarray  # (transition-states, 4) int32: phone, HMM state, forward pdf, self-loop pdf
    log_prob_K: np.ndarray  # float64 log probability of each transition-id

    @property
    def num_pdfs(self) -> int:
        """One more than the largest pdf."""
        return int(self.tuples[:, 2:].max()) + 1

    @cached_property
    def tuple_K(self) -> np.ndarray:
        """int32: the transition-state (a row of `tuples`) of each transition-id; -1 for 0."""
        return np.array([-1] + [row for row, arcs in enumerate(self._arcs()) for _ in arcs], np.int32)

    @cached_property
    def target_K(self) -> np.ndarray:
        """int32: the HMM state that each transition-id leads to."""
        return np.array([-1] + [target for arcs in self._arcs() for target, _ in arcs], np.int32)

    @cached_property
    def self_loop_K(self) -> np.ndarray:
        """bool: is the transition-id a self-loop?"""
        return (self.tuple_K >= 0) & (self.tuples[self.tuple_K, 1] == self.target_K)

    @cached_property
    def pdf_K(self) -> np.ndarray:
        """int32: the pdf of each transition-id; -1 for 0."""
        pdf_K = np.where(self.self_loop_K, self.tuples[self.tuple_K, 3], self.tuples[self.tuple_K, 2])
        pdf_K[0] = NO_PDF
        return pdf_K.astype(np.int32)

    def _arcs(self) -> list[tuple[tuple[int, float], ...]]:
        return [self.topology[phone][state].arcs for phone, state in self.tuples[:, :2].tolist()]


def left_to_right(states: tuple[TopologyState, ...]) -> bool:
    """Is this `THREE_STATES`: as many states, each with its pdf, a self-loop and an arc to the next?"""
    emitting = states[:-1]
    return len(emitting) == THREE_STATES.states and all(
        state.forward_class == state.loop_class == number and [to for to, _ in state.arcs] == [number, number + 1]
        for number, state in enumerate(emitting)
    )


def read_transition_model(path: Path | str) -> TransitionModel:
    """Read the transition model of a `final.mdl` of GMMs or a network, binary or text.

    Raises Speech3Error: the file is missing, is not a Kaldi model, or is truncated.
    """
    with opened_object(path, "a Kaldi model", "pass the final.mdl that made the alignment") as stream:
        stream.expect("<TransitionModel>")
        stream.expect("<Topology>")
        topology = _binary_topology(stream) if stream.binary else _text_topology(stream)
        width = 4 if stream.expect("<Triples>", "<Tuples>") == "<Tuples>" else 3
        rows = [[stream.integer() for _ in range(width)] for _ in range(stream.integer())]
        stream.expect("</Triples>", "</Tuples>")
        stream.expect("<LogProbs>")
        log_prob_K = stream.vector()
        stream.expect("</LogProbs>")
        tuples = np.array([[*row, row[2]] if width == 3 else row for row in rows], np.int32).reshape(-1, 4)
        _check(topology, tuples)
        model = TransitionModel(topology, tuples, log_prob_K)
        if len(model.tuple_K) != len(log_prob_K):
            raise ValueError(f"{len(model.tuple_K) - 1} transitions, but {len(log_prob_K) - 1} probabilities")
    return model


def _check(topology: Topology, tuples: np.ndarray) -> None:
    if not len(tuples):
        raise ValueError("it has no transition-states")
    for phone, state, forward, loop in tuples.tolist():
        if phone not in topology or not 0 <= state < len(topology[phone]) or min(forward, loop) < 0:
            raise ValueError(f"a transition-state of phone {phone}, state {state}, which its topology lacks")


def _binary_topology(stream: KaldiObject) -> Topology:
    phones, entry_of = stream.integers(), stream.integers()
    count = stream.integer()
    two_classes = count == -1  # chain models have separate forward and self-loop pdfs
    entries = []
    for _ in range(stream.integer() if two_classes else count):
        states = []
        for _ in range(stream.integer()):
            forward = stream.integer()
            loop = stream.integer() if two_classes else forward
            arcs = tuple((stream.integer(), stream.real()) for _ in range(stream.integer()))
            states.append(TopologyState(forward, loop, arcs))
        entries.append(tuple(states))
    stream.expect("</Topology>")
    if any(not 0 < phone < len(entry_of) or not 0 <= entry_of[phone] < len(entries) for phone in phones):
        raise ValueError("a phone without a topology")
    return {phone: entries[entry_of[phone]] for phone in phones}


def _text_topology(stream: KaldiObject) -> Topology:
    topology: Topology = {}
    while stream.expect("<TopologyEntry>", "</Topology>") == "<TopologyEntry>":
        stream.expect("<ForPhones>")
        phones = []
        while (word := stream.token()) != "</ForPhones>":
            phones.append(int(word))
        states = []
        while stream.expect("<State>", "</TopologyEntry>") == "<State>":
            states.append(_text_state(stream))
        topology |= dict.fromkeys(phones, tuple(states))
    return topology


def _text_state(stream: KaldiObject) -> TopologyState:
    stream.integer()
    forward = loop = NO_PDF
    arcs = []
    while True:
        match stream.expect("<PdfClass>", "<ForwardPdfClass>", "<SelfLoopPdfClass>", "<Transition>", "</State>"):
            case "<PdfClass>":
                forward = loop = stream.integer()
            case "<ForwardPdfClass>":
                forward = stream.integer()
            case "<SelfLoopPdfClass>":
                loop = stream.integer()
            case "<Transition>":
                arcs.append((stream.integer(), stream.real()))
            case _:
                return TopologyState(forward, loop, tuple(arcs))


def topology_text(topology: Topology) -> str:
    """A topology in Kaldi's text form, as in ``lang/topo``."""
    phones_of: dict[tuple[TopologyState, ...], list[int]] = {}
    for phone, states in sorted(topology.items()):
        phones_of.setdefault(states, []).append(phone)
    lines = ["<Topology>"]
    for states, phones in phones_of.items():
        lines += ["<TopologyEntry>", "<ForPhones>", " ".join(map(str, phones)), "</ForPhones>"]
        for number, state in enumerate(states):
            classes = f"<PdfClass> {state.forward_class} " if state.forward_class != NO_PDF else ""
            if state.forward_class != state.loop_class:
                classes = f"<ForwardPdfClass> {state.forward_class} <SelfLoopPdfClass> {state.loop_class} "
            arcs = "".join(f"<Transition> {to} {prob:.7g} " for to, prob in state.arcs)
            lines.append(f"<State> {number} {classes}{arcs}</State>")
        lines.append("</TopologyEntry>")
    return "\n".join([*lines, "</Topology>"]) + "\n"


def transition_model_text(model: TransitionModel) -> str:
    """A model in Kaldi's text form; rows have a fourth column if a state's self-loop pdf is not its forward pdf."""
    two_classes = any(state.forward_class != state.loop_class for each in model.topology.values() for state in each)
    name, width = ("Tuples", 4) if two_classes else ("Triples", 3)
    rows = "".join(" ".join(map(str, row[:width])) + " \n" for row in model.tuples.tolist())
    probs = " ".join(f"{value:.7g}" for value in model.log_prob_K)
    return (
        f"<TransitionModel> \n{topology_text(model.topology)}<{name}> {len(model.tuples)} \n{rows}</{name}> \n"
        f"<LogProbs> \n [ {probs} ]\n</LogProbs> \n</TransitionModel> \n"
    )


@dataclass(frozen=True)
class Lang:
    """A lexicon with Kaldi's names of phones (``AH_I``), and the number that Kaldi gives each phone."""

    lexicon: Lexicon
    phone_ids: dict[str, int]


def read_lang(directory: Path | str) -> Lang:
    """Read a `lang/` directory.

    The word for out-of-vocabulary words (``oov.txt``) is also added as our `<unk>`.

    Raises Speech3Error: a file is missing or damaged, or a phone of the lexicon is not in ``phones.txt``.
    """
    directory = Path(directory)
    ids = read_symbols(directory / "phones.txt")
    path = directory / "phones" / "align_lexicon.txt"
    prons: dict[Pronunciation, None] = {}
    for number, line in enumerate(_lines(path), 1):
        word, *rest = line.split()
        if len(rest) < 2:
            raise FormatError(f"{path}:{number}: not a line `word word phone ...`; make it again with prepare_lang.sh")
        if word != _EPSILON:
            prons[Pronunciation(to_one_form(word), tuple(rest[1:]))] = None
        for phone in rest[1:]:
            if phone not in ids:
                raise MissingError(f"{path}:{number}: phone {phone} is not in {directory / 'phones.txt'}")
    silence = "".join(_lines(directory / "phones" / "optional_silence.txt")).strip()
    if silence not in ids:
        raise MissingError(f"{directory}/phones/optional_silence.txt: phone {silence!r} is not in phones.txt")
    silences = directory / "phones" / "silence.txt"
    noises = tuple(_lines(silences)) if silences.is_file() else (SPOKEN_NOISE,)
    lexicon = Lexicon(
        tuple(pron for pron in prons if pron.phones != (silence,)),
        silence_phones=(silence,),
        noise_phones=noises,
        position_dependent=(directory / "phones" / "word_boundary.txt").exists(),
    )
    return Lang(_with_unknown(_with_probabilities(lexicon, directory), directory), ids)


def read_symbols(path: Path | str) -> dict[str, int]:
    """Read ``symbol number`` lines (Kaldi's ``phones.txt``, ``words.txt``).

    Raises Speech3Error: the file is missing, or a line has another form.
    """
    symbols = {}
    for number, line in enumerate(_lines(Path(path)), 1):
        fields = line.split()
        if len(fields) != 2 or not fields[1].isdigit():
            raise FormatError(f"{path}:{number}: not a line `symbol number`: {line.strip()!r}")
        symbols[fields[0]] = int(fields[1])
    return symbols


def read_symbol_table(path: Path | str, remedy: str) -> tuple[str, ...]:
    """The words of such a file, composed (NFC), by their numbers 0, 1, 2, ...; errors end with `remedy`."""
    symbols = sorted(read_symbols(path).items(), key=lambda entry: entry[1])
    if [number for _, number in symbols] != list(range(len(symbols))):
        raise FormatError(f"{path}: its numbers are not 0, 1, 2, ...; {remedy}")
    return tuple(to_one_form(symbol) for symbol, _ in symbols)


def check_same_phones(one: Path, other: Path) -> None:
    """Raise an error if a phone has different numbers in two ``phones.txt`` (utils/lang/check_phones_compatible.sh)."""
    first, second = read_symbols(one), read_symbols(other)
    for phone in [*first, *second]:
        if not phone.startswith("#") and first.get(phone) != second.get(phone):
            raise MismatchError(
                f"{one} and {other} have different phone sets: {phone} is {first.get(phone)} in the first and"
                f" {second.get(phone)} in the second; pass the lang directory that the model was trained with"
            )


def _with_probabilities(lexicon: Lexicon, directory: Path) -> Lexicon:
    for path in (directory.parent / "local" / place / "lexiconp.txt" for place in ("lang", "dict")):
        if path.exists():
            known = {(pron.word, pron.phones): pron.prob for pron in read_lexicon(path).pronunciations}
            break
    else:
        return lexicon

    def prob(pron: Pronunciation) -> float:
        bare = tuple(lexicon.base_phone(phone) for phone in pron.phones)
        return known.get((pron.word, pron.phones), known.get((pron.word, bare), 1.0))

    return replace(lexicon, pronunciations=tuple(replace(pron, prob=prob(pron)) for pron in lexicon.pronunciations))


def _with_unknown(lexicon: Lexicon, directory: Path) -> Lexicon:
    path = directory / "oov.txt"
    oov = read_utf8(path).strip() if path.exists() else UNKNOWN
    if UNKNOWN in lexicon.by_word or oov not in lexicon.by_word:
        return lexicon
    more = tuple(replace(pron, word=UNKNOWN) for pron in lexicon.by_word[oov])
    return replace(lexicon, pronunciations=lexicon.pronunciations + more)


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise MissingError(f"{path}: no such file; pass a lang directory of Kaldi's prepare_lang.sh")
    return [line for line in read_utf8(path).splitlines() if line.strip()]
