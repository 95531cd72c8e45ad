"""A network applied to features as they arrive: its outputs equal those for the whole utterance, to within rounding.

A network of bounded context gets the same frames as offline: earlier frames are kept, and an output waits for the later
ones. The state of a recurrent network is carried from span to span.

Axes: T frames or outputs, F feature bins, S values of an output.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class OnlineNetwork(Protocol):
    """Scores the features of one recording as they arrive."""

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        """Accept the next frames; return the scores (T, S) that later frames cannot change; T is often 0."""

    def finish(self) -> np.ndarray:
        """Return the remaining scores, with the last frame repeated beyond the end."""

    def restart(self) -> None:
        """Begin a new utterance at the frame of the next output."""


class OnlineWindows:
    """A network whose outputs depend on a bounded number of frames before and after them.

    `score_inside`: frames (left + n * step + right, F) to the scores (n, S) of those inside.
    """

    def __init__(
        self, score_inside: Callable[[np.ndarray], np.ndarray], left: int, right: int, step: int, outputs: int
    ) -> None:
        self._score_inside, self._left, self._right, self._step = score_inside, left, right, step
        self._none_TS = np.empty((0, outputs), np.float32)
        self._kept_TF: np.ndarray | None = None  # from `left` before the next output on

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        if not len(feats_TF):
            return self._none_TS
        before_TF = feats_TF[:1].repeat(self._left, 0) if self._kept_TF is None else self._kept_TF
        self._kept_TF = np.concatenate([before_TF, feats_TF])
        return self._take((len(self._kept_TF) - self._left - self._right) // self._step)

    def finish(self) -> np.ndarray:
        if self._kept_TF is None:
            return self._none_TS
        outputs = -(-(len(self._kept_TF) - self._left) // self._step)
        missing = self._left + outputs * self._step + self._right - len(self._kept_TF)
        self._kept_TF = np.concatenate([self._kept_TF, self._kept_TF[-1:].repeat(missing, 0)])
        return self._take(outputs)

    def restart(self) -> None:
        """See `OnlineNetwork`: no output depends on those before it."""

    def _take(self, outputs: int) -> np.ndarray:
        if outputs <= 0 or self._kept_TF is None:
            return self._none_TS
        scores_TS = self._score_inside(self._kept_TF[: self._left + outputs * self._step + self._right])
        self._kept_TF = self._kept_TF[outputs * self._step :].copy()
        return scores_TS


class OnlineRecurrent:
    """A network whose state is carried forward in time, and whose outputs come `delay` steps of `step` frames later.

    `steps`: from frames (left + n * step + right, F) and a state to the scores (n, S) of n steps and the state after
    them. `begin`: the state before the first step.
    """

    def __init__(
        self,
        steps: Callable[[np.ndarray, Any], tuple[np.ndarray, Any]],
        begin: Callable[[], Any],
        left: int,
        right: int,
        step: int,
        delay: int,
        outputs: int,
    ) -> None:
        self._steps, self._begin, self._left, self._right, self._delay = steps, begin, left, right, delay
        self._step = step
        self._none_TS = np.empty((0, outputs), np.float32)
        self._state, self._early = begin(), delay  # steps to come whose scores are of no frame
        # From `left` and `delay` steps before the next step on: after a restart the last `delay` steps are read again.
        self._kept_TF: np.ndarray | None = None
        self._next = 0  # where among them the next step's first own frame lies

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        if not len(feats_TF):
            return self._none_TS
        if self._kept_TF is None:
            self._kept_TF, self._next = feats_TF[:1].repeat(self._left, 0), self._left
        self._kept_TF = np.concatenate([self._kept_TF, feats_TF])
        return self._take((len(self._kept_TF) - self._next - self._right) // self._step)

    def finish(self) -> np.ndarray:
        if self._kept_TF is None:
            return self._none_TS
        left = len(self._kept_TF) - self._next
        steps = -(-left // self._step) + self._delay
        beyond_TF = self._kept_TF[-1:].repeat(steps * self._step + self._right - left, 0)
        self._kept_TF = np.concatenate([self._kept_TF, beyond_TF])
        return self._take(steps)

    def restart(self) -> None:
        """See `OnlineNetwork`: the state becomes that before the first step."""
        read_ahead = self._delay - self._early
        self._next -= read_ahead * self._step
        self._state, self._early = self._begin(), self._delay

    def _take(self, steps: int) -> np.ndarray:
        if steps <= 0 or self._kept_TF is None:
            return self._none_TS
        first = self._next - self._left
        scores_TS, self._state = self._steps(
            self._kept_TF[first : self._next + steps * self._step + self._right], self._state
        )
        early = min(self._early, steps)
        self._early -= early
        self._next += steps * self._step
        gone = max(0, self._next - self._left - self._delay * self._step)
        self._kept_TF, self._next = self._kept_TF[gone:].copy(), self._next - gone
        return scores_TS[early:]
