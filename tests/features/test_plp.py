"""PLP: Kaldi's vectors, a float64 reference by another road, closed forms, and where Kaldi's is NaN."""

import numpy as np
import pytest
import torch
from kaldi64 import EPS, frames_of, log_mel, plp
from reference import RECORDINGS, needs_reference, vectors, wave

from speech3.config import FeatureConfig, load_preset
from speech3.errors import Speech3Error
from speech3.features.compute import finish_features, static_dim, static_features
from speech3.features.filterbank import cepstrum, durbin


def computed(wave_S: np.ndarray, hz: int, **options: object) -> np.ndarray:
    config = FeatureConfig(kind="plp", **options)
    feats_NTF, _ = static_features(torch.from_numpy(wave_S)[None], torch.tensor([len(wave_S)]), config, hz)
    return feats_NTF[0].numpy()


@needs_reference
@pytest.mark.parametrize(("rate", "name"), RECORDINGS)
@pytest.mark.parametrize("energy", [True, False])
def test_equals_kaldi(rate: str, name: str, energy: bool) -> None:
    hz = 8000 if rate == "8k" else 16000
    ours = computed(wave(rate, name), hz, use_energy=energy)
    kaldi = vectors(rate)[f"{name}.plp13" if energy else f"{name}.plp13_noenergy"]
    exact_TM, energy_T = log_mel(frames_of(wave(rate, name), hz), hz, 23, floor=0.0)
    defined_T = np.isfinite(kaldi).all(axis=1)
    exact = plp(exact_TM[defined_T], hz)
    if energy:
        exact[:, 0] = energy_T[defined_T]
    assert ours.shape == kaldi.shape
    assert np.isfinite(ours).all()
    assert defined_T.all() or name == "espeak_m_zeros"
    ours, kaldi = ours[defined_T], kaldi[defined_T]
    # One frame of silence ends in a single sample of one 16-bit step: its bins are below the floor of other features.
    nearly_empty_T1 = exact_TM[defined_T].min(axis=1, keepdims=True) < np.log(EPS)
    assert nearly_empty_T1.sum() <= 1
    tolerance_T1 = np.where(nearly_empty_T1, 1e-2, 1e-3)
    assert (np.abs(ours - kaldi) < tolerance_T1).all()
    assert (np.abs(ours - exact) < tolerance_T1).all()


@needs_reference
def test_digital_silence_is_flat_where_kaldis_is_nan() -> None:
    kaldi, silent = vectors("16k")["espeak_m_zeros.plp13_noenergy"], computed(wave("16k", "espeak_m_zeros"), 16000)
    lost_T = ~np.isfinite(kaldi).all(axis=1)
    assert lost_T.sum() > 50
    np.testing.assert_array_equal(silent[lost_T, 1:], 0.0)


def test_durbin_solves_the_normal_equations() -> None:
    rng = np.random.default_rng(1)
    spectrum = rng.uniform(0.1, 3.0, (5, 40))
    autocorrelation = np.fft.irfft(spectrum)[:, :9]
    predictor_PR, energy_R = durbin(torch.from_numpy(autocorrelation.T.copy()))
    for r in range(5):
        toeplitz = autocorrelation[r][np.abs(np.subtract.outer(np.arange(8), np.arange(8)))]
        np.testing.assert_allclose(toeplitz @ predictor_PR[:, r].numpy(), -autocorrelation[r, 1:], atol=1e-12)
        residual = autocorrelation[r, 0] + autocorrelation[r, 1:] @ predictor_PR[:, r].numpy()
        assert energy_R[r].item() == pytest.approx(residual, rel=1e-10)


@pytest.mark.parametrize("pole", [0.9, -0.5])
def test_cepstrum_of_one_pole_is_its_powers(pole: float) -> None:
    # log 1 / (1 - p/z) = sum of p^n / n z^-n
    predictor_PR = torch.zeros(8, 3, dtype=torch.float64)
    predictor_PR[0] = -pole
    expected = [pole**n / n for n in range(1, 7)]
    np.testing.assert_allclose(cepstrum(predictor_PR, 6)[:, 1].numpy(), expected, rtol=1e-12)


def test_orders_and_counts() -> None:
    wave_S = np.random.default_rng(2).normal(0, 0.1, 8000).astype(np.float32)
    full = computed(wave_S, 16000, use_energy=False)
    np.testing.assert_allclose(computed(wave_S, 16000, use_energy=False, num_ceps=5), full[:, :5], atol=1e-5)
    scaled = computed(wave_S, 16000, use_energy=False, cepstral_scale=0.1, num_ceps=5)
    np.testing.assert_allclose(scaled, 0.1 * full[:, :5], atol=1e-5)
    assert computed(wave_S, 16000, lpc_order=20, num_ceps=21).shape == (48, 21)
    with pytest.raises(ValueError, match="num_ceps 14 must not exceed lpc_order 12"):
        FeatureConfig(kind="plp", num_ceps=14)
    with pytest.raises(Speech3Error, match=r"low_freq 9000 Hz .* audio of 16000 Hz"):
        computed(wave_S, 16000, low_freq=9000.0)


def test_the_presets_of_the_asynchronous_system() -> None:
    config = load_preset(FeatureConfig, "features", "plp13_pitch1_d2")
    assert static_dim(config) == 14
    wave_S = torch.randn(1, 8000, generator=torch.Generator().manual_seed(1)) * 0.1
    feats_NTF, _ = static_features(wave_S, torch.tensor([8000]), config, 16000)
    assert finish_features([feats_NTF[0]], config)[0].shape == (48, 42)
    assert static_dim(load_preset(FeatureConfig, "features", "fbank40_pitch")) == 43
