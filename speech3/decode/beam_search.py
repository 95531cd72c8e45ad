"""Beam search through a decoding graph, fed with frames as they arrive, and the lattices that it makes.

The graph is arranged for the search: the arcs of each state together, emitting arcs (whose input label is a pdf, and
which consume a frame) before the others (epsilon). The compiled inner loops are in `token_passing`.

Axes: T frames, T1 one more, P pdfs, S states, S1 one more, A arcs (4 columns, those of `fst.ARC`), E emitting arcs,
H tokens, L links, K arcs of a path.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from speech3.decode import token_passing as kernel
from speech3.decode.token_passing import STATE, Tokens
from speech3.errors import DataError, FormatError, MismatchError
from speech3.io import Fst
from speech3.runtime import jit

_BLOCK_TOKENS = 2**16  # of a block, 1 MB: making and pruning its links stays in the cache
_MIN_FRAMES, _MAX_FRAMES = 32, 500  # frames of a block; Kaldi prunes every 25
_MAX_NEW_LINKS = 2**20  # new links of past frames, 20 MB, before all links are pruned again
_ROOM = 2**21  # tokens of past frames, 32 MB; when there are more, those that lead to no current token are dropped
_PIECE = 500  # frames read in one call; Ctrl-C takes effect only between two calls
NOT_NUMBERS = (
    "the model's scores are NaN or infinite: look at its features with speech3 inspect; if those of all utterances are,"
    " the model's training diverged"
)


class SearchGraph(NamedTuple):
    """Arrays that compiled code reads without bounds checks; made only by `search_graph`, which checks them."""

    num_pdfs: int  # number of columns that scores must have
    start: int  # number of the start state
    # arcs_A4, weight_A4: int32 and float32 views of the same memory: input label (pdf + 1, 0 for none), output label,
    # weight (in the float32 view), next state
    arcs_A4: np.ndarray
    weight_A4: np.ndarray
    # begin_S1, epsilon_S: int32: the arcs of state s are begin_S1[s] to begin_S1[s + 1] - 1; from epsilon_S[s] on they
    # are non-emitting
    begin_S1: np.ndarray
    epsilon_S: np.ndarray
    final_S: np.ndarray  # float32 final costs; infinity if a state is not final
    level_S: np.ndarray  # int32: the largest number of consecutive epsilon arcs on a path to this state
    # into_E2, into_S1: int32: source state and number of each emitting arc, ordered by target; those of arcs into state
    # s are into_S1[s] to into_S1[s + 1] - 1
    into_E2: np.ndarray
    into_S1: np.ndarray


def search_graph(fst: Fst, num_pdfs: int, path: Path | str) -> SearchGraph:
    """Arrange a graph for the search; `path` is for messages.

    Raises `Speech3Error`: the graph is empty, a label or state is out of range, a weight is not finite, or epsilon arcs
    form a cycle.
    """
    states, arcs = len(fst.final_S), len(fst.arcs_A)
    if not 0 <= fst.start < states or not arcs or np.isinf(fst.final_S).all():
        raise DataError(f"{path}: the graph is empty or has no final state; build it again")
    for name, values, size in (
        ("ilabels", fst.arcs_A["ilabel"], num_pdfs + 1),
        ("next states", fst.arcs_A["nextstate"], states),
        ("source states", fst.source_A, states),
    ):
        if values.min() < 0 or values.max() >= size:
            raise MismatchError(
                f"{path}: {name} range from {values.min()} to {values.max()}, but there are {size}; build the graph"
                " again"
            )
    if not np.isfinite(fst.arcs_A["weight"]).all() or np.isnan(fst.final_S).any() or np.isneginf(fst.final_S).any():
        raise FormatError(f"{path}: a weight is not a finite number; build the graph again")
    # The arcs of each state: first those that emit, then the others.
    source_A, epsilon_A = fst.source_A.astype(np.int32), fst.arcs_A["ilabel"] == 0
    order_A, begin_R1 = grouped(2 * source_A + epsilon_A, 2 * states)
    begin_S1, epsilon_S = begin_R1[::2].copy(), begin_R1[1::2].copy()
    arcs_A4 = np.ascontiguousarray(fst.arcs_A[order_A]).view(np.int32).reshape(arcs, 4)
    source_A, epsilon_A = source_A[order_A], epsilon_A[order_A]
    order_S = topological(source_A[epsilon_A], arcs_A4[epsilon_A, 3], states)
    if len(order_S) < states:
        raise FormatError(
            f"{path}: arcs that read no frame form a cycle, so the search would not end; build the graph from a"
            " grammar or language model in which every word has a pronunciation"
        )
    level_S = _levels(order_S, arcs_A4, begin_S1, epsilon_S)
    # The emitting arcs again, by target.
    emitting_E = np.flatnonzero(~epsilon_A).astype(np.int32)
    order_E, into_S1 = grouped(arcs_A4[emitting_E, 3], states)
    arc_E = emitting_E[order_E]
    into_E2 = np.stack([source_A[arc_E], arc_E], axis=1)
    weight_A4, final_S = arcs_A4.view(np.float32), np.ascontiguousarray(fst.final_S, np.float32)
    return SearchGraph(num_pdfs, fst.start, arcs_A4, weight_A4, begin_S1, epsilon_S, final_S, level_S, into_E2, into_S1)


def with_word_penalty(graph: SearchGraph, word_penalty: float) -> SearchGraph:
    """The graph with a cost added to each arc that writes a word; the same object if the cost is 0."""
    if not word_penalty:
        return graph
    arcs_A4 = graph.arcs_A4.copy()
    weight_A4 = arcs_A4.view(np.float32)
    weight_A4[:, 2] += np.where(arcs_A4[:, 1] > 0, np.float32(word_penalty), np.float32(0))
    return graph._replace(arcs_A4=arcs_A4, weight_A4=weight_A4)


@jit
def grouped(value, values):  # type: ignore[no-untyped-def]
    """The order that sorts numbers below `values` (counting sort), and where each value begins in it: both int32."""
    begin = np.zeros(values + 1, np.int32)
    for place in range(len(value)):
        begin[value[place] + 1] += 1
    for number in range(values):
        begin[number + 1] += begin[number]
    order, filled = np.empty(len(value), np.int32), begin[:-1].copy()
    for place in range(len(value)):
        order[filled[value[place]]] = place
        filled[value[place]] += 1
    return order, begin


def topological(source_A: np.ndarray, target_A: np.ndarray, states: int) -> np.ndarray:
    """States in topological order (Kahn 1962), int32; not all of them if there is a cycle."""
    target_A = target_A.astype(np.int32)
    order_A, begin_S1 = grouped(source_A.astype(np.int32), states)
    order_S: np.ndarray = _topological(target_A[order_A], begin_S1, np.bincount(target_A, minlength=states))
    return order_S


@jit
def _topological(target, begin, waiting):  # type: ignore[no-untyped-def]
    """`waiting` has the number of arcs into each state whose sources have not been visited yet."""
    # Kahn's algorithm: states without waiting arcs, in the order in which the last of these is removed.
    order, end = np.empty(len(waiting), np.int32), 0
    for s in range(len(waiting)):
        if waiting[s] == 0:
            order[end] = s
            end += 1
    done = 0
    while done < end:
        s = order[done]
        done += 1
        for a in range(begin[s], begin[s + 1]):
            waiting[target[a]] -= 1
            if waiting[target[a]] == 0:
                order[end] = target[a]
                end += 1
    return order[:end]


@jit
def _levels(order, arcs, begin, epsilon):  # type: ignore[no-untyped-def]
    """The largest number of consecutive epsilon arcs on a path to each state, visited in topological order."""
    level = np.zeros(len(epsilon), np.int32)
    for s in order:
        for a in range(epsilon[s], begin[s + 1]):
            level[arcs[a, 3]] = max(level[arcs[a, 3]], level[s] + 1)
    return level


@dataclass(frozen=True, eq=False)
class Lattice:
    """An acyclic transducer from pdfs to words, with one path for each path through the graph (Kaldi's Lattice).

    State 0 is the start; every arc leads to a higher state, and arcs are sorted by source state.
    """

    # source_A, target_A: int32 source and target states
    source_A: np.ndarray
    target_A: np.ndarray
    # ilabel_A, olabel_A: int32: pdf + 1, and the index of a word; 0 for epsilon
    ilabel_A: np.ndarray
    olabel_A: np.ndarray
    graph_A: np.ndarray  # float32 cost in the graph that was searched, word penalty included
    acoustic_A: np.ndarray  # float32 cost, unscaled: minus the log likelihood
    final_S: np.ndarray  # float32 final costs; infinity for states that are not final
    frame_S: np.ndarray  # int32: number of frames read on the paths to a state
    # false if no path ended in a final state of the graph; then every state after the last frame is final
    reached_final: bool

    @property
    def frames(self) -> int:
        return int(self.frame_S.max()) if len(self.frame_S) else 0

    def costs_A(self, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
        """(A,) float64; the word penalty is added to the one already in the graph costs."""
        penalty_A = word_penalty * (self.olabel_A > 0)
        return self.graph_A.astype(np.float64) + acoustic_scale * self.acoustic_A.astype(np.float64) + penalty_A


def rest_costs(lattice: Lattice, acoustic_scale: float) -> np.ndarray:
    """(S,) float64: the cost of the best path from each state to the end, final cost included."""
    costs_A = lattice.costs_A(acoustic_scale)
    return costs_to_end(lattice.source_A, lattice.target_A, costs_A, lattice.final_S.astype(np.float64))


def best_words(lattice: Lattice, acoustic_scale: float, word_penalty: float = 0.0) -> tuple[int, ...]:
    """The words of the best path; `word_penalty` is added to the one in the graph costs."""
    olabels = lattice.olabel_A[best_arcs(lattice, acoustic_scale, word_penalty)]
    return tuple(olabels[olabels > 0].tolist())


def best_arcs(lattice: Lattice, acoustic_scale: float, word_penalty: float = 0.0) -> np.ndarray:
    """The arcs of the best path, in order."""
    costs_A = lattice.costs_A(acoustic_scale, word_penalty)
    found: np.ndarray = _best_arcs(lattice.source_A, lattice.target_A, costs_A, lattice.final_S.astype(np.float64))
    return found


@jit
def costs_to_end(source, target, costs, final):  # type: ignore[no-untyped-def]
    """`rest_costs`, of arcs sorted by source state."""
    rest = final.copy()
    for a in range(len(source) - 1, -1, -1):
        rest[source[a]] = min(rest[source[a]], costs[a] + rest[target[a]])
    return rest


@jit
def _best_arcs(source, target, costs, final):  # type: ignore[no-untyped-def]
    # Arcs are sorted by source state, and lead to higher ones: from the last to the first, rest costs are final.
    rest, by = final.copy(), np.full(len(final), -1, np.int64)
    for a in range(len(source) - 1, -1, -1):
        cost = costs[a] + rest[target[a]]
        if cost < rest[source[a]]:
            rest[source[a]] = cost
            by[source[a]] = a
    # Forwards along the best arcs; a state without one is where the path ends.
    path = [np.int64(0)]
    path.clear()
    at = 0
    while by[at] >= 0:
        path.append(by[at])
        at = target[by[at]]
    return np.array(path)


@dataclass(frozen=True, eq=False)
class Block:
    """Frames that were read, as `token_passing.read_frames` describes them: (T1,), (T,), (T,) and (T, P)."""

    begins: np.ndarray
    bests: np.ndarray
    cutoffs: np.ndarray
    scores: np.ndarray


@dataclass(eq=False)
class LinkedFrames:
    """The links of past frames, and the block of frames that have no links yet."""

    graph: SearchGraph
    scale: np.float32
    beam: np.float32
    block: list[Block] = field(default_factory=list)
    links: list[np.ndarray] = field(default_factory=list)
    few: int = 0  # number of links when all of them were last pruned

    def wanted(self, tokens: int) -> int:
        """Number of frames to read before the block is linked, if frames have as many tokens as this one."""
        frames = min(max(_BLOCK_TOKENS // max(tokens, 1), _MIN_FRAMES), _MAX_FRAMES)
        return max(frames - sum(len(part.bests) for part in self.block), 0)

    def add(self, part: Block) -> None:
        if len(part.bests):
            self.block.append(part)

    def link(self, memory: Tokens, begin: int, end: int) -> tuple[int, int]:
        """Make the links of the block and drop tokens; return the new begin and end of the last frame's tokens."""
        if not self.block:
            return begin, end
        first = int(self.block[0].begins[0])
        links, extra_H = self._of_block(memory, end, np.zeros(end - begin, np.float32), False)
        self.block = []
        self.links.append(links)
        # The links of the block before also contain tokens of the frame in which this block begins.
        begin, end = self._keep(memory, extra_H, first, begin, end, 2)
        if sum(map(len, self.links)) > 2 * self.few + _MAX_NEW_LINKS:
            links = np.concatenate(self.links)
            keep, extra_H = kernel.prune_links(links, begin, end, np.zeros(end - begin, np.float32), self.beam)
            self.links = [links[keep]]
            self.few = len(self.links[0])
            begin, end = self._keep(memory, extra_H, 0, begin, end, 1)
        return begin, end

    def _keep(
        self, memory: Tokens, extra_H: np.ndarray, first: int, begin: int, end: int, blocks: int
    ) -> tuple[int, int]:
        """Drop tokens from `first` on, and renumber them in the last `blocks` arrays of links."""
        begin, end, place = kernel.keep_linked(memory, extra_H, first, begin, end, self.beam)
        self.links[-blocks:] = [links[kernel.renumber(links, first, place)] for links in self.links[-blocks:]]
        return begin, end

    def _of_block(
        self, memory: Tokens, end: int, last_extra: np.ndarray, finished: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        parts = self.block
        begins = np.concatenate([parts[0].begins[:1], *(part.begins[1:] for part in parts)])
        bests, cutoffs, scores_TP = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("bests", "cutoffs", "scores")
        )
        links, filled, extra_H = kernel.link_frames(
            self.graph, memory, begins, bests, cutoffs, end, scores_TP, self.scale, last_extra, self.beam, finished
        )
        return np.ascontiguousarray(links[:filled][::-1]), extra_H

    def lattice(self, memory: Tokens, begin: int, end: int) -> Lattice:
        last_extra, final = kernel.final_extras(self.graph, memory, begin, end)
        block = self.block
        if not block:  # no frame was read since the last block: only its last frame's epsilon links are missing
            none, none_TP = np.empty(0, np.float32), np.empty((0, self.graph.num_pdfs), np.float32)
            self.block = [Block(np.array([begin], np.int32), none, none, none_TP)]
        found, extra_H = self._of_block(memory, end, last_extra, True)
        self.block = block
        links_L = np.concatenate([*self.links, found])
        # Epsilon links of the last frame may have lowered the extra costs of its tokens.
        last_extra = extra_H[len(extra_H) - (end - begin) :]
        keep, extra_H = kernel.prune_links(links_L, begin, end, last_extra, self.beam)
        return self._lattice(memory, links_L[keep], extra_H, begin, final)

    def _lattice(self, memory: Tokens, links_L: np.ndarray, extra_H: np.ndarray, begin: int, final: bool) -> Lattice:
        arcs_L = self.graph.arcs_A4[links_L[:, kernel.LINKED_ARC]]
        frame_H = kernel.frames_of(links_L, self.graph.arcs_A4, len(extra_H))
        # The states: tokens within the beam, by frame and then by epsilon level, which is a topological order.
        kept = np.flatnonzero((extra_H <= self.beam) & (frame_H >= 0))
        states = memory.tokens_H4[kept, STATE]
        order = np.lexsort((self.graph.level_S[states], frame_H[kept]))
        kept, states = kept[order], states[order]
        number_H = np.full(len(extra_H), -1, np.int32)
        number_H[kept] = np.arange(len(kept), dtype=np.int32)
        final_S = np.where(kept >= begin, self.graph.final_S[states] if final else np.float32(0.0), np.float32(np.inf))
        source_L, target_L = number_H[links_L[:, kernel.SOURCE]], number_H[links_L[:, kernel.TARGET]]
        order = np.lexsort((target_L, source_L))
        labels, scores_L = (arcs_L[order, 0], arcs_L[order, 1]), links_L.view(np.float32)[:, kernel.SCORE]
        costs = arcs_L.view(np.float32)[order, 2], -scores_L[order]
        return Lattice(source_L[order], target_L[order], *labels, *costs, final_S, frame_H[kept], final)


@dataclass(frozen=True, eq=False)
class BestPath:
    """A path through the graph that consumes all frames so far."""

    cost: float  # acoustic and graph cost together, final cost included where `reached_final`
    acoustic_cost: float  # minus the scaled log likelihoods along the path
    pdfs_T: np.ndarray  # int32: the pdf of each frame
    olabels: tuple[int, ...]  # the output labels of its arcs, without epsilon
    reached_final: bool


def check_scores(utterance: str, scores_TP: np.ndarray, num_pdfs: int, where: object) -> None:
    """Refuse scores with the wrong number of columns, or that are NaN or plus infinity."""
    if scores_TP.ndim != 2 or scores_TP.shape[1] != num_pdfs:
        raise MismatchError(
            f"{utterance}: scores of shape {scores_TP.shape}, but the graph {where} has {num_pdfs} pdfs;"
            " it belongs to another model: build a graph for this model"
        )
    if not_numbers(scores_TP):
        raise DataError(f"{utterance}: {NOT_NUMBERS}")


def not_numbers(scores_TP: np.ndarray) -> bool:
    """Whether scores are NaN or plus infinity, so that they cannot be searched."""
    return bool(np.isnan(scores_TP).any() or np.isposinf(scores_TP).any())


class BeamSearch:
    """Searches one utterance after another, reusing its memory, in one thread at a time.

    Call `begin`, then `read` with frames as they arrive, without the GIL; `best_path` may be called at any time.
    """

    def __init__(self) -> None:
        self._memory = kernel.new_tokens(1, 1)

    def begin(
        self,
        graph: SearchGraph,
        utterance: str,
        acoustic_scale: float,
        beam: float,
        max_active: int,
        lattice_beam: float | None = None,
    ) -> None:
        """Begin an utterance, whose name is used in messages, and discard the previous one.

        Parameters
        ----------
        beam
            Tokens whose cost exceeds the lowest of their frame by more than this are pruned.
        max_active
            Most tokens of a frame from which the search continues.
        lattice_beam
            Paths whose cost exceeds that of the best path by more than this are left out of the lattice; None: there is
            none, and the search is faster.
        """
        if len(self._memory.slot_S) != len(graph.final_S):
            self._memory = kernel.new_tokens(len(graph.final_S), _ROOM)
        self._graph, self._utterance = graph, utterance
        self._scale, self._beam, self._max_active = np.float32(acoustic_scale), np.float32(beam), int(max_active)
        self._first, self._end = 0, kernel.begin_search(graph, self._memory)
        self._subtracted = 0.0
        self._links = LinkedFrames(graph, self._scale, np.float32(lattice_beam)) if lattice_beam is not None else None
        self.frames = 0

    @property
    def alive(self) -> bool:
        return self._end > self._first

    def read(self, scores_TP: np.ndarray) -> None:
        """Read frames: float32 (T, P) unscaled log likelihoods, up to a constant for each frame."""
        check_scores(self._utterance, scores_TP, self._graph.num_pdfs, "that is searched")
        scores_TP = np.ascontiguousarray(scores_TP, np.float32)
        done = 0
        while done < len(scores_TP) and self.alive:
            most = self._wanted()
            piece_TP = scores_TP[done : done + most]
            frames = len(piece_TP)
            begins, bests, cutoffs = np.empty(frames + 1, np.int32), *np.empty((2, frames), np.float32)
            state = self._graph, self._memory, self._first, self._end
            pruning = self._scale, self._beam, self._max_active
            read, self._first, self._end, self._subtracted = kernel.read_frames(
                *state, piece_TP, *pruning, self._subtracted, begins, bests, cutoffs
            )
            done += read
            if self._links:
                self._links.add(Block(begins[: read + 1], bests[:read], cutoffs[:read], piece_TP[:read]))
            if self.alive and (read < frames or not self._wanted()):
                self._drop()
            if self.alive and read < frames:
                self._make_room()
        self.frames += done

    def _wanted(self) -> int:
        """Number of frames to read next; 0 if tokens are to be dropped first."""
        return self._links.wanted(self._end - self._first) if self._links else _PIECE

    def _drop(self) -> None:
        """Drop tokens from which no current token descends or, with a lattice, that are on no path within its beam."""
        if self._links:
            self._first, self._end = self._links.link(self._memory, self._first, self._end)
        else:
            self._first, self._end = kernel.drop_unreachable(self._memory, self._first, self._end)

    def _make_room(self) -> None:
        states = len(self._graph.final_S)
        room = len(self._memory.tokens_H4) - states
        if 2 * self._end > room:  # dropping tokens freed less than half of the room
            larger = kernel.new_tokens(states, 2 * max(room, self._end))
            larger.tokens_H4[: self._end] = self._memory.tokens_H4[: self._end]
            larger.slot_S[:] = -1
            self._memory = larger

    def lattice(self) -> Lattice | None:
        """The lattice of the frames so far; None if `begin` had no `lattice_beam` or no path survived."""
        if self._links is None or not self.alive:
            return None
        return self._links.lattice(self._memory, self._first, self._end)

    def best_path(self, *, ended: bool = True) -> BestPath | None:
        """The best path to a final state, or to any state if none is reached; None if no path survived.

        If `ended` is false, because more frames will follow: the best path to any state, without its final cost.
        """
        place, cost = kernel.best_token(self._graph, self._memory, self._first, self._end, True)
        final = ended and place >= 0
        if not final:
            place, cost = kernel.best_token(self._graph, self._memory, self._first, self._end, False)
        if place < 0:
            return None
        arcs_K = kernel.back_to_start(self._memory, place)
        labels_K, weights_K = self._graph.arcs_A4[arcs_K], self._graph.weight_A4[arcs_K, 2]
        total, graph_cost = float(cost) + self._subtracted, float(weights_K.sum(dtype=np.float64))
        if final:
            graph_cost += float(self._graph.final_S[self._memory.tokens_H4[place, kernel.STATE]])
        ilabels_K, olabels_K = labels_K[:, 0], labels_K[:, 1]
        return BestPath(
            total, total - graph_cost, ilabels_K[ilabels_K > 0] - 1, tuple(olabels_K[olabels_K > 0].tolist()), final
        )
