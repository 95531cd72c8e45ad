"""Word lattices, which contain each word sequence once (Kaldi's CompactLattice), made by determinisation.

Povey et al. 2012; Kaldi's determinize-lattice-pruned.cc: a state of the new lattice is a set of states of the old one
that are reached by the same words, each with the residual cost and residual pdfs of the cheapest path to it. The common
part goes on the arc. Sets with equal states, costs (within `_TOLERANCE`) and pdfs are merged into one state.

States are expanded in the order of the cost of the best path through them, which is known from the old lattice. So work
on a lattice that grows too large can be stopped: the paths within a narrower beam are complete by then (as with Kaldi's
--max-mem). The compiled code does no bounds checks.

Axes: S states, S1 one more, A arcs, A1 one more, K pdfs of all arcs.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from speech3.decode.beam_search import Lattice, rest_costs, topological
from speech3.runtime import jit

_TOLERANCE = 1e-3  # Kaldi: 1/1024
_SEED = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x100000001B3)
_MAX_ELEMENTS = 250_000  # elements (states of the old lattice in each state of the new one): seconds of work, 25 MB
_MIN_BEAM = 1e-3  # beam; far above the rounding errors of a path's cost, so the best path lies within it


class LatticeArrays(NamedTuple):
    """A lattice for compiled code."""

    # begin_S1, target_A, ilabel_A, olabel_A: int64, int64, int32, int64: arcs, sorted by source state
    begin_S1: np.ndarray
    target_A: np.ndarray
    ilabel_A: np.ndarray
    olabel_A: np.ndarray
    # graph_A, acoustic_A, final_S: float64 costs, the acoustic ones unscaled
    graph_A: np.ndarray
    acoustic_A: np.ndarray
    final_S: np.ndarray
    rest_S: np.ndarray  # float64 scaled costs of the best path from each state to the end


@jit
def determinized(lattice, scale, beam, most):  # type: ignore[no-untyped-def]
    """Determinise a lattice (`LatticeArrays`).

    Parameters
    ----------
    beam
        Paths whose cost exceeds that of the best path by more than this are left out.
    most
        Number of elements of all states at which no more states are expanded.

    Returns
    -------
    arcs, arc_costs
        (source, target, word, begin of its pdfs, number of pdfs) and (graph, acoustic) of each arc.
    finals, final_costs
        (begin of the residual pdfs, number of them) and residual costs (graph, acoustic) of ending in each state;
        infinite where it is not final.
    pdfs
        Input labels, as in the old lattice.
    reached
        The result has all paths whose cost exceeds that of the best path by up to this: `beam`, or less if there were
        `most` elements.
    """
    # A state of the result is a set of elements: states of the lattice with costs and pdfs not yet on an arc.
    elements = [(0, 0.0, 0.0, 0, 0)]  # state, graph, acoustic, begin of its pdfs, number of them
    first = [0, 1]  # elements of each state of the new lattice
    pdfs = [np.int32(0)]
    pdfs.clear()
    alpha, done, newest_same = [0.0], [False], [-1]
    states_of = {_hashed(elements, 0, pdfs): 0}
    arcs, arc_costs = [(0, 0, 0, 0, 0)], [(0.0, 0.0)]
    arcs.clear()
    arc_costs.clear()
    finals, final_costs = [(0, 0)], [(np.inf, np.inf)]
    # States are expanded best first, so that what `most` leaves out is worse than all that is kept.
    limit = lattice.rest_S[0] + beam
    queue = [(lattice.rest_S[0], 0)]
    where = np.full(len(lattice.final_S), -1, np.int32)
    while len(queue) and len(elements) <= most:
        _, now = heappop(queue)
        if done[now]:
            continue
        done[now] = True
        steps, said, (end_graph, end_acoustic, end_step) = _follow(
            lattice, elements, first[now], first[now + 1], scale, limit - alpha[now], where
        )
        begun = first[now + 1] - first[now]
        if end_step >= 0:
            finals[now] = (len(pdfs), _spell(end_step, steps, begun, elements, first[now], pdfs))
            final_costs[now] = (end_graph, end_acoustic)
        # One arc for each word: the cheapest way to each lattice state, its common cost and pdfs on the arc.
        order = np.argsort(np.array([word for word, _, _, _, _ in said]), kind="mergesort")
        place = 0
        while place < len(order):
            word, group = said[order[place]][0], place
            while place < len(order) and said[order[place]][0] == word:
                place += 1
            members = _cheapest(said, order[group:place], scale, where)
            began, fresh = len(pdfs), len(elements)
            base_graph, base_acoustic, through = _common(members, lattice.rest_S, scale)
            for state, graph, acoustic, step in members:
                begin = len(pdfs)
                length = _spell(step, steps, begun, elements, first[now], pdfs)
                elements.append((state, graph - base_graph, acoustic - base_acoustic, begin, length))
            shared = _shared(elements, fresh, pdfs)
            # An equal set is the same state; otherwise a new one.
            key = _hashed(elements, fresh, pdfs)
            latest = states_of[key] if key in states_of else -1  # noqa: SIM401  # numba: get may be None
            found = latest
            while found >= 0 and not _same(elements, first[found], first[found + 1], fresh, pdfs, scale):
                found = newest_same[found]
            arrived = alpha[now] + base_graph + scale * base_acoustic
            if found < 0:
                found = len(alpha)
                states_of[key] = found
                newest_same.append(latest)
                alpha.append(arrived)
                done.append(False)
                first.append(len(elements))
                finals.append((0, 0))
                final_costs.append((np.inf, np.inf))
                heappush(queue, (alpha[now] + through, found))
            else:
                del elements[fresh:]
                del pdfs[began + shared :]
                if arrived < alpha[found] and not done[found]:
                    alpha[found] = arrived
                    heappush(queue, (alpha[now] + through, found))
            arcs.append((now, found, word, began, shared))
            arc_costs.append((base_graph, base_acoustic))
    # What is left in the queue says how far the result is complete.
    while len(queue) and done[queue[0][1]]:
        heappop(queue)
    reached = queue[0][0] - lattice.rest_S[0] if len(queue) else beam
    return arcs, arc_costs, finals, final_costs, np.array(pdfs), reached


@jit
def _follow(lattice, elements, begin, end, scale, limit, where):  # type: ignore[no-untyped-def]
    """Follow arcs without words from the given elements, visiting states in topological order.

    `where` is -1 for every state, on entry and on return. Paths whose total cost exceeds `limit` are left out.

    Returns
    -------
    steps
        (previous step, label); the first ones stand for the pdfs of the elements.
    said
        (word, state, graph, acoustic, last step) after each arc with a word.
    ending
        (graph, acoustic, last step) of the cheapest way to end; the step is -1 if there is none.
    """
    reached = [(0.0, 0.0, 0)]  # graph, acoustic, last step
    steps = [(-1, np.int32(0))]
    waiting = [0]  # states are in topological order
    said = [(0, 0, 0.0, 0.0, 0)]
    reached.clear()
    steps.clear()
    waiting.clear()
    said.clear()
    # Each element is a step without a label, from which paths go on.
    for number in range(begin, end):
        state, graph, acoustic, _, _ = elements[number]
        where[state] = len(reached)
        reached.append((graph, acoustic, len(steps)))
        steps.append((-1, np.int32(0)))
        heappush(waiting, state)
    # From state to state in topological order, so that the best way to a state is known when it is left.
    touched = [elements[number][0] for number in range(begin, end)]
    ending, least = (np.inf, np.inf, -1), np.inf
    while len(waiting):
        state = heappop(waiting)
        graph, acoustic, step = reached[where[state]]
        total = graph + scale * acoustic + lattice.final_S[state]
        if total <= limit and total < least:
            least, ending = total, (graph + lattice.final_S[state], acoustic, step)
        for a in range(lattice.begin_S1[state], lattice.begin_S1[state + 1]):
            to, label, word = lattice.target_A[a], lattice.ilabel_A[a], lattice.olabel_A[a]
            more_graph, more_acoustic = graph + lattice.graph_A[a], acoustic + lattice.acoustic_A[a]
            total = more_graph + scale * more_acoustic
            if total + lattice.rest_S[to] > limit:
                continue
            if word == 0 and where[to] >= 0:
                old_graph, old_acoustic, _ = reached[where[to]]
                if not total < old_graph + scale * old_acoustic:
                    continue
            # An arc with a word ends here; one without is followed, if it is the best way to its target so far.
            after = step
            if label:
                after = len(steps)
                steps.append((step, label))
            if word:
                said.append((word, to, more_graph, more_acoustic, after))
            elif where[to] >= 0:
                reached[where[to]] = (more_graph, more_acoustic, after)
            else:
                where[to] = len(reached)
                reached.append((more_graph, more_acoustic, after))
                touched.append(to)
                heappush(waiting, to)
    for state in touched:
        where[state] = -1
    return steps, said, ending


@jit
def _cheapest(said, numbers, scale, where):  # type: ignore[no-untyped-def]
    """The cheapest of the given ways to each state: (state, graph, acoustic, last step), sorted by state."""
    members = [(0, 0.0, 0.0, 0)]
    members.clear()
    # `where` has each state's place among the members, and is cleared after use.
    for number in numbers:
        _, state, graph, acoustic, step = said[number]
        if where[state] < 0:
            where[state] = len(members)
            members.append((state, graph, acoustic, step))
        else:
            _, old_graph, old_acoustic, _ = members[where[state]]
            if graph + scale * acoustic < old_graph + scale * old_acoustic:
                members[where[state]] = (state, graph, acoustic, step)
    for state, _, _, _ in members:
        where[state] = -1
    # As the words are sorted above, which numba has compiled already.
    by_state = np.argsort(np.array([state for state, _, _, _ in members]), kind="mergesort")
    return [members[number] for number in by_state]


@jit
def _common(members, rest, scale):  # type: ignore[no-untyped-def]
    """Costs (graph, acoustic) of the cheapest member, and the cost of the best path through any member to the end."""
    best, through, base_graph, base_acoustic = np.inf, np.inf, 0.0, 0.0
    for state, graph, acoustic, _ in members:
        total = graph + scale * acoustic
        through = min(through, total + rest[state])
        if total < best:
            best, base_graph, base_acoustic = total, graph, acoustic
    return base_graph, base_acoustic, through


@jit
def _spell(step, steps, begun, elements, first, pdfs):  # type: ignore[no-untyped-def]
    """Append to `pdfs` the pdfs of the element where a step's path began and the labels up to it; return how many."""
    at, length = step, 0
    while at >= begun:
        length += 1
        at = steps[at][0]
    # The first steps stand for the elements, in their order: `at` is the element where the path began.
    _, _, _, begin, before = elements[first + at]
    for number in range(before):
        pdfs.append(pdfs[begin + number])
    end = len(pdfs) + length
    for _ in range(length):
        pdfs.append(np.int32(0))
    # Fill in the labels from the last to the first.
    at = step
    while at >= begun:
        end -= 1
        pdfs[end] = steps[at][1]
        at = steps[at][0]
    return before + length


@jit
def _shared(elements, begin, pdfs):  # type: ignore[no-untyped-def]
    """Remove the common prefix of the pdfs of all elements from `begin` on; return its length."""
    _, _, _, one, shared = elements[begin]
    for number in range(begin + 1, len(elements)):
        _, _, _, other, length = elements[number]
        shared = min(shared, length)
        for place in range(shared):
            if pdfs[one + place] != pdfs[other + place]:
                shared = place
                break
    for number in range(begin, len(elements)):
        state, graph, acoustic, start, length = elements[number]
        elements[number] = (state, graph, acoustic, start + shared, length - shared)
    return shared


@jit
def _hashed(elements, begin, pdfs):  # type: ignore[no-untyped-def]
    """A hash of the states and pdfs, but not the costs, of all elements from `begin` on."""
    key = _SEED
    for number in range(begin, len(elements)):
        state, _, _, start, length = elements[number]
        key = (key ^ np.uint64(state)) * _PRIME
        key = (key ^ np.uint64(length)) * _PRIME
        for place in range(start, start + length):
            key = (key ^ np.uint64(pdfs[place])) * _PRIME
    return key


@jit
def _same(elements, begin, end, other, pdfs, scale):  # type: ignore[no-untyped-def]
    """Whether the elements from `begin` to `end` and those from `other` on, which are the last, are one state."""
    if end - begin != len(elements) - other:
        return False
    for number in range(end - begin):
        state_1, graph_1, acoustic_1, begin_1, length_1 = elements[begin + number]
        state_2, graph_2, acoustic_2, begin_2, length_2 = elements[other + number]
        if state_1 != state_2 or length_1 != length_2:
            return False
        if abs(graph_1 - graph_2) > _TOLERANCE or abs(acoustic_1 - acoustic_2) * scale > _TOLERANCE:
            return False
        for place in range(length_1):
            if pdfs[begin_1 + place] != pdfs[begin_2 + place]:
                return False
    return True


@dataclass(frozen=True, eq=False)
class WordLattice:
    """An acyclic acceptor of words in which no state has two arcs with the same word.

    State 0 is the start; every arc leads to a higher state, and arcs are sorted by the state that they leave.
    """

    # source_A, target_A, word_A: int32
    source_A: np.ndarray
    target_A: np.ndarray
    word_A: np.ndarray
    # graph_A, acoustic_A: float64 costs; acoustic costs are unscaled
    graph_A: np.ndarray
    acoustic_A: np.ndarray
    # final_graph_S, final_acoustic_S: float64 costs of ending in each state; infinite if no path ends there
    final_graph_S: np.ndarray
    final_acoustic_S: np.ndarray
    # pdfs_K, begin_A1: int32: arc a reads ``pdfs_K[begin_A1[a] : begin_A1[a + 1]]``, a pdf for each frame. A word's arc
    # need not read all of its frames, and may read some of its neighbours'.
    pdfs_K: np.ndarray
    begin_A1: np.ndarray
    final_pdfs_S: tuple[np.ndarray, ...]  # int32 arrays: the pdfs of the frames read when a path ends in each state
    frame_S: np.ndarray  # int32: number of frames read on a path to each state
    frames: int  # number of frames that every path reads

    def costs_A(self, acoustic_scale: float) -> np.ndarray:
        """(A,) float64."""
        return self.graph_A + acoustic_scale * self.acoustic_A

    def final_costs_S(self, acoustic_scale: float) -> np.ndarray:
        ends = np.isfinite(self.final_graph_S)
        return np.where(ends, self.final_graph_S + acoustic_scale * np.where(ends, self.final_acoustic_S, 0.0), np.inf)

    @property
    def density(self) -> float:
        """Average number of arcs per frame (Kaldi's lattice-depth)."""
        return (len(self.pdfs_K) + sum(map(len, self.final_pdfs_S))) / max(self.frames, 1)


def words_of(lattice: Lattice, acoustic_scale: float, beam: float = np.inf) -> WordLattice:
    """Determinise a lattice on words: of each word sequence, only the best path at this scale is kept.

    Word sequences whose cost exceeds that of the best one by more than `beam` are pruned; the beam is narrowed if the
    lattice becomes too large.
    """
    begin_S1 = np.searchsorted(lattice.source_A, np.arange(len(lattice.final_S) + 1))
    arcs = lattice.target_A.astype(np.int64), lattice.ilabel_A.astype(np.int32), lattice.olabel_A.astype(np.int64)
    costs = (
        lattice.graph_A.astype(np.float64),
        lattice.acoustic_A.astype(np.float64),
        lattice.final_S.astype(np.float64),
    )
    arrays = LatticeArrays(begin_S1, *arcs, *costs, rest_costs(lattice, acoustic_scale))
    beam, most = float(beam) + 1e-6, _MAX_ELEMENTS
    # Determinise; where the lattice becomes too large, only as far as the beam that was reached.
    while True:
        found, arc_costs, finals, final_costs, pdfs, reached = determinized(arrays, float(acoustic_scale), beam, most)
        if reached >= beam:
            break
        # The next attempt may have twice as many elements: in a long utterance even the best path may need them.
        beam, most = min(beam, max(0.999 * reached, _MIN_BEAM)), 2 * most
    # Number the states in topological order, and sort the arcs by source and word.
    arcs_A5 = np.array(found, np.int32).reshape(-1, 5)
    order_S = topological(arcs_A5[:, 0], arcs_A5[:, 1], len(finals))
    number_S = np.empty(len(finals), np.int32)
    number_S[order_S] = np.arange(len(finals))
    arcs_A5[:, :2] = number_S[arcs_A5[:, :2]]
    order_A = np.lexsort((arcs_A5[:, 2], arcs_A5[:, 0]))
    source_A, target_A, word_A, at_A, length_A = arcs_A5[order_A].T.copy()
    graph_A, acoustic_A = np.array(arc_costs, np.float64).reshape(-1, 2)[order_A].T
    finals_S2, (final_graph_S, final_acoustic_S) = np.array(finals)[order_S], np.array(final_costs)[order_S].T
    frame_S = np.zeros(len(finals), np.int32)
    for source, target, length in zip(source_A.tolist(), target_A.tolist(), length_A.tolist(), strict=True):
        frame_S[target] = frame_S[source] + length
    pdfs_K = pdfs - np.int32(1)
    final_pdfs_S = tuple(pdfs_K[begin : begin + length] for begin, length in finals_S2.tolist())
    picked, begin_A1 = joined_ranges(at_A, length_A)
    shape, parts = (source_A, target_A, word_A), (graph_A, acoustic_A, final_graph_S, final_acoustic_S)
    return WordLattice(*shape, *parts, pdfs_K[picked], begin_A1, final_pdfs_S, frame_S, lattice.frames)


def joined_ranges(begin_A: np.ndarray, length_A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The indices in all ranges, one range after the other, and where each begins among them: int32 (A1,)."""
    begin_A1 = np.append(0, np.cumsum(length_A)).astype(np.int32)
    return np.repeat(begin_A - begin_A1[:-1], length_A) + np.arange(begin_A1[-1]), begin_A1
