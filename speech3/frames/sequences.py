"""Minibatches of chunks of consecutive frames, for models that carry a state from one chunk to the next.

The utterances are shuffled each epoch, laid end to end and cut in chunks of T frames, the last of an utterance
shorter. This line of chunks is cut into equal segments, one for each stream of each row. A row is a run of minibatches:
its first has the first chunks of B segments, its second the second ones, and so on; so stream b of a minibatch goes on
where stream b of the one before it in the row ended. The carried state is reset where an utterance begins, and in the
first minibatch of a row, where a segment may begin in the middle of an utterance: whoever computes a row
needs no state of another's. Rows are therefore what workers share out: one worker computes a row, in order.

Gathering needs the few frames of a minibatch only, which are taken from the memory map and spliced on the device: no
corpus is too large for a device.

Axes: B streams, T frames of a chunk, W context window, F feature bins, K frames of a chunk with its context,
U utterances (U1: and the end of the last), R rows (R1: and the end of the last).
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from speech3.frames.packed import PackedFrames
from speech3.frames.resident import on_device
from speech3.frames.shuffle import Shuffle


class SequenceInputs(NamedTuple):
    """What a recurrent model is given.

    Attributes
    ----------
    feats_BTWF
        float32, windows, the edge frames of an utterance repeated beyond its ends; maybe not contiguous. T is the
        length of the longest chunk. What is beyond a chunk's length repeats its last frames.
    lengths_B
        int64, frames of each chunk; 0 in a stream that has ended.
    begins_B
        bool: the carried state is to be reset before this chunk.
    """

    feats_BTWF: Tensor
    lengths_B: Tensor
    begins_B: Tensor


class Sequences:
    """The sequence minibatches of a packed file. One is identified by (epoch, number) alone.

    Every frame is in one chunk of an epoch. All minibatches but one have as many chunks as streams.

    Parameters
    ----------
    left, right
        Context, in frames.
    chunk
        T, in frames. As many as the longest utterance has, or more: utterances stay whole.
    streams
        B.
    seed
        Of the permutations of the utterances.
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
        device: torch.device, row_minibatches: int = 50,
    ) -> None:  # fmt: skip
        self.packed, self.left, self.right = packed, left, right
        self.chunk, self.streams, self.seed, self.device = chunk, streams, seed, device
        self.num_frames = len(packed)
        self._frames_NF, self._senones_N = on_device(packed.frames_NF), on_device(packed.senones_N)
        chunks = int(self._chunks_U().sum())
        count = max(1, round(chunks / (streams * row_minibatches)))
        # The first `longer` segments have a chunk more, so that at most one minibatch is not full.
        self._length, self._longer = divmod(chunks, count * streams)
        lengths = [self._length + (row * streams < self._longer) for row in range(count)]
        self._starts_R1 = np.cumsum([0, *lengths]).tolist()
        self.rows = tuple(map(range, self._starts_R1[:-1], self._starts_R1[1:]))
        self._order: tuple[int, np.ndarray, np.ndarray] = (-1, np.empty(0), np.empty(0))

    def __len__(self) -> int:
        """Minibatches in an epoch."""
        return int(self._starts_R1[-1])

    def draw(self, epoch: int, number: int) -> tuple[SequenceInputs, Tensor]:
        """Minibatch `number` (from 0) of `epoch`, with senones (B, T) int64, -1 where there is no frame."""
        step, active_B, chunk_B = self._place(number)
        order_U, ends_U = self._utterances(epoch)
        place_B = np.searchsorted(ends_U, chunk_B, side="right")
        utterance_B = order_U[place_B]
        first_B, end_B = self.packed.offsets_U1[utterance_B], self.packed.offsets_U1[utterance_B + 1]
        # Chunks are counted from the end of the utterance, whose place in the line is known.
        chunks_B = -(-(end_B - first_B) // self.chunk)
        begin_B = first_B + (chunk_B - ends_U[place_B] + chunks_B) * self.chunk
        lengths_B = np.where(active_B, np.minimum(self.chunk, end_B - begin_B), 0)
        begins_B = (begin_B == first_B) | (step == 0)
        feats_BTWF, senones_BT = self._gather(*map(torch.from_numpy, (begin_B, lengths_B, first_B, end_B - 1)))
        inputs = SequenceInputs(feats_BTWF, *(torch.from_numpy(x).to(self.device) for x in (lengths_B, begins_B)))
        return inputs, senones_BT

    def _place(self, number: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Place of a minibatch in its row, which streams have not ended, and their chunks' places in the line."""
        row = bisect_right(self._starts_R1, number) - 1
        step = number - self._starts_R1[row]
        segment_B = row * self.streams + np.arange(self.streams)
        active_B = step < self._length + (segment_B < self._longer)
        chunk_B = segment_B * self._length + np.minimum(segment_B, self._longer) + step
        return step, active_B, np.where(active_B, chunk_B, 0)

    def _gather(self, begin_B: Tensor, lengths_B: Tensor, first_B: Tensor, last_B: Tensor) -> tuple[Tensor, Tensor]:
        frames, window = int(lengths_B.max()), self.left + 1 + self.right
        place_K = torch.arange(-self.left, frames + self.right)
        indices_BK = (begin_B[:, None] + place_K).minimum(last_B[:, None]).maximum(first_B[:, None])
        feats_BKF = self._frames_NF.index_select(0, indices_BK.view(-1)).view(*indices_BK.shape, -1)
        place_T = torch.arange(frames)
        centers_BT = indices_BK[:, self.left : self.left + frames].reshape(-1)
        senones_BT = self._senones_N.index_select(0, centers_BT).view(-1, frames).long()
        senones_BT.masked_fill_(place_T >= lengths_B[:, None], -1)
        feats_BTWF = feats_BKF.to(self.device).float().unfold(1, window, 1).transpose(2, 3)
        return feats_BTWF, senones_BT.to(self.device)

    def _utterances(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Utterances in the order of an epoch, and where the chunks of each end in the line."""
        if self._order[0] != epoch:
            chunks_U = self._chunks_U()
            order_U = Shuffle(len(chunks_U), self.seed, epoch).all().numpy()
            self._order = (epoch, order_U, chunks_U[order_U].cumsum())
        return self._order[1:]

    def _chunks_U(self) -> np.ndarray:
        return -(-np.diff(self.packed.offsets_U1) // self.chunk)
