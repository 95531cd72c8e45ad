"""Minibatches of consecutive frames: single chunks, whole utterances, and chunks in streams for models with a state.

Single chunks (`Chunks`), for LF-MMI, MMI and sMBR and for time-delay networks: in each epoch an utterance is covered
once by as few chunks as possible, spaced evenly and shifted a little at random. Context comes from the utterance, whose
edge frames are repeated beyond its ends. At another speed log mel frames are interpolated in time and warped in
frequency, since both change when a recording is played faster (Ko et al. 2015, who resample the recordings).

Whole utterances (`WholeUtterances`), for LF-MMI numerators made from whole transcripts: a minibatch has as many of
about the same length as fit into it, padded to the longest by repeating their last frames.

Streams (`Sequences`): the shuffled utterances are concatenated and cut into chunks of T steps, the last of an utterance
maybe shorter. The sequence of chunks is cut into equal segments, one for each stream of each row; a row is a series of
minibatches that one worker computes in order, in which stream b of a minibatch continues stream b of the one before.

Axes: B chunks, utterances or streams of a minibatch, L frames of a chunk with its context (K in streams), T outputs or
steps of a chunk, W context window, F feature bins, M mel bins, U utterances (U1: and the end of the last), A all steps,
N those with a target, G minibatches, R rows (R1: and the end of the last).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from speech3.frames.masks import FrequencyWarp, SpecAugment
from speech3.frames.minibatches import Shuffle, on_device
from speech3.frames.packed import PackedFrames
from speech3.runtime import to_device

_WARPS = 33  # different frequency warps (at each speed)
_JITTER = 1 / 6  # share of a chunk by which it may begin earlier or later
_LONGEST, _WHOLE = 150, 0.9  # frames of a chunk; share of the utterances that fit into one, if they are short
_TIME_SEED, _BANDS_SEED = 1, 2  # separate random generators
_LENGTH_JITTER = 1.15  # utterances are mixed with others that are longer or shorter by up to this factor


def default_chunk(lengths_U: np.ndarray, subsampling: int) -> int:
    """Frames of a chunk, a multiple of `subsampling`: 1.5 s, or less if nine in ten utterances are shorter.

    A chunk that is longer than its utterance ends in padding, which counts as a longer last phone. With much padding a
    network learns to tell words apart there, in frames that decoding does not have.
    """
    return min(_LONGEST, subsampling * math.ceil(np.quantile(lengths_U, _WHOLE) / subsampling))


def _matrices(warp: FrequencyWarp, speed: float = 1.0) -> Tensor:
    """The matrices (_WARPS, M, M) of factors that are evenly spaced over the range of a warp, at a speed."""
    factors = np.linspace(1 - warp.most, 1 + warp.most, _WARPS) / speed
    return torch.from_numpy(np.stack([warp.matrix(factor) for factor in factors]))


def _warped(feats_BLF: Tensor, matrices_BMM: Tensor, kept: int) -> Tensor:
    """Each chunk warped by its own matrix, but for the last `kept` values of its frames."""
    bins_BLF, kept_BLX = feats_BLF.tensor_split([feats_BLF.shape[2] - kept], 2)
    blocks_BXM = bins_BLF.reshape(len(bins_BLF), -1, matrices_BMM.shape[1])
    matrices_BMM = to_device(matrices_BMM, feats_BLF.device)
    warped_BLF = torch.bmm(blocks_BXM, matrices_BMM.transpose(1, 2)).view(bins_BLF.shape)
    return torch.cat([warped_BLF, kept_BLX], 2) if kept else warped_BLF


class ChunkInputs(NamedTuple):
    """The input (B, L, F) float32 of a network with a finite context."""

    feats_BTF: Tensor


class RecurrentChunks(NamedTuple):
    """The input of a recurrent network.

    `begins_B`: the chunk begins with its utterance, so the state is zero there. `rest_B`: outputs from the beginning of
    the chunk to the end of the utterance. `warm_up`: outputs before the chunk, which only prepare the state.
    """

    feats_BTF: Tensor
    begins_B: Tensor
    rest_B: Tensor
    warm_up: int


@dataclass(frozen=True, eq=False)
class Taught:
    """Targets of a minibatch, and a teacher's outputs (B, T, S) for the same chunks without masks."""

    targets: Any
    outputs_BTS: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def left_out(self) -> int:
        return int(getattr(self.targets, "left_out", 0))


@dataclass(frozen=True)
class Chunk:
    """A part of an utterance: the labels of all its frames, the first frame of the part, and frames for each of the
    part's.
    """

    labels_T: np.ndarray
    start: int
    speed: float = 1.0


class Chunks:
    """The chunks of a packed file, in minibatches. A minibatch depends only on (epoch, number).

    `left`, `right`: context, in frames.
    `chunk`: its frames, a multiple of `subsampling`, which is frames per output.
    `streams`: B; the last minibatch may have fewer.
    `speeds`, `warp`, `masks`: augmentation in `draw`, not in `sequential`.
    `warm_up`: None for a network with a finite context; a recurrent one reads this many frames, a multiple of
    `subsampling`, before those of `left`. `targets` makes the targets of some chunks; None: the label of the middle
    frame of each output, (B * T,) int64. `teacher` makes outputs of the input of `draw` without masks; the targets are
    then `Taught`.
    """

    rows: tuple[range, ...] | None = None

    def __init__(
        self,
        packed: PackedFrames,
        *,
        left: int,
        right: int,
        chunk: int,
        streams: int,
        subsampling: int,
        seed: int,
        device: torch.device,
        speeds: Sequence[float] = (),
        warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None,
        warm_up: int | None = None,
        targets: Callable[[Sequence[Chunk]], Any] | None = None,
        teacher: Callable[[Any], Tensor] | None = None,
    ) -> None:
        self.packed, self.right, self.chunk, self.streams = packed, right, chunk, streams
        self.left, self.warm_up = left + (warm_up or 0), warm_up
        self.subsampling, self.seed, self.device = subsampling, seed, device
        self.speeds, self.masks = tuple(speeds) or (1.0,), masks
        self.targets, self.teacher = targets or self._labels, teacher
        self.num_frames = len(packed)
        self._frames_NF = on_device(packed.frames_NF)
        lengths_U = np.diff(packed.offsets_U1)
        self._ends_U = np.maximum(1, -(-lengths_U // chunk)).cumsum()
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))
        self._matrices_MM: Tensor | None = None
        if warp:
            self._matrices_MM, self._kept = torch.cat([_matrices(warp, speed) for speed in self.speeds]), warp.kept

    def __len__(self) -> int:
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
            matrices_BMM = self._matrices_MM[torch.from_numpy(speed_B * _WARPS + warp_B)]
            feats_BLF = _warped(feats_BLF, matrices_BMM, self._kept)
        targets = self.targets(chunks)
        if self.teacher:
            targets = Taught(targets, self.teacher(self._inputs(chunks, feats_BLF)))
        if self.masks:
            feats_BLF = self.masks(feats_BLF, *self.masks.draw(generator, len(chunks)))
        return self._inputs(chunks, feats_BLF), targets

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
        return self.chunk

    def _rows(self, frame_BL: np.ndarray) -> Tensor:
        rows_RF = self._frames_NF.index_select(0, torch.from_numpy(frame_BL).view(-1))
        return to_device(rows_RF.view(*frame_BL.shape, -1), self.device).float()

    def _labels(self, chunks: Sequence[Chunk]) -> Tensor:
        place_T = np.arange(0, self.chunk, self.subsampling) + self.subsampling // 2
        labels = [c.labels_T[np.clip(c.start + c.speed * place_T, 0, len(c.labels_T) - 1).astype(int)] for c in chunks]
        return to_device(torch.from_numpy(np.concatenate(labels).astype(np.int64)), self.device)


class SequenceInputs(NamedTuple):
    """The input of a recurrent model.

    `feats_TBWF`: float32 windows, perhaps not contiguous, with the edge frames of an utterance repeated beyond its
    ends. Values beyond a chunk's length are padding: repeated last frames, or in a stream that has ended arbitrary
    frames.
    `lengths_B`: steps of each chunk with its lookahead; 0 in a stream that has ended.
    `begins_B`: reset the carried state before this chunk.
    `scored_N`, `steps_A`: t * B + b of each step with a target, and of each within its chunk's length.
    `own`: steps after which the state is carried on; further ones are lookahead, or those in which the last targets
    come.
    `place`: (epoch, number); the carried state comes from (epoch, number - 1).
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

    `chunk`: T, in steps; with those of the longest utterance, utterances stay whole.
    `streams`: B.
    `delay`: steps by which a target comes later than its frame.
    `lookahead`: steps after a chunk that are included in its input.
    `targets_inside`: the input has `delay` more steps after a chunk, in which its last targets come; else the next
    chunk has them.
    `warp`, `masks`: augmentation in `draw`, not in `sequential`; warp and frequency masks are drawn per utterance, time
    masks per chunk.
    `row_minibatches`: about the length of a row; in longer rows fewer segments begin without the state of the chunk
    before, of shorter rows there are more to distribute over workers.

    `rows`: numbers of the minibatches of each row, the same in every epoch.
    """

    def __init__(
        self,
        packed: PackedFrames,
        *,
        left: int,
        right: int,
        chunk: int,
        streams: int,
        seed: int,
        device: torch.device,
        delay: int = 0,
        lookahead: int = 0,
        warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None,
        row_minibatches: int = 50,
        targets_inside: bool = False,
    ) -> None:
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
            self._matrices_LMM = _matrices(warp)

    def __len__(self) -> int:
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
        self,
        utterance_B: np.ndarray,
        step_B: np.ndarray,
        active_B: np.ndarray,
        begins_B: np.ndarray,
        place: tuple[int, int],
        change: Callable[[Tensor, np.ndarray], Tensor] | None,
    ) -> tuple[SequenceInputs, Tensor]:
        """Gather the chunks that begin at these steps of their utterances; `change` augments their frames."""
        offsets_U1 = self.packed.offsets_U1
        first_B, last_B = offsets_U1[utterance_B], offsets_U1[utterance_B + 1] - 1
        left_B = np.where(active_B, self._steps_U[utterance_B] - step_B, 0)  # steps from here to the end
        own_B, lengths_B = (left_B.clip(0, most) for most in (self.chunk, self.chunk + self.lookahead))
        lengths_B = lengths_B + self.inside * (left_B > 0)
        own, steps = int(own_B.max()), int(lengths_B.max())

        # Frames with context, from the memory map; splice them on the device.
        frame_KB = (first_B + step_B) + np.arange(-self.left, steps + self.right)[:, None]
        indices_KB = torch.from_numpy(frame_KB.clip(first_B, last_B))
        feats_KBF = self._frames_NF.index_select(0, indices_KB.view(-1)).view(*indices_KB.shape, -1)
        feats_KBF = to_device(feats_KBF, self.device).float()
        if change:
            feats_KBF = change(feats_KBF, lengths_B + self.left + self.right)
        feats_TBWF = feats_KBF.unfold(0, self.left + 1 + self.right, 1).transpose(2, 3)

        # Steps that have a target, and their senones.
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
            matrices_BMM = self._matrices_LMM[torch.from_numpy(order.warps_U[utterance_B])]
            feats_BKF = _warped(feats_BKF, matrices_BMM, self.warp.kept)
        if self.masks:
            generator = np.random.default_rng((self.seed, order.number, number, _TIME_SEED))
            time_BK2, _ = self.masks.draw(generator, len(utterance_B))
            feats_BKF = self.masks(feats_BKF, time_BK2, order.bands_UK2[utterance_B], lengths_B)
        return feats_BKF.transpose(0, 1)

    def _order(self, epoch: int) -> _Epoch:
        if self._epoch.number != epoch:
            order_U = Shuffle(len(self._chunks_U), self.seed, epoch).all().numpy()
            warps_U = np.random.default_rng((self.seed, epoch)).integers(0, _WARPS, len(order_U))
            generator = np.random.default_rng((self.seed, epoch, 0, _BANDS_SEED))
            bands_UK2 = self.masks.draw(generator, len(order_U))[1] if self.masks else np.empty(0)
            self._epoch = _Epoch(epoch, order_U, self._chunks_U[order_U].cumsum(), warps_U, bands_UK2)
        return self._epoch


def padded_frames(chunks: Sequence[Chunk], subsampling: int) -> int:
    """Frames of the longest chunk at its speed, rounded up to a whole number of outputs."""
    return subsampling * max(math.ceil(len(chunk.labels_T) / chunk.speed / subsampling) for chunk in chunks)


class WholeUtterances(Chunks):
    """The utterances of a packed file, in minibatches of at most about `minibatch` frames (padding included), at least
    one.

    A minibatch depends only on (epoch, number). `targets` gets chunks that begin at 0; other parameters as in `Chunks`.
    """

    def __init__(self, packed: PackedFrames, *, minibatch: int, **options: Any) -> None:
        self._lengths_U = np.diff(packed.offsets_U1)
        super().__init__(packed, chunk=int(self._lengths_U.max()), streams=1, **options)
        self._by_length_U = np.argsort(self._lengths_U, kind="stable")
        self._cuts = self._filled(minibatch)
        self._groups: tuple[int, list[np.ndarray]] = (-1, [])

    def __len__(self) -> int:
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
            moved_U = lengths_U * generator.uniform(1, _LENGTH_JITTER, len(lengths_U))
            groups = np.split(self._by_length_U[np.argsort(moved_U)], self._cuts[1:-1])
            self._groups = epoch, [groups[place] for place in generator.permutation(len(groups))]
        return self._groups[1][number]

    def _place(self, chosen_B: np.ndarray, speed_B: np.ndarray, shift_B: np.ndarray) -> tuple[list[Chunk], np.ndarray]:
        first_B, end_B = self.packed.offsets_U1[chosen_B], self.packed.offsets_U1[chosen_B + 1]
        labels, ends = self.packed.senones_N, zip(first_B.tolist(), end_B.tolist(), speed_B.tolist(), strict=True)
        return [Chunk(labels[first:end], 0, speed) for first, end, speed in ends], first_B

    def _frames(self, chunks: Sequence[Chunk]) -> int:
        return padded_frames(chunks, self.subsampling)
