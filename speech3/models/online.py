"""Utterances scored piece by piece: recordings in progress, and long ones by models that carry a state.

The outputs equal those for the whole utterance, to within rounding.

Axes: T frames or outputs, F feature bins, S values of an output.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Span:
    """Consecutive steps of an utterance, each with the frames of an output; steps after the last repeat its last frame.

    Steps from `start` to `stop` include those that serve only as lookahead; the first `own` have scores and change the
    state. The last of these return the scores of the outputs from `begin` to `end`; those before fall within the
    initial delay.
    """

    start: int
    stop: int
    own: int
    begin: int
    end: int


def spans(outputs: int, *, delay: int, at_a_time: int, beyond: int) -> Iterator[Span]:
    """Yield the spans of an utterance, of `at_a_time` own steps and `beyond` lookahead steps; `delay` is in steps."""
    steps = outputs + delay if outputs else 0
    for start in range(0, steps, at_a_time):
        own = min(at_a_time, steps - start)
        begin, end = (max(0, step - delay) for step in (start, start + own))
        yield Span(start, min(start + own + beyond, steps), own, begin, end)


class OnlineNetwork:
    """Scores the features of one recording as they arrive.

    Earlier frames are kept as context, and an output waits for its later ones. A recurrent network's state is carried
    forward, and its outputs come `delay` steps of `step` frames later.

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
        self._steps, self._begin = steps, begin
        self._left, self._right, self._step, self._delay = left, right, step, delay
        self._none_TS = np.empty((0, outputs), np.float32)
        self._state, self._early = begin(), delay  # steps to come whose scores are of no frame
        # From `left` and `delay` steps before the next step on: after a restart the last `delay` steps are read again.
        self._kept_TF: np.ndarray | None = None
        self._next = 0  # where among them the next step's first own frame lies

    @classmethod
    def of_windows(
        cls, score_inside: Callable[[np.ndarray], np.ndarray], left: int, right: int, step: int, outputs: int
    ) -> "OnlineNetwork":
        """A network without a state; `score_inside`: frames (left + n * step + right, F) to scores (n, S)."""
        return cls(lambda feats_TF, state: (score_inside(feats_TF), state), lambda: None, left, right, step, 0, outputs)

    @property
    def is_stateless(self) -> bool:
        """Whether an output depends on the frames of its window alone."""
        return self._begin() is None

    def accept(self, feats_TF: np.ndarray) -> np.ndarray:
        """Accept the next frames; return the scores (T, S) that later frames cannot change; T is often 0."""
        if not len(feats_TF):
            return self._none_TS
        if self._kept_TF is None:
            self._kept_TF, self._next = feats_TF[:1].repeat(self._left, 0), self._left
        self._kept_TF = np.concatenate([self._kept_TF, feats_TF])
        return self._take((len(self._kept_TF) - self._next - self._right) // self._step)

    def finish(self) -> np.ndarray:
        """Return the remaining scores, with the last frame repeated beyond the end."""
        if self._kept_TF is None:
            return self._none_TS
        left = len(self._kept_TF) - self._next
        steps = -(-left // self._step) + self._delay
        beyond_TF = self._kept_TF[-1:].repeat(steps * self._step + self._right - left, 0)
        self._kept_TF = np.concatenate([self._kept_TF, beyond_TF])
        return self._take(steps)

    def restart(self) -> None:
        """Begin a new utterance at the frame of the next output, with the state before the first step."""
        read_ahead = self._delay - self._early
        self._next -= read_ahead * self._step
        self._state, self._early = self._begin(), self._delay

    def _take(self, steps: int) -> np.ndarray:
        if steps <= 0 or self._kept_TF is None:
            return self._none_TS
        end = self._next + steps * self._step
        seen_TF = self._kept_TF[self._next - self._left : end + self._right]
        scores_TS, self._state = self._steps(seen_TF, self._state)
        early = min(self._early, steps)
        self._early -= early
        # Forget the frames that no later step reads.
        gone = max(0, end - self._left - self._delay * self._step)
        self._kept_TF, self._next = self._kept_TF[gone:].copy(), end - gone
        return scores_TS[early:]
