"""Minibatches of chunks of consecutive frames, for models that carry a state from one chunk to the next.

The utterances are shuffled each epoch, laid end to end and cut in chunks of T steps, the last of an utterance shorter.
A step is a frame; where outputs lag behind (`delay`), an utterance has as many more steps at its end, and so many at
its beginning have no target. The line of chunks is cut into equal segments, one for each stream of each row. A row is a
run of minibatches: its first has the first chunks of B segments, its second the second ones, and so on; so stream b of
a minibatch goes on where stream b of the one before it in the row ended. The carried state is reset where an utterance
begins, and in the first minibatch of a row, where a segment may begin in the middle of an utterance: whoever computes a
row needs no state of another's. Rows are therefore what workers share out: one worker computes a row, in order.

Gathering needs the few frames of a minibatch only, which are taken from the memory map and spliced on the device: no
corpus is too large for a device.

Axes: B streams, T steps of a chunk, W context window, F feature bins, M mel bins, K frames of a chunk with its context,
A all steps, N those with a target, U utterances (U1: and the end of the last), R rows (R1: and the end of the last), L
warps.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from speech3.features.masks import SpecAugment
from speech3.features.warp import FrequencyWarp
from speech3.frames.packed import PackedFrames
from speech3.frames.resident import on_device
from speech3.frames.shuffle import Shuffle
from speech3.io.device import to_device

_WARPS = 33  # different ones; an utterance of an epoch has one of them
_TIME, _BANDS = 1, 2  # generators of their own


class SequenceInputs(NamedTuple):
    """What a recurrent model is given.

    Attributes
    ----------
    feats_TBWF
        float32, windows, the edge frames of an utterance repeated beyond its ends; maybe not contiguous. T is the
        length of the longest chunk. What is beyond a chunk's length repeats its last frames, or is any utterance's in a
        stream that has ended: neither is data.
    lengths_B
        int64, steps of each chunk, with those that only look ahead; 0 in a stream that has ended.
    begins_B
        bool: the carried state is to be reset before this chunk.
    scored_N
        int64, t * B + b of each step with a target.
    own
        Steps of the chunk itself; the state after them is carried on. Those beyond, if any, look ahead.
    place
        (epoch, number). What is carried comes from (epoch, number - 1).
    steps_A
        int64, t * B + b of each step within its chunk's length.
    """

    feats_TBWF: Tensor
    lengths_B: Tensor
    begins_B: Tensor
    scored_N: Tensor
    own: int
    place: tuple[int, int]
    steps_A: Tensor


class _Epoch(NamedTuple):
    """Utterances in the order of an epoch, where the chunks of each end in the line; each one's warp and bands.

    `bands_UK2` is what `SpecAugment.draw` gives; order and ends are by place, the others by utterance.
    """

    number: int
    order_U: np.ndarray
    ends_U: np.ndarray
    warps_U: np.ndarray
    bands_UK2: np.ndarray


class Sequences:
    """The sequence minibatches of a packed file. One is identified by (epoch, number) alone.

    Every frame is in one chunk of an epoch. All minibatches but one have as many chunks as streams.

    Parameters
    ----------
    left, right
        Context, in frames.
    chunk
        T, in steps. As many as the longest utterance has, or more: utterances stay whole.
    streams
        B.
    delay
        Steps by which a target comes later than its frame.
    lookahead
        Steps beyond a chunk that are given with it.
    seed
        Of the permutations of the utterances, of `warp` and of `masks`.
    warp, masks
        Change what `draw` gives, but not `sequential`: the warp and hidden bands are an utterance's, hidden stretches
        of time a chunk's.
    row_minibatches
        Length of a row, about. Longer: fewer segments that begin without the state of the chunk before; shorter: more
        rows to share out among workers.

    Attributes
    ----------
    rows
        Numbers of the minibatches of each row, the same in every epoch.
    """

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, chunk: int, streams: int, seed: int,
        device: torch.device, delay: int = 0, lookahead: int = 0, warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None, row_minibatches: int = 50,
    ) -> None:  # fmt: skip
        self.packed, self.left, self.right, self.delay, self.lookahead = packed, left, right, delay, lookahead
        self.chunk, self.streams, self.seed, self.device = chunk, streams, seed, device
        self.warp, self.masks = warp, masks
        self.num_frames = len(packed)
        self._frames_NF, self._senones_N = on_device(packed.frames_NF), on_device(packed.senones_N)
        self._steps_U = np.diff(packed.offsets_U1) + delay
        self._chunks_U = -(-self._steps_U // chunk)
        chunks = int(self._chunks_U.sum())
        count = max(1, round(chunks / (streams * row_minibatches)))
        # The first `longer` segments have a chunk more, so that at most one minibatch is not full.
        self._length, self._longer = divmod(chunks, count * streams)
        lengths = [self._length + (row * streams < self._longer) for row in range(count)]
        self._starts_R1 = np.cumsum([0, *lengths]).tolist()
        self.rows = tuple(map(range, self._starts_R1[:-1], self._starts_R1[1:]))
        self._epoch = _Epoch(-1, *[np.empty(0)] * 4)
        if warp:
            factors_L = np.linspace(1 - warp.most, 1 + warp.most, _WARPS)
            self._matrices_LMM = torch.from_numpy(np.stack([warp.matrix(factor) for factor in factors_L]))

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        return int(self._starts_R1[-1])

    def draw(self, epoch: int, number: int) -> tuple[SequenceInputs, Tensor]:
        """Minibatch `number` (from 0) of `epoch`, with the senones (N,) int64 of the steps that have one."""
        step, active_B, chunk_B = self._place(number)
        order = self._order(epoch)
        place_B = np.searchsorted(order.ends_U, chunk_B, side="right")
        utterance_B = order.order_U[place_B]
        # Chunks are counted from the end of the utterance, whose place in the line is known.
        step_B = (chunk_B - order.ends_U[place_B] + self._chunks_U[utterance_B]) * self.chunk
        change = partial(self._augmented, order, number, utterance_B)
        return self._gather(utterance_B, step_B, active_B, (step_B == 0) | (step == 0), (epoch, number), change)

    def sequential(self, size: int) -> Iterator[tuple[SequenceInputs, Tensor]]:
        """All frames once, about `size` at a time: whole utterances side by side, chunk after chunk."""
        streams, steps_U = max(1, size // self.chunk), self._steps_U
        by_length_U, number = np.argsort(steps_U, kind="stable"), 0
        for start in range(0, len(by_length_U), streams):
            utterance_B, number = by_length_U[start : start + streams], number + 1  # no number follows another group's
            for step in range(0, int(steps_U[utterance_B].max()), self.chunk):
                step_B, number = np.full(len(utterance_B), step), number + 1
                yield self._gather(utterance_B, step_B, step_B < steps_U[utterance_B], step_B == 0, (0, number), None)

    def _place(self, number: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Place of a minibatch in its row, which streams have not ended, and their chunks' places in the line."""
        row = bisect_right(self._starts_R1, number) - 1
        step = number - self._starts_R1[row]
        segment_B = row * self.streams + np.arange(self.streams)
        active_B = step < self._length + (segment_B < self._longer)
        chunk_B = segment_B * self._length + np.minimum(segment_B, self._longer) + step
        return step, active_B, np.where(active_B, chunk_B, 0)

    def _gather(
        self, utterance_B: np.ndarray, step_B: np.ndarray, active_B: np.ndarray, begins_B: np.ndarray,
        place: tuple[int, int], change: Callable[[Tensor, np.ndarray], Tensor] | None,
    ) -> tuple[SequenceInputs, Tensor]:  # fmt: skip
        """Chunks that begin at the given steps of their utterances; `change` gets frames and how many there are."""
        offsets_U1 = self.packed.offsets_U1
        first_B, last_B = offsets_U1[utterance_B], offsets_U1[utterance_B + 1] - 1
        left_B = np.where(active_B, self._steps_U[utterance_B] - step_B, 0)  # steps from here to the end
        own_B, lengths_B = (left_B.clip(0, most) for most in (self.chunk, self.chunk + self.lookahead))
        own, steps = int(own_B.max()), int(lengths_B.max())

        frame_KB = (first_B + step_B) + np.arange(-self.left, steps + self.right)[:, None]
        indices_KB = torch.from_numpy(frame_KB.clip(first_B, last_B))
        feats_KBF = self._frames_NF.index_select(0, indices_KB.view(-1)).view(*indices_KB.shape, -1)
        feats_KBF = to_device(feats_KBF, self.device).float()
        if change:
            feats_KBF = change(feats_KBF, lengths_B + self.left + self.right)
        feats_TBWF = feats_KBF.unfold(0, self.left + 1 + self.right, 1).transpose(2, 3)

        step_T1 = np.arange(own)[:, None]
        scored_TB = (step_T1 < own_B) & (step_B + step_T1 >= self.delay)
        target_TB = first_B + step_B + step_T1 - self.delay
        senones_N = self._senones_N.index_select(0, torch.from_numpy(target_TB[scored_TB])).long()
        arrays = lengths_B, begins_B, np.flatnonzero(scored_TB), np.flatnonzero(np.arange(steps)[:, None] < lengths_B)
        lengths, begins, scored_N, steps_A = (to_device(torch.from_numpy(array), self.device) for array in arrays)
        inputs = SequenceInputs(feats_TBWF, lengths, begins, scored_N, own, place, steps_A)
        return inputs, to_device(senones_N, self.device)

    def _augmented(
        self, order: _Epoch, number: int, utterance_B: np.ndarray, feats_KBF: Tensor, lengths_B: np.ndarray
    ) -> Tensor:
        feats_BKF = feats_KBF.transpose(0, 1)
        if self.warp:
            matrices_BMM = to_device(self._matrices_LMM[torch.from_numpy(order.warps_U[utterance_B])], self.device)
            blocks_BXM = feats_BKF.reshape(len(utterance_B), -1, matrices_BMM.shape[1])
            feats_BKF = torch.bmm(blocks_BXM, matrices_BMM.transpose(1, 2)).view(feats_BKF.shape)
        if self.masks:
            generator = np.random.default_rng((self.seed, order.number, number, _TIME))
            time_BK2, _ = self.masks.draw(generator, len(utterance_B))
            feats_BKF = self.masks(feats_BKF, time_BK2, order.bands_UK2[utterance_B], lengths_B)
        return feats_BKF.transpose(0, 1)

    def _order(self, epoch: int) -> _Epoch:
        if self._epoch.number != epoch:
            order_U = Shuffle(len(self._chunks_U), self.seed, epoch).all().numpy()
            warps_U = np.random.default_rng((self.seed, epoch)).integers(0, _WARPS, len(order_U))
            generator = np.random.default_rng((self.seed, epoch, 0, _BANDS))
            bands_UK2 = self.masks.draw(generator, len(order_U))[1] if self.masks else np.empty(0)
            self._epoch = _Epoch(epoch, order_U, self._chunks_U[order_U].cumsum(), warps_U, bands_UK2)
        return self._epoch
