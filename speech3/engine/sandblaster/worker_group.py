"""Sandblaster's workers, whoever they are: what the coordinator asks of them, and how one computes.

Parameters, history and each worker's sum of gradients lie in memory that all workers of a group see
(`partition.Vectors`). A group hands the portions of a gradient to its workers on demand (`portions`), and lets partitions
do what they are told: processes on one host (`processes`), or virtual workers with a virtual clock (`virtual`).
"""

import math
import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.sandblaster.partition import Layout, Operation, Vectors
from speech3.engine.world import Parts, ShardReport


@dataclass(frozen=True)
class Evaluation:
    """Loss and gradient at a point: what all portions make together; the gradient is in the sums of `keepers`.

    Attributes
    ----------
    bad
        A minibatch whose loss is not finite; then the rest says nothing.
    """

    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    keepers: tuple[int, ...] = ()
    bad: int | None = None


@dataclass(frozen=True)
class Compute:
    """To a worker: the gradient of these minibatches, at that point."""

    evaluation: int
    at: int
    epoch: int
    portion: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Computed:
    """From a worker: done, in so many seconds; `bad` as in `Evaluation`."""

    order: Compute
    frames: int
    loss_sum: float
    correct: int
    bad: int | None
    seconds: float


def together(kept: Collection[Computed], keepers: tuple[int, ...]) -> Evaluation:
    """What portions make together; the order in which they were computed changes nothing."""
    return Evaluation(
        sum(each.frames for each in kept), math.fsum(each.loss_sum for each in kept),
        sum(each.correct for each in kept), keepers,
    )  # fmt: skip


class WorkerGroup(Protocol):
    """The workers.

    Attributes
    ----------
    vectors
        What all of them see.
    up, down
        Bytes that they sent and got in the epoch; 0 where nothing is sent.
    returned, restarts
        Minibatches of the epoch that were given back, and workers that took the place of a dead one.
    """

    vectors: Vectors
    up: int
    down: int
    returned: int
    restarts: int

    def begin(self, epoch: int, seconds: float) -> Generator[None, None, None]:
        """An epoch begins, after so many seconds of training: count from zero."""

    def seconds(self) -> float:
        """Since the epoch began."""

    def reports(self) -> tuple[ShardReport, ...]:
        """What workers did in the epoch: every portion computed counts, kept or not. Syncs are partitions' work."""

    def evaluate(self, at: int, numbers: Sequence[tuple[int, ...]]) -> Generator[None, None, Evaluation]:
        """Loss and gradient at point `at`, a portion for each of `numbers`."""

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Let every partition do it; the sum of their answers, always added in the same order."""

    def close(self) -> None:
        """End what has to be ended."""


def with_waits(reports: Sequence[ShardReport], seconds: float) -> tuple[ShardReport, ...]:
    """What is left of the time is waiting."""
    return tuple(each + ShardReport(wait_s=max(0.0, seconds - each.compute_s - each.sync_s)) for each in reports)


class Bench:
    """Where a worker works: its copy of the model, the gradient that it has in hand."""

    def __init__(self, parts: Parts, vectors: Vectors, layout: Layout, worker: int) -> None:
        self.parts, self.vectors, self.layout, self.worker = parts, vectors, layout, worker
        self.own = flatten(parts.model)
        self.in_hand = self.own.zeros_like()
        self.loaded = self.summed = -1  # evaluation whose point the copy is, and whose gradients the sum has
        parts.model.train()

    @torch.no_grad()
    def compute(self, order: Compute) -> Computed:
        """Sum over frames of the gradient of a portion."""
        begun = time.perf_counter()
        if self.loaded != order.evaluation:
            self.own.vector_K.copy_(self.vectors.points_2K[order.at])
            self.loaded = order.evaluation
        self.in_hand.vector_K.zero_()
        frames, correct, losses, bad = 0, 0, [], None
        for number in order.numbers:
            with torch.enable_grad():
                step, g = gradient(self.parts, order.epoch, number)
            if g is None:
                bad = number
                break
            for view, each in zip(self.in_hand.views, g, strict=True):
                view.add_(each, alpha=step.frames)
            frames, correct = frames + step.frames, correct + step.correct
            losses.append(step.loss * step.frames)
        return Computed(order, frames, math.fsum(losses), correct, bad, time.perf_counter() - begun)

    @torch.no_grad()
    def keep(self, evaluation: int) -> None:
        """Add it to the sum; the buffers there are those after the last portion."""
        sum_K, num_parameters = self.vectors.sums_NK[self.worker], self.layout.parameters
        mine = self.in_hand.vector_K.to(sum_K.device)
        if self.summed == evaluation:
            sum_K[:num_parameters].add_(mine)
        else:
            sum_K[:num_parameters].copy_(mine)
        sum_K[num_parameters:].copy_(self.own.buffers)
        self.summed = evaluation
