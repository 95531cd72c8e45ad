"""Features, pitch, normalisation and masks: on a GPU as on the CPU.

It needs nothing that a machine with a GPU may lack (tests/gpu.sh).
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from speech3.config import FeatureConfig, PitchConfig
from speech3.features.compute import finish_features, static_features
from speech3.features.pitch import process, track_pitch
from speech3.frames.masks import FrequencyWarp, MelColumns, SpecAugment


def noise(samples: int, seed: int) -> Tensor:
    """Integers as of 16-bit audio, with an offset; float32 in [-1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(samples, generator=generator) * 2000 + 300).round().clamp(-32768, 32767) / 32768


def voice() -> Tensor:
    """A second of four harmonics of a rising fundamental, and a little noise."""
    phase_S = 2 * math.pi * torch.linspace(90, 180, 16000, dtype=torch.float64).cumsum(0) / 16000
    harmonics = [torch.sin(k * phase_S) / k for k in range(1, 5)]
    return (0.2 * torch.stack(harmonics).sum(0)).float() + 0.03 * noise(16000, 3)


@pytest.mark.parametrize("kind", ["fbank", "mfcc", "plp"])
@pytest.mark.parametrize("snip_edges", [True, False])
def test_static_features(kind: str, snip_edges: bool, gpu: str) -> None:
    config, lengths_N = FeatureConfig(kind=kind, use_energy=True, snip_edges=snip_edges), torch.tensor([16000, 7000])
    waves_NS = torch.stack([noise(16000, 1), noise(16000, 2)])
    here_NTF, _ = static_features(waves_NS, lengths_N, config, 16000)
    there_NTF, _ = static_features(waves_NS.to(gpu), lengths_N, config, 16000)
    assert there_NTF.device == torch.device(gpu)
    torch.testing.assert_close(there_NTF.cpu(), here_NTF, atol=1e-3, rtol=0)


def test_pitch(gpu: str) -> None:
    config, lengths_N = FeatureConfig(pitch=PitchConfig()), torch.tensor([16000, 7000])
    waves_NS = torch.stack([voice(), noise(16000, 2)])
    here_NT2, frames_N = track_pitch(waves_NS, lengths_N, config, 16000)
    there_NT2, _ = track_pitch(waves_NS.to(gpu), lengths_N, config, 16000)
    assert there_NT2.device == torch.device(gpu)
    same_NT = (there_NT2.cpu() - here_NT2).abs().amax(2) < 1e-3  # rounding may choose another path where there is none
    assert same_NT[0].float().mean() > 0.98 and same_NT[1].float().mean() > 0.9
    there_NTP = process(here_NT2.to(gpu), frames_N, PitchConfig())
    torch.testing.assert_close(there_NTP.cpu(), process(here_NT2, frames_N, PitchConfig()), atol=1e-4, rtol=0)
    both = static_features(waves_NS.to(gpu), lengths_N, config.model_copy(update={"snip_edges": False}), 16000)[0]
    assert both.device == torch.device(gpu) and both.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{"cmvn": "sliding", "norm_vars": True}, {"cmvn": "speaker", "left_context": 2}, {"deltas": 2}],
    ids=lambda options: "-".join(options),
)
def test_normalisation_and_derivatives(options: dict[str, object], gpu: str) -> None:
    feats_TF = torch.randn(2000, 40, generator=torch.Generator().manual_seed(5)) + 15
    config = FeatureConfig(**options)
    (here_TF,), (there_TF,) = finish_features([feats_TF], config), finish_features([feats_TF.to(gpu)], config)
    torch.testing.assert_close(there_TF.cpu(), here_TF, atol=1e-5, rtol=0)


def test_masks_and_warps(gpu: str) -> None:
    masks = SpecAugment(torch.randn(120), 1, 5, 2, 8, MelColumns(40))
    feats, drawn = torch.randn(16, 11, 120), masks.draw(np.random.default_rng(1), 16)
    assert torch.equal(masks(feats.to(gpu), *drawn).cpu(), masks(feats, *drawn))
    warp, factors = FrequencyWarp(np.linspace(100.0, 2800.0, 40), 0.1, MelColumns(40)), np.array([0.9, 1.0, 1.07])
    torch.testing.assert_close(warp(feats.to(gpu), factors).cpu(), warp(feats, factors), atol=1e-5, rtol=1e-5)
