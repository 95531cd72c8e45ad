"""World sgd: one worker and no server, by default plain SGD. All other worlds are compared with it."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor

from speech3.engine.gradient import Diverged, gradient
from speech3.engine.optimizers import optimizer_of
from speech3.engine.world import USED, WAITING, Parts, Progress, Rate, Snapshot, expect


class OneWorker:
    """The world of one worker, which computes the minibatches of an epoch one after another, in this process."""

    def __init__(self, parts: Parts, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.parts = parts
        self.sgd = optimizer_of(parts, momentum=momentum, weight_decay=weight_decay)
        self.states_M = np.zeros(0, np.int32)
        self.progress = Progress()

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress after every minibatch, when the parameters are consistent.

        Raises
        ------
        Speech3Error
            A loss or a gradient is not finite; the parameters stay as they were before that minibatch.
        """
        self.states_M, self.progress = states_M.copy(), Progress()
        self.parts.begin_training()
        numbers = np.flatnonzero(states_M == WAITING).tolist()
        expect(self.parts.source, epoch, numbers)
        start = time.perf_counter()
        drawn = self.parts.source.draw(epoch, numbers[0]) if numbers else None
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            step, g = gradient(self.parts, epoch, number, drawn=drawn)
            # A GPU computes meanwhile; reading the step waits for it.
            drawn = None if following is None else self.parts.source.draw(epoch, following)
            if not step.finite:
                raise Diverged(epoch, number, step.loss, rate(number))
            self.sgd.step(g, rate(number))
            self.states_M[number] = USED
            done = self.progress
            self.progress = replace(
                done, used=done.used + 1, frames=done.frames + step.frames, correct=done.correct + step.correct,
                loss_sum=done.loss_sum + step.loss * step.frames, seconds=done.seconds + time.perf_counter() - start,
                left_out=done.left_out + step.left_out,
            )  # fmt: skip
            yield self.progress
            start = time.perf_counter()

    def snapshot(self) -> Snapshot:
        """Parameters and optimizer state after the last minibatch."""
        return Snapshot(self.sgd.state(), self.states_M.copy(), self.progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Load parameters and, where the state contains them, the optimizer's slots."""
        self.sgd.load(tensors)

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""
