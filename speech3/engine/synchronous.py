"""What asynchrony is compared with: workers that average their gradients and step together, on the virtual clock.

A step takes as long as its slowest worker, and `sync_s`, which is kind to it: an exchange among N workers takes longer
than one worker's with its server. One worker has nobody to sync with and is plain SGD; N workers are plain SGD with N
times larger minibatches.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from speech3.engine.gradient import gradient
from speech3.engine.sgd import OneWorker
from speech3.engine.simulate import Times
from speech3.engine.world import USED, Parts, Progress, Rate, turns
from speech3.errors import Speech3Error


class Synchronous(OneWorker):
    """Synchronous SGD with ``len(times.compute_s)`` virtual workers."""

    def __init__(self, parts: Parts, times: Times, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(parts, momentum=momentum, weight_decay=weight_decay)
        self.times = times

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Yields after every step; raises as `OneWorker.epoch` does."""
        self.states_M, self.progress = states_M.copy(), Progress()
        self.parts.model.train()
        random = np.random.default_rng((self.parts.seed, epoch))
        workers = len(self.times.compute_s)
        for before, numbers in turns(states_M, workers, self.parts.source.rows):
            steps, gradients = zip(*(gradient(self.parts, epoch, number) for number in numbers), strict=True)
            if any(g is None for g in gradients):
                raise Speech3Error(
                    f"epoch {epoch}, minibatches {numbers[0]} to {numbers[-1]}: a loss is not finite; the learning "
                    f"rate ({rate(before):g}) is most likely too high: lower training.learning_rate"
                )
            mean = [sum(each) / len(numbers) for each in zip(*gradients, strict=True)]
            self.sgd.step(mean, rate(before))
            self.states_M[numbers] = USED
            spread = np.exp(self.times.jitter * random.standard_normal(workers))
            seconds = float((np.array(self.times.compute_s) * spread)[: len(numbers)].max())
            seconds += self.times.sync_s if workers > 1 else 0.0
            done = self.progress
            self.progress = replace(
                done, used=done.used + len(numbers), frames=done.frames + sum(step.frames for step in steps),
                correct=done.correct + sum(step.correct for step in steps), seconds=done.seconds + seconds,
                loss_sum=done.loss_sum + sum(step.loss * step.frames for step in steps),
            )  # fmt: skip
            yield self.progress
