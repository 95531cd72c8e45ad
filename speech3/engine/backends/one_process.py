"""The backends that run in this process: one worker, and many workers on a virtual clock, with real gradients.

**One worker** (`OneWorker`, backend sgd) is the baseline of all training in parallel.

**Synchronous workers** (`Synchronous`): in each step, N workers average their gradients. That is plain SGD with N times
larger minibatches, except that gradient clipping applies to each minibatch's own gradient. A step takes as long as its
slowest worker plus the exchange of gradients, by TernGrad's performance model (`papers/terngrad.py`); ternary gradients
are encoded with a scale that all workers share, and averaged.

**Asynchronous shards** (`Simulated`) show on a laptop what five GPUs would do. They are those of backend shared, run by
events: the computation of a minibatch takes `compute_s`; a sync occupies the server for `sync_s` plus the time that its
bytes take on the link; a shard that finds the server busy continues to compute, or waits.

Nothing depends on the speed of this machine, so with the same seed and the same times a result is the same to the last
bit. Held-out evaluation takes no virtual time.

Axes: M minibatches of an epoch, N shards, S partitions of the server.
"""

import copy
import heapq
import itertools
import math
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.processes import LEAST_S
from speech3.engine.flat import wait_for_gpus
from speech3.engine.gradient import Diverged, gradient
from speech3.engine.interface import USED, WAITING, Progress, Rate, Snapshot, WorkerParts, expect, turns
from speech3.engine.optimizers import optimizer_of
from speech3.engine.papers.terngrad import SharedCodes, exchange_s
from speech3.engine.server import Status, make_server, memory_layout, private_memory, tensors_on_gpu
from speech3.engine.shard import Compute, Constrained, Draw, Request, Shard, Sync

_NOTICED = object()


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
            exchanged_s = exchange_s(self.workers, up + down, self.times.bandwidth, self.times.latency_s)
            seconds += exchanged_s + (self.times.sync_s if self.workers > 1 else 0.0)
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


class Simulated:
    def __init__(
        self, parts: WorkerParts, config: AsgdConfig, times: Times, *, codec: CodecConfig | None = None
    ) -> None:
        self.times, self.config = times, config
        self.workers = len(times.compute_s)
        everybody = [parts] + [replace(parts, model=copy.deepcopy(parts.model)) for _ in range(self.workers - 1)]
        self.shards = [
            Shard(each, config, number=number, workers=self.workers, codec=codec)
            for number, each in enumerate(everybody)
        ]
        own = self.shards[0].sgd.parameters
        self.memory = private_memory(memory_layout(own, config, self.workers, len(parts.source)))
        on_gpu = tensors_on_gpu(own, config)
        self.server = make_server(self.memory, config, own, nullcontext(), on_gpu, parts.source.rows)
        self.seed, self.began, self.progress = parts.seed, 0.0, Progress()
        self.failures: list[tuple[float, int, float]] = []  # time, worker, seconds until it is noticed

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress whenever a version was published or minibatches were dropped."""
        before = self.server.begin_epoch(states_M)
        seen, run = self._moved(), _Epoch(self, epoch, rate)
        for seconds in run.events():
            if (moved := self._moved()) != seen or self.server.queue.finished:
                seen = moved
                self.progress = self.server.progress(
                    before, seconds=seconds, returned=run.returned, restarts=run.restarts
                )
                yield self.progress
        self.began += self.progress.seconds

    def _moved(self) -> tuple[int, ...]:
        return (*self.memory.version_S.tolist(), self.memory.states.ended)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.server.tensors(), self.memory.states.states_M.copy(), self.progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Set the published state; failures that the run had before `seconds` do not happen again."""
        self.server.load(tensors)
        self.began = seconds
        faults = [(when, worker, 0.0) for worker, when in self.times.failures]
        faults += [(when, worker, self.times.notice_s) for worker, when in self.times.hangs]
        self.failures = sorted(fault for fault in faults if fault[0] >= seconds)

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


class _Epoch:
    """The events of one epoch, earliest first; events at the same time in the order in which they were created.

    The clock of an epoch begins at zero, so that times are rounded in a resumed run as they are in one without a crash.
    """

    def __init__(self, backend: Simulated, epoch: int, rate: Rate) -> None:
        self.backend, self.epoch, self.rate = backend, epoch, rate
        self.now = 0.0
        self.free_at = [0.0] * len(backend.server.partitions)  # when each partition is free
        self.heap: list[tuple[float, int, int, int, Any]] = []
        self.order = itertools.count()
        self.incarnation = [0] * backend.workers  # events from before a shard's death are ignored
        self.loops: list[Generator[Request, Any, None] | None] = [None] * backend.workers
        self.random = [np.random.default_rng((backend.seed, epoch, worker)) for worker in range(backend.workers)]
        self.hung: set[int] = set()
        self.returned = self.restarts = 0

    def events(self) -> Iterator[float]:
        """Yield the time after each event, until every minibatch is used or dropped and all pushes have been sent."""
        backend = self.backend
        for worker in range(backend.workers):
            self._begin(worker, 0.0)
        while self.heap and not self._done():
            if backend.failures and backend.failures[0][0] - backend.began <= self.heap[0][0]:
                at, worker, unnoticed_s = backend.failures.pop(0)
                self._stop(worker, at - backend.began, unnoticed_s)
                continue
            time, _, worker, incarnation, answer = heapq.heappop(self.heap)
            if incarnation != self.incarnation[worker]:
                continue
            self.now = max(self.now, time)
            if answer is _NOTICED:
                self._replace(worker, time)
            else:
                self._resume(worker, time, answer)
            yield self.now

    def _done(self) -> bool:
        return self.backend.server.queue.finished and not any(
            push.numbers for shard in self.backend.shards for push in shard.pushes
        )

    def _begin(self, worker: int, time: float) -> None:
        self.loops[worker] = self.backend.shards[worker].run()
        self._later(worker, time, None)

    def _later(self, worker: int, time: float, answer: Any) -> None:
        heapq.heappush(self.heap, (time, next(self.order), worker, self.incarnation[worker], answer))

    def _resume(self, worker: int, time: float, answer: Any) -> None:
        """Run a shard's loop from `time` until it makes a request that takes time."""
        backend, loop = self.backend, self.loops[worker]
        shard, report, times = backend.shards[worker], backend.memory.shards_N[worker], backend.times
        assert loop is not None
        while True:
            if isinstance(answer, Sync):  # the shard waited for the server; another may have got it first
                request: Request = answer
            else:
                try:
                    request = loop.send(answer)
                except StopIteration:
                    self.loops[worker] = None
                    if self._waiting():  # a dead shard's minibatches were returned during this shard's last push
                        self._begin(worker, time)
                    return
            match request:
                case Draw(after):
                    answer = backend.server.queue.draw(worker, after)
                case Compute(number):
                    backend.server.states.computed(number, shard.compute(self.epoch, number, self.rate))
                    spread = self.random[worker].standard_normal() * times.jitter
                    seconds = times.compute_s[worker] * float(np.exp(spread))
                    report[[Status.MINIBATCHES, Status.COMPUTE_S]] += 1, seconds
                    return self._later(worker, time + seconds, None)
                # The server is busy: wait for it if the shard must, else it computes another minibatch.
                case Sync(partition, wait) if (free_at := self.free_at[partition]) > time:
                    report[Status.BUSY] += request is not answer  # once, however often it finds the server taken again
                    if wait:
                        report[Status.WAIT_S] += free_at - time
                        return self._later(worker, free_at, request)
                    answer = False
                # A real push, through the codec; the server is held for as long as the model of the network says.
                case Sync(partition):
                    push = shard.pushes[partition]
                    push.pack()
                    backend.server.partitions[partition].sync(push)
                    push.unpack()
                    sent = push.wire.counted()
                    report[[Status.UP, Status.DOWN]] += sent
                    # It takes effect now and holds the partition until `free_at`: as nobody else gets it before, that
                    # equals taking effect at the end.
                    held_s = times.sync_s / len(shard.pushes) + sum(sent) / times.bandwidth
                    self.free_at[partition] = time + held_s
                    report[Status.SYNC_S] += held_s + 2 * times.latency_s
                    return self._later(worker, time + held_s + 2 * times.latency_s, True)

    def _stop(self, worker: int, time: float, unnoticed_s: float) -> None:
        """A worker dies, or hangs if `unnoticed_s` is not 0: the seconds until that is noticed."""
        self.incarnation[worker] += 1
        if unnoticed_s:
            self.hung.add(worker)
            self._later(worker, time + unnoticed_s, _NOTICED)
        else:
            self._replace(worker, time)

    def _replace(self, worker: int, time: float) -> None:
        """Replace a dead worker; its minibatches wait again, and workers that had finished the epoch resume."""
        backend, shard = self.backend, self.backend.shards[worker]
        self.hung.discard(worker)
        shard.begin()
        shard.sgd.load({"parameters": shard.sgd.parameters.vector_K})  # the moments of AdamW were lost with the worker
        self.returned += backend.server.queue.give_back(worker)
        self.restarts += 1
        self._begin(worker, time + backend.times.restart_s)
        for other in range(backend.workers):
            if other not in self.hung and other != worker and self.loops[other] is None and self._waiting():
                self._begin(other, time)

    def _waiting(self) -> bool:
        return bool((self.backend.memory.states.states_M == WAITING).any())


def measure(
    parts: WorkerParts, config: AsgdConfig, rounds: int = 7, *, codec: CodecConfig | None = None
) -> tuple[float, float]:
    """Seconds that a minibatch and a sync take on this machine: medians over `rounds` of them.

    `parts` must not be used again.
    """
    backend = Simulated(parts, config.model_copy(update={"fetch_every": None}), Times((1.0,), 0.0), codec=codec)
    shard, rate = backend.shards[0], Rate(1e-3, 1, len(parts.source))
    own_K = shard.sgd.parameters.vector_K
    backend.load({"parameters": own_K})

    def sync() -> None:
        for partition, push in zip(backend.server.partitions, shard.pushes, strict=True):
            push.push_due = push.fetch_due = True
            push.pack()
            partition.sync(push)
            push.unpack()

    sync()  # the first sync only fetches; those that are measured publish, too
    minibatches, syncs = [], []
    for number in range(rounds + 2):
        begun = time.perf_counter()
        shard.compute(1, number % len(parts.source), rate)
        wait_for_gpus(own_K)
        computed = time.perf_counter()
        sync()
        minibatches.append(computed - begun)
        syncs.append(time.perf_counter() - computed)
    return statistics.median(minibatches[2:]), statistics.median(syncs[2:])
