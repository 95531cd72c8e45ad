"""Minibatches of chunks of consecutive frames, for models that carry a state from one chunk to the next.

The utterances are shuffled each epoch, concatenated and cut into chunks of T steps; the last chunk of an utterance may
be shorter. A step is a frame; if outputs lag behind (`delay`), an utterance has that many more steps at its end, and
that many steps without a target at its beginning. The sequence of chunks is cut into equal segments, one for each
stream of each row. A row is a series of minibatches: the first holds the first chunks of B segments, the second the
second chunks, and so on; so stream b of a minibatch continues stream b of the previous minibatch in the row. The
carried state is reset at the beginning of an utterance, and in the first minibatch of a row, where a segment may begin
in the middle of an utterance. Rows are therefore independent of each other, and are what is distributed over workers:
one worker computes all minibatches of a row, in order.

Only the frames of one minibatch are gathered at a time, from the memory map, and spliced on the device: no corpus is
too large for a device.

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

from speech3.frames.masks import SpecAugment
from speech3.frames.packed import PackedFrames
from speech3.frames.resident import on_device
from speech3.frames.shuffle import Shuffle
from speech3.frames.warp import FrequencyWarp
from speech3.io.device import to_device

_WARPS = 33  # different warps; in each epoch an utterance has one of them
_TIME, _BANDS = 1, 2  # separate random generators


class SequenceInputs(NamedTuple):
    """The input of a recurrent model.

    Attributes
    ----------
    feats_TBWF
        float32 windows, with the edge frames of an utterance repeated beyond its ends; may not be contiguous. T is the
        length of the longest chunk. Values beyond a chunk's length are padding: repeated last frames, or in a stream
        that has ended frames of an arbitrary utterance.
    lengths_B
        int64, steps of each chunk, including lookahead steps; 0 in a stream that has ended.
    begins_B
        bool: reset the carried state before this chunk.
    scored_N
        int64, t * B + b of each step with a target.
    own
        Number of steps of the chunk itself, after which the state is carried on. Further steps, if any, are lookahead,
        or those in which the last targets of the chunk come.
    place
        (epoch, number). The carried state comes from (epoch, number - 1).
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
    """Utterances in the order of an epoch, the end of each in the sequence of chunks, and their warps and bands.

    `bands_UK2` comes from `SpecAugment.draw`; order and ends are indexed by position, the others by utterance.
    """

    number: int
    order_U: np.ndarray
    ends_U: np.ndarray
    warps_U: np.ndarray
    bands_UK2: np.ndarray


class Sequences:
    """The sequence minibatches of a packed file. A minibatch depends only on (epoch, number).

    Every frame is in one chunk of an epoch. All minibatches but one have as many chunks as streams.

    Parameters
    ----------
    left, right
        Context, in frames.
    chunk
        T, in steps. With at least the steps of the longest utterance, utterances stay whole.
    streams
        B.
    delay
        Steps by which a target comes later than its frame.
    lookahead
        Steps after a chunk that are included in its input.
    targets_inside
        The input has `delay` more steps after a chunk, in which its last targets come; else the next chunk has them.
    seed
        Seed of the permutations of the utterances, of `warp` and of `masks`.
    warp, masks
        Augmentation in `draw`, but not in `sequential`: warp and frequency masks are drawn per utterance, time masks
        per chunk.
    row_minibatches
        Approximate length of a row. With longer rows, fewer segments begin without the state of the preceding chunk;
        with shorter rows, there are more of them to distribute over workers.

    Attributes
    ----------
    rows
        Numbers of the minibatches of each row, the same in every epoch.
    """

    def __init__(
        self, packed: PackedFrames, *, left: int, right: int, chunk: int, streams: int, seed: int,
        device: torch.device, delay: int = 0, lookahead: int = 0, warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None, row_minibatches: int = 50, targets_inside: bool = False,
    ) -> None:  # fmt: skip
        self.packed, self.left, self.right, self.delay, self.lookahead = packed, left, right, delay, lookahead
        self.chunk, self.streams, self.seed, self.device = chunk, streams, seed, device
        self.warp, self.masks = warp, masks
        self.num_frames = len(packed)
        self._frames_NF, self._senones_N = on_device(packed.frames_NF), on_device(packed.senones_N)
        self.inside = delay if targets_inside else 0
        self._steps_U = np.diff(packed.offsets_U1) + delay - self.inside
        self._chunks_U = -(-self._steps_U // chunk)
        chunks = int(self._chunks_U.sum())
        count = max(1, round(chunks / (streams * row_minibatches)))
        # The first `longer` segments have one more chunk, so that at most one minibatch is not full.
        self._length, self._longer = divmod(chunks, count * streams)
        lengths = [self._length + (row * streams < self._longer) for row in range(count)]
        self._starts_R1 = np.cumsum([0, *lengths]).tolist()
        self.rows = tuple(map(range, self._starts_R1[:-1], self._starts_R1[1:]))
        self._epoch = _Epoch(-1, *[np.empty(0)] * 4)
        if warp:
            factors_L = np.linspace(1 - warp.most, 1 + warp.most, _WARPS)
            self._matrices_LMM = torch.from_numpy(np.stack([warp.matrix(factor) for factor in factors_L]))

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""
        return int(self._starts_R1[-1])

    def draw(self, epoch: int, number: int) -> tuple[SequenceInputs, Tensor]:
        """Minibatch `number` (from 0) of `epoch`, with the senones (N,) int64 of the steps that have a target."""
        step, active_B, chunk_B = self._place(number)
        order = self._order(epoch)
        place_B = np.searchsorted(order.ends_U, chunk_B, side="right")
        utterance_B = order.order_U[place_B]
        # Count chunks from the end of the utterance, whose position in the sequence of chunks is known.
        step_B = (chunk_B - order.ends_U[place_B] + self._chunks_U[utterance_B]) * self.chunk
        change = partial(self._augmented, order, number, utterance_B)
        return self._gather(utterance_B, step_B, active_B, (step_B == 0) | (step == 0), (epoch, number), change)

    def sequential(self, size: int) -> Iterator[tuple[SequenceInputs, Tensor]]:
        """All frames once, about `size` at a time: whole utterances in parallel, chunk after chunk."""
        streams, steps_U = max(1, size // self.chunk), self._steps_U
        by_length_U, number = np.argsort(steps_U, kind="stable"), 0
        for start in range(0, len(by_length_U), streams):
            # Skip a number between groups: a minibatch with the next number would take over the carried state.
            utterance_B, number = by_length_U[start : start + streams], number + 1
            for step in range(0, int(steps_U[utterance_B].max()), self.chunk):
                step_B, number = np.full(len(utterance_B), step), number + 1
                yield self._gather(utterance_B, step_B, step_B < steps_U[utterance_B], step_B == 0, (0, number), None)

    def _place(self, number: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Position of a minibatch in its row, which streams have not ended, and the numbers of their chunks."""
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
        """Gather the chunks that begin at these steps of their utterances; `change` augments their frames."""
        offsets_U1 = self.packed.offsets_U1
        first_B, last_B = offsets_U1[utterance_B], offsets_U1[utterance_B + 1] - 1
        left_B = np.where(active_B, self._steps_U[utterance_B] - step_B, 0)  # steps from here to the end
        own_B, lengths_B = (left_B.clip(0, most) for most in (self.chunk, self.chunk + self.lookahead))
        lengths_B = lengths_B + self.inside * (left_B > 0)
        own, steps = int(own_B.max()), int(lengths_B.max())

        frame_KB = (first_B + step_B) + np.arange(-self.left, steps + self.right)[:, None]
        indices_KB = torch.from_numpy(frame_KB.clip(first_B, last_B))
        feats_KBF = self._frames_NF.index_select(0, indices_KB.view(-1)).view(*indices_KB.shape, -1)
        feats_KBF = to_device(feats_KBF, self.device).float()
        if change:
            feats_KBF = change(feats_KBF, lengths_B + self.left + self.right)
        feats_TBWF = feats_KBF.unfold(0, self.left + 1 + self.right, 1).transpose(2, 3)

        step_T1 = np.arange(own + self.inside)[:, None]
        scored_TB = (step_T1 >= self.inside) & (step_T1 < own_B + self.inside) & (step_B + step_T1 >= self.delay)
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
