"""Letters and phones of words cut into graphones: pairs of a few letters and a few phones that go together.

``phone`` with ``F OW1 N`` is ``p:F  h:  o:OW1  n:N  e:``. Which cut is right is not known: the probabilities of
graphones, each independent of its neighbours, are found by expectation maximisation over all cuts (Bisani and Ney 2008,
"Joint-sequence models for grapheme-to-phoneme conversion", section 4, for n-grams of length 1).

A graphone is packed into one integer, its code: its letters, then its phones, as digits of a number whose base is the
number of letters, or of phones, plus one; 0 stands for none.

Axes: W words, T symbols of all words, A arcs of all words, C cells of a word, G graphones, S shapes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from speech3.runtime import jit

LONGEST = 2  # letters, and phones, of a graphone
# Numbers of letters and phones of graphones. With two letters as well, an n-gram model of them makes 12 % more errors.
SHAPES = ((1, 0), (0, 1), (1, 1), (1, 2))
_BAND = 4  # phones that a cut may be away from the straight line between both ends of the word
_ROUNDS = 8
_TAUGHT = 20000  # words from which the probabilities are
_BLOCK = 20000  # words whose arcs are in memory at once
_Numbers = Sequence[np.ndarray] | Sequence[Sequence[int]]  # of letters or phones, for each word
_UNSEEN = 1e-12  # probability of a graphone that was not in the words which the probabilities are from


@dataclass(frozen=True, eq=False)
class Sides:
    """Words as two sequences of numbers: their letters and their phones (or, reversed, phones and letters)."""

    # left_T, right_T: int64, numbers from 0.
    left_T: np.ndarray
    right_T: np.ndarray
    # left_W, right_W: (W + 1,) int64: where each word begins in them.
    left_W: np.ndarray
    right_W: np.ndarray
    sizes: tuple[int, int]  # how many different numbers there are on each side

    def __len__(self) -> int:
        return len(self.left_W) - 1

    def some(self, first: int, last: int, step: int = 1) -> "Sides":
        """Every `step`-th of the words from `first` to before `last`."""
        words = range(first, min(last, len(self)), step)
        lefts = [self.left_T[self.left_W[w] : self.left_W[w + 1]] for w in words]
        rights = [self.right_T[self.right_W[w] : self.right_W[w + 1]] for w in words]
        return sides(lefts, rights, self.sizes)


def _joined(rows: _Numbers) -> tuple[np.ndarray, np.ndarray]:
    starts_W = np.cumsum([0, *map(len, rows)])
    return np.concatenate([np.zeros(0, np.int64), *(np.asarray(row, np.int64) for row in rows)]), starts_W


def sides(lefts: _Numbers, rights: _Numbers, sizes: tuple[int, int]) -> Sides:
    left_T, left_W = _joined(lefts)
    right_T, right_W = _joined(rights)
    return Sides(left_T, right_T, left_W, right_W, sizes)


def numbered(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], left: Sequence[str], right: Sequence[str]) -> Sides:
    """`Sides` of words given as two sequences of symbols, which are numbered in the order of `left` and `right`."""
    left_ids, right_ids = ({symbol: number for number, symbol in enumerate(side)} for side in (left, right))
    lefts = [[left_ids[symbol] for symbol in pair[0]] for pair in pairs]
    rights = [[right_ids[symbol] for symbol in pair[1]] for pair in pairs]
    return sides(lefts, rights, (len(left), len(right)))


@dataclass(frozen=True, eq=False)
class Arcs:
    """The graphones that each word may be cut into: arcs between its cells, in the order of the cells they leave.

    A cell is a number of letters and of phones that are behind it: i (phones + 1) + j.
    """

    starts_W: np.ndarray  # (W + 1,) int64: the first arc of each word
    cells_W: np.ndarray  # (W,) int64: the number of cells of each word
    # from_A, to_A: int32: the cells.
    from_A: np.ndarray
    to_A: np.ndarray
    code_A: np.ndarray  # int64: the graphones


def arcs_of(words: Sides, shapes: Sequence[tuple[int, int]] = SHAPES) -> Arcs:
    """All arcs that lie on a path from the first cell of a word to its last, within a band."""
    shape_S2 = np.array(shapes, np.int64)
    arguments = (words.left_T, words.right_T, words.left_W, words.right_W, shape_S2, *words.sizes)
    nothing = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64)
    starts_W = np.zeros(len(words) + 1, np.int64)
    _fill_arcs(*arguments, starts_W, *nothing, False)
    size = starts_W[-1]
    from_A, to_A, code_A = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int64)
    _fill_arcs(*arguments, starts_W, from_A, to_A, code_A, True)
    cells_W = (np.diff(words.left_W) + 1) * (np.diff(words.right_W) + 1)
    return Arcs(starts_W, cells_W, from_A, to_A, code_A)


@jit
def _fill_arcs(left_T, right_T, left_W, right_W, shape_S2, lefts, rights, starts_W, from_A, to_A, code_A, write):  # type: ignore[no-untyped-def]
    arc = 0
    for word in range(len(left_W) - 1):
        left, right = left_T[left_W[word] : left_W[word + 1]], right_T[right_W[word] : right_W[word + 1]]
        size_i, size_j = len(left), len(right)
        slope = size_j / max(size_i, 1)
        band = _BAND + slope
        # Cells from which the end can be reached, then arcs from cells that can be reached.
        ends = np.zeros((size_i + 1, size_j + 1), np.bool_)
        ends[size_i, size_j] = True
        for i in range(size_i, -1, -1):
            for j in range(size_j, -1, -1):
                for s in range(len(shape_S2)):
                    to_i, to_j = i + shape_S2[s, 0], j + shape_S2[s, 1]
                    if to_i <= size_i and to_j <= size_j and abs(j - i * slope) <= band and ends[to_i, to_j]:
                        ends[i, j] = True
        reached = np.zeros((size_i + 1, size_j + 1), np.bool_)
        reached[0, 0] = ends[0, 0]
        for i in range(size_i + 1):
            for j in range(size_j + 1):
                if not reached[i, j]:
                    continue
                for s in range(len(shape_S2)):
                    to_i, to_j = i + shape_S2[s, 0], j + shape_S2[s, 1]
                    if to_i > size_i or to_j > size_j or not ends[to_i, to_j]:
                        continue
                    reached[to_i, to_j] = True
                    # The graphone's code (see the module).
                    if write:
                        code = 0
                        for place in range(LONGEST):
                            code = code * (lefts + 1) + (left[i + place] + 1 if i + place < to_i else 0)
                        for place in range(LONGEST):
                            code = code * (rights + 1) + (right[j + place] + 1 if j + place < to_j else 0)
                        code_A[arc] = code
                        from_A[arc], to_A[arc] = i * (size_j + 1) + j, to_i * (size_j + 1) + to_j
                    arc += 1
        starts_W[word + 1] = arc


def symbols_of(code_G: np.ndarray, sizes: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The letters and phones of graphones, (G, LONGEST) each, -1 for none."""
    columns = []
    rest_G = code_G.copy()
    for base in [sizes[1] + 1] * LONGEST + [sizes[0] + 1] * LONGEST:
        columns.append(rest_G % base - 1)
        rest_G //= base
    right, left = columns[:LONGEST][::-1], columns[LONGEST:][::-1]
    return np.stack(left, axis=1), np.stack(right, axis=1)


@dataclass(frozen=True, eq=False)
class Graphones:
    """Graphones with their probabilities, sorted by their codes."""

    code_G: np.ndarray
    prob_G: np.ndarray

    def prob_of(self, code_A: np.ndarray) -> np.ndarray:
        place_A = np.minimum(np.searchsorted(self.code_G, code_A), len(self.code_G) - 1)
        return np.where(self.code_G[place_A] == code_A, self.prob_G[place_A], _UNSEEN)


def learn(words: Sides, shapes: Sequence[tuple[int, int]] = SHAPES, rounds: int = _ROUNDS) -> Graphones:
    """Probabilities of graphones by expectation maximisation, from all words or evenly drawn ones."""
    arcs = arcs_of(words.some(0, len(words), -(-len(words) // _TAUGHT)), shapes)
    code_G, graphone_A = np.unique(arcs.code_A, return_inverse=True)
    prob_G = np.full(len(code_G), 1 / max(len(code_G), 1))
    for _ in range(rounds):
        count_G = np.zeros(len(code_G))
        _expect(arcs.starts_W, arcs.cells_W, arcs.from_A, arcs.to_A, graphone_A, prob_G, count_G)
        prob_G = count_G / count_G.sum()
    return Graphones(code_G, prob_G)


@jit
def _expect(starts_W, cells_W, from_A, to_A, graphone_A, prob_G, count_G):  # type: ignore[no-untyped-def]
    """Add the expected number of each graphone in the words to `count_G` (forward-backward, scaled arc by arc)."""
    log_G = np.log(np.maximum(prob_G, 1e-300))
    for word in range(len(starts_W) - 1):
        first, end, cells = starts_W[word], starts_W[word + 1], cells_W[word]
        if first == end:
            continue
        # The best path first: with its scores taken off, sums over paths can neither underflow nor overflow.
        best = np.full(cells, -np.inf)
        best[0] = 0.0
        for arc in range(first, end):
            score = best[from_A[arc]] + log_G[graphone_A[arc]]
            if score > best[to_A[arc]]:
                best[to_A[arc]] = score
        # Forward-backward; each arc's posterior is a part of its graphone's expected count.
        forward, backward = np.zeros(cells), np.zeros(cells)
        forward[0], backward[cells - 1] = 1.0, 1.0
        weight = np.empty(end - first)
        for arc in range(first, end):
            source, target = from_A[arc], to_A[arc]
            weight[arc - first] = np.exp(best[source] + log_G[graphone_A[arc]] - best[target])
            forward[target] += forward[source] * weight[arc - first]
        for arc in range(end - 1, first - 1, -1):
            backward[from_A[arc]] += backward[to_A[arc]] * weight[arc - first]
        total = forward[cells - 1]
        for arc in range(first, end):
            share = forward[from_A[arc]] * weight[arc - first] * backward[to_A[arc]] / total
            count_G[graphone_A[arc]] += share


def cut(words: Sides, graphones: Graphones, shapes: Sequence[tuple[int, int]] = SHAPES) -> Iterator[np.ndarray]:
    """The codes of the most probable cut of each word, int64; empty for a word that cannot be cut."""
    for first in range(0, len(words), _BLOCK):
        arcs = arcs_of(words.some(first, first + _BLOCK), shapes)
        log_A = np.log(np.maximum(graphones.prob_of(arcs.code_A), 1e-300))
        code_T, ends_W = _best_paths(arcs.starts_W, arcs.cells_W, arcs.from_A, arcs.to_A, arcs.code_A, log_A)
        yield from np.split(code_T, ends_W[:-1])


@jit
def _best_paths(starts_W, cells_W, from_A, to_A, code_A, log_A):  # type: ignore[no-untyped-def]
    code_T = np.empty(len(code_A), np.int64)
    ends_W = np.zeros(len(cells_W), np.int64)
    size = 0
    for word in range(len(cells_W)):
        cells = cells_W[word]
        # Viterbi: the best arc into each cell, then back from the last cell.
        best, arc_C = np.full(cells, -np.inf), np.full(cells, -1)
        best[0] = 0.0
        for arc in range(starts_W[word], starts_W[word + 1]):
            score = best[from_A[arc]] + log_A[arc]
            if score > best[to_A[arc]]:
                best[to_A[arc]], arc_C[to_A[arc]] = score, arc
        begin, cell = size, cells - 1
        while cell and arc_C[cell] >= 0:
            code_T[size] = code_A[arc_C[cell]]
            size += 1
            cell = from_A[arc_C[cell]]
        # The word cannot be cut: no path came from its beginning.
        if cell:
            size = begin
        # Into the order of the word, one by one: numba takes three seconds to compile the assignment of a slice.
        for place in range((size - begin) // 2):
            low, high = begin + place, size - 1 - place
            code_T[low], code_T[high] = code_T[high], code_T[low]
        ends_W[word] = size
    return code_T[:size].copy(), ends_W
