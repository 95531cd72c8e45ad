"""Token passing through a decoding graph, frame by frame (Young et al. 1989; pruned as Kaldi's faster-decoder does).

A token is the best path to one state at one frame. One array holds the tokens of all frames, frame after frame; each
token stores its predecessor and its last arc. When the array is full, tokens that are on no path to a token of the
current frame are dropped.

Costs are float32, relative to the best cost of the frame before; the subtracted costs are summed in float64.

The compiled code does no bounds checks: a `SearchGraph` was checked when it was made, and `beam_search`, the only
caller, checks the scores and reserves room for a token of every state.

Axes: T frames, T1 one more, P pdfs, S states, H tokens of all frames; the 4 columns of a token are STATE, COST, FROM
and ARC, COST in the float32 view of the same memory.
"""

from typing import NamedTuple

import numpy as np

from speech3.io.compiled import jit

STATE, COST, FROM, ARC = 0, 1, 2, 3
MIN_ACTIVE = 20  # tokens that are always kept, whatever their cost, as in Kaldi
_MARGIN = np.float32(0.5)  # Kaldi's beam_delta
_INF = np.float32(np.inf)


class Tokens(NamedTuple):
    """Memory of a search.

    Attributes
    ----------
    tokens_H4, cost_H4
        int32 and float32 views of the same memory.
    slot_S
        int32: index of the newest token of each state, -1 if there is none. The token belongs to an earlier frame if
        its index is below that of the current frame's first token.
    costs_S, work_S
        float32 and int32 work space, used within a frame.
    """

    tokens_H4: np.ndarray
    cost_H4: np.ndarray
    slot_S: np.ndarray
    costs_S: np.ndarray
    work_S: np.ndarray


def new_tokens(states: int, room: int) -> Tokens:
    """Memory for `room` tokens of past frames and, in addition, one token of each state."""
    tokens_H4 = np.empty((room + states, 4), np.int32)
    return Tokens(
        tokens_H4, tokens_H4.view(np.float32), np.empty(states, np.int32), np.empty(states, np.float32),
        np.empty(states, np.int32),
    )  # fmt: skip


@jit
def _smallest(values, end, rank):  # type: ignore[no-untyped-def] # pragma: no cover
    """The value at `rank` (from 0) if the first `end` values were sorted; reorders them (Hoare's quickselect).

    NumPy's `partition` is as fast, but takes numba four seconds to compile.
    """
    low, high = 0, end - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]


@jit
def _cutoff(costs, cost_of, begin, end, beam, max_active):  # type: ignore[no-untyped-def] # pragma: no cover
    """The best cost of a frame, the pruning cutoff, and the beam for the next frame (Kaldi's GetCutoff)."""
    best = _INF
    for i in range(begin, end):
        best = min(best, cost_of[i, COST])
    least = min(MIN_ACTIVE, max_active)
    if end - begin <= least:
        return best, _INF, _INF
    cutoff, within = best + beam, 0
    for i in range(begin, end):
        within += cost_of[i, COST] <= cutoff
    if least <= within <= max_active:
        return best, cutoff, beam
    many = within > max_active
    filled = 0
    for i in range(begin, end):
        if not many or cost_of[i, COST] <= cutoff:
            costs[filled] = cost_of[i, COST]
            filled += 1
    keep = max_active if many else least
    cutoff = _smallest(costs, filled, keep - 1)
    return best, cutoff, cutoff - best + _MARGIN


@jit
def begin_search(graph, memory):  # type: ignore[no-untyped-def] # pragma: no cover
    """Make tokens for the start state and the states that non-emitting arcs reach from it; return where they end."""
    memory.slot_S[:] = -1
    memory.slot_S[graph.start] = 0
    memory.tokens_H4[0, STATE] = graph.start
    memory.cost_H4[0, COST] = 0.0
    memory.tokens_H4[0, FROM] = -1
    memory.tokens_H4[0, ARC] = -1
    return pass_silently(graph, memory, 0, 1, _INF)


@jit
def acoustic_costs(scores, scale, ac):  # type: ignore[no-untyped-def] # pragma: no cover
    """Write the scaled cost of each pdf in a frame, relative to the lowest, to `ac`; return the lowest cost."""
    top = -_INF
    for p in range(len(scores)):
        top = max(top, scores[p])
    if top == -_INF:
        ac[:] = _INF
        return 0.0
    for p in range(len(scores)):
        ac[p] = (top - scores[p]) * scale
    return -np.float64(top) * np.float64(scale)


@jit
def read_frames(graph, memory, begin, end, scores, scale, beam, max_active, subtracted, begins, bests, cutoffs):  # type: ignore[no-untyped-def] # pragma: no cover
    """Read frames until none is left, the memory is full or no token survives.

    Parameters
    ----------
    begin, end
        Range of the tokens of the current frame.
    scores
        (T, P) float32, unscaled.
    subtracted
        Sum of the costs subtracted up to the current frame.
    begins, bests, cutoffs
        (T1,) int32, (T,) float32, (T,) float32 outputs: where the tokens of each frame begin, their best cost and the
        pruning cutoff.

    Returns
    -------
    The number of frames read, where the tokens of the last frame begin and end, and the sum of the costs subtracted so
    far.
    """
    ac = np.empty(scores.shape[1], np.float32)
    t = 0
    begins[0] = begin
    while t < scores.shape[0] and end > begin and end + len(graph.final_S) <= len(memory.tokens_H4):
        subtracted += acoustic_costs(scores[t], scale, ac)
        new_end, best, cutoffs[t] = _read(graph, memory, begin, end, ac, beam, max_active)
        subtracted += best
        bests[t] = best
        begin, end = end, new_end
        t += 1
        begins[t] = begin
    return t, begin, end, subtracted


@jit
def _read(graph, memory, begin, end, ac, beam, max_active):  # type: ignore[no-untyped-def] # pragma: no cover
    """Read one frame; return where its tokens end, and the best cost and the cutoff of the frame before."""
    tokens_i, tokens_f, slot = memory.tokens_H4, memory.cost_H4, memory.slot_S
    best, cutoff, width = _cutoff(memory.costs_S, tokens_f, begin, end, beam, max_active)
    limit, new_end = _INF, end
    for i in range(begin, end):
        if tokens_f[i, COST] == best:  # the best token gives a good first estimate of the limit
            s = tokens_i[i, STATE]
            for a in range(graph.begin_S1[s], graph.silent_S[s]):
                limit = min(limit, graph.weight_A4[a, 2] + ac[graph.arcs_A4[a, 0] - 1] + width)
            break
    for i in range(begin, end):
        cost = tokens_f[i, COST]
        if cost > cutoff:
            continue
        cost -= best
        s = tokens_i[i, STATE]
        for a in range(graph.begin_S1[s], graph.silent_S[s]):
            new = cost + graph.weight_A4[a, 2] + ac[graph.arcs_A4[a, 0] - 1]
            if not new < limit:
                continue
            limit = min(limit, new + width)
            target = graph.arcs_A4[a, 3]
            place = slot[target]
            if place < end:
                slot[target] = new_end
                tokens_i[new_end, STATE] = target
                tokens_f[new_end, COST] = new
                tokens_i[new_end, FROM] = i
                tokens_i[new_end, ARC] = a
                new_end += 1
            elif new < tokens_f[place, COST]:
                tokens_f[place, COST] = new
                tokens_i[place, FROM] = i
                tokens_i[place, ARC] = a
    return pass_silently(graph, memory, end, new_end, limit), best, cutoff


@jit
def pass_silently(graph, memory, begin, end, limit):  # type: ignore[no-untyped-def] # pragma: no cover
    """Follow non-emitting arcs from the tokens of a frame; return the new end of its tokens."""
    tokens_i, tokens_f, slot, again_at = memory.tokens_H4, memory.cost_H4, memory.slot_S, memory.work_S
    i, again = begin, 0
    while i < end or again:
        if again:
            again -= 1
            now = again_at[again]
        else:
            now = i
            i += 1
        s = tokens_i[now, STATE]
        first, last = graph.silent_S[s], graph.begin_S1[s + 1]
        if first == last:
            continue
        cost = tokens_f[now, COST]
        for a in range(first, last):
            new = cost + graph.weight_A4[a, 2]
            if not new < limit:
                continue
            target = graph.arcs_A4[a, 3]
            place = slot[target]
            if place < begin:
                place = end
                slot[target] = end
                tokens_i[end, STATE] = target
                end += 1
            elif new < tokens_f[place, COST]:
                if place < i and again == len(again_at):
                    i, again = begin, 0  # no room to remember which tokens changed, so repeat them all
                elif place < i:
                    again_at[again] = place
                    again += 1
            else:
                continue
            tokens_f[place, COST] = new
            tokens_i[place, FROM] = now
            tokens_i[place, ARC] = a
    return end


@jit
def back_to_start(memory, place):  # type: ignore[no-untyped-def] # pragma: no cover
    """The arcs of the path to a token, in the order of the path."""
    length, at = 0, place
    while memory.tokens_H4[at, FROM] >= 0:
        length += 1
        at = memory.tokens_H4[at, FROM]
    arcs = np.empty(length, np.int32)
    at = place
    while length:
        length -= 1
        arcs[length] = memory.tokens_H4[at, ARC]
        at = memory.tokens_H4[at, FROM]
    return arcs


@jit
def best_token(graph, memory, begin, end, final):  # type: ignore[no-untyped-def] # pragma: no cover
    """Index and cost of the best token, including final costs if `final`; index -1 if there is none."""
    best, where = _INF, -1
    for i in range(begin, end):
        cost = memory.cost_H4[i, COST]
        if final:
            cost += graph.final_S[memory.tokens_H4[i, STATE]]
        if cost < best:
            best, where = cost, i
    return where, best


@jit
def drop_unreachable(memory, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """Drop tokens that are on no path to those from `begin` on; return where the latter now begin and end."""
    tokens = memory.tokens_H4
    place = np.full(end, -1, np.int32)
    for i in range(begin, end):
        at = i
        while at >= 0 and place[at] < 0:
            place[at] = 0
            at = tokens[at, FROM]
    filled, new_begin = 0, 0
    for i in range(end):
        if i == begin:
            new_begin = filled
        if place[i] == 0:
            place[i] = filled
            filled += 1
    for i in range(end):
        if place[i] >= 0:
            to = place[i]
            tokens[to, STATE], tokens[to, COST], tokens[to, ARC] = tokens[i, STATE], tokens[i, COST], tokens[i, ARC]
            tokens[to, FROM] = place[tokens[i, FROM]] if tokens[i, FROM] >= 0 else -1
    memory.slot_S[:] = -1
    return new_begin, filled
