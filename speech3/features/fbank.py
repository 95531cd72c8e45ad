"""Log-mel filterbank (Kaldi feat/feature-fbank.cc).

Axes: R frames, B bins of the spectrum, F features.
"""

from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.mel import mel_energies
from speech3.features.spectrum import EPSILON


def fbank(power_RB: Tensor, log_energy_R: Tensor | None, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """Filterbank features of power spectra (which are used up), (R, F); a log energy becomes the first column."""
    spectrum_RB = power_RB if config.use_power else power_RB.sqrt_()
    features_RF = mel_energies(spectrum_RB, config, sample_rate_hz)
    if config.use_log_fbank:
        features_RF.clamp_(min=EPSILON).log_()
    if log_energy_R is None:
        return features_RF
    with_energy_RF = features_RF.new_empty(len(features_RF), config.num_mel_bins + 1)
    with_energy_RF[:, 0], with_energy_RF[:, 1:] = log_energy_R, features_RF
    return with_energy_RF
