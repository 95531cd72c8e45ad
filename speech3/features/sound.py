"""Which frames of a recording are sound and which are only its background, by their level.

The statistics of normalisation are those of sound and of the frames around it, about as many as recordings of a corpus
have around their speech. If all frames counted, one word after two seconds of a quiet room would be far above the mean.

A level is the mean of the features that rise with loudness, in standard deviations above that of the training data,
smoothed over `_SMOOTHED` frames. The background is the quietest that was heard, the loudest sound what was reached for
`LASTING_FRAMES`: a click or a door is louder than any speaker.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import math
from collections import deque
from collections.abc import Iterable
from heapq import nlargest

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.cmvn import moments, training_stats
from speech3.features.spectrum import SAMPLE_SCALE, frame_sizes, mirror_edges

FRAMES_BEFORE, FRAMES_AFTER = 20, 30  # around sound, which count, too
# By how much sound is louder than the background: at least, and as a share of the difference to the loudest. Chosen on
# the dev sets of digits and fsdd (0.25 to 0.5, and 0 to 0.5). With at least 0.5, noisy utterances without a pause were
# taken for background; with smaller shares, noise whose level wandered counted as sound.
LEAST, _SHARE = 0.25, 0.5
BACKGROUND_FRAMES = 100  # speech is not equally loud for so long
# The standard deviation of steady levels. That of white and pink noise over 0.9 s is at most 0.034 (fsdd; 0.019 in
# digits and minilibri), that of speech in white noise as loud as itself at least 0.037 (0.06).
_STEADY = 0.035
_SMOOTHED = 10
# How long a level has to last to be that of the loudest sound. With 1 frame a slammed door of 0.1 s made speech that is
# 25 dB quieter count as background: a DNN of digits (dev, two seconds of a room before) had 28 substitutions in 129
# words, 9 with 20, 30 and 50; after 0.3 s of noise 57, with 20 frames 45, with 30 22. Without a door all had 11 errors
# in digits' dev set; in single words of fsdd 28 of 500, 29 with 20 and 30. A click of 0.12 s needs more than 20 once it
# is smoothed; more than words last, and the level of noise would be that of the loudest sound.
LASTING_FRAMES = 24
# Zeros, any other constant, or zeros and ones: decoders of compressed audio round and dither to within one 16-bit step.
# Noise of a microphone that was recorded with 16 bits has a variance of a whole step and more, as has Kaldi's dither.
_LARGEST_VARIANCE = 1 / 3 / SAMPLE_SCALE**2
# A frame that is silent for 10 of its 25 ms is neither speech nor background.
_PART = 0.4
# Equal frames of features in a row. Fewer may come from features of a longer shift that were repeated.
_MIN_REPEATED = 5
_EQUAL = 1e-4  # more than equal frames differ by rounding
_MEMORY = 300  # frames of a recording in progress: the quietest of them are background


def of_logs(config: FeatureConfig) -> bool:
    """Whether features are logs of energies; others have no prior: loud speech would drown out quiet speech."""
    return config.kind != "fbank" or config.use_log_fbank


def level_features(config: FeatureConfig) -> slice:
    """Which static features rise with the level of a recording: all of a filterbank, the first cepstrum."""
    return slice(0, config.num_mel_bins + config.use_energy if config.kind == "fbank" else 1)


def sound_level(background: float, loudest: float) -> float:
    """The level above which there is sound, where the background and the loudest sound have these levels."""
    return background + max(LEAST, _SHARE * (loudest - background))


def lasting_level(levels: Iterable[float]) -> float:
    """The highest level reached for `LASTING_FRAMES`; of fewer levels the lowest, of none minus infinity."""
    found = nlargest(LASTING_FRAMES, levels)
    return found[-1] if found else -math.inf


def is_steady(levels_T: Tensor) -> bool:
    """Whether these levels are those of a background, and not of weak speech in noise."""
    return float(levels_T.std(correction=0)) < _STEADY


def near_sound(static_TF: Tensor, silent_T: Tensor, training_2G: Tensor, config: FeatureConfig) -> Tensor:
    """Which frames of a recording are sound, or near it, and not digital silence, bool (T,).

    None is where `BACKGROUND_FRAMES` and more are steady; all are where they are too few, or weak speech in noise.
    `silent_T`: which are digital silence. `training_2G`: the statistics of the training data.
    """
    own_T = _own_levels(static_TF[~silent_T], training_2G, config)
    if len(own_T) < _SMOOTHED:
        return ~silent_T
    sums_T = torch.nn.functional.pad(own_T.cumsum(0), (_SMOOTHED, 0))
    ends_T = torch.arange(1, len(own_T) + 1, device=own_T.device)
    levels_T = (sums_T[_SMOOTHED:] - sums_T[:-_SMOOTHED]) / ends_T.clamp(max=_SMOOTHED)
    loudest = lasting_level(levels_T.tolist())
    sound_T = torch.zeros_like(silent_T)
    sound_T[~silent_T] = levels_T > sound_level(float(levels_T[_SMOOTHED - 1 :].min()), loudest)
    if len(own_T) >= BACKGROUND_FRAMES and is_steady(levels_T[_SMOOTHED - 1 :]):
        return torch.zeros_like(silent_T)
    if not sound_T.any():
        return ~silent_T
    around_T = torch.nn.functional.pad(sound_T.float(), (FRAMES_AFTER, FRAMES_BEFORE))
    return (around_T.unfold(0, FRAMES_AFTER + 1 + FRAMES_BEFORE, 1).amax(1) > 0) & ~silent_T


def only_background(static_TF: Tensor, silent_T: Tensor, config: FeatureConfig) -> bool:
    """Whether a recording has no sound, as far as `config` has statistics of training data that tell."""
    if config.global_stats is None or not of_logs(config):
        return False
    if config.kind != "fbank" and config.use_energy:  # which may be that of a hum below all mel bins
        return False
    training_2G = training_stats(config.global_stats, static_TF.shape[1])
    return not near_sound(static_TF, silent_T, training_2G, config).any()


def moments_at(level_T: Tensor, training_2G: Tensor, config: FeatureConfig) -> tuple[Tensor, Tensor]:
    """The mean and the mean square (T, F) of the training data, were they as loud as each of these levels."""
    (mean_F, variance_F), features = moments(training_2G), level_features(config)
    mean_TF = mean_F.repeat(len(level_T), 1)
    mean_TF[:, features] += level_T[:, None] * variance_F[features].sqrt().mean()
    return mean_TF, variance_F + mean_TF.square()


def _own_levels(static_TF: Tensor, training_2G: Tensor, config: FeatureConfig) -> Tensor:
    """The level of each frame by itself, float64 (T,)."""
    mean_F, variance_F = moments(training_2G)
    features = level_features(config)
    return (static_TF.double() - mean_F)[:, features].mean(1) / variance_F[features].sqrt().mean()


class OnlineLevels:
    """The levels of a recording in progress. `training_2G`: the statistics of the training data."""

    def __init__(self, training_2G: Tensor, config: FeatureConfig) -> None:
        self._training_2G, self._config = training_2G, config
        self._recent: deque[float] = deque(maxlen=_SMOOTHED)
        self._quietest: deque[tuple[int, float]] = deque()  # rising; the first is the minimum of the memory
        self._frames = 0
        self._last = -math.inf, math.inf

    def own(self, static_TF: Tensor) -> list[float]:
        """The levels of frames by themselves, for `add`."""
        return _own_levels(static_TF, self._training_2G, self._config).tolist()

    def add(self, own: float, is_silent: bool) -> tuple[float, float]:
        """Return the level of the next frame and that of the background so far; digital silence changes neither."""
        if is_silent:
            return self._last
        self._frames += 1
        self._recent.append(own)
        level = sum(self._recent) / len(self._recent)
        if len(self._recent) == _SMOOTHED:
            while self._quietest and self._quietest[-1][1] >= level:
                self._quietest.pop()
            self._quietest.append((self._frames, level))
            if self._quietest[0][0] <= self._frames - _MEMORY:
                self._quietest.popleft()
        self._last = level, self._quietest[0][1] if self._quietest else math.inf
        return self._last

    def forget_background(self) -> None:
        """From now on the background is the quietest of the frames to come."""
        self._quietest.clear()


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
