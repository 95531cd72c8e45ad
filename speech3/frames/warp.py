"""Vocal tract length perturbation: warps the frequency axis of log mel features (Jaitly and Hinton 2013).

It simulates other speakers, of whom small corpora have too few. The warp f -> a f is applied to the log mel bins by
linear interpolation, so it is a product with a small matrix, cheap enough to draw a new factor for every few frames of
every minibatch. Derivatives are warped like their bins, and so are subtracted means; energy and pitch are not changed.

Axes: B minibatch, W context window, F feature bins, M mel bins, P values of a frame before derivatives and splicing,
G groups of frames.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error
from speech3.features.mel import hertz, mel_edges, mel_scale
from speech3.io.device import to_device


@dataclass(frozen=True)
class MelColumns:
    """Where the mel bins are in a frame, which consists of equal blocks of P values (static, deltas, spliced frames).

    Attributes
    ----------
    before, bins, after
        Number of values of a block before the mel bins (energy), of mel bins, and of values after them (pitch).
    """

    bins: int
    before: int = 0
    after: int = 0

    @property
    def block(self) -> int:
        """P."""
        return self.before + self.bins + self.after


def mel_columns(config: FeatureConfig, dim: int, key: str) -> MelColumns:
    """Where the mel bins are in features of `dim` values per frame; `config` as an extraction wrote it (with its rate).

    Parameters
    ----------
    key
        The setting that needs them, for the error message: ``training.frequency_warp=0.1``.

    Raises
    ------
    Speech3Error
        The features are not log mel bins, or not those of this config.
    """
    columns = MelColumns(config.num_mel_bins, int(config.use_energy), config.pitch.dim if config.pitch else 0)
    blocks = (config.deltas + 1) * (config.left_context + 1 + config.right_context)
    if config.kind != "fbank" or not config.sample_frequency or dim != columns.block * blocks:
        raise Speech3Error(
            f"{key}: only for log mel features (kind: fbank), not for {config.kind} of {dim} values per frame;"
            " switch it off (0, or [] for speeds)"
        )
    return columns


@dataclass(frozen=True, eq=False)
class FrequencyWarp:
    """The warp of log mel features by a factor from 1 - `most` to 1 + `most`.

    Attributes
    ----------
    centre_M
        float64, mel: the centre of each bin.
    columns
        Where the bins are; None: a frame consists of the bins alone.
    """

    centre_M: np.ndarray
    most: float
    columns: MelColumns | None = None

    def matrix(self, factor: float) -> np.ndarray:
        """(P, P) float32: row i computes value i of the warped frame; the edge bins are repeated beyond the edges."""
        bins, columns = len(self.centre_M), self.columns or MelColumns(len(self.centre_M))
        step = (self.centre_M[-1] - self.centre_M[0]) / (bins - 1)
        warped_M = mel_scale(factor * hertz(self.centre_M))
        place_M1 = ((warped_M - self.centre_M[0]) / step).clip(0, bins - 1)[:, None]
        matrix_PP = np.eye(columns.block, dtype=np.float32)
        mel = slice(columns.before, columns.before + bins)
        matrix_PP[mel, mel] = np.maximum(0, 1 - np.abs(place_M1 - np.arange(bins)))
        return matrix_PP

    def __call__(self, feats_BWF: Tensor, factor_G: np.ndarray) -> Tensor:
        """Warp each of G equal parts of a minibatch by its own factor."""
        parts = feats_BWF.chunk(len(factor_G))
        matrices = to_device(torch.from_numpy(np.stack([self.matrix(f) for f in factor_G])), feats_BWF.device)
        warped = [(p.reshape(-1, len(m)) @ m.t()).view(p.shape) for p, m in zip(parts, matrices, strict=False)]
        return torch.cat(warped)


def frequency_warp(config: FeatureConfig, dim: int, most: float, key: str = "") -> FrequencyWarp:
    """The warp for features of `config` by at most `most`; other parameters and errors as `mel_columns`."""
    columns = mel_columns(config, dim, key or f"training.frequency_warp={most:g}")
    return FrequencyWarp(mel_edges(config, config.sample_frequency or 0)[1:-1], most, columns)
