"""Cepstral mean and variance normalisation (Kaldi transform/cmvn.cc; feat/feature-functions.cc, SlidingWindowCmn).

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error

# Kaldi's floor of 1e-20 scales the rounding errors of a constant feature (digital silence) up to thousands.
# With this floor the standard deviation is at least 1e-5, the size of the rounding errors themselves.
VARIANCE_FLOOR = 1e-10
_CHUNK = 8192  # frames: running sums over hours would lose the digits that the variance of a window needs


def normalise(statics: list[Tensor], config: FeatureConfig) -> list[Tensor]:
    """Apply the CMVN of `config` to the utterances of one unit: one utterance, or all utterances of one speaker.

    Raises
    ------
    Speech3Error
        Global statistics are missing or do not fit the features.
    """
    variances = config.norm_vars
    if config.cmvn == "none" or not config.norm_means:
        return statics
    if config.cmvn == "sliding":
        options = (config.cmn_window, config.min_cmn_window, config.center, variances)
        return [sliding_cmvn(static_TF, *options) for static_TF in statics]
    if config.cmvn == "global":
        if config.global_stats is None:
            raise Speech3Error("cmvn: global needs global_stats; take them from the features.yaml of the training data")
        return [apply_global_cmvn(config.global_stats, static_TF, variances) for static_TF in statics]
    stats_2G = torch.stack([cmvn_stats(static_TF) for static_TF in statics]).sum(0)
    return [apply_cmvn(stats_2G, static_TF, norm_vars=variances) for static_TF in statics]


def cmvn_stats(feats_TF: Tensor) -> Tensor:
    """Statistics of one utterance; the statistics of several utterances are their sum.

    Returns
    -------
    Tensor
        float64 (2, G): sums and the frame count; sums of squares and 0. The layout of Kaldi's CMVN archives.
    """
    feats_TF = feats_TF.double()
    stats_2G = feats_TF.new_zeros(2, feats_TF.shape[-1] + 1)
    stats_2G[0, :-1], stats_2G[1, :-1] = feats_TF.sum(0), feats_TF.square().sum(0)
    stats_2G[0, -1] = len(feats_TF)
    return stats_2G


def apply_cmvn(stats_2G: Tensor, feats_TF: Tensor, norm_means: bool = True, norm_vars: bool = False) -> Tensor:
    """Subtract the mean and, if `norm_vars`, divide by the standard deviation; float32 (T, F).

    Without `norm_means`, or with statistics of no frame, the features are returned unchanged.
    """
    count = stats_2G[0, -1]
    if not norm_means or count == 0:
        return feats_TF
    mean_F = stats_2G[0, :-1] / count
    centred_TF = feats_TF.double() - mean_F
    if norm_vars:
        variance_F = stats_2G[1, :-1] / count - mean_F.square()
        centred_TF *= variance_F.clamp_(min=VARIANCE_FLOOR).rsqrt()
    return centred_TF.to(torch.float32)


def apply_global_cmvn(stats: Sequence[Sequence[float]], feats_TF: Tensor, norm_vars: bool = False) -> Tensor:
    """`apply_cmvn` with the statistics of a config (its ``global_stats``).

    Raises
    ------
    Speech3Error
        The statistics do not fit the features.
    """
    width = feats_TF.shape[1] + 1
    if [len(row) for row in stats] != [width, width] or stats[0][-1] < 1:
        found, count = " and ".join(str(len(row)) for row in stats), stats[0][-1] if stats[0] else 0
        raise Speech3Error(
            f"global_stats: {found} values over {count:g} frames do not fit features of {width - 1} values, which need"
            f" {width} and {width}; leave the key out to have the statistics computed"
        )
    stats_2G = torch.tensor(stats, dtype=torch.float64, device=feats_TF.device)
    return apply_cmvn(stats_2G, feats_TF, norm_vars=norm_vars)


def sliding_cmvn(
    feats_TF: Tensor, cmn_window: int = 600, min_cmn_window: int = 100, center: bool = False, norm_vars: bool = False
) -> Tensor:
    """Subtract the mean over a sliding window from each frame (Kaldi's apply-cmvn-sliding); float32 (T, F).

    Parameters
    ----------
    cmn_window
        Frames in the window: around the frame if `center`, else before it (and, as in Kaldi, the frame itself as one
        more).
    min_cmn_window
        If not `center`: minimum number of frames in the window; for the first frames, some of them are later ones.
    norm_vars
        Divide by the standard deviation, too.
    """
    frames = len(feats_TF)
    out_TF = torch.empty_like(feats_TF, dtype=torch.float32)
    for at in range(0, frames, _CHUNK):
        t_T = torch.arange(at, min(at + _CHUNK, frames), device=feats_TF.device)
        starts_T, ends_T = sliding_windows(t_T, frames, cmn_window, min_cmn_window, center)
        first, end = int(starts_T[0]), int(ends_T[-1])
        near_TF = feats_TF[first:end].double()
        shift_F = near_TF.mean(0)  # sums of values around zero keep more digits
        near_TF -= shift_F
        counts_T1 = (ends_T - starts_T)[:, None]
        starts_T, ends_T = starts_T - first, ends_T - first
        mean_TF = _window_sums(near_TF, starts_T, ends_T) / counts_T1
        centred_TF = near_TF[t_T - first] - mean_TF
        if norm_vars:
            variance_TF = _window_sums(near_TF.square_(), starts_T, ends_T) / counts_T1 - mean_TF.square_()
            centred_TF *= variance_TF.clamp_(min=VARIANCE_FLOOR).rsqrt_()
        out_TF[at : at + len(t_T)] = centred_TF
    return out_TF


def sliding_windows(
    t_T: Tensor, frames: int, cmn_window: int, min_cmn_window: int, center: bool
) -> tuple[Tensor, Tensor]:
    """The first frame of the window of each frame in `t_T`, and the frame after the window's last."""
    if center:
        starts_T = (t_T - cmn_window // 2).clamp_(min=0)
        ends_T = starts_T + cmn_window
    else:
        starts_T = (t_T - cmn_window).clamp_(min=0)
        ends_T = (t_T + 1).clamp_(min=min_cmn_window)
    beyond_T = (ends_T - frames).clamp_(min=0)
    return (starts_T - beyond_T).clamp_(min=0), ends_T - beyond_T


def _window_sums(values_TF: Tensor, starts_T: Tensor, ends_T: Tensor) -> Tensor:
    sums_TF = torch.cat([values_TF.new_zeros(1, values_TF.shape[1]), values_TF.cumsum(0)])
    return sums_TF[ends_T] - sums_TF[starts_T]
