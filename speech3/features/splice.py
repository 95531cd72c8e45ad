"""Splicing of neighbouring frames (Kaldi feat/feature-functions.cc, SpliceFrames).

Axes: T frames, F features.
"""

import torch
from torch import Tensor


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
