"""Shards as processes on one host. The server is their shared memory; who started them only looks on.

The coordinator (this side) starts shards, orders epochs, and starts another shard where one died: what the dead one had
out waits again, and since the kernel has released its locks, nobody else notices. Between two epochs shards rest.
"""

import json
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.assembly import (
    Before,
    begin_epoch,
    epoch_progress,
    load_tensors,
    make_server,
    published_tensors,
    sizes_of,
    tensors_on_gpu,
)
from speech3.engine.board import (
    BUSY,
    COMPUTE_S,
    DOWN,
    EPOCH,
    MINIBATCHES,
    READY,
    SYNC_S,
    UP,
    WAIT_S,
    FileLock,
    SharedMemory,
    Sizes,
    board_bytes,
    memory_file,
    shared_board,
)
from speech3.engine.flat import flatten, wait_for_gpus
from speech3.engine.server import ENDED, Server
from speech3.engine.shard import Compute, Draw, Shard, Sync
from speech3.engine.world import BuildOn, Parts, Progress, Rate, Snapshot
from speech3.errors import Speech3Error
from speech3.io.parallel import starting_workers

_LOOK_S = 0.1  # between two looks at shards and pool
_REST_S = 0.0005  # between two looks of a resting shard at its orders
Event = tuple[str, int | None]
_DEATHS = 3  # of one shard, without a minibatch in between, before it is given up


@dataclass(frozen=True)
class Place:
    """What a shard needs to find the server, in any process."""

    board: str
    server_lock: str
    pool_lock: str
    sizes: Sizes
    num_parameters: int
    config: AsgdConfig
    workers: int
    weight_decay: float
    coordinator: int
    record: Path | None
    rows: tuple[range, ...] | None
    codec: CodecConfig | None

    def open(self, on_gpu: tuple[Tensor, Tensor, Tensor] | None) -> tuple[Server, FileLock]:
        """The server as this process sees it, and its lock."""
        board = shared_board(self.sizes, SharedMemory(self.board, board_bytes(self.sizes)))
        server = make_server(
            board, self.config, self.workers, self.num_parameters, FileLock(self.pool_lock), on_gpu, self.rows
        )  # fmt: skip
        return server, FileLock(self.server_lock)


class Shared:
    """The world of processes.

    Parameters
    ----------
    build
        Makes the parts of a shard in its process.
    parts
        Of this process; only its model's size is used.
    device
        ``cpu``; ``cuda``: shards take turns over all GPUs, the server is on the first; ``cuda:N``: all on one.
    record
        Directory in which each shard writes what it did, for a replay.

    Raises
    ------
    Speech3Error
        No memory for the server; a shard fails, or dies again and again.
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
            board, server_lock, pool_lock = (
                self.stack.enter_context(memory_file(name, size))
                for name, size in (("board", board_bytes(sizes)), ("server", 0), ("pool", 0))
            )
        except BaseException:
            self.stack.close()
            raise
        self.place = Place(
            board, server_lock, pool_lock, sizes, own.num_parameters, config, workers, weight_decay, os.getpid(),
            record, parts.source.rows, codec,
        )  # fmt: skip
        self.build, self.device = build, device
        self.server, self.lock = self.place.open(self.on_gpu)
        self.context = torch.multiprocessing.get_context("spawn")
        self.processes: list[Any] = [None] * workers
        self.errors: list[Any] = [None] * workers
        self.deaths = [0] * workers  # in a row
        self.computed = [0.0] * workers  # minibatches of the epoch when the process began
        self.before, self.began = Before(0, self.server.pool.counts()), 0.0
        self.returned = self.restarts = 0
        for worker in range(workers):
            self._start(worker)

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Yields ten times a second, and at the end."""
        board, pool = self.server.board, self.server.pool
        self.returned = self.restarts = 0
        while not board.shards_N[:, READY].all():
            self._look_after()
        self.before = begin_epoch(self.server, states_M)
        self.computed = [0.0] * len(self.processes)
        self.began = time.monotonic()
        board.order[:] = 0, rate.base, rate.warmup, rate.decay
        board.order[0] = epoch
        try:
            while not pool.finished:
                self._look_after()
                yield self._progress()
        finally:
            board.order[0] = 0
        while board.shards_N[:, EPOCH].any():
            self._look_after()
        yield self._progress()

    def snapshot(self) -> Snapshot:
        """The published state; a shard that wants to sync meanwhile goes on computing."""
        with self.lock:
            self.server.settle()
            return Snapshot(published_tensors(self.server), self.server.board.states_M.copy(), self._progress())

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Set the published state, while shards rest."""
        load_tensors(self.server, tensors)

    def close(self) -> None:
        """End the shards; the memory goes with the last of them."""
        for process in self.processes:
            if process is not None:
                process.kill()
                process.join()
        self.processes = []
        self.stack.close()

    def _progress(self) -> Progress:
        board = self.server.board
        ended = board.totals_2[self.server.version % 2, ENDED]
        return epoch_progress(
            self.server, self.before, seconds=max(0.0, ended - self.began), returned=self.returned,
            restarts=self.restarts,
        )  # fmt: skip

    def _start(self, worker: int) -> None:
        self.server.board.shards_N[worker, [READY, EPOCH]] = 0
        self.computed[worker] = self.server.board.shards_N[worker, MINIBATCHES]
        self.errors[worker], theirs = self.context.Pipe(duplex=False)
        device = self.device
        if device == "cuda":
            device = f"cuda:{worker % torch.cuda.device_count()}"
        self.processes[worker] = self.context.Process(
            target=_main, args=(worker, self.place, self.build, device, self.on_gpu, theirs), daemon=True
        )  # fmt: skip
        with starting_workers():
            self.processes[worker].start()
        theirs.close()

    def _look_after(self) -> None:
        """Wait a little; where a shard died, give back what it had out and start another."""
        multiprocessing.connection.wait([process.sentinel for process in self.processes], timeout=_LOOK_S)
        for worker, process in enumerate(self.processes):
            if process.is_alive():
                continue
            process.join()
            if self.errors[worker].poll():
                try:
                    raise Speech3Error(f"shard {worker}: {self.errors[worker].recv()}")
                except EOFError:
                    pass
            row = self.server.board.shards_N[worker]
            with self.lock:
                self.server.settle()
                self.returned += self.server.pool.give_back(worker)
            self.deaths[worker] = 1 if row[MINIBATCHES] > self.computed[worker] else self.deaths[worker] + 1
            if self.deaths[worker] >= _DEATHS:
                raise Speech3Error(
                    f"shard {worker} died {_DEATHS} times without a minibatch in between (exit status "
                    f"{process.exitcode}; -9 is often the kernel, out of memory): use fewer workers or a smaller model"
                )
            self.restarts += 1
            self._start(worker)


def _main(worker: int, place: Place, build: BuildOn, device: str, on_gpu: Any, errors: Any) -> None:
    """A shard's process."""
    try:
        _serve(worker, place, build(device), on_gpu)
    except Exception as error:
        if os.getppid() == place.coordinator:  # else nobody hears it
            errors.send(str(error) if isinstance(error, Speech3Error) else traceback.format_exc())


def _serve(worker: int, place: Place, parts: Parts, on_gpu: Any) -> None:
    """Rest and work as ordered, while the coordinator lives."""
    server, lock = place.open(on_gpu)
    shard = Shard(
        parts, place.config, workers=place.workers, weight_decay=place.weight_decay, codec=place.codec
    )  # fmt: skip
    server.rule.rehearse(server.buffers[0].state, shard.push.as_own())
    shard.push.wire.counted()  # the rehearsal was not sent
    board, order, row = server.board, server.board.order, server.board.shards_N[worker]
    row[READY] = 1
    while os.getppid() == place.coordinator:
        row[EPOCH] = order[0]  # said first, then looked again: no order is missed, and no rest is disturbed
        if row[EPOCH] and order[0] == row[EPOCH] and board.cursor[0] < len(board.states_M):
            rate = Rate(order[1], int(order[0]), len(board.states_M), order[2], order[3])
            events: list[Event] = []
            note = events.append if place.record else _forget
            _drive(worker, shard, server, lock, rate, place.coordinator, note)
            if place.record:
                with (place.record / f"shard{worker}.jsonl").open("a") as stream:
                    stream.writelines(json.dumps(event) + "\n" for event in events)
        else:
            row[EPOCH] = 0
            time.sleep(_REST_S)


def _forget(event: Event) -> None:
    """An epoch of 1,000 hours has millions of events."""


def _drive(
    worker: int, shard: Shard, server: Server, lock: FileLock, rate: Rate, coordinator: int,
    note: Callable[[Event], None],
) -> None:  # fmt: skip
    """Answer what the shard's loop wants; notes what happens: draws, syncs by the version met, a busy server."""
    row, loop, answer = server.board.shards_N[worker], shard.run(), None
    note(("epoch", rate.epoch))
    while True:
        try:
            want = loop.send(answer)
        except StopIteration:
            return
        begun = time.perf_counter()
        match want:
            case Draw(after):
                answer = server.pool.draw(worker, after) if os.getppid() == coordinator else None
                note(("draw", answer))
            case Compute(number):
                shard.compute(rate.epoch, number, rate)
                row[MINIBATCHES] += 1
                row[COMPUTE_S] += time.perf_counter() - begun
            case Sync(wait):
                wait_for_gpus(shard.push.own.vector_K)  # the server is not held for a gradient on its way
                row[COMPUTE_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                answer = lock.try_acquire()
                if not answer:
                    row[BUSY] += 1
                    if not wait:
                        note(("busy", None))
                        continue
                    answer = lock.acquire()
                    row[WAIT_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                met = server.version
                server.sync(shard.push)
                note(("publish" if server.version > met else "sync", met))
                lock.release()
                row[[UP, DOWN]] += shard.push.wire.counted()
                row[SYNC_S] += time.perf_counter() - begun
