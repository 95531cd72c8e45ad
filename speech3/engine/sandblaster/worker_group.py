"""The workers of Sandblaster: what the coordinator asks of a group of them, and how one of them computes.

Parameters, history and each worker's sum of gradients lie in memory that all workers of a group see
(`partition.Vectors`). A group assigns the portions of a gradient to its workers on demand (`portions`), and applies
operations to the server partitions. Its workers are processes on one host (`processes`), or virtual workers on a
virtual clock (`virtual`).
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
    """Loss and gradient at a point, summed over all portions; the gradient is in the sums of the workers `keepers`.

    Attributes
    ----------
    bad
        A minibatch whose loss or gradient is not finite; the other fields are then meaningless.
    """

    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    keepers: tuple[int, ...] = ()
    bad: int | None = None
    left_out: int = 0


@dataclass(frozen=True)
class Compute:
    """To a worker: compute the gradient of the minibatches `numbers` at the point `at`."""

    evaluation: int
    at: int
    epoch: int
    portion: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Computed:
    """From a worker: the result of an order and the seconds it took; `bad` as in `Evaluation`."""

    order: Compute
    frames: int
    loss_sum: float
    correct: int
    bad: int | None
    seconds: float
    left_out: int = 0


def together(kept: Collection[Computed], keepers: tuple[int, ...]) -> Evaluation:
    """Sum the results of all portions; the result does not depend on the order in which they were computed."""
    return Evaluation(
        sum(each.frames for each in kept), math.fsum(each.loss_sum for each in kept),
        sum(each.correct for each in kept), keepers, left_out=sum(each.left_out for each in kept),
    )  # fmt: skip


class WorkerGroup(Protocol):
    """The workers.

    Attributes
    ----------
    vectors
        The vectors that all workers see.
    up, down
        Bytes that workers sent and received in the epoch; 0 where nothing is sent.
    returned, restarts
        Portions that dead workers returned in the epoch, and workers that replaced a dead one.
    note
        The last remark about a worker that hung in the epoch; may be empty.
    """

    vectors: Vectors
    up: int
    down: int
    returned: int
    restarts: int

    @property
    def note(self) -> str:
        """See above."""

    def begin(self, epoch: int, seconds: float) -> Generator[None, None, None]:
        """Begin an epoch, after `seconds` of training, and reset the counts."""

    def seconds(self) -> float:
        """Seconds since the epoch began."""

    def reports(self) -> tuple[ShardReport, ...]:
        """Each worker's report of the epoch: all portions computed, kept or not; sync time is partition operations."""

    def evaluate(self, at: int, numbers: Sequence[tuple[int, ...]]) -> Generator[None, None, Evaluation]:
        """Compute loss and gradient at point `at`; each element of `numbers` is one portion."""

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Apply an operation to every partition; returns the sum of the results, always added in the same order."""

    def close(self) -> None:
        """Release processes and memory."""


def with_waits(reports: Sequence[ShardReport], seconds: float) -> tuple[ShardReport, ...]:
    """Reports with the rest of `seconds` entered as waiting."""
    return tuple(each + ShardReport(wait_s=max(0.0, seconds - each.compute_s - each.sync_s)) for each in reports)


class Workspace:
    """A worker's workspace: its copy of the model, and the gradient of its current portion."""

    def __init__(self, parts: Parts, vectors: Vectors, layout: Layout, worker: int) -> None:
        self.parts, self.vectors, self.layout, self.worker = parts, vectors, layout, worker
        self.own = flatten(parts.model)
        self.portion = self.own.zeros_like()
        self.loaded = self.summed = -1  # evaluations of the loaded point and of the sum
        parts.begin_training()

    @torch.no_grad()
    def compute(self, order: Compute) -> Computed:
        """Compute the gradient of a portion, summed over its frames."""
        begun = time.perf_counter()
        if self.loaded != order.evaluation:
            self.own.load(self.vectors.points_2K[order.at])
            self.loaded = order.evaluation
        self.portion.vector_K.zero_()
        frames, left_out, correct, losses, bad = 0, 0, 0, [], None
        for number in order.numbers:
            with torch.enable_grad():
                step, g = gradient(self.parts, order.epoch, number)
            if not step.finite:
                bad = number
                break
            for view, each in zip(self.portion.views, g, strict=True):
                view.add_(each, alpha=step.frames)
            frames, correct = frames + step.frames, correct + step.correct
            left_out += step.left_out
            losses.append(step.loss * step.frames)
        seconds = time.perf_counter() - begun
        return Computed(order, frames, math.fsum(losses), correct, bad, seconds, left_out)

    @torch.no_grad()
    def keep(self, evaluation: int) -> None:
        """Add the current portion's gradient to the worker's sum; its buffers are those after this portion."""
        sum_K, num_parameters = self.vectors.sums_NK[self.worker], self.layout.parameters
        mine = self.portion.vector_K.to(sum_K.device)
        if self.summed == evaluation:
            sum_K[:num_parameters].add_(mine)
        else:
            sum_K[:num_parameters].copy_(mine)
        self.own.collect()
        sum_K[num_parameters:].copy_(self.own.buffers)
        self.summed = evaluation
