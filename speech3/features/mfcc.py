"""Mel-frequency cepstral coefficients (Kaldi feat/feature-mfcc.cc).

Axes: R frames, M mel bins, C cepstral coefficients.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.spectrum import EPSILON


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
