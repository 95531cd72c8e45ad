"""Augmentation of features: other vocal tracts, by warping the frequency axis (Jaitly and Hinton 2013).

Vocal tract length perturbation makes a speaker's voice another's, which speech of few speakers lacks. The warp
f -> a f is applied to the log mel bins by linear interpolation, so it is a product with a small matrix, cheap enough to
draw anew for every few frames of every minibatch. Derivatives are warped as their bins are, means along with them.

Axes: B minibatch, W context window, F feature bins, M mel bins, G groups of frames.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.mel import hertz, mel_scale


@dataclass(frozen=True, eq=False)
class FrequencyWarp:
    """The warp of log mel features by a factor from 1 - `most` to 1 + `most`.

    Attributes
    ----------
    centre_M
        float64, mel: the middle of each bin.
    """

    centre_M: np.ndarray
    most: float

    def matrix(self, factor: float) -> np.ndarray:
        """(M, M) float32: row i makes bin i of the warped frame; beyond the edges the edge bins stand."""
        bins = len(self.centre_M)
        step = (self.centre_M[-1] - self.centre_M[0]) / (bins - 1)
        warped_M = mel_scale(factor * hertz(self.centre_M))
        place_M1 = ((warped_M - self.centre_M[0]) / step).clip(0, bins - 1)[:, None]
        return np.maximum(0, 1 - np.abs(place_M1 - np.arange(bins))).astype(np.float32)

    def __call__(self, feats_BWF: Tensor, factor_G: np.ndarray) -> Tensor:
        """Warp each of G equal parts of a minibatch by a factor of its own."""
        bins, parts = len(self.centre_M), feats_BWF.chunk(len(factor_G))
        matrices = [torch.from_numpy(self.matrix(factor)).to(feats_BWF.device) for factor in factor_G]
        warped = [(p.reshape(-1, bins) @ m.t()).view(p.shape) for p, m in zip(parts, matrices, strict=False)]
        return torch.cat(warped)


def frequency_warp(config: FeatureConfig, dim: int, most: float) -> FrequencyWarp:
    """The warp for features of `config`, as an extraction wrote it (with its rate), of `dim` values a frame.

    Raises
    ------
    Speech3Error
        They are not log mel bins and their derivatives.
    """
    if config.kind != "fbank" or not config.sample_frequency or dim != config.num_mel_bins * (config.deltas + 1):
        raise Speech3Error(
            f"training.frequency_warp={most:g}: only for log mel features without energy (kind: fbank), not for"
            f" {config.kind} of {dim} values a frame; set it to 0"
        )
    high_hz = config.high_freq + (config.sample_frequency / 2 if config.high_freq <= 0 else 0)
    edges = np.linspace(mel_scale(config.low_freq), mel_scale(high_hz), config.num_mel_bins + 2)
    return FrequencyWarp(edges[1:-1], most)
