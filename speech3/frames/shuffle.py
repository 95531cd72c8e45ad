"""The order of an epoch, computed instead of stored: any process can compute any part of it in constant memory.

A Feistel network is a bijection of the numbers of k bits, whatever its round function. Numbers that are not below the
count are passed through it again until they are ("cycle walking": Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"), which yields a bijection of the numbers below the count.

Axes: B requested positions, P pieces of the corpus (P1: and the end of the last).
"""

from bisect import bisect_right
from itertools import pairwise

import torch
from torch import Tensor

PIECES = 16  # pieces of a chunk, from all over the corpus

_CACHED = 1 << 16  # positions of a permutation computed at a time: the arithmetic is cheap, the calls are not
_ROUNDS = 6  # even, so that halves of unequal width end up in their original places
_MASK31 = (1 << 31) - 1


class Shuffle:
    """The order of `count` items in one epoch.

    Parameters
    ----------
    count
        Number of items, at least 1 and below 2^40.
    seed, epoch, part
        Together they select the permutation.
    """

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
        """The whole order: int64, (count,)."""
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

    With chunks, the corpus is cut into pieces of consecutive frames of equal length (within one frame). Every epoch
    shuffles the pieces, combines `PIECES` of them into a chunk, and shuffles the frames within each chunk. Thus a part
    of the epoch needs only one chunk in memory, and yet has speech from all over the corpus, different in each epoch.

    Parameters
    ----------
    count
        Number of frames of the corpus.
    chunk_frames
        Maximum number of frames of a chunk (within `PIECES`); 0: all frames are one chunk.
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
