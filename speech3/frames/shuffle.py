"""A permutation that is computed, not stored: any part of the order of an epoch, in constant memory.

A Feistel network is a bijection of the numbers of k bits whatever its round function is. Numbers beyond the count
are sent through again until they fall below it ("cycle walking": Black and Rogaway 2002, "Ciphers with arbitrary
finite domains"), which leaves a bijection of the numbers below the count.
"""

import torch
from torch import Tensor

_ROUNDS = 6  # even, so that halves of unequal width end where they began
_MASK31 = (1 << 31) - 1


class Shuffle:
    """The order of `count` items in one epoch.

    Parameters
    ----------
    count
        Items, at least 1 and below 2^40.
    seed, epoch
        Together they pick the permutation.
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self.count = count
        bits = max(2, (count - 1).bit_length())
        self.low, self.high = bits // 2, bits - bits // 2
        generator = torch.Generator().manual_seed((seed << 24) ^ epoch)
        self.keys = torch.randint(_MASK31, (_ROUNDS,), generator=generator).tolist()

    def __call__(self, start: int, stop: int) -> Tensor:
        """Items at positions `start` up to `stop` of the order: int64, (stop - start,)."""
        items = self._encrypt(torch.arange(start, stop))
        while (beyond := (items >= self.count).nonzero().squeeze(1)).numel():
            items[beyond] = self._encrypt(items[beyond])
        return items

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
