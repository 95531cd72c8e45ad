"""The workers of Sandblaster as processes on one host, which compute portions and operate on partitions.

Parameters, history and each worker's sum of gradients lie in shared memory. The messages are small: portion numbers,
frames and losses, coefficients and inner products. The coordinator assigns a task to any free worker, so a slow worker
delays the others only while it operates on a partition.

A worker adds a portion's gradient to its sum only when the coordinator says so (`portions`). A worker that dies may
leave its sum half written: that sum is ignored, its portions are computed again, and another process takes its place.
"""

import multiprocessing.connection
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from speech3.engine.device import device_for
from speech3.engine.sandblaster.partition import Layout, Operation, Vectors
from speech3.engine.sandblaster.portions import Portions
from speech3.engine.sandblaster.worker_group import Compute, Computed, Evaluation, Workspace, together, with_waits
from speech3.engine.server_memory import SharedMemory, memory_file
from speech3.engine.watchdog import Clock, patience_s
from speech3.engine.workers import LOOK_S, Failed, Task, Workers
from speech3.engine.world import BuildOn, ShardReport


@dataclass(frozen=True)
class Keep:
    """To a worker: add the gradient computed last to your sum. The worker sends the same back when it has."""

    evaluation: int


@dataclass(frozen=True)
class Operate:
    """To a worker: apply an operation to a partition."""

    operation: Operation
    partition: int


@dataclass(frozen=True)
class Operated:
    """From a worker: the result of an operation and the seconds it took."""

    answer: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Ready:
    """From a worker: it has built its parts."""


@dataclass(frozen=True)
class Died:
    """A worker died; another process has taken its place."""


@dataclass
class _Worker:
    ready: bool = False
    free: bool = False
    keeping: bool = False  # was sent `Keep`, and has not replied
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

    Parameters
    ----------
    build
        Makes the parts of a worker in its process.
    device
        ``cpu``; ``cuda``: workers are distributed over all GPUs; ``cuda:N``: all on one. The shared memory is on the
        host.

    Raises
    ------
    Speech3Error
        There is no memory for the vectors; a worker fails, or dies repeatedly.
    """

    up = down = 0  # the memory is shared

    def __init__(self, build: BuildOn, layout: Layout, device: str = "cpu") -> None:
        self.build, self.layout, self.device = build, layout, device
        self.stack = ExitStack()
        self.path = self.stack.enter_context(memory_file("sandblaster", layout.bytes))
        self.vectors = Vectors.over(layout, SharedMemory(self.path, layout.bytes).map)
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
        """The last remark about a worker that hung in the epoch; may be empty."""
        return self.processes.note

    def seconds(self) -> float:
        """Seconds since the epoch began."""
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
                    self._send(index, Compute(self.evaluation, at, self.epoch, portion, numbers[portion]))
            for index, message in self._receive():
                match message:
                    case Died():
                        self.returned += portions.lost(index)
                    case Computed(order=order) if order.evaluation == self.evaluation:
                        if message.bad is not None:
                            return Evaluation(bad=message.bad)
                        if portions.computed(index, order.portion):
                            kept[order.portion] = message
                            self.workers[index].keeping = True
                            self._send(index, Keep(self.evaluation))
                            self.workers[index].free = True  # the next portion is queued behind `Keep`
            if self._due():
                yield
        return together(kept.values(), portions.keepers)

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Apply an operation to every partition; returns the sum of the results, always added in the same order."""
        waiting, out, answers = deque(range(self.layout.workers)), dict[int, int](), dict[int, np.ndarray]()
        while len(answers) < self.layout.workers:
            for index, worker in enumerate(self.workers):
                if worker.free and waiting:
                    out[index] = waiting.popleft()
                    self._send(index, Operate(operation, out[index]))
            for index, message in self._receive():
                match message:
                    case Died() if index in out:
                        waiting.append(out.pop(index))
                    case Operated(answer) if index in out:
                        answers[out.pop(index)] = answer
            if self._due():
                yield
        return sum((answers[part] for part in range(1, len(answers))), start=answers[0])

    def close(self) -> None:
        """Stop the processes; the memory is freed with the last of them."""
        self.processes.close()
        self.stack.close()

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.looked < LOOK_S:
            return False
        self.looked = now
        return True

    def _send(self, index: int, order: Compute | Keep | Operate) -> None:
        worker = self.workers[index]
        worker.free, worker.since = False, time.monotonic()
        with suppress(OSError):  # it died, which `_receive` notices next
            self.processes.pipes[index].send(order)

    def _receive(self) -> Iterator[tuple[int, Any]]:
        """Receive the workers' messages, waiting a little for the first, and update which workers are free."""
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
            if worker.ready:
                worker.longest_s = max(worker.longest_s, now - worker.since)
            worker.since = now
            match message:
                case Failed():
                    self.processes.end(index, [message])
                case Ready():
                    worker.ready = worker.free = True
                case Keep():
                    worker.keeping = False
                case Computed(seconds=seconds):
                    worker.free = worker.progressed = True
                    worker.report += ShardReport(len(message.order.numbers), compute_s=seconds)
                case Operated(seconds=seconds):
                    worker.free = True
                    worker.report += ShardReport(sync_s=seconds)
            yield index, message

    def _tasks(self, index: int) -> list[Task]:
        device = device_for(self.device, index)
        return [Task(_serve, (index, self.path, self.layout, self.build, device), device)]

    def _replace(self, index: int) -> None:
        """Start another process in the place of one that died."""
        dead = self.workers[index]
        self.processes.replace(index, self.processes.end(index), progressed=dead.progressed)
        self.restarts += 1
        self.workers[index] = _Worker(report=dead.report)


def _serve(worker: int, path: str, layout: Layout, build: BuildOn, device: str, pipe: Any) -> None:
    """A worker's process: carry out orders until the pipe is closed."""
    vectors = Vectors.over(layout, SharedMemory(path, layout.bytes).map)
    workspace = Workspace(build(device), vectors, layout, worker)
    pipe.send(Ready())
    while True:
        match pipe.recv():
            case Compute() as order:
                pipe.send(workspace.compute(order))
            case Keep(evaluation) as order:
                workspace.keep(evaluation)
                pipe.send(order)
            case Operate() as order:
                pipe.send(_operate(order, vectors, layout))


@torch.no_grad()
def _operate(order: Operate, vectors: Vectors, layout: Layout) -> Operated:
    begun = time.perf_counter()
    answer = order.operation(vectors, layout.partition(order.partition))
    return Operated(answer, time.perf_counter() - begun)
