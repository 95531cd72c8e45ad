"""The cheapest path of a word sequence through G, in which back-off arcs may be taken from any state.

In a decoding graph, back-off arcs are ordinary arcs: a word with an arc of its own may also be reached through the
back-off state, and is where that is cheaper (for one bigram in fourteen of minilibri's language model). The cost of
words in a graph is therefore not the one that the ARPA format defines, and to remove it from a lattice, the same
minimum must be computed. After a word sequence, a set of states is active, each with a residual cost: the cost of the
cheapest path to it, minus that of the cheapest path to any of them. For an n-gram model of order n, a set has at most
n - 1 states.

Axes: none; elements of sets are pairs of state and residual cost, in lists.
"""

from collections.abc import Sequence

import numpy as np

from speech3.io.compiled import jit
from speech3.lattices.lm_states import LmStates, arc_of

_SAME = 1e-3  # tolerance of costs, as in `determinize`
_SEED, _PRIME = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x100000001B3)


def cheapest_cost(lm: LmStates, words: Sequence[int]) -> float:
    """The lowest cost of a sentence, its end included; infinite if no path has its words."""
    return float(_cheapest_cost(lm, np.array(words, np.int64)))


@jit
def _cheapest_cost(lm, words):  # type: ignore[no-untyped-def] # pragma: no cover
    elements, begin, total = [(np.int64(lm.start), 0.0)], 0, 0.0
    for word in words:
        end = len(elements)
        total += step_set(lm, elements, begin, end, word)
        begin = end
    return total + end_set(lm, elements, begin, len(elements))


@jit
def step_set(lm, elements, begin, end, word):  # type: ignore[no-untyped-def] # pragma: no cover
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
def _put(elements, fresh, state, cost):  # type: ignore[no-untyped-def] # pragma: no cover
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
def _tidied(lm, elements, fresh):  # type: ignore[no-untyped-def] # pragma: no cover
    """Drop elements that another one reaches as cheaply by backing off; subtract the least cost from all; return it."""
    best = np.inf
    for number in range(fresh, len(elements)):
        best = min(best, elements[number][1])
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
    kept = fresh
    for number in range(fresh, len(elements)):
        state, cost = elements[number]
        if cost < np.inf:
            elements[kept] = (state, cost - best)
            kept += 1
    del elements[kept:]
    return best


@jit
def end_set(lm, elements, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
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
def number_of_set(elements, first, newest, newest_same):  # type: ignore[no-untyped-def] # pragma: no cover
    """The number of the last set of `elements`, which is removed if an equal set exists already.

    Set s reaches from ``first[s]`` to ``first[s + 1]``, and the last one begins at ``first[-1]``. Sets with the same
    hash of their states are chained: `newest` has the newest of them by hash, `newest_same` the one before each set.
    """
    fresh, key = first[-1], _SEED
    for number in range(fresh, len(elements)):
        key = (key ^ np.uint64(elements[number][0])) * _PRIME
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
def _alike(elements, begin, end, other):  # type: ignore[no-untyped-def] # pragma: no cover
    if end - begin != len(elements) - other:
        return False
    for number in range(end - begin):
        state_1, rest_1 = elements[begin + number]
        state_2, rest_2 = elements[other + number]
        if state_1 != state_2 or abs(rest_1 - rest_2) > _SAME:
            return False
    return True
