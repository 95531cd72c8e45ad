"""Sandblaster's workers: processes on one host that compute pieces of a gradient, and do what partitions are told.

Parameters, history and each worker's sum of gradients lie in shared memory. What travels is small: piece numbers,
frames and losses, coefficients and inner products. The coordinator gives a task to whoever is free, so a slow worker is
only waited for where it has a partition in hand.

What a worker has computed it adds to its sum only when told so (`speech3.engine.pieces`). One that dies may have torn
its sum: that is left out, what was in it is computed again, and another process takes its place.
"""

import math
import multiprocessing.connection
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from speech3.engine.board import SharedMemory, memory_file
from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.partition import Layout, Operation, Vectors
from speech3.engine.pieces import Pieces
from speech3.engine.world import BuildOn, Parts, ShardReport
from speech3.errors import Speech3Error
from speech3.io.parallel import starting_workers

_LOOK_S = 0.1  # between two moments at which the run may look, save or stop
_DEATHS = 3  # of one worker, without a piece in between, before it is given up


@dataclass(frozen=True)
class Evaluation:
    """Loss and gradient at a point: what all pieces make together; the gradient is in the sums of `keepers`.

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
    piece: int
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


@dataclass(frozen=True)
class Keep:
    """To a worker: add what you computed last to your sum. It answers with the same when it has."""

    evaluation: int


@dataclass(frozen=True)
class Operate:
    """To a worker: do this to a partition."""

    operation: Operation
    partition: int


@dataclass(frozen=True)
class Operated:
    """From a worker: done, in so many seconds; its answer."""

    answer: np.ndarray
    seconds: float


@dataclass(frozen=True)
class Ready:
    """From a worker: its parts are built."""


@dataclass(frozen=True)
class Failed:
    """From a worker: its last words."""

    why: str


@dataclass(frozen=True)
class Died:
    """Of a worker; another process has taken its place."""


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
        """Sum over frames of the gradient of a piece."""
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
        """Add it to the sum; the buffers there are those after the last piece."""
        sum_K, num_parameters = self.vectors.sums_NK[self.worker], self.layout.parameters
        mine = self.in_hand.vector_K.to(sum_K.device)
        if self.summed == evaluation:
            sum_K[:num_parameters].add_(mine)
        else:
            sum_K[:num_parameters].copy_(mine)
        sum_K[num_parameters:].copy_(self.own.buffers)
        self.summed = evaluation

    @torch.no_grad()
    def operate(self, order: Operate) -> Operated:
        """Do what a partition is told."""
        begun = time.perf_counter()
        answer = order.operation(self.vectors, self.layout.partition(order.partition))
        return Operated(answer, time.perf_counter() - begun)


@dataclass
class _Worker:
    process: Any
    pipe: Any
    ready: bool = False
    free: bool = False
    keeping: bool = False  # was told to, and has not answered
    deaths: int = 0  # in a row
    report: ShardReport = field(default_factory=ShardReport)


class Crew:
    """The processes, and the memory that they share.

    Parameters
    ----------
    build
        Makes the parts of a worker in its process.
    device
        ``cpu``; ``cuda``: workers take turns over all GPUs; ``cuda:N``: all on one. The shared memory is the host's.

    Raises
    ------
    Speech3Error
        No memory for the vectors; a worker fails, or dies again and again.
    """

    def __init__(self, build: BuildOn, layout: Layout, device: str) -> None:
        self.build, self.layout, self.device = build, layout, device
        self.stack = ExitStack()
        self.path = self.stack.enter_context(memory_file("sandblaster", layout.bytes))
        self.vectors = Vectors.over(layout, SharedMemory(self.path, layout.bytes).map)
        self.context = torch.multiprocessing.get_context("spawn")
        self.evaluation = self.returned = self.restarts = 0
        self.began = self.looked = 0.0
        self.workers = [self._start(worker) for worker in range(layout.workers)]

    def begin(self) -> Generator[None, None, None]:
        """An epoch begins: wait until everybody is there, and count from zero."""
        while not all(worker.ready for worker in self.workers):
            for _ in self._hear():
                pass
        self.returned = self.restarts = 0
        for worker in self.workers:
            worker.report = ShardReport()
        self.began = self.looked = time.monotonic()
        yield

    def seconds(self) -> float:
        """Since the epoch began."""
        return time.monotonic() - self.began

    def reports(self) -> tuple[ShardReport, ...]:
        """What workers did in the epoch: every piece computed counts, kept or not. Syncs are partitions' work."""
        elapsed, done = self.seconds(), [worker.report for worker in self.workers]
        return tuple(each + ShardReport(wait_s=max(0.0, elapsed - each.compute_s - each.sync_s)) for each in done)

    def evaluate(
        self, at: int, epoch: int, numbers: Sequence[tuple[int, ...]]
    ) -> Generator[None, None, Evaluation]:  # fmt: skip
        """Loss and gradient at point `at`, a piece for each of `numbers`."""
        self.evaluation += 1
        pieces, kept = Pieces(len(numbers)), {}
        while not pieces.finished or any(worker.keeping for worker in self.workers):
            for index, worker in enumerate(self.workers):
                if worker.free and (piece := pieces.hand(index)) is not None:
                    self._send(index, Compute(self.evaluation, at, epoch, piece, numbers[piece]))
            for index, message in self._hear():
                match message:
                    case Died():
                        self.returned += pieces.lost(index)
                    case Computed(order=order) if order.evaluation == self.evaluation:
                        if message.bad is not None:
                            return Evaluation(bad=message.bad)
                        if pieces.computed(index, order.piece):
                            kept[order.piece] = message
                            self.workers[index].keeping = True
                            self._send(index, Keep(self.evaluation))
                            self.workers[index].free = True  # it finds the next piece behind that
            if self._due():
                yield
        return Evaluation(
            sum(each.frames for each in kept.values()), math.fsum(each.loss_sum for each in kept.values()),
            sum(each.correct for each in kept.values()), pieces.keepers,
        )  # fmt: skip

    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Let every partition do it; the sum of their answers, always added in the same order."""
        waiting, out, answers = deque(range(self.layout.workers)), dict[int, int](), dict[int, np.ndarray]()
        while len(answers) < self.layout.workers:
            for index, worker in enumerate(self.workers):
                if worker.free and waiting:
                    out[index] = waiting.popleft()
                    self._send(index, Operate(operation, out[index]))
            for index, message in self._hear():
                match message:
                    case Died() if index in out:
                        waiting.append(out.pop(index))
                    case Operated(answer) if index in out:
                        answers[out.pop(index)] = answer
            if self._due():
                yield
        return sum((answers[part] for part in range(1, len(answers))), start=answers[0])

    def close(self) -> None:
        """End the processes; the memory goes with the last of them."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self.workers = []
        self.stack.close()

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return False
        self.looked = now
        return True

    def _send(self, index: int, order: Compute | Keep | Operate) -> None:
        worker = self.workers[index]
        worker.free = False
        with suppress(OSError):  # it died: that is heard next
            worker.pipe.send(order)

    def _hear(self) -> Iterator[tuple[int, Any]]:
        """What workers say, if only after a while; whether they are free is noted here."""
        by_pipe = {worker.pipe: index for index, worker in enumerate(self.workers)}
        for pipe in multiprocessing.connection.wait(list(by_pipe), timeout=_LOOK_S):
            index = by_pipe[pipe]
            try:
                message = self.workers[index].pipe.recv()
            except (EOFError, OSError):
                self._replace(index)
                message = Died()
            worker = self.workers[index]
            match message:
                case Failed(why):
                    raise Speech3Error(f"worker {index}: {why}")
                case Ready():
                    worker.ready = worker.free = True
                case Keep():
                    worker.keeping = False
                case Computed(seconds=seconds):
                    worker.free, worker.deaths = True, 0
                    worker.report += ShardReport(len(message.order.numbers), compute_s=seconds)
                case Operated(seconds=seconds):
                    worker.free = True
                    worker.report += ShardReport(sync_s=seconds)
            yield index, message

    def _start(self, index: int) -> _Worker:
        pipe, theirs = self.context.Pipe()
        device = self.device
        if device == "cuda":
            device = f"cuda:{index % torch.cuda.device_count()}"
        process: Any = self.context.Process(
            target=_main, args=(index, self.path, self.layout, self.build, device, theirs), daemon=True
        )
        with starting_workers():
            process.start()
        theirs.close()
        return _Worker(process, pipe)

    def _replace(self, index: int) -> None:
        """Start another process in the place of one that died."""
        dead = self.workers[index]
        dead.process.join()
        dead.pipe.close()
        if dead.deaths + 1 >= _DEATHS:
            raise Speech3Error(
                f"worker {index} died {_DEATHS} times without a piece in between (exit status "
                f"{dead.process.exitcode}; -9 is often the kernel, out of memory): use fewer workers or a smaller model"
            )
        self.restarts += 1
        self.workers[index] = self._start(index)
        self.workers[index].deaths, self.workers[index].report = dead.deaths + 1, dead.report


def _main(worker: int, path: str, layout: Layout, build: BuildOn, device: str, pipe: Any) -> None:
    """A worker's process: does what it is told, until nobody is there to tell."""
    try:
        vectors = Vectors.over(layout, SharedMemory(path, layout.bytes).map)
        bench = Bench(build(device), vectors, layout, worker)
        pipe.send(Ready())
        while True:
            match pipe.recv():
                case Compute() as order:
                    pipe.send(bench.compute(order))
                case Keep(evaluation) as order:
                    bench.keep(evaluation)
                    pipe.send(order)
                case Operate() as order:
                    pipe.send(bench.operate(order))
    except (EOFError, ConnectionError):
        pass  # the coordinator is gone
    except Exception as error:
        pipe.send(Failed(str(error) if isinstance(error, Speech3Error) else traceback.format_exc()))
