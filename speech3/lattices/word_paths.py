"""Paths of word lattices: the N best, and the one with the fewest errors.

Axes: S states, A arcs, R1 one more than the words of the reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from speech3.io.compiled import jit
from speech3.lattices.word_lattice import WordLattice
from speech3.search.lattice import costs_to_end


@dataclass(frozen=True)
class WordPath:
    """A path through a word lattice.

    Attributes
    ----------
    words
        Indices in the graph's symbol table.
    cost
        Total cost at the given scale and word penalty.
    arcs
        Numbers of its arcs in the lattice.
    """

    words: tuple[int, ...]
    cost: float
    arcs: tuple[int, ...]

    def acoustic_cost(self, lattice: WordLattice) -> float:
        """The acoustic cost of the path in its lattice, unscaled."""
        last = int(lattice.target_A[self.arcs[-1]]) if self.arcs else 0
        return float(lattice.acoustic_A[list(self.arcs)].sum() + lattice.final_acoustic_S[last])


def nbest(lattice: WordLattice, n: int, acoustic_scale: float, word_penalty: float = 0.0) -> list[WordPath]:
    """Up to `n` paths, cheapest first; no two of them have the same words.

    This is A* search: partial paths are extended in the order of the best complete path that they can become.
    """
    costs_A = lattice.costs_A(acoustic_scale, word_penalty)
    final_S = lattice.final_costs_S(acoustic_scale)
    rest_S = costs_to_end(lattice.source_A, lattice.target_A, costs_A, final_S)
    begin_S1 = np.searchsorted(lattice.source_A, np.arange(len(final_S) + 1)).tolist()
    if not len(final_S) or np.isinf(rest_S[0]):
        return []
    number = 0  # a running number: of paths with the same cost, the older comes first
    links: list[tuple[int, int]] = []  # of each partial path: the one that it extends (-1: none), and by which arc
    queue: list[tuple[float, int, float, int, int]] = [(float(rest_S[0]), number, 0.0, 0, -1)]
    found: list[WordPath] = []
    while queue and len(found) < n:
        total, _, cost, state, link = heappop(queue)
        if state < 0:
            arcs = _arcs(links, link)
            found.append(WordPath(tuple(lattice.word_A[list(arcs)].tolist()), total, arcs))
            continue
        if np.isfinite(final_S[state]):
            number += 1
            heappush(queue, (cost + float(final_S[state]), number, cost, -1, link))
        for arc in range(begin_S1[state], begin_S1[state + 1]):
            so_far, target = cost + float(costs_A[arc]), int(lattice.target_A[arc])
            if np.isfinite(rest_S[target]):
                number += 1
                links.append((link, arc))
                heappush(queue, (so_far + float(rest_S[target]), number, so_far, target, len(links) - 1))
    return found


def _arcs(links: Sequence[tuple[int, int]], link: int) -> tuple[int, ...]:
    """The arcs of a path, from its beginning."""
    arcs = []
    while link >= 0:
        link, arc = links[link]
        arcs.append(arc)
    return tuple(reversed(arcs))


def oracle_words(lattice: WordLattice, reference: Sequence[int]) -> tuple[int, ...]:
    """The words of a path with the fewest substitutions, deletions and insertions; 0 for an arc without a word.

    Parameters
    ----------
    reference
        Indices of words in the symbol table; any unused number for words that are not in the graph.
    """
    ends_S, wanted = np.isfinite(lattice.final_graph_S), np.array(reference, np.int64)
    arcs = _oracle(lattice.source_A, lattice.target_A, lattice.word_A, ends_S, wanted)
    return tuple(lattice.word_A[list(arcs)[::-1]].tolist())


@jit
def _oracle(source, target, word, ends, reference):  # type: ignore[no-untyped-def] # pragma: no cover
    """Edit distance over an acyclic lattice: the arcs of a path with the fewest errors, in reverse order.

    ``errors`` (S, R1) holds the fewest errors on a path to each state with the first r words of the reference read.
    Arcs without a word (0) cost nothing.
    """
    words, never = len(reference), 1 << 40
    errors = np.full((len(ends), words + 1), never, np.int64)
    by, before_r = np.full(errors.shape, -1, np.int64), np.zeros(errors.shape, np.int64)
    errors[0] = np.arange(words + 1)
    for a in range(len(source)):
        before, after = errors[source[a]], errors[target[a]]
        said = word[a] != 0
        for r in range(words + 1):
            if before[r] + said < after[r]:
                after[r], by[target[a], r], before_r[target[a], r] = before[r] + said, a, r
            if r and said and before[r - 1] + (word[a] != reference[r - 1]) < after[r]:
                after[r] = before[r - 1] + (word[a] != reference[r - 1])
                by[target[a], r], before_r[target[a], r] = a, r - 1
            if r and after[r - 1] + 1 < after[r]:
                after[r] = after[r - 1] + 1
                by[target[a], r], before_r[target[a], r] = by[target[a], r - 1], before_r[target[a], r - 1]
    best, state = never, -1
    for s in range(len(ends)):
        if ends[s] and errors[s, words] < best:
            best, state = errors[s, words], s
    arcs, r = [np.int64(0)], words
    arcs.clear()
    while state > 0:
        arcs.append(by[state, r])
        state, r = source[arcs[-1]], before_r[state, r]
    return arcs
