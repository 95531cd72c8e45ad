"""CMVN of a recording in progress, for models whose features are normalised over an utterance or speaker.

A frame is normalised by the mean (and deviation) of the frames up to it, together with two kinds of earlier statistics
(Kaldi feat/online-feature.cc, OnlineCmvn): those of the training data (the prior), which count as `PRIOR_FRAMES`
frames, and those of earlier speech in the same recording, of which at most `CARRIED_FRAMES` count. What was not speech
is forgotten (`restart`): an hour of silence would otherwise be scaled up until it looked like speech.

The first `WAIT_FRAMES` frames of a recording wait for one another, and are normalised by what they have together.

Axes: T frames, F features, 2 sums and sums of squares, G features and the count of frames.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from speech3.features.cmvn import VARIANCE_FLOOR, cmvn_stats

# Of priors of 0, 10 and 30 frames and waits of 50, 100 and 150, the shortest wait with the fewest errors on the dev set
# of digits; a prior of 10 was no worse than 0 on that of minilibri.
PRIOR_FRAMES = 10.0
CARRIED_FRAMES = 1000.0
WAIT_FRAMES = 100


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
        self._waiting: list[Tensor] = []

    def accept(self, static_TF: Tensor) -> Tensor:
        """Take the next frames, float32; return the normalised frames (T, F), none while the first ones wait."""
        if not self._waits:
            return self._normalised(static_TF)
        self._waiting.append(static_TF)
        return static_TF[:0] if sum(map(len, self._waiting)) < WAIT_FRAMES else self._begin()

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
        static_TF = torch.cat(self._waiting)
        self._waiting = []
        self._present_2G = cmvn_stats(static_TF)
        before_2G = self._before(static_TF)
        counts_T1 = before_2G[0, -1].expand(len(static_TF), 1)
        sums_TF, squares_TF = (row[:-1].expand(len(static_TF), -1) for row in before_2G)
        return self._apply(static_TF, sums_TF, squares_TF, counts_T1)

    def _normalised(self, static_TF: Tensor) -> Tensor:
        if not len(static_TF):
            return static_TF
        before_2G, static_TF64 = self._before(static_TF), static_TF.double()
        counts_T1 = before_2G[0, -1] + torch.arange(1, len(static_TF) + 1, dtype=torch.float64)[:, None]
        sums_TF, squares_TF = static_TF64.cumsum(0), static_TF64.square().cumsum(0)
        out_TF = self._apply(static_TF, before_2G[0, :-1] + sums_TF, before_2G[1, :-1] + squares_TF, counts_T1)
        new_2G = cmvn_stats(static_TF)
        self._present_2G = new_2G if self._present_2G is None else self._present_2G + new_2G
        return out_TF

    def _apply(self, static_TF: Tensor, sums_TF: Tensor, squares_TF: Tensor, counts_T1: Tensor) -> Tensor:
        mean_TF = sums_TF / counts_T1
        centred_TF = static_TF.double() - mean_TF
        if self._norm_vars:
            centred_TF *= (squares_TF / counts_T1 - mean_TF.square()).clamp_(min=VARIANCE_FLOOR).rsqrt_()
        return centred_TF.float()
