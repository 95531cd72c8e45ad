"""The phonetic decision tree as a function from (left phone, phone, right phone, state) to pdf (Young et al. 1994).

`hmm.questions` and `hmm.clustering` grow it.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from speech3.hmm.topology import THREE_STATES

LEFT, CENTRE, RIGHT = 0, 1, 2


ARRAYS = ("root", "side", "member", "yes", "no")  # of a tree


@dataclass(frozen=True, eq=False)
class Tree:
    """Binary trees in arrays, one root for each (phone, state).

    Attributes
    ----------
    root
        (P + 1, states) int32: the node at which to start; row 0 is unused.
    side
        (nodes,) int8: which phone the node asks about, LEFT, CENTRE or RIGHT; -1 at a leaf.
    member
        (nodes, P + 1) bool: is the phone in the question's set? Column 0 is "beyond the end".
    yes, no
        (nodes,) int32: the next node; at a leaf both hold the pdf.
    """

    root: np.ndarray
    side: np.ndarray
    member: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    _known: dict[tuple[int, int, int], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    def same_as(self, other: "Tree") -> bool:
        """Whether both have the same nodes, and so give the same pdfs."""
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ARRAYS)

    @cached_property
    def phone_classes(self) -> np.ndarray:
        """(P + 1,) int: phones that share a pdf have the same number, that of the first of them."""
        first: dict[int, int] = {}  # pdf -> first phone that has it
        number = np.arange(len(self.root))
        for phone in range(1, len(self.root)):
            nodes, pdfs = list(self.root[phone]), set()
            while nodes:
                node = nodes.pop()
                if self.side[node] < 0:
                    pdfs.add(int(self.yes[node]))
                else:
                    nodes += [self.yes[node], self.no[node]]
            for other in {int(number[first.setdefault(pdf, phone)]) for pdf in pdfs}:
                number[number == number[phone]] = min(other, number[phone])
                number[number == other] = number[phone]
        return number

    @property
    def states(self) -> int:
        """Emitting states of a phone."""
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


def context_free_tree(pdfs_PS: np.ndarray) -> Tree:
    """A tree that ignores neighbours: `pdfs_PS` (P, states) holds the pdf of each state of each phone, from phone 1."""
    root = np.zeros((len(pdfs_PS) + 1, pdfs_PS.shape[1]), np.int32)
    root[1:] = pdfs_PS  # node j is the leaf of pdf j
    pdfs = np.arange(pdfs_PS.max() + 1, dtype=np.int32)
    return Tree(root, np.full(len(pdfs), -1, np.int8), np.zeros((len(pdfs), len(root)), bool), pdfs, pdfs.copy())


def monophone_tree(number_P: np.ndarray, states: int = THREE_STATES.states) -> Tree:
    """A tree with one pdf per state of a phone; phones with one number in `number_P` (from 0, no gaps) share theirs."""
    return context_free_tree(np.asarray(number_P)[:, None] * states + np.arange(states))
