"""Backend sgd (one worker), and synchronous SGD on a virtual clock: the baselines of asynchronous training.

In a step of synchronous SGD, N workers average their gradients: plain SGD with N times larger minibatches, except that
gradient clipping applies to each minibatch's own gradient. A step takes as long as its slowest worker plus the exchange
of gradients, whose time follows TernGrad's performance model (Wen et al. 2017, "TernGrad: Ternary gradients to reduce
communication in distributed deep learning"). Ternary gradients are encoded with a scale that all workers share, and
averaged (`codecs.mean`).
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.backends.processes import LEAST_S
from speech3.engine.codecs.mean import SharedCodes
from speech3.engine.gradient import Diverged, gradient
from speech3.engine.interface import USED, WAITING, Progress, Rate, Snapshot, WorkerParts, expect, turns
from speech3.engine.optimizers import optimizer_of
from speech3.engine.shard import Constrained


class OneWorker:
    """The backend of one worker, which computes the minibatches of an epoch one after another, in this process."""

    def __init__(self, parts: WorkerParts, *, momentum: float = 0.0) -> None:
        self.parts = parts
        self.sgd = optimizer_of(parts, momentum=momentum)
        self.states_M = np.zeros(0, np.int32)
        self.progress = Progress()

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress after every minibatch, when the parameters are consistent.

        Raises `Speech3Error` if a loss or a gradient is not finite; the parameters stay as they were before that
        minibatch.
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
            self.progress += replace(step.progress, seconds=time.perf_counter() - start)
            yield self.progress
            start = time.perf_counter()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.sgd.state(), self.states_M.copy(), self.progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        self.sgd.load(tensors)

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


@dataclass(frozen=True)
class Times:
    """The times on the virtual clock, in seconds."""

    compute_s: tuple[float, ...]  # time of a minibatch, for each worker
    sync_s: float  # time for which a sync occupies the server; each of S partitions is occupied for `sync_s` / S
    jitter: float = 0.0  # standard deviation of the logarithm of compute times
    # (worker, seconds of training): the worker dies at that time, and is replaced `restart_s` later.
    failures: tuple[tuple[int, float], ...] = ()
    restart_s: float = 5.0
    bandwidth: float = math.inf  # bytes per second of each link
    latency_s: float = 0.0  # latency of a message; a sync sends two
    # (worker, seconds of training): the worker hangs at that time, is killed `notice_s` later, and is then replaced
    # like one that died.
    hangs: tuple[tuple[int, float], ...] = ()
    notice_s: float = LEAST_S


class Synchronous(OneWorker):
    """Synchronous SGD with ``len(times.compute_s)`` virtual workers."""

    def __init__(
        self, parts: WorkerParts, times: Times, *, momentum: float = 0.0, codec: CodecConfig | None = None
    ) -> None:
        super().__init__(parts, momentum=momentum)
        self.times, self.workers = times, len(times.compute_s)
        for module in parts.model.modules():
            if isinstance(module, Constrained):  # the workers share one model, so each takes a part of the step
                module.constraint_share = 1 / self.workers
        self.codes = SharedCodes(self.sgd.parameters, codec) if codec and codec.kind == "ternary" else None

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress after every step; raises as `OneWorker.epoch` does."""
        self.states_M, self.progress = states_M.copy(), Progress()
        self.parts.begin_training()
        random = np.random.default_rng((self.parts.seed, epoch))
        for before, numbers in turns(states_M, self.workers, self.parts.source.rows):
            steps, gradients = zip(*(gradient(self.parts, epoch, number) for number in numbers), strict=True)
            for number, step in zip(numbers, steps, strict=True):
                if not step.finite:
                    raise Diverged(epoch, number, step.loss, rate(before))
            mean, up, down = self._mean(gradients, (self.parts.seed, epoch, before))
            self.sgd.step(mean, rate(before))
            self.states_M[numbers] = USED
            spread = np.exp(self.times.jitter * random.standard_normal(self.workers))
            seconds = float((np.array(self.times.compute_s) * spread)[: len(numbers)].max())
            seconds += exchange_s(self.times, self.workers, up + down)
            self.progress += sum(
                (step.progress for step in steps),
                start=Progress(seconds=seconds, up=self.workers * up, down=self.workers * down),
            )
            yield self.progress

    def _mean(self, gradients: Sequence[Sequence[Tensor]], key: tuple[int, ...]) -> tuple[Sequence[Tensor], int, int]:
        """The mean gradient, and the bytes that each worker sends and receives for it."""
        if self.codes and self.workers > 1:
            return self.codes.mean(gradients, self.workers, key)
        size = sum(g.nbytes for g in gradients[0]) if self.workers > 1 else 0
        return [sum(each) / len(gradients) for each in zip(*gradients, strict=True)], size, size


def exchange_s(times: Times, workers: int, size: int) -> float:
    """Seconds that the workers take to exchange gradients; `size` is the bytes per worker, up and down together.

    Gradients are sent up a tree and the mean is sent down: 2 log2(N) W / bandwidth for W bytes per worker, where the
    bytes of each direction are those really sent (the mean has more levels than a gradient, so its code takes more).
    Each of the 2 log2(N) steps also costs the latency, and the exchange as a whole `sync_s`.
    """
    depth = math.log2(workers)
    return depth * size / times.bandwidth + 2 * depth * times.latency_s + (times.sync_s if workers > 1 else 0.0)
