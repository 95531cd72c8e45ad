"""Beam search through a decoding graph, fed with frames as they arrive.

Axes: T frames, P pdfs, K arcs of a path.
"""

from dataclasses import dataclass

import numpy as np

from speech3.errors import Speech3Error
from speech3.search import token_passing as kernel
from speech3.search.lattice import Lattice
from speech3.search.linked_frames import Block, LinkedFrames
from speech3.search.search_graph import SearchGraph

_ROOM = 2**21  # tokens of past frames, 32 MB; when there are more, those that lead to no current token are dropped
_PIECE = 500  # frames read in one call; Ctrl-C takes effect only between two calls

NOT_NUMBERS = (
    "the model's scores are NaN or infinite: look at its features with speech3 inspect; if those of all utterances are,"
    " the model's training diverged"
)


@dataclass(frozen=True, eq=False)
class BestPath:
    """A path through the graph that consumes all frames so far.

    Attributes
    ----------
    cost
        Acoustic and graph cost together, final cost included where `reached_final`.
    acoustic_cost
        Minus the scaled log likelihoods along the path.
    pdfs_T
        int32: the pdf of each frame.
    olabels
        The non-epsilon output labels of its arcs, in order.
    """

    cost: float
    acoustic_cost: float
    pdfs_T: np.ndarray
    olabels: tuple[int, ...]
    reached_final: bool


def check_scores(utterance: str, scores_TP: np.ndarray, num_pdfs: int, where: object) -> None:
    """Check that scores can be searched.

    Raises
    ------
    Speech3Error
        They have the wrong number of columns, or are NaN or plus infinity.
    """
    if scores_TP.ndim != 2 or scores_TP.shape[1] != num_pdfs:
        raise Speech3Error(
            f"{utterance}: scores of shape {scores_TP.shape}, but the graph {where} has {num_pdfs} pdfs;"
            " it belongs to another model: build a graph for this model"
        )
    if not_numbers(scores_TP):
        raise Speech3Error(f"{utterance}: {NOT_NUMBERS}")


def not_numbers(scores_TP: np.ndarray) -> bool:
    """Whether scores are NaN or plus infinity, so that they cannot be searched."""
    return bool(np.isnan(scores_TP).any() or np.isposinf(scores_TP).any())


class BeamSearch:
    """Searches one utterance after another, reusing its memory.

    Call `begin`, then `read` with frames as they arrive; `best_path` may be called at any time. Only one thread may use
    it at a time; the GIL is released while frames are read.
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
            Maximum number of tokens of a frame from which the search continues.
        lattice_beam
            Paths whose cost exceeds that of the best path by more than this are left out of the lattice; None: there
            is no lattice, and the search is faster.
        """
        if len(self._memory.slot_S) != len(graph.final_S):
            self._memory = kernel.new_tokens(len(graph.final_S), _ROOM)
        self._graph, self._utterance = graph, utterance
        self._scale, self._beam, self._max_active = np.float32(acoustic_scale), np.float32(beam), int(max_active)
        self._first, self._end = 0, kernel.begin_search(graph, self._memory)
        self._subtracted = 0.0
        self._links = LinkedFrames(graph, self._scale, lattice_beam) if lattice_beam is not None else None
        self.frames = 0

    @property
    def alive(self) -> bool:
        """Whether any path has survived all frames so far."""
        return self._end > self._first

    def read(self, scores_TP: np.ndarray) -> None:
        """Read frames: float32 (T, P) unscaled log likelihoods, up to a constant for each frame.

        Raises
        ------
        Speech3Error
            They are NaN or plus infinity, or the number of columns differs from the graph's number of pdfs.
        """
        check_scores(self._utterance, scores_TP, self._graph.num_pdfs, "that is searched")
        scores_TP = np.ascontiguousarray(scores_TP, np.float32)
        done = 0
        while done < len(scores_TP) and self.alive:
            most = self._wanted()
            piece_TP = scores_TP[done : done + most]
            frames = len(piece_TP)
            begins, bests, cutoffs = np.empty(frames + 1, np.int32), *np.empty((2, frames), np.float32)
            read, self._first, self._end, self._subtracted = kernel.read_frames(
                self._graph, self._memory, self._first, self._end, piece_TP, self._scale, self._beam,
                self._max_active, self._subtracted, begins, bests, cutoffs,
            )  # fmt: skip
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
