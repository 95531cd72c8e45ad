"""World shared: shards as processes on one host, with the parameter server in their shared memory.

The coordinator (the process that opens this world) starts the shards, gives them epochs to work on, and watches them.
If a shard dies, the minibatches that were assigned to it return to the pool and a new shard takes its place; the kernel
has released its locks, so the other shards are not affected. Between epochs the shards are idle.
"""

import json
import multiprocessing.connection
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.assembly import (
    Before,
    Server,
    begin_epoch,
    epoch_progress,
    load_tensors,
    make_server,
    published_tensors,
    sizes_of,
    tensors_on_gpu,
)
from speech3.engine.device import device_for
from speech3.engine.flat import Flat, flatten, wait_for_gpus
from speech3.engine.gradient import gradient
from speech3.engine.server import Partition
from speech3.engine.server_memory import (
    BUSY,
    COMPUTE_S,
    DOING,
    DOWN,
    DRAW_S,
    EPOCH,
    MINIBATCHES,
    READY,
    SINCE,
    SYNC_S,
    UP,
    WAIT_S,
    FileLock,
    ServerMemory,
    SharedMemory,
    Sizes,
    memory_bytes,
    memory_file,
    shared_memory,
)
from speech3.engine.shard import Compute, Draw, Shard, Sync
from speech3.engine.watchdog import COMPUTES, DRAWS, IDLE, SYNCS, WAITS, Hang, Watchdog
from speech3.engine.workers import Workers
from speech3.engine.world import BuildOn, Parts, Progress, Rate, Snapshot

LOOK_S = 0.1  # between two checks of shards and pool
_KERNELS_S = 0.5  # the GPU kernels of a killed process end within this time
_REST_S = 0.0005  # between two checks of an idle shard for an epoch to work on
Event = tuple[str, int | None, int]  # kind, minibatch or version, partition


@dataclass(frozen=True)
class Place:
    """What a process needs to open the server: the paths of its memory and locks, its sizes and its settings."""

    memory: str
    locks: tuple[str, ...]  # one for each partition
    pool_lock: str
    sizes: Sizes
    config: AsgdConfig
    workers: int
    weight_decay: float
    coordinator: int
    record: Path | None
    rows: tuple[range, ...] | None
    codec: CodecConfig | None

    def open(self, own: Flat, on_gpu: tuple[Tensor, Tensor, Tensor] | None) -> tuple[Server, list[FileLock]]:
        """This process's view of the server, for a model like `own`, and the locks of its partitions."""
        memory = shared_memory(self.sizes, SharedMemory(self.memory, memory_bytes(self.sizes)))
        server = make_server(memory, self.config, self.workers, own, FileLock(self.pool_lock), on_gpu, self.rows)
        return server, [FileLock(path) for path in self.locks]


class Shared:
    """The world of shards that are processes on this host.

    Parameters
    ----------
    build
        Makes the parts of a shard in its process.
    parts
        Parts of this process, which give the sizes of the model and of an epoch; they compute nothing.
    device
        ``cpu``; ``cuda``: shards are distributed over all GPUs and the server is on the first; ``cuda:N``: all are on
        GPU N.
    record
        Directory in which each shard records its events, for a replay.

    Raises
    ------
    Speech3Error
        There is not enough memory for the server; a shard fails, or dies repeatedly.
    """

    def __init__(
        self, build: BuildOn, parts: Parts, config: AsgdConfig, *,
        workers: int, device: str = "cpu", weight_decay: float = 0.0, record: Path | None = None,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        own = flatten(parts.model)
        sizes = sizes_of(own, config, workers, len(parts.source))
        self.on_gpu = tensors_on_gpu(own, config)
        self.stack = ExitStack()
        try:
            names = [f"lock{number}" for number in range(sizes.partitions)]
            memory, pool_lock, *locks = (
                self.stack.enter_context(memory_file(name, size))
                for name, size in (("server", memory_bytes(sizes)), ("pool", 0), *((name, 0) for name in names))
            )
        except BaseException:
            self.stack.close()
            raise
        self.place = Place(
            memory, tuple(locks), pool_lock, sizes, config, workers, weight_decay, os.getpid(), record,
            parts.source.rows, codec,
        )  # fmt: skip
        self.build, self.device = build, device
        self.server, self.locks = self.place.open(own, self.on_gpu)
        self.workers = Workers("shard", "minibatch", workers, self._task)
        self.computed = [0.0] * workers  # each worker's minibatches of the epoch when its process started
        self.before, self.began = Before(0, self.server.ledger.counts()), 0.0
        self.returned = self.restarts = 0
        self.watchdog, self.hung, self.note = Watchdog(np.zeros(workers)), dict[int, Hang](), ""
        for lock in (*self.locks, self.server.pool.lock):  # a shard that hangs may hold it
            assert isinstance(lock, FileLock)
            lock.meanwhile = self._kill_hung
        try:
            for worker in range(workers):
                self._start(worker)
        except BaseException:
            self.close()
            raise

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end."""
        memory, pool = self.server.memory, self.server.pool
        self.returned, self.restarts, self.note = 0, 0, ""
        self.before = begin_epoch(self.server, states_M)
        while not memory.shards_N[:, READY].all():
            self._replace_dead()
            yield self._progress()
        self.computed = [0.0] * len(self.computed)
        self.began = self.watchdog.since = time.monotonic()
        memory.order[:] = 0, rate.base, rate.warmup, rate.decay, rate.last
        memory.order[0] = epoch
        try:
            while not pool.finished:
                self._replace_dead()
                yield self._progress()
        finally:
            memory.order[0] = 0
        while memory.shards_N[:, EPOCH].any():
            self._replace_dead()
            yield self._progress()
        yield self._progress()

    def snapshot(self) -> Snapshot:
        """The published state; a shard that finds the server locked by this continues to compute."""
        with self._all_locks():
            self.server.settle()
            return Snapshot(published_tensors(self.server), self.server.ledger.states_M.copy(), self._progress())

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Set the published state; call between epochs, when the shards are idle."""
        load_tensors(self.server, tensors)

    def close(self) -> None:
        """Stop the shards; the memory is freed when the last of them has exited."""
        self.workers.close()
        self.stack.close()

    @property
    def processes(self) -> list[Any]:
        """The shards' processes."""
        return self.workers.processes

    @contextmanager
    def _all_locks(self) -> Iterator[None]:
        """Hold the locks of all partitions; a shard never holds more than one."""
        with ExitStack() as stack:
            for lock in self.locks:
                stack.enter_context(lock)
            yield

    def _progress(self) -> Progress:
        seconds = max(0.0, float(self.server.memory.ended_S.max()) - self.began)
        progress = epoch_progress(
            self.server, self.before, seconds=seconds, returned=self.returned, restarts=self.restarts
        )  # fmt: skip
        return replace(progress, note=self.note)

    def _start(self, worker: int) -> None:
        self._begin(worker)
        self.workers.start(worker)

    def _begin(self, worker: int) -> None:
        """Reset a worker's status for a new process."""
        self.server.memory.shards_N[worker, [READY, EPOCH, DOING]] = 0
        self.computed[worker] = self.server.memory.shards_N[worker, MINIBATCHES]

    def _task(self, worker: int) -> tuple[Any, tuple[Any, ...]]:
        return _serve, (worker, self.place, *self._build(worker), self.on_gpu)

    def _build(self, worker: int) -> tuple[BuildOn, str]:
        """The function that makes the worker's parts, and the worker's device."""
        return self.build, device_for(self.device, worker)

    def _kill_hung(self) -> None:
        """Kill a shard that hangs, at most one per call; it is then replaced like any shard that died."""
        memory = self.server.memory
        work = memory.order[0] > 0 and memory.cursor[0] < len(memory.ledger)
        if hang := self.watchdog.look(memory.shards_N, bool(work)):
            self.hung[hang.worker], self.note = hang, f"{hang} and was killed"
            self.processes[hang.worker].kill()

    def _replace_dead(self) -> None:
        """Wait up to `LOOK_S`; if a shard died, return its minibatches to the pool and start a new one."""
        self._kill_hung()
        multiprocessing.connection.wait([process.sentinel for process in self.processes], timeout=LOOK_S)
        for worker in [worker for worker, process in enumerate(self.processes) if not process.is_alive()]:
            status = self.workers.reap(worker)
            with self._all_locks():
                self.server.settle()
                self.returned += self.server.pool.give_back(worker)
            self._replace(worker, status)

    def _replace(self, worker: int, status: int) -> None:
        """Start a shard in place of one that died, after its minibatches were returned."""
        hang = self.hung.pop(worker, None)
        progressed = self.server.memory.shards_N[worker, MINIBATCHES] > self.computed[worker]
        self._begin(worker)
        self.workers.replace(worker, status, progressed=bool(progressed), hang=str(hang) if hang else "")
        self.restarts += 1


def _serve(worker: int, place: Place, build: BuildOn, device: str, on_gpu: Any, _: Any) -> None:
    """A shard's process: work on each epoch that the coordinator begins, until the coordinator exits."""
    parts = build(device)
    shard = Shard(
        parts, place.config, number=worker, workers=place.workers, weight_decay=place.weight_decay, codec=place.codec
    )  # fmt: skip
    server, locks = place.open(shard.sgd.parameters, on_gpu)
    _rehearse(server, shard)
    row = server.memory.shards_N[worker]
    orders = _orders(server.memory, row, place.coordinator)
    if parts.group is not None:
        server = replace(server, pool=parts.group.pool(server.pool))
        orders = parts.group.orders(orders, row[EPOCH : EPOCH + 1])
        gradient(parts, 1, 0)  # makes PyTorch connect the members: this second must not count as training time
    row[SINCE] = time.monotonic()
    row[READY] = 1
    for rate in orders:
        events: list[Event] = []
        note = events.append if place.record else _forget
        _run_shard(worker, shard, server, locks, rate, place.coordinator, note)
        if place.record:
            with (place.record / f"shard{worker}.jsonl").open("a") as stream:
                stream.writelines(json.dumps(event) + "\n" for event in events)


def _rehearse(server: Server, shard: Shard) -> None:
    """Load compiled code now: that takes a third of a second, and must not delay a sync."""
    for partition, push in zip(server.partitions, shard.pushes, strict=True):
        for push.fetch_due in (True, not shard.config.fetch_every):
            push.numbers = [0]
            push.pack()
            assert push.packed
            server.rule.rehearse(partition.published.state, push.packed)
        push.begin()


def _orders(memory: ServerMemory, row: np.ndarray, coordinator: int) -> Iterator[Rate]:
    """Wait for epochs and yield the learning rate of each; the caller works on the epoch between two items."""
    order = memory.order
    while os.getppid() == coordinator:
        # Written before `order` is read again, so that the coordinator sees every shard that is working.
        row[EPOCH] = order[0]
        if row[EPOCH] and order[0] == row[EPOCH] and memory.cursor[0] < len(memory.ledger):
            yield Rate(order[1], int(order[0]), len(memory.ledger), order[2], order[3], int(order[4]))
        else:
            row[EPOCH] = 0
            time.sleep(_REST_S)


def _enter(partition: Partition) -> None:
    """Begin a sync, with the lock held; if the last shard to sync died in it, wait until its GPU kernels have ended."""
    if partition.record.syncing[0] and partition.published.vector_K.is_cuda:
        time.sleep(_KERNELS_S)
    partition.record.syncing[0] = 1


def _forget(event: Event) -> None:
    """Discard an event: an epoch of 1,000 hours has millions of them."""


def _run_shard(
    worker: int, shard: Shard, server: Server, locks: Sequence[FileLock], rate: Rate, coordinator: int,
    note: Callable[[Event], None],
) -> None:  # fmt: skip
    """Carry out the requests of the shard's loop.

    Passes events to `note`: draws with the minibatch, syncs with the version that they found, and busy partitions.
    """
    row, loop, answer = server.memory.shards_N[worker], shard.run(), None
    note(("epoch", rate.epoch, 0))
    while True:
        try:
            request = loop.send(answer)
        except StopIteration:
            row[DOING] = IDLE
            return
        begun = time.perf_counter()
        match request:
            case Draw(after):
                row[SINCE], row[DOING] = time.monotonic(), DRAWS
                answer = server.pool.draw(worker, after) if os.getppid() == coordinator else None
                row[DRAW_S] += time.perf_counter() - begun
                note(("draw", answer, 0))
            case Compute(number):
                row[SINCE], row[DOING] = time.monotonic(), COMPUTES
                server.ledger.computed(number, shard.compute(rate.epoch, number, rate))
                row[MINIBATCHES] += 1
                row[COMPUTE_S] += time.perf_counter() - begun
            case Sync(number, wait):
                partition, push, lock = server.partitions[number], shard.pushes[number], locks[number]
                wait_for_gpus(push.own.vector_K)  # the lock must not be held while a gradient is computed
                row[COMPUTE_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                push.pack()
                row[SYNC_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                answer = lock.try_acquire()
                if not answer:
                    row[BUSY] += 1
                    if not wait:
                        note(("busy", None, number))
                        continue
                    row[SINCE], row[DOING] = time.monotonic(), WAITS
                    answer = lock.acquire()
                    row[WAIT_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                row[SINCE], row[DOING] = time.monotonic(), SYNCS
                _enter(partition)
                met = partition.version
                partition.sync(push)
                note(("publish" if partition.version > met else "sync", met, number))
                partition.record.syncing[0] = 0
                lock.release()
                push.unpack()
                row[[UP, DOWN]] += push.wire.counted()
                row[SYNC_S] += time.perf_counter() - begun
                row[SINCE], row[DOING] = time.monotonic(), COMPUTES  # the next request follows at once
