"""Lattices with separate costs for two language models: the one used in the search, and a new one.

Each state of a word lattice is copied for every pair of states of the two models in which paths to it end. With the
costs of both models on each arc, it can be turned into the lattice of any interpolation of them.

A model is an automaton with failure transitions (Mohri et al. 2008): a state is a history, and a word without an arc
there is looked up in the state's back-off state, at the cost of backing off. That is the cost of words under the new
model. In a decoding graph, back-off arcs are ordinary arcs: a word with an arc of its own is also reached through the
back-off state, where that is cheaper. So to remove the cost of the old model, the same minimum is computed, over a set
of states, each with a residual cost: the cost of the cheapest path to it, minus that of the cheapest path to any of
them. For an n-gram model of order n, a set has at most n - 1 states.

Axes: S states, S1 one more, A arcs, A1 one more, K pdfs of all arcs. Sets are lists of (state, residual cost).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speech3.decode.beam_search import costs_to_end
from speech3.decode.grammar import bare, continues, mark_of
from speech3.decode.word_lattice import WordLattice, joined_ranges
from speech3.errors import DataError
from speech3.io import Fst
from speech3.language import ArpaLm, states_of
from speech3.runtime import jit

NO_WORD = -1
_TEN = np.log(10.0)
_TOLERANCE = 1e-3  # tolerance of costs, as in `word_lattice`
_SEED, _PRIME = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x100000001B3)
_MAX_ARCS = 4_000_000  # arcs: half a gigabyte


class LmStates(NamedTuple):
    """A language model as arrays for compiled code."""

    start: int  # the state in which a sentence begins
    # int64: the arcs of state s are those from begin_S1[s] to begin_S1[s + 1], in the order of their words
    begin_S1: np.ndarray
    # word_A, target_A, cost_A: int64 words and states; float64 costs, minus natural logarithms of probabilities
    word_A: np.ndarray
    target_A: np.ndarray
    cost_A: np.ndarray
    # backoff_S, backoff_cost_S: int64 state in which words without an arc are looked up, -1 if there is none; float64
    # cost of backing off
    backoff_S: np.ndarray
    backoff_cost_S: np.ndarray
    final_S: np.ndarray  # float64 final costs; infinite if the final cost is to be looked up in the back-off state


def of_arpa(lm: ArpaLm) -> tuple[LmStates, dict[str, int]]:
    """The states of an n-gram model, and the number of each of its words."""
    states = states_of(lm)
    arcs = states.source_A, lm.word_G[states.node_A], states.target_A, -_TEN * lm.prob_G[states.node_A]
    backoff_cost_S = np.where(states.backoff_S >= 0, -_TEN * lm.backoff_H[states.node_S], 0.0)
    return _arranged(states.start, arcs, states.backoff_S, backoff_cost_S, -_TEN * states.final_S), lm.numbers


def of_grammar(fst: Fst, backoff_label: int, path: Path | str) -> LmStates:
    """The states of the G that a graph was made from (`grammar.Grammar`); words are its labels.

    Refused if a sequence of words may have several paths, as in some grammars; `path` is for messages.
    """
    ilabel_A, states = fst.arcs_A["ilabel"], len(fst.final_S)
    back_A = ilabel_A == backoff_label
    source_A, arcs_A = fst.source_A[~back_A], fst.arcs_A[~back_A]
    backs, back_arcs = fst.source_A[back_A], fst.arcs_A[back_A]
    pairs = np.stack([source_A, arcs_A["ilabel"]])
    several = len(np.unique(pairs, axis=1).T) < pairs.shape[1] or len(np.unique(backs)) < len(backs)
    if several or (arcs_A["ilabel"] == 0).any() or fst.start < 0:
        raise DataError(
            f"{path}: a sequence of words may have several paths in this grammar, so its cost cannot be removed from"
            " lattices; decode with the graph of an n-gram model"
        )
    backoff_S, backoff_cost_S = np.full(states, -1), np.zeros(states)
    backoff_S[backs], backoff_cost_S[backs] = back_arcs["nextstate"], back_arcs["weight"]
    arcs = source_A, arcs_A["ilabel"], arcs_A["nextstate"], arcs_A["weight"]
    return _arranged(int(fst.start), arcs, backoff_S, backoff_cost_S, fst.final_S)


def _arranged(
    start: int,
    arcs: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    backoff_S: np.ndarray,
    backoff_cost_S: np.ndarray,
    final_S: np.ndarray,
) -> LmStates:
    """The states with their arcs (source, word, target, cost) in order."""
    source_A, word_A, target_A, cost_A = arcs
    order_A = np.lexsort((word_A, source_A))
    begin_S1 = np.searchsorted(source_A[order_A], np.arange(len(final_S) + 1))
    word_A, target_A, backoff_S = (each.astype(np.int64) for each in (word_A[order_A], target_A[order_A], backoff_S))
    cost_A, final_S = cost_A[order_A].astype(np.float64), final_S.astype(np.float64)
    return LmStates(start, begin_S1, word_A, target_A, cost_A, backoff_S, backoff_cost_S, final_S)


@jit
def arc_of(lm, state, word):  # type: ignore[no-untyped-def]
    """The arc of a state that reads a word, -1 if it has none."""
    low, end = lm.begin_S1[state], lm.begin_S1[state + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if lm.word_A[middle] < word:
            low = middle + 1
        else:
            high = middle
    return low if low < end and lm.word_A[low] == word else -1


@jit
def step(lm, state, word):  # type: ignore[no-untyped-def]
    """Cost of a word in a state, and the state after it; the cost is infinite if the model lacks the word."""
    total = 0.0
    while state >= 0:
        arc = arc_of(lm, state, word)
        if arc >= 0:
            return total + lm.cost_A[arc], lm.target_A[arc]
        total += lm.backoff_cost_S[state]
        state = lm.backoff_S[state]
    return np.inf, lm.start


@jit
def end_cost(lm, state):  # type: ignore[no-untyped-def]
    total = 0.0
    while state >= 0:
        if lm.final_S[state] < np.inf:
            return total + lm.final_S[state]
        total += lm.backoff_cost_S[state]
        state = lm.backoff_S[state]
    return np.inf


def cheapest_cost(lm: LmStates, words: Sequence[int]) -> float:
    """The lowest cost of a sentence, its end included; infinite if no path has its words."""
    return float(_cheapest_cost(lm, np.array(words, np.int64)))


@jit
def _cheapest_cost(lm, words):  # type: ignore[no-untyped-def]
    elements, begin, total = [(np.int64(lm.start), 0.0)], 0, 0.0
    for word in words:
        end = len(elements)
        total += step_set(lm, elements, begin, end, word)
        begin = end
    return total + end_set(lm, elements, begin, len(elements))


@jit
def step_set(lm, elements, begin, end, word):  # type: ignore[no-untyped-def]
    """Append the set after a word to `elements`; return the cost of the cheapest path to it, infinite if there is none.

    The set before the word reaches from `begin` to `end`.
    """
    fresh = len(elements)
    for number in range(begin, end):
        state, cost = elements[number]
        while state >= 0:
            arc = arc_of(lm, state, word)
            if arc >= 0:
                _put(elements, fresh, lm.target_A[arc], cost + lm.cost_A[arc])
            cost += lm.backoff_cost_S[state]
            state = lm.backoff_S[state]
    return _tidied(lm, elements, fresh)


@jit
def _put(elements, fresh, state, cost):  # type: ignore[no-untyped-def]
    """Insert an element in the order of states; of two with the same state, keep the cheaper one."""
    place = fresh
    while place < len(elements) and elements[place][0] < state:
        place += 1
    if place < len(elements) and elements[place][0] == state:
        if cost < elements[place][1]:
            elements[place] = (state, cost)
    else:
        elements.insert(place, (state, cost))


@jit
def _tidied(lm, elements, fresh):  # type: ignore[no-untyped-def]
    """Drop elements that another one reaches as cheaply by backing off; subtract the least cost from all; return it."""
    best = np.inf
    for number in range(fresh, len(elements)):
        best = min(best, elements[number][1])
    # An element is superfluous if another one reaches its state by back-off arcs at no higher cost.
    for number in range(fresh, len(elements)):
        state, cost = elements[number]
        cost += lm.backoff_cost_S[state]
        state = lm.backoff_S[state]
        while state >= 0:
            for other in range(fresh, len(elements)):
                there, so_far = elements[other]
                if there == state and so_far >= cost - 1e-9:
                    elements[other] = (there, np.inf)
            cost += lm.backoff_cost_S[state]
            state = lm.backoff_S[state]
    # Close the gaps.
    kept = fresh
    for number in range(fresh, len(elements)):
        state, cost = elements[number]
        if cost < np.inf:
            elements[kept] = (state, cost - best)
            kept += 1
    del elements[kept:]
    return best


@jit
def end_set(lm, elements, begin, end):  # type: ignore[no-untyped-def]
    """The lowest cost of ending the sentence after a set."""
    best = np.inf
    for number in range(begin, end):
        state, cost = elements[number]
        while state >= 0:
            best = min(best, cost + lm.final_S[state])
            cost += lm.backoff_cost_S[state]
            state = lm.backoff_S[state]
    return best


@jit
def number_of_set(elements, first, newest, newest_same):  # type: ignore[no-untyped-def]
    """The number of the last set of `elements`, which is removed if an equal set exists already.

    Set s reaches from ``first[s]`` to ``first[s + 1]``, and the last one begins at ``first[-1]``. Sets with the same
    hash of their states are chained: `newest` has the newest of them by hash, `newest_same` the one before each set.
    """
    fresh, key = first[-1], _SEED
    # A hash of the states, without the costs, which may differ by rounding.
    for number in range(fresh, len(elements)):
        key = (key ^ np.uint64(elements[number][0])) * _PRIME
    # Compare with the sets of the same hash, from the newest to the oldest.
    latest = newest[key] if key in newest else -1  # noqa: SIM401  # numba: get may be None
    found = latest
    while found >= 0 and not _alike(elements, first[found], first[found + 1], fresh):
        found = newest_same[found]
    if found >= 0:
        del elements[fresh:]
        return found
    newest[key] = len(first) - 1
    newest_same.append(latest)
    first.append(len(elements))
    return len(first) - 2


@jit
def _alike(elements, begin, end, other):  # type: ignore[no-untyped-def]
    if end - begin != len(elements) - other:
        return False
    for number in range(end - begin):
        state_1, rest_1 = elements[begin + number]
        state_2, rest_2 = elements[other + number]
        if state_1 != state_2 or abs(rest_1 - rest_2) > _TOLERANCE:
            return False
    return True


@dataclass(frozen=True, eq=False)
class Reading:
    """The words that a language model scores along a lattice."""

    word_A: np.ndarray  # int64 word that each arc completes; `NO_WORD` where it completes none
    last_S: np.ndarray  # int64 word that is completed where a path ends in each state; `NO_WORD` if there is none


@dataclass(frozen=True, eq=False)
class Composed:
    """A lattice with the costs of both language models, float64: of its arcs, and of ending in its states."""

    lattice: WordLattice
    old_A: np.ndarray
    new_A: np.ndarray
    old_S: np.ndarray
    new_S: np.ndarray

    def mixed(self, weight: float) -> WordLattice:
        """The lattice with ``(1 - weight) * old + weight * new`` in place of the old model's costs.

        This interpolates log probabilities: weight 0 leaves the lattice unchanged, 1 uses the new model alone.
        """
        graph_A = self.lattice.graph_A + weight * (self.new_A - self.old_A)
        more_S = np.where(np.isfinite(self.lattice.final_graph_S), weight * (self.new_S - self.old_S), 0.0)
        return replace(self.lattice, graph_A=graph_A, final_graph_S=self.lattice.final_graph_S + more_S)


def plain_reading(lattice: WordLattice, number_W: np.ndarray) -> Reading:
    """The reading of a lattice of whole words; `number_W` maps the lattice's symbols to the language model's words."""
    return Reading(number_W[lattice.word_A].astype(np.int64), np.full(len(lattice.frame_S), NO_WORD, np.int64))


def expand_pieces(lattice: WordLattice, symbols: tuple[str, ...]) -> tuple[WordLattice, list[str], list[str]]:
    """Expand a lattice of word pieces so that all paths to a state have the same unfinished word.

    Returns
    -------
    lattice
    words
        For each arc, the word that it completes because its piece begins the next one; "" if it completes none.
    last
        For each state, the word that is completed where a path ends there.
    """
    begin_S1 = np.searchsorted(lattice.source_A, np.arange(len(lattice.frame_S) + 1)).tolist()
    mark = mark_of(symbols)
    target_A, pieces = lattice.target_A.tolist(), [symbols[word] for word in lattice.word_A.tolist()]
    parts: list[dict[str, int]] = [{} for _ in lattice.frame_S]
    parts[0] = {"": 0}
    arcs: list[tuple[tuple[int, str], tuple[int, str], int, str]] = []
    for state, known in enumerate(parts):
        for part in known:
            for arc in range(begin_S1[state], begin_S1[state + 1]):
                begins, piece = not continues(pieces[arc], mark), bare(pieces[arc])
                after = piece if begins else part + piece
                parts[target_A[arc]][after] = 0
                arcs.append(((state, part), (target_A[arc], after), arc, part if begins else ""))
    ways = [(state, part) for state, known in enumerate(parts) for part in known]
    number = {way: place for place, way in enumerate(ways)}
    places = np.array([(number[source], number[target], arc) for source, target, arc, _ in arcs], np.int64)
    state_S = np.array([state for state, _ in ways], np.int64)
    order_A, expanded = _picked(lattice, places.reshape(-1, 3), state_S)
    return expanded, [arcs[place][3] for place in order_A.tolist()], [part for _, part in ways]


def composed(
    lattice: WordLattice, old: LmStates, old_reading: Reading, new: LmStates, new_reading: Reading
) -> Composed:
    """Compose a lattice with both language models.

    Raises `Speech3Error`: a path of the lattice has infinite cost under one of the models, or there are more than
    `_MAX_ARCS` arcs.
    """
    shape = lattice.source_A, lattice.target_A.astype(np.int64), np.isfinite(lattice.final_graph_S)
    read = old, old_reading.word_A, old_reading.last_S, new, new_reading.word_A, new_reading.last_S
    arcs, costs, states, ends, enough = _composed(*shape, *read, _MAX_ARCS)
    if not enough:
        raise DataError(
            f"more than {_MAX_ARCS:,} arcs with the histories of the language model; use one of lower order"
        )
    costs_A2, ends_S2 = np.array(costs, np.float64).reshape(-1, 2), np.array(ends, np.float64).reshape(-1, 2)
    for place, which in ((0, "used in the search"), (1, "used for rescoring")):
        if np.isinf(costs_A2[:, place]).any() or np.isinf(ends_S2[:, place]).any():
            raise DataError(f"it contains a word that the language model {which} does not allow there")
    order_S = np.argsort(np.array(states), kind="stable")
    number_S = np.empty(len(order_S), np.int64)
    number_S[order_S] = np.arange(len(order_S))
    places = np.array(arcs, np.int64).reshape(-1, 3)
    places[:, :2] = number_S[places[:, :2]]
    order_A, expanded = _picked(lattice, places, np.array(states)[order_S])
    return Composed(expanded, *costs_A2[order_A].T, *ends_S2[order_S].T)


def _picked(lattice: WordLattice, places_A3: np.ndarray, state_S: np.ndarray) -> tuple[np.ndarray, WordLattice]:
    """The order of the new arcs, and a lattice made of copies of another one's arcs and states.

    A row of `places_A3` is (source, target, arc of the other lattice); `state_S` has the other lattice's state for each
    new state.
    """
    order_A = np.lexsort((places_A3[:, 1], places_A3[:, 0]))
    source_A, target_A, arc_A = places_A3[order_A].T
    picked_K, begin_A1 = joined_ranges(lattice.begin_A1[arc_A], np.diff(lattice.begin_A1)[arc_A])
    picked = replace(
        lattice,
        source_A=source_A.astype(np.int32),
        target_A=target_A.astype(np.int32),
        word_A=lattice.word_A[arc_A],
        graph_A=lattice.graph_A[arc_A],
        acoustic_A=lattice.acoustic_A[arc_A],
        final_graph_S=lattice.final_graph_S[state_S],
        final_acoustic_S=lattice.final_acoustic_S[state_S],
        pdfs_K=lattice.pdfs_K[picked_K],
        begin_A1=begin_A1,
        final_pdfs_S=tuple(lattice.final_pdfs_S[state] for state in state_S),
        frame_S=lattice.frame_S[state_S],
    )
    return order_A, picked


def pruned(lattice: WordLattice, acoustic_scale: float, beam: float) -> WordLattice:
    """The lattice without arcs and states whose best path costs more than the best path of all plus `beam`."""
    costs_A, final_S = lattice.costs_A(acoustic_scale), lattice.final_costs_S(acoustic_scale)
    rest_S = costs_to_end(lattice.source_A, lattice.target_A, costs_A, final_S)
    before_S = _costs_from_start(lattice.source_A, lattice.target_A, costs_A, len(final_S))
    # The best path through an arc: forward cost, its own, rest cost.
    limit = rest_S[0] + beam + 1e-6
    through_A = before_S[lattice.source_A] + costs_A + rest_S[lattice.target_A]
    kept_S = np.flatnonzero(before_S + rest_S <= limit)
    number_S = np.full(len(final_S), -1, np.int64)
    number_S[kept_S] = np.arange(len(kept_S))
    kept_A = np.flatnonzero(through_A <= limit)
    places = np.stack([number_S[lattice.source_A[kept_A]], number_S[lattice.target_A[kept_A]], kept_A], axis=1)
    _, left = _picked(lattice, places, kept_S)
    ends_S = before_S[kept_S] + final_S[kept_S] <= limit
    return replace(
        left,
        final_graph_S=np.where(ends_S, left.final_graph_S, np.inf),
        final_acoustic_S=np.where(ends_S, left.final_acoustic_S, np.inf),
        final_pdfs_S=tuple(
            pdfs if ends else pdfs[:0] for pdfs, ends in zip(left.final_pdfs_S, ends_S.tolist(), strict=True)
        ),
    )


@jit
def _costs_from_start(source, target, costs, states):  # type: ignore[no-untyped-def]
    before = np.full(states, np.inf)
    before[0] = 0.0
    for a in range(len(source)):
        before[target[a]] = min(before[target[a]], before[source[a]] + costs[a])
    return before


@jit
def _composed(source, target, ends, old, old_word, old_last, new, new_word, new_last, most):  # type: ignore[no-untyped-def]
    """(source, target, lattice arc) and costs of each arc, the lattice state and final costs of each state, success."""
    lattice_states = len(ends)
    begin = np.searchsorted(source, np.arange(lattice_states + 1))
    elements, set_begin = [(np.int64(old.start), 0.0)], [0, 1]  # set 0: the start
    newest, newest_same = {np.uint64(0): -1}, [-1]
    place_of = {(0, 0, new.start): 0}
    states = [(0, 0, new.start)]
    first, last, following = np.full(lattice_states, -1), np.full(lattice_states, -1), [-1]
    first[0], last[0] = 0, 0
    arcs, costs = [(0, 0, 0)], [(0.0, 0.0)]
    arcs.clear()
    costs.clear()
    # Lattice states are in topological order: all triples of a state are known when it is visited.
    for s in range(lattice_states):
        place = first[s]
        while place >= 0 and len(arcs) <= most:
            _, at_old, at_new = states[place]
            for a in range(begin[s], begin[s + 1]):
                # Both read the arc's word: the old model as a set of states, the new one as its only state.
                old_cost, old_after = 0.0, at_old
                if old_word[a] >= 0:
                    old_cost = step_set(old, elements, set_begin[at_old], set_begin[at_old + 1], old_word[a])
                    old_after = number_of_set(elements, set_begin, newest, newest_same)
                new_cost, new_after = 0.0, at_new
                if new_word[a] >= 0:
                    new_cost, new_after = step(new, at_new, new_word[a])
                # The triple that the arc enters, appended to the linked list of its lattice state if it is new.
                after = (target[a], old_after, new_after)
                if after in place_of:
                    there = place_of[after]
                else:
                    there = len(states)
                    place_of[after] = there
                    states.append(after)
                    following.append(-1)
                    if first[target[a]] < 0:
                        first[target[a]] = there
                    else:
                        following[last[target[a]]] = there
                    last[target[a]] = there
                arcs.append((place, there, a))
                costs.append((old_cost, new_cost))
            place = following[place]
    # Ends: the word that is finished there, if any, then the end of the sentence.
    finals = [(0.0, 0.0)]
    finals.clear()
    for s, at_old, at_new in states:
        old_cost, new_cost = 0.0, 0.0
        if ends[s]:
            if old_last[s] >= 0:
                old_cost = step_set(old, elements, set_begin[at_old], set_begin[at_old + 1], old_last[s])
                at_old = number_of_set(elements, set_begin, newest, newest_same)
            if new_last[s] >= 0:
                new_cost, at_new = step(new, at_new, new_last[s])
            end = end_set(old, elements, set_begin[at_old], set_begin[at_old + 1])
            if end < np.inf:  # else the recording ended within a sentence of the grammar: the search added no such cost
                old_cost += end
                new_cost += end_cost(new, at_new)
        finals.append((old_cost, new_cost))
    return arcs, costs, [s for s, _, _ in states], finals, len(arcs) <= most


def numbers_of(symbols: tuple[str, ...], numbers: Mapping[str, int], unknown: str) -> np.ndarray:
    """(W,) int64: the language model's number of each symbol; for words it lacks, that of `unknown`, or `NO_WORD`."""
    other = numbers.get(unknown, NO_WORD)
    return np.array([numbers.get(symbol, other) for symbol in symbols], np.int64)
