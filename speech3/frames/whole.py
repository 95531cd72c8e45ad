"""Minibatches of whole utterances of similar length, for LF-MMI numerators made from whole transcripts.

A minibatch has as many utterances as fit into it, padded to the longest of them by repeating their last frames. In each
epoch utterances of about the same length are grouped anew. Speeds, warps and masks are as in `speech3.frames.chunks`.

Axes: B utterances of a minibatch, U utterances, G minibatches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from speech3.frames.chunks import Chunk, ChunkInputs, Chunks, RecurrentChunks
from speech3.frames.masks import SpecAugment
from speech3.frames.packed import PackedFrames
from speech3.frames.warp import FrequencyWarp

_MIXED = 1.15  # utterances are mixed with others that are longer or shorter by up to this factor


def padded_frames(chunks: Sequence[Chunk], subsampling: int) -> int:
    """Frames of the longest chunk at its speed, rounded up to a whole number of outputs."""
    return subsampling * max(math.ceil(len(chunk.labels_T) / chunk.speed / subsampling) for chunk in chunks)


class WholeUtterances(Chunks):
    """The utterances of a packed file, in minibatches. A minibatch depends only on (epoch, number).

    Parameters
    ----------
    left, right
        Context, in frames.
    minibatch
        Approximate maximum of frames including padding; a minibatch has at least one utterance.
    subsampling
        Frames per output.
    seed
        Seed of the order, and of `speeds`, `warp` and `masks`.
    speeds, warp, masks, warm_up
        As in `Chunks`. Augmentation in `draw`, but not in `sequential`.
    targets
        Makes the targets of some utterances, each a `Chunk` that begins at 0.
    """

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, minibatch: int, subsampling: int, seed: int,
        device: torch.device, targets: Callable[[Sequence[Chunk]], Any], speeds: Sequence[float] = (),
        warp: FrequencyWarp | None = None, masks: SpecAugment | None = None, warm_up: int | None = None,
    ) -> None:  # fmt: skip
        self._lengths_U = np.diff(packed.offsets_U1)
        super().__init__(
            packed, left=left, right=right, chunk=int(self._lengths_U.max()), streams=1, subsampling=subsampling,
            seed=seed, device=device, speeds=speeds, warp=warp, masks=masks, targets=targets, warm_up=warm_up,
        )  # fmt: skip
        self._by_length_U = np.argsort(self._lengths_U, kind="stable")
        self._cuts = self._filled(minibatch)
        self._groups: tuple[int, list[np.ndarray]] = (-1, [])

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""
        return len(self._cuts) - 1

    def sequential(self, size: int) -> Iterator[tuple[ChunkInputs | RecurrentChunks, Any]]:
        """All utterances once, without augmentation, shortest first, about `size` frames at a time."""
        cuts = self._filled(size)
        for chosen_B in np.split(self._by_length_U, cuts[1:-1]):
            chunks, first_B = self._place(chosen_B, np.ones(len(chosen_B)), np.zeros(len(chosen_B)))
            yield self._inputs(chunks, self._gather(chunks, first_B)), self.targets(chunks)

    def _filled(self, minibatch: int) -> list[int]:
        """Where to cut the utterances, sorted by length, so that each part fills a minibatch."""
        cuts = [0]
        for place, utterance in enumerate(self._by_length_U.tolist()):
            if place > cuts[-1] and (place + 1 - cuts[-1]) * self._lengths_U[utterance] > minibatch:
                cuts.append(place)
        return [*cuts, len(self._by_length_U)]

    def _chosen(self, epoch: int, number: int) -> np.ndarray:
        if self._groups[0] != epoch:
            generator = np.random.default_rng((self.seed, epoch))
            lengths_U = self._lengths_U[self._by_length_U]
            moved_U = lengths_U * generator.uniform(1, _MIXED, len(lengths_U))
            groups = np.split(self._by_length_U[np.argsort(moved_U)], self._cuts[1:-1])
            self._groups = epoch, [groups[place] for place in generator.permutation(len(groups))]
        return self._groups[1][number]

    def _place(self, chosen_B: np.ndarray, speed_B: np.ndarray, shift_B: np.ndarray) -> tuple[list[Chunk], np.ndarray]:
        first_B, end_B = self.packed.offsets_U1[chosen_B], self.packed.offsets_U1[chosen_B + 1]
        labels, ends = self.packed.senones_N, zip(first_B.tolist(), end_B.tolist(), speed_B.tolist(), strict=True)
        return [Chunk(labels[first:end], 0, speed) for first, end, speed in ends], first_B

    def _frames(self, chunks: Sequence[Chunk]) -> int:
        return padded_frames(chunks, self.subsampling)
