"""Kaldi's `tree`, which maps a window of phones and a pdf class to a pdf (Kaldi tree/context-dep, tree/event-map).

There are three kinds of nodes: `CE pdf`, a leaf; `SE key [ set ] { yes no }`, a question; `TE key n ( ... )`, a table,
which may hold `NULL`. Keys 0, 1, ... are the phones of the window, key -1 is the pdf class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.topology import THREE_STATES
from speech3.hmm.tree import LEFT, RIGHT, Tree
from speech3.io.kaldi_object import KaldiObject, opened_object

_CLASS = -1  # the key of the pdf class


@dataclass(frozen=True, eq=False)
class Leaf:
    """A pdf."""

    pdf: int


@dataclass(frozen=True, eq=False)
class Question:
    """Is the value of `key` in `members`?"""

    key: int
    members: frozenset[int]
    yes: "Node"
    no: "Node"


@dataclass(frozen=True, eq=False)
class Table:
    """One node for each value of `key`; None where there is none."""

    key: int
    ways: tuple["Node | None", ...]


Node = Leaf | Question | Table


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

    def pdf(self, window: tuple[int, ...], pdf_class: int) -> int | None:
        """Pdf of a state of ``window[centre]``; None if the tree has none."""
        node: Node | None = self.root
        while node is not None and not isinstance(node, Leaf):
            value = pdf_class if node.key == _CLASS else window[node.key]
            if isinstance(node, Question):
                node = node.yes if value in node.members else node.no
            else:
                node = node.ways[value] if 0 <= value < len(node.ways) else None
        return None if node is None else node.pdf


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

    Raises
    ------
    Speech3Error
        The file is missing, is not a tree, or is truncated.
    """
    with opened_object(path, "a Kaldi tree", "give the tree that belongs to final.mdl") as stream:
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
        table = Table(key, tuple(_read_node(stream) for _ in range(count)))
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
    if isinstance(node, Table):
        return f"TE {node.key} {len(node.ways)} ( {''.join(map(_node_text, node.ways))}) \n"
    members = " ".join(map(str, sorted(node.members)))
    return f"SE {node.key} [ {members} ]\n{{ {_node_text(node.yes)}{_node_text(node.no)}}} \n"


class _Builder:
    """Collects the nodes of a `Tree`; a part of Kaldi's tree that asks about neighbours only is built once."""

    def __init__(self, tree: KaldiTree, number: Mapping[int, int]) -> None:
        self.tree, self.number = tree, number  # Kaldi's phones to ours
        self.side: list[int] = []
        self.member: list[np.ndarray] = []
        self.yes: list[int] = []
        self.no: list[int] = []
        self.built: dict[tuple[Node, int | None, int | None], int] = {}
        self.keys: dict[Node, frozenset[int]] = {}

    def add(self, side: int, members: frozenset[int], yes: int, no: int) -> int:
        member = np.zeros(max(self.number.values()) + 1, bool)
        member[[self.number[phone] for phone in members if phone in self.number]] = True
        member[0] = 0 in members
        self.side.append(side)
        self.member.append(member)
        self.yes.append(yes)
        self.no.append(no)
        return len(self.side) - 1

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
            raise Speech3Error(f"phone {phone}, state {state}: has no pdf")
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


def _way(node: Question | Table, value: int) -> Node | None:
    if isinstance(node, Question):
        return node.yes if value in node.members else node.no
    return node.ways[value] if value < len(node.ways) else None


def to_tree(tree: KaldiTree, number: Mapping[int, int]) -> Tree:
    """Convert a tree that asks about at most one neighbour on either side, for phones of three states.

    Parameters
    ----------
    number
        Our number of each Kaldi phone to convert.

    Raises
    ------
    Speech3Error
        The window of the tree is wider, or it has no pdf for a phone of `number`.
    """
    if tree.width - tree.centre > 2 or tree.centre > 1:
        raise Speech3Error(f"the tree's window is {tree.width} phones wide, the phone itself at index {tree.centre}")
    builder = _Builder(tree, number)
    root = np.zeros((max(number.values()) + 1, THREE_STATES.states), np.int32)
    for phone, ours in number.items():
        root[ours] = [builder.build(tree.root, phone, state) for state in range(THREE_STATES.states)]
    return Tree(
        root, np.array(builder.side, np.int8), np.stack(builder.member), np.array(builder.yes, np.int32),
        np.array(builder.no, np.int32),
    )  # fmt: skip
