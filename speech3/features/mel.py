"""Triangular filters equally spaced on the mel scale (Kaldi feat/mel-computations.cc).

Axes: R frames, B bins of the spectrum, M mel bins.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.window import framing

# Mel bins whose filters are multiplied as one small dense matrix: the whole matrix is mostly zeros, and a product is
# fast from 16 columns on.
_GROUP = 16
# With fewer rows or columns than these, libraries sum products in an order that depends on where the values are in
# memory. So no group is narrower (the lowest group repeats bins of the next), and a frame's features hardly depend on
# its place in the batch.
_FEW, _NARROW = 4, 8


def mel_scale(hz: np.ndarray | float) -> np.ndarray:
    """HTK's mel scale, which Kaldi uses."""
    return 1127.0 * np.log1p(np.asarray(hz, dtype=np.float64) / 700.0)


def hertz(mel: np.ndarray | float) -> np.ndarray:
    """The frequency in Hz of a value on the mel scale."""
    return 700.0 * np.expm1(np.asarray(mel, dtype=np.float64) / 1127.0)


def mel_edges(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Where the filters begin, peak and end, in mel (M + 2,): filter m rises from edge m to m + 1 and falls to m + 2.

    Raises
    ------
    Speech3Error
        `low_freq` and `high_freq` do not fit the sample rate.
    """
    nyquist = 0.5 * sample_rate_hz
    low, high = config.low_freq, config.high_freq + (nyquist if config.high_freq <= 0 else 0)
    if not 0 <= low < high <= nyquist:
        raise Speech3Error(
            f"low_freq {low:g} Hz and high_freq {high:g} Hz do not fit audio of {sample_rate_hz} Hz; they must lie "
            f"between 0 and {nyquist:g} Hz, low_freq < high_freq"
        )
    return np.linspace(mel_scale(low), mel_scale(high), config.num_mel_bins + 2)


def mel_filters(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Weight of every bin of the spectrum in every mel bin.

    Returns
    -------
    ndarray
        float64 (B, M); B = FFT size / 2: as in Kaldi, the bin at the Nyquist frequency is in no filter.

    Raises
    ------
    Speech3Error
        As `mel_edges`; or a filter lies between two bins of the spectrum, so that it would be empty.
    """
    fft, edges = framing(config, sample_rate_hz).fft, mel_edges(config, sample_rate_hz)
    left_M, centre_M, right_M = edges[:-2], edges[1:-1], edges[2:]
    mel_B1 = mel_scale(np.arange(fft // 2) * (sample_rate_hz / fft))[:, None]
    rising_BM = (mel_B1 - left_M) / (centre_M - left_M)
    falling_BM = (right_M - mel_B1) / (right_M - centre_M)
    filters_BM = np.maximum(np.minimum(rising_BM, falling_BM), 0.0)
    if not filters_BM.any(axis=0).all():
        raise Speech3Error(
            f"num_mel_bins {config.num_mel_bins} is too many for the {fft // 2} frequencies that frames of "
            f"{config.frame_length:g} ms have at {sample_rate_hz} Hz: some filters would be empty; give fewer"
        )
    return filters_BM


@dataclass(frozen=True)
class _Group:
    mels: slice
    bins: slice
    filters_BM: Tensor


@lru_cache(maxsize=16)
def _groups(config: FeatureConfig, sample_rate_hz: int, device: torch.device) -> list[_Group]:
    filters_BM = mel_filters(config, sample_rate_hz)
    groups = []
    for stop in range(config.num_mel_bins, 0, -_GROUP):  # from the top, where the filters are wide
        mels = slice(max(stop - _GROUP, 0), max(stop, min(_NARROW, config.num_mel_bins)))
        used = np.flatnonzero(filters_BM[:, mels].any(axis=1))
        bins = slice(int(used[0]), int(used[-1]) + 1)
        groups.append(_Group(mels, bins, torch.tensor(filters_BM[bins, mels], dtype=torch.float32, device=device)))
    return groups


def mel_energies(spectrum_RB: Tensor, config: FeatureConfig, sample_rate_hz: int, out_RM: Tensor) -> None:
    """Write the mel energies of power (or magnitude) spectra, float32 with bins 0 to Nyquist, to `out_RM`."""
    rows = len(spectrum_RB)
    if rows < _FEW:
        spectrum_RB = torch.cat([spectrum_RB, spectrum_RB.new_zeros(_FEW - rows, spectrum_RB.shape[1])])
        padded_RM = out_RM.new_empty(_FEW, out_RM.shape[1])
        mel_energies(spectrum_RB, config, sample_rate_hz, padded_RM)
        out_RM.copy_(padded_RM[:rows])
        return
    for group in _groups(config, sample_rate_hz, spectrum_RB.device):
        torch.mm(spectrum_RB[:, group.bins], group.filters_BM, out=out_RM[:, group.mels])
