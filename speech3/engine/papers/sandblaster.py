"""Sandblaster L-BFGS (Dean et al. 2012, section 4.2): the algorithm, and the backend that runs it.

The algorithm (`descend`) handles scalars only. Parameters, gradients and history stay in the server partitions, each of
which holds a slice of all of them and applies the operations that the coordinator asks for. The two-loop recursion
(Nocedal 1980) runs over the coefficients of the vectors s_1 .. s_k, y_1 .. y_k and g, for which their (2k + 1)^2 inner
products are sufficient (Chen, Wang and Zhou 2014). The line search finds strong Wolfe points (Nocedal and Wright 2006,
algorithms 3.5 and 3.6). The paper does not name its line search or its stopping rule; both are our choice. So is
computing all inner products anew in each iteration, a small share of the time of one gradient.

We depart from the paper in two ways: partitions are slices of shared memory, served by any free worker; and each worker
adds up the gradients of its portions and sends one sum at the end, where the paper sends several.

Axes: M minibatches of an epoch, K values of the model, J the 2k + 1 vectors of the recursion.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from speech3.config import LbfgsConfig
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, WAITING, Progress, Rate, Snapshot, WorkerParts
from speech3.engine.papers.sandblaster_workers import (
    Combine,
    Evaluation,
    Gather,
    Move,
    Multiply,
    Remember,
    VectorLayout,
    WorkerGroup,
    gather_buffers,
    reset_buffers,
)
from speech3.errors import TrainingError

_DECREASE, _CURVATURE = 1e-4, 0.9  # constants of the Wolfe conditions for quasi-Newton steps (Nocedal and Wright)
_NOISE = 1e-7  # relative difference of two losses below which float32 cannot tell them apart
_EVALUATIONS = 20  # at most, in one line search
_CURVED = 1e-3  # share of the slope: a pair with less curvature is rounding error


@dataclass(frozen=True)
class TrialPoint:
    """The objective at the base plus `step` times the direction, and its derivative with respect to the step."""

    step: float
    loss: float
    slope: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.slope)


class Objective(Protocol):
    """What the algorithm asks for. Every method is a generator that yields while it waits for workers."""

    def begin(self) -> Generator[None, None, float]:
        """Compute loss and gradient at the base; returns the loss, finite."""

    def dots(self, slots: tuple[int, ...]) -> Generator[None, None, np.ndarray]:
        """Compute the inner products of the pairs in these slots, oldest first, and of g: (J, J), float64."""

    def direct(self, slots: tuple[int, ...], coefficients_J: tuple[float, ...]) -> Generator[None, None, None]:
        """Set the direction to the sum of `coefficients_J` times the same vectors."""

    def at(self, step: float) -> Generator[None, None, TrialPoint]:
        """Compute loss, slope and gradient at the base plus `step` times the direction."""

    def accept(self, slot: int | None) -> Generator[None, None, None]:
        """Make the last trial point the base and, with a slot, store this step's pair."""


@dataclass
class History:
    """The slots that hold pairs, oldest first: at most `size` of `size` + 1, so a slot is free for the next pair."""

    size: int
    slots: list[int] = field(default_factory=list)

    def next_slot(self) -> int:
        return next(slot for slot in range(self.size + 1) if slot not in self.slots)

    def put(self, slot: int) -> None:
        self.slots = [*self.slots, slot][-self.size :]


def coefficients(dots_JJ: np.ndarray) -> np.ndarray:
    """The quasi-Newton direction -H g in terms of s_1 .. s_k, y_1 .. y_k, g; float64 (J,).

    `dots_JJ`: inner products of these vectors; each s_i . y_i is above 0.
    """
    pairs = len(dots_JJ) // 2
    c_J = np.zeros(len(dots_JJ))
    c_J[-1] = 1.0
    alphas = [0.0] * pairs
    for i in reversed(range(pairs)):
        alphas[i] = float(dots_JJ[i] @ c_J / dots_JJ[i, pairs + i])
        c_J[pairs + i] -= alphas[i]
    if pairs:
        c_J *= dots_JJ[pairs - 1, 2 * pairs - 1] / dots_JJ[2 * pairs - 1, 2 * pairs - 1]
    for i in range(pairs):
        beta = float(dots_JJ[pairs + i] @ c_J / dots_JJ[i, pairs + i])
        c_J[i] += alphas[i] - beta
    return -c_J


def descend(objective: Objective, iterations: int, history: History, first: float) -> Generator[None, None, str]:
    """Run iterations of L-BFGS on one objective, updating `history`; yields while it waits, and after each iteration.

    `first`: initial trial step along the gradient where there is no history.

    Returns why it stopped before `iterations`; empty if it did not.
    """
    loss = yield from objective.begin()
    for _ in range(iterations):
        point, slope = None, 0.0
        while point is None:
            slope = yield from _set_direction(objective, history)
            if history.slots and 0 <= -slope <= _NOISE * abs(loss):  # the gain of a quasi-Newton step
                return f"at a minimum, to the precision of float32 (loss {loss:.6g})"
            if slope < 0:
                start = TrialPoint(0.0, loss, slope)
                point = yield from search(objective.at, start, 1.0 if history.slots else first)
            if point is None and not history.slots:
                return (
                    f"no step along the gradient lowers the loss ({loss:.6g}): training is at a minimum, the gradient "
                    f"is too noisy, or the first step (training.learning_rate) is far too long or too short"
                )
            if point is None:
                history.slots = []  # restart along the gradient
        curved = point.step * (point.slope - slope) > _CURVED * point.step * abs(slope)
        slot = history.next_slot() if curved else None
        yield from objective.accept(slot)
        if slot is not None:
            history.put(slot)
        yield  # only now does the history contain the pair of this step
        loss = point.loss
    return ""


def _set_direction(objective: Objective, history: History) -> Generator[None, None, float]:
    """Set the direction; returns its slope, or NaN if it is not a descent direction."""
    asked, pairs = tuple(history.slots), len(history.slots)
    dots_JJ = yield from objective.dots(asked)
    curved = [i for i in range(pairs) if dots_JJ[i, pairs + i] > 0]  # float32 may lose the curvature
    chosen = [*curved, *(pairs + i for i in curved), 2 * pairs]
    dots_JJ, history.slots = dots_JJ[np.ix_(chosen, chosen)], [asked[i] for i in curved]
    slots = tuple(history.slots)
    c_J = coefficients(dots_JJ)
    slope = float(dots_JJ[-1] @ c_J)
    if slope < 0 and np.isfinite(c_J).all():
        yield from objective.direct(slots, tuple(c_J.tolist()))
        return slope
    return math.nan


def search(
    at: Callable[[float], Generator[None, None, TrialPoint]], start: TrialPoint, first: float
) -> Generator[None, None, TrialPoint | None]:
    """Find a step that meets the strong Wolfe conditions; else the best step that lowers the loss; else None.

    The returned point is the one tried last. Every trial computes loss and gradient of the whole batch, so slopes are
    known at all points and interpolation is cubic.
    """
    noise = _NOISE * abs(start.loss)
    # `low` has the lowest loss so far; an acceptable step lies between it and `high`.
    low, high, point = start, None, start
    for _ in range(_EVALUATIONS):
        step = _between(low, high) if high else 4 * low.step or first
        point = yield from at(step)
        if not _lower(point, start, noise) or point.loss > low.loss + noise:
            high = point
        elif abs(point.slope) <= -_CURVATURE * start.slope:
            return point
        else:
            if point.slope * ((high.step if high else math.inf) - low.step) >= 0:
                high = low
            low = point
        if high is not None and -start.slope * abs(high.step - low.step) <= 0.01 * noise:
            break  # float32 cannot resolve the remaining gain
    if low.step and low is not point:
        low = yield from at(low.step)  # its gradient was overwritten
    return low if low.finite and low.loss < start.loss else None


def _lower(point: TrialPoint, start: TrialPoint, noise: float) -> bool:
    """Sufficient decrease; where float32 cannot tell two losses apart, slopes alone decide (Hager and Zhang 2005)."""
    return point.finite and point.loss <= start.loss + _DECREASE * point.step * start.slope + noise


def _between(low: TrialPoint, high: TrialPoint) -> float:
    """The minimum of the cubic through both points, kept away from both ends."""
    width = high.step - low.step
    if not high.finite:
        return low.step + 0.1 * width
    a = low.slope + high.slope - 3 * (low.loss - high.loss) / (low.step - high.step)
    root = a * a - low.slope * high.slope
    share = 0.5
    if root >= 0:
        b = math.copysign(math.sqrt(root), width)
        divisor = high.slope - low.slope + 2 * b
        if divisor:
            share = 1 - (high.slope + b - a) / divisor
    return low.step + min(max(share, 0.1), 0.9) * width


@dataclass(frozen=True)
class Batch:
    """One objective: its portions, and for each iteration the minibatches that it stands for."""

    portions: tuple[tuple[int, ...], ...]
    stretches: tuple[np.ndarray, ...]


def batches_of(minibatches: int, rows: Sequence[range] | None, config: LbfgsConfig) -> list[Batch]:
    """The objectives of an epoch. Where there are fewer portions than batches, some batches are empty."""
    portions = [tuple(row) for row in rows] if rows is not None else [(number,) for number in range(minibatches)]
    batches = []
    for chosen in np.array_split(np.arange(len(portions)), config.batches):
        mine = tuple(portions[index] for index in chosen)
        numbers = np.array([number for portion in mine for number in portion], np.int64)
        batches.append(Batch(mine, tuple(np.array_split(numbers, config.iterations))))
    return batches


class Sandblaster:
    """The backend of L-BFGS.

    The objective is the mean loss over a large batch: the whole epoch, or one of `batches` equal parts of it, each of
    which in turn gets `iterations` of L-BFGS. The history is kept across batches and epochs, and is part of a state,
    but both gradients of a pair are of the same batch. A portion of the gradient is a minibatch, or a row of
    minibatches. The objective does not change during a line search: minibatches, augmentation and the seeds of dropout
    depend on epoch and number alone; batch normalisation normalises each minibatch by itself, and the model's running
    means are the mean of the workers' at the accepted point.

    Each iteration stands for its share of the batch's minibatches, which become used when it is accepted; that is a
    version. `frames` and `loss_sum` are those of the accepted points, each over the whole batch; rejected trials of a
    line search count only in the seconds and in the workers' minibatches.

    Parameters
    ----------
    make_workers
        Makes the worker group, given the layout of its memory.
    parts
        Parts of this process; only the size of the model is used.

    Raises whatever the worker group raises.
    """

    def __init__(
        self,
        make_workers: Callable[[VectorLayout], WorkerGroup],
        parts: WorkerParts,
        config: LbfgsConfig,
        *,
        workers: int,
    ) -> None:
        own = flatten(parts.model)
        layout = VectorLayout(own.vector_K.numel(), own.num_parameters, config.history + 1, workers)
        self.workers = make_workers(layout)
        self.batches = batches_of(len(parts.source), parts.source.rows, config)
        self.weight_decay, self.home, self.codes = parts.weight_decay, own.vector_K.device, own.num_codes
        self.history, self.base, self.began = History(config.history), 0, 0.0
        self.states_M = np.zeros(len(parts.source), np.int32)
        self.progress = Progress()
        self.load({"parameters": own.vector_K})

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end.

        The learning rate is the initial trial step, as a multiple of the gradient, where there is no history.

        Raises `Speech3Error` if the loss or its gradient is not finite where a batch begins; whatever the worker group
        raises.
        """
        self.states_M, self.progress = states_M.copy(), Progress()
        for _ in self._epoch(epoch, rate):
            yield self._now()
        yield self._now()

    def snapshot(self) -> Snapshot:
        tensors = {"parameters": self.workers.vectors.points_2K[self.base].to(self.home, copy=True)}
        if self.history.slots:
            tensors["lbfgs.pairs"] = self.workers.vectors.pairs_2HP[:, self.history.slots].to(self.home, copy=True)
        return Snapshot(tensors, self.states_M.copy(), self._now())

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        self.began = seconds
        vectors, pairs = self.workers.vectors, tensors.get("lbfgs.pairs")
        vectors.points_2K[self.base].copy_(tensors["parameters"])
        count = 0 if pairs is None else pairs.shape[1]
        self.history.slots = list(range(count))
        if pairs is not None:
            vectors.pairs_2HP[:, :count].copy_(pairs)

    def close(self) -> None:
        self.workers.close()

    def _now(self) -> Progress:
        workers = self.workers
        note = self.progress.note or workers.note
        return replace(self.progress, returned=workers.returned, restarts=workers.restarts, note=note)

    def _epoch(self, epoch: int, rate: Rate) -> Generator[None, None, None]:
        yield from self.workers.begin(epoch, self.began)
        for batch in self.batches:
            left = [stretch for stretch in batch.stretches if (self.states_M[stretch] == WAITING).any()]
            if not left:
                continue
            loss = BatchLoss(self, batch, left, epoch)
            reason = yield from descend(loss, len(left), self.history, rate(int(left[0][0])))
            if reason:  # the objective contains the minibatches that are left, so they are used
                seen = Evaluation() if loss.stepped else loss.begun  # every batch counts for the epoch's loss
                self.count(np.concatenate(left), seen)
                self.progress = replace(self.progress, note=f"ended early: {reason}")

    def count(self, numbers: np.ndarray, seen: Evaluation, versions: int = 0) -> None:
        """Count minibatches that were waiting as used, and the results of an evaluation."""
        workers, used = self.workers, int((self.states_M[numbers] == WAITING).sum())
        self.states_M[numbers] = USED
        done = self.progress + replace(seen.progress, used=used, versions=versions)
        times: dict[str, Any] = {"seconds": workers.seconds(), "shards": workers.reports()}
        self.progress = replace(done, up=workers.up, down=workers.down, **times)


class BatchLoss:
    """The mean loss over a batch, an `Objective`; `left` are the minibatches of each iteration that is left."""

    def __init__(self, backend: Sandblaster, batch: Batch, left: Sequence[np.ndarray], epoch: int) -> None:
        self.backend, self.batch, self.epoch = backend, batch, epoch
        self.workers, self.left = backend.workers, iter(left)
        self.begun = self.tried = Evaluation()  # where the batch begins, and at the last point
        self.stepped = False

    def begin(self) -> Generator[None, None, float]:
        loss, _, squared = yield from self._evaluate(self.backend.base)
        if not math.isfinite(loss + squared):
            where = f", minibatch {self.tried.bad}" if self.tried.bad is not None else ""
            raise TrainingError(
                f"epoch {self.epoch}{where}: the loss or its gradient is not finite before any step is made, so no "
                f"step can be judged: look for NaN in the data (features: speech3 inspect), or begin with another "
                f"model (speech3 train: --init)"
            )
        self.begun = self.tried
        return loss

    def dots(self, slots: tuple[int, ...]) -> Generator[None, None, np.ndarray]:
        return (yield from self.workers.operate(Multiply(self.backend.base, slots)))

    def direct(self, slots: tuple[int, ...], coefficients_J: tuple[float, ...]) -> Generator[None, None, None]:
        yield from self.workers.operate(Combine(self.backend.base, slots, coefficients_J))

    def at(self, step: float) -> Generator[None, None, TrialPoint]:
        base = self.backend.base
        yield from self.workers.operate(Move(base, step))
        reset_buffers(self.workers.vectors, base)
        loss, slope, _ = yield from self._evaluate(1 - base)
        return TrialPoint(step, loss, slope)

    def accept(self, slot: int | None) -> Generator[None, None, None]:
        backend = self.backend
        if slot is not None:
            yield from self.workers.operate(Remember(backend.base, slot))
        backend.base, self.stepped = 1 - backend.base, True
        backend.count(next(self.left), self.tried, versions=1)

    def _evaluate(self, at: int) -> Generator[None, None, tuple[float, float, float]]:
        """Compute the loss, the slope along the direction, and the squared norm of the gradient."""
        backend = self.backend
        self.tried = yield from self.workers.evaluate(at, self.batch.portions)
        frames, keepers = self.tried.progress.frames, self.tried.keepers
        if self.tried.bad is not None or not frames:
            return math.inf, math.nan, math.nan
        gather = Gather(at, keepers, frames, backend.weight_decay)
        slope, squared, length = (yield from self.workers.operate(gather)).tolist()
        if at != backend.base:
            gather_buffers(self.workers.vectors, backend.base, keepers, backend.codes)
        return self.tried.progress.loss_sum / frames + 0.5 * backend.weight_decay * length, slope, squared
