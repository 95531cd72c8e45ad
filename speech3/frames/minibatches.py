"""Minibatches of spliced frames, gathered on the training device.

Axes: N frames of the corpus, B minibatch, W context window, F feature bins.
"""

import multiprocessing
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from speech3.errors import Speech3Error
from speech3.frames.masks import SpecAugment
from speech3.frames.packed import PackedFrames
from speech3.frames.resident import Resident, fits, free_bytes
from speech3.frames.shuffle import PIECES, Order
from speech3.frames.warp import FrequencyWarp
from speech3.io.device import to_device
from speech3.io.progress import say

_WARPS = 8  # parts of a minibatch, each with its own warp
_CPU = torch.device("cpu")
_CHUNKS = 2  # chunks on the device: a minibatch may need the end of one and the beginning of the next


class Minibatches:
    """The minibatches of a packed file. A minibatch depends only on (epoch, number), in whatever order they are drawn.

    The last minibatch has between half and one and a half times `minibatch` frames, so that none is so small that its
    gradient is mostly noise.

    Parameters
    ----------
    packed
        On the CPU, frames are gathered directly from its memory map (shared by all processes that have it open). To
        another device the frames are copied once, or chunk by chunk, if they fit; otherwise minibatches are gathered
        on the host, and only these are copied. The minibatches are the same in all cases.
    left, right
        Context, in frames.
    minibatch
        B, in frames.
    seed
        Seed of the permutations, of `warp` and of `masks`.
    warp, masks
        Augmentation in `draw`, but not in `sequential`; each window has its own masks.
    chunk_frames
        0: the whole corpus is shuffled (which is slow on a host whose memory is smaller than the file). Otherwise the
        number of frames of a chunk, which come from `PIECES` places of the corpus and are shuffled together; two chunks
        are on the device at a time. The order depends on this number, but never on the machine.
    sharers
        Number of processes that have a copy on the same device.

    Raises
    ------
    Speech3Error
        A chunk holds fewer than `PIECES` minibatches.
    """

    rows: tuple[range, ...] | None = None  # they may be computed in any order

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, minibatch: int, seed: int, device: torch.device,
        warp: FrequencyWarp | None = None, masks: SpecAugment | None = None, chunk_frames: int = 0, sharers: int = 1,
    ) -> None:  # fmt: skip
        if 0 < chunk_frames < PIECES * minibatch:
            raise Speech3Error(
                f"training.chunk_frames={chunk_frames}: must be 0 (shuffle the whole corpus) or at least {PIECES} "
                f"minibatches, {PIECES * minibatch} frames"
            )
        self.packed, self.left, self.right, self.minibatch, self.seed = packed, left, right, minibatch, seed
        self.warp, self.masks, self.device, self.num_frames = warp, masks, device, len(packed)
        self.chunk_frames = chunk_frames = 0 if chunk_frames >= len(packed) else chunk_frames
        self._chunks: dict[tuple[int, int], Resident] = {}
        self._copied, self._lies_on, self._whole = _copies(device), device, None
        free = free_bytes(device)
        if self._copied and not fits(packed, chunk_frames, free, sharers):
            self._stay_on_host(f"{sharers} copies do not fit into the {free / 1e9:.1f} GB free on {device}")
        if self._copied and not chunk_frames:
            packed.read_ahead(0, len(packed))
        if not (self._copied and chunk_frames):
            self._whole = self._resident(None)
        self._order = Order(self.num_frames, chunk_frames, seed, 0)

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""
        return num_minibatches(self.num_frames, self.minibatch)

    def draw(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Minibatch `number` (from 0) of `epoch`: windows (B, W, F) float32 and senones (B,) int64."""
        start = number * self.minibatch
        stop = self.num_frames if number == len(self) - 1 else start + self.minibatch
        if self._order.epoch != epoch:
            self._order = Order(self.num_frames, self.chunk_frames, self.seed, epoch)
        parts = [self._gather(self._chunk(chunk), frames_B) for chunk, frames_B in self._order.parts(start, stop)]
        feats_BWF, senones_B = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        if not (self.warp or self.masks):
            return feats_BWF, senones_B
        generator = np.random.default_rng((self.seed, epoch, number))
        if self.warp:
            feats_BWF = self.warp(feats_BWF, generator.uniform(1 - self.warp.most, 1 + self.warp.most, _WARPS))
        if self.masks:
            feats_BWF = self.masks(feats_BWF, *self.masks.draw(generator, len(feats_BWF)))
        return feats_BWF, senones_B

    def sequential(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All frames once, in the order of the file, `size` at a time (the last fewer)."""
        for start in range(0, self.num_frames, size):
            stop = min(start + size, self.num_frames)
            yield self._gather(self._whole or self._resident([(start, stop)]), torch.arange(start, stop))

    def _gather(self, resident: Resident, frames_B: Tensor) -> tuple[Tensor, Tensor]:
        feats_BWF, senones_B = resident.gather(to_device(frames_B, resident.device))
        if not self._copied:
            feats_BWF, senones_B = to_device(feats_BWF, self.device), to_device(senones_B, self.device)
        return feats_BWF.float(), senones_B.long()

    def _chunk(self, chunk: int) -> Resident:
        if self._whole and not self.chunk_frames:
            return self._whole
        key = (self._order.epoch, chunk)
        if key not in self._chunks:
            while len(self._chunks) >= _CHUNKS:  # first free the memory for the new chunk
                del self._chunks[next(iter(self._chunks))]
            spans = self._order.spans(chunk)
            for first, end in spans:
                self.packed.read_ahead(first, end)
            self._chunks[key] = self._whole or self._resident(spans)
        return self._chunks[key]

    def _resident(self, spans: list[tuple[int, int]] | None) -> Resident:
        try:
            return Resident(self.packed, self._lies_on, self.left, self.right, spans)
        except torch.OutOfMemoryError:
            self._stay_on_host(f"another process has taken the memory of {self.device}")
            self._whole = Resident(self.packed, self._lies_on, self.left, self.right)
            return self._whole

    def _stay_on_host(self, why: str) -> None:
        self._copied, self._lies_on = False, _CPU
        self._chunks.clear()
        if multiprocessing.parent_process() is None:  # print it in one process only
            size = self.packed.frames_NF.nbytes / 1e9
            say(f"{self.packed.path}: {size:.1f} GB of frames stay on the host, where minibatches are gathered: {why}")


def num_minibatches(num_frames: int, minibatch: int) -> int:
    """Number of minibatches of about `minibatch` frames in an epoch."""
    return max(1, (num_frames + minibatch // 2) // minibatch)


def _copies(device: torch.device) -> bool:
    return device.type != "cpu"
