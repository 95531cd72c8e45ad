"""Perceptual linear prediction (Hermansky 1990; Kaldi feat/feature-plp.cc).

The mel spectrum is weighted by an equal-loudness curve and compressed to loudness, the result is modelled by an
all-pole filter, and that filter's cepstrum is the feature. All recursions run over the filter's order, for all frames
at once, with the frames in the last axis.

Axes: R frames, M mel bins, E mel bins with the first and the last doubled, K autocorrelation
coefficients (order + 1), P predictor coefficients, C cepstral coefficients.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.mel import hertz, mel_edges
from speech3.features.mfcc import lifter
from speech3.features.spectrum import EPSILON

_REFLECTION_FLOOR = 1e-5  # Kaldi's floor of 1 - k^2: a filter at the edge of stability would give NaN
# For digital silence, whose autocorrelation is all zeros, Kaldi divides by zero. With this floor of the energy, its
# predictor and its cepstrum are zero.
_ENERGY_FLOOR = torch.finfo(torch.float32).tiny


def equal_loudness(config: FeatureConfig, sample_rate_hz: int) -> np.ndarray:
    """Weight (M,) of each mel bin: the ear's sensitivity at its centre frequency, Hermansky's curve for 40 dB."""
    squared_M = np.square(hertz(mel_edges(config, sample_rate_hz)[1:-1]))
    return np.square(squared_M / (squared_M + 1.6e5)) * (squared_M + 1.44e6) / (squared_M + 9.61e6)


@lru_cache(maxsize=16)
def _constants(config: FeatureConfig, sample_rate_hz: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
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

    Returns
    -------
    predictor_PR
        Coefficients a such that x[t] + sum of a_p x[t - p] is the residual.
    energy_R
        Energy of the residual, above zero.
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
    loudness_M, idft_KM, scale_C = _constants(config, sample_rate_hz, energies_RM.device)
    compressed_RM = energies_RM.mul_(loudness_M).pow_(config.compress_factor)
    predictor_PR, energy_R = durbin(idft_KM @ compressed_RM.t())
    features_RC = energies_RM.new_empty(len(energies_RM), config.num_ceps)
    features_RC[:, 0] = energy_R.log_().clamp_(min=EPSILON)
    features_RC[:, 1:] = cepstrum(predictor_PR, config.num_ceps - 1).t()
    features_RC *= scale_C
    if log_energy_R is not None:
        features_RC[:, 0] = log_energy_R
    return features_RC
