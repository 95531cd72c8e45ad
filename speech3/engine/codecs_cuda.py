"""Kernels of the ternary code on CUDA, in Triton: the same as in `codecs`, with one program per tile, values read once.

Random numbers are the same and, for equal scales, so are the words; sums of a bucket are float64, so its scale differs
from the CPU's by rounding only. Import this module only where it is used. Without a GPU the kernels run on CPU tensors
in Triton's interpreter, if TRITON_INTERPRET=1 is set before this module is imported.

Axes: P values, B buckets, T tiles, M words.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_EQUAL = 1e-6  # as in `codecs`
_WORDS = 64  # in a full tile


def statistics(values_P: Tensor, _: Tensor, sizes_B: Tensor, tiles_T5: Tensor, clip: float, *results: Tensor) -> None:
    """See `codecs.statistics`; here the sums of tiles are added up bucket by bucket."""
    limits_B, scales_B = results
    sums_T2 = values_P.new_empty(len(tiles_T5), 2, dtype=torch.float64)
    largest_T = values_P.new_empty(len(tiles_T5), dtype=torch.int32)
    with torch.cuda.device_of(values_P):  # Triton launches on the current device, not on the tensors'
        if len(tiles_T5):
            _statistics[(len(tiles_T5),)](values_P, tiles_T5, sums_T2, largest_T, 16 * _WORDS)
    buckets_T = tiles_T5[:, 3]
    sums_B2 = sums_T2.new_zeros(len(sizes_B), 2).index_add_(0, buckets_T, sums_T2)
    largest_B = largest_T.new_zeros(len(sizes_B)).scatter_reduce_(0, buckets_T, largest_T, "amax")
    mean_B, square_B = (sums_B2 / sizes_B[:, None]).unbind(1)
    variance_B = square_B - mean_B * mean_B
    clipped_B = variance_B > _EQUAL * square_B
    limits_B.copy_(torch.where(clipped_B, clip * variance_B.clamp(min=0).sqrt(), torch.inf))
    maxima_B = largest_B.view(torch.float32)
    scales_B.copy_(torch.where(maxima_B.isfinite(), torch.minimum(maxima_B, limits_B), torch.nan))


def pack(values_P: Tensor, tiles_T5: Tensor, limits_B: Tensor, scales_B: Tensor, key: int, words_M: Tensor) -> None:
    key0, key1 = (part - (part >> 31 << 32) for part in (key & 0xFFFFFFFF, key >> 32))  # as signed int32
    with torch.cuda.device_of(values_P):
        if len(tiles_T5):
            _pack[(len(tiles_T5),)](values_P, tiles_T5, limits_B, scales_B, key0, key1, words_M, _WORDS)


def add(words_M: Tensor, tiles_T5: Tensor, scales_B: Tensor, times: float, into_P: Tensor) -> None:
    with torch.cuda.device_of(into_P):
        if len(tiles_T5):
            _add[(len(tiles_T5),)](words_M, tiles_T5, scales_B, times, into_P, _WORDS)


def add_sums(sums_16M: Tensor, tiles_T5: Tensor, scales_B: Tensor, times: float, into_P: Tensor) -> None:
    with torch.cuda.device_of(into_P):
        if len(tiles_T5):
            words = sums_16M.shape[1]
            _add_sums[(len(tiles_T5),)](sums_16M.contiguous(), words, tiles_T5, scales_B, times, into_P, _WORDS)


@triton.jit
def _statistics(values_P, tiles_T5, sums_T2, largest_T, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    t = tl.program_id(0)
    start, size = tl.load(tiles_T5 + 5 * t), tl.load(tiles_T5 + 5 * t + 1)
    i = tl.arange(0, SIZE)
    value = tl.load(values_P + start + i, i < size, other=0.0)
    # As in `codecs`: sums in float64, magnitudes compared as integers, so that a NaN is the largest.
    wide = value.to(tl.float64)
    tl.store(sums_T2 + 2 * t, tl.sum(wide, 0))
    tl.store(sums_T2 + 2 * t + 1, tl.sum(wide * wide, 0))
    tl.store(largest_T + t, tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0))


@triton.jit(do_not_specialize=["key0", "key1"])  # Triton would make a key of 1 a constant, which cannot be converted
def _pack(values_P, tiles_T5, limits_B, scales_B, key0, key1, words_M, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    tile = tiles_T5 + 5 * tl.program_id(0)
    start, size, word, bucket = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    counter = tl.load(tile + 4)
    limit, scale = tl.load(limits_B + bucket), tl.load(scales_B + bucket)
    # A program is a tile, a lane one of its words.
    width = (size + 15) // 16
    j = tl.arange(0, WORDS)
    words = tl.zeros((WORDS,), tl.uint32)
    low, high = key0.to(tl.uint32), key1.to(tl.uint32)
    for k in tl.static_range(16):  # bits 2 k and 2 k + 1 of each word
        i = width * k + j
        value = tl.load(values_P + start + i, (j < width) & (i < size), other=0.0)
        # 1 or -1 (3 in two bits) with the probability magnitude / scale, else 0.
        random = _random24((counter + i).to(tl.uint32), low, high)
        size_of_value = tl.abs(value)
        size_of_value = tl.where(size_of_value > limit, limit, size_of_value)
        code = tl.where(random * scale < size_of_value, tl.where(value < 0, 3, 1), 0)
        words |= code.to(tl.uint32) << (2 * k)
    tl.store(words_M + word + j, words.to(tl.int32, bitcast=True), j < width)


@triton.jit
def _add(words_M, tiles_T5, scales_B, times, into_P, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    tile = tiles_T5 + 5 * tl.program_id(0)
    start, size, word, bucket = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    scale = times * tl.load(scales_B + bucket)
    width = (size + 15) // 16
    j = tl.arange(0, WORDS)
    words = tl.load(words_M + word + j, j < width, other=0)
    for k in tl.static_range(16):
        i = width * k + j
        mask = (j < width) & (i < size)
        code = ((words << (30 - 2 * k)) >> 30).to(tl.float32)
        tl.store(into_P + start + i, tl.load(into_P + start + i, mask) + scale * code, mask)


@triton.jit
def _add_sums(sums_16M, words, tiles_T5, scales_B, times, into_P, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    tile = tiles_T5 + 5 * tl.program_id(0)
    start, size, word, bucket = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    scale = times * tl.load(scales_B + bucket)
    width = (size + 15) // 16
    j = tl.arange(0, WORDS)
    for k in tl.static_range(16):
        i = width * k + j
        mask = (j < width) & (i < size)
        code = tl.load(sums_16M + k * words + word + j, mask, other=0).to(tl.float32)
        tl.store(into_P + start + i, tl.load(into_P + start + i, mask) + scale * code, mask)


@triton.jit
def _random24(counter, key0, key1):  # type: ignore[no-untyped-def]
    x = counter + key0
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) ^ key1
    x = x * 0x846CA68B
    return ((x ^ (x >> 16)) >> 8).to(tl.float32) * 5.9604644775390625e-8
