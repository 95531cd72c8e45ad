"""Log-mel filterbank (Kaldi feat/feature-fbank.cc).

Axes: R frames, M mel bins, F features.
"""

from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.spectrum import EPSILON


def fbank(energies_RM: Tensor, log_energy_R: Tensor | None, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """Filterbank features (R, F) of mel energies, which are overwritten; a log energy becomes the first column."""
    if config.use_log_fbank:
        energies_RM.clamp_(min=EPSILON).log_()
    if log_energy_R is None:
        return energies_RM
    features_RF = energies_RM.new_empty(len(energies_RM), config.num_mel_bins + 1)
    features_RF[:, 0], features_RF[:, 1:] = log_energy_R, energies_RM
    return features_RF
