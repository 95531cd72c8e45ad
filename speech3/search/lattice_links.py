"""From the tokens of a search to a lattice of the arcs within the lattice beam (Kaldi's lattice-faster-decoder.cc).

Every arc between two tokens is visited again, from the last frame to the first. Its slack is the cost of the best
path to its target that ends with the arc, minus the cost of the best path to the target (so 0 on the latter). The extra
cost of a token is the cost of the best path through it, minus that of the best path of all. The slack of an arc plus
the extra cost of its target is the extra cost of the arc. Arcs whose extra cost exceeds `lattice_beam` are dropped, and
then tokens without arcs. A link is an arc that is kept, with the two tokens. Kaldi stores links for all tokens as it
reads frames; here they are made after a block of frames has been read, when few tokens are left.

While more frames are to come, all tokens of the last frame have extra cost 0, so nothing is dropped that later frames
could bring within the beam.

Links are ordered such that all links into a token come before all links out of it.

The compiled code does no bounds checks, as in `token_passing`.

Axes: T frames, T1 one more, P pdfs, H tokens, L links; the 5 columns of a link are SOURCE, TARGET and ARC, SLACK and
SCORE (the log likelihood, unscaled) in the float32 view of the same memory.
"""

import numpy as np

from speech3.io.compiled import jit
from speech3.search.token_passing import ARC as TOKEN_ARC
from speech3.search.token_passing import COST, FROM, STATE, acoustic_costs

SOURCE, TARGET, ARC, SLACK, SCORE = 0, 1, 2, 3, 4
_INF = np.float32(np.inf)


@jit
def final_extras(graph, memory, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """Extra cost of ending in each token of the last frame, float32, and whether any of them is in a final state.

    If none is, paths may end in every token.
    """
    best, final = _INF, False
    for i in range(begin, end):
        final = final or graph.final_S[memory.tokens_H4[i, STATE]] < _INF
    extra = np.empty(end - begin, np.float32)
    for i in range(begin, end):
        last = graph.final_S[memory.tokens_H4[i, STATE]] if final else np.float32(0.0)
        extra[i - begin] = memory.cost_H4[i, COST] + last
        best = min(best, extra[i - begin])
    return extra - best, final


@jit
def link_frames(graph, memory, begins, bests, cutoffs, end, scores, scale, last_extra, lattice_beam, finished):  # type: ignore[no-untyped-def] # pragma: no cover
    """The links of a block of frames, in reverse order.

    Parameters
    ----------
    begins, bests, cutoffs, scores, scale
        Inputs and outputs of `token_passing.read_frames`.
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
    extra = np.full(end - base, _INF, np.float32)
    _copy(last_extra, extra, begins[frames] - base)
    ac = np.empty(scores.shape[1], np.float32)
    if finished:
        _find(memory, begins[frames], end)
        links, filled = _link_silent(graph, memory, begins[frames], end, base, extra, lattice_beam, links, filled)
    for t in range(frames - 1, -1, -1):
        acoustic_costs(scores[t], scale, ac)
        after = end if t == frames - 1 else begins[t + 2]
        _find(memory, begins[t], begins[t + 1])
        links, filled = _link_reading(
            graph, memory, begins[t], begins[t + 1], after, base, extra, lattice_beam, links, filled, scores[t], ac,
            bests[t], cutoffs[t],
        )  # fmt: skip
        links, filled = _link_silent(graph, memory, begins[t], begins[t + 1], base, extra, lattice_beam, links, filled)
    return links[0], filled, extra


@jit
def _find(memory, begin, end):  # type: ignore[no-untyped-def] # pragma: no cover
    """Write the index of each state's token in a frame to `slot_S`."""
    for i in range(begin, end):
        memory.slot_S[memory.tokens_H4[i, STATE]] = i


@jit
def _link_reading(graph, memory, begin, end, after, base, extra, lattice_beam, links, filled, scores, ac, best, cutoff):  # type: ignore[no-untyped-def] # pragma: no cover
    """Make links from the tokens of a frame (`begin` to `end`) to those of the next (`end` to `after`).

    Few tokens of the next frame are within the lattice beam, so arcs are visited by their targets.
    """
    cost_of, slot = memory.cost_H4, memory.slot_S
    for j in range(end, after):
        if not extra[j - base] <= lattice_beam:
            continue
        target = memory.tokens_H4[j, STATE]
        for place in range(graph.into_S1[target], graph.into_S1[target + 1]):
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
def _link_silent(graph, memory, begin, end, base, extra, lattice_beam, links, filled):  # type: ignore[no-untyped-def] # pragma: no cover
    """Make epsilon links among the tokens of a frame, in order of decreasing level of the source state."""
    tokens, cost_of, slot, chain = memory.tokens_H4, memory.cost_H4, memory.slot_S, memory.work_S
    top = -1
    for i in range(begin, end):
        s = tokens[i, STATE]
        if graph.silent_S[s] < graph.begin_S1[s + 1]:
            top = max(top, graph.level_S[s])
    newest = np.full(top + 1, -1, np.int32)  # the last token of each level, linked to the earlier ones by `chain`
    for i in range(begin, end):
        s = tokens[i, STATE]
        if graph.silent_S[s] < graph.begin_S1[s + 1]:
            chain[i - begin] = newest[graph.level_S[s]]
            newest[graph.level_S[s]] = i
    for level in range(top, -1, -1):
        i = newest[level]
        while i >= 0:
            s = tokens[i, STATE]
            for a in range(graph.silent_S[s], graph.begin_S1[s + 1]):
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
def _copy(source, target, begin):  # type: ignore[no-untyped-def] # pragma: no cover
    """Copy `source` to `target` from `begin` on; numba takes seconds to compile the assignment of a slice."""
    for i in range(len(source)):
        target[begin + i] = source[i]


@jit
def _put(links, filled, source, target, arc, slack, score):  # type: ignore[no-untyped-def] # pragma: no cover
    if filled == len(links[0]):
        larger = np.empty((2 * filled, 5), np.int32)
        _copy(links[0].reshape(-1), larger.reshape(-1), 0)
        links = larger, larger.view(np.float32)
    columns, numbers = links
    columns[filled, SOURCE], columns[filled, TARGET], columns[filled, ARC] = source, target, arc
    numbers[filled, SLACK], numbers[filled, SCORE] = slack, score
    return links, filled + 1


@jit
def keep_linked(memory, extra, first, begin, end, lattice_beam):  # type: ignore[no-untyped-def] # pragma: no cover
    """Drop tokens from `first` up to `begin` whose extra cost exceeds the beam; later tokens (the last frame) are kept.

    `extra` begins at `first`. Returns the new begin and end of the tokens of the last frame, and the new index of each
    token from `first` on (-1: dropped).
    """
    tokens = memory.tokens_H4
    place = np.full(end - first, -1, np.int32)
    filled, new_begin = first, first
    for i in range(first, end):
        if i == begin:
            new_begin = filled
        if i < begin and not extra[i - first] <= lattice_beam:
            continue
        place[i - first] = filled
        tokens[filled, STATE], tokens[filled, COST] = tokens[i, STATE], tokens[i, COST]
        tokens[filled, TOKEN_ARC] = tokens[i, TOKEN_ARC]
        came = tokens[i, FROM]
        tokens[filled, FROM] = came if came < first else -2 - came
        filled += 1
    for i in range(first, filled):
        if tokens[i, FROM] < -1:
            tokens[i, FROM] = place[-2 - tokens[i, FROM] - first]
    memory.slot_S[:] = -1
    return new_begin, filled, place


@jit
def renumber(links, first, place):  # type: ignore[no-untyped-def] # pragma: no cover
    """Renumber, in place, the tokens of links from `first` on; return which links still have both tokens."""
    keep = np.ones(len(links), np.bool_)
    for number in range(len(links)):
        for column in (SOURCE, TARGET):
            if links[number, column] >= first:
                links[number, column] = place[links[number, column] - first]
                keep[number] &= links[number, column] >= 0
    return keep


@jit
def prune_links(links, begin, end, last_extra, lattice_beam):  # type: ignore[no-untyped-def] # pragma: no cover
    """Which links to keep, and the extra cost of each token, computed backwards from those of the last frame."""
    extra = np.full(end, _INF, np.float32)
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
def frames_of(links, arcs, tokens):  # type: ignore[no-untyped-def] # pragma: no cover
    """(H,) int32: number of frames read up to each of `tokens` tokens, -1 for tokens that no link leads to."""
    frame = np.full(tokens, -1, np.int32)
    frame[0] = 0
    for number in range(len(links)):
        read = arcs[links[number, ARC], 0] > 0
        frame[links[number, TARGET]] = frame[links[number, SOURCE]] + read
    return frame
