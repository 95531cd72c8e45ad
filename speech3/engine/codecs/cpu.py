"""Kernels of the ternary code (see `codec`) on a CPU, in numba: statistics, pack, add and add_sums, one pass each.

A tile is at most 1,024 values of a bucket, in W = ceil(values / 16) words. Value i of a tile is the two bits from bit
2 (i // W) of word i % W. So a loop over words vectorises without moving values between lanes. The two bits are a number
in two's complement: 0, 1 or -1.

Random numbers are hashed counters: the number of a value depends only on the key and the value's position, so it is the
same on any machine, in any order, and in `cuda`. The hash is Wellons' "lowbias32" (2018), a bijection of 32 bits: a
change of one bit of the input changes each bit of the result with a probability of one half, to 0.2 per mille of it
(root mean square). The lower half of the key is added before the hash, and the upper half XORed in between its two
multiplications. The upper 24 bits of the result are the number. Sums are float64, in a fixed order.

Axes: P values, B buckets, T tiles, M words.
"""

import numba
import numpy as np

from speech3.runtime import jit

_inline = numba.njit(inline="always")

_U = np.uint32
_WORDS = 64  # in a full tile
_LANES = 128
_MAGNITUDE, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_24_BITS = np.float32(2.0**-24)
_EQUAL = 1e-6  # variance over mean square below which the values of a bucket count as equal


@_inline
def _random24(counter, key0, key1):  # type: ignore[no-untyped-def]
    x = _U(counter + key0)
    x = _U(_U(x ^ _U(x >> _U(16))) * _U(0x7FEB352D))
    x = _U(_U(x ^ _U(x >> _U(15))) ^ key1)
    x = _U(x * _U(0x846CA68B))
    return np.float32(np.int32(_U(_U(x ^ _U(x >> _U(16))) >> _U(8)))) * _24_BITS


@jit
def statistics(values_P, starts_B, sizes_B, _tiles_T5, clip, limits_B, scales_B):  # type: ignore[no-untyped-def]
    """Write each bucket's c sigma (infinite if its values are equal) and s (NaN if a value is not finite)."""
    bits_P = values_P.view(np.int32)
    sums, squares, bits_of_largest = np.empty(_LANES), np.empty(_LANES), np.empty(1, np.int32)
    for b in range(len(starts_B)):
        start, size = starts_B[b], sizes_B[b]
        values, bits = values_P[start : start + size], bits_P[start : start + size]
        # Sums and the largest magnitude lane by lane, so that the loop vectorises; magnitudes are compared as integers.
        sums[:], squares[:] = 0, 0
        largest = np.int32(0)
        rows = size // _LANES
        for row in range(rows):
            for lane in range(_LANES):
                value = np.float64(values[row * _LANES + lane])
                sums[lane] += value
                squares[lane] += value * value
                largest = max(largest, np.int32(bits[row * _LANES + lane] & _MAGNITUDE))
        for i in range(rows * _LANES, size):
            value = np.float64(values[i])
            sums[i % _LANES] += value
            squares[i % _LANES] += value * value
            largest = max(largest, np.int32(bits[i] & _MAGNITUDE))
        # Limit and scale from the variance about the mean.
        total, square = 0.0, 0.0
        for lane in range(_LANES):
            total += sums[lane]
            square += squares[lane]
        square /= size
        variance = square - (total / size) ** 2
        limits_B[b] = clip * np.sqrt(variance) if variance > _EQUAL * square else np.inf
        bits_of_largest[0] = largest
        scales_B[b] = min(bits_of_largest.view(np.float32)[0], limits_B[b]) if largest < _INFINITE else np.nan


@_inline
def _pack_tile(values, words, width, limit, scale, counter, key0, key1):  # type: ignore[no-untyped-def]
    for j in range(width):
        words[j] = 0
    for k in range(16):
        for j in range(min(width, len(values) - width * k)):
            # 1 or -1 (3 in two bits) with the probability magnitude / scale, else 0.
            value = values[width * k + j]
            random = _random24(_U(counter + _U(width * k + j)), key0, key1)
            code = _U(3) if value < 0 else _U(1)
            sent = random * scale < min(abs(value), limit)
            words[j] |= _U((code if sent else _U(0)) << _U(2 * k))


@jit
def pack(values_P, tiles_T5, limits_B, scales_B, key, words_M):  # type: ignore[no-untyped-def]
    """Write each value's code, by its share of the bucket's scale and its random number."""
    key0, key1, words_M = _U(key), _U(key >> 32), words_M.view(np.uint32)
    for t in range(len(tiles_T5)):
        start, size, word, bucket, first = tiles_T5[t]
        limit, scale, counter = limits_B[bucket], scales_B[bucket], _U(first)
        if size == 16 * _WORDS:
            values, words = values_P[start : start + 16 * _WORDS], words_M[word : word + _WORDS]
            _pack_tile(values, words, _WORDS, limit, scale, counter, key0, key1)
        else:
            width = (size + 15) // 16
            values, words = values_P[start : start + size], words_M[word : word + width]
            _pack_tile(values, words, width, limit, scale, counter, key0, key1)


@_inline
def _add_tile(words, width, scale, into):  # type: ignore[no-untyped-def]
    for k in range(16):
        up = _U(30 - 2 * k)
        for j in range(min(width, len(into) - width * k)):
            code = np.int32(np.int32(_U(words[j] << up)) >> np.int32(30))
            into[width * k + j] += scale * np.float32(code)


@jit
def add(words_M, tiles_T5, scales_B, times, into_P):  # type: ignore[no-untyped-def]
    """Decode the codes and add them times `times`."""
    words_M = words_M.view(np.uint32)
    for t in range(len(tiles_T5)):
        start, size, word, bucket, _ = tiles_T5[t]
        scale = np.float32(times * scales_B[bucket])
        if size == 16 * _WORDS:
            _add_tile(words_M[word : word + _WORDS], _WORDS, scale, into_P[start : start + 16 * _WORDS])
        else:
            width = (size + 15) // 16
            _add_tile(words_M[word : word + width], width, scale, into_P[start : start + size])


@_inline
def _add_sums_tile(sums_16M, width, scale, into):  # type: ignore[no-untyped-def]
    for k in range(16):
        for j in range(min(width, len(into) - width * k)):
            into[width * k + j] += scale * np.float32(sums_16M[k, j])


@jit
def add_sums(sums_16M, tiles_T5, scales_B, times, into_P):  # type: ignore[no-untyped-def]
    """Decode sums of codes and add them times `times`."""
    for t in range(len(tiles_T5)):
        start, size, word, bucket, _ = tiles_T5[t]
        width = (size + 15) // 16
        scale = np.float32(times * scales_B[bucket])
        _add_sums_tile(sums_16M[:, word : word + width], width, scale, into_P[start : start + size])
