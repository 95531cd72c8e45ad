"""CMVN where Kaldi's vectors do not reach."""

import numpy as np
import pytest
import torch

from speech3.config import FeatureConfig
from speech3.errors import MismatchError, Speech3Error
from speech3.features import cmvn, normalise
from speech3.features.cmvn import apply_cmvn, cmvn_stats, sliding_cmvn
from speech3.features.compute import finish_features


def test_a_speaker_is_normalised_as_one() -> None:
    generator = torch.Generator().manual_seed(3)
    statics = [torch.randn(n, 4, generator=generator) * 5 + 20 + n for n in (3, 50, 9)]
    whole_TF = torch.cat(finish_features(statics, FeatureConfig(cmvn="speaker", norm_vars=True)))
    torch.testing.assert_close(whole_TF.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(whole_TF.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)


def test_a_constant_becomes_zero_not_noise() -> None:
    silence_TF = torch.full((1000, 3), -15.942385)
    out_TF = apply_cmvn(cmvn_stats(silence_TF), silence_TF, norm_vars=True)
    assert out_TF.abs().max() < 1e-3


def test_no_frames_and_no_normalisation() -> None:
    empty_TF = torch.zeros(0, 3)
    assert finish_features([empty_TF], FeatureConfig(cmvn="utterance", norm_vars=True, deltas=1))[0].shape == (0, 6)


def test_training_data_count_as_frames_of_a_short_word() -> None:
    """In what a model recognises; the sums are those of twenty frames."""
    word_TF = np.random.default_rng(4).normal([7, -0.5], 3, (40, 2))
    stats = ((700.0, -50.0, 100.0), (5000.0, 425.0, 0.0))  # means 7 and -0.5, mean squares 50 and 4.25
    config = FeatureConfig(cmvn="speaker", norm_vars=True, global_stats=stats)
    parts = [torch.from_numpy(part.astype(np.float32)) for part in (word_TF[:15], word_TF[15:])]
    ours_TF = torch.cat(finish_features(parts, config)).numpy()
    mean_F = (word_TF.sum(0) + 20 * np.array([7, -0.5])) / 60
    variance_F = ((word_TF**2).sum(0) + 20 * np.array([50, 4.25])) / 60 - mean_F**2
    np.testing.assert_allclose(ours_TF, (word_TF - mean_F) / np.sqrt(variance_F), atol=1e-5)


@pytest.mark.parametrize("kind", ["fbank", "mfcc"])
def test_the_prior_is_as_loud_as_the_recording(kind: str) -> None:
    """A word that is 30 dB quieter has the same features, but for half a standard deviation of the training data."""
    generator = np.random.default_rng(5)
    training_TF, word_TF = generator.normal(8, 2, (500, 4)), generator.normal(8, 2, (30, 4))
    sums = [[*training_TF.sum(0), 500.0], [*(training_TF**2).sum(0), 0.0]]
    config = FeatureConfig(kind=kind, num_mel_bins=4, num_ceps=4, cmvn="speaker", norm_vars=True, global_stats=sums)
    gain_F = np.array([-6.9, -6.9, -6.9, -6.9] if kind == "fbank" else [-13.8, 0, 0, 0])
    as_it_is, quiet, quieter = (
        finish_features([torch.from_numpy((word_TF + times * gain_F).astype(np.float32))], config)[0]
        for times in range(3)
    )
    assert (as_it_is - quiet).abs().max() < 0.4
    torch.testing.assert_close(quiet, quieter, atol=1e-3, rtol=0)


def test_other_energies_than_logs_have_no_prior() -> None:
    quiet_TF = torch.rand(300, 3, generator=torch.Generator().manual_seed(1)) * 1e-3
    config = FeatureConfig(cmvn="utterance", norm_vars=True, use_log_fbank=False, num_mel_bins=3)
    known = config.model_copy(update={"global_stats": ((50.0, 50.0, 50.0, 100.0), (30.0, 30.0, 30.0, 0.0))})
    assert finish_features([quiet_TF], known)[0].equal(finish_features([quiet_TF], config)[0])


def test_a_constant_value_in_training() -> None:
    """Its variance may be below zero by rounding."""
    stats = ((0.1 * 1000, 1000.0), (0.1**2 * 1000 * (1 - 1e-14), 0.0))
    config = FeatureConfig(cmvn="utterance", norm_vars=True, global_stats=stats)
    assert finish_features([torch.randn(50, 1)], config)[0].isfinite().all()


def test_digital_silence_alone_is_normalised_by_itself() -> None:
    silence_TF = torch.full((50, 2), -15.9)
    config = FeatureConfig(cmvn="utterance", global_stats=((700.0, -50.0, 100.0), (5000.0, 425.0, 0.0)))
    (ours_TF,) = normalise([silence_TF], config, [torch.ones(50, dtype=torch.bool)])
    assert ours_TF.abs().max() < 1e-4


def test_training_data_are_normalised_without_those_of_another_model() -> None:
    known = {"global_stats": ((7.0, 1.0), (50.0, 0.0))}
    assert FeatureConfig(cmvn="speaker", **known).for_training == FeatureConfig(cmvn="speaker")
    assert FeatureConfig(cmvn="global", **known).for_training.global_stats == known["global_stats"]


def test_statistics_of_other_features_are_refused() -> None:
    config = FeatureConfig(cmvn="utterance", global_stats=((7.0, 1.0), (50.0, 0.0)))
    with pytest.raises(MismatchError, match="global_stats"):
        finish_features([torch.ones(5, 2)], config)


def sliding_by_frame(feats_TF: np.ndarray, window: int, least: int, center: bool, norm_vars: bool) -> np.ndarray:
    """What Kaldi's SlidingWindowCmn does, frame by frame, in float64."""
    feats_TF = feats_TF.astype(np.float64)
    frames, rows = len(feats_TF), []
    for t in range(frames):
        if center:
            start = t - window // 2
            end = start + window
        else:
            start, end = t - window, t + 1
        if start < 0:
            start, end = 0, end - start
        if not center and end > t:
            end = max(t + 1, least)
        if end > frames:
            start, end = max(0, start - (end - frames)), frames
        part_WF = feats_TF[start:end]
        row_F = feats_TF[t] - part_WF.mean(0)
        if norm_vars:
            row_F /= np.sqrt(np.maximum(part_WF.var(0), 1e-10))
        rows.append(row_F)
    return np.array(rows)


@pytest.mark.parametrize("norm_vars", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    ("frames", "window", "least"), [(1, 600, 100), (50, 600, 100), (700, 600, 100), (90, 7, 3), (60, 5, 30), (9, 1, 1)]
)
def test_sliding_equals_kaldis_loop(frames: int, window: int, least: int, center: bool, norm_vars: bool) -> None:
    feats_TF = np.random.default_rng(frames).normal(15, 4, (frames, 3)).astype(np.float32)
    options = {"cmn_window": window, "min_cmn_window": least, "center": center, "norm_vars": norm_vars}
    (ours_TF,) = finish_features([torch.from_numpy(feats_TF)], FeatureConfig(cmvn="sliding", **options))
    assert ours_TF.dtype == torch.float32
    expected_TF = sliding_by_frame(feats_TF, window, least, center, norm_vars)
    np.testing.assert_allclose(ours_TF.numpy(), expected_TF, rtol=0, atol=1e-5)


@pytest.mark.parametrize("center", [False, True])
def test_sliding_over_pieces_of_a_long_utterance(center: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cmvn, "_CHUNK", 64)
    feats_TF = np.random.default_rng(1).normal(-3, 2, (1000, 2)).astype(np.float32)
    feats_TF[300:420] = feats_TF[300]  # a stretch of digital silence
    ours_TF = sliding_cmvn(torch.from_numpy(feats_TF), 90, 30, center, norm_vars=True).numpy()
    expected_TF = sliding_by_frame(feats_TF, 90, 30, center, norm_vars=True)
    varied_T = np.abs(expected_TF).max(1) > 1e-3
    np.testing.assert_allclose(ours_TF[varied_T], expected_TF[varied_T], rtol=0, atol=1e-4)
    assert np.abs(ours_TF[~varied_T]).max() < 1e-3


def test_sliding_keeps_its_digits_over_hours() -> None:
    """Sums from the beginning on would leave the variance of an even end few digits: this is 2.8 hours."""
    random = torch.Generator().manual_seed(0)
    feats_TF = torch.cat([torch.full((500_000, 1), -16.0), torch.randn(500_000, 1, generator=random) + 16])
    feats_TF[-2000:] = 15 + 3e-3 * torch.randn(2000, 1, generator=random)
    ours_TF = sliding_cmvn(feats_TF, norm_vars=True).numpy()
    expected_TF = sliding_by_frame(feats_TF[-2000:].numpy(), 600, 100, center=False, norm_vars=True)
    np.testing.assert_allclose(ours_TF[-1000:], expected_TF[-1000:], rtol=0, atol=1e-4)
    assert np.abs(ours_TF[:499_000]).max() < 1e-3


def test_global_statistics_out_of_the_config() -> None:
    generator = torch.Generator().manual_seed(3)
    statics = [torch.randn(n, 4, generator=generator) * 5 + 20 + n for n in (30, 50)]
    stats_2G = sum(cmvn_stats(static_TF) for static_TF in statics)
    config = FeatureConfig(cmvn="global", norm_vars=True, global_stats=stats_2G.tolist())
    together = finish_features(statics, FeatureConfig(cmvn="speaker", norm_vars=True))
    for static_TF, expected_TF in zip(statics, together, strict=True):
        torch.testing.assert_close(finish_features([static_TF], config)[0], expected_TF)
    assert finish_features(statics, config.model_copy(update={"norm_means": False, "norm_vars": False}))[0].equal(
        statics[0]
    )
    with pytest.raises(MismatchError, match=r"global_stats: 5 and 5 values .* features of 3 values"):
        finish_features([statics[0][:, :3]], config)
    with pytest.raises(Speech3Error, match="needs global_stats"):
        finish_features(statics, FeatureConfig(cmvn="global"))
    with pytest.raises(Speech3Error, match=r"over 0 frames"):
        finish_features(statics, config.model_copy(update={"global_stats": ((0.0,) * 5,) * 2}))
