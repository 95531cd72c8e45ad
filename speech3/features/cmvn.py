"""Cepstral mean and variance normalisation (Kaldi transform/cmvn.cc; feat/feature-functions.cc, SlidingWindowCmn).

Frames of digital silence (`speech3.features.silence`) do not count, which is not so in Kaldi, and their normalised
features are within `SILENCE_DEVIATIONS` standard deviations of the mean, as those of a quiet background are.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count, C frames that count.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import Speech3Error

# Kaldi's floor of 1e-20 scales the rounding errors of a constant feature (digital silence) up to thousands.
# With this floor the standard deviation is at least 1e-5, the size of the rounding errors themselves.
VARIANCE_FLOOR = 1e-10
# About where the background of a recording is: over its mel bins, the quietest tenth of the frames is 1.3 below the
# mean in minilibri, 0.8 in digits. With 200 ms of zeros in front of each, a DNN of digits had 5.3 % errors with 0.75 to
# 1.25 (as without zeros), 7.9 with 1.5 and 16.8 with 2.5: it took what is quieter than any background for words.
SILENCE_DEVIATIONS = 1.25
_CHUNK = 8192  # frames: running sums over hours would lose the digits that the variance of a window needs


def normalise(statics: list[Tensor], config: FeatureConfig, silent: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Apply the CMVN of `config` to the utterances of one unit: one utterance, or all utterances of one speaker.

    Parameters
    ----------
    silent
        For each utterance, which frames are digital silence, bool (T,); None: none. Where all are, all count.

    Raises
    ------
    Speech3Error
        Global statistics are missing or do not fit the features.
    """
    variances = config.norm_vars
    if config.cmvn == "none" or not config.norm_means:
        return statics
    if silent is None:
        silent = [static_TF.new_zeros(len(static_TF), dtype=torch.bool) for static_TF in statics]
    pairs = list(zip(statics, silent, strict=True))
    if config.cmvn == "sliding":
        options = (config.cmn_window, config.min_cmn_window, config.center, variances)
        return [sliding_cmvn(static_TF, *options, silent_T=silent_T) for static_TF, silent_T in pairs]
    if config.cmvn == "global":
        if config.global_stats is None:
            raise Speech3Error("cmvn: global needs global_stats; take them from the features.yaml of the training data")
        stats = config.global_stats
        return [apply_global_cmvn(stats, static_TF, variances, silent_T) for static_TF, silent_T in pairs]
    stats_2G = torch.stack([cmvn_stats(static_TF, silent_T) for static_TF, silent_T in pairs]).sum(0)
    if stats_2G[0, -1] == 0:
        stats_2G = torch.stack([cmvn_stats(static_TF) for static_TF in statics]).sum(0)
    return [apply_cmvn(stats_2G, static_TF, norm_vars=variances, silent_T=silent_T) for static_TF, silent_T in pairs]


def cmvn_stats(feats_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
    """Statistics of one utterance without its frames `silent_T`; those of several utterances are their sum.

    Returns
    -------
    Tensor
        float64 (2, G): sums and the frame count; sums of squares and 0. The layout of Kaldi's CMVN archives.
    """
    feats_TF = (feats_TF if silent_T is None else _counted(feats_TF, silent_T)).double()
    stats_2G = feats_TF.new_zeros(2, feats_TF.shape[-1] + 1)
    stats_2G[0, :-1], stats_2G[1, :-1] = feats_TF.sum(0), feats_TF.square().sum(0)
    stats_2G[0, -1] = len(feats_TF)
    return stats_2G


def _counted(feats_TF: Tensor, silent_T: Tensor) -> Tensor:
    return feats_TF[~silent_T] if silent_T.any() else feats_TF


def apply_cmvn(
    stats_2G: Tensor,
    feats_TF: Tensor,
    norm_means: bool = True,
    norm_vars: bool = False,
    silent_T: Tensor | None = None,
) -> Tensor:
    """Subtract the mean and, if `norm_vars`, divide by the standard deviation; float32 (T, F).

    Without `norm_means`, or with statistics of no frame, the features are returned unchanged. Those of the frames
    `silent_T` are limited, unless the statistics have no sums of squares.
    """
    count = stats_2G[0, -1]
    if not norm_means or count == 0:
        return feats_TF
    mean_F = stats_2G[0, :-1] / count
    centred_TF = feats_TF.double() - mean_F
    if len(stats_2G) > 1:
        variance_F = (stats_2G[1, :-1] / count - mean_F.square()).clamp_(min=VARIANCE_FLOOR)
        if silent_T is not None:
            limit_silence(centred_TF, variance_F.expand_as(centred_TF), silent_T)
        if norm_vars:
            centred_TF *= variance_F.rsqrt()
    return centred_TF.to(torch.float32)


def limit_silence(centred_TF: Tensor, variance_TF: Tensor, silent_T: Tensor) -> None:
    """Limit features of the frames `silent_T`, less their mean, to `SILENCE_DEVIATIONS` standard deviations, in place.

    They would be far beyond what a network has been trained on, and so would derivatives at their edges.
    """
    if silent_T.any():
        limit_CF = variance_TF[silent_T].sqrt() * SILENCE_DEVIATIONS
        centred_TF[silent_T] = torch.maximum(torch.minimum(centred_TF[silent_T], limit_CF), -limit_CF)


def apply_global_cmvn(
    stats: Sequence[Sequence[float]], feats_TF: Tensor, norm_vars: bool = False, silent_T: Tensor | None = None
) -> Tensor:
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
    return apply_cmvn(stats_2G, feats_TF, norm_vars=norm_vars, silent_T=silent_T)


def sliding_cmvn(
    feats_TF: Tensor,
    cmn_window: int = 600,
    min_cmn_window: int = 100,
    center: bool = False,
    norm_vars: bool = False,
    silent_T: Tensor | None = None,
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
    silent_T
        Frames to leave out: windows consist of the others. Each of these frames is normalised by the window of the
        other frame before it; at the beginning, by the first window, or, where that is more than `cmn_window` frames
        away, it becomes zero (a stream cannot wait for ever).
    """
    if silent_T is None or not silent_T.any():
        return windows_cmvn(
            feats_TF, feats_TF, torch.arange(len(feats_TF), device=feats_TF.device),
            cmn_window, min_cmn_window, center, norm_vars,
        )  # fmt: skip
    if silent_T.all():
        return torch.zeros_like(feats_TF, dtype=torch.float32)
    owner_T = (~silent_T).cumsum(0) - 1
    out_TF = windows_cmvn(
        feats_TF[~silent_T], feats_TF, owner_T.clamp(min=0), cmn_window, min_cmn_window, center, norm_vars, silent_T
    )
    out_TF[: max(int((owner_T < 0).sum()) - cmn_window, 0)] = 0.0
    return out_TF


def windows_cmvn(
    counted_CF: Tensor,
    feats_TF: Tensor,
    owner_T: Tensor,
    cmn_window: int,
    min_cmn_window: int,
    center: bool,
    norm_vars: bool,
    silent_T: Tensor | None = None,
) -> Tensor:
    """Normalise frame t by the window of frame ``owner_T[t]`` (never falling) of those that count; float32 (T, F)."""
    out_TF = torch.empty_like(feats_TF, dtype=torch.float32)
    for at in range(0, len(feats_TF), _CHUNK):
        chunk = slice(at, at + _CHUNK)
        starts_T, ends_T = sliding_windows(owner_T[chunk], len(counted_CF), cmn_window, min_cmn_window, center)
        first, end = int(starts_T[0]), int(ends_T[-1])
        near_CF = counted_CF[first:end].double()
        shift_F = near_CF.mean(0)  # sums of values around zero keep more digits
        near_CF -= shift_F
        counts_T1 = (ends_T - starts_T)[:, None]
        starts_T, ends_T = starts_T - first, ends_T - first
        mean_TF = _window_sums(near_CF, starts_T, ends_T) / counts_T1
        centred_TF = feats_TF[chunk].double() - shift_F - mean_TF
        if norm_vars or silent_T is not None:
            variance_TF = _window_sums(near_CF.square_(), starts_T, ends_T) / counts_T1 - mean_TF.square_()
            variance_TF.clamp_(min=VARIANCE_FLOOR)
            if silent_T is not None:
                limit_silence(centred_TF, variance_TF, silent_T[chunk])
            if norm_vars:
                centred_TF *= variance_TF.rsqrt_()
        out_TF[chunk] = centred_TF
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
