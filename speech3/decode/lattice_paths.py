"""Paths of word lattices: the N best, the one with the fewest errors (oracle), and minimum Bayes risk.

Minimum Bayes risk (Xu et al. 2011; Kaldi's sausages.cc): the expected number of word errors of a hypothesis is the mean
of its edit distances to all paths, weighted by their posteriors. Where paths that meet in a state are aligned
differently, their distances are averaged. Each position of the hypothesis (each word, and the gaps around it) gets a
distribution over the words that paths have there. Taking the most probable word in every position never raises the
expected errors, so this is repeated until nothing changes.

Axes: S states, A arcs, Q positions of the hypothesis, Q1 one more, R1 one more than the words of the reference,
W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from speech3.decode.beam_search import costs_to_end
from speech3.decode.word_lattice import WordLattice
from speech3.runtime import jit

_GAP = 1e-5  # extra cost of aligning a word with a gap, so that words prefer to align with words
_PASSES = 100
MOST_PATHS = 10_000  # of an N-best list: what the search keeps grows with their number


@dataclass(frozen=True)
class WordPath:
    """A path through a word lattice: its words (symbols of the graph), its total cost, and the numbers of its arcs."""

    words: tuple[int, ...]
    cost: float
    arcs: tuple[int, ...]

    def acoustic_cost(self, lattice: WordLattice) -> float:
        last = int(lattice.target_A[self.arcs[-1]]) if self.arcs else 0
        return float(lattice.acoustic_A[list(self.arcs)].sum() + lattice.final_acoustic_S[last])


def nbest(lattice: WordLattice, n: int, acoustic_scale: float) -> list[WordPath]:
    """Up to `n` paths, cheapest first; no two of them have the same words.

    This is A* search: partial paths are extended in the order of the best complete path that they can become.
    """
    costs_A, final_S = lattice.costs_A(acoustic_scale), lattice.final_costs_S(acoustic_scale)
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
        if state < 0:  # a complete path, so no other can become cheaper
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
    arcs = []
    while link >= 0:
        link, arc = links[link]
        arcs.append(arc)
    return tuple(reversed(arcs))


def oracle_words(lattice: WordLattice, reference: Sequence[int]) -> tuple[int, ...]:
    """The words of a path with the fewest substitutions, deletions and insertions; 0 for an arc without a word.

    Words of `reference` that are not in the graph may have any unused number.
    """
    ends_S, wanted = np.isfinite(lattice.final_graph_S), np.array(reference, np.int64)
    arcs = _oracle(lattice.source_A, lattice.target_A, lattice.word_A, ends_S, wanted)
    return tuple(lattice.word_A[list(arcs)[::-1]].tolist())


@jit
def _oracle(source, target, word, ends, reference):  # type: ignore[no-untyped-def]
    """Edit distance over an acyclic lattice: the arcs of a path with the fewest errors, in reverse order.

    ``errors`` (S, R1) holds the fewest errors on a path to each state with the first r words of the reference read.
    Arcs without a word (0) cost nothing.
    """
    words, never = len(reference), 1 << 40
    errors = np.full((len(ends), words + 1), never, np.int64)
    by, before_r = np.full(errors.shape, -1, np.int64), np.zeros(errors.shape, np.int64)
    errors[0] = np.arange(words + 1)
    # Arcs are sorted by source state, so the errors of a state are final when its arcs are reached.
    for a in range(len(source)):
        before, after = errors[source[a]], errors[target[a]]
        said = word[a] != 0
        for r in range(words + 1):
            # The arc's word is inserted, then correct or substituted, then a word of the reference deleted after it.
            if before[r] + said < after[r]:
                after[r], by[target[a], r], before_r[target[a], r] = before[r] + said, a, r
            if r and said and before[r - 1] + (word[a] != reference[r - 1]) < after[r]:
                after[r] = before[r - 1] + (word[a] != reference[r - 1])
                by[target[a], r], before_r[target[a], r] = a, r - 1
            if r and after[r - 1] + 1 < after[r]:
                after[r] = after[r - 1] + 1
                by[target[a], r], before_r[target[a], r] = by[target[a], r - 1], before_r[target[a], r - 1]
    # The final state with the fewest errors, and the arcs on the way back from it.
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


@dataclass(frozen=True)
class BayesRisk:
    """A hypothesis with its statistics from the lattice."""

    words: tuple[int, ...]  # symbols of the graph
    confidences: tuple[float, ...]  # posterior of each word in its position, from 0 to 1
    expected_errors: float  # expected number of word errors of the hypothesis


def confidences(lattice: WordLattice, words: tuple[int, ...], acoustic_scale: float) -> BayesRisk:
    """The given hypothesis with the confidence of each word."""
    return minimum_bayes_risk(lattice, words, acoustic_scale, passes=1)


def minimum_bayes_risk(
    lattice: WordLattice, words: tuple[int, ...], acoustic_scale: float, *, passes: int = _PASSES
) -> BayesRisk:
    """The hypothesis with the fewest expected errors that is found from `words`, usually those of the best path."""
    source_A, target_A, label_A, costs_A, states = _with_one_end(lattice, acoustic_scale)
    # Number the words of lattice and hypothesis from 0, no word.
    labels_W, number_A = np.unique(np.concatenate([label_A, words, [0]]).astype(np.int64), return_inverse=True)
    word_A, places = number_A[: len(label_A)].astype(np.int64), _with_gaps(number_A[len(label_A) : -1].tolist())
    best, kept = np.inf, places
    kept_gamma = np.zeros((len(places), len(labels_W)))
    for _ in range(passes):
        # The distribution over words at each position of this hypothesis; the best words are the next hypothesis.
        arcs = source_A, target_A, word_A, costs_A
        errors, gamma_QW = _statistics(*arcs, states, places, len(labels_W), _GAP)
        if not errors < best - 1e-9:
            break
        best, kept, kept_gamma = errors, places, gamma_QW
        places = _with_gaps([int(word) for word in gamma_QW.argmax(1) if word])
    said = np.flatnonzero(kept)
    posteriors = np.clip(kept_gamma[said, kept[said]], 0.0, 1.0)
    return BayesRisk(tuple(labels_W[kept[said]].tolist()), tuple(posteriors.tolist()), float(best))


def _with_gaps(words: list[int]) -> np.ndarray:
    places = np.zeros(2 * len(words) + 1, np.int64)
    places[1::2] = words
    return places


def _with_one_end(
    lattice: WordLattice, acoustic_scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """(source_A, target_A, word_A, costs_A) and the number of states, with final costs as arcs to one added end state.

    The added arcs have no word. Arcs are sorted by source state.
    """
    final_S = lattice.final_costs_S(acoustic_scale)
    last = np.flatnonzero(np.isfinite(final_S)).astype(np.int32)
    states = len(final_S) + 1
    source_A = np.concatenate([lattice.source_A, last])
    target_A = np.concatenate([lattice.target_A, np.full(len(last), states - 1, np.int32)])
    word_A = np.concatenate([lattice.word_A, np.zeros(len(last), np.int32)])
    costs_A = np.concatenate([lattice.costs_A(acoustic_scale), final_S[last]])
    order = np.argsort(source_A, kind="stable")
    return source_A[order], target_A[order], word_A[order], costs_A[order], states


@jit
def _log_add(one, other):  # type: ignore[no-untyped-def]
    if one < other:
        one, other = other, one
    return one if other == -np.inf else one + np.log1p(np.exp(other - one))


@jit
def _forward(source, target, costs, states):  # type: ignore[no-untyped-def]
    """(S,) log of the total probability of the paths to each state."""
    forward = np.full(states, -np.inf)
    forward[0] = 0.0
    for a in range(len(source)):
        forward[target[a]] = _log_add(forward[target[a]], forward[source[a]] - costs[a])
    return forward


@jit
def _edit(distance, word, places, gap, row):  # type: ignore[no-untyped-def]
    """Write to `row`, (Q1,), the edit distances at an arc's target, computed from those at its source."""
    row[0] = distance[0] + (1 + gap if word else 0.0)
    for q in range(1, len(row)):
        read = places[q - 1]
        both = distance[q - 1] + (word != read)
        row[q] = min(both, distance[q] + (1 + gap if word else 0.0), row[q - 1] + (read != 0))


@jit
def _statistics(source, target, word, costs, states, places, words, gap):  # type: ignore[no-untyped-def]
    """Expected errors of a hypothesis, and (Q, W) the posterior of each word in each of its positions."""
    many = len(places)
    # Forward: the mean edit distance to the paths to each state, weighted by their probabilities.
    alpha = _forward(source, target, costs, states)
    distance, row = np.zeros((states, many + 1)), np.empty(many + 1)
    for q in range(1, many + 1):
        distance[0, q] = distance[0, q - 1] + (places[q - 1] != 0)
    for a in range(len(source)):
        _edit(distance[source[a]], word[a], places, gap, row)
        share = np.exp(alpha[source[a]] - costs[a] - alpha[target[a]])
        for q in range(many + 1):  # numba takes seconds to compile the assignment of an array
            distance[target[a], q] += share * row[q]
    # Backward: pass the weight of each alignment back along the cheaper edit, and count words by position.
    gamma, weight, here = np.zeros((many, words)), np.zeros((states, many + 1)), np.empty(many + 1)
    weight[states - 1, many] = 1.0
    for a in range(len(source) - 1, -1, -1):
        _edit(distance[source[a]], word[a], places, gap, row)
        share = np.exp(alpha[source[a]] - costs[a] - alpha[target[a]])
        for q in range(many + 1):
            here[q] = share * weight[target[a], q]
        before, dearer = weight[source[a]], (1 + gap if word[a] else 0.0)
        for q in range(many, 0, -1):
            read = places[q - 1]
            both, alone = distance[source[a], q - 1] + (word[a] != read), distance[source[a], q] + dearer
            if both <= alone and both <= row[q - 1] + (read != 0):
                before[q - 1] += here[q]
                gamma[q - 1, word[a]] += here[q]
            elif alone <= row[q - 1] + (read != 0):
                before[q] += here[q]
            else:
                here[q - 1] += here[q]
                gamma[q - 1, 0] += here[q]
        before[0] += here[0]
    for q in range(many, 0, -1):
        weight[0, q - 1] += weight[0, q]
        gamma[q - 1, 0] += weight[0, q]
    return distance[states - 1, many], gamma
