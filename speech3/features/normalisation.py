"""Normalisation by utterance and by speaker, and the choice of the frames that count.

`normalise` takes whole recordings, `OnlineCmvn` one in progress: it normalises a frame by what was heard up to it, by
the training data, and by at most `CARRIED_FRAMES` of earlier speech.

Unlike in Kaldi, frames of digital silence do not count: 100 ms of them would change the features of a whole utterance.

Unlike in Kaldi, too, the training data (``global_stats``, where a model has them) count as `PRIOR_FRAMES` more frames
of each utterance or speaker, at its level: without them the mean and the variance of one short word would be mostly
those of its sounds.

And of what such a model recognises, only sound counts, and the frames around it (`speech3.features.sound`), about as
many as recordings have around their speech: a microphone hears a room long before it hears speech. In a recording in
progress the background is put where it is in the training data, below the mean, until there is sound; the first
`WAIT_FRAMES` frames with sound wait for one another.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.errors import SettingError
from speech3.features.cmvn import (
    SILENCE_DEVIATIONS,
    apply_cmvn,
    apply_moments,
    cmvn_stats,
    moments,
    sliding_cmvn,
    training_stats,
    window_of,
)
from speech3.features.sound import (
    FRAMES_AFTER,
    FRAMES_BEFORE,
    LASTING_FRAMES,
    OnlineLevels,
    is_steady,
    lasting_level,
    level_features,
    moments_at,
    near_sound,
    of_logs,
    sound_level,
)

# Chosen on the dev sets of fsdd, digits and minilibri (recipes/fsdd/RESULTS.md, "One word of a speaker"): triphones had
# 35 % errors in single words of 0.4 s with 0 frames, 9.2 with 10 and 6.2 with 20; with 50 and more a DNN gets worse.
PRIOR_FRAMES = 20.0
# How far, in standard deviations of its frames, the level of a recording may be from that of the training data before
# the prior's follows. Of 0.3, 0.6 and 1, on single words of fsdd's dev set, as loud as they are and 30 dB quieter.
_LEVEL_DEVIATIONS = 0.5
CARRIED_FRAMES = 1000.0
WAIT_FRAMES = 100  # of 50, 100 and 150 the shortest wait with the fewest errors on the dev set of digits
_LONGEST_WAIT_FRAMES = 2 * WAIT_FRAMES  # with digital silence among them
_STEADY_FRAMES = WAIT_FRAMES - FRAMES_BEFORE - 10  # at the end of the wait, after the level has risen
_AT_ONCE = 10  # frames of background: one by one they would cost four times as much
_RISE_FRAMES = 20
_LOUDEST_MEMORY = 600  # frames: so long after loud sound, quieter speech counts again
_JUMP = 0.75  # by which sound is louder than all before it that it cannot be the same speaker's, in standard deviations


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
        stats_2G = training_stats(config.global_stats, statics[0].shape[1]).to(statics[0].device)
        return [apply_cmvn(stats_2G, static_TF, variances, silent_T) for static_TF, silent_T in pairs]
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


class OnlineCmvn:
    """The normalisation of one recording: `accept` its static features piece by piece, then `finish`.

    What it returns does not depend on the pieces. What it keeps is of bounded length as long as `restart` is called now
    and then, between utterances.

    `config`: of the features; its ``global_stats`` are those of the training data. Without them, or if features are not
    logs of energies, nothing tells sound from background, and all frames count.
    """

    def __init__(self, config: FeatureConfig) -> None:
        self._config = config
        self._training_2G: Tensor | None = None
        self._levels: OnlineLevels | None = None
        if config.global_stats is not None and of_logs(config):
            self._training_2G = training_stats(config.global_stats, len(config.global_stats[0]) - 1)
            self._levels = OnlineLevels(self._training_2G, config)
        self._prior_2G = self._prior_like(None)
        self._speaker = _Speaker()
        self._before_rise: _Speaker | None = None  # while the frames after a rise wait
        self._brief = False  # whether the first sound may have been a click: then the next begins anew
        self._waiting: list[_Heard] = []
        self._background_known = False
        self._quiet: list[_Heard] = []  # background that is not normalised yet
        self._frames_since_sound = 0
        self._heard_any = False  # since the last `restart`
        self._frames_since_any = 0  # since sound of any loudness

    def accept(self, static_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
        """Take the next frames, float32; return the normalised frames (T, F), none while the first ones wait.

        `silent_T`: which of them are digital silence; None: none.
        Raises Speech3Error: the statistics of the training data are of other features.
        """
        out, run, counted = [static_TF[:0]], list[_Heard](), list[bool]()
        for heard in self._listen(static_TF, silent_T):
            if self._speaker.is_known and not self._begins_anew(heard):
                run.append(heard)
                counted.append(self._counts(heard))
                continue
            if run:
                out.append(self._by_sound(run, counted))
                run, counted = [], []
            if self._speaker.is_known:  # what was heard before was not the speaker, unless this is a click
                self._before_rise = None if self._brief else self._speaker
                self._speaker = _Speaker()
            out.append(self._wait(heard))
        return torch.cat([*out, self._by_sound(run, counted)] if run else out)

    def finish(self) -> Tensor | None:
        """Return the frames that still wait; None if there are none."""
        return self._ready(ended=True) if self._waiting else None

    @property
    def heard_sound(self) -> bool:
        """Whether there may have been sound since the last `restart`, and not only background."""
        return self._heard_any or not self._background_known

    def restart(self, *, speech: bool) -> None:
        """Begin the next utterance; `speech`: whether the frames since the previous call were speech."""
        self._heard_any = self._frames_since_any < WAIT_FRAMES  # which may belong to the next
        speaker = self._before_rise or self._speaker
        if speech or (self._training_2G is None and speaker.carried_2G is None):
            speaker.carry()
        speaker.present_2G = None
        if speaker.carried_2G is None:
            self._prior_2G = self._prior_like(None)

    def _listen(self, static_TF: Tensor, silent_T: Tensor | None) -> Iterator["_Heard"]:
        """The next frames, with their levels."""
        if self._training_2G is not None and static_TF.shape[1] != self._training_2G.shape[1] - 1:
            training_stats(self._config.global_stats or (), static_TF.shape[1])  # which says what does not fit
        silent = [False] * len(static_TF) if silent_T is None else silent_T.tolist()
        own = self._levels.own(static_TF) if self._levels else [0.0] * len(static_TF)
        for static_F, is_silent, level in zip(static_TF, silent, own, strict=True):
            levels = self._levels.add(level, is_silent) if self._levels else (0.0, -math.inf)
            heard = _Heard(static_F, is_silent, *levels)
            self._frames_since_any = 0 if heard.is_sound(-math.inf) else self._frames_since_any + 1
            self._heard_any = self._heard_any or self._frames_since_any == 0
            yield heard

    def _wait(self, heard: "_Heard") -> Tensor:
        """Take a frame before there has been enough sound; return the frames that wait no longer, (T, F)."""
        if heard.silent and not self._waiting:  # a muted microphone would fill the memory
            return self._of_silence(heard.static_F[None])
        self._waiting.append(heard)
        return self._ready(ended=False)

    def _ready(self, *, ended: bool) -> Tensor:
        """Return the frames that wait no longer: those of background, or all, where there is enough sound."""
        if not self._background_known:
            if not (ended or self._is_enough()):
                return self._background(0)
            self._set_background(self._waiting[-1].background)
            if self._onset is None and (ended or not self._is_steady(self._waiting)):
                return self._begin()  # too short for the background to be known, or noise with weak speech
            self._background_known = True
            self._heard_any = self._onset is not None
        onset = self._onset
        if onset is None:
            return self._background(len(self._waiting) - (0 if ended else FRAMES_BEFORE), 1 if ended else _AT_ONCE)
        before_TF = self._background(onset - FRAMES_BEFORE)
        if not (ended or self._is_enough()):
            return before_TF
        latest = [heard for heard in self._waiting if not heard.silent][-_STEADY_FRAMES:]
        if ended or self._levels is None or not self._is_steady(latest):
            return torch.cat([before_TF, self._begin()])
        self._levels.forget_background()  # a fan, or another microphone: this is the background from now on
        self._set_background(min(heard.level for heard in latest))
        if self._before_rise is not None:
            return torch.cat([before_TF, self._resume([])])
        return torch.cat([before_TF, self._background(len(self._waiting) - FRAMES_BEFORE)])

    def _set_background(self, level: float) -> None:
        self._waiting = [replace(heard, background=level) for heard in self._waiting]

    def _is_steady(self, heard: list["_Heard"]) -> bool:
        known = [each.level for each in heard if each.background < math.inf]
        return len(known) >= _STEADY_FRAMES and is_steady(torch.tensor(known))

    @property
    def _onset(self) -> int | None:
        """Where the sound among the frames that wait begins; None: there is none."""
        loudest = max(heard.level for heard in self._waiting)
        return next((t for t, heard in enumerate(self._waiting) if heard.is_sound(loudest)), None)

    def _is_enough(self) -> bool:
        counted = sum(not heard.silent for heard in self._waiting)
        return counted >= WAIT_FRAMES or len(self._waiting) >= _LONGEST_WAIT_FRAMES

    def _begin(self) -> Tensor:
        """Normalise the frames that wait by their sound; later ones are normalised as they come."""
        levels = _RecentLevels(each.level for each in self._waiting if not each.silent)
        if self._before_rise is not None and levels.loudest <= self._before_rise.levels.highest:
            return self._resume(levels)
        heard, self._waiting, self._before_rise = self._waiting, [], None
        self._frames_since_sound = 0  # frames before the first sound count
        self._speaker.levels = levels
        static_TF, silent_T = _stacked(heard)
        sound = sum(each.is_sound(levels.loudest) for each in heard)
        counted_T = torch.tensor([self._is_near(each) for each in heard]) if sound else ~silent_T
        self._brief = self._levels is not None and 0 < sound < LASTING_FRAMES
        self._speaker.present_2G = cmvn_stats(static_TF, ~counted_T)
        self._prior_2G = self._prior_like(self._speaker.present_2G)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _resume(self, levels: Iterable[float]) -> Tensor:
        """Normalise the frames that wait by what was known before them: they were no other speaker's."""
        assert self._before_rise is not None
        self._speaker, self._before_rise = self._before_rise, None
        self._speaker.levels.extend(levels)
        heard, self._waiting = self._waiting, []
        return self._by_sound(heard, [self._is_near(each) for each in heard])

    def _begins_anew(self, heard: "_Heard") -> bool:
        """Whether this is sound much louder than all before it, or the next after a brief first one."""
        if not heard.is_sound(self._speaker.levels.loudest):
            return False
        is_next = self._brief and self._frames_since_sound > FRAMES_AFTER
        return is_next or self._speaker.levels.jumps_to(heard.level)

    def _counts(self, heard: "_Heard") -> bool:
        """Whether this frame counts; from now on its level is known."""
        if not heard.silent:  # it has the level of the sound before it
            self._speaker.levels.extend([heard.level])
        return self._is_near(heard)

    def _is_near(self, heard: "_Heard") -> bool:
        """Whether this is sound, or one of the `FRAMES_AFTER` frames after it, and no digital silence."""
        is_sound = heard.is_sound(self._speaker.levels.loudest)
        self._frames_since_sound = 0 if is_sound else self._frames_since_sound + 1
        return self._frames_since_sound <= FRAMES_AFTER and not heard.silent

    def _prior_like(self, own_2G: Tensor | None) -> Tensor | None:
        """The statistics of the training data, as loud as those of `own_2G`; None: as loud as they are."""
        if self._training_2G is None:
            return None
        if own_2G is None or own_2G[0, -1] < PRIOR_FRAMES:  # of fewer the level is unknown
            return self._training_2G * (PRIOR_FRAMES / self._training_2G[0, -1])
        return prior_like(self._training_2G, own_2G, self._config)

    def _before(self, like_TF: Tensor) -> Tensor:
        """The statistics of all that counts so far, and of the training data."""
        total_2G = torch.zeros(2, like_TF.shape[1] + 1, dtype=torch.float64)
        for each_2G in (self._prior_2G, self._speaker.carried_2G, self._speaker.present_2G):
            if each_2G is not None:
                total_2G += each_2G
        return total_2G

    def _of_silence(self, static_TF: Tensor) -> Tensor:
        """Digital silence before all else: normalised by the prior, or zero."""
        if self._prior_2G is None:
            return torch.zeros_like(static_TF)
        silent_T = static_TF.new_ones(len(static_TF), dtype=torch.bool)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _background(self, count: int, at_once: int = 1) -> Tensor:
        """Take the first frames that wait, if any, for background, and normalise it where there is so much of it.

        It comes `SILENCE_DEVIATIONS` below the mean.
        """
        self._quiet += self._waiting[: max(count, 0)]
        self._waiting = self._waiting[max(count, 0) :]
        if len(self._quiet) < at_once:
            return self._waiting[0].static_F.new_zeros(0, len(self._waiting[0].static_F))
        heard, self._quiet = self._quiet, []
        assert self._training_2G is not None
        static_TF, silent_T = _stacked(heard)
        level_T = torch.tensor([each.background + SILENCE_DEVIATIONS for each in heard], dtype=torch.float64)
        mean_TF, square_TF = moments_at(level_T, self._training_2G, self._config)
        return apply_moments(static_TF, mean_TF, square_TF, self._config.norm_vars, silent_T)

    def _by_sound(self, heard: list["_Heard"], counted: list[bool]) -> Tensor:
        """Normalise each of the next frames by those up to it that count."""
        static_TF, silent_T = _stacked(heard)
        counted_T = torch.tensor(counted)
        before_2G, counted_T1 = self._before(static_TF), counted_T.double()[:, None]
        counts_T1 = before_2G[0, -1] + counted_T1.cumsum(0)
        static_TF64 = static_TF.double()
        sums_TF, squares_TF = ((each_TF * counted_T1).cumsum(0) for each_TF in (static_TF64, static_TF64.square()))
        sums_TF, squares_TF = before_2G[0, :-1] + sums_TF, before_2G[1, :-1] + squares_TF
        out_TF = apply_moments(static_TF, sums_TF / counts_T1, squares_TF / counts_T1, self._config.norm_vars, silent_T)
        new_2G, present_2G = cmvn_stats(static_TF, ~counted_T), self._speaker.present_2G
        self._speaker.present_2G = new_2G if present_2G is None else present_2G + new_2G
        return out_TF


@dataclass(frozen=True, eq=False)
class _Heard:
    """A frame, with levels in standard deviations above the mean of the training data."""

    static_F: Tensor
    silent: bool  # digital silence
    level: float  # smoothed
    background: float  # so far; minus infinity: all is sound

    def is_sound(self, loudest: float) -> bool:
        is_louder = self.background == -math.inf or self.level > sound_level(self.background, loudest)
        return is_louder and not self.silent


def _stacked(heard: list[_Heard]) -> tuple[Tensor, Tensor]:
    return torch.stack([each.static_F for each in heard]), torch.tensor([each.silent for each in heard])


class _RecentLevels:
    """Levels of the latest frames that were no digital silence; `loudest` is the highest of them that lasted."""

    def __init__(self, levels: Iterable[float]) -> None:
        self._levels = deque(levels, maxlen=_LOUDEST_MEMORY)
        self._later = 0  # how many came after the first
        self.loudest = lasting_level(self._levels)

    def __iter__(self) -> Iterator[float]:
        return iter(self._levels)

    def extend(self, levels: Iterable[float]) -> None:
        for level in levels:
            self._levels.append(level)
            self._later += 1
        self.loudest = lasting_level(self._levels)

    @property
    def highest(self) -> float:
        return max(self._levels)

    def jumps_to(self, level: float) -> bool:
        """Whether `level` is `_JUMP` above all but those that may already have been on the way to it."""
        before = list(self._levels)[: len(self._levels) - min(self._later, _RISE_FRAMES)]
        return level > max(before, default=math.inf) + _JUMP


@dataclass
class _Speaker:
    """What is known of the present speaker."""

    carried_2G: Tensor | None = None  # statistics of earlier utterances
    present_2G: Tensor | None = None  # of this one
    levels: _RecentLevels = field(default_factory=lambda: _RecentLevels(()))

    @property
    def is_known(self) -> bool:
        return self.carried_2G is not None or self.present_2G is not None

    def carry(self) -> None:
        """Count the present utterance among the earlier ones."""
        if self.present_2G is None or not self.present_2G[0, -1]:
            return
        total_2G = self.present_2G if self.carried_2G is None else self.carried_2G + self.present_2G
        self.carried_2G = total_2G * min(1.0, CARRIED_FRAMES / float(total_2G[0, -1]))
