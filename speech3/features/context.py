"""Deltas and splicing: a frame's derivatives over time, and its neighbours (Kaldi feat/feature-functions.cc).

Axes: T frames, F features, W frames of a window.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache(maxsize=16)
def delta_filters(order: int, window: int) -> tuple[np.ndarray, ...]:
    """Filters of the derivatives of order 0 to `order`; that of order k has 2 k `window` + 1 taps.

    It is the k-fold convolution of the regression filter, j / (sum of j^2) for j from -`window` to `window`.
    """
    ramp = np.arange(-window, window + 1, dtype=np.float64)
    filters = [np.ones(1)]
    for _ in range(order):
        filters.append(np.convolve(filters[-1], ramp / np.square(ramp).sum()))
    return tuple(filters)


def add_deltas(feats_TF: Tensor, order: int = 2, window: int = 2) -> Tensor:
    """Append deltas: (T, F) to (T, F * (order + 1)), Kaldi's add-deltas.

    The first and the last static frame are repeated beyond the edges; a derivative of order 2 is one filter on the
    static features, not the derivative of the derivative (which differs at the edges).
    """
    if order == 0 or len(feats_TF) == 0:
        return feats_TF.repeat(1, order + 1)
    reach = order * window
    edges = (feats_TF[:1].expand(reach, -1), feats_TF, feats_TF[-1:].expand(reach, -1))
    padded_TF = torch.cat(edges)
    frames, bins = feats_TF.shape
    out_TF = feats_TF.new_zeros(frames, bins * (order + 1))
    for k, taps in enumerate(delta_filters(order, window)):
        place_TF = out_TF[:, k * bins : (k + 1) * bins]
        for j, tap in enumerate(taps.tolist(), reach - k * window):
            place_TF.add_(padded_TF[j : j + frames], alpha=tap)
    return out_TF


def splice(feats_TF: Tensor, left_context: int, right_context: int) -> Tensor:
    """Concatenate each frame with its neighbours: (T, F) to (T, F * (left + 1 + right)), Kaldi's splice-feats.

    The earliest frame comes first; the first and the last frame are repeated beyond the edges.
    """
    if not left_context and not right_context:
        return feats_TF
    frames, width = len(feats_TF), left_context + 1 + right_context
    if not frames:
        return feats_TF.repeat(1, width)
    around_W = torch.arange(-left_context, right_context + 1, device=feats_TF.device)
    rows_TW = torch.arange(frames, device=feats_TF.device)[:, None] + around_W
    return feats_TF[rows_TW.clamp_(0, frames - 1)].flatten(1)
