"""A process of world shared: it opens the server's memory and runs a shard's loop. The coordinator is in `shared`."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.assembly import Server, make_server
from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.gradient import Step, gradient
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
    shared_memory,
)
from speech3.engine.shard import Compute, Draw, Shard, Sync
from speech3.engine.watchdog import COMPUTES, DRAWS, IDLE, SYNCS, WAITS
from speech3.engine.world import BuildOn, Group, Rate, expect

LEAVE = -1  # in place of an epoch's number: shards exit
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


def serve(worker: int, place: Place, build: BuildOn, device: str, on_gpu: Any, _: Any) -> None:
    """The main function: work on each epoch that the coordinator begins, until it exits or says `LEAVE`."""
    coordinator = place.coordinator or os.getppid()
    parts = build(device)
    shard = Shard(
        parts, place.config, number=worker, workers=place.workers, weight_decay=place.weight_decay, codec=place.codec
    )  # fmt: skip
    server, locks = place.open(shard.sgd.parameters, on_gpu)
    _warm_up(server, shard)
    row = server.memory.shards_N[worker]
    orders = _orders(server.memory, row, coordinator)
    if parts.group is not None:
        orders = parts.group.orders(orders, row[EPOCH : EPOCH + 1])
        gradient(parts, 1, 0)  # makes PyTorch connect the members: this second must not count as training time
    row[SINCE] = time.monotonic()
    row[READY] = 1
    for rate in orders:
        events: list[Event] = []
        note = events.append if place.record else _forget
        run_shard(worker, shard, server, locks, rate, coordinator, note)
        if place.record:
            with (place.record / f"shard{worker}.jsonl").open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(event) + "\n" for event in events)


def _warm_up(server: Server, shard: Shard) -> None:
    """Load compiled code now: that takes a third of a second, or several if it is compiled, and must delay no sync."""
    for partition, push in zip(server.partitions, shard.pushes, strict=True):
        push.wire.warm_up(push.own.parameters_P)
        for fetch_due in (True, not shard.config.fetch_every):
            push.receive(-1, [0], 0, fetch_due=fetch_due, finite=True)
            push.pack()
            assert push.packed
            server.rule.warm_up(partition.published.state, push.packed)
        push.begin()


def _orders(memory: ServerMemory, row: np.ndarray, coordinator: int) -> Iterator[Rate]:
    """Wait for epochs and yield the learning rate of each; the caller works on the epoch between two items."""
    order = memory.order
    while os.getppid() == coordinator and order[0] != LEAVE:
        row[SINCE] = time.monotonic()
        # Written before `order` is read again, so that the coordinator sees every shard that is working.
        row[EPOCH] = order[0]
        if row[EPOCH] > 0 and order[0] == row[EPOCH] and memory.cursor[0] < len(memory.ledger):
            yield Rate(order[1], int(order[0]), len(memory.ledger), order[2], order[3], int(order[4]))
        else:
            row[EPOCH] = 0
            time.sleep(_REST_S)


def _enter(partition: Partition) -> None:
    """Begin a sync, with the lock held; if the last shard to sync died in it, wait until its GPU kernels have ended."""
    if partition.record.syncing[0] and partition.published.vector_K.is_cuda:
        time.sleep(_KERNELS_S)
    partition.record.syncing[0] = 1


def _draw(worker: int, after: int | None, server: Server, group: Group | None) -> int | None:
    """Draw a minibatch; in a replica the first member draws, and all record in their ledgers that it is assigned."""
    if group is None:
        return server.pool.draw(worker, after)
    number = group.agreed(server.pool.draw(worker, after) if group.rank == 0 else None)
    if number is not None:
        server.ledger.states_M[number] = worker + 1
    return number


def _forget(event: Event) -> None:
    """Discard an event: an epoch of 1,000 hours has millions of them."""


def run_shard(
    worker: int, shard: Shard, server: Server, locks: Sequence[FileLock], rate: Rate, coordinator: int,
    note: Callable[[Event], None],
) -> None:  # fmt: skip
    """Carry out the requests of the shard's loop.

    Passes events to `note`: draws with the minibatch, syncs with the version that they found, and busy partitions.
    """
    row, loop, answer = server.memory.shards_N[worker], shard.run(), None
    computed: list[tuple[int, Step]] = []  # whose results are not yet in the ledger
    note(("epoch", rate.epoch, 0))
    while True:
        begun = time.perf_counter()  # a request to sync comes only when a GPU has computed what is to be pushed
        try:
            request = loop.send(answer)
        except StopIteration:
            row[SINCE], row[DOING] = time.monotonic(), IDLE
            return
        match request:
            case Draw(after):
                row[SINCE], row[DOING] = time.monotonic(), DRAWS
                continues = os.getppid() == coordinator and server.memory.order[0] != LEAVE
                answer = _draw(worker, after, server, shard.parts.group) if continues else None
                row[DRAW_S] += time.perf_counter() - begun
                if answer is not None:
                    expect(shard.parts.source, rate.epoch, [answer])
                note(("draw", answer, 0))
            case Compute(number):
                row[SINCE], row[DOING] = time.monotonic(), COMPUTES
                computed.append((number, shard.compute(rate.epoch, number, rate)))
                row[MINIBATCHES] += 1
                row[COMPUTE_S] += time.perf_counter() - begun
            case Sync(number, wait):
                partition, push, lock = server.partitions[number], shard.pushes[number], locks[number]
                wait_for_gpus(push.own.vector_K)  # the lock must not be held while a gradient is computed
                while computed:
                    server.ledger.computed(*computed.pop())
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
