"""CMVN where Kaldi's vectors do not reach."""

import torch

from speech3.config import FeatureConfig
from speech3.features.cmvn import apply_cmvn, cmvn_stats
from speech3.features.compute import finish


def test_a_speaker_is_normalised_as_one() -> None:
    generator = torch.Generator().manual_seed(3)
    statics = [torch.randn(n, 4, generator=generator) * 5 + 20 + n for n in (3, 50, 9)]
    whole_TF = torch.cat(finish(statics, FeatureConfig(cmvn="speaker", norm_vars=True)))
    torch.testing.assert_close(whole_TF.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(whole_TF.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)


def test_a_constant_becomes_zero_not_noise() -> None:
    silence_TF = torch.full((1000, 3), -15.942385)
    out_TF = apply_cmvn(cmvn_stats(silence_TF), silence_TF, norm_vars=True)
    assert out_TF.abs().max() < 1e-3


def test_no_frames_and_no_normalisation() -> None:
    empty_TF = torch.zeros(0, 3)
    assert finish([empty_TF], FeatureConfig(cmvn="utterance", norm_vars=True, deltas=1))[0].shape == (0, 6)
    feats_TF = torch.randn(5, 3)
    assert apply_cmvn(cmvn_stats(feats_TF), feats_TF, norm_means=False).equal(feats_TF)
