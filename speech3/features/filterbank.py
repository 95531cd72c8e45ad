"""Mel filterbank, MFCC and PLP features (Kaldi feat/mel-computations.cc, feature-{fbank,mfcc,plp}.cc).

The filters are triangles, spaced equally on the mel scale. For PLP (Hermansky 1990) the mel spectrum is weighted by an
equal-loudness curve and compressed to loudness, and modelled by an all-pole filter, whose cepstrum is the feature.
Chunks of spectra, which fit the cache, are gathered into blocks of thousands of frames (`mel_blocks`): the many small
steps after the mel bins would otherwise take most of their time to call.

Axes: N utterances, S samples, T frames, R frames of a block, B bins of the spectrum, M mel bins, F features, E mel bins
with the first and the last doubled, K autocorrelation coefficients (order + 1), P predictor coefficients, C cepstra.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import SettingError
from speech3.features.spectrum import EPSILON, frame_sizes, frames_at_once, power_spectra

# Mel bins whose filters are multiplied as one small dense matrix: the whole matrix is mostly zeros, and a product is
# fast from 16 columns on.
_GROUP = 16
# With fewer rows or columns than these, libraries sum products in an order that depends on where the values are in
# memory. So no group is narrower (the lowest group repeats bins of the next), and a frame's features hardly depend on
# its place in the batch.
_FEW, _NARROW = 4, 8
_ROWS_CPU, _ROWS_GPU = 1 << 12, 1 << 20
# Libraries compute the last few rows differently from the rest. With a multiple of sixteen rows, a frame's features
# depend on the other frames of the block only in their last bit.
_MULTIPLE = 16
_REFLECTION_FLOOR = 1e-5  # Kaldi's floor of 1 - k^2: a filter at the edge of stability would produce NaN
# For digital silence, whose autocorrelation is all zeros, Kaldi divides by zero. With this floor of the energy, its
# predictor and its cepstrum are zero.
_ENERGY_FLOOR = torch.finfo(torch.float32).tiny


def mel_scale(hz: np.ndarray | float) -> np.ndarray:
    """HTK's mel scale, which Kaldi uses."""
    return 1127.0 * np.log1p(np.asarray(hz, dtype=np.float64) / 700.0)


def mel_to_hertz(mel: np.ndarray | float) -> np.ndarray:
    """The frequency in Hz of a value on the mel scale."""
    return 700.0 * np.expm1(np.asarray(mel, dtype=np.float64) / 1127.0)


def mel_edges(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Where the filters begin, peak and end, in mel (M + 2,): filter m rises from edge m to m + 1 and falls to m + 2.

    Raises Speech3Error: `low_freq` and `high_freq` do not fit the sample rate.
    """
    nyquist = 0.5 * sample_rate_hz
    low, high = config.low_freq, config.high_freq + (nyquist if config.high_freq <= 0 else 0)
    if not 0 <= low < high <= nyquist:
        raise SettingError(
            f"low_freq {low:g} Hz and high_freq {high:g} Hz do not fit audio of {sample_rate_hz} Hz; they must lie "
            f"between 0 and {nyquist:g} Hz, low_freq < high_freq"
        )
    return np.linspace(mel_scale(low), mel_scale(high), config.num_mel_bins + 2)


def mel_filters(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Weight of every bin of the spectrum in every mel bin.

    Returns float64 (B, M); B = FFT size / 2: as in Kaldi, the bin at the Nyquist frequency is in no filter.
    """
    fft, edges = frame_sizes(config, sample_rate_hz).fft, mel_edges(config, sample_rate_hz)
    left_M, centre_M, right_M = edges[:-2], edges[1:-1], edges[2:]
    mel_B1 = mel_scale(np.arange(fft // 2) * (sample_rate_hz / fft))[:, None]
    rising_BM = (mel_B1 - left_M) / (centre_M - left_M)
    falling_BM = (right_M - mel_B1) / (right_M - centre_M)
    filters_BM = np.maximum(np.minimum(rising_BM, falling_BM), 0.0)
    if not filters_BM.any(axis=0).all():
        raise SettingError(
            f"num_mel_bins {config.num_mel_bins} is too many for the {fft // 2} frequencies that frames of "
            f"{config.frame_length:g} ms have at {sample_rate_hz} Hz: some filters would be empty; use fewer"
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


def fbank(energies_RM: Tensor, log_energy_R: Tensor | None, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """Filterbank features (R, F) of mel energies, which are overwritten; a log energy becomes the first column."""
    if config.use_log_fbank:
        energies_RM.clamp_(min=EPSILON).log_()
    if log_energy_R is None:
        return energies_RM
    features_RF = energies_RM.new_empty(len(energies_RM), config.num_mel_bins + 1)
    features_RF[:, 0], features_RF[:, 1:] = log_energy_R, energies_RM
    return features_RF


def lifter(count: int, coefficient: float) -> np.ndarray:
    """HTK's weights (C,) to raise the higher coefficients: 1 + Q/2 sin(pi i / Q), Q `coefficient`; 0: all ones."""
    if coefficient == 0:
        return np.ones(count)
    return 1.0 + 0.5 * coefficient * np.sin(np.pi * np.arange(count) / coefficient)


@lru_cache(maxsize=16)
def _liftered_dct(mels: int, count: int, coefficient: float, device: torch.device) -> Tensor:
    orders_C, centres_M1 = np.arange(count), (np.arange(mels) + 0.5)[:, None]
    dct_MC = np.sqrt(2.0 / mels) * np.cos(np.pi / mels * centres_M1 * orders_C)
    dct_MC[:, 0] = np.sqrt(1.0 / mels)
    return torch.tensor(dct_MC * lifter(count, coefficient), dtype=torch.float32, device=device)


def mfcc(energies_RM: Tensor, log_energy_R: Tensor | None, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """MFCCs (R, C) of mel energies, which are overwritten; a log energy replaces the first coefficient."""
    dct_MC = _liftered_dct(config.num_mel_bins, config.num_ceps, config.cepstral_lifter, energies_RM.device)
    cepstra_RC = energies_RM.clamp_(min=EPSILON).log_() @ dct_MC
    if log_energy_R is not None:
        cepstra_RC[:, 0] = log_energy_R
    return cepstra_RC


@dataclass(frozen=True)
class Block:
    """Mel energies of frames, one after another, and the places that they belong to."""

    energies_RM: Tensor  # float32, at least zero; the last few rows may be padding with arbitrary values
    log_energy_R: Tensor | None  # log energy of each frame, if the config asks for it
    # First utterance, first frame, number of utterances, number of frames of each.
    places: list[tuple[int, int, int, int]]

    def put(self, feats_RF: Tensor, out_NTF: Tensor) -> None:
        row = 0
        for first, start, n, t in self.places:
            out_NTF[first : first + n, start : start + t] = feats_RF[row : row + n * t].view(n, t, -1)
            row += n * t


def mel_blocks(waves_NS: Tensor, frames_N: list[int], config: FeatureConfig, sample_rate_hz: int) -> Iterator[Block]:
    """Yield the mel energies of all frames; parameters as for `power_spectra`.

    The caller may overwrite a block's tensors; the next block reuses them.
    """
    device = waves_NS.device
    wanted = max(
        _ROWS_CPU if device.type == "cpu" else _ROWS_GPU, frames_at_once(device, frame_sizes(config, sample_rate_hz))
    )
    wanted = min(wanted, len(frames_N) * max(frames_N))
    size = wanted + -wanted % _MULTIPLE
    energies_RM = waves_NS.new_empty(size, config.num_mel_bins)
    log_energy_R = waves_NS.new_empty(size) if config.use_energy else None
    places: list[tuple[int, int, int, int]] = []
    used = 0

    def block() -> Block:
        rows = used + -used % _MULTIPLE
        return Block(energies_RM[:rows], None if log_energy_R is None else log_energy_R[:rows], places)

    for chunk in power_spectra(waves_NS, frames_N, config, sample_rate_hz):
        n, t = chunk.power_NTB.shape[:2]
        if used + n * t > size:
            yield block()
            places, used = [], 0
        spectrum_RB = chunk.power_NTB.flatten(0, 1)
        if config.kind == "fbank" and not config.use_power:
            spectrum_RB.sqrt_()
        mel_energies(spectrum_RB, config, sample_rate_hz, energies_RM[used : used + n * t])
        if log_energy_R is not None and chunk.log_energy_NT is not None:
            log_energy_R[used : used + n * t] = chunk.log_energy_NT.flatten()
        places.append((chunk.first, chunk.start, n, t))
        used += n * t
    yield block()


def equal_loudness(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Weight (M,) of each mel bin: the ear's sensitivity at its centre frequency, Hermansky's curve for 40 dB."""
    squared_M = np.square(mel_to_hertz(mel_edges(config, sample_rate_hz)[1:-1]))
    return np.square(squared_M / (squared_M + 1.6e5)) * (squared_M + 1.44e6) / (squared_M + 9.61e6)


@lru_cache(maxsize=16)
def _plp_constants(config: FeatureConfig, sample_rate_hz: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Equal-loudness weights (M,), inverse DFT from spectrum to autocorrelation (K, M), scale of the cepstra (C,)."""
    last = config.num_mel_bins + 1
    order_K1, bin_E = np.arange(config.lpc_order + 1)[:, None], np.arange(last + 1)
    idft_KE = np.cos(np.pi / last * order_K1 * bin_E) / last
    idft_KE[:, [0, last]] /= 2
    idft_KM = idft_KE[:, 1:-1].copy()  # the doubled bins have the values of their neighbours
    idft_KM[:, 0] += idft_KE[:, 0]
    idft_KM[:, -1] += idft_KE[:, last]
    scale_C = lifter(config.num_ceps, config.cepstral_lifter) * config.cepstral_scale
    arrays = (equal_loudness(config, sample_rate_hz), idft_KM, scale_C)
    loudness_M, idft, scale = (torch.tensor(array, dtype=torch.float32, device=device) for array in arrays)
    return loudness_M, idft, scale


def durbin(autocorrelation_KR: Tensor) -> tuple[Tensor, Tensor]:
    """Levinson-Durbin recursion (Kaldi feat/mel-computations.cc, Durbin).

    Returns `predictor_PR`, coefficients a such that x[t] + sum of a_p x[t - p] is the residual; `energy_R`, energy of
    the residual, above zero.
    """
    order = len(autocorrelation_KR) - 1
    backward_KR = autocorrelation_KR.flip(0)
    predictor_PR = torch.empty_like(autocorrelation_KR[1:])
    energy_R = autocorrelation_KR[0].clamp(min=_ENERGY_FLOOR)
    for i in range(order):
        known_PR = predictor_PR[:i]
        reflection_R = (known_PR * backward_KR[order - i : order]).sum(0)
        reflection_R.add_(autocorrelation_KR[i + 1]).div_(energy_R).neg_()
        known_PR.addcmul_(known_PR.flip(0), reflection_R)
        predictor_PR[i] = reflection_R
        energy_R = energy_R * (1 - reflection_R.square_()).clamp_(min=_REFLECTION_FLOOR)
    return predictor_PR, energy_R


def cepstrum(predictor_PR: Tensor, count: int) -> Tensor:
    """Coefficients 1 to `count` of the cepstrum of the all-pole filter 1 / (1 + sum of a_p z^-p), (count, R)."""
    # The recursion c_i = -a_i - sum of (i - j) / i a_j c_(i - j) is shorter in the products i c_i.
    product_PR = predictor_PR[:count] * -torch.arange(1.0, count + 1, device=predictor_PR.device)[:, None]
    for i in range(1, count):
        product_PR[i] -= (predictor_PR[:i] * product_PR[:i].flip(0)).sum(0)
    return product_PR.div_(torch.arange(1.0, count + 1, device=predictor_PR.device)[:, None])


def plp(energies_RM: Tensor, log_energy_R: Tensor | None, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """PLP cepstra (R, C) of mel energies, which are overwritten; a log energy replaces that of the residual."""
    loudness_M, idft_KM, scale_C = _plp_constants(config, sample_rate_hz, energies_RM.device)
    compressed_RM = energies_RM.mul_(loudness_M).pow_(config.compress_factor)
    predictor_PR, energy_R = durbin(idft_KM @ compressed_RM.t())
    features_RC = energies_RM.new_empty(len(energies_RM), config.num_ceps)
    features_RC[:, 0] = energy_R.log_().clamp_(min=EPSILON)
    features_RC[:, 1:] = cepstrum(predictor_PR, config.num_ceps - 1).t()
    features_RC *= scale_C
    if log_energy_R is not None:
        features_RC[:, 0] = log_energy_R
    return features_RC
