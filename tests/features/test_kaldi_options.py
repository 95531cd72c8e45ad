"""Options of Kaldi that no recipe sets: what each does, by its formula."""

import math

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.compute import static_features
from speech3.features.pitch import process
from speech3.features.spectrum import window

RATE_HZ = 8000
WAVES_NS = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0)).mul_(0.05)


def _features(waves_NS: torch.Tensor = WAVES_NS, **options: object) -> np.ndarray:
    feats_NTF, _ = static_features(waves_NS, torch.tensor([4000]), FeatureConfig(**options), RATE_HZ)
    return feats_NTF[0].double().numpy()


def test_cepstral_lifter_raises_higher_coefficients() -> None:
    plain_TC, lifted_TC = (_features(kind="mfcc", use_energy=False, cepstral_lifter=value) for value in (0.0, 10.0))
    weight_C = [1 + 5 * math.sin(math.pi * i / 10) for i in range(13)]
    np.testing.assert_allclose(lifted_TC, plain_TC * weight_C, rtol=1e-4, atol=1e-4)


def test_blackman_coeff_is_the_windows_mean() -> None:
    by_numpy_L = window(FeatureConfig(window_type="blackman"), 200).numpy()
    np.testing.assert_allclose(by_numpy_L, np.blackman(200), atol=1e-12)
    hann_L = window(FeatureConfig(window_type="blackman", blackman_coeff=0.5), 200).numpy()
    np.testing.assert_allclose(hann_L, np.hanning(200), atol=1e-12)


@pytest.mark.parametrize("factor", [1 / 3, 0.5])
def test_compress_factor_is_the_exponent_of_energies(factor: float) -> None:
    options = {"kind": "plp", "use_energy": False, "compress_factor": factor, "cepstral_lifter": 0.0}
    quiet_TC, loud_TC = (_features(gain * WAVES_NS, **options) for gain in (1.0, 2.0))
    difference_TC = loud_TC - quiet_TC
    np.testing.assert_allclose(difference_TC[:, 0], 2 * factor * math.log(2), rtol=1e-3)
    np.testing.assert_allclose(difference_TC[:, 1:], 0, atol=1e-3)


def test_pitch_features_have_a_scale_each() -> None:
    rng = np.random.default_rng(0)
    raw_NT2 = torch.from_numpy(np.stack([rng.uniform(0.1, 0.9, (1, 30)), rng.uniform(80, 200, (1, 30))], 2)).float()
    ones = process(raw_NT2, torch.tensor([30]), PitchConfig(pov_scale=1, pitch_scale=1, delta_pitch_scale=1))
    scaled = process(raw_NT2, torch.tensor([30]), PitchConfig(pov_scale=3, pitch_scale=5, delta_pitch_scale=7))
    np.testing.assert_allclose(scaled.numpy(), ones.numpy() * [3, 5, 7], rtol=1e-5, atol=1e-6)
