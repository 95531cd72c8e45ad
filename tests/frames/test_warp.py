"""Warped features against interpolation by numpy, and against the features of a tone of another pitch."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig, PitchConfig, TrainingConfig, load_preset
from speech3.errors import Speech3Error
from speech3.features.compute import static_features
from speech3.features.filterbank import mel_scale, mel_to_hertz
from speech3.frames.chunks import _warped
from speech3.frames.masks import frequency_warp, spec_augment

CONFIG = load_preset(FeatureConfig, "features", "fbank40").model_copy(update={"sample_frequency": 16000})


def tone(hz: float) -> np.ndarray:
    wave = 0.1 * torch.sin(2 * np.pi * hz * torch.arange(4000) / 16000) + 1e-4 * torch.sin(torch.arange(4000.0) ** 2)
    feats_1TF, _ = static_features(wave[None], torch.tensor([4000]), CONFIG, 16000)
    return feats_1TF[0, 5].numpy()


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.07])
def test_a_warped_bin_is_interpolated_at_the_warped_frequency(factor: float) -> None:
    warp = frequency_warp(CONFIG, 40, 0.1)
    frame_M = np.random.default_rng(1).normal(size=40)
    place_M = mel_scale(factor * mel_to_hertz(warp.centre_M))
    expected = np.interp(place_M, warp.centre_M, frame_M)
    np.testing.assert_allclose(warp.matrix(factor) @ frame_M, expected, atol=1e-5)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_warped_tone_is_the_tone_of_another_pitch(factor: float) -> None:
    warp = frequency_warp(CONFIG, 40, 0.1)
    for hz in (700.0, 1500.0, 3000.0):
        warped, spoken = warp.matrix(factor) @ tone(hz), tone(hz / factor)
        assert abs(int(warped.argmax()) - int(spoken.argmax())) <= 1
        assert int(tone(hz).argmax()) != int(spoken.argmax())


def test_each_part_of_a_minibatch_has_its_own_warp_and_derivatives_their_bins_one() -> None:
    warp = frequency_warp(CONFIG.model_copy(update={"deltas": 2}), 120, 0.1)
    feats_BWF, factor_G = torch.randn(1, 3, 120).expand(8, 3, 120), np.array([0.9, 0.95, 1.0, 1.1])
    warped = warp(feats_BWF, factor_G)
    for part, factor in enumerate(factor_G):
        for order in range(3):
            bins = slice(40 * order, 40 * order + 40)
            expected = feats_BWF[2 * part, :, bins].numpy() @ warp.matrix(factor).T
            np.testing.assert_allclose(warped[2 * part, :, bins].numpy(), expected, atol=1e-5)
            np.testing.assert_array_equal(warped[2 * part], warped[2 * part + 1])
    torch.testing.assert_close(warped[4], feats_BWF[4], atol=1e-5, rtol=0)


def test_energy_and_pitch_beside_the_bins_stay() -> None:
    config = CONFIG.model_copy(update={"deltas": 1, "use_energy": True, "pitch": PitchConfig(), "right_context": 1})
    assert config.pitch and config.pitch.dim == 3
    warp, alone = frequency_warp(config, 4 * 44, 0.1), frequency_warp(CONFIG, 40, 0.1)
    feats_BWF, factor_G = torch.randn(2, 3, 4 * 44), np.array([0.9, 1.1])
    blocks, warped = feats_BWF.view(2, 3, 4, 44), warp(feats_BWF, factor_G).view(2, 3, 4, 44)
    for kept in (slice(0, 1), slice(41, 44)):
        assert torch.equal(warped[..., kept], blocks[..., kept])
    expected = alone(blocks[..., 1:41].reshape(2, 3, 160), factor_G).view(2, 3, 4, 40)
    torch.testing.assert_close(warped[..., 1:41], expected)


def test_values_adapted_to_speakers_follow_the_derivatives_and_are_neither_warped_nor_masked() -> None:
    config = CONFIG.model_copy(update={"deltas": 1})
    warp = frequency_warp(config.model_copy(update={"adapted": 40}), 120, 0.1)
    alone, feats_BWF, factor_G = frequency_warp(config, 80, 0.1), torch.randn(2, 3, 120), np.array([0.9, 1.1])
    expected = torch.cat([alone(feats_BWF[:, :, :80], factor_G), feats_BWF[:, :, 80:]], 2)
    torch.testing.assert_close(warp(feats_BWF, factor_G), expected)
    matrices_BMM = torch.from_numpy(np.stack([warp.matrix(factor) for factor in factor_G]))
    torch.testing.assert_close(_warped(feats_BWF, matrices_BMM, warp.kept), expected)
    training = TrainingConfig(frequency_masks=1, frequency_mask_bins=20)
    masks = spec_augment(
        training, config.model_copy(update={"adapted": 40, "sample_frequency": 16000}), torch.zeros(120)
    )
    assert masks
    masked = masks(feats_BWF, np.zeros((2, 0, 2)), np.full((2, 1, 2), 0.999))
    assert torch.equal(masked[:, :, 80:], feats_BWF[:, :, 80:])
    hidden_F = (masked == 0).all(0).all(0).numpy()
    np.testing.assert_array_equal(hidden_F, np.r_[np.tile(np.arange(40) >= 20, 2), np.zeros(40, bool)])


def test_other_features_are_refused() -> None:
    mfcc = load_preset(FeatureConfig, "features", "mfcc13_d2")
    with pytest.raises(Speech3Error, match=r"frequency_warp=0\.1: only for log mel features"):
        frequency_warp(mfcc, 39, 0.1)
