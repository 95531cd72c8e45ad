"""Minibatches of tasks that need no transcripts: predict the clusters of hidden frames, or reconstruct whole windows.

Masked prediction is the first stage of HuBERT (Hsu et al. 2021): frames are labelled with their clusters, stretches of
them are hidden (replaced by the mean of the features), and the loss counts hidden frames only. A window has one label,
that of its middle, so the middle of a share of the windows is hidden, together with its neighbours. The other windows
count as well: a layer that reads windows has weights of its own for the middle, which would never learn otherwise.

The denoising autoencoder (Vincent et al. 2008) gets windows of which some values are replaced by their means, and has
to reconstruct the whole window.

Axes: B windows or chunks of a minibatch, T frames of each, F feature bins, D values of a window, N hidden frames.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from speech3.config import PretrainingConfig
from speech3.frames.chunks import Chunks
from speech3.frames.masks import hidden
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames
from speech3.runtime import to_device

_SEED = 3  # of the random numbers here, apart from those of augmentation


@dataclass(frozen=True, eq=False)
class HiddenLabels:
    """The targets of a minibatch of chunks: the clusters of its hidden frames, at b * T + t among the outputs."""

    place_N: Tensor
    labels_N: Tensor

    def __len__(self) -> int:
        return len(self.labels_N)


class Pretraining:
    """The minibatches of `source`, changed for a task. A minibatch depends only on (epoch, number), as there.

    Held-out minibatches are changed, too, always in the same way. The statistics of `frames` replace what is hidden,
    and normalise what is to be reconstructed.
    """

    def __init__(
        self, source: Minibatches | Chunks, frames: PackedFrames, config: PretrainingConfig, seed: int
    ) -> None:
        self.source, self.config, self.seed = source, config, seed
        self.rows, self.num_frames = source.rows, source.num_frames
        mean_F, variance_F = torch.from_numpy(frames.mean_F.copy()), torch.from_numpy(frames.variance_F.copy())
        self.mean_F = mean_F.float().to(source.device)
        self.scale_F = torch.where(variance_F > 1e-10, variance_F, 1.0).rsqrt().float().to(source.device)

    def __len__(self) -> int:
        return len(self.source)

    def draw(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Minibatch `number` (from 0) of `epoch`: inputs and targets.

        Masked: windows with labels (B,), or chunks with `HiddenLabels`. Autoencoder: damaged windows, and windows
        (B, D) of zero mean and unit variance.
        """
        inputs, targets = self.source.draw(epoch, number)
        return self._changed(inputs, targets, np.random.default_rng((self.seed, epoch, number, _SEED)))

    def sequential(self, size: int) -> Iterator[tuple[Any, Any]]:
        """All frames once, about `size` at a time."""
        for number, (inputs, targets) in enumerate(self.source.sequential(size)):
            yield self._changed(inputs, targets, np.random.default_rng((self.seed, number, _SEED)))

    def _changed(self, inputs: Any, targets: Tensor, generator: np.random.Generator) -> tuple[Any, Any]:
        if isinstance(inputs, Tensor) and self.config.task == "autoencoder":
            kept_BTF = generator.random(tuple(inputs.shape), np.float32) >= self.config.noise
            clean_BD = ((inputs - self.mean_F) * self.scale_F).flatten(1)
            return self._hide(inputs, ~kept_BTF), clean_BD
        if isinstance(inputs, Tensor):
            hidden_BT = self._middles(inputs.shape[0], inputs.shape[1], generator)
            return self._hide(inputs, hidden_BT[:, :, None]), targets
        chunks = cast(Chunks, self.source)
        count, frames = inputs.feats_BTF.shape[:2]
        hidden_BT = self._stretches(count, frames, generator)
        place_T = chunks.left + np.arange(0, chunks.chunk, chunks.subsampling) + chunks.subsampling // 2
        if not hidden_BT[:, place_T].any():  # only context is hidden, but a loss needs a frame
            hidden_BT[0, place_T[0]] = True
        place_N = to_device(torch.from_numpy(np.flatnonzero(hidden_BT[:, place_T])), targets.device)
        feats_BTF = self._hide(inputs.feats_BTF, hidden_BT[:, :, None])
        return inputs._replace(feats_BTF=feats_BTF), HiddenLabels(place_N, targets.index_select(0, place_N))

    def _hide(self, feats_BTF: Tensor, hidden_BTF: np.ndarray) -> Tensor:
        return torch.where(to_device(torch.from_numpy(hidden_BTF), feats_BTF.device), self.mean_F, feats_BTF)

    def _middles(self, count: int, window: int, generator: np.random.Generator) -> np.ndarray:
        """bool (B, W): a stretch around the middle of a share of the windows, which begins anywhere before it."""
        width, middle = max(1, min(self.config.mask_frames, window // 2)), cast(Minibatches, self.source).left
        start_B1 = middle - generator.integers(0, width, (count, 1))
        place_W = np.arange(window)
        inside_BW: np.ndarray = (place_W >= start_B1) & (place_W < start_B1 + width)
        return inside_BW & (generator.random((count, 1)) < self.config.mask_share)

    def _stretches(self, count: int, frames: int, generator: np.random.Generator) -> np.ndarray:
        """bool (B, T): stretches of equal width, which may overlap, in each chunk."""
        width = min(self.config.mask_frames, frames // 2)
        drawn_BK2 = generator.random((count, max(1, round(self.config.mask_share * frames / width)), 2))
        drawn_BK2[:, :, 0] = np.nextafter(1, 0)  # of the widths up to `width`, the widest
        return hidden(drawn_BK2, np.full(count, width), np.full(count, frames), frames)
