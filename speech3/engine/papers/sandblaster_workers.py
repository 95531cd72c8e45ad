"""The workers of Sandblaster: what they hold, do and send, as processes on this host and on a virtual clock.

Parameters, history and each worker's sum of gradients lie in memory that all workers of a group see (`Vectors`). A
group assigns the portions of a gradient to its workers on demand, and applies operations to the server partitions.

**Partitions.** A partition is a slice of every vector. An operation works on one partition, reads nothing that a
concurrent operation writes, and returns scalars. It is idempotent: if a worker dies while performing it, another can
perform it again. There are two points and two gradients. One point and its gradient are the base, complete and
published; the others belong to the point that the line search tries. Accepting a step swaps the two.

**Portions** of a gradient are assigned on demand, the last ones twice (Dean et al. 2012, section 4.2). A free worker is
assigned a new portion; there are many more portions than workers, so fast workers compute more. When all are assigned,
a free worker gets a copy of the portion that has been outstanding longest: a backup task, as in MapReduce. Only the
result of the first worker to finish a portion is kept, so none counts twice.

**Groups** are processes on this host (`Processes`), or virtual workers on a virtual clock (`Virtual`). Both have the
same methods, `begin`, `evaluate`, `operate`, `seconds`, `reports` and `close`; and the same counts of the epoch: `up`
and `down` (bytes, 0 where nothing is sent), `returned` (portions that dead workers returned), `restarts` (workers that
replaced a dead one), `note` (the last remark about a worker that hung; may be empty).

Axes: K values of the model, P of them parameters, H slots of the history, N workers, J vectors of the recursion.
"""

import copy
import heapq
import itertools
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from speech3.engine.backends.one_process import Times
from speech3.engine.backends.processes import LOOK_S, Clock, Failed, Task, Workers, memory_file, open_memory, patience_s
from speech3.engine.flat import flatten
from speech3.engine.gradient import device_for, gradient
from speech3.engine.interface import BuildOn, Progress, ShardReport, WorkerParts

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


@dataclass(frozen=True)
class Done:
    """From a worker: the result of a method of its `Workspace`, and the seconds it took; `ready`: it can begin."""

    method: str
    result: Any = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Died:
    """A worker died; another process has taken its place."""


@dataclass
class _Worker:
    ready: bool = False
    free: bool = False
    keeping: bool = False  # was told to keep a portion, and has not replied
    progressed: bool = False  # since it was started
    report: ShardReport = field(default_factory=ShardReport)
    since: float = field(default_factory=time.monotonic)  # the last message to or from it
    longest_s: float = 0.0  # its longest time to reply

    def late_s(self, clock: Clock) -> float:
        """Seconds that it has owed a reply, if far longer than its replies usually take; else 0."""
        owes, quiet_s = self.ready and (self.keeping or not self.free), clock.quiet_s(self.since)
        return quiet_s if owes and quiet_s > patience_s(self.longest_s) else 0.0


class Processes:
    """The worker group of processes, and the memory that they share.

    The messages are small: portion numbers, frames and losses, coefficients and inner products. The coordinator assigns
    a task to any free worker, so a slow worker delays the others only while it operates on a partition. A worker adds a
    portion's gradient to its sum only when the coordinator says so. A worker that dies may leave its sum half written:
    that sum is ignored, its portions are computed again, and another process takes its place.

    `device`: ``cpu``; ``cuda``: workers are distributed over all GPUs; ``cuda:N``: all on one. The shared memory is on
    the host.

    Raises `Speech3Error` if there is no memory for the vectors; a worker fails, or dies repeatedly.
    """

    up = down = 0  # the memory is shared

    def __init__(self, build: BuildOn, layout: VectorLayout, device: str = "cpu") -> None:
        self.build, self.layout, self.device = build, layout, device
        self.stack = ExitStack()
        self.path = self.stack.enter_context(memory_file("sandblaster", layout.bytes))
        self.vectors = Vectors.over(layout, open_memory(self.path, layout.bytes))
        self.epoch = self.evaluation = self.returned = self.restarts = 0
        self.began = self.looked = 0.0
        self.clock = Clock()
        self.processes = Workers([f"worker {index}" for index in range(layout.workers)], "portion", self._tasks)
        self.workers = [_Worker() for _ in range(layout.workers)]
        try:
            self.processes.start_all()
        except BaseException:
            self.stack.close()
            raise

    def begin(self, epoch: int, seconds: float) -> Generator[None, None, None]:
        """Begin an epoch: reset the counts, and wait until all workers are ready; yields while it waits."""
        self.epoch, self.returned, self.restarts, self.processes.note = epoch, 0, 0, ""
        for worker in self.workers:
            worker.report = ShardReport()
        while not all(worker.ready for worker in self.workers):
            for _ in self._receive():
                pass
            yield
        self.began = self.looked = time.monotonic()

    @property
    def note(self) -> str:
        return self.processes.note

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def reports(self) -> tuple[ShardReport, ...]:
        """Each worker's report of the epoch: all portions computed, kept or not; sync time is partition operations."""
        return with_waits([worker.report for worker in self.workers], self.seconds())

    def evaluate(self, at: int, numbers: Sequence[tuple[int, ...]]) -> Generator[None, None, Evaluation]:
        """Compute loss and gradient at point `at`; each element of `numbers` is one portion."""
        self.evaluation += 1
        portions, kept = Portions(len(numbers)), {}
        while not portions.finished or any(worker.keeping for worker in self.workers):
            for index, worker in enumerate(self.workers):
                if worker.free and (portion := portions.assign(index)) is not None:
                    order = ComputePortion(self.evaluation, at, self.epoch, portion, numbers[portion])
                    self._send(index, "compute", order)
            for index, message in self._receive():
                match message:
                    case Died():
                        self.returned += portions.lost(index)
                    case Done("compute", done) if done.order.evaluation == self.evaluation:
                        if done.bad is not None:
                            return Evaluation(bad=done.bad)
                        if portions.computed(index, done.order.portion):
                            kept[done.order.portion] = done
                            self.workers[index].keeping = True
                            self._send(index, "keep", self.evaluation)
                            self.workers[index].free = True  # the next portion is queued behind this
            if self._due():
                yield
        return summed(kept, portions.keepers)

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Apply an operation to every partition; returns the sum of the results, always added in the same order."""
        waiting, out, answers = deque(range(self.layout.workers)), dict[int, int](), dict[int, np.ndarray]()
        while len(answers) < self.layout.workers:
            for index, worker in enumerate(self.workers):
                if worker.free and waiting:
                    out[index] = waiting.popleft()
                    self._send(index, "operate", operation, out[index])
            for index, message in self._receive():
                match message:
                    case Died() if index in out:
                        waiting.append(out.pop(index))
                    case Done("operate", answer) if index in out:
                        answers[out.pop(index)] = answer
            if self._due():
                yield
        return sum((answers[part] for part in range(1, len(answers))), start=answers[0])

    def close(self) -> None:
        self.processes.close()
        self.stack.close()

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.looked < LOOK_S:
            return False
        self.looked = now
        return True

    def _send(self, index: int, method: str, *args: Any) -> None:
        """Have a worker call a method of its workspace."""
        worker = self.workers[index]
        worker.free, worker.since = False, time.monotonic()
        with suppress(OSError):  # it died, which `_receive` notices next
            self.processes.pipes[index].send((method, args))

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Receive the workers' messages, waiting a little for the first, and update which workers are free."""
        # Who died or hangs, then what the others say.
        self.clock.look(time.monotonic())
        self.processes.check_killed()
        for index, worker in enumerate(self.workers):
            if late_s := worker.late_s(self.clock):
                self.processes.kill_hung(index, f"worker {index} hung ({late_s:.0f} s without a reply)")
        pipes = self.processes.pipes
        for ready in multiprocessing.connection.wait(pipes, timeout=LOOK_S):
            index = pipes.index(ready)
            try:
                message = pipes[index].recv()
            except (EOFError, OSError):
                self._replace(index)
                message = Died()
            worker, now = self.workers[index], time.monotonic()
            # The time of a reply, by which later silence is judged.
            if worker.ready:
                worker.longest_s = max(worker.longest_s, now - worker.since)
            worker.since = now
            match message:
                case Failed():
                    self.processes.end(index, [message])
                case Done("ready"):
                    worker.ready = worker.free = True
                case Done("keep"):
                    worker.keeping = False
                case Done("compute", done, seconds):
                    worker.free = worker.progressed = True
                    worker.report += ShardReport(len(done.order.numbers), compute_s=seconds)
                case Done("operate", _, seconds):
                    worker.free = True
                    worker.report += ShardReport(sync_s=seconds)
            yield index, message

    def _tasks(self, index: int) -> list[Task]:
        device = device_for(self.device, index)
        return [Task(_run_worker_process, (index, self.path, self.layout, self.build, device), device)]

    def _replace(self, index: int) -> None:
        dead = self.workers[index]
        self.processes.replace(index, self.processes.end(index), progressed=dead.progressed)
        self.restarts += 1
        self.workers[index] = _Worker(report=dead.report)


def _run_worker_process(worker: int, path: str, layout: VectorLayout, build: BuildOn, device: str, pipe: Any) -> None:
    """A worker's process: call the methods of its workspace until the pipe is closed."""
    vectors = Vectors.over(layout, open_memory(path, layout.bytes))
    workspace = Workspace(build(device), vectors, layout, worker)
    pipe.send(Done("ready"))
    while True:
        method, args = pipe.recv()
        begun = time.perf_counter()
        result = getattr(workspace, method)(*args)
        pipe.send(Done(method, result, time.perf_counter() - begun))


class Virtual:
    """The worker group on a virtual clock: real gradients in one process, so that 64 workers run on a laptop.

    Time is charged for a minibatch of a portion (`compute_s` of its worker), for an operation on the partitions
    (`sync_s` divided by their number), and for messages: two latencies for every portion and for every operation. With
    its first portion of an evaluation a worker also fetches the point (`4 K / bandwidth` and two latencies), and at the
    end all workers send their sums to the partitions at the same time (`4 K / bandwidth` and one latency). Partitions
    are machines of their own, as in the paper, and there are as many as workers, so no partition's link is busier than
    a worker's. The gradient of a portion is computed when the first worker that was assigned it finishes; its backup
    task costs only virtual time. A worker finishes a portion even when it is no longer needed.
    """

    note = ""

    def __init__(self, parts: WorkerParts, times: Times, layout: VectorLayout) -> None:
        self.times, self.layout, self.seed = times, layout, parts.seed
        self._vector = 4 * layout.values  # bytes
        self.vectors = Vectors.over(layout, bytearray(layout.bytes))
        self.workspaces = [
            Workspace(replace(parts, model=copy.deepcopy(parts.model)), self.vectors, layout, worker)
            for worker in range(layout.workers)
        ]
        self.epoch = self.evaluation = 0
        self._from_zero(0.0)

    def _from_zero(self, seconds: float) -> None:
        workers = range(self.layout.workers)
        self.now, self.up, self.down, self.returned, self.restarts = 0.0, 0, 0, 0, 0
        self.free_N = [0.0 for _ in workers]  # when each worker is free
        self.done_N = [ShardReport() for _ in workers]
        self.random = [np.random.default_rng((self.seed, self.epoch, worker)) for worker in workers]
        later = [(time - seconds, worker) for worker, time in self.times.failures if time >= seconds]
        self.failures = sorted(later)

    def begin(self, epoch: int, seconds: float) -> Generator[None, None, None]:
        """Begin an epoch with its clock at zero; failures are given on the clock of the whole run."""
        self.epoch = epoch
        self._from_zero(seconds)
        yield

    def seconds(self) -> float:
        return self.now

    def reports(self) -> tuple[ShardReport, ...]:
        """Each worker's report; a portion with a backup task counts for both workers, and fetching counts as sync."""
        return with_waits(self.done_N, self.now)

    def evaluate(self, at: int, numbers: Sequence[tuple[int, ...]]) -> Generator[None, None, Evaluation]:
        self.evaluation += 1
        portions, kept = Portions(len(numbers)), dict[int, ComputedPortion]()
        for worker, portion in self._first_to_finish(portions, numbers):
            done = self.workspaces[worker].compute(
                ComputePortion(self.evaluation, at, self.epoch, portion, numbers[portion])
            )
            if done.bad is not None:
                return Evaluation(bad=done.bad)
            self.workspaces[worker].keep(self.evaluation)
            kept[portion] = done
            yield
        return summed(kept, portions.keepers)

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        while self.failures and self.failures[0][0] <= self.now:
            self._die()
        if isinstance(operation, Gather):
            self.now += self.times.latency_s + self._vector / self.times.bandwidth
            self.up += self._vector * len(operation.workers)
        partitions = range(self.layout.workers)
        self.now += 2 * self.times.latency_s + self.times.sync_s / len(partitions)
        yield
        answers = [self.workspaces[part].operate(operation, part) for part in partitions]
        return sum(answers[1:], start=answers[0])

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""

    def _first_to_finish(self, portions: Portions, numbers: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
        """Yield (worker, portion) for the first worker to finish each portion, in order of time; advances the clock."""
        order, idle, fetched = itertools.count(), set[int](), set[int]()
        queue = [(max(self.now, time), next(order), worker, -1) for worker, time in enumerate(self.free_N)]
        heapq.heapify(queue)
        while not portions.finished:
            if self.failures and self.failures[0][0] <= queue[0][0]:
                time, dead = self._die()
                self.returned += portions.lost(dead)
                fetched.discard(dead)
                queue = [event for event in queue if event[2] != dead]
                queue.append((self.free_N[dead], next(order), dead, -1))
                queue += [(max(self.now, time), next(order), worker, -1) for worker in sorted(idle - {dead})]
                heapq.heapify(queue)
                idle.clear()
                continue
            time, _, worker, portion = heapq.heappop(queue)
            self.free_N[worker] = time
            if portion >= 0 and portions.computed(worker, portion):
                self.now = time
                yield worker, portion
            if portions.finished or (found := portions.assign(worker)) is None:
                idle.add(worker)
                continue
            self.free_N[worker] += self._seconds(worker, numbers[found], fetch=worker not in fetched)
            fetched.add(worker)
            heapq.heappush(queue, (self.free_N[worker], next(order), worker, found))

    def _seconds(self, worker: int, numbers: tuple[int, ...], *, fetch: bool) -> float:
        """Seconds from when a worker is free until the coordinator knows that it computed a portion."""
        times = self.times
        spread = np.exp(times.jitter * self.random[worker].standard_normal(len(numbers)))
        compute_s, sync_s = times.compute_s[worker] * float(spread.sum()), 2 * times.latency_s
        if fetch:
            sync_s += 2 * times.latency_s + self._vector / times.bandwidth
            self.down += self._vector
        self.done_N[worker] += ShardReport(len(numbers), compute_s=compute_s, sync_s=sync_s)
        return compute_s + sync_s

    def _die(self) -> tuple[float, int]:
        """Take the next failure and replace its worker by an empty one; returns its time and the worker."""
        time, worker = self.failures.pop(0)
        self.restarts += 1
        self.free_N[worker] = time + self.times.restart_s
        self.workspaces[worker].loaded = self.workspaces[worker].summed = -1
        return time, worker


WorkerGroup = Processes | Virtual
