"""Cepstral mean and variance normalisation (Kaldi transform/cmvn.cc).

Axes: T frames, F features, 2 sums and sums of squares, G features and the count of frames.
"""

import torch
from torch import Tensor

# Kaldi floors at 1e-20, which blows rounding errors of a constant feature (digital silence) up to thousands.
# The standard deviation that this floor allows, 1e-5, is that of the rounding itself.
VARIANCE_FLOOR = 1e-10


def cmvn_stats(feats_TF: Tensor) -> Tensor:
    """Statistics of one utterance; those of several are their sum.

    Returns
    -------
    Tensor
        float64 (2, G): sums and the count of frames; sums of squares and 0. The layout of Kaldi's CMVN archives.
    """
    feats_TF = feats_TF.double()
    stats_2G = feats_TF.new_zeros(2, feats_TF.shape[-1] + 1)
    stats_2G[0, :-1], stats_2G[1, :-1] = feats_TF.sum(0), feats_TF.square().sum(0)
    stats_2G[0, -1] = len(feats_TF)
    return stats_2G


def apply_cmvn(stats_2G: Tensor, feats_TF: Tensor, norm_means: bool = True, norm_vars: bool = False) -> Tensor:
    """Features less the mean, divided by the standard deviation if `norm_vars`, float32 (T, F)."""
    count = stats_2G[0, -1]
    if not norm_means or count == 0:
        return feats_TF
    mean_F = stats_2G[0, :-1] / count
    centred_TF = feats_TF.double() - mean_F
    if norm_vars:
        variance_F = stats_2G[1, :-1] / count - mean_F.square()
        centred_TF *= variance_F.clamp_(min=VARIANCE_FLOOR).rsqrt()
    return centred_TF.to(torch.float32)
