"""The compiled loops of the beam search: token passing, and the lattice of the tokens that it leaves.

Tokens (Young et al. 1989; pruned as in Kaldi's faster-decoder): a token is the best path to one state at one frame. One
array holds the tokens of all frames, frame after frame; each token stores its predecessor and its last arc. Costs are
float32, relative to the best cost of the frame before; the subtracted costs are summed in float64.

Links (Kaldi's lattice-faster-decoder.cc): every arc between two tokens is visited again, from the last frame to the
first. Its slack is the cost of the best path to its target that ends with the arc, minus the cost of the best path to
the target. The extra cost of a token is the cost of the best path through it, minus that of the best path of all. The
slack of an arc plus the extra cost of its target is the extra cost of the arc; arcs above `lattice_beam` are dropped,
and then tokens without arcs. A link is an arc that is kept; all links into a token come before all links out of it.
Kaldi stores links for all tokens as it reads frames; here they are made after a block of frames, when few tokens are
left. Until the last frame, its tokens have extra cost 0, so nothing is dropped that later frames could bring back.

There are no bounds checks: a `SearchGraph` was checked when it was made, and `beam_search`, the only caller, checks the
scores and reserves room for a token of every state.

Axes: T frames, T1 one more, P pdfs, S states, H tokens of all frames (columns STATE, COST, FROM, ARC; COST in the
float32 view of the same memory), L links (columns SOURCE, TARGET, ARC and, as float32, SLACK and SCORE, the unscaled
log likelihood).
"""

from typing import NamedTuple

import numpy as np

from speech3.runtime import jit

STATE, COST, FROM, ARC = 0, 1, 2, 3
MIN_ACTIVE = 20  # tokens that are always kept, whatever their cost, as in Kaldi
_MARGIN = np.float32(0.5)  # Kaldi's beam_delta
_INFINITE = np.float32(np.inf)
SOURCE, TARGET, LINKED_ARC, SLACK, SCORE = 0, 1, 2, 3, 4


class Tokens(NamedTuple):
    """Memory of a search."""

    # tokens_H4, cost_H4: int32 and float32 views of the same memory
    tokens_H4: np.ndarray
    cost_H4: np.ndarray
    # int32: index of the newest token of each state, -1 if there is none. The token belongs to an earlier frame if its
    # index is below that of the current frame's first token.
    slot_S: np.ndarray
    # work_S, costs_S: int32 and float32 work space, used within a frame
    work_S: np.ndarray
    costs_S: np.ndarray


def new_tokens(states: int, room: int) -> Tokens:
    """Memory for `room` tokens of past frames and, in addition, one token of each state."""
    tokens_H4, (slot_S, work_S) = np.empty((room + states, 4), np.int32), np.empty((2, states), np.int32)
    return Tokens(tokens_H4, tokens_H4.view(np.float32), slot_S, work_S, np.empty(states, np.float32))


@jit
def _smallest(values, end, rank):  # type: ignore[no-untyped-def]
    """The value at `rank` (from 0) if the first `end` values were sorted; reorders them (Hoare's quickselect).

    NumPy's `partition` is as fast, but takes numba four seconds to compile.
    """
    low, high = 0, end - 1
    while low < high:
        # Hoare's partition: what is left of j is at most the pivot, what is right of i at least.
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
        # Go on in the part that holds the rank.
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]


@jit
def _cutoff(costs, cost_of, begin, end, beam, max_active):  # type: ignore[no-untyped-def]
    """The best cost of a frame, the pruning cutoff, and the beam for the next frame (Kaldi's GetCutoff)."""
    best = _INFINITE
    for i in range(begin, end):
        best = min(best, cost_of[i, COST])
    least = min(MIN_ACTIVE, max_active)
    if end - begin <= least:
        return best, _INFINITE, _INFINITE
    # The beam alone decides where it keeps an allowed number of tokens.
    cutoff, within = best + beam, 0
    for i in range(begin, end):
        within += cost_of[i, COST] <= cutoff
    if least <= within <= max_active:
        return best, cutoff, beam
    # Else the cutoff is the cost at the most or the least number of tokens that may stay active.
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
def begin_search(graph, memory):  # type: ignore[no-untyped-def]
    """Make tokens for the start state and the states that epsilon arcs reach from it; return where they end."""
    memory.slot_S[:] = -1
    memory.slot_S[graph.start] = 0
    memory.tokens_H4[0, STATE] = graph.start
    memory.cost_H4[0, COST] = 0.0
    memory.tokens_H4[0, FROM] = -1
    memory.tokens_H4[0, ARC] = -1
    return follow_epsilons(graph, memory, 0, 1, _INFINITE)


@jit
def acoustic_costs(scores, scale, ac):  # type: ignore[no-untyped-def]
    """Write the scaled cost of each pdf in a frame, relative to the lowest, to `ac`; return the lowest cost."""
    top = -_INFINITE
    for p in range(len(scores)):
        top = max(top, scores[p])
    if top == -_INFINITE:
        ac[:] = _INFINITE
        return 0.0
    for p in range(len(scores)):
        ac[p] = (top - scores[p]) * scale
    return -np.float64(top) * np.float64(scale)


@jit
def read_frames(graph, memory, begin, end, scores, scale, beam, max_active, subtracted, begins, bests, cutoffs):  # type: ignore[no-untyped-def]
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
    The number of frames read, where the tokens of the last frame begin and end, and the new `subtracted`.
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
def _read(graph, memory, begin, end, ac, beam, max_active):  # type: ignore[no-untyped-def]
    """Read one frame; return where its tokens end, and the best cost and the cutoff of the frame before."""
    tokens_i, tokens_f, slot = memory.tokens_H4, memory.cost_H4, memory.slot_S
    best, cutoff, width = _cutoff(memory.costs_S, tokens_f, begin, end, beam, max_active)
    limit, new_end = _INFINITE, end
    # The limit on the costs of the next frame: its best cost so far, plus the beam.
    for i in range(begin, end):
        if tokens_f[i, COST] == best:  # the best token gives a good first estimate of the limit
            s = tokens_i[i, STATE]
            for a in range(graph.begin_S1[s], graph.epsilon_S[s]):
                limit = min(limit, graph.weight_A4[a, 2] + ac[graph.arcs_A4[a, 0] - 1] + width)
            break
    # Pass every token within the beam along its emitting arcs; of two into a state, the better one stays.
    for i in range(begin, end):
        cost = tokens_f[i, COST]
        if cost > cutoff:
            continue
        cost -= best
        s = tokens_i[i, STATE]
        for a in range(graph.begin_S1[s], graph.epsilon_S[s]):
            new = cost + graph.weight_A4[a, 2] + ac[graph.arcs_A4[a, 0] - 1]
            if not new < limit:
                continue
            limit = min(limit, new + width)
            # A state whose slot is from an earlier frame has no token in this one yet.
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
    return follow_epsilons(graph, memory, end, new_end, limit), best, cutoff


@jit
def follow_epsilons(graph, memory, begin, end, limit):  # type: ignore[no-untyped-def]
    """Follow epsilon arcs from the tokens of a frame; return the new end of its tokens."""
    tokens_i, tokens_f, slot, again_at = memory.tokens_H4, memory.cost_H4, memory.slot_S, memory.work_S
    # Visit the tokens in order; one that improves after its visit is put on a stack and visited again.
    i, again = begin, 0
    while i < end or again:
        if again:
            again -= 1
            now = again_at[again]
        else:
            now = i
            i += 1
        s = tokens_i[now, STATE]
        first, last = graph.epsilon_S[s], graph.begin_S1[s + 1]
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
def back_to_start(memory, place):  # type: ignore[no-untyped-def]
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
def best_token(graph, memory, begin, end, final):  # type: ignore[no-untyped-def]
    """Index and cost of the best token, including final costs if `final`; index -1 if there is none."""
    best, where = _INFINITE, -1
    for i in range(begin, end):
        cost = memory.cost_H4[i, COST]
        if final:
            cost += graph.final_S[memory.tokens_H4[i, STATE]]
        if cost < best:
            best, where = cost, i
    return where, best


@jit
def drop_unreachable(memory, begin, end):  # type: ignore[no-untyped-def]
    """Drop tokens that are on no path to those from `begin` on; return where the latter now begin and end."""
    tokens = memory.tokens_H4
    # Mark the paths back from the last frame's tokens.
    place = np.full(end, -1, np.int32)
    for i in range(begin, end):
        at = i
        while at >= 0 and place[at] < 0:
            place[at] = 0
            at = tokens[at, FROM]
    # Close the gaps, and renumber the predecessors.
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


@jit
def final_extras(graph, memory, begin, end):  # type: ignore[no-untyped-def]
    """Extra cost of ending in each token of the last frame, float32, and whether any of them is in a final state.

    If none is, paths may end in every token.
    """
    best, final = _INFINITE, False
    for i in range(begin, end):
        final = final or graph.final_S[memory.tokens_H4[i, STATE]] < _INFINITE
    extra = np.empty(end - begin, np.float32)
    for i in range(begin, end):
        last = graph.final_S[memory.tokens_H4[i, STATE]] if final else np.float32(0.0)
        extra[i - begin] = memory.cost_H4[i, COST] + last
        best = min(best, extra[i - begin])
    return extra - best, final


@jit
def link_frames(graph, memory, begins, bests, cutoffs, end, scores, scale, last_extra, lattice_beam, finished):  # type: ignore[no-untyped-def]
    """The links of a block of frames, in reverse order.

    Parameters
    ----------
    begins, bests, cutoffs, scores, scale
        Inputs and outputs of `read_frames`.
    end
        Index after the last token.
    last_extra
        float32 extra costs of the tokens of the last frame.
    finished
        Also make the epsilon links of the last frame; otherwise they are left to the next block.

    Returns
    -------
    Links (int32, with spare rows), how many there are, and the extra cost of each token from ``begins[0]`` on.
    """
    frames, base = len(scores), begins[0]
    columns, filled = np.empty((4096, 5), np.int32), 0
    links = columns, columns.view(np.float32)
    # The extra cost of a token: how much worse than the best path is the best one through it (Povey et al. 2012).
    extra = np.full(end - base, _INFINITE, np.float32)
    _copy(last_extra, extra, begins[frames] - base)
    ac = np.empty(scores.shape[1], np.float32)
    if finished:
        _find(memory, begins[frames], end)
        links, filled = _link_epsilons(graph, memory, begins[frames], end, base, extra, lattice_beam, links, filled)
    # Backwards, so that the extra costs of a frame's tokens are final before links to them are made.
    for t in range(frames - 1, -1, -1):
        # The same costs as in the search, computed again: they are not kept.
        acoustic_costs(scores[t], scale, ac)
        after = end if t == frames - 1 else begins[t + 2]
        _find(memory, begins[t], begins[t + 1])
        frame, pruning = (begins[t], begins[t + 1], after), (scores[t], ac, bests[t], cutoffs[t])
        links, filled = _link_arcs(graph, memory, *frame, base, extra, lattice_beam, links, filled, *pruning)
        links, filled = _link_epsilons(
            graph, memory, begins[t], begins[t + 1], base, extra, lattice_beam, links, filled
        )
    return links[0], filled, extra


@jit
def _find(memory, begin, end):  # type: ignore[no-untyped-def]
    """Write the index of each state's token in a frame to `slot_S`."""
    for i in range(begin, end):
        memory.slot_S[memory.tokens_H4[i, STATE]] = i


@jit
def _link_arcs(graph, memory, begin, end, after, base, extra, lattice_beam, links, filled, scores, ac, best, cutoff):  # type: ignore[no-untyped-def]
    """Make links from the tokens of a frame (`begin` to `end`) to those of the next (`end` to `after`).

    Few tokens of the next frame are within the lattice beam, so arcs are visited by their targets.
    """
    cost_of, slot = memory.cost_H4, memory.slot_S
    for j in range(end, after):
        if not extra[j - base] <= lattice_beam:
            continue
        target = memory.tokens_H4[j, STATE]
        for place in range(graph.into_S1[target], graph.into_S1[target + 1]):
            # The arc was followed if its source had a token within that frame's beam.
            i = slot[graph.into_E2[place, 0]]
            if i < begin or i >= end or cost_of[i, COST] > cutoff:
                continue
            a = graph.into_E2[place, 1]
            pdf = graph.arcs_A4[a, 0] - 1
            slack = (cost_of[i, COST] - best) + graph.weight_A4[a, 2] + ac[pdf] - cost_of[j, COST]
            here = slack + extra[j - base]
            if slack < 0 or not here <= lattice_beam:  # below 0: the search had pruned this arc
                continue
            links, filled = _put(links, filled, i, j, a, slack, scores[pdf])
            extra[i - base] = min(extra[i - base], here)
    return links, filled


@jit
def _link_epsilons(graph, memory, begin, end, base, extra, lattice_beam, links, filled):  # type: ignore[no-untyped-def]
    """Make epsilon links among the tokens of a frame, in order of decreasing level of the source state."""
    tokens, cost_of, slot, chain = memory.tokens_H4, memory.cost_H4, memory.slot_S, memory.work_S
    top = -1
    for i in range(begin, end):
        s = tokens[i, STATE]
        if graph.epsilon_S[s] < graph.begin_S1[s + 1]:
            top = max(top, graph.level_S[s])
    # Bucket the tokens that epsilon arcs leave by the level of their states.
    newest = np.full(top + 1, -1, np.int32)  # the last token of each level, linked to the earlier ones by `chain`
    for i in range(begin, end):
        s = tokens[i, STATE]
        if graph.epsilon_S[s] < graph.begin_S1[s + 1]:
            chain[i - begin] = newest[graph.level_S[s]]
            newest[graph.level_S[s]] = i
    # From the highest level down, so that the extra cost of an arc's target is final when the arc is visited.
    for level in range(top, -1, -1):
        i = newest[level]
        while i >= 0:
            s = tokens[i, STATE]
            for a in range(graph.epsilon_S[s], graph.begin_S1[s + 1]):
                j = slot[graph.arcs_A4[a, 3]]
                if j < begin or j >= end or not extra[j - base] <= lattice_beam:
                    continue
                slack = cost_of[i, COST] + graph.weight_A4[a, 2] - cost_of[j, COST]
                here = slack + extra[j - base]
                if slack < 0 or not here <= lattice_beam:
                    continue
                links, filled = _put(links, filled, i, j, a, slack, np.float32(0.0))
                extra[i - base] = min(extra[i - base], here)
            i = chain[i - begin]
    return links, filled


@jit
def _copy(source, target, begin):  # type: ignore[no-untyped-def]
    """Copy `source` to `target` from `begin` on; numba takes seconds to compile the assignment of a slice."""
    for i in range(len(source)):
        target[begin + i] = source[i]


@jit
def _put(links, filled, source, target, arc, slack, score):  # type: ignore[no-untyped-def]
    if filled == len(links[0]):
        larger = np.empty((2 * filled, 5), np.int32)
        _copy(links[0].reshape(-1), larger.reshape(-1), 0)
        links = larger, larger.view(np.float32)
    columns, numbers = links
    columns[filled, SOURCE], columns[filled, TARGET], columns[filled, LINKED_ARC] = source, target, arc
    numbers[filled, SLACK], numbers[filled, SCORE] = slack, score
    return links, filled + 1


@jit
def keep_linked(memory, extra, first, begin, end, lattice_beam):  # type: ignore[no-untyped-def]
    """Drop tokens from `first` up to `begin` whose extra cost exceeds the beam; later tokens (the last frame) are kept.

    `extra` begins at `first`. Returns the new begin and end of the tokens of the last frame, and the new index of each
    token from `first` on (-1: dropped).
    """
    tokens = memory.tokens_H4
    place = np.full(end - first, -1, np.int32)
    # Move the kept tokens together; a predecessor from `first` on is marked until all have their new places.
    filled, new_begin = first, first
    for i in range(first, end):
        if i == begin:
            new_begin = filled
        if i < begin and not extra[i - first] <= lattice_beam:
            continue
        place[i - first] = filled
        tokens[filled, STATE], tokens[filled, COST] = tokens[i, STATE], tokens[i, COST]
        tokens[filled, ARC] = tokens[i, ARC]
        # -1 is the start's predecessor, so marked ones are -2 and below.
        came = tokens[i, FROM]
        tokens[filled, FROM] = came if came < first else -2 - came
        filled += 1
    for i in range(first, filled):
        if tokens[i, FROM] < -1:
            tokens[i, FROM] = place[-2 - tokens[i, FROM] - first]
    memory.slot_S[:] = -1
    return new_begin, filled, place


@jit
def renumber(links, first, place):  # type: ignore[no-untyped-def]
    """Renumber, in place, the tokens of links from `first` on; return which links still have both tokens."""
    keep = np.ones(len(links), np.bool_)
    for number in range(len(links)):
        for column in (SOURCE, TARGET):
            if links[number, column] >= first:
                links[number, column] = place[links[number, column] - first]
                keep[number] &= links[number, column] >= 0
    return keep


@jit
def prune_links(links, begin, end, last_extra, lattice_beam):  # type: ignore[no-untyped-def]
    """Which links to keep, and the extra cost of each token, computed backwards from those of the last frame."""
    extra = np.full(end, _INFINITE, np.float32)
    _copy(last_extra, extra, begin)
    keep = np.zeros(len(links), np.bool_)
    slacks = links.view(np.float32)
    for number in range(len(links) - 1, -1, -1):
        here = slacks[number, SLACK] + extra[links[number, TARGET]]
        if here <= lattice_beam:
            keep[number] = True
            extra[links[number, SOURCE]] = min(extra[links[number, SOURCE]], here)
    return keep, extra


@jit
def frames_of(links, arcs, tokens):  # type: ignore[no-untyped-def]
    """(H,) int32: number of frames read up to each of `tokens` tokens, -1 for tokens that no link leads to."""
    frame = np.full(tokens, -1, np.int32)
    frame[0] = 0
    for number in range(len(links)):
        read = arcs[links[number, LINKED_ARC], 0] > 0
        frame[links[number, TARGET]] = frame[links[number, SOURCE]] + read
    return frame
