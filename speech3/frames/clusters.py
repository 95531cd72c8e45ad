"""Clusters of frames (k-means), which label speech without transcripts.

Axes: N frames, D values of a frame, K clusters.
"""

import numpy as np
import torch
from torch import Tensor

from speech3.errors import DataError
from speech3.runtime import progress

_AT_A_TIME = 1 << 16  # frames: bounds the memory of the distances


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
