"""Backend shared: shards as processes on one host, with the parameter server in their shared memory.

The coordinator (`Shared`, the process that opens this backend) starts the shards, gives them epochs to work on, and
watches them. If a shard dies, the minibatches that were assigned to it return to the queue and a new shard takes its
place; the kernel has released its locks, so the other shards are not affected. Between epochs the shards are idle.

A large model may be split: each shard is then a replica, a group of processes (`papers/replicas.py`) of which member r
holds slice r of the model, and the server of that slice has its own memory, locks and versions (Dean et al. 2012,
"Large scale distributed deep networks", section 4.1 and figure 2). The members compute each minibatch together; then
each pushes its slice of the result by itself when its server is free. As in the paper, the slices of the parameters
need not be of the same moment. We depart from the paper in that servers are memory, and that the members of a replica
die together. Minibatches are drawn from the first server, which also holds the orders to the shards.
"""

import json
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.processes import (
    Activity,
    FileLock,
    Task,
    Unkillable,
    Watchdog,
    Workers,
    coordinator,
    memory_file,
    open_memory,
)
from speech3.engine.flat import Flat, flatten, wait_for_gpus
from speech3.engine.gradient import Step, device_for, gradient
from speech3.engine.interface import BuildOn, Progress, Rate, ReplicaGroup, Rows, Snapshot, WorkerParts, expect
from speech3.engine.papers.replicas import Group, Join, Slices
from speech3.engine.pool import MinibatchStates, combined, give_back
from speech3.engine.server import (
    EpochStart,
    GpuTensors,
    MemoryLayout,
    Partition,
    Server,
    ServerMemory,
    Status,
    make_server,
    memory_bytes,
    memory_layout,
    memory_over,
    tensors_on_gpu,
)
from speech3.engine.shard import Compute, Draw, Shard, Sync

LEAVE = -1  # in place of an epoch's number: shards exit
_KERNELS_S = 0.5  # the GPU kernels of a killed process end within this time
_REST_S = 0.0005  # between two checks of an idle shard for an epoch to work on
Event = tuple[str, int | None, int]  # kind, minibatch or version, partition
Note = Callable[[Event], None]
_LEAVE_S = 10.0  # time for shards on a GPU to exit by themselves; 2.1 s were seen


@dataclass(frozen=True)
class ServerAddress:
    """What a process needs to open the server: the paths of its memory and locks, its layout and its settings."""

    memory: str
    locks: tuple[str, ...]  # one for each partition
    queue_lock: str
    layout: MemoryLayout
    config: AsgdConfig
    workers: int
    coordinator: int
    record: Path | None
    rows: Rows
    codec: CodecConfig | None

    def attach(self, own: Flat, on_gpu: GpuTensors) -> tuple[Server, list[FileLock]]:
        """This process's view of the server, for a model like `own`, and the locks of its partitions."""
        memory = memory_over(self.layout, open_memory(self.memory, memory_bytes(self.layout)))
        server = make_server(memory, self.config, own, FileLock(self.queue_lock), on_gpu, self.rows)
        return server, [FileLock(path) for path in self.locks]


def run_shard_process(
    worker: int, address: ServerAddress, build: BuildOn, device: str, on_gpu: list[Any], _: Any
) -> None:
    """The main function: work on each epoch that the coordinator begins, until it exits or says `LEAVE`.

    `on_gpu`: the server's tensors on a GPU, taken out of the list: a forked process never destroys its arguments, so
    the GPU's memory would stay taken as long as the coordinator lives.
    """
    coordinator = address.coordinator or os.getppid()
    parts = build(device)
    shard = Shard(parts, address.config, number=worker, workers=address.workers, codec=address.codec)
    server, locks = address.attach(shard.sgd.parameters, on_gpu.pop())
    _warm_up(server, shard)
    row = server.memory.shards_N[worker]
    orders = _orders(server.memory, row, coordinator)
    if parts.group is not None:
        orders = parts.group.orders(orders, row[Status.EPOCH : Status.EPOCH + 1])
        gradient(parts, 1, 0)  # makes PyTorch connect the members: this second must not count as training time
    row[Status.SINCE] = time.monotonic()
    row[Status.READY] = 1
    for rate in orders:
        events: list[Event] = []
        note = events.append if address.record else _forget
        run_shard(worker, shard, server, locks, rate, coordinator, note)
        if address.record:
            with (address.record / f"shard{worker}.jsonl").open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(event) + "\n" for event in events)


def _warm_up(server: Server, shard: Shard) -> None:
    """Load compiled code now: that takes a third of a second, or several if it is compiled, and must delay no sync."""
    for partition, push in zip(server.partitions, shard.pushes, strict=True):
        push.wire.warm_up(push.own.parameters_P)
        for fetch_due in (True, not shard.config.fetch_every):
            push.receive(-1, [0], 0, fetch_due=fetch_due, finite=True)
            push.pack()
            assert push.packed
            server.optimizer.warm_up(partition.published, push.packed)
        push.begin()


def _orders(memory: ServerMemory, row: np.ndarray, coordinator: int) -> Iterator[Rate]:
    """Wait for epochs and yield the learning rate of each; the caller works on the epoch between two items."""
    order = memory.order
    while os.getppid() == coordinator and order[0] != LEAVE:
        row[Status.SINCE] = time.monotonic()
        # Written before `order` is read again, so that the coordinator sees every shard that is working.
        row[Status.EPOCH] = order[0]
        if row[Status.EPOCH] > 0 and order[0] == row[Status.EPOCH] and memory.cursor[0] < len(memory.states):
            yield Rate(order[1], int(order[0]), len(memory.states), order[2], order[3], int(order[4]))
        else:
            row[Status.EPOCH] = 0
            time.sleep(_REST_S)


def _enter(partition: Partition) -> None:
    """Begin a sync, with the lock held; if the last shard to sync died in it, wait until its GPU kernels have ended."""
    if partition.memory.syncing_S[partition.number] and partition.published.vector_K.is_cuda:
        time.sleep(_KERNELS_S)
    partition.memory.syncing_S[partition.number] = 1


def _draw(worker: int, after: int | None, server: Server, group: ReplicaGroup | None) -> int | None:
    """Draw a minibatch; in a replica the first member draws, and all record that it is assigned."""
    if group is None:
        return server.queue.draw(worker, after)
    number = group.agreed(server.queue.draw(worker, after) if group.rank == 0 else None)
    if number is not None:
        server.states.states_M[number] = worker + 1
    return number


def _forget(event: Event) -> None:
    """Discard an event: an epoch of 1,000 hours has millions of them."""


def run_shard(
    worker: int, shard: Shard, server: Server, locks: Sequence[FileLock], rate: Rate, coordinator: int, note: Note
) -> None:
    """Carry out the requests of the shard's loop.

    Passes events to `note`: draws with the minibatch, syncs with the version that they found, and busy partitions.
    """
    row, loop, answer = server.memory.shards_N[worker], shard.run(), None

    def begins(activity: Activity) -> None:
        # The time first: the watchdog must never see a new activity with the time of an earlier one.
        row[Status.SINCE], row[Status.DOING] = time.monotonic(), activity

    computed: list[tuple[int, Step]] = []  # whose results are not yet in the minibatch states
    note(("epoch", rate.epoch, 0))
    while True:
        begun = time.perf_counter()  # before `send`, in which `Shard.check` waits for a GPU before a sync
        try:
            request = loop.send(answer)
        except StopIteration:
            begins(Activity.IDLE)
            return
        match request:
            case Draw(after):
                begins(Activity.DRAWS)
                continues = os.getppid() == coordinator and server.memory.order[0] != LEAVE
                answer = _draw(worker, after, server, shard.parts.group) if continues else None
                row[Status.DRAW_S] += time.perf_counter() - begun
                # No more a draw, which has but a moment: reading ahead may start processes first, and at the end of the
                # epoch a GPU may still compute.
                begins(Activity.COMPUTES)
                if answer is not None:
                    expect(shard.parts.source, rate.epoch, [answer])
                note(("draw", answer, 0))
            case Compute(number):
                begins(Activity.COMPUTES)
                computed.append((number, shard.compute(rate.epoch, number, rate)))
                row[Status.MINIBATCHES] += 1
                row[Status.COMPUTE_S] += time.perf_counter() - begun
            case Sync(number, wait):
                partition, push, lock = server.partitions[number], shard.pushes[number], locks[number]
                # 1. Finish computing, and encode the push, before the lock is taken.
                wait_for_gpus(push.own.vector_K)  # the lock must not be held while a gradient is computed
                while computed:
                    server.states.computed(*computed.pop())
                row[Status.COMPUTE_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                push.pack()
                row[Status.SYNC_S] += time.perf_counter() - begun
                begun = time.perf_counter()
                # 2. Take the lock if it is free, or wait for it.
                answer = lock.try_acquire()
                if not answer:
                    row[Status.BUSY] += 1
                    if not wait:
                        note(("busy", None, number))
                        continue
                    begins(Activity.WAITS)
                    answer = lock.acquire()
                    row[Status.WAIT_S] += time.perf_counter() - begun
                # 3. The sync itself; decode what was fetched after the lock is released.
                begun = time.perf_counter()
                begins(Activity.SYNCS)
                _enter(partition)
                met = partition.version
                partition.sync(push)
                note(("publish" if partition.version > met else "sync", met, number))
                server.memory.syncing_S[number] = 0
                lock.release()
                push.unpack()
                row[[Status.UP, Status.DOWN]] += push.wire.counted()
                row[Status.SYNC_S] += time.perf_counter() - begun
                begins(Activity.COMPUTES)  # the next request follows at once


class Shared:
    """The backend of shards that are processes on this host.

    Parameters
    ----------
    build
        Makes the parts of a shard in its process; in a member of a replica, those of its slice of the model.
    parts
        Parts of this process, which give the sizes of the model and of an epoch; they compute nothing.
    split
        The slices of the model that the members of a replica hold, on their devices; only their sizes are used. Empty:
        each shard is one process with the whole model.
    device
        ``cpu``; ``cuda``: shards are distributed over all GPUs and the server is on the first; ``cuda:N``: all are on
        GPU N. The members of replicas are distributed over all GPUs; the server of slice r is on GPU r.
    record
        Directory in which each shard records its events, for a replay.

    Raises
    ------
    Speech3Error
        There is not enough memory for the server; a shard fails, or dies repeatedly.
    """

    def __init__(
        self,
        build: BuildOn,
        parts: WorkerParts,
        config: AsgdConfig,
        *,
        workers: int,
        split: Sequence[nn.Module] = (),
        device: str = "cpu",
        record: Path | None = None,
        codec: CodecConfig | None = None,
    ) -> None:
        self.build, self.device, self.source = build, device, parts.source
        self.slices = Slices(parts.model, split) if split else None
        # For each slice: this process's view of the server, what other processes need to open it, and its locks.
        self.servers, self.addresses = list[Server](), list[ServerAddress]()
        self.locks, self.on_gpu = list[list[FileLock]](), list[GpuTensors]()
        self.stack, self.started = ExitStack(), count()
        self.workers = Workers([f"shard {worker}" for worker in range(workers)], "minibatch", self._tasks)
        self.watchdog = Watchdog(np.zeros(workers))
        self.ended_N = [0] * workers  # minibatches that had ended when each worker's process was started
        self.returned = self.restarts = 0
        self.alone = False  # whether only this process still works: a shard cannot be killed, and the others were
        try:
            if split:
                self.meeting = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="speech3-replicas-"))
            for model in split or [parts.model]:
                self._open(model, config, workers, record, codec)
            self.before, self.began = [EpochStart(0, server.states.counts()) for server in self.servers], 0.0
            self.workers.start_all()
        except BaseException:
            self.stack.close()
            raise

    def _open(
        self, model: nn.Module, config: AsgdConfig, workers: int, record: Path | None, codec: CodecConfig | None
    ) -> None:
        own = flatten(model)
        layout = memory_layout(own, config, workers, len(self.source))
        names = [f"lock{number}" for number in range(config.partitions)]
        memory, queue_lock, *locks = (
            self.stack.enter_context(memory_file(name, size))
            for name, size in (("server", memory_bytes(layout)), ("pool", 0), *((name, 0) for name in names))
        )
        files, rows = (memory, tuple(locks), queue_lock), self.source.rows
        address = ServerAddress(*files, layout, config, workers, coordinator(), record, rows, codec)
        self.on_gpu.append(tensors_on_gpu(own, config))
        server, own_locks = address.attach(own, self.on_gpu[-1])
        for lock in (*own_locks, server.queue.lock):  # a shard that hangs may hold it
            assert isinstance(lock, FileLock)
            lock.meanwhile = self._kill_hung
        self.addresses.append(address)
        self.servers.append(server)
        self.locks.append(own_locks)

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end."""
        self.returned, self.restarts, self.workers.note = 0, 0, ""
        self.before = [server.begin_epoch(states_M) for server in self.servers]
        for server in self.servers[1:]:
            server.memory.cursor[0] = len(states_M)  # only the first server's pool is drawn from
        while not self._shards(Status.READY).all():
            self._replace_dead()
            yield self._progress()
        self.watchdog.before_N[:] = 0
        self.began = self.watchdog.since = time.monotonic()
        order = self.server.memory.order
        order[:] = 0, rate.base, rate.warmup, rate.decay, rate.last
        order[0] = epoch  # last: shards look at it first
        try:
            while not all(server.queue.finished for server in self.servers):
                self._replace_dead()
                yield self._progress()
        finally:
            order[0] = 0
        while self._shards(Status.EPOCH).any():
            self._replace_dead()
            yield self._progress()
        yield self._progress()

    def snapshot(self) -> Snapshot:
        """The published state; a shard that finds the server locked by this continues to compute.

        The state is of one moment, in which a minibatch need not be in all slices yet.
        """
        with self._locked():
            states_M, progress = self._states().states_M.copy(), self._progress()
            found = [server.tensors() for server in self.servers]
        if self.slices is None:
            return Snapshot(found[0], states_M, progress)
        whole = {name: self.slices.joined([tensors[name] for tensors in found]) for name in found[0]}
        return Snapshot(whole, states_M, progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        if self.slices is None:
            self.server.load(tensors)
            return
        known = ("parameters", "velocity", "server.velocity", "server.squares")
        taken = {name: self.slices.take(tensors[name]) for name in known if name in tensors}
        for rank, server in enumerate(self.servers):
            server.load({name: parts[rank] for name, parts in taken.items()})

    def close(self) -> None:
        """Stop the shards; the memory is freed when the last of them has exited."""
        if any(self.on_gpu):
            self._let_leave()
        self.workers.close()
        self.stack.close()

    @property
    def server(self) -> Server:
        return self.servers[0]

    @property
    def processes(self) -> list[Any]:
        return self.workers.processes

    def _let_leave(self) -> None:
        """Let the shards exit: PyTorch never frees GPU memory that a process had open when it was killed."""
        self.server.memory.order[0], limit = LEAVE, time.monotonic() + _LEAVE_S
        waiting = [process.sentinel for process in self.processes]
        while waiting and (left_s := limit - time.monotonic()) > 0:
            for sentinel in multiprocessing.connection.wait(waiting, timeout=left_s):
                waiting.remove(sentinel)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold all partitions' locks, with published minibatches marked; no deadlock, as a shard never holds two."""
        if self.alone:  # a shard that cannot be killed may hold a lock, but it publishes nothing more
            for server in self.servers:
                server.mark_published()
            yield
            return
        with ExitStack() as stack:
            for server, locks in zip(self.servers, self.locks, strict=True):
                for lock in locks:
                    stack.enter_context(lock)
                server.mark_published()
            yield

    def _shards(self, field: int) -> np.ndarray:
        return np.stack([server.memory.shards_N[:, field] for server in self.servers])

    def _states(self) -> MinibatchStates:
        states_of_parts = [server.states for server in self.servers]
        return states_of_parts[0] if self.slices is None else combined(states_of_parts)

    def _progress(self) -> Progress:
        """Progress of the whole model; the shards' reports are those of the first members, since all are alike."""
        counts: dict[str, Any] = {"returned": self.returned, "restarts": self.restarts, "note": self.workers.note}
        each = [
            server.progress(before, seconds=max(0.0, float(server.memory.ended_S.max()) - self.began), **counts)
            for server, before in zip(self.servers, self.before, strict=True)
        ]
        if self.slices is None:
            return each[0]
        sums = {name: sum(getattr(done, name) for done in each) for name in ("up", "down")}
        largest = {name: max(getattr(done, name) for done in each) for name in ("seconds", "versions")}
        done = self._states().progress(self.before[0].counts)
        return replace(done, shards=each[0].shards, **counts, **sums, **largest)

    def _tasks(self, worker: int) -> list[Task]:
        for server in self.servers:
            server.memory.shards_N[worker, [Status.READY, Status.EPOCH, Status.DOING]] = 0
        self.watchdog.started(worker, float(self.server.memory.shards_N[worker, Status.MINIBATCHES]))
        self.ended_N[worker] = self._states().ended
        size, tasks, number = len(self.servers), [], next(self.started)
        for rank, (address, on_gpu) in enumerate(zip(self.addresses, self.on_gpu, strict=True)):
            build, device = self.build, device_for(self.device, worker)
            if self.slices is not None:
                device = device_for("cuda" if on_gpu else "cpu", worker * size + rank)
                build = Join(build, Group(rank, size), Path(self.meeting) / f"{worker}-{number}")
            tasks.append(Task(run_shard_process, (worker, address, build, device, [on_gpu]), device))
        return tasks

    def _kill_hung(self) -> None:
        """Kill a shard that hangs, at most one per call; a member that hangs stops the first member of its replica."""
        with self._ending_others():
            self.workers.check_killed()
        memory = self.server.memory
        work = memory.order[0] > 0 and memory.cursor[0] < len(memory.states)
        if hang := self.watchdog.find(memory.shards_N, bool(work)):
            self.workers.kill_hung(hang.worker, str(hang))

    @contextmanager
    def _ending_others(self) -> Iterator[None]:
        """If a shard cannot be killed, stop the others, after which the state can be read without locks."""
        try:
            yield
        except Unkillable:
            if not self.alone:
                self.workers.end_others()
                self.alone = True
            raise

    def _replace_dead(self) -> None:
        """Wait a little; if a shard died, return its minibatches to the queue and start a new one."""
        self._kill_hung()
        for worker in self.workers.dead():
            with self._ending_others():
                death = self.workers.end(worker)
            with self._locked():
                self.returned += give_back([server.queue for server in self.servers], worker)
            # It computed something, and pushes arrive: a shard that always dies in its push would restart for ever.
            computed = self.server.memory.shards_N[worker, Status.MINIBATCHES] > self.watchdog.before_N[worker]
            arrived = self._states().ended != self.ended_N[worker]  # fewer in a new epoch
            self.workers.replace(worker, death, progressed=bool(computed and arrived))
            self.restarts += 1
