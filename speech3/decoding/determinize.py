"""A lattice determinised by word (Povey et al. 2012; Kaldi's determinize-lattice-pruned.cc).

A state of the new lattice is a set of states of the old one that are reached by the same words, each with what the
cheapest way there costs, and what pdfs it reads, beyond what all ways of the set have in common. What is common stands
on the arc: the costs of the set's cheapest way, and the longest beginning that the pdfs of all ways share. Sets of
equal costs (within `_SAME`) and equal pdfs are one state.

States are taken in the order of the best path through them, which is known beforehand from the old lattice, so that
what lies beyond the beam is never made.

Compiled code that looks at no bounds: `words_of` is its one caller.

Axes: S states of the old lattice, S1 one more, A its arcs.
"""

from heapq import heappop, heappush

import numpy as np

from speech3.decoding.token_passing import jit

_SAME = 1e-3  # Kaldi: 1/1024
_SEED = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x100000001B3)


@jit
def determinized(begin_S1, target_A, ilabel_A, olabel_A, graph_A, acoustic_A, final_S, rest_S, scale, beam, most):  # type: ignore[no-untyped-def] # pragma: no cover
    """Determinise.

    Parameters
    ----------
    graph_A, acoustic_A, final_S
        float64 costs, the acoustic ones unscaled.
    rest_S
        float64 scaled costs of the best path from each state to the end.
    beam
        Paths that cost this much more than the best are left out.
    most
        States that the new lattice may have.

    Returns
    -------
    arcs
        (source, target, word, where its pdfs begin, how many they are), and their costs (graph, acoustic).
    finals
        The same of what remains at the end of each state: (pdfs begin, how many), and (graph, acoustic; infinite
        where nothing ends).
    pdfs
        As the old lattice's input labels.
    enough
        False: there were more states than `most`.
    """
    elements = [(0, 0.0, 0.0, 0, 0)]  # state, graph, acoustic, where its pdfs begin, how many
    first = [0, 1]  # elements of each state of the new lattice
    pdfs = [np.int32(0)]
    pdfs.clear()
    alpha, done, newest_same = [0.0], [False], [-1]
    states_of = {_hashed(elements, 0, 1, pdfs): 0}
    arcs, arc_costs = [(0, 0, 0, 0, 0)], [(0.0, 0.0)]
    arcs.clear()
    arc_costs.clear()
    finals, final_costs = [(0, 0)], [(np.inf, np.inf)]
    limit = rest_S[0] + beam
    queue = [(rest_S[0], 0)]
    where = np.full(len(final_S), -1, np.int32)
    while len(queue) and len(alpha) <= most:
        _, now = heappop(queue)
        if done[now]:
            continue
        done[now] = True
        # Follow arcs without words; states are in topological order, so none is looked at before it is final.
        reached = [(0, 0.0, 0.0, 0)]  # state, graph, acoustic, last step
        reached.clear()
        steps = [(-1, np.int32(0))]  # step before, label; the first ones stand for the pdfs of each element
        steps.clear()
        waiting = [0]
        waiting.clear()
        for number in range(first[now], first[now + 1]):
            state, graph, acoustic, _, _ = elements[number]
            steps.append((-1, np.int32(0)))
            where[state] = len(reached)
            reached.append((state, graph, acoustic, len(steps) - 1))
            heappush(waiting, state)
        begun = len(steps)
        said = [(0, 0, 0.0, 0.0, 0)]  # word, state, graph, acoustic, last step
        said.clear()
        end_cost = np.inf
        while len(waiting):
            state, graph, acoustic, step = reached[where[heappop(waiting)]]
            here = alpha[now] + graph + scale * acoustic
            if here + final_S[state] <= limit and here + final_S[state] < end_cost:
                end_cost = here + final_S[state]
                final_costs[now] = (graph + final_S[state], acoustic)
                finals[now] = (step, -1)
            for a in range(begin_S1[state], begin_S1[state + 1]):
                to, more_graph, more_acoustic = target_A[a], graph + graph_A[a], acoustic + acoustic_A[a]
                total = more_graph + scale * more_acoustic
                if alpha[now] + total + rest_S[to] > limit:
                    continue
                if olabel_A[a] == 0 and where[to] >= 0:
                    _, old_graph, old_acoustic, _ = reached[where[to]]
                    if not total < old_graph + scale * old_acoustic:
                        continue
                if ilabel_A[a]:
                    steps.append((step, ilabel_A[a]))
                after = len(steps) - 1 if ilabel_A[a] else step
                if olabel_A[a]:
                    said.append((olabel_A[a], to, more_graph, more_acoustic, after))
                elif where[to] >= 0:
                    reached[where[to]] = (to, more_graph, more_acoustic, after)
                else:
                    where[to] = len(reached)
                    reached.append((to, more_graph, more_acoustic, after))
                    heappush(waiting, to)
        for state, _, _, _ in reached:
            where[state] = -1
        if end_cost < np.inf:
            begin = len(pdfs)
            _spell(finals[now][0], steps, begun, elements, first[now], pdfs)
            finals[now] = (begin, len(pdfs) - begin)
        order = np.argsort(np.array([word for word, _, _, _, _ in said]), kind="mergesort")
        place = 0
        while place < len(order):
            word, group = said[order[place]][0], place
            while place < len(order) and said[order[place]][0] == word:
                place += 1
            # The cheapest way to each state, in the order of the states.
            members = [(0, 0.0, 0.0, 0)]
            members.clear()
            for number in range(group, place):
                _, state, graph, acoustic, step = said[order[number]]
                if where[state] < 0:
                    where[state] = len(members)
                    members.append((state, graph, acoustic, step))
                else:
                    _, old_graph, old_acoustic, _ = members[where[state]]
                    if graph + scale * acoustic < old_graph + scale * old_acoustic:
                        members[where[state]] = (state, graph, acoustic, step)
            for state, _, _, _ in members:
                where[state] = -1
            members.sort()
            best, through, base_graph, base_acoustic = np.inf, np.inf, 0.0, 0.0
            for state, graph, acoustic, _ in members:
                total = graph + scale * acoustic
                through = min(through, total + rest_S[state])
                if total < best:
                    best, base_graph, base_acoustic = total, graph, acoustic
            began, elements_before = len(pdfs), len(elements)
            for state, graph, acoustic, step in members:
                begin = len(pdfs)
                _spell(step, steps, begun, elements, first[now], pdfs)
                elements.append((state, graph - base_graph, acoustic - base_acoustic, begin, len(pdfs) - begin))
            shared = _shared(elements, elements_before, len(elements), pdfs)
            for number in range(elements_before, len(elements)):
                state, graph, acoustic, begin, length = elements[number]
                elements[number] = (state, graph, acoustic, begin + shared, length - shared)
            key = _hashed(elements, elements_before, len(elements), pdfs)
            found = states_of[key] if key in states_of else -1  # noqa: SIM401  # numba: get may be None
            latest = found
            while found >= 0 and not _same(elements, first[found], first[found + 1], elements_before, pdfs, scale):
                found = newest_same[found]
            arrived = alpha[now] + best
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
                del elements[elements_before:]
                del pdfs[began + shared :]
                if arrived < alpha[found] and not done[found]:
                    alpha[found] = arrived
                    heappush(queue, (alpha[now] + through, found))
            arcs.append((now, found, word, began, shared))
            arc_costs.append((base_graph, base_acoustic))
    return arcs, arc_costs, finals, final_costs, np.array(pdfs), len(queue) == 0


@jit
def _spell(step, steps, begun, elements, first, pdfs):  # type: ignore[no-untyped-def] # pragma: no cover
    """Add to `pdfs` what is read up to a step, the pdfs of the element where it began included."""
    at, length = step, 0
    while at >= begun:
        length += 1
        at = steps[at][0]
    _, _, _, begin, before = elements[first + at]
    for number in range(before):
        pdfs.append(pdfs[begin + number])
    end = len(pdfs) + length
    for _ in range(length):
        pdfs.append(np.int32(0))
    at = step
    while at >= begun:
        end -= 1
        pdfs[end] = steps[at][1]
        at = steps[at][0]


@jit
def _shared(elements, begin, end, pdfs):  # type: ignore[no-untyped-def] # pragma: no cover
    """How many pdfs all elements begin with."""
    _, _, _, one, shared = elements[begin]
    for number in range(begin + 1, end):
        _, _, _, other, length = elements[number]
        shared = min(shared, length)
        for place in range(shared):
            if pdfs[one + place] != pdfs[other + place]:
                shared = place
                break
    return shared


@jit
def _hashed(elements, begin, end, pdfs):  # type: ignore[no-untyped-def] # pragma: no cover
    """Of the states and their pdfs, without the costs."""
    key = _SEED
    for number in range(begin, end):
        state, _, _, start, length = elements[number]
        key = (key ^ np.uint64(state)) * _PRIME
        key = (key ^ np.uint64(length)) * _PRIME
        for place in range(start, start + length):
            key = (key ^ np.uint64(pdfs[place])) * _PRIME
    return key


@jit
def _same(elements, begin, end, other, pdfs, scale):  # type: ignore[no-untyped-def] # pragma: no cover
    """Are these elements and those from `other` on, which are the last, one state?"""
    if end - begin != len(elements) - other:
        return False
    for number in range(end - begin):
        state_1, graph_1, acoustic_1, begin_1, length_1 = elements[begin + number]
        state_2, graph_2, acoustic_2, begin_2, length_2 = elements[other + number]
        if state_1 != state_2 or length_1 != length_2:
            return False
        if abs(graph_1 - graph_2) > _SAME or abs(acoustic_1 - acoustic_2) * scale > _SAME:
            return False
        for place in range(length_1):
            if pdfs[begin_1 + place] != pdfs[begin_2 + place]:
                return False
    return True
