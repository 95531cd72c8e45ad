"""Kaldi's resampling of the signal before pitch tracking (feat/resample.cc, LinearResample).

Each sample of the new signal is the old signal weighted by a windowed sinc. For any two rates the filters repeat after
some samples, so a block of the new signal is the product of a stretch of the old one with a matrix.

Axes: S samples, O samples after resampling, I samples under the filters of some of those, B blocks.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from speech3.features.spectrum import SAMPLE_SCALE

_GROUP = 40  # new samples of one product, about a frame shift: larger matrices hold more and more zeros
_AT_ONCE_CPU, _AT_ONCE_GPU = 1 << 15, 1 << 24  # new samples


@dataclass(frozen=True, eq=False)
class Resampler:
    """Made by `resampler`."""

    rates: tuple[int, int]
    reach_s: float  # half of a filter's width
    block_in: int  # samples from one block to the next
    block_out: int  # the same after resampling
    reach: int  # samples before a block that its filters cover
    groups: tuple[tuple[int, np.ndarray], ...]  # first sample, counted from `reach` before the block; matrix (I, O)

    @property
    def width(self) -> int:
        """Samples that a block is computed from."""
        start, last_IO = self.groups[-1]
        return start + len(last_IO)

    def first_sample(self, resampled: int) -> int:
        """The first sample that this new sample is computed from, or one before it."""
        return resampled // self.block_out * self.block_in - self.reach

    def count(self, samples: int, *, finished: bool) -> int:
        """Number of new samples (Kaldi GetNumOutputSamples); if not `finished`, of those that need no later sample."""
        rate_in, rate_out = self.rates
        ticks = math.lcm(rate_in, rate_out)
        duration = samples * (ticks // rate_in) - (0 if finished else math.floor(np.float32(self.reach_s) * ticks))
        return max(-(-duration // (ticks // rate_out)), 0)


def low_pass(seconds: np.ndarray, cutoff_hz: float, zeros: int) -> np.ndarray:
    """A low-pass filter with `zeros` zero crossings under a Hann window (Kaldi FilterFunc)."""
    inside = np.abs(seconds) < zeros / (2 * cutoff_hz)
    hann = 0.5 * (1 + np.cos(2 * np.pi * cutoff_hz / zeros * seconds))
    return np.where(inside, 2 * cutoff_hz * np.sinc(2 * cutoff_hz * seconds) * hann, 0)


def resampler(rate_in: int, rate_out: int, cutoff_hz: float, zeros: int) -> Resampler:
    """The resampler from one rate to another, with a low-pass filter of `zeros` zero crossings."""
    base = math.gcd(rate_in, rate_out)
    repeats = max(_GROUP * base // rate_out, 1)  # of the shortest span of whole samples at both rates
    block_in, block_out = repeats * rate_in // base, repeats * rate_out // base
    reach_s = zeros / (2.0 * cutoff_hz)
    reach = math.ceil(rate_in * reach_s)
    groups = []
    for first in range(0, block_out, _GROUP):
        outputs_O = np.arange(first, min(first + _GROUP, block_out))
        start, end = first * rate_in // rate_out - reach, int(outputs_O[-1]) * rate_in // rate_out + reach + 2
        distance_IO = np.arange(start, end)[:, None] / rate_in - outputs_O / rate_out
        distance_IO = distance_IO.astype(np.float32).astype(np.float64)  # as Kaldi rounds it
        filters_IO = low_pass(distance_IO, cutoff_hz, zeros) / rate_in
        groups.append((start + reach, (filters_IO * SAMPLE_SCALE).astype(np.float32)))
    return Resampler((rate_in, rate_out), reach_s, block_in, block_out, reach, tuple(groups))


def resample(piece_S: Tensor, origin: int, first: int, out_O: Tensor, by: Resampler) -> Tensor:
    """Fill `out_O` with the resampled signal from its sample `first` on, on Kaldi's scale (16-bit values).

    Parameters
    ----------
    piece_S
        float32 in [-1, 1): the signal from its sample `origin` on. Outside of it the signal is taken as zero.

    Returns
    -------
    Tensor
        float64 (2): sum and sum of squares of `out_O`.
    """
    moments_2 = out_O.new_zeros(2, dtype=torch.float64)
    step = _AT_ONCE_CPU if out_O.device.type == "cpu" else _AT_ONCE_GPU
    for start, part_O in zip(range(first, first + len(out_O), step), out_O.split(step), strict=False):
        part_O.copy_(_resample(piece_S, origin, start, start + len(part_O), by))
        part64_O = part_O.double()
        moments_2 += torch.stack([part64_O.sum(), part64_O.square_().sum()])
    return moments_2


def _resample(piece_S: Tensor, origin: int, first: int, last: int, by: Resampler) -> Tensor:
    skipped = first // by.block_out
    blocks = -(-last // by.block_out) - skipped
    begin = skipped * by.block_in - by.reach - origin
    end = begin + (blocks - 1) * by.block_in + by.width
    part_S = piece_S[max(begin, 0) : max(end, 0)]
    before = min(max(-begin, 0), end - begin)
    padded_S = functional.pad(part_S, (before, end - begin - before - len(part_S)))
    blocks_BI = padded_S.as_strided((blocks, by.width), (by.block_in, 1))
    groups = _groups_on(by, piece_S.device)
    parts = [blocks_BI[:, start : start + len(matrix_IO)] @ matrix_IO for start, matrix_IO in groups]
    new_BO = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    skipped *= by.block_out
    return new_BO.flatten()[first - skipped : last - skipped]


@lru_cache(maxsize=16)
def _groups_on(by: Resampler, device: torch.device) -> list[tuple[int, Tensor]]:
    return [(start, torch.from_numpy(matrix_IO).to(device)) for start, matrix_IO in by.groups]
