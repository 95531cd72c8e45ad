"""Minibatches of single chunks of consecutive frames: for LF-MMI, MMI and sMBR, and for time-delay networks.

In each epoch an utterance is covered once by as few chunks as possible. They are spaced evenly, shifted a little at
random in each epoch, and all chunks of the corpus are shuffled. The context on both sides of a chunk comes from the
utterance, whose edge frames are repeated beyond its ends. If an utterance is shorter than a chunk, its last frame is
repeated, too: this counts as a longer last phone, both in the criterion and in the counts of frames.

A chunk may be drawn at another speed, without copies of the recordings on disk: log mel frames are interpolated in time
and warped in frequency, since both change when a recording is played faster (Ko et al. 2015, "Audio augmentation for
speech recognition", who resample the recordings).

Axes: B chunks, L frames of a chunk with its context, F feature bins, U utterances (U1: and the end of the last),
T outputs of a chunk, M mel bins.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from speech3.frames.masks import SpecAugment
from speech3.frames.packed import PackedFrames
from speech3.frames.resident import on_device
from speech3.frames.shuffle import Shuffle
from speech3.frames.warp import FrequencyWarp
from speech3.io.device import to_device

_WARPS = 33  # different warps at each speed
_JITTER = 1 / 6  # share of a chunk by which it may begin earlier or later
_LONGEST, _WHOLE = 150, 0.9  # frames of a chunk; share of the utterances that fit into one, if they are short


def default_chunk(lengths_U: np.ndarray, subsampling: int) -> int:
    """Frames of a chunk, a multiple of `subsampling`: 1.5 s, or less if nine in ten utterances are shorter.

    A chunk that is longer than its utterance ends in padding, which counts as a longer last phone. With much padding a
    network learns to tell words apart there, in frames that decoding does not have.
    """
    return min(_LONGEST, subsampling * math.ceil(np.quantile(lengths_U, _WHOLE) / subsampling))


class ChunkInputs(NamedTuple):
    """The input of a network with a finite context: (B, L, F) float32."""

    feats_BTF: Tensor


class RecurrentChunks(NamedTuple):
    """The input of a recurrent network.

    Attributes
    ----------
    feats_BTF
        (B, L, F) float32.
    begins_B
        bool: the chunk begins with its utterance, so the state is zero there.
    rest_B
        int64, outputs from the beginning of the chunk to the end of the utterance.
    warm_up
        Outputs before the chunk, which only prepare the state.
    """

    feats_BTF: Tensor
    begins_B: Tensor
    rest_B: Tensor
    warm_up: int


@dataclass(frozen=True)
class Chunk:
    """A part of an utterance.

    Attributes
    ----------
    labels_T
        Labels of all frames of the utterance.
    start
        The first frame of the chunk.
    speed
        Frames of the utterance for each frame of the chunk.
    """

    labels_T: np.ndarray
    start: int
    speed: float = 1.0


class Chunks:
    """The chunks of a packed file, in minibatches. A minibatch depends only on (epoch, number).

    Parameters
    ----------
    left, right
        Context, in frames.
    chunk
        Frames of a chunk, a multiple of `subsampling`.
    streams
        B, chunks per minibatch; the last minibatch may have fewer.
    subsampling
        Frames per output.
    seed
        Seed of the order, the shifts, and of `speeds`, `warp` and `masks`.
    speeds, warp, masks
        Augmentation in `draw`, but not in `sequential`.
    warm_up
        None: the network has a finite context. Else it is recurrent, and reads this many frames, a multiple of
        `subsampling`, before those of `left`.
    targets
        Makes the targets of some chunks; None: the label of the middle frame of each output, (B * T,) int64.

    Attributes
    ----------
    rows
        None: minibatches may be computed in any order.
    """

    rows: tuple[range, ...] | None = None

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, chunk: int, streams: int, subsampling: int, seed: int,
        device: torch.device, speeds: Sequence[float] = (), warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None, warm_up: int | None = None,
        targets: Callable[[Sequence[Chunk]], Any] | None = None,
    ) -> None:  # fmt: skip
        self.packed, self.right, self.chunk, self.streams = packed, right, chunk, streams
        self.left, self.warm_up = left + (warm_up or 0), warm_up
        self.subsampling, self.seed, self.device = subsampling, seed, device
        self.speeds, self.masks = tuple(speeds) or (1.0,), masks
        self.targets = targets or self._labels
        self.num_frames = len(packed)
        self._frames_NF = on_device(packed.frames_NF)
        lengths_U = np.diff(packed.offsets_U1)
        self._ends_U = np.maximum(1, -(-lengths_U // chunk)).cumsum()
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._matrices_MM: Tensor | None = None
        if warp:
            factors = [f / speed for speed in self.speeds for f in np.linspace(1 - warp.most, 1 + warp.most, _WARPS)]
            self._matrices_MM = torch.from_numpy(np.stack([warp.matrix(factor) for factor in factors]))

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""
        return -(-int(self._ends_U[-1]) // self.streams)

    def draw(self, epoch: int, number: int) -> tuple[ChunkInputs | RecurrentChunks, Any]:
        """Minibatch `number` (from 0) of `epoch`, and its targets."""
        chosen_B = self._chosen(epoch, number)
        generator = np.random.default_rng((self.seed, epoch, number))
        speed_B = generator.integers(0, len(self.speeds), len(chosen_B))
        warp_B = generator.integers(0, _WARPS, len(chosen_B))
        chunks, first_B = self._place(chosen_B, np.array(self.speeds)[speed_B], generator.uniform(-1, 1, len(chosen_B)))
        feats_BLF = self._gather(chunks, first_B)
        if self._matrices_MM is not None:
            matrices_BMM = to_device(self._matrices_MM[torch.from_numpy(speed_B * _WARPS + warp_B)], self.device)
            blocks_BXM = feats_BLF.reshape(len(chunks), -1, matrices_BMM.shape[1])
            feats_BLF = torch.bmm(blocks_BXM, matrices_BMM.transpose(1, 2)).view(feats_BLF.shape)
        if self.masks:
            feats_BLF = self.masks(feats_BLF, *self.masks.draw(generator, len(chunks)))
        return self._inputs(chunks, feats_BLF), self.targets(chunks)

    def sequential(self, size: int) -> Iterator[tuple[ChunkInputs | RecurrentChunks, Any]]:
        """All chunks once, without augmentation, in the order of the file, about `size` frames at a time.

        The last chunk of an utterance ends with the utterance, and so overlaps the chunk before it.
        """
        streams = max(1, size // self.chunk)
        for first in range(0, int(self._ends_U[-1]), streams):
            chosen_B = np.arange(first, min(first + streams, int(self._ends_U[-1])))
            chunks, first_B = self._place(chosen_B, np.ones(len(chosen_B)), np.zeros(len(chosen_B)))
            yield self._inputs(chunks, self._gather(chunks, first_B)), self.targets(chunks)

    def _inputs(self, chunks: Sequence[Chunk], feats_BLF: Tensor) -> ChunkInputs | RecurrentChunks:
        if self.warm_up is None:
            return ChunkInputs(feats_BLF)
        begins_B = torch.tensor([chunk.start == 0 for chunk in chunks])
        frames_B = np.array([(len(chunk.labels_T) - chunk.start) / chunk.speed for chunk in chunks])
        rest_B = torch.from_numpy(np.ceil(frames_B / self.subsampling).astype(np.int64))
        begins_B, rest_B = to_device(begins_B, self.device), to_device(rest_B, self.device)
        return RecurrentChunks(feats_BLF, begins_B, rest_B, self.warm_up // self.subsampling)

    def _chosen(self, epoch: int, number: int) -> np.ndarray:
        """Numbers of the chunks of a minibatch."""
        if self._order[0] != epoch:
            self._order = epoch, Shuffle(int(self._ends_U[-1]), self.seed, epoch).all()
        chosen_B: np.ndarray = self._order[1][number * self.streams : (number + 1) * self.streams].numpy()
        return chosen_B

    def _place(self, chosen_B: np.ndarray, speed_B: np.ndarray, shift_B: np.ndarray) -> tuple[list[Chunk], np.ndarray]:
        """The chunks with these numbers, shifted by `shift_B` (-1 to 1), and the first frames of their utterances."""
        utterance_B = np.searchsorted(self._ends_U, chosen_B, side="right")
        count_B = self._ends_U[utterance_B] - np.where(utterance_B > 0, self._ends_U[utterance_B - 1], 0)
        index_B = chosen_B - (self._ends_U[utterance_B] - count_B)
        first_B, end_B = self.packed.offsets_U1[utterance_B], self.packed.offsets_U1[utterance_B + 1]
        room_B = np.maximum(0, end_B - first_B - np.ceil(self.chunk * speed_B)).astype(np.int64)
        # A single chunk may lie anywhere; otherwise the first begins with the utterance and the last ends with it.
        alone_B = (count_B == 1) & (shift_B != 0)
        even_B = np.where(alone_B, room_B / 2, room_B * index_B / np.maximum(1, count_B - 1))
        moved_B = even_B + shift_B * np.where(alone_B, np.maximum(room_B, self.chunk * _JITTER), self.chunk * _JITTER)
        start_B = np.clip(moved_B.round().astype(np.int64), 0, room_B)
        labels = self.packed.senones_N
        chunks = [
            Chunk(labels[first:end], start, speed)
            for first, end, start, speed in zip(*(a.tolist() for a in (first_B, end_B, start_B, speed_B)), strict=True)
        ]
        return chunks, first_B

    def _gather(self, chunks: Sequence[Chunk], first_B: np.ndarray) -> Tensor:
        place_L = np.arange(-self.left, self._frames(chunks) + self.right)
        start_B1, speed_B1, last_B1 = (
            np.array([getter(chunk) for chunk in chunks])[:, None]
            for getter in (lambda c: c.start, lambda c: c.speed, lambda c: len(c.labels_T) - 1)
        )
        place_BL = np.clip(start_B1 + speed_B1 * place_L, 0, last_B1)
        before_BL = place_BL.astype(np.int64)
        feats_BLF = self._rows(first_B[:, None] + before_BL)
        if (share_BL := place_BL - before_BL).any():
            after_BLF = self._rows(first_B[:, None] + np.minimum(before_BL + 1, last_B1))
            share = to_device(torch.from_numpy(share_BL.astype(np.float32)), self.device)
            feats_BLF = torch.lerp(feats_BLF, after_BLF, share[:, :, None])
        return feats_BLF

    def _frames(self, chunks: Sequence[Chunk]) -> int:
        """Frames of each chunk of a minibatch, without context."""
        return self.chunk

    def _rows(self, frame_BL: np.ndarray) -> Tensor:
        rows_RF = self._frames_NF.index_select(0, torch.from_numpy(frame_BL).view(-1))
        return to_device(rows_RF.view(*frame_BL.shape, -1), self.device).float()

    def _labels(self, chunks: Sequence[Chunk]) -> Tensor:
        place_T = np.arange(0, self.chunk, self.subsampling) + self.subsampling // 2
        labels = [c.labels_T[np.clip(c.start + c.speed * place_T, 0, len(c.labels_T) - 1).astype(int)] for c in chunks]
        return to_device(torch.from_numpy(np.concatenate(labels).astype(np.int64)), self.device)
