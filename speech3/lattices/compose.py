"""Lattices with separate costs for two language models: the one used in the search, and a new one.

Each state of a word lattice is copied for every pair of states of the two models in which paths to it end (on-the-fly
composition; Kaldi's lattice-lmrescore does this with one model after the other). With the costs of both models on each
arc, the lattice can be turned into the lattice of any interpolation of them. Under the old model, the cost of words is
their cost in the graph (`lm_paths`), under the new one it is the cost that the ARPA format defines.

Axes: S states, A arcs, S1, A1 one more, K pdfs of all arcs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from speech3.errors import Speech3Error
from speech3.graph.pieces import bare, continues, mark_of
from speech3.io.compiled import jit
from speech3.lattices.lm_paths import end_set, number_of_set, step_set
from speech3.lattices.lm_states import NO_WORD, LmStates, end_cost, step
from speech3.lattices.word_lattice import WordLattice
from speech3.search.lattice import costs_to_end

_MOST = 4_000_000  # arcs: half a gigabyte


@dataclass(frozen=True, eq=False)
class Reading:
    """The words that a language model scores along a lattice.

    Attributes
    ----------
    word_A
        int64 word of the language model that each arc completes; `NO_WORD` where it completes none.
    last_S
        int64 word that is completed where a path ends in each state; `NO_WORD` if there is none.
    """

    word_A: np.ndarray
    last_S: np.ndarray


@dataclass(frozen=True, eq=False)
class Composed:
    """A lattice whose paths have the costs of both language models.

    Attributes
    ----------
    old_A, new_A, old_S, new_S
        float64 costs of the arcs and final costs under each of the two models.
    """

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


def spelled(lattice: WordLattice, symbols: tuple[str, ...]) -> tuple[WordLattice, list[str], list[str]]:
    """Expand a lattice of word pieces so that all paths to a state have the same unfinished word.

    Returns
    -------
    lattice
        The expanded lattice.
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

    Raises
    ------
    Speech3Error
        A path of the lattice has infinite cost under one of the models, or there are more than four million arcs.
    """
    arcs, costs, states, ends, enough = _composed(
        lattice.source_A, lattice.target_A.astype(np.int64), np.isfinite(lattice.final_graph_S), old,
        old_reading.word_A, old_reading.last_S, new, new_reading.word_A, new_reading.last_S, _MOST,
    )  # fmt: skip
    if not enough:
        raise Speech3Error(f"more than {_MOST:,} arcs with the histories of the language model; use one of lower order")
    costs_A2, ends_S2 = np.array(costs, np.float64).reshape(-1, 2), np.array(ends, np.float64).reshape(-1, 2)
    for place, which in ((0, "used in the search"), (1, "used for rescoring")):
        if np.isinf(costs_A2[:, place]).any() or np.isinf(ends_S2[:, place]).any():
            raise Speech3Error(f"it contains a word that the language model {which} does not allow there")
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
    length_A = np.diff(lattice.begin_A1)[arc_A]
    begin_A1 = np.concatenate([[0], np.cumsum(length_A)])
    picked_K = np.repeat(lattice.begin_A1[arc_A] - begin_A1[:-1], length_A) + np.arange(begin_A1[-1])
    return order_A, WordLattice(
        source_A.astype(np.int32), target_A.astype(np.int32), lattice.word_A[arc_A], lattice.graph_A[arc_A],
        lattice.acoustic_A[arc_A], lattice.final_graph_S[state_S], lattice.final_acoustic_S[state_S],
        lattice.pdfs_K[picked_K], begin_A1.astype(np.int32), tuple(lattice.final_pdfs_S[state] for state in state_S),
        lattice.frame_S[state_S], lattice.frames,
    )  # fmt: skip


def pruned(lattice: WordLattice, acoustic_scale: float, beam: float) -> WordLattice:
    """The lattice without arcs and states whose best path costs more than the best path of all plus `beam`."""
    costs_A, final_S = lattice.costs_A(acoustic_scale), lattice.final_costs_S(acoustic_scale)
    rest_S = costs_to_end(lattice.source_A, lattice.target_A, costs_A, final_S)
    before_S = _costs_from_start(lattice.source_A, lattice.target_A, costs_A, len(final_S))
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
def _costs_from_start(source, target, costs, states):  # type: ignore[no-untyped-def] # pragma: no cover
    before = np.full(states, np.inf)
    before[0] = 0.0
    for a in range(len(source)):
        before[target[a]] = min(before[target[a]], before[source[a]] + costs[a])
    return before


@jit
def _composed(source, target, ends, old, old_word, old_last, new, new_word, new_last, most):  # type: ignore[no-untyped-def] # pragma: no cover
    """(source, target, lattice arc) and costs of each arc, the lattice state and final costs of each state, success."""
    lattice_states = len(ends)
    begin = np.searchsorted(source, np.arange(lattice_states + 1))
    elements, set_begin = [(np.int64(old.start), 0.0)], [0, 1]  # set 0: the start (`lm_paths`)
    newest, newest_same = {np.uint64(0): -1}, [-1]
    place_of = {(0, 0, new.start): 0}
    states = [(0, 0, new.start)]
    first, last, following = np.full(lattice_states, -1), np.full(lattice_states, -1), [-1]
    first[0], last[0] = 0, 0
    arcs, costs = [(0, 0, 0)], [(0.0, 0.0)]
    arcs.clear()
    costs.clear()
    for s in range(lattice_states):
        place = first[s]
        while place >= 0 and len(arcs) <= most:
            _, at_old, at_new = states[place]
            for a in range(begin[s], begin[s + 1]):
                old_cost, old_after = 0.0, at_old
                if old_word[a] >= 0:
                    old_cost = step_set(old, elements, set_begin[at_old], set_begin[at_old + 1], old_word[a])
                    old_after = number_of_set(elements, set_begin, newest, newest_same)
                new_cost, new_after = 0.0, at_new
                if new_word[a] >= 0:
                    new_cost, new_after = step(new, at_new, new_word[a])
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
