"""Cepstral mean and variance normalisation (Kaldi transform/cmvn.cc, feat/feature-functions.cc, online-feature.cc).

Unlike in Kaldi, frames of digital silence (muted, edited or padded stretches) do not count. Log energies of zeros are
at -15.9, ten standard deviations below speech: 100 ms of them would change the features of a whole utterance. Their own
features are limited to `SILENCE_DEVIATIONS` standard deviations from the mean, where the background of a recording is.

Unlike in Kaldi, too, the training data (``global_stats``, where a model has them) count as `PRIOR_FRAMES` more frames
of each utterance or speaker, at its level: without them the mean and the variance of one short word would be mostly
those of its sounds.

And of what such a model recognises, only sound and the frames around it count (`speech3.features.sound`).

For recordings in progress: `speech3.features.online_cmvn`.

Axes: S samples, T frames, F features, 2 sums and sums of squares, G features and the frame count, C frames that count,
P samples of a part of a frame, B samples of a block.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import MismatchError, SettingError
from speech3.features.sound import level_features, moments, moments_at, near_sound, of_logs
from speech3.features.spectrum import SAMPLE_SCALE, frame_sizes, mirror_edges

# Kaldi's floor of 1e-20 scales the rounding errors of a constant feature (digital silence) up to thousands.
# With this floor the standard deviation is at least 1e-5, the size of the rounding errors themselves.
VARIANCE_FLOOR = 1e-10
# About where the background of a recording is: over its mel bins, the quietest tenth of the frames is 1.3 below the
# mean in minilibri, 0.8 in digits. With 200 ms of zeros in front of each, a DNN of digits had 5.3 % errors with 0.75 to
# 1.25 (as without zeros), 7.9 with 1.5 and 16.8 with 2.5: it took what is quieter than any background for words.
SILENCE_DEVIATIONS = 1.25
_CHUNK = 8192  # frames: running sums over hours would lose the digits that the variance of a window needs
# Zeros, any other constant, or zeros and ones: decoders of compressed audio round and dither to within one 16-bit step.
# Noise of a microphone that was recorded with 16 bits has a variance of a whole step and more, as has Kaldi's dither.
_LARGEST_VARIANCE = 1 / 3 / SAMPLE_SCALE**2
# A frame that is silent for 10 of its 25 ms is neither speech nor background.
_PART = 0.4
# Equal frames of features in a row. Fewer may come from features of a longer shift that were repeated.
_MIN_REPEATED = 5
_EQUAL = 1e-4  # more than equal frames differ by rounding
# Chosen on the dev sets of fsdd, digits and minilibri (recipes/fsdd/RESULTS.md, "One word of a speaker"): triphones had
# 35 % errors in single words of 0.4 s with 0 frames, 9.2 with 10 and 6.2 with 20; with 50 and more a DNN gets worse.
PRIOR_FRAMES = 20.0
# How far, in standard deviations of its frames, the level of a recording may be from that of the training data before
# the prior's follows. Of 0.3, 0.6 and 1, on single words of fsdd's dev set, as loud as they are and 30 dB quieter.
_LEVEL_DEVIATIONS = 0.5
Window = tuple[int, int, bool]  # `cmn_window`, `min_cmn_window` and `center` of a config


def normalise(statics: list[Tensor], config: FeatureConfig, silent: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Apply the CMVN of `config` to the utterances of one unit: one utterance, or all utterances of one speaker.

    `silent`: for each utterance, which frames are digital silence, bool (T,); None: none. Where all are, all count.
    Raises Speech3Error: global statistics are missing or do not fit the features.
    """
    variances = config.norm_vars
    if config.cmvn == "none" or not config.norm_means:
        return statics
    if silent is None:
        silent = [static_TF.new_zeros(len(static_TF), dtype=torch.bool) for static_TF in statics]
    pairs = list(zip(statics, silent, strict=True))
    if config.cmvn == "sliding":
        options = (*window_of(config), variances)
        return [sliding_cmvn(static_TF, *options, silent_T=silent_T) for static_TF, silent_T in pairs]
    if config.cmvn == "global":
        if config.global_stats is None:
            raise SettingError("cmvn: global needs global_stats; take them from the features.yaml of the training data")
        stats = config.global_stats
        return [apply_global_cmvn(stats, static_TF, variances, silent_T) for static_TF, silent_T in pairs]
    left_out, training_2G = list(silent), None
    if all(bool(silent_T.all()) for silent_T in silent):
        left_out = [torch.zeros_like(silent_T) for silent_T in silent]
    elif config.global_stats is not None and of_logs(config):
        training_2G = training_stats(config.global_stats, statics[0].shape[1]).to(statics[0].device)
        left_out = [~near_sound(static_TF, silent_T, training_2G, config) for static_TF, silent_T in pairs]
    stats_2G = torch.stack([cmvn_stats(*each) for each in zip(statics, left_out, strict=True)]).sum(0)
    if training_2G is not None and stats_2G[0, -1]:
        stats_2G += prior_like(training_2G, stats_2G, config)
    elif training_2G is not None:  # a room, and nobody speaks
        stats_2G = torch.stack([cmvn_stats(*pair) for pair in pairs]).sum(0)
        stats_2G = above_background(training_2G, stats_2G, config)
    return [apply_cmvn(stats_2G, static_TF, norm_vars=variances, silent_T=silent_T) for static_TF, silent_T in pairs]


def prior_like(training_2G: Tensor, own_2G: Tensor, config: FeatureConfig) -> Tensor:
    """The statistics of the training data as those of `PRIOR_FRAMES` frames, about as loud as what `own_2G` are of.

    A quiet recording has the log energies of a loud one less a constant. So its level, where it is further from that of
    training than single words may be by their sounds, becomes the level of the prior.
    """
    mean_F, variance_F = moments(training_2G)
    own_F, _ = moments(own_2G)
    level = level_features(config)
    away = (own_F - mean_F)[level].mean()
    beyond = (away.abs() - _LEVEL_DEVIATIONS * variance_F[level].sqrt().mean()).clamp(min=0.0)
    moved_F = mean_F.clone()
    moved_F[level] += away.sign() * beyond
    prior_2G = torch.zeros_like(training_2G)
    prior_2G[0, :-1], prior_2G[1, :-1], prior_2G[0, -1] = moved_F, variance_F + moved_F.square(), 1.0
    return prior_2G * PRIOR_FRAMES


def above_background(training_2G: Tensor, own_2G: Tensor, config: FeatureConfig) -> Tensor:
    """The statistics of the training data, so loud that what `own_2G` are of is where its background would be."""
    (mean_F, variance_F), (own_F, _), level = moments(training_2G), moments(own_2G), level_features(config)
    up = (own_F - mean_F)[level].mean() / variance_F[level].sqrt().mean() + SILENCE_DEVIATIONS
    mean_1F, square_1F = moments_at(up[None], training_2G, config)
    return torch.stack([torch.cat([mean_1F[0], up.new_ones(1)]), torch.cat([square_1F[0], up.new_zeros(1)])])


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


def apply_global_cmvn(
    stats: Sequence[Sequence[float]], feats_TF: Tensor, norm_vars: bool = False, silent_T: Tensor | None = None
) -> Tensor:
    """`apply_cmvn` with the statistics of a config (its ``global_stats``)."""
    stats_2G = training_stats(stats, feats_TF.shape[1]).to(feats_TF.device)
    return apply_cmvn(stats_2G, feats_TF, norm_vars=norm_vars, silent_T=silent_T)


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


def silent_frames(wave_S: Tensor, frames: int, config: FeatureConfig, sample_rate_hz: int) -> Tensor:
    """Which of the first `frames` frames begin or end in digital silence, bool (T,).

    It depends on the samples of each frame alone, so a stream (whose frames are cut as `snip_edges` cuts them) finds
    the same frames.

    `wave_S`: float32 in [-1, 1), after dither.
    """
    silent_T = torch.zeros(frames, dtype=torch.bool, device=wave_S.device)
    if not frames:
        return silent_T
    sizes = frame_sizes(config, sample_rate_hz)
    if not config.snip_edges:
        wave_S = mirror_edges(wave_S[None], torch.tensor([len(wave_S)]), sizes, frames)[0]
    part = max(int(_PART * sizes.length), 2)
    if not _may_be_silent(wave_S, part):
        return silent_T
    for first in (0, sizes.length - part):
        parts_TP = wave_S[first : first + (frames - 1) * sizes.shift + part].unfold(0, part, sizes.shift)
        silent_T |= parts_TP.var(1, correction=0) <= _LARGEST_VARIANCE
    return silent_T


def _may_be_silent(wave_S: Tensor, part: int) -> bool:
    """A quick answer for most recordings: whether a block is so quiet that a silent part may contain it."""
    block = part // 2  # each part contains a whole block, wherever the part begins
    blocks = len(wave_S) // block
    variance_B = wave_S[: blocks * block].view(blocks, block).var(1, correction=0)
    return bool((variance_B <= _LARGEST_VARIANCE * part / block).any())


def repeated_frames(feats_TF: Tensor) -> Tensor:
    """Which frames are equal to their neighbours, `_MIN_REPEATED` and more in a row, bool (T,).

    This is how digital silence looks in features whose recording is not at hand. Features of noise are never equal.
    """
    repeated_T = torch.zeros(len(feats_TF), dtype=torch.bool, device=feats_TF.device)
    if len(feats_TF) < _MIN_REPEATED:
        return repeated_T
    equal_T = ((feats_TF[1:] - feats_TF[:-1]).abs() <= _EQUAL).all(1)  # not of NaN
    run_T = torch.cat([equal_T.new_zeros(1), ~equal_T]).cumsum(0)
    return torch.bincount(run_T)[run_T] >= _MIN_REPEATED
