"""Minibatches of tasks that need no transcripts: predict the clusters of hidden frames, or reconstruct whole windows.

Masked prediction is the first stage of HuBERT (Hsu et al. 2021): frames are labelled with their clusters (k-means),
stretches of them are replaced by the mean of the features, and the loss counts those only. A window has one label, that
of its middle, so the middle of a share of the windows is hidden, together with its neighbours. The other windows count,
too: a layer that reads windows has weights of its own for the middle, which would never learn otherwise.

The denoising autoencoder (Vincent et al. 2008) gets windows of which some values are replaced by their means, and has
to reconstruct the whole window.

Axes: B windows or chunks of a minibatch, T frames of each, F feature bins, D values of a window or frame, N (hidden)
frames, K clusters.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from speech3.config import PretrainingConfig
from speech3.errors import DataError
from speech3.frames.chunks import Chunks
from speech3.frames.masks import hidden
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import PackedFrames
from speech3.runtime import progress, to_device

_AT_A_TIME = 1 << 16  # frames: bounds the memory of the distances
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


def cluster_frames(frames_ND: np.ndarray, clusters: int, seed: int, iterations: int = 25) -> np.ndarray:
    """Centres (K, D) float32 of Lloyd's k-means, which begins as k-means++ (Arthur and Vassilvitskii 2007).

    A centre that loses all frames stays where it is. It is an error if there are fewer different frames than clusters.
    """
    x_ND = torch.from_numpy(np.ascontiguousarray(frames_ND, np.float32))
    generator = np.random.default_rng(seed)
    first = int(generator.integers(len(x_ND)))
    centres, distance_N = [x_ND[first]], torch.full((len(x_ND),), torch.inf)
    for number in progress(range(1, clusters), clusters - 1, "first centres"):
        distance_N = torch.minimum(distance_N, (x_ND - centres[-1]).square().sum(1))
        if not (total := float(distance_N.sum(dtype=torch.float64))) > 0:
            raise DataError(
                f"pretraining.clusters={clusters}: there are only {number} different frames; use fewer clusters, or"
                " more speech"
            )
        summed_N = distance_N.double().cumsum(0)
        chosen = int(torch.searchsorted(summed_N, total * generator.random()))
        centres.append(x_ND[min(chosen, len(x_ND) - 1)])
    centre_KD = torch.stack(centres)
    for _ in progress(range(iterations), iterations, "k-means"):
        nearest_N = _nearest(x_ND, centre_KD)
        count_K = torch.bincount(nearest_N, minlength=clusters)
        sum_KD = torch.zeros_like(centre_KD).index_add_(0, nearest_N, x_ND)
        centre_KD = torch.where(count_K[:, None] > 0, sum_KD / count_K.clamp(min=1)[:, None], centre_KD)
    return centre_KD.numpy()


def nearest_cluster(frames_ND: np.ndarray, centre_KD: np.ndarray) -> np.ndarray:
    """Number (N,) int32 of the centre nearest to each frame."""
    frames = torch.from_numpy(np.ascontiguousarray(frames_ND, np.float32))
    nearest_N: np.ndarray = _nearest(frames, torch.from_numpy(centre_KD)).numpy().astype(np.int32)
    return nearest_N


def _nearest(x_ND: Tensor, centre_KD: Tensor) -> Tensor:
    half_K = 0.5 * centre_KD.square().sum(1)  # of |x - c|^2 the square of x is the same for all centres
    return torch.cat([(part @ centre_KD.t() - half_K).argmax(1) for part in x_ND.split(_AT_A_TIME)])
