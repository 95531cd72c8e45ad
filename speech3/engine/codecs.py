"""Gradient compression: each codec turns a vector of float32 into the bytes that are sent, and back.

``ternary`` is TernGrad (Wen et al. 2017, "TernGrad: Ternary gradients to reduce communication in distributed deep
learning"). A tensor, or a bucket of it, is clipped to f(g) = sign(g) min(abs(g), c sigma), and s is the largest
abs(f(g)). Each value becomes s sign(g) with probability abs(f(g)) / s, else 0: two bits per value, and one s per
bucket. Its expectation is f(g), so the rounding error need not be kept. ``bf16`` (rounded to nearest) and ``topk`` (the
largest values, with their positions) are biased: the sender keeps what they lose and adds it to the next vector (error
feedback: Seide et al. 2014, "1-bit SGD"; Stich et al. 2018, "Sparsified SGD with memory"). ``rows`` loses nothing: it
sends the rows of matrices that are not zero, those of the words in a few minibatches where embeddings are trained.

We depart from TernGrad in two ways: the three levels are two bits, where its published code stores float32; and where
the values of a bucket are equal (to a thousandth of their size), or there is only one, nothing is clipped. Sigma is
taken about the mean, as in the paper, so clipping costs little (1 to 1.5 % of the norm) only if the mean is near zero
and there are many values: buckets of 2, 3 and 4 normally distributed values keep 0.89, 0.96 and 0.98 of the norm. NaN
and infinity are never coded as numbers: a bucket that contains one decodes to NaN, which the server refuses.

A tile is at most 1,024 values of a bucket, in W = ceil(values / 16) words. Value i of a tile is the two bits from bit
2 (i // W) of word i % W. So a loop over words vectorises without moving values between lanes. The two bits are a number
in two's complement: 0, 1 or -1.

Random numbers are hashed counters: the number of a value depends only on the key and the value's position, so it is the
same on any machine, in any order, and on a GPU (`codecs_cuda.py`). The hash is Wellons' "lowbias32" (2018), a bijection
of 32 bits: a change of one bit of the input changes each bit of the result with a probability of one half, to 0.2 per
mille of it (root mean square). The lower half of the key is added before the hash, and the upper half XORed in between
its two multiplications. The upper 24 bits of the result are the number. Sums are float64, in a fixed order.

Axes: P values, B buckets, T tiles, M words, R rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np
import torch
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.flat import wait_for_gpus
from speech3.runtime import jit

_TILE = 1024  # values
_WORDS = _TILE // 16  # of a full tile
_LANES = 128
_MAGNITUDE, _INFINITE = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_24_BITS = np.float32(2.0**-24)
_EQUAL = 1e-6  # variance over mean square below which the values of a bucket count as equal
_U = np.uint32
_inline = numba.njit(inline="always")


class Codec(Protocol):
    """One way to write a vector of P float32s."""

    unbiased: bool  # the expectation of the decoded vector is the vector

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        """The bytes to send, uint8; `key` selects the random numbers."""

    def add(self, message: Tensor, into_P: Tensor, times: float = 1.0) -> None:
        """Decode a message and add it to `into_P`, multiplied by `times`."""


def key_of(*numbers: int) -> int:
    """A 63-bit key hashed from numbers by splitmix64 (Steele, Lea and Flood 2014)."""
    key = 0
    for number in numbers:
        key = (key + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        key ^= key >> 31
    return key >> 1


class Bf16:
    """The upper half of each float32, rounded to nearest."""

    unbiased = False

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        return values_P.to(torch.bfloat16).view(torch.uint8)

    def add(self, message: Tensor, into_P: Tensor, times: float = 1.0) -> None:
        into_P.add_(message.view(torch.bfloat16), alpha=times)


@dataclass(frozen=True)
class TopK:
    """The values of largest magnitude, with their positions: `share` of all values, but at least one."""

    share: float
    unbiased = False

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        """Eight bytes for each value sent; NaN counts as larger than any number."""
        count = min(max(1, round(self.share * len(values_P))), len(values_P))
        places = values_P.abs().topk(count, sorted=False).indices.sort().values
        return torch.cat([places.to(torch.int32).view(torch.uint8), values_P[places].view(torch.uint8)])

    def add(self, message: Tensor, into_P: Tensor, times: float = 1.0) -> None:
        places, values = message.view(2, -1)
        into_P.index_add_(0, places.view(torch.int32).long(), values.view(torch.float32), alpha=times)


@dataclass(frozen=True)
class Rows:
    """The rows that are not zero, with a byte for each row that says whether it is there.

    `blocks` divide the vector: start, number of rows, and their length. A vector is one row, and so is the rest of a
    row that a slice cuts.
    """

    blocks: tuple[tuple[int, int, int], ...]
    unbiased = True

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        there, kept = [], []
        for rows_RC in self._matrices(values_P):
            there.append(rows_RC.ne(0).any(1))  # NaN is not zero
            kept.append(rows_RC[there[-1]].flatten().view(torch.uint8))
        unused = torch.zeros(self._mark_bytes - self._rows, dtype=torch.uint8, device=values_P.device)
        return torch.cat([*(marks_R.to(torch.uint8) for marks_R in there), unused, *kept])

    def add(self, message: Tensor, into_P: Tensor, times: float = 1.0) -> None:
        marks_R, kept = message[: self._rows].bool(), message[self._mark_bytes :].view(torch.float32)
        for rows_RC in self._matrices(into_P):
            here, marks_R = marks_R[: len(rows_RC)].nonzero().flatten(), marks_R[len(rows_RC) :]
            size = len(here) * rows_RC.shape[1]
            rows_RC.index_add_(0, here, kept[:size].view(-1, rows_RC.shape[1]), alpha=times)
            kept = kept[size:]

    @property
    def _rows(self) -> int:
        return sum(rows for _, rows, _ in self.blocks)

    @property
    def _mark_bytes(self) -> int:
        """Whole words, so that float32s may follow."""
        return -(-self._rows // 4) * 4

    def _matrices(self, values_P: Tensor) -> Iterator[Tensor]:
        for start, rows, columns in self.blocks:
            yield values_P[start : start + rows * columns].view(rows, columns)


def rows_of(views: Sequence[Tensor], stretch: slice = slice(None)) -> Rows:
    """The rows of the matrices of which `views` of a flat vector consist, in a slice of it."""
    blocks: list[tuple[int, int, int]] = []
    for view in views:
        part = _slice_of(view, stretch)
        if not len(part):
            continue
        columns, offset = view.numel() // (len(view) if view.dim() > 1 else 1), int(part.storage_offset())
        start = offset - (stretch.start or 0)
        # The end of a row that began before the slice, whole rows, and the beginning of one that ends behind it.
        first = min(len(part), (int(view.storage_offset()) - offset) % columns)
        whole, rest = divmod(len(part) - first, columns)
        for rows, length in ((1, first), (whole, columns), (1, rest)):
            if rows and length:
                blocks.append((start, rows, length))
                start += rows * length
    return Rows(tuple(blocks))


@dataclass(frozen=True, eq=False)
class TernaryLayout:
    """How a flat vector is divided for the ternary code: into buckets, each within one tensor, and their tiles."""

    starts_B: Tensor  # of each bucket, int64
    sizes_B: Tensor
    tiles_T5: Tensor  # for each tile, int64: start, size, first word, bucket, counter of its first random number
    words: int  # number of words of all tiles (M)
    floats: tuple[slice, ...] = ()  # slices that are sent as float32

    @property
    def code_bytes(self) -> int:
        return 4 * (len(self.starts_B) + self.words)

    @property
    def num_floats(self) -> int:
        return sum(each.stop - each.start for each in self.floats)


def as_floats(views: Sequence[Tensor], *, below: int = 0, last: bool = False) -> list[bool]:
    """Whether each tensor of a model is sent as float32: those of fewer than `below` values and, with `last`, the last
    matrix (the softmax layer of a network) and the tensors after it.
    """
    matrices = [number for number, view in enumerate(views) if view.dim() > 1]
    end = matrices[-1] if last and matrices else len(views)
    return [view.numel() < below or number >= end for number, view in enumerate(views)]


def layout(
    views: Sequence[Tensor],
    *,
    bucket: int = 0,
    floats: Sequence[bool] = (),
    counters: Sequence[int] | None = None,
    origin: int = 0,
) -> TernaryLayout:
    """Divide a vector into the tensors that are views of it, in their order.

    Parameters
    ----------
    bucket
        The most values that share a scale; 0: a whole tensor.
    floats
        Whether each tensor is sent as float32; empty: none is.
    counters
        Counter of the random number of each tensor's first value; None: its offset in the storage.
    origin
        Offset of the vector in the storage.
    """
    starts: list[np.ndarray] = []
    stops: list[np.ndarray] = []
    firsts: list[np.ndarray] = []
    slices = []
    for number, view in enumerate(views):
        start, size = int(view.storage_offset()) - origin, view.numel()
        if floats and floats[number]:
            slices.append(slice(start, start + size))
            continue
        begins = np.arange(0, size, bucket or max(size, 1))
        starts.append(start + begins)
        stops.append(start + np.minimum(begins + (bucket or size), size))
        firsts.append((counters[number] if counters else start + origin) + begins)
    # Tiles of the buckets: their start, size, first word, bucket, and counter of random numbers.
    starts_B, stops_B, firsts_B = (np.concatenate([np.zeros(0, np.int64), *each]) for each in (starts, stops, firsts))
    sizes_B = stops_B - starts_B
    tiles_B = -(-sizes_B // _TILE)
    bucket_T = np.repeat(np.arange(len(starts_B)), tiles_B)
    inside_T = _TILE * (np.arange(len(bucket_T)) - np.repeat(np.cumsum(tiles_B) - tiles_B, tiles_B))
    size_T = np.minimum(sizes_B[bucket_T] - inside_T, _TILE)
    words_T = -(-size_T // 16)
    tiles_T5 = np.stack(
        [starts_B[bucket_T] + inside_T, size_T, np.cumsum(words_T) - words_T, bucket_T, firsts_B[bucket_T] + inside_T],
        axis=1,
    )
    device = views[0].device if views else None
    starts_on, sizes_on, tiles_on = (torch.from_numpy(each).to(device) for each in (starts_B, sizes_B, tiles_T5))
    return TernaryLayout(starts_on, sizes_on, tiles_on, int(words_T.sum()), tuple(slices))


@dataclass(frozen=True, eq=False)
class Ternary:
    """The ternary code over a layout; `clip` is c."""

    layout: TernaryLayout
    clip: float = 2.5
    unbiased = True

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        size = self.layout.code_bytes + 4 * self.layout.num_floats
        message = torch.empty(size, dtype=torch.uint8, device=values_P.device)
        scales_B, words_M, floats = self._parts(message)
        limits_B = torch.empty_like(scales_B)
        statistics(values_P, self.layout, self.clip, limits_B, scales_B)
        pack(values_P, self.layout, limits_B, scales_B, key, words_M)
        if self.layout.floats:
            torch.cat([values_P[each] for each in self.layout.floats], out=floats)
        return message

    def add(self, message: Tensor, into_P: Tensor, times: float = 1.0) -> None:
        scales_B, words_M, floats = self._parts(message)
        add(words_M, self.layout, scales_B, times, into_P)
        for where in self.layout.floats:
            size = where.stop - where.start
            into_P[where].add_(floats[:size], alpha=times)
            floats = floats[size:]

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        buckets, end = 4 * len(self.layout.starts_B), self.layout.code_bytes
        scales_B, words_M = message[:buckets].view(torch.float32), message[buckets:end].view(torch.int32)
        return scales_B, words_M, message[end:].view(torch.float32)


def make_codec(config: CodecConfig, views: Sequence[Tensor], stretch: slice = slice(None)) -> Codec | None:
    """The codec of a config for a slice of the flat vector of these views; None if values are sent as float32.

    A tensor that the slice cuts has a separate scale for its part in the slice.
    """
    match config.kind:
        case "ternary":
            floats = as_floats(views, below=config.float_below, last=config.float_last)
            parts = [_slice_of(view, stretch) for view in views]
            there = [(part, kept) for part, kept in zip(parts, floats, strict=True) if len(part)]
            parts, floats = [part for part, _ in there], [kept for _, kept in there]
            return Ternary(layout(parts, bucket=config.bucket, floats=floats, origin=stretch.start or 0), config.clip)
        case "bf16":
            return Bf16()
        case "topk":
            return TopK(config.share)
        case "rows":
            return rows_of(views, stretch)
        case "none":
            return None


def warm_up(codecs: Iterable[Codec | None], like_P: Tensor) -> None:
    """Encode and decode zeros, so that compiling and loading kernels, which takes seconds, delays no sync."""
    for codec in codecs:
        if codec:
            codec.add(codec.encode(torch.zeros_like(like_P), 0), torch.zeros_like(like_P))
    wait_for_gpus(like_P)


def _slice_of(view: Tensor, stretch: slice) -> Tensor:
    offset = int(view.storage_offset())
    stop = view.numel() if stretch.stop is None else max(0, stretch.stop - offset)
    return view.flatten()[max(0, (stretch.start or 0) - offset) : stop]


class Sender:
    """Codes one vector after another, with error feedback: what a biased codec loses is added to the next vector."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.lost_P: Tensor | None = None  # the accumulated error of all vectors used so far
        self.losing_P: Tensor | None = None  # the same if the vector sent last is used, which is not known yet

    def forget(self) -> None:
        self.lost_P = self.losing_P = None

    def acknowledge(self, *, used: bool) -> None:
        """The vector sent last was used, or it was refused, in which case its error is dropped."""
        if used and self.losing_P is not None:
            self.lost_P = self.losing_P
        self.losing_P = None

    def encode(self, values_P: Tensor, key: int) -> Tensor:
        """The bytes to send; they replace a vector that was sent before and is not acknowledged."""
        if self.codec.unbiased:
            return self.codec.encode(values_P, key)
        whole_P = values_P.clone() if self.lost_P is None else values_P + self.lost_P
        message = self.codec.encode(whole_P, key)
        self.codec.add(message, whole_P, -1.0)
        self.losing_P = whole_P
        return message


def statistics(values_P: Tensor, layout: TernaryLayout, clip: float, limits_B: Tensor, scales_B: Tensor) -> None:
    """Write each bucket's c sigma (infinite where nothing is clipped) and scale s (NaN if a value is not finite)."""
    _run(_statistics, values_P, layout.starts_B, layout.sizes_B, layout.tiles_T5, clip, limits_B, scales_B)


def pack(
    values_P: Tensor, layout: TernaryLayout, limits_B: Tensor, scales_B: Tensor, key: int, words_M: Tensor
) -> None:
    """Write the codes; a scale may be larger than the bucket's own. If a scale is NaN, its codes are zeros."""
    _run(_pack, values_P, layout.tiles_T5, limits_B, scales_B, key, words_M)


def add(words_M: Tensor, layout: TernaryLayout, scales_B: Tensor, times: float, into_P: Tensor) -> None:
    """Decode the codes and add them times `times`."""
    _run(_add, words_M, layout.tiles_T5, scales_B, times, into_P)


def add_sums(sums_16M: Tensor, layout: TernaryLayout, scales_B: Tensor, times: float, into_P: Tensor) -> None:
    """Decode sums of codes and add them times `times`; sums are int16, by position in the word and word."""
    _run(_add_sums, sums_16M, layout.tiles_T5, scales_B, times, into_P)


def _run(kernel: Any, *args: Any) -> None:
    """Run a kernel on a CPU or, if its arguments are on a GPU, its namesake in `codecs_cuda`."""
    if args[0].is_cuda:
        from speech3.engine import codecs_cuda

        getattr(codecs_cuda, kernel.__name__.lstrip("_"))(*args)
    else:
        kernel(*(each.numpy() if isinstance(each, Tensor) else each for each in args))


@_inline
def _random24(counter, key0, key1):  # type: ignore[no-untyped-def]
    x = _U(counter + key0)
    x = _U(_U(x ^ _U(x >> _U(16))) * _U(0x7FEB352D))
    x = _U(_U(x ^ _U(x >> _U(15))) ^ key1)
    x = _U(x * _U(0x846CA68B))
    return np.float32(np.int32(_U(_U(x ^ _U(x >> _U(16))) >> _U(8)))) * _24_BITS


@jit
def _statistics(values_P, starts_B, sizes_B, _tiles_T5, clip, limits_B, scales_B):  # type: ignore[no-untyped-def]
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
def _pack(values_P, tiles_T5, limits_B, scales_B, key, words_M):  # type: ignore[no-untyped-def]
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
def _add(words_M, tiles_T5, scales_B, times, into_P):  # type: ignore[no-untyped-def]
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
def _add_sums(sums_16M, tiles_T5, scales_B, times, into_P):  # type: ignore[no-untyped-def]
    for t in range(len(tiles_T5)):
        start, size, word, bucket, _ = tiles_T5[t]
        width = (size + 15) // 16
        scale = np.float32(times * scales_B[bucket])
        _add_sums_tile(sums_16M[:, word : word + width], width, scale, into_P[start : start + size])
