"""Minibatches of spliced frames, gathered from resident frames on the training device.

Axes: N frames of the corpus, B minibatch, W context window, F feature bins, U utterances.
"""

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from speech3.errors import Speech3Error
from speech3.features.augment import FrequencyWarp
from speech3.frames.packed import PackedFrames
from speech3.frames.shuffle import Shuffle

_ORDER_CACHED = 1 << 14  # positions of the permutation computed at a time: the arithmetic is cheap, the calls are not

_WARPS = 8  # parts of a minibatch, each with a warp of its own


def window_indices(centers_B: Tensor, first_B: Tensor, last_B: Tensor, left: int, right: int) -> Tensor:
    """Frame numbers (B, W) of the windows around `centers_B`, the edge frames repeated beyond an utterance's ends.

    Parameters
    ----------
    centers_B, first_B, last_B
        int64: the frame in the middle, and the first and last frame of its utterance.
    left, right
        Frames of context; W = left + 1 + right.
    """
    offsets_W = torch.arange(-left, right + 1, device=centers_B.device)
    indices_BW = centers_B[:, None] + offsets_W
    return torch.maximum(torch.minimum(indices_BW, last_B[:, None]), first_B[:, None])


class Minibatches:
    """The minibatches of a packed file. One is identified by (epoch, number) alone, whoever asks and in what order.

    The last minibatch has between half and one and a half times `minibatch` frames, so that none is so small that its
    gradient is mostly noise.

    Parameters
    ----------
    packed
        On the CPU its memory map is gathered from directly (shared by all processes that have it open); to another
        device the frames are copied once.
    left, right
        Context, in frames.
    minibatch
        B, in frames.
    seed
        Of the permutations, and of `warp`.
    warp
        Changes what `draw` gives, but not `sequential`.
    """

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, minibatch: int, seed: int, device: torch.device,
        warp: FrequencyWarp | None = None,
    ) -> None:  # fmt: skip
        if not len(packed):
            raise Speech3Error(f"{packed.path}: holds no frames")
        self.left, self.right, self.minibatch, self.seed = left, right, minibatch, seed
        self.warp = warp
        self.frames_NF = _resident(packed.frames_NF, device)
        self.senones_N = _resident(packed.senones_N, device)
        self.offsets_U1 = _resident(packed.offsets_U1, device)
        self.num_frames = len(packed)
        self._order: tuple[int, int, Tensor] = (-1, 0, torch.empty(0))

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        return max(1, (self.num_frames + self.minibatch // 2) // self.minibatch)

    def draw(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Minibatch `number` (from 0) of `epoch`: windows (B, W, F) float32 and senones (B,) int64."""
        start = number * self.minibatch
        stop = self.num_frames if number == len(self) - 1 else start + self.minibatch
        feats_BWF, senones_B = self.gather(self._shuffled(epoch, start, stop).to(self.frames_NF.device))
        if self.warp:
            generator, most = np.random.default_rng((self.seed, epoch, number)), self.warp.most
            feats_BWF = self.warp(feats_BWF, generator.uniform(1 - most, 1 + most, _WARPS))
        return feats_BWF, senones_B

    def sequential(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All frames once, in the order of the file, `size` at a time (the last fewer)."""
        for start in range(0, self.num_frames, size):
            yield self.gather(torch.arange(start, min(start + size, self.num_frames), device=self.frames_NF.device))

    def gather(self, centers_B: Tensor) -> tuple[Tensor, Tensor]:
        """Windows (B, W, F) float32 around the given frames, and the senones (B,) int64 of these frames."""
        utterance_B = torch.searchsorted(self.offsets_U1, centers_B, right=True)
        first_B, last_B = self.offsets_U1[utterance_B - 1], self.offsets_U1[utterance_B] - 1
        indices_BW = window_indices(centers_B, first_B, last_B, self.left, self.right)
        feats_BWF = self.frames_NF.index_select(0, indices_BW.view(-1)).view(*indices_BW.shape, -1)
        return feats_BWF.float(), self.senones_N.index_select(0, centers_B).long()

    def _shuffled(self, epoch: int, start: int, stop: int) -> Tensor:
        cached_epoch, first, order = self._order
        if epoch != cached_epoch or start < first or stop > first + len(order):
            first = start
            order = Shuffle(self.num_frames, self.seed, epoch)(
                start, min(self.num_frames, max(stop, start + _ORDER_CACHED))
            )
            self._order = (epoch, first, order)
        return order[start - first : stop - first]


def _resident(array: np.ndarray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes to it
        return torch.from_numpy(array).to(device)
