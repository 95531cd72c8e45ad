"""Changes of the frames of a minibatch: SpecAugment's masks, and warps of the frequency axis.

SpecAugment (Park et al. 2019) masks stretches of time and bands of frequency, so that the network learns to do without
them; masked values become the mean of the features. torchaudio's masks draw from the global generator, so a minibatch
would depend on everything drawn before it; these are pure functions of random numbers that are passed to them.

Vocal tract length perturbation (Jaitly and Hinton 2013) simulates other speakers, of whom small corpora have too few.
The warp f -> a f is applied to the log mel bins by linear interpolation, so it is a product with a small matrix, cheap
enough to draw a new factor for every few frames. Derivatives are warped like their bins, and so are subtracted means;
energy and pitch are not changed.

The last values of a frame may be features adapted to speakers, which are neither masked nor warped.

Axes: B windows, chunks or utterances of a minibatch, T their frames, W context window, F feature bins, M mel bins, K
masks of each, P values of a frame before derivatives and splicing, X values at its end that are kept, G groups of
frames.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from speech3.config import FeatureConfig, TrainingConfig
from speech3.errors import SettingError
from speech3.features import mel_edges, mel_scale, mel_to_hertz
from speech3.runtime import to_device


@dataclass(frozen=True)
class MelColumns:
    """Where the mel bins are in a frame: in each of its equal blocks of P values (static, deltas, spliced frames).

    Features adapted to speakers come after all blocks.
    """

    bins: int
    before: int = 0  # values of a block before the bins: energy
    after: int = 0  # values after them: pitch

    @property
    def block(self) -> int:
        return self.before + self.bins + self.after


def mel_columns(config: FeatureConfig, dim: int, key: str) -> MelColumns:
    """Where the mel bins are in features of `dim` values per frame; `config` as an extraction wrote it (with its rate).

    `key`: the setting that needs them, for the error message: ``training.frequency_warp=0.1``.
    """
    columns = MelColumns(config.num_mel_bins, int(config.use_energy), config.pitch.dim if config.pitch else 0)
    blocks = (config.deltas + 1) * (config.left_context + 1 + config.right_context)
    if config.kind != "fbank" or not config.sample_frequency or dim != columns.block * blocks + config.adapted:
        raise SettingError(
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
    kept
        Number of values at the end of a frame that are not warped.
    """

    centre_M: np.ndarray
    most: float
    columns: MelColumns | None = None
    kept: int = 0

    def matrix(self, factor: float) -> np.ndarray:
        """(P, P) float32: row i computes value i of the warped frame; the edge bins are repeated beyond the edges."""
        bins, columns = len(self.centre_M), self.columns or MelColumns(len(self.centre_M))
        step = (self.centre_M[-1] - self.centre_M[0]) / (bins - 1)
        warped_M = mel_scale(factor * mel_to_hertz(self.centre_M))
        place_M1 = ((warped_M - self.centre_M[0]) / step).clip(0, bins - 1)[:, None]
        matrix_PP = np.eye(columns.block, dtype=np.float32)
        mel = slice(columns.before, columns.before + bins)
        matrix_PP[mel, mel] = np.maximum(0, 1 - np.abs(place_M1 - np.arange(bins)))
        return matrix_PP

    def __call__(self, feats_BWF: Tensor, factor_G: np.ndarray) -> Tensor:
        """Warp each of G equal parts of a minibatch by its own factor."""
        blocks_BWF, kept_BWX = feats_BWF.tensor_split([feats_BWF.shape[2] - self.kept], 2)
        parts = blocks_BWF.chunk(len(factor_G))
        matrices = to_device(torch.from_numpy(np.stack([self.matrix(f) for f in factor_G])), feats_BWF.device)
        warped = [(p.reshape(-1, len(m)) @ m.t()).view(p.shape) for p, m in zip(parts, matrices, strict=False)]
        return torch.cat([torch.cat(warped), kept_BWX], 2) if self.kept else torch.cat(warped)


def frequency_warp(config: FeatureConfig, dim: int, most: float, key: str = "") -> FrequencyWarp:
    """The warp for features of `config` by at most `most`; other parameters and errors as `mel_columns`."""
    columns = mel_columns(config, dim, key or f"training.frequency_warp={most:g}")
    return FrequencyWarp(mel_edges(config, config.sample_frequency or 0)[1:-1], most, columns, config.adapted)


@dataclass(frozen=True, eq=False)
class SpecAugment:
    """A fixed number of time and frequency masks, each with a width drawn evenly from 0 to its maximum.

    Attributes
    ----------
    mean_F
        float32: replaces masked values.
    columns
        Where the mel bins are; None: no frequency masks. Derivatives are masked together with their bins.
    kept
        Number of values at the end of a frame that no mask hides.
    """

    mean_F: Tensor
    time_masks: int = 0
    time_mask_frames: int = 0
    frequency_masks: int = 0
    frequency_mask_bins: int = 0
    columns: MelColumns | None = None
    kept: int = 0

    def draw(self, generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Random numbers in [0, 1), (B, K, 2), for the widths and places of time masks and of frequency masks."""
        return generator.random((count, self.time_masks, 2)), generator.random((count, self.frequency_masks, 2))

    def __call__(
        self, feats_BTF: Tensor, time_BK2: np.ndarray, frequency_BK2: np.ndarray, lengths_B: np.ndarray | None = None
    ) -> Tensor:
        """Apply the masks that the numbers of `draw` define.

        Parameters
        ----------
        feats_BTF
            float32, on any device.
        lengths_B
            Frames of each that are not padding; None: all. No time mask is longer than half of them, or windows of few
            frames would be masked completely.
        """
        count, frames, dim = feats_BTF.shape
        lengths_B = np.full(count, frames) if lengths_B is None else lengths_B
        hidden_BT = hidden(time_BK2, np.minimum(self.time_mask_frames, lengths_B // 2), lengths_B, frames)
        hidden_BTF = to_device(torch.from_numpy(hidden_BT), feats_BTF.device)[:, :, None]
        if self.columns and self.frequency_masks:
            bins, before, block = self.columns.bins, self.columns.before, self.columns.block
            bins_B = np.full(count, bins)
            hidden_BM = hidden(frequency_BK2, np.full(count, self.frequency_mask_bins), bins_B, bins)
            hidden_BP = np.zeros((count, block), np.bool_)
            hidden_BP[:, before : before + bins] = hidden_BM
            hidden_BF = np.zeros((count, 1, dim), np.bool_)
            hidden_BF[:, 0, : dim - self.kept] = np.tile(hidden_BP, (dim - self.kept) // block)
            hidden_BTF = hidden_BTF | to_device(torch.from_numpy(hidden_BF), feats_BTF.device)
        if self.kept:
            hidden_BTF = hidden_BTF & (torch.arange(dim, device=feats_BTF.device) < dim - self.kept)
        return torch.where(hidden_BTF, to_device(self.mean_F, feats_BTF.device), feats_BTF)


def hidden(drawn_BK2: np.ndarray, widest_B: np.ndarray, lengths_B: np.ndarray, size: int) -> np.ndarray:
    """Which of `size` frames or bins are masked, bool (B, size).

    `drawn_BK2`: in [0, 1): the first number sets a mask's width, from 0 to `widest_B` inclusive; the second its place,
    from a start at 0 to an end at `lengths_B`.
    """
    width_BK = np.floor(drawn_BK2[:, :, 0] * (widest_B[:, None] + 1))
    start_BK = np.floor(drawn_BK2[:, :, 1] * (lengths_B[:, None] - width_BK + 1))
    place_X = np.arange(size)
    inside_BKX = (place_X >= start_BK[:, :, None]) & (place_X < (start_BK + width_BK)[:, :, None])
    return inside_BKX.any(axis=1)


def spec_augment(training: TrainingConfig, features: FeatureConfig | None, mean_F: Tensor) -> SpecAugment | None:
    """The masks that a training config asks for, or None.

    Parameters
    ----------
    features
        The config of the features; needed for frequency masks, and if some are adapted to speakers: these are kept.
    mean_F
        Mean of the features over all frames.

    Raises
    ------
    Speech3Error
        Frequency masks are asked for, but the features are not log mel bins, or a mask could hide all bins.
    """
    columns = None
    if training.frequency_masks:
        assert features is not None
        columns = mel_columns(features, len(mean_F), f"training.frequency_masks={training.frequency_masks}")
        if training.frequency_mask_bins >= columns.bins:
            raise SettingError(
                f"training.frequency_mask_bins={training.frequency_mask_bins}: there are {columns.bins} bins, and a"
                " mask must leave some; use fewer"
            )
    elif not training.time_masks:
        return None
    time = training.time_masks, training.time_mask_frames
    frequency = training.frequency_masks, training.frequency_mask_bins
    return SpecAugment(mean_F.float(), *time, *frequency, columns, features.adapted if features else 0)
