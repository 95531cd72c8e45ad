"""Cepstral mean and variance normalisation (Kaldi transform/cmvn.cc, feat/feature-functions.cc, online-feature.cc).

Unlike in Kaldi, frames of digital silence (muted, edited or padded stretches) do not count. Log energies of zeros are
at -15.9, ten standard deviations below speech: 100 ms of them would change the features of a whole utterance. Their own
features are limited to `SILENCE_DEVIATIONS` standard deviations from the mean, where the background of a recording is.

Unlike in Kaldi, too, the training data (``global_stats``, where a model has them) count as `PRIOR_FRAMES` more frames
of each utterance or speaker, at its level: without them the mean and the variance of one short word would be mostly
those of its sounds.

For a recording in progress, `OnlineSlidingCmvn` has a sliding window; `OnlineCmvn` replaces normalisation by utterance
or speaker: a frame is normalised by the frames up to it, by those of the training data, and by at most
`CARRIED_FRAMES` of earlier speech. What was not speech is forgotten (`restart`): an hour of silence would otherwise be
scaled up until it looked like speech. The first `WAIT_FRAMES` frames wait for one another; digital silence at the
beginning does not, since a muted microphone would fill the memory.

Axes: S samples, T frames, F features, 2 sums and sums of squares, G features and the frame count, C frames that count,
P samples of a part of a frame, B samples of a block.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import MismatchError, SettingError
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
CARRIED_FRAMES = 1000.0
WAIT_FRAMES = 100  # of 50, 100 and 150 the shortest wait with the fewest errors on the dev set of digits
_LONGEST_WAIT_FRAMES = 2 * WAIT_FRAMES  # with digital silence among them
_MAX_SILENT_FRAMES = 1000  # that wait for a sliding window to be complete
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
        options = (*_window(config), variances)
        return [sliding_cmvn(static_TF, *options, silent_T=silent_T) for static_TF, silent_T in pairs]
    if config.cmvn == "global":
        if config.global_stats is None:
            raise SettingError("cmvn: global needs global_stats; take them from the features.yaml of the training data")
        stats = config.global_stats
        return [apply_global_cmvn(stats, static_TF, variances, silent_T) for static_TF, silent_T in pairs]
    stats_2G = torch.stack([cmvn_stats(static_TF, silent_T) for static_TF, silent_T in pairs]).sum(0)
    if stats_2G[0, -1] == 0:
        stats_2G = torch.stack([cmvn_stats(static_TF) for static_TF in statics]).sum(0)
    elif config.global_stats is not None and _of_logs(config):
        stats_2G += _prior(_global_stats(config.global_stats, statics[0]), stats_2G, config)
    return [apply_cmvn(stats_2G, static_TF, norm_vars=variances, silent_T=silent_T) for static_TF, silent_T in pairs]


def _of_logs(config: FeatureConfig) -> bool:
    """Whether features are logs of energies; others have no prior: loud speech would drown out quiet speech."""
    return config.kind != "fbank" or config.use_log_fbank


def _prior(training_2G: Tensor, own_2G: Tensor, config: FeatureConfig) -> Tensor:
    """The statistics of the training data as those of `PRIOR_FRAMES` frames, about as loud as what `own_2G` are of.

    A quiet recording has the log energies of a loud one less a constant. So its level, where it is further from that of
    training than single words may be by their sounds, becomes the level of the prior.
    """
    prior_2G, own_F = training_2G / training_2G[0, -1], own_2G[0, :-1] / own_2G[0, -1]
    mean_F = prior_2G[0, :-1]
    variance_F = (prior_2G[1, :-1] - mean_F.square()).clamp(min=0.0)
    level = slice(0, config.num_mel_bins + config.use_energy if config.kind == "fbank" else 1)
    away = (own_F - mean_F)[level].mean()
    beyond = (away.abs() - _LEVEL_DEVIATIONS * variance_F[level].sqrt().mean()).clamp(min=0.0)
    moved_F = mean_F.clone()
    moved_F[level] += away.sign() * beyond
    prior_2G[0, :-1], prior_2G[1, :-1] = moved_F, variance_F + moved_F.square()
    return prior_2G * PRIOR_FRAMES


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
    return _normalised(feats_TF, mean_F, square_F, norm_vars and with_squares, silent_T if with_squares else None)


def _normalised(
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
    return apply_cmvn(_global_stats(stats, feats_TF), feats_TF, norm_vars=norm_vars, silent_T=silent_T)


def _global_stats(stats: Sequence[Sequence[float]], feats_TF: Tensor) -> Tensor:
    """The ``global_stats`` of a config, float64 (2, G), on the device of features that they fit."""
    width = feats_TF.shape[1] + 1
    if [len(row) for row in stats] != [width, width] or stats[0][-1] < 1:
        found, count = " and ".join(str(len(row)) for row in stats), stats[0][-1] if stats[0] else 0
        raise MismatchError(
            f"global_stats: {found} values over {count:g} frames do not fit features of {width - 1} values, which need"
            f" {width} and {width}; leave the key out to have the statistics computed"
        )
    return torch.tensor(stats, dtype=torch.float64, device=feats_TF.device)


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
        out_TF[chunk] = _normalised(feats_TF[chunk].double() - shift_F, mean_TF, square_TF, norm_vars, silent)
    return out_TF


def _window(config: FeatureConfig) -> Window:
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


class OnlineCmvn:
    """The normalisation of one recording: `accept` its static features piece by piece, then `finish`.

    What is kept is of bounded length as long as `restart` is called now and then, between utterances.

    `config`: of the features; its ``global_stats`` are those of the training data, None: unknown.
    """

    def __init__(self, config: FeatureConfig) -> None:
        self._config = config
        self._training_2G: Tensor | None = None
        if config.global_stats is not None and _of_logs(config):
            self._training_2G = torch.tensor(config.global_stats, dtype=torch.float64)
        self._forget_level()
        self._carried_2G: Tensor | None = None  # of earlier utterances
        self._present_2G: Tensor | None = None  # of this one
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def accept(self, static_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
        """Take the next frames, float32; return the normalised frames (T, F), none while the first ones wait.

        `silent_T`: which of them are digital silence; None: none.
        """
        if silent_T is None:
            silent_T = static_TF.new_zeros(len(static_TF), dtype=torch.bool)
        if self._carried_2G is not None or self._present_2G is not None:
            return self._normalised(static_TF, silent_T)
        leading = 0 if self._waiting else int(silent_T.long().cumprod(0).sum())
        out_TF = self._of_silence(static_TF[:leading])
        if leading < len(static_TF):
            self._waiting.append((static_TF[leading:], silent_T[leading:]))
        counted = sum(int((~each_T).sum()) for _, each_T in self._waiting)
        if counted >= WAIT_FRAMES or sum(len(each_T) for _, each_T in self._waiting) >= _LONGEST_WAIT_FRAMES:
            out_TF = torch.cat([out_TF, self._begin()])
        return out_TF

    def finish(self) -> Tensor | None:
        """Return the frames that still wait; None if there are none."""
        return self._begin() if self._waiting else None

    def restart(self, *, speech: bool) -> None:
        """Begin the next utterance; `speech`: whether the frames since the previous call were speech."""
        known = self._prior_2G is not None or self._carried_2G is not None
        if self._present_2G is not None and self._present_2G[0, -1] and (speech or not known):
            total_2G = self._present_2G if self._carried_2G is None else self._carried_2G + self._present_2G
            self._carried_2G = total_2G * min(1.0, CARRIED_FRAMES / float(total_2G[0, -1]))
        if self._carried_2G is None:
            self._forget_level()
        self._present_2G = None

    def _forget_level(self) -> None:
        self._prior_2G: Tensor | None = None
        if self._training_2G is not None:
            self._prior_2G = self._training_2G * (PRIOR_FRAMES / self._training_2G[0, -1])

    def _before(self, like_TF: Tensor) -> Tensor:
        total_2G = torch.zeros(2, like_TF.shape[1] + 1, dtype=torch.float64)
        for each_2G in (self._prior_2G, self._carried_2G, self._present_2G):
            if each_2G is not None:
                total_2G += each_2G
        return total_2G

    def _begin(self) -> Tensor:
        static_TF, silent_T = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        self._present_2G = cmvn_stats(static_TF, silent_T)
        if self._training_2G is not None and self._present_2G[0, -1] >= PRIOR_FRAMES:  # of fewer the level is unknown
            self._prior_2G = _prior(self._training_2G, self._present_2G, self._config)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _of_silence(self, static_TF: Tensor) -> Tensor:
        """Digital silence before all else: normalised by the prior, or zero."""
        if self._prior_2G is None:
            return torch.zeros_like(static_TF)
        silent_T = static_TF.new_ones(len(static_TF), dtype=torch.bool)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _normalised(self, static_TF: Tensor, silent_T: Tensor) -> Tensor:
        if not len(static_TF):
            return static_TF
        before_2G, counted_T1 = self._before(static_TF), (~silent_T).double()[:, None]
        counts_T1 = before_2G[0, -1] + counted_T1.cumsum(0)
        static_TF64 = static_TF.double()
        sums_TF, squares_TF = ((each_TF * counted_T1).cumsum(0) for each_TF in (static_TF64, static_TF64.square()))
        sums_TF, squares_TF = before_2G[0, :-1] + sums_TF, before_2G[1, :-1] + squares_TF
        out_TF = _normalised(static_TF, sums_TF / counts_T1, squares_TF / counts_T1, self._config.norm_vars, silent_T)
        new_2G = cmvn_stats(static_TF, silent_T)
        self._present_2G = new_2G if self._present_2G is None else self._present_2G + new_2G
        return out_TF


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
        _, ends_T = sliding_windows(self._owner_T.clamp(min=0), 1 << 60, _window(self._config))
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
            out_TF[:ready] = windows_cmvn(self._counted_CF, static_TF, owners_T, _window(c), c.norm_vars, silent)
            out_TF[:early] = 0.0
        self._returned += int((~self._silent_T[:complete]).sum())
        self._static_TF, self._silent_T = self._static_TF[complete:].clone(), self._silent_T[complete:]
        keep = max(self._returned - 1 - max(c.cmn_window, c.min_cmn_window), self._first)
        self._counted_CF, self._first = self._counted_CF[keep - self._first :].clone(), keep
        return out_TF
