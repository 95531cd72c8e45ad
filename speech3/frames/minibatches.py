"""Minibatches of spliced frames, gathered on the training device.

Axes: N frames of the corpus, B minibatch, W context window, F feature bins.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from speech3.errors import Speech3Error
from speech3.features.masks import SpecAugment
from speech3.features.warp import FrequencyWarp
from speech3.frames.packed import PackedFrames
from speech3.frames.resident import Resident, check_room, no_room, on_device
from speech3.frames.shuffle import PIECES, Order

_WARPS = 8  # parts of a minibatch, each with a warp of its own
_CHUNKS = 2  # on the device: a minibatch may need the end of one and the beginning of the next


class Minibatches:
    """The minibatches of a packed file. One is identified by (epoch, number) alone, whoever asks and in what order.

    The last minibatch has between half and one and a half times `minibatch` frames, so that none is so small that its
    gradient is mostly noise.

    Parameters
    ----------
    packed
        On the CPU its memory map is gathered from directly (shared by all processes that have it open); to another
        device the frames are copied once, or chunk by chunk.
    left, right
        Context, in frames.
    minibatch
        B, in frames.
    seed
        Of the permutations, of `warp` and of `masks`.
    warp, masks
        Change what `draw` gives, but not `sequential`; each window has masks of its own.
    chunk_frames
        0: the whole corpus is shuffled, and has to fit the device (the CPU needs no room, but is slow where the file
        is larger than the memory). Else frames that are shuffled together, from `PIECES` places of the corpus: of
        these, two chunks have to fit. The order depends on it, and never on the machine.

    Raises
    ------
    Speech3Error
        The frames do not fit the device, or a chunk holds fewer than `PIECES` minibatches.
    """

    rows: tuple[range, ...] | None = None  # they may be computed in any order

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, minibatch: int, seed: int, device: torch.device,
        warp: FrequencyWarp | None = None, masks: SpecAugment | None = None, chunk_frames: int = 0,
    ) -> None:  # fmt: skip
        if 0 < chunk_frames < PIECES * minibatch:
            raise Speech3Error(
                f"training.chunk_frames={chunk_frames}: must be 0 (shuffle the whole corpus) or at least {PIECES} "
                f"minibatches, {PIECES * minibatch} frames"
            )
        self.packed, self.left, self.right, self.minibatch, self.seed = packed, left, right, minibatch, seed
        self.warp, self.masks, self.device, self.num_frames = warp, masks, device, len(packed)
        self.chunk_frames = chunk_frames = 0 if chunk_frames >= len(packed) else chunk_frames
        if device.type == "cuda":
            check_room(packed, chunk_frames, device, torch.cuda.mem_get_info(device)[0])
            if not chunk_frames:
                packed.read_ahead(0, len(packed))
        self._offsets_U1 = on_device(packed.offsets_U1, device)
        self._whole = None if chunk_frames and _copies(device) else self._resident(None)
        self._chunks: dict[tuple[int, int], Resident] = {}
        self._order = Order(self.num_frames, chunk_frames, seed, 0)

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        return num_minibatches(self.num_frames, self.minibatch)

    def draw(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Minibatch `number` (from 0) of `epoch`: windows (B, W, F) float32 and senones (B,) int64."""
        start = number * self.minibatch
        stop = self.num_frames if number == len(self) - 1 else start + self.minibatch
        if self._order.epoch != epoch:
            self._order = Order(self.num_frames, self.chunk_frames, self.seed, epoch)
        parts = [
            self._chunk(chunk).gather(frames_B.to(self.device)) for chunk, frames_B in self._order.parts(start, stop)
        ]
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
            yield (self._whole or self._resident([(start, stop)])).gather(torch.arange(start, stop, device=self.device))

    def _chunk(self, chunk: int) -> Resident:
        if self._whole and not self.chunk_frames:
            return self._whole
        key = (self._order.epoch, chunk)
        if key not in self._chunks:
            while len(self._chunks) >= _CHUNKS:  # before the new one is there, so that it finds room
                del self._chunks[next(iter(self._chunks))]
            spans = self._order.spans(chunk)
            for first, end in spans:
                self.packed.read_ahead(first, end)
            self._chunks[key] = self._whole or self._resident(spans)
        return self._chunks[key]

    def _resident(self, spans: list[tuple[int, int]] | None) -> Resident:
        try:
            return Resident(self.packed, self._offsets_U1, self.left, self.right, spans)
        except torch.OutOfMemoryError as error:  # another process was faster
            free_bytes = torch.cuda.mem_get_info(self.device)[0]
            raise no_room(self.packed, self.chunk_frames, self.device, free_bytes) from error


def num_minibatches(num_frames: int, minibatch: int) -> int:
    """How many minibatches of about `minibatch` frames an epoch has."""
    return max(1, (num_frames + minibatch // 2) // minibatch)


def _copies(device: torch.device) -> bool:
    return device.type != "cpu"
