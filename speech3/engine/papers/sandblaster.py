"""Sandblaster L-BFGS (Dean et al. 2012, section 4.2): the algorithm, and the backend that runs it.

**The algorithm** (`descend`) handles scalars only. Parameters, gradients and history stay in the server partitions,
each of which holds a slice of all of them and applies the operations that the coordinator asks for. The two-loop
recursion (Nocedal 1980) runs over the coefficients of the vectors s_1 .. s_k, y_1 .. y_k and g, for which their (2k +
1)^2 inner products are sufficient (Chen, Wang and Zhou 2014). The line search finds strong Wolfe points (Nocedal and
Wright 2006, algorithms 3.5 and 3.6). The paper does not name its line search or its stopping rule; both are our choice.
So is computing all inner products anew in each iteration: that costs the partitions a small share of one gradient, and
no state has to be kept in step. Like the shard's loop, the algorithm is a generator: it yields requests, and
`Sandblaster` sends the results.

**The objective** is the mean loss over a large batch: the whole epoch, or one of `batches` equal parts of it. Each
batch in turn gets `iterations` of L-BFGS. The history is kept across batches and epochs, but both gradients of a pair
are of the same batch. A portion of the gradient is a minibatch, or a row of minibatches where a recurrent model carries
its state along the row. The objective must not change during a line search. It does not: minibatches, augmentation and
the seeds of dropout depend on epoch and number alone. Batch normalisation normalises each minibatch by itself, and the
model's running means are the mean of the workers' at the accepted point.

**Counts.** Each iteration stands for its share of the batch's minibatches, which become `used` when it is accepted.
`frames` and `loss_sum` are those of the accepted points, each over the whole batch; rejected trials of a line search
count only in the seconds and in the workers' minibatches. A version is an accepted iteration. Progress and state are
those of the last accepted iteration. A checkpoint contains the history, so a killed run resumes with it.

We depart from the paper in two ways: partitions are slices of shared memory, served by any free worker; and each worker
adds up the gradients of its portions and sends one sum at the end, where the paper sends several.

Axes: M minibatches of an epoch, K values of the model, J the 2k + 1 vectors of the recursion.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.config import LbfgsConfig
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, WAITING, Progress, Rate, Snapshot, WorkerParts
from speech3.engine.papers.sandblaster_vectors import (
    Combine,
    Evaluation,
    Gather,
    Move,
    Multiply,
    Remember,
    VectorLayout,
    gather_buffers,
    reset_buffers,
)
from speech3.engine.papers.sandblaster_workers import WorkerGroup
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


@dataclass(frozen=True)
class Begin:
    """Request loss and gradient at the base. Result: the loss, finite."""


@dataclass(frozen=True)
class Dots:
    """Request the inner products of the pairs in these slots, oldest first, and of g. Result: (J, J), float64."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Direct:
    """Request that the direction be set to the sum of `coefficients_J` times the same vectors. No result."""

    slots: tuple[int, ...]
    coefficients_J: tuple[float, ...]


@dataclass(frozen=True)
class Try:
    """Request loss, slope and gradient at the base plus `step` times the direction. Result: `TrialPoint`."""

    step: float


@dataclass(frozen=True)
class Accept:
    """Request that the last trial point become the base and, with a slot, this step's pair be stored. No result."""

    slot: int | None


LbfgsRequest = Begin | Dots | Direct | Try | Accept


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

    Parameters
    ----------
    dots_JJ
        Inner products of these vectors; each s_i . y_i is above 0.
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


def descend(iterations: int, history: History, first: float) -> Generator[LbfgsRequest, Any, str]:
    """Run iterations of L-BFGS on one objective, updating `history`.

    Parameters
    ----------
    first
        Initial trial step along the gradient where there is no history.

    Returns
    -------
    reason
        Why it stopped before `iterations`; empty if it did not.
    """
    loss = yield Begin()
    for _ in range(iterations):
        point, slope = None, 0.0
        while point is None:
            slope = yield from _set_direction(history)
            if history.slots and 0 <= -slope <= _NOISE * abs(loss):  # the gain of a quasi-Newton step
                return f"at a minimum, to the precision of float32 (loss {loss:.6g})"
            if slope < 0:
                start = TrialPoint(0.0, loss, slope)
                point = yield from search(start, 1.0 if history.slots else first)
            if point is None and not history.slots:
                return (
                    f"no step along the gradient lowers the loss ({loss:.6g}): training is at a minimum, the gradient "
                    f"is too noisy, or the first step (training.learning_rate) is far too long or too short"
                )
            if point is None:
                history.slots = []  # restart along the gradient
        curved = point.step * (point.slope - slope) > _CURVED * point.step * abs(slope)
        slot = history.next_slot() if curved else None
        yield Accept(slot)
        if slot is not None:
            history.put(slot)
        loss = point.loss
    return ""


def _set_direction(history: History) -> Generator[LbfgsRequest, Any, float]:
    """Set the direction; returns its slope, or NaN if it is not a descent direction."""
    asked, pairs = tuple(history.slots), len(history.slots)
    dots_JJ = yield Dots(asked)
    curved = [i for i in range(pairs) if dots_JJ[i, pairs + i] > 0]  # float32 may lose the curvature
    chosen = [*curved, *(pairs + i for i in curved), 2 * pairs]
    dots_JJ, history.slots = dots_JJ[np.ix_(chosen, chosen)], [asked[i] for i in curved]
    slots = tuple(history.slots)
    c_J = coefficients(dots_JJ)
    slope = float(dots_JJ[-1] @ c_J)
    if slope < 0 and np.isfinite(c_J).all():
        yield Direct(slots, tuple(c_J.tolist()))
        return slope
    return math.nan


def search(start: TrialPoint, first: float) -> Generator[LbfgsRequest, TrialPoint, TrialPoint | None]:
    """Find a step that meets the strong Wolfe conditions; else the best step that lowers the loss; else None.

    The returned point is the one tried last. Every trial computes loss and gradient of the whole batch, so slopes are
    known at all points and interpolation is cubic.
    """
    noise = _NOISE * abs(start.loss)
    # `low` has the lowest loss so far; an acceptable step lies between it and `high`.
    low, high, point = start, None, start
    for _ in range(_EVALUATIONS):
        step = _longer(low) if high is None and low.step else first if high is None else _between(low, high)
        point = yield Try(step)
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
        low = yield Try(low.step)  # its gradient was overwritten
    return low if low.finite and low.loss < start.loss else None


def _lower(point: TrialPoint, start: TrialPoint, noise: float) -> bool:
    """Sufficient decrease; where float32 cannot tell two losses apart, slopes alone decide (Hager and Zhang 2005)."""
    return point.finite and point.loss <= start.loss + _DECREASE * point.step * start.slope + noise


def _longer(low: TrialPoint) -> float:
    return 4 * low.step


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

    Parameters
    ----------
    make_workers
        Makes the worker group, given the layout of its memory.
    parts
        Parts of this process; only the size of the model is used.

    Raises
    ------
    Speech3Error
        Whatever the worker group raises.
    """

    def __init__(
        self, make_workers: Callable[[VectorLayout], WorkerGroup], parts: WorkerParts, config: LbfgsConfig, *,
        workers: int, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        own = flatten(parts.model)
        layout = VectorLayout(own.vector_K.numel(), own.num_parameters, config.history + 1, workers)
        self.workers = make_workers(layout)
        self.batches = batches_of(len(parts.source), parts.source.rows, config)
        self.weight_decay, self.home, self.codes = weight_decay, own.vector_K.device, own.num_codes
        self.history, self.base, self.began = History(config.history), 0, 0.0
        self.states_M = np.zeros(len(parts.source), np.int32)
        self.progress = Progress()
        self.tried = self.begun = Evaluation()
        self.load({"parameters": own.vector_K})

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end.

        The learning rate is the initial trial step, as a multiple of the gradient, where there is no history.

        Raises
        ------
        Speech3Error
            The loss or its gradient is not finite where a batch begins; whatever the worker group raises.
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
        """Set base and history; without a saved history it begins empty."""
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
            yield from self._descend(batch, left, epoch, rate(int(left[0][0])))

    def _descend(self, batch: Batch, left: list[np.ndarray], epoch: int, first: float) -> Generator[None, None, None]:
        """Run one iteration of L-BFGS for each remaining stretch of minibatches, serving the algorithm's requests."""
        algorithm, stretches = descend(len(left), self.history, first), iter(left)
        answer, accepted, stepped = None, False, False
        while True:
            try:
                request: LbfgsRequest = algorithm.send(answer)
            except StopIteration as end:
                if accepted:
                    yield
                if end.value:
                    self._end_early(f"ended early: {end.value}", left, stepped=stepped)
                return
            if accepted:
                yield  # only now does the history contain the pair of this step
            answer = yield from self._answer(request, batch, epoch)
            accepted = isinstance(request, Accept)
            if accepted:
                self._publish(next(stretches))
                stepped = True

    def _answer(self, request: LbfgsRequest, batch: Batch, epoch: int) -> Generator[None, None, Any]:
        workers, base = self.workers, self.base
        match request:
            case Begin():
                return (yield from self._begin(batch, epoch))
            case Dots(slots):
                return (yield from workers.operate(Multiply(base, slots)))
            case Direct(slots, coefficients_J):
                yield from workers.operate(Combine(base, slots, coefficients_J))
            case Try(step):
                yield from workers.operate(Move(base, step))
                reset_buffers(workers.vectors, base)
                loss, slope, _ = yield from self._evaluate(1 - base, batch)
                return TrialPoint(step, loss, slope)
            case Accept(slot):
                if slot is not None:
                    yield from workers.operate(Remember(base, slot))
                self.base = 1 - base
        return None

    def _evaluate(self, at: int, batch: Batch) -> Generator[None, None, tuple[float, float, float]]:
        """Compute the loss, the slope along the direction, and the squared norm of the gradient."""
        self.tried = yield from self.workers.evaluate(at, batch.portions)
        if self.tried.bad is not None or not self.tried.frames:
            return math.inf, math.nan, math.nan
        gather = Gather(at, self.tried.keepers, self.tried.frames, self.weight_decay)
        slope, squared, length = (yield from self.workers.operate(gather)).tolist()
        if at != self.base:
            gather_buffers(self.workers.vectors, self.base, self.tried.keepers, self.codes)
        return self.tried.loss_sum / self.tried.frames + 0.5 * self.weight_decay * length, slope, squared

    def _begin(self, batch: Batch, epoch: int) -> Generator[None, None, float]:
        loss, _, squared = yield from self._evaluate(self.base, batch)
        if not math.isfinite(loss + squared):
            where = f", minibatch {self.tried.bad}" if self.tried.bad is not None else ""
            raise TrainingError(
                f"epoch {epoch}{where}: the loss or its gradient is not finite before any step is made, so no step "
                f"can be judged: look for NaN in the data (features: speech3 inspect), or begin with another model "
                f"(speech3 train: --init)"
            )
        self.begun = self.tried
        return loss

    def _publish(self, stretch: np.ndarray) -> None:
        done, tried = self.progress, self.tried
        ended = int((self.states_M[stretch] == WAITING).sum())
        self.states_M[stretch] = USED
        self.progress = replace(
            done, used=done.used + ended, frames=done.frames + tried.frames, correct=done.correct + tried.correct,
            loss_sum=done.loss_sum + tried.loss_sum, versions=done.versions + 1, seconds=self.workers.seconds(),
            returned=self.workers.returned, restarts=self.workers.restarts, shards=self.workers.reports(),
            up=self.workers.up, down=self.workers.down, left_out=done.left_out + tried.left_out,
        )  # fmt: skip

    def _end_early(self, note: str, stretches: list[np.ndarray], *, stepped: bool) -> None:
        """Count a batch's waiting minibatches as used, since its objective contains them, and note the reason."""
        numbers = np.concatenate(stretches)
        ended = int((self.states_M[numbers] == WAITING).sum())
        self.states_M[numbers] = USED
        seen = Evaluation() if stepped else self.begun  # so that every batch counts for the epoch's loss
        self.progress = replace(
            self.progress, used=self.progress.used + ended, seconds=self.workers.seconds(), note=note,
            frames=self.progress.frames + seen.frames, loss_sum=self.progress.loss_sum + seen.loss_sum,
            correct=self.progress.correct + seen.correct, shards=self.workers.reports(), up=self.workers.up,
            down=self.workers.down, left_out=self.progress.left_out + seen.left_out,
        )  # fmt: skip
