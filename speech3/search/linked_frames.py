"""The links of a search, made block by block, and their conversion to a lattice (algorithm: `lattice_links`).

Axes: T frames, T1 one more, P pdfs, H tokens, L links.
"""

from dataclasses import dataclass, field

import numpy as np

from speech3.search import lattice_links as kernel
from speech3.search.lattice import Lattice
from speech3.search.search_graph import SearchGraph
from speech3.search.token_passing import STATE, Tokens

_TOKENS = 2**16  # of a block, 1 MB: making and pruning its links stays in the cache
_LEAST, _MOST = 32, 500  # frames of a block; Kaldi prunes every 25
_MANY = 2**20  # new links of past frames, 20 MB, before all links are pruned again


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
    lattice_beam: float
    block: list[Block] = field(default_factory=list)
    links: list[np.ndarray] = field(default_factory=list)
    few: int = 0  # number of links when all of them were last pruned

    def wanted(self, tokens: int) -> int:
        """Number of frames to read before the block is linked, if frames have as many tokens as this one."""
        frames = min(max(_TOKENS // max(tokens, 1), _LEAST), _MOST)
        return max(frames - sum(len(part.bests) for part in self.block), 0)

    def add(self, part: Block) -> None:
        """Add frames that were read to the block."""
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
        if sum(map(len, self.links)) > 2 * self.few + _MANY:
            links = np.concatenate(self.links)
            keep, extra_H = kernel.prune_links(links, begin, end, np.zeros(end - begin, np.float32), self._beam)
            self.links = [links[keep]]
            self.few = len(self.links[0])
            begin, end = self._keep(memory, extra_H, 0, begin, end, 1)
        return begin, end

    def _keep(
        self, memory: Tokens, extra_H: np.ndarray, first: int, begin: int, end: int, blocks: int
    ) -> tuple[int, int]:
        """Drop tokens from `first` on, and renumber them in the last `blocks` arrays of links."""
        begin, end, place = kernel.keep_linked(memory, extra_H, first, begin, end, self._beam)
        self.links[-blocks:] = [links[kernel.renumber(links, first, place)] for links in self.links[-blocks:]]
        return begin, end

    @property
    def _beam(self) -> np.float32:
        return np.float32(self.lattice_beam)

    def _of_block(
        self, memory: Tokens, end: int, last_extra: np.ndarray, finished: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        parts = self.block
        begins = np.concatenate([parts[0].begins[:1], *(part.begins[1:] for part in parts)])
        bests, cutoffs, scores_TP = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("bests", "cutoffs", "scores")
        )
        links, filled, extra_H = kernel.link_frames(
            self.graph, memory, begins, bests, cutoffs, end, scores_TP, self.scale, last_extra, self._beam, finished
        )
        return np.ascontiguousarray(links[:filled][::-1]), extra_H

    def lattice(self, memory: Tokens, begin: int, end: int) -> Lattice:
        """The lattice of all frames so far; more of them may follow."""
        last_extra, final = kernel.final_extras(self.graph, memory, begin, end)
        links = list(self.links)
        if not self.block:  # no frame was read since the last block: only its last frame's epsilon links are missing
            nothing = np.empty(0, np.float32), np.empty((0, self.graph.num_pdfs), np.float32)
            self.block = [Block(np.array([begin], np.int32), nothing[0], nothing[0], nothing[1])]
            found, extra_H = self._of_block(memory, end, last_extra, True)
            self.block = []
        else:
            found, extra_H = self._of_block(memory, end, last_extra, True)
        links_L = np.concatenate([*links, found])
        # Epsilon links of the last frame may have lowered the extra costs of its tokens.
        last_extra = extra_H[len(extra_H) - (end - begin) :]
        keep, extra_H = kernel.prune_links(links_L, begin, end, last_extra, self._beam)
        return self._lattice(memory, links_L[keep], extra_H, begin, final)

    def _lattice(self, memory: Tokens, links_L: np.ndarray, extra_H: np.ndarray, begin: int, final: bool) -> Lattice:
        arcs_L = self.graph.arcs_A4[links_L[:, kernel.ARC]]
        frame_H = kernel.frames_of(links_L, self.graph.arcs_A4, len(extra_H))
        kept = np.flatnonzero((extra_H <= self._beam) & (frame_H >= 0))
        states = memory.tokens_H4[kept, STATE]
        order = np.lexsort((self.graph.level_S[states], frame_H[kept]))
        kept, states = kept[order], states[order]
        number_H = np.full(len(extra_H), -1, np.int32)
        number_H[kept] = np.arange(len(kept), dtype=np.int32)
        final_S = np.where(kept >= begin, self.graph.final_S[states] if final else np.float32(0.0), np.float32(np.inf))
        source_L, target_L = number_H[links_L[:, kernel.SOURCE]], number_H[links_L[:, kernel.TARGET]]
        by_source = np.lexsort((target_L, source_L))
        scores_L = links_L.view(np.float32)[:, kernel.SCORE]
        return Lattice(
            source_L[by_source], target_L[by_source], arcs_L[by_source, 0], arcs_L[by_source, 1],
            arcs_L.view(np.float32)[by_source, 2], -scores_L[by_source], final_S, frame_H[kept], final,
        )  # fmt: skip
