"""Statistics of features and normalisation by them, and by a sliding window (Kaldi transform/cmvn.cc, and
feat/feature-functions.cc and online-feature.cc).

Unlike in Kaldi, features of digital silence (muted, edited or padded stretches) are limited to `SILENCE_DEVIATIONS`
standard deviations from the mean, where the background of a recording is: log energies of zeros are at -15.9, ten
standard deviations below speech.

`speech3.features.normalisation` chooses the frames that count.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count, C frames that count.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import MismatchError

# Kaldi's floor of 1e-20 scales the rounding errors of a constant feature (digital silence) up to thousands.
# With this floor the standard deviation is at least 1e-5, the size of the rounding errors themselves.
VARIANCE_FLOOR = 1e-10
# About where the background of a recording is: over its mel bins, the quietest tenth of the frames is 1.3 below the
# mean in minilibri, 0.8 in digits. With 200 ms of zeros in front of each, a DNN of digits had 5.3 % errors with 0.75 to
# 1.25 (as without zeros), 7.9 with 1.5 and 16.8 with 2.5: it took what is quieter than any background for words.
SILENCE_DEVIATIONS = 1.25
_CHUNK = 8192  # frames: running sums over hours would lose the digits that the variance of a window needs
_MAX_SILENT_FRAMES = 1000  # that wait for a window to be complete
Window = tuple[int, int, bool]  # `cmn_window`, `min_cmn_window` and `center` of a config


def cmvn_stats(feats_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
    """Statistics of one utterance without its frames `silent_T`; those of several utterances are their sum.

    Returns float64 (2, G): sums and the frame count; sums of squares and 0. The layout of Kaldi's CMVN archives.
    """
    if silent_T is not None and silent_T.any():
        feats_TF = feats_TF[~silent_T]
    feats_TF = feats_TF.double()
    stats_2G = feats_TF.new_zeros(2, feats_TF.shape[-1] + 1)
    stats_2G[0, :-1], stats_2G[1, :-1] = feats_TF.sum(0), feats_TF.square().sum(0)
    stats_2G[0, -1] = len(feats_TF)
    return stats_2G


def apply_cmvn(stats_2G: Tensor, feats_TF: Tensor, norm_vars: bool = False, silent_T: Tensor | None = None) -> Tensor:
    """Subtract the mean and, if `norm_vars`, divide by the standard deviation; float32 (T, F).

    With statistics of no frame the features are returned unchanged. Those of the frames `silent_T` are limited, unless
    the statistics have no sums of squares.
    """
    count = stats_2G[0, -1]
    if count == 0:
        return feats_TF
    mean_F, with_squares = stats_2G[0, :-1] / count, len(stats_2G) > 1
    square_F = stats_2G[1, :-1] / count if with_squares else mean_F
    return apply_moments(feats_TF, mean_F, square_F, norm_vars and with_squares, silent_T if with_squares else None)


def apply_moments(
    feats_TF: Tensor, mean_TF: Tensor, square_TF: Tensor, norm_vars: bool, silent_T: Tensor | None
) -> Tensor:
    """Features normalised by the mean, and the mean square, for each frame or (F,) for all; float32 (T, F)."""
    centred_TF = feats_TF.double() - mean_TF
    silent_T = silent_T if silent_T is not None and silent_T.any() else None
    if norm_vars or silent_T is not None:
        variance_TF = (square_TF - mean_TF.square()).clamp_(min=VARIANCE_FLOOR)
        if silent_T is not None:
            limit_silence(centred_TF, variance_TF.expand_as(centred_TF), silent_T)
        if norm_vars:
            centred_TF *= variance_TF.rsqrt_()
    return centred_TF.float()


def limit_silence(centred_TF: Tensor, variance_TF: Tensor, silent_T: Tensor) -> None:
    """Limit features of the frames `silent_T`, less their mean, to `SILENCE_DEVIATIONS` standard deviations, in place.

    They would be far beyond what a network has been trained on, and so would derivatives at their edges.
    """
    limit_CF = variance_TF[silent_T].sqrt() * SILENCE_DEVIATIONS
    centred_TF[silent_T] = torch.maximum(torch.minimum(centred_TF[silent_T], limit_CF), -limit_CF)


def training_stats(stats: Sequence[Sequence[float]], features: int) -> Tensor:
    """The ``global_stats`` of a config, float64 (2, G), refused if they are not of so many features."""
    width = features + 1
    if [len(row) for row in stats] != [width, width] or stats[0][-1] < 1:
        found, count = " and ".join(str(len(row)) for row in stats), stats[0][-1] if stats and stats[0] else 0
        raise MismatchError(
            f"global_stats: {found} values over {count:g} frames do not fit features of {features} values, which need"
            f" {width} and {width}; leave the key out to have the statistics computed"
        )
    return torch.tensor(stats, dtype=torch.float64)


def moments(stats_2G: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the variance (F,) of statistics."""
    mean_F, square_F = stats_2G[:, :-1] / stats_2G[0, -1]
    return mean_F, (square_F - mean_F.square()).clamp(min=0.0)


def sliding_cmvn(
    feats_TF: Tensor,
    cmn_window: int = 600,
    min_cmn_window: int = 100,
    center: bool = False,
    norm_vars: bool = False,
    silent_T: Tensor | None = None,
) -> Tensor:
    """Subtract the mean over a sliding window from each frame (Kaldi's apply-cmvn-sliding); float32 (T, F).

    `cmn_window`: frames in the window: around the frame if `center`, else before it (and, as in Kaldi, the frame itself
    as one more).
    `min_cmn_window`: if not `center`: minimum number of frames in the window; for the first frames, some of them are
    later ones.
    `norm_vars`: divide by the standard deviation, too.
    `silent_T`: frames to leave out: windows consist of the others. Each of these frames is normalised by the window of
    the other frame before it; at the beginning, by the first window, or, where that is more than `cmn_window` frames
    away, it becomes zero (a stream cannot wait forever).
    """
    window = cmn_window, min_cmn_window, center
    if silent_T is None or not silent_T.any():
        return windows_cmvn(feats_TF, feats_TF, torch.arange(len(feats_TF), device=feats_TF.device), window, norm_vars)
    if silent_T.all():
        return torch.zeros_like(feats_TF, dtype=torch.float32)
    owner_T = (~silent_T).cumsum(0) - 1
    out_TF = windows_cmvn(feats_TF[~silent_T], feats_TF, owner_T.clamp(min=0), window, norm_vars, silent_T)
    out_TF[: max(int((owner_T < 0).sum()) - cmn_window, 0)] = 0.0
    return out_TF


def windows_cmvn(
    counted_CF: Tensor,
    feats_TF: Tensor,
    owner_T: Tensor,
    window: Window,
    norm_vars: bool,
    silent_T: Tensor | None = None,
) -> Tensor:
    """Normalise frame t by the window of frame ``owner_T[t]`` (never falling) of those that count; float32 (T, F)."""
    out_TF = torch.empty_like(feats_TF, dtype=torch.float32)
    for at in range(0, len(feats_TF), _CHUNK):
        chunk = slice(at, at + _CHUNK)
        starts_T, ends_T = sliding_windows(owner_T[chunk], len(counted_CF), window)
        first, end = int(starts_T[0]), int(ends_T[-1])
        near_CF = counted_CF[first:end].double()
        shift_F = near_CF.mean(0)  # sums of values around zero keep more digits
        near_CF -= shift_F
        counts_T1 = (ends_T - starts_T)[:, None]
        starts_T, ends_T = starts_T - first, ends_T - first
        mean_TF = square_TF = _window_sums(near_CF, starts_T, ends_T) / counts_T1
        if norm_vars or silent_T is not None:
            square_TF = _window_sums(near_CF.square_(), starts_T, ends_T) / counts_T1
        silent = None if silent_T is None else silent_T[chunk]
        out_TF[chunk] = apply_moments(feats_TF[chunk].double() - shift_F, mean_TF, square_TF, norm_vars, silent)
    return out_TF


def window_of(config: FeatureConfig) -> Window:
    return config.cmn_window, config.min_cmn_window, config.center


def sliding_windows(t_T: Tensor, frames: int, window: Window) -> tuple[Tensor, Tensor]:
    """The first frame of the window of each frame in `t_T`, and the frame after the window's last."""
    cmn_window, min_cmn_window, center = window
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


class OnlineSlidingCmvn:
    """`sliding_cmvn` of a recording in progress: `accept` its static features, then `finish`.

    Windows end early where too much digital silence comes before the frames that would complete them.
    """

    def __init__(self, config: FeatureConfig) -> None:
        self._config = config
        self._counted_CF: Tensor | None = None  # frames that count, from number self._first on
        self._first = self._returned = 0  # numbers of frames that count
        self._static_TF: Tensor | None = None  # waiting
        self._silent_T = torch.zeros(0, dtype=torch.bool)

    def accept(self, static_TF: Tensor, silent_T: Tensor) -> Tensor:
        """Take the next frames; return the normalised frames (T, F) whose windows are complete."""
        self._static_TF = static_TF if self._static_TF is None else torch.cat([self._static_TF, static_TF])
        self._silent_T = torch.cat([self._silent_T.to(silent_T.device), silent_T])
        new_CF = static_TF[~silent_T]
        self._counted_CF = new_CF if self._counted_CF is None else torch.cat([self._counted_CF, new_CF])
        _, ends_T = sliding_windows(self._owner_T.clamp(min=0), 1 << 60, window_of(self._config))
        ready = int((ends_T <= self._first + len(self._counted_CF)).sum())
        if int(self._silent_T.sum()) > _MAX_SILENT_FRAMES and len(self._counted_CF):
            ready = len(self._silent_T)
        return self._emit(ready)

    def finish(self) -> Tensor | None:
        """Return the frames that still wait; None if there has been none."""
        return None if self._static_TF is None else self._emit(len(self._static_TF))

    @property
    def _owner_T(self) -> Tensor:
        """For each frame that waits, the number of the frame by whose window it is normalised; -1: by the first."""
        return self._returned + (~self._silent_T).cumsum(0) - 1

    def _emit(self, ready: int) -> Tensor:
        assert self._static_TF is not None and self._counted_CF is not None
        owner_T, c = self._owner_T, self._config
        early = max(int((owner_T < 0).sum()) - c.cmn_window, 0)  # their window is too far away
        complete = max(ready, early)
        out_TF = torch.zeros_like(self._static_TF[:complete])
        if ready and len(self._counted_CF):
            silent_T = self._silent_T[:ready]
            silent = silent_T if silent_T.any() else None
            owners_T, static_TF = owner_T[:ready].clamp(min=0) - self._first, self._static_TF[:ready]
            out_TF[:ready] = windows_cmvn(self._counted_CF, static_TF, owners_T, window_of(c), c.norm_vars, silent)
            out_TF[:early] = 0.0
        self._returned += int((~self._silent_T[:complete]).sum())
        self._static_TF, self._silent_T = self._static_TF[complete:].clone(), self._silent_T[complete:]
        keep = max(self._returned - 1 - max(c.cmn_window, c.min_cmn_window), self._first)
        self._counted_CF, self._first = self._counted_CF[keep - self._first :].clone(), keep
        return out_TF
