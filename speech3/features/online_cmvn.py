"""CMVN of a recording in progress.

`OnlineSlidingCmvn` is for features normalised over a sliding window, `OnlineCmvn` for models whose features are
normalised over an utterance or speaker. There, a frame is normalised by the mean (and deviation) of the frames up to
it, together with two kinds of earlier statistics (Kaldi feat/online-feature.cc, OnlineCmvn): those of the training data
(the prior), which count as `PRIOR_FRAMES` frames, and those of earlier speech in the same recording, of which at most
`CARRIED_FRAMES` count. What was not speech is forgotten (`restart`): an hour of silence would otherwise be scaled up
until it looked like speech.

The first `WAIT_FRAMES` frames of a recording wait for one another, and are normalised by what they have together.

Digital silence (`speech3.features.silence`) does not count. At the beginning it does not wait either: a muted
microphone would otherwise fill the memory.

Axes: T frames, F features, 2 sums and sums of squares, G features and the count of frames.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.config import FeatureConfig
from speech3.features.cmvn import VARIANCE_FLOOR, cmvn_stats, limit_silence, sliding_windows, windows_cmvn

# Of priors of 0, 10 and 30 frames and waits of 50, 100 and 150, the shortest wait with the fewest errors on the dev set
# of digits; a prior of 10 was no worse than 0 on that of minilibri.
PRIOR_FRAMES = 10.0
CARRIED_FRAMES = 1000.0
WAIT_FRAMES = 100
_LONGEST_WAIT_FRAMES = 2 * WAIT_FRAMES  # with digital silence among them
_MOST_SILENT_FRAMES = 1000  # that wait for a sliding window to be complete


class OnlineCmvn:
    """The normalisation of one recording: `accept` its static features piece by piece, then `finish`.

    What is kept is of bounded length as long as `restart` is called now and then, between utterances.

    Parameters
    ----------
    norm_vars
        Divide by the standard deviation, too.
    prior
        Statistics of the training data as a feature config has them (``global_stats``); None: unknown.
    """

    def __init__(self, norm_vars: bool, prior: Sequence[Sequence[float]] | None) -> None:
        self._norm_vars = norm_vars
        self._prior_2G: Tensor | None = None
        if prior is not None:
            prior_2G = torch.tensor(prior, dtype=torch.float64)
            self._prior_2G = prior_2G * (PRIOR_FRAMES / prior_2G[0, -1])
        self._carried_2G: Tensor | None = None  # of earlier utterances
        self._present_2G: Tensor | None = None  # of this one
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def accept(self, static_TF: Tensor, silent_T: Tensor | None = None) -> Tensor:
        """Take the next frames, float32; return the normalised frames (T, F), none while the first ones wait.

        `silent_T`: which of them are digital silence; None: none.
        """
        if silent_T is None:
            silent_T = static_TF.new_zeros(len(static_TF), dtype=torch.bool)
        if not self._waits:
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
        self._present_2G = None

    @property
    def _waits(self) -> bool:
        return self._carried_2G is None and self._present_2G is None

    def _before(self, like_TF: Tensor) -> Tensor:
        """Statistics of all that comes before the next frame."""
        total_2G = torch.zeros(2, like_TF.shape[1] + 1, dtype=torch.float64)
        for each_2G in (self._prior_2G, self._carried_2G, self._present_2G):
            if each_2G is not None:
                total_2G += each_2G
        return total_2G

    def _begin(self) -> Tensor:
        static_TF, silent_T = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        self._present_2G = cmvn_stats(static_TF, silent_T)
        return self._apply_alike(self._before(static_TF), static_TF, silent_T)

    def _of_silence(self, static_TF: Tensor) -> Tensor:
        """Digital silence before all else: normalised by the prior, or zero."""
        if self._prior_2G is None:
            return torch.zeros_like(static_TF)
        silent_T = static_TF.new_ones(len(static_TF), dtype=torch.bool)
        return self._apply_alike(self._before(static_TF), static_TF, silent_T)

    def _normalised(self, static_TF: Tensor, silent_T: Tensor) -> Tensor:
        if not len(static_TF):
            return static_TF
        before_2G, counted_T1 = self._before(static_TF), (~silent_T).double()[:, None]
        counts_T1 = before_2G[0, -1] + counted_T1.cumsum(0)
        static_TF64 = static_TF.double()
        sums_TF, squares_TF = ((each_TF * counted_T1).cumsum(0) for each_TF in (static_TF64, static_TF64.square()))
        sums_TF, squares_TF = before_2G[0, :-1] + sums_TF, before_2G[1, :-1] + squares_TF
        out_TF = self._apply(static_TF, sums_TF, squares_TF, counts_T1, silent_T)
        new_2G = cmvn_stats(static_TF, silent_T)
        self._present_2G = new_2G if self._present_2G is None else self._present_2G + new_2G
        return out_TF

    def _apply_alike(self, stats_2G: Tensor, static_TF: Tensor, silent_T: Tensor) -> Tensor:
        counts_T1 = stats_2G[0, -1].expand(len(static_TF), 1)
        sums_TF, squares_TF = (row[:-1].expand(len(static_TF), -1) for row in stats_2G)
        return self._apply(static_TF, sums_TF, squares_TF, counts_T1, silent_T)

    def _apply(
        self, static_TF: Tensor, sums_TF: Tensor, squares_TF: Tensor, counts_T1: Tensor, silent_T: Tensor
    ) -> Tensor:
        mean_TF = sums_TF / counts_T1
        centred_TF = static_TF.double() - mean_TF
        if self._norm_vars or silent_T.any():
            variance_TF = (squares_TF / counts_T1 - mean_TF.square()).clamp_(min=VARIANCE_FLOOR)
            limit_silence(centred_TF, variance_TF, silent_T)
            if self._norm_vars:
                centred_TF *= variance_TF.rsqrt_()
        return centred_TF.float()


class OnlineSlidingCmvn:
    """`speech3.features.cmvn.sliding_cmvn` of a recording in progress: `accept` its static features, then `finish`.

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
        options = self._config.cmn_window, self._config.min_cmn_window, self._config.center
        _, ends_T = sliding_windows(self._owner_T.clamp(min=0), 1 << 60, *options)
        ready = int((ends_T <= self._first + len(self._counted_CF)).sum())
        if int(self._silent_T.sum()) > _MOST_SILENT_FRAMES and len(self._counted_CF):
            ready = len(self._silent_T)
        return self._give(ready)

    def finish(self) -> Tensor | None:
        """Return the frames that still wait; None if there has been none."""
        return None if self._static_TF is None else self._give(len(self._static_TF))

    @property
    def _owner_T(self) -> Tensor:
        """For each frame that waits, the number of the frame by whose window it is normalised; -1: by the first."""
        return self._returned + (~self._silent_T).cumsum(0) - 1

    def _give(self, ready: int) -> Tensor:
        assert self._static_TF is not None and self._counted_CF is not None
        owner_T, c = self._owner_T, self._config
        early = max(int((owner_T < 0).sum()) - c.cmn_window, 0)  # they have waited in vain
        give = max(ready, early)
        out_TF = torch.zeros_like(self._static_TF[:give])
        if ready and len(self._counted_CF):
            silent_T = self._silent_T[:ready]
            out_TF[:ready] = windows_cmvn(
                self._counted_CF, self._static_TF[:ready], owner_T[:ready].clamp(min=0) - self._first,
                c.cmn_window, c.min_cmn_window, c.center, c.norm_vars, silent_T if silent_T.any() else None,
            )  # fmt: skip
            out_TF[:early] = 0.0
        self._returned += int((~self._silent_T[:give]).sum())
        self._static_TF, self._silent_T = self._static_TF[give:].clone(), self._silent_T[give:]
        keep = max(self._returned - 1 - max(c.cmn_window, c.min_cmn_window), self._first)
        self._counted_CF, self._first = self._counted_CF[keep - self._first :].clone(), keep
        return out_TF
