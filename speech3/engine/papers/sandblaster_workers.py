"""The workers of Sandblaster: processes on this host (`Processes`), or virtual ones on a virtual clock (`Virtual`).

Parameters, history and each worker's sum of gradients lie in memory that all workers of a group see (`Vectors`). A
group assigns the portions of a gradient to its workers on demand, and applies operations to the server partitions. Both
kinds have the same methods, `begin`, `evaluate`, `operate`, `seconds`, `reports` and `close`; and the same counts of
the epoch: `up` and `down` (bytes, 0 where nothing is sent), `returned` (portions that dead workers returned),
`restarts` (workers that replaced a dead one), `note` (the last remark about a worker that hung; may be empty).

Axes: K values of the model, N workers.
"""

import copy
import heapq
import itertools
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from speech3.engine.backends.processes import LOOK_S, Clock, Failed, Task, Workers, memory_file, open_memory, patience_s
from speech3.engine.backends.synchronous import Times
from speech3.engine.gradient import device_for
from speech3.engine.interface import BuildOn, ShardReport, WorkerParts
from speech3.engine.papers.sandblaster_vectors import (
    ComputedPortion,
    ComputePortion,
    Evaluation,
    Gather,
    Operation,
    Portions,
    VectorLayout,
    Vectors,
    Workspace,
    summed,
    with_waits,
)


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
