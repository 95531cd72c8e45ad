"""Sandblaster's vectors and what is done to them: the partitions' operations, and the workers' portions of a gradient.

**Partitions.** A partition is a slice of every vector. An operation works on one partition, reads nothing that a
concurrent operation writes, and returns scalars. It is idempotent: if a worker dies while performing it, another can
perform it again. There are two points and two gradients. One point and its gradient are the base, complete and
published; the others belong to the point that the line search tries. Accepting a step swaps the two.

**Portions** of a gradient are assigned on demand, the last ones twice (Dean et al. 2012, section 4.2). A free worker is
assigned a new portion; there are many more portions than workers, so fast workers compute more. When all are assigned,
a free worker gets a copy of the portion that has been outstanding longest: a backup task, as in MapReduce. Only the
result of the first worker to finish a portion is kept, so none counts twice.

Axes: K values of the model, P of them parameters, H slots of the history, N workers, J vectors of the recursion.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.interface import Progress, ShardReport, WorkerParts

_BLOCK = 1 << 15  # values whose inner products are taken at a time, in float64
_NOTHING = np.zeros(0)


@dataclass(frozen=True)
class VectorLayout:
    values: int
    parameters: int
    history: int
    workers: int

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        k, p = self.values, self.parameters
        return (2, k), (2, p), (p,), (2, self.history, p), (self.workers, k)

    @property
    def bytes(self) -> int:
        return 4 * sum(int(np.prod(shape)) for shape in self.shapes())

    def partition(self, number: int) -> slice:
        """The parameters of a partition; there are as many partitions as workers."""
        return slice(self.parameters * number // self.workers, self.parameters * (number + 1) // self.workers)


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors, float32; the history `pairs_2HP` has s (differences of points) and y (of gradients)."""

    points_2K: Tensor  # parameters and buffers of the base and of the trial point
    gradients_2P: Tensor  # gradients of the objective at these points
    direction_P: Tensor
    pairs_2HP: Tensor
    sums_NK: Tensor  # each worker's result in this evaluation: its gradient summed over frames, then its buffers

    @staticmethod
    def over(layout: VectorLayout, memory: object) -> "Vectors":
        """Views of a block of memory of `layout.bytes` bytes."""
        views, offset = [], 0
        for shape in layout.shapes():
            count = int(np.prod(shape))
            array: np.ndarray = np.frombuffer(memory, np.float32, count, offset)  # type: ignore[call-overload]
            views.append(torch.from_numpy(array.reshape(shape)))
            offset += 4 * count
        return Vectors(*views)


class Operation(Protocol):
    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        """Perform an operation on one partition; the results of all partitions are added."""


@dataclass(frozen=True)
class Move:
    """Set the trial point to the base plus `step` times the direction."""

    base: int
    step: float

    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        points_2K = vectors.points_2K
        torch.add(
            points_2K[self.base, part], vectors.direction_P[part], alpha=self.step, out=points_2K[1 - self.base, part]
        )
        return _NOTHING


@dataclass(frozen=True)
class Gather:
    """Average the workers' sums over `frames` into the gradient at point `at`, and add that of the weight decay."""

    at: int
    workers: tuple[int, ...]
    frames: int
    weight_decay: float

    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        """Result: gradient . direction, gradient . gradient and point . point."""
        g, point = vectors.gradients_2P[self.at, part], vectors.points_2K[self.at, part]
        torch.mul(vectors.sums_NK[self.workers[0], part], 1 / self.frames, out=g)
        for worker in self.workers[1:]:
            g.add_(vectors.sums_NK[worker, part], alpha=1 / self.frames)
        if self.weight_decay:
            g.add_(point, alpha=self.weight_decay)
        return np.array([_dot(g, vectors.direction_P[part]), _dot(g, g), _dot(point, point)])


@dataclass(frozen=True)
class Multiply:
    """Compute the inner products (J, J) of the pairs in these slots and the gradient at the base."""

    base: int
    slots: tuple[int, ...]

    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        rows = _rows(vectors, self.base, self.slots, part)
        dots_JJ = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for start in range(0, len(rows[0]), _BLOCK):
            block = torch.stack([row[start : start + _BLOCK].double() for row in rows])
            dots_JJ.addmm_(block, block.T)
        return dots_JJ.numpy()


@dataclass(frozen=True)
class Combine:
    """Set the direction to the sum of `coefficients_J` times the same vectors."""

    base: int
    slots: tuple[int, ...]
    coefficients_J: tuple[float, ...]

    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        direction = vectors.direction_P[part].zero_()
        for row, coefficient in zip(_rows(vectors, self.base, self.slots, part), self.coefficients_J, strict=True):
            direction.add_(row, alpha=coefficient)
        return _NOTHING


@dataclass(frozen=True)
class Remember:
    """Store the pair (s, y) of the step from the base to the trial point in a slot."""

    base: int
    slot: int

    def __call__(self, vectors: Vectors, part: slice) -> np.ndarray:
        for row, both in enumerate((vectors.points_2K, vectors.gradients_2P)):
            torch.sub(both[1 - self.base, part], both[self.base, part], out=vectors.pairs_2HP[row, self.slot, part])
        return _NOTHING


def reset_buffers(vectors: Vectors, base: int) -> None:
    num_parameters = vectors.gradients_2P.shape[1]
    vectors.points_2K[1 - base, num_parameters:] = vectors.points_2K[base, num_parameters:]


@torch.no_grad()
def gather_buffers(vectors: Vectors, base: int, workers: Sequence[int], codes: int) -> None:
    """Set the running means of the trial point to the mean of the workers'; means that did not change stay exact.

    The last `codes` values are codes (`speech3.engine.flat`): they are those of the first worker.
    """
    num_parameters, values = vectors.gradients_2P.shape[1], vectors.points_2K.shape[1]
    means, coded = slice(num_parameters, values - codes), slice(values - codes, values)
    before = vectors.points_2K[base, means]
    change = sum(vectors.sums_NK[worker, means] - before for worker in workers)
    vectors.points_2K[1 - base, means] = before + change / len(workers)
    vectors.points_2K[1 - base, coded] = vectors.sums_NK[workers[0], coded]


def _rows(vectors: Vectors, base: int, slots: Sequence[int], part: slice) -> list[Tensor]:
    pairs = [vectors.pairs_2HP[row, slot, part] for row in (0, 1) for slot in slots]
    return [*pairs, vectors.gradients_2P[base, part]]


def _dot(a: Tensor, b: Tensor) -> float:
    blocks = range(0, len(a), _BLOCK)
    return sum(float(torch.dot(a[i : i + _BLOCK].double(), b[i : i + _BLOCK].double())) for i in blocks)


class Portions:
    """The portions of one evaluation, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.waiting = deque(range(count))
        self.out: dict[int, list[int]] = {}  # portion -> workers that compute it; the longest outstanding first
        self.kept: dict[int, int] = {}  # portion -> worker whose sum contains it
        self.count = count

    def assign(self, worker: int) -> int | None:
        """Assign a portion to a free worker; None if there is none left that it could compute."""
        if self.waiting:
            portion = self.waiting.popleft()
            self.out[portion] = [worker]
            return portion
        for portion, others in self.out.items():
            if len(others) == 1 and worker not in others:
                others.append(worker)
                return portion
        return None

    def computed(self, worker: int, portion: int) -> bool:
        """Record that a worker computed a portion; returns whether the worker keeps the result."""
        if worker not in self.out.get(portion, ()):
            return False
        del self.out[portion]
        self.kept[portion] = worker
        return True

    def lost(self, worker: int) -> int:
        """A worker died and its sum is lost: its portions wait again. Returns how many they are."""
        back = [portion for portion, keeper in self.kept.items() if keeper == worker]
        for portion in back:
            del self.kept[portion]
        for portion in [portion for portion, workers in self.out.items() if worker in workers]:
            self.out[portion].remove(worker)
            if not self.out[portion]:
                del self.out[portion]
                back.append(portion)
        self.waiting.extendleft(reversed(back))
        return len(back)

    @property
    def finished(self) -> bool:
        return len(self.kept) == self.count

    @property
    def keepers(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.kept.values())))


@dataclass(frozen=True)
class Evaluation:
    """The loss of all portions, and the gradient, which is in the sums of the workers `keepers`."""

    progress: Progress = field(default_factory=Progress)  # its frames, losses and so on
    keepers: tuple[int, ...] = ()
    bad: int | None = None  # a minibatch whose loss or gradient is not finite; the other fields are then meaningless


@dataclass(frozen=True)
class ComputePortion:
    """The order to compute the gradient of the minibatches `numbers` at the point `at`."""

    evaluation: int
    at: int
    epoch: int
    portion: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class ComputedPortion:
    """The result of an order; `bad` as in `Evaluation`."""

    order: ComputePortion
    progress: Progress
    bad: int | None


def summed(kept: Mapping[int, ComputedPortion], keepers: tuple[int, ...]) -> Evaluation:
    """Add up the results of all portions, whose order does not depend on that in which they were computed."""
    return Evaluation(sum((kept[portion].progress for portion in sorted(kept)), Progress()), keepers)


def with_waits(reports: Sequence[ShardReport], seconds: float) -> tuple[ShardReport, ...]:
    """Reports with the rest of `seconds` entered as waiting."""
    return tuple(each + ShardReport(wait_s=max(0.0, seconds - each.compute_s - each.sync_s)) for each in reports)


class Workspace:
    """A worker's workspace: its copy of the model, and the gradient of its current portion."""

    def __init__(self, parts: WorkerParts, vectors: Vectors, layout: VectorLayout, worker: int) -> None:
        self.parts, self.vectors, self.layout, self.worker = parts, vectors, layout, worker
        self.own = flatten(parts.model)
        self.portion = self.own.zeros_like()
        self.loaded = self.summed = -1  # evaluations of the loaded point and of the sum
        parts.begin_training()

    @torch.no_grad()
    def compute(self, order: ComputePortion) -> ComputedPortion:
        """Compute the gradient of a portion, summed over its frames."""
        if self.loaded != order.evaluation:
            self.own.load(self.vectors.points_2K[order.at])
            self.loaded = order.evaluation
        self.portion.vector_K.zero_()
        done, bad = Progress(), None
        for number in order.numbers:
            with torch.enable_grad():
                step, g = gradient(self.parts, order.epoch, number)
            if not step.finite:
                bad = number
                break
            for view, each in zip(self.portion.views, g, strict=True):
                view.add_(each, alpha=step.frames)
            done += step.progress
        return ComputedPortion(order, done, bad)

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

    @torch.no_grad()
    def operate(self, operation: Operation, partition: int) -> np.ndarray:
        return operation(self.vectors, self.layout.partition(partition))
