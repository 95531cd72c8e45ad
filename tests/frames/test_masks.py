"""SpecAugment: what is hidden becomes the mean, all else stays; widths and places as Park et al. draw them."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig, PitchConfig, TrainingConfig, load_preset
from speech3.errors import SettingError, Speech3Error
from speech3.frames.masks import SpecAugment, frequency_warp, hidden, spec_augment

FBANK = load_preset(FeatureConfig, "features", "fbank40_d2").model_copy(update={"sample_frequency": 16000})


def test_places_by_hand() -> None:
    drawn_BK2 = np.array([[[0.0, 0.5]], [[0.99, 0.0]], [[0.99, 0.99]], [[0.5, 0.5]]])
    bits = ["".join("x" if one else "." for one in row) for row in hidden(drawn_BK2, np.full(4, 3), np.full(4, 9), 10)]
    assert bits == ["..........", "xxx.......", "......xxx.", "....xx...."]
    two = hidden(np.array([[[0.5, 0.0], [0.5, 0.99]]]), np.array([1]), np.array([4]), 4)
    assert two.tolist() == [[True, False, False, True]]


def test_widths_and_places_are_even_likely() -> None:
    drawn_BK2 = np.random.default_rng(1).random((40_000, 1, 2))
    places = hidden(drawn_BK2, np.full(40_000, 4), np.full(40_000, 20), 20)
    widths = np.bincount(places.sum(1), minlength=5)
    assert len(widths) == 5 and np.abs(widths / 8000 - 1).max() < 0.05
    firsts = np.bincount(places[places.sum(1) == 4].argmax(1), minlength=17)
    assert len(firsts) == 17 and np.abs(firsts / firsts.mean() - 1).max() < 0.2


def test_no_more_than_half_of_a_window_is_hidden_by_a_mask() -> None:
    masks = SpecAugment(torch.zeros(2), 1, 100)
    feats = torch.ones(500, 11, 2)
    after = masks(feats, *masks.draw(np.random.default_rng(1), 500), np.full(500, 7))
    assert (after == 0).any(2).sum(1).max() == 3
    assert (after[:, 7:] == 1).all(), "what is beyond the length is no data"


def test_derivatives_are_hidden_with_their_bins_and_energy_and_pitch_never() -> None:
    config = FBANK.model_copy(update={"use_energy": True, "pitch": PitchConfig()})
    dim = 3 * 44
    mean_F = torch.arange(dim).double() + 1000
    masks = spec_augment(TrainingConfig(frequency_masks=2, frequency_mask_bins=10), config, mean_F)
    assert masks is not None
    feats_BTF = torch.randn(50, 6, dim)
    after_BTF = masks(feats_BTF, *masks.draw(np.random.default_rng(2), 50))
    changed_BTF = after_BTF != feats_BTF
    assert torch.equal(after_BTF[changed_BTF], mean_F.float().expand_as(after_BTF)[changed_BTF])
    blocks = changed_BTF.view(50, 6, 3, 44)
    assert torch.equal(blocks, blocks[:, :1, :1].expand_as(blocks)), "in all frames and derivatives alike"
    assert not blocks[..., 0].any() and not blocks[..., 41:].any()
    counts = blocks[:, 0, 0].sum(1)
    assert counts.max() > 10 and counts.max() <= 20 and counts.min() < 5


def test_features_adapted_to_speakers_are_neither_masked_nor_warped() -> None:
    config = FBANK.model_copy(update={"deltas": 0, "adapted": 3})
    training = TrainingConfig(frequency_masks=2, frequency_mask_bins=10, time_masks=2, time_mask_frames=3)
    feats_BTF, mean_F = torch.randn(20, 11, 43), torch.ones(43)
    masks = spec_augment(training, config, mean_F)
    assert masks is not None
    after_BTF = masks(feats_BTF, *masks.draw(np.random.default_rng(2), 20))
    assert torch.equal(after_BTF[..., 40:], feats_BTF[..., 40:])
    changed_BT40 = after_BTF[..., :40] != feats_BTF[..., :40]
    assert changed_BT40.all(2).any() and changed_BT40.all(1).any()
    warped = frequency_warp(config, 43, 0.1)(feats_BTF, np.array([0.9]))
    assert torch.equal(warped[..., 40:], feats_BTF[..., 40:]) and (warped != feats_BTF)[..., 5:35].all(0).all()
    with pytest.raises(SettingError, match="not for fbank of 43 values"):
        frequency_warp(config.model_copy(update={"adapted": 0}), 43, 0.1)


def test_time_masks_need_no_mel_bins_and_nothing_asked_for_is_nothing_done() -> None:
    mfcc = load_preset(FeatureConfig, "features", "mfcc13_d2")
    masks = spec_augment(TrainingConfig(time_masks=2, time_mask_frames=3), None, torch.ones(39))
    assert masks is not None and masks.columns is None
    after = masks(torch.zeros(20, 11, 39), *masks.draw(np.random.default_rng(1), 20))
    assert torch.equal(after, after[..., :1].expand_as(after)) and 0 < after.mean() < 0.5
    assert spec_augment(TrainingConfig(), mfcc, torch.ones(39)) is None


def test_frequency_masks_that_do_not_fit() -> None:
    mfcc = load_preset(FeatureConfig, "features", "mfcc13_d2")
    with pytest.raises(SettingError, match=r"training\.frequency_masks=2: .* mfcc of 39 values"):
        spec_augment(TrainingConfig(frequency_masks=2), mfcc, torch.ones(39))
    with pytest.raises(SettingError, match=r"frequency_masks=1: .* 121 values per frame"):
        spec_augment(TrainingConfig(frequency_masks=1), FBANK, torch.ones(121))
    with pytest.raises(Speech3Error, match=r"frequency_mask_bins=40: there are 40 bins"):
        spec_augment(TrainingConfig(frequency_masks=1, frequency_mask_bins=40), FBANK, torch.ones(120))
