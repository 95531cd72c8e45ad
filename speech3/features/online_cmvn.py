"""Cepstral mean and variance normalisation of recordings in progress.

`OnlineSlidingCmvn` has a sliding window. `OnlineCmvn` replaces normalisation by utterance or speaker: a frame is
normalised by the sound up to it, by the training data, and by at most `CARRIED_FRAMES` of earlier speech.

A microphone hears a room long before it hears speech. If all frames counted, speech after two seconds of quiet noise
would be far above their mean. So what counts is sound, louder than the background, and the frames around it, about as
many as recordings have around their speech. Before any sound, the background is put where it is in the training data:
below the mean. The first `WAIT_FRAMES` frames with sound wait for one another.

Axes: T frames, F features, 2 sums and sums of squares, G features and the frame count, C frames that count.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.cmvn import (
    PRIOR_FRAMES,
    SILENCE_DEVIATIONS,
    apply_cmvn,
    apply_moments,
    cmvn_stats,
    prior_like,
    sliding_windows,
    training_stats,
    window_of,
    windows_cmvn,
)
from speech3.features.sound import (
    FRAMES_AFTER,
    FRAMES_BEFORE,
    LASTING_FRAMES,
    OnlineLevels,
    is_steady,
    lasting_level,
    moments_at,
    of_logs,
    sound_level,
)

CARRIED_FRAMES = 1000.0
WAIT_FRAMES = 100  # of 50, 100 and 150 the shortest wait with the fewest errors on the dev set of digits
_LONGEST_WAIT_FRAMES = 2 * WAIT_FRAMES  # with digital silence among them
_STEADY_FRAMES = WAIT_FRAMES - FRAMES_BEFORE - 10  # at the end of the wait, after the level has risen
_RISE_FRAMES = 20
_LOUDEST_MEMORY = 600  # frames: so long after loud sound, quieter speech counts again
_JUMP = 0.75  # by which sound is louder than all before it that it cannot be the same speaker's, in standard deviations
_MAX_SILENT_FRAMES = 1000  # that wait for a sliding window to be complete


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
        self._carried_2G: Tensor | None = None  # of earlier utterances
        self._present_2G: Tensor | None = None  # of this one
        self._waiting: list[_Heard] = []
        self._background_known = False
        self._heard_any = False
        self._frames_since_any = 0  # since sound of any loudness
        self._frames_since_sound = 0
        self._recent: deque[float] = deque(maxlen=_LOUDEST_MEMORY)  # levels
        self._loudest = -math.inf  # the highest of these that lasted
        self._frames_since_begin = 0
        self._brief = False  # whether the first sound may have been a click: then the next begins anew
        # What was known before a rise, while the frames after it wait.
        self._until_rise: tuple[Tensor | None, Tensor | None, list[float]] | None = None

    def accept(self, static_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
        """Take the next frames, float32; return the normalised frames (T, F), none while the first ones wait.

        `silent_T`: which of them are digital silence; None: none.
        Raises Speech3Error: the statistics of the training data are of other features.
        """
        if self._levels and self._config.global_stats:
            training_stats(self._config.global_stats, static_TF.shape[1])
        silent = [False] * len(static_TF) if silent_T is None else silent_T.tolist()
        own = self._levels.own(static_TF) if self._levels else [0.0] * len(static_TF)
        out, run, counted = [static_TF[:0]], list[_Heard](), list[bool]()
        for static_F, is_silent, level in zip(static_TF, silent, own, strict=True):
            heard = self._hear(static_F, is_silent, level)
            if self._begun and not self._begins_anew(heard):
                run.append(heard)
                counted.append(self._counts(heard))
                continue
            if run:
                out.append(self._normalised(run, torch.tensor(counted)))
                run, counted = [], []
            if self._begun:  # what was heard before was not the speaker, unless this is a click
                if not self._brief:
                    self._until_rise = self._carried_2G, self._present_2G, list(self._recent)
                self._carried_2G = self._present_2G = None
            out.append(self._wait(heard))
        return torch.cat([*out, self._normalised(run, torch.tensor(counted))] if run else out)

    def _hear(self, static_F: Tensor, is_silent: bool, own: float) -> "_Heard":
        level, background = self._levels.add(own, is_silent) if self._levels else (0.0, -math.inf)
        heard = _Heard(static_F, is_silent, level, background)
        self._frames_since_any = 0 if heard.is_sound(-math.inf) else self._frames_since_any + 1
        self._heard_any = self._heard_any or self._frames_since_any == 0
        return heard

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
        until_rise = self._until_rise
        if until_rise is not None:
            self._carried_2G, self._present_2G, _ = until_rise
        known = self._training_2G is not None or self._carried_2G is not None
        if self._present_2G is not None and self._present_2G[0, -1] and (speech or not known):
            total_2G = self._present_2G if self._carried_2G is None else self._carried_2G + self._present_2G
            self._carried_2G = total_2G * min(1.0, CARRIED_FRAMES / float(total_2G[0, -1]))
        if self._carried_2G is None:
            self._prior_2G = self._prior_like(None)
        self._present_2G = None
        if until_rise is not None:
            self._until_rise, self._carried_2G = (self._carried_2G, None, until_rise[2]), None

    @property
    def _begun(self) -> bool:
        return self._carried_2G is not None or self._present_2G is not None

    def _prior_like(self, own_2G: Tensor | None) -> Tensor | None:
        """The statistics of the training data, as loud as those of `own_2G`; None: as loud as they are."""
        if self._training_2G is None:
            return None
        if own_2G is None or own_2G[0, -1] < PRIOR_FRAMES:  # of fewer the level is unknown
            return self._training_2G * (PRIOR_FRAMES / self._training_2G[0, -1])
        return prior_like(self._training_2G, own_2G, self._config)

    def _before(self, like_TF: Tensor) -> Tensor:
        total_2G = torch.zeros(2, like_TF.shape[1] + 1, dtype=torch.float64)
        for each_2G in (self._prior_2G, self._carried_2G, self._present_2G):
            if each_2G is not None:
                total_2G += each_2G
        return total_2G

    def _wait(self, heard: "_Heard") -> Tensor:
        """Take a frame before there has been enough sound; return the frames that wait no longer, (T, F)."""
        if heard.silent and not self._waiting:  # a muted microphone would fill the memory
            return self._of_silence(heard.static_F[None])
        self._waiting.append(heard)
        return self._ready(ended=False)

    def _ready(self, *, ended: bool) -> Tensor:
        """Return the frames that wait no longer: those of background, or all, where there is enough sound."""
        begins = ended or self._is_enough()
        nothing_TF = self._waiting[0].static_F.new_zeros(0, len(self._waiting[0].static_F))
        if not self._background_known:
            if not begins:
                return nothing_TF
            quietest = self._waiting[-1].background
            self._waiting = [replace(heard, background=quietest) for heard in self._waiting]
            if self._onset is None and (ended or not self._is_steady(self._waiting)):
                return self._begin()  # too short for the background to be known, or noise with weak speech
            self._background_known = True
            self._heard_any = self._onset is not None
        onset = self._onset
        before = len(self._waiting) if onset is None else onset
        before -= 0 if onset is None and ended else FRAMES_BEFORE
        before_TF = self._of_background(before) if before > 0 else nothing_TF
        if onset is None or not (ended or self._is_enough()):
            return before_TF
        latest = [heard for heard in self._waiting if not heard.silent][-_STEADY_FRAMES:]
        if not ended and self._levels and self._is_steady(latest):
            self._levels.forget_background()  # a fan, or another microphone: this is the background from now on
            quietest = min(heard.level for heard in latest)
            self._waiting = [replace(heard, background=quietest) for heard in self._waiting]
            if self._until_rise is not None:
                return torch.cat([before_TF, self._resume([])])
            return torch.cat([before_TF, self._of_background(len(self._waiting) - FRAMES_BEFORE)])
        return torch.cat([before_TF, self._begin()])

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
        levels = [each.level for each in self._waiting if not each.silent]
        if self._until_rise is not None and lasting_level([-math.inf, *levels]) <= max(self._until_rise[2]):
            return self._resume(levels)
        heard, self._waiting, self._until_rise = self._waiting, [], None
        static_TF, silent_T = _stacked(heard)
        self._frames_since_begin = self._frames_since_sound = 0  # frames before the first sound count
        self._recent.clear()
        self._recent.extend(levels)
        self._loudest = lasting_level([-math.inf, *levels])
        sound = sum(each.is_sound(self._loudest) for each in heard)
        counted_T = torch.tensor([self._is_near(each) for each in heard]) if sound else ~silent_T
        self._brief = self._levels is not None and 0 < sound < LASTING_FRAMES
        self._present_2G = cmvn_stats(static_TF, ~counted_T)
        self._prior_2G = self._prior_like(self._present_2G)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _resume(self, levels: list[float]) -> Tensor:
        """Normalise the frames that wait by what was known before them: they were no other speaker's."""
        assert self._until_rise is not None
        (self._carried_2G, self._present_2G, recent), self._until_rise = self._until_rise, None
        self._recent.clear()
        self._recent.extend([*recent, *levels])
        self._loudest = lasting_level([-math.inf, *self._recent])
        heard, self._waiting = self._waiting, []
        return self._normalised(heard, torch.tensor([self._is_near(each) for each in heard]))

    def _begins_anew(self, heard: "_Heard") -> bool:
        """Whether this is sound much louder than all before it, or the next after a brief first one."""
        if not heard.is_sound(self._loudest):
            return False
        rise = min(self._frames_since_begin, _RISE_FRAMES)
        before = list(self._recent)[: len(self._recent) - rise]
        is_next = self._brief and self._frames_since_sound > FRAMES_AFTER
        return is_next or heard.level > max(before, default=math.inf) + _JUMP

    def _counts(self, heard: "_Heard") -> bool:
        """Whether this frame counts; from now on its level is known."""
        self._frames_since_begin += 1
        if not heard.silent:  # it has the level of the sound before it
            self._recent.append(heard.level)
            self._loudest = lasting_level(self._recent)
        return self._is_near(heard)

    def _is_near(self, heard: "_Heard") -> bool:
        """Whether this is sound, or one of the `FRAMES_AFTER` frames after it, and no digital silence."""
        self._frames_since_sound = 0 if heard.is_sound(self._loudest) else self._frames_since_sound + 1
        return self._frames_since_sound <= FRAMES_AFTER and not heard.silent

    def _of_silence(self, static_TF: Tensor) -> Tensor:
        """Digital silence before all else: normalised by the prior, or zero."""
        if self._prior_2G is None:
            return torch.zeros_like(static_TF)
        silent_T = static_TF.new_ones(len(static_TF), dtype=torch.bool)
        return apply_cmvn(self._before(static_TF), static_TF, self._config.norm_vars, silent_T)

    def _of_background(self, count: int) -> Tensor:
        """Normalise the first frames that wait: the background comes `SILENCE_DEVIATIONS` below the mean."""
        heard, self._waiting = self._waiting[:count], self._waiting[count:]
        assert self._training_2G is not None
        static_TF, silent_T = _stacked(heard)
        level_T = torch.tensor([each.background + SILENCE_DEVIATIONS for each in heard], dtype=torch.float64)
        mean_TF, square_TF = moments_at(level_T, self._training_2G, self._config)
        return apply_moments(static_TF, mean_TF, square_TF, self._config.norm_vars, silent_T)

    def _normalised(self, heard: list["_Heard"], counted_T: Tensor) -> Tensor:
        """Normalise each of the next frames by those up to it that count."""
        static_TF, silent_T = _stacked(heard)
        before_2G, counted_T1 = self._before(static_TF), counted_T.double()[:, None]
        counts_T1 = before_2G[0, -1] + counted_T1.cumsum(0)
        static_TF64 = static_TF.double()
        sums_TF, squares_TF = ((each_TF * counted_T1).cumsum(0) for each_TF in (static_TF64, static_TF64.square()))
        sums_TF, squares_TF = before_2G[0, :-1] + sums_TF, before_2G[1, :-1] + squares_TF
        out_TF = apply_moments(static_TF, sums_TF / counts_T1, squares_TF / counts_T1, self._config.norm_vars, silent_T)
        new_2G = cmvn_stats(static_TF, ~counted_T)
        self._present_2G = new_2G if self._present_2G is None else self._present_2G + new_2G
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
