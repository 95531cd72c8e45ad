"""Minibatches of spliced frames, gathered on the training device in an order that is computed instead of stored.

`Shuffle` is the order of an epoch: any process computes any part of it in constant memory. A Feistel network is a
bijection of the numbers of k bits, whatever its round function. Numbers that are not below the count are passed through
it again until they are ("cycle walking": Black and Rogaway 2002, "Ciphers with arbitrary finite domains"), which yields
a bijection of the numbers below the count. `Resident` holds frames on the device and gathers windows of them.

Axes: N frames of the corpus, B minibatch or requested positions, W context window, F feature bins, P pieces of the
corpus or spans (P1: and the end of the last), R copied rows, U utterances (U1: and the end of the last).
"""

import math
import multiprocessing
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from speech3.errors import SettingError
from speech3.frames.masks import FrequencyWarp, SpecAugment
from speech3.frames.packed import PackedFrames
from speech3.runtime import say, to_device

PIECES = 16  # pieces of a chunk, from all over the corpus

_CACHED = 1 << 16  # positions of a permutation computed at a time: the arithmetic is cheap, the calls are not
_ROUNDS = 6  # even, so that halves of unequal width end up in their original places
_MASK31 = (1 << 31) - 1
_SHARE_OF_FREE = 0.8  # share of the device's free memory for frames; the rest is for the model and its computations
_WARPS = 8  # parts of a minibatch, each with its own warp
_CPU = torch.device("cpu")
_CHUNKS = 2  # chunks on the device: a minibatch may need the end of one and the beginning of the next


class Shuffle:
    """The order of `count` items (1 to 2^40) in the epoch that `seed`, `epoch` and `part` select."""

    def __init__(self, count: int, seed: int, epoch: int, part: int = 0) -> None:
        self.count = count
        bits = max(2, (count - 1).bit_length())
        self.low, self.high = bits // 2, bits - bits // 2
        # The generator uses only 32 bits of its seed: fold higher bits into them.
        mixed = ((seed << 24) ^ epoch) + (seed >> 8) * 0x85EBCA6B + part * 0x9E3779B1
        generator = torch.Generator().manual_seed(mixed & 0xFFFFFFFF)
        self.keys = torch.randint(_MASK31, (_ROUNDS,), generator=generator).tolist()

    def __call__(self, start: int, stop: int) -> Tensor:
        """Items at positions `start` up to `stop` of the order: int64, (stop - start,)."""
        items = self._encrypt(torch.arange(start, stop))
        while (beyond := (items >= self.count).nonzero().squeeze(1)).numel():
            items[beyond] = self._encrypt(items[beyond])
        return items

    def all(self) -> Tensor:
        cuts = [*range(0, self.count, _CACHED), self.count]
        return torch.cat([self(*cut) for cut in pairwise(cuts)])

    def _encrypt(self, items: Tensor) -> Tensor:
        left, right = items >> self.low, items & ((1 << self.low) - 1)
        left_bits, right_bits = self.high, self.low
        for key in self.keys:
            left, right = right, left ^ (_mix(right, key) & ((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        return (left << self.low) | right


def _mix(values: Tensor, key: int) -> Tensor:
    # Two multiply-and-fold steps; every product stays below 2^63, since int64 has no unsigned shift.
    mixed = (values ^ key) * 0x45D9F3B
    mixed = ((mixed ^ (mixed >> 16)) & _MASK31) * 0x735A2D97
    return mixed ^ (mixed >> 29) ^ (mixed >> 15)


class Order:
    """The frames of the corpus in the order of one epoch, a pure function of the arguments.

    With chunks of at most `chunk_frames` (0: one chunk), the corpus is cut into pieces of consecutive frames of equal
    length (within one frame). Every epoch shuffles the pieces, combines `PIECES` of them into a chunk, and shuffles the
    frames within each chunk. Thus a part of the epoch needs only one chunk in memory, and yet has speech from all over
    the corpus, different in each epoch.
    """

    def __init__(self, count: int, chunk_frames: int, seed: int, epoch: int) -> None:
        self.seed, self.epoch = seed, epoch
        chunks = -(-count // chunk_frames) if chunk_frames else 1
        pieces = 1 if chunks == 1 else chunks * PIECES
        piece_P = Shuffle(pieces, seed, epoch).all()
        self.first_P = piece_P * count // pieces
        self.last_P = (piece_P + 1) * count // pieces
        self.position_P1 = torch.cat([torch.zeros(1, dtype=torch.int64), (self.last_P - self.first_P).cumsum(0)])
        self.chunk_position = self.position_P1[:: max(1, pieces // chunks)].tolist()  # the end of the last, too
        self._cache: tuple[int, int, Tensor] = (-1, 0, torch.empty(0))

    def spans(self, chunk: int) -> list[tuple[int, int]]:
        """First frame and end of each piece of a chunk, in the order of the corpus."""
        pieces = range(len(self.first_P))[chunk * PIECES : (chunk + 1) * PIECES]
        return sorted((int(self.first_P[p]), int(self.last_P[p])) for p in pieces)

    def parts(self, start: int, stop: int) -> list[tuple[int, Tensor]]:
        """The chunks that hold positions `start` up to `stop` of the order, each with its frames (B,) int64."""
        parts = []
        while start < stop:
            chunk = bisect_right(self.chunk_position, start) - 1
            end = min(stop, self.chunk_position[chunk + 1])
            parts.append((chunk, self._frames(chunk, start, end)))
            start = end
        return parts

    def _frames(self, chunk: int, start: int, stop: int) -> Tensor:
        cached, first, frames_B = self._cache
        if chunk != cached or start < first or stop > first + len(frames_B):
            first, end = start, min(max(stop, start + _CACHED), self.chunk_position[chunk + 1])
            frames_B = self._compute(chunk, start, end)
            self._cache = (chunk, first, frames_B)
        return frames_B[start - first : stop - first]

    def _compute(self, chunk: int, start: int, stop: int) -> Tensor:
        begin, end = self.chunk_position[chunk : chunk + 2]
        if len(self.first_P) == 1:
            return Shuffle(end, self.seed, self.epoch)(start, stop)
        shuffle = Shuffle(end - begin, self.seed, self.epoch, part=chunk + 1)
        position_B = shuffle(start - begin, stop - begin) + begin
        piece_B = torch.searchsorted(self.position_P1, position_B, right=True) - 1
        return self.first_P[piece_B] + position_B - self.position_P1[piece_B]


def window_indices(centers_B: Tensor, first_B: Tensor, last_B: Tensor, offsets_W: Tensor) -> Tensor:
    """Frame numbers (B, W) of windows around `centers_B`, with edge frames repeated beyond an utterance's ends.

    `first_B`, `last_B`: the first and last frame of its utterance. `offsets_W`: frames of a window relative to its
    middle.
    """
    return torch.clamp(centers_B[:, None] + offsets_W, first_B[:, None], last_B[:, None])


class Resident:
    """Some frames of a packed file, or all of them, on a device, with `left` and `right` frames of context.

    `spans`: first frame and end of each span to copy, in ascending order. None: all frames, which on the CPU are not
    copied but gathered from the memory map.
    """

    def __init__(
        self,
        packed: PackedFrames,
        device: torch.device,
        left: int,
        right: int,
        spans: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.device, self.left, self.right = device, left, right
        self.spans_first_P: Tensor | None = None
        # Frames begin in the utterance whose number is that of offsets not above them, minus 1: with these arrays, no
        # subtraction is needed. On a GPU each operation takes the host some microseconds, more than the GPU.
        offsets_U1 = on_device(packed.offsets_U1, device)
        self.offsets_U1, self.last_U1 = offsets_U1, offsets_U1 - 1
        self.first_U1 = offsets_U1.roll(1)
        self.window_W = torch.arange(-left, right + 1, device=device)
        frames_NF, senones_N = on_device(packed.frames_NF), on_device(packed.senones_N)
        if spans is None:
            self.frames_RF, self.senones_R = frames_NF.to(device), senones_N.to(device)
            return
        rows = [(max(0, first - left), min(len(packed), end + right)) for first, end in spans]
        bases = np.cumsum([0, *(end - first for first, end in rows)])
        self.spans_first_P = torch.tensor([first for first, _ in spans], device=device)
        shifts = [first - int(base) for (first, _), base in zip(rows, bases[:-1], strict=True)]
        self.shift_P = torch.tensor(shifts, device=device)
        self.frames_RF = torch.empty((int(bases[-1]), packed.dim), dtype=frames_NF.dtype, device=device)
        self.senones_R = torch.empty(int(bases[-1]), dtype=senones_N.dtype, device=device)
        for (first, end), base in zip(rows, bases[:-1].tolist(), strict=True):
            self.frames_RF[base : base + end - first].copy_(frames_NF[first:end])
            self.senones_R[base : base + end - first].copy_(senones_N[first:end])

    def gather(self, centers_B: Tensor) -> tuple[Tensor, Tensor]:
        """Windows (B, W, F) around the given frames of the corpus, and their senones (B,), in the types of the file."""
        after_B = torch.searchsorted(self.offsets_U1, centers_B, right=True)
        first_B, last_B = self.first_U1.index_select(0, after_B), self.last_U1.index_select(0, after_B)
        indices_BW = window_indices(centers_B, first_B, last_B, self.window_W)
        if self.spans_first_P is not None:
            span_B = torch.searchsorted(self.spans_first_P, centers_B, right=True) - 1
            shift_B = self.shift_P.index_select(0, span_B)
            indices_BW, centers_B = indices_BW - shift_B[:, None], centers_B - shift_B
        feats_BWF = self.frames_RF.index_select(0, indices_BW.view(-1)).view(*indices_BW.shape, -1)
        return feats_BWF, self.senones_R.index_select(0, centers_B)


def on_device(array: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """A tensor of an array that may be read-only; on the CPU it is not copied."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is never written to
        return torch.from_numpy(array).to(device)


def fits(packed: PackedFrames, chunk_frames: int, free: float, sharers: int = 1) -> bool:
    """Whether `sharers` copies of the frames fit into four fifths of the `free` bytes of a device.

    A copy has all frames or, with `chunk_frames`, two chunks, the old one and the new.
    """
    frame_bytes = packed.dim * packed.frames_NF.itemsize + packed.senones_N.itemsize
    return sharers * (2 * chunk_frames or len(packed)) * frame_bytes <= _SHARE_OF_FREE * free


def free_bytes(device: torch.device) -> float:
    """Free memory of a GPU, in bytes; infinite for other devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


class Minibatches:
    """The minibatches of a packed file. A minibatch depends only on (epoch, number), in whatever order they are drawn.

    The last one has between half and one and a half times `minibatch` frames, so that its gradient is not mostly noise.
    On the CPU, frames are gathered from the memory map of the file, which processes share. To another device they are
    copied once, or chunk by chunk, if they fit; else minibatches are gathered on the host and copied. They are always
    the same.

    `left`, `right`: context, in frames.
    `warp`, `masks`: augmentation in `draw`, but not in `sequential`; each window has its own masks.
    `sharers`: processes that have a copy on the same device.
    `chunk_frames`: 0: the whole corpus is shuffled (slow on a host whose memory is smaller than the file); else the
    frames of a chunk (at least `PIECES` minibatches), from `PIECES` places of the corpus, which are shuffled together.
    Two chunks are on the device at a time. The order depends on this number, but never on the machine.
    """

    rows: tuple[range, ...] | None = None  # they may be computed in any order

    def __init__(
        self,
        packed: PackedFrames,
        *,
        left: int,
        right: int,
        minibatch: int,
        seed: int,
        device: torch.device,
        warp: FrequencyWarp | None = None,
        masks: SpecAugment | None = None,
        chunk_frames: int = 0,
        sharers: int = 1,
    ) -> None:
        if 0 < chunk_frames < PIECES * minibatch:
            raise SettingError(
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
    return max(1, (num_frames + minibatch // 2) // minibatch)


def _copies(device: torch.device) -> bool:
    return device.type != "cpu"
