"""The parameter server's memory, which all processes of a run share, and its locks.

The memory is in no file system (memfd): other processes open it through /proc while its creator runs, and the kernel
frees it when the last of them has exited, even if it was killed. Where memfd is missing, it is a temporary file.

Axes: M minibatches of an epoch, N shards, K values of the model, of which P are parameters, J the most minibatches in a
push plus two, S partitions of the server.

----

The passive parameter server: parameters in memory, a version, and what a shard does to both while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is no server process: the shard that holds the
lock applies its own push to the parameters and fetches the new ones. `shard.py` decides when a shard syncs, `push.py`
defines what it sends, and `optimizer.py` how the push changes the parameters.

The state has two buffers. A push is written into the buffer that is not published, together with the numbers of its
minibatches (the journal); then a single store of the version publishes both. So a shard that is killed at any
instruction leaves the last published version intact. If it died just after publishing, the next shard to hold the lock
reads from the journal which minibatches are used, and marks them (`states.py`).

The parameters may be divided into partitions (DistBelief, Dean et al. 2012), each a server of its own: a shard syncs
with one after the other and skips those that are busy.

Axes: K values of a partition, of which P are parameters; J minibatches of a push.

----

Assembles the server from a config and memory, converts its state to and from checkpoints, and reports progress.

Axes: M minibatches of an epoch, N shards, K values of the model, of which P are parameters, J the most minibatches in a
push plus two, S partitions of the server.
"""

import fcntl
import math
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from speech3.config import AsgdConfig
from speech3.engine.flat import Flat, partition_bounds, wait_for_gpus
from speech3.engine.interface import REFUSED, STALE, USED, Progress, ShardReport
from speech3.engine.pool import ROW, MinibatchQueue, MinibatchStates
from speech3.engine.server_optimizer import ServerOptimizer, ServerVectors, server_optimizer_of
from speech3.engine.shard import Push
from speech3.errors import Speech3Error
from speech3.io.limits import memory_left

SHARD = (
    "minibatches", "compute_s", "sync_s", "wait_s", "busy", "up", "down", "draw_s", "ready", "epoch", "doing", "since",
)  # fmt: skip
MINIBATCHES, COMPUTE_S, SYNC_S, WAIT_S, BUSY, UP, DOWN, DRAW_S, READY, EPOCH, DOING, SINCE = range(len(SHARD))

_POLL_S = 0.001  # between two attempts to acquire a lock
_ALIGN = 64  # bytes: no two fields share a cache line


@dataclass(frozen=True, eq=False)
class PartitionRecord:
    """One partition's version, journal of both buffers, time of the last published push, and sync flag."""

    version: np.ndarray  # (1,)
    journal_2J: np.ndarray
    ended: np.ndarray  # (1,)
    syncing: np.ndarray  # (1,)

    @property
    def index(self) -> int:
        """Index of the published buffer."""
        return int(self.version[0]) % 2


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """The server's arrays. An axis of size 2 is the two buffers, of which number `version % 2` is the published one.

    Attributes
    ----------
    version_S
        int64: storing a new version publishes what was written into the other buffer.
    state_2K, velocity_2P, squares_2P
        float32: parameters and the model's buffers; the server's momentum; Adagrad's sums of squares. Those that the
        rule does not need are empty, and all three are if the server is on a GPU.
    journal_S2J
        int64, for each buffer, of the push that wrote it: how many minibatches it had, its staleness, and the
        minibatches' numbers.
    ended_S
        float64: when a push was last published, on the clock `time.monotonic`; 0: none yet in this epoch.
    syncing_S
        int64: 1 while a shard syncs with the partition; it remains 1 if that shard dies.
    ledger
        What became of each minibatch.
    cursor
        int64 (2,): see `speech3.engine.pool`.
    order
        float64 (5,): the epoch that shards must work on (0: none, -1: exit), and base, warmup, decay and last of its
        `Rate`.
    shards_N
        float64 (N, `SHARD`): the status of each shard: counts and seconds of the epoch, the epoch that it works on
        (0: none), its current activity and when that began, as a heartbeat (`speech3.engine.backends.processes`).
    """

    version_S: np.ndarray
    state_2K: np.ndarray
    velocity_2P: np.ndarray
    squares_2P: np.ndarray
    journal_S2J: np.ndarray
    ended_S: np.ndarray
    syncing_S: np.ndarray
    states: MinibatchStates
    cursor: np.ndarray
    order: np.ndarray
    shards_N: np.ndarray

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "ServerMemory":
        """Build from arrays, which `MemorySizes.shapes` names; removes the ledger's from `arrays`."""
        states = MinibatchStates(**{name: arrays.pop(name) for name in ROW})
        return cls(**arrays, states=states)

    @property
    def records(self) -> tuple[PartitionRecord, ...]:
        """One record for each partition."""
        fields = (self.version_S[:, None], self.journal_S2J, self.ended_S[:, None], self.syncing_S[:, None])
        return tuple(PartitionRecord(*rows) for rows in zip(*fields, strict=True))


@dataclass(frozen=True)
class MemorySizes:
    """What determines the size of the memory.

    Numbers of minibatches, shards and partitions, the most minibatches in a push, and the numbers of values of state,
    velocity and squares; the last three are 0 if they are on a GPU.
    """

    minibatches: int
    shards: int
    partitions: int
    push: int
    state: int
    velocity: int
    squares: int

    def shapes(self) -> dict[str, tuple[type, tuple[int, ...]]]:
        """Type and shape of each array."""
        return {
            "version_S": (np.int64, (self.partitions,)), "state_2K": (np.float32, (2, self.state)),
            "velocity_2P": (np.float32, (2, self.velocity)), "squares_2P": (np.float32, (2, self.squares)),
            "journal_S2J": (np.int64, (self.partitions, 2, 2 + self.push)),
            "ended_S": (np.float64, (self.partitions,)), "syncing_S": (np.int64, (self.partitions,)),
            **{name: (dtype, (self.minibatches,)) for name, dtype in ROW.items()},
            "cursor": (np.int64, (2,)), "order": (np.float64, (5,)),
            "shards_N": (np.float64, (self.shards, len(SHARD))),
        }  # fmt: skip


def private_memory(sizes: MemorySizes) -> ServerMemory:
    """The server's memory in a single process, such as the simulator."""
    return ServerMemory.of({name: np.zeros(shape, dtype) for name, (dtype, shape) in sizes.shapes().items()})


def shared_memory(sizes: MemorySizes, block: "SharedMemory") -> ServerMemory:
    """The server's memory in `block`, shared by every process that opens the block."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (dtype, shape) in sizes.shapes().items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(block.map, dtype, count, offset).reshape(shape)
        offset += -(-count * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
    return ServerMemory.of(arrays)


def memory_bytes(sizes: MemorySizes) -> int:
    """Size of the server's memory in bytes."""
    each = (int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in sizes.shapes().values())
    return sum(-(-size // _ALIGN) * _ALIGN for size in each)


class SharedMemory:
    """A block of memory that every process of this host can open by its path, while the block's creator runs."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR)
        try:
            self.map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)


@contextmanager
def memory_file(name: str, size: int) -> Iterator[str]:
    """Path of a new zeroed block of `size` bytes, allocated at once so that no access fails for lack of memory later.

    Raises
    ------
    Speech3Error
        There is not enough memory.
    """
    named = not hasattr(os, "memfd_create")
    descriptor, path = tempfile.mkstemp(prefix=f"speech3-{name}-") if named else (os.memfd_create(name), "")
    try:
        _allocate(descriptor, size)
        yield path or f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)
        if named:
            Path(path).unlink(missing_ok=True)


def _allocate(descriptor: int, size: int) -> None:
    if (left := memory_left()) is not None and size > left:  # the kernel would kill the process
        raise Speech3Error(
            f"the server needs {size / 1e6:,.0f} MB of memory, but this container may use only {left / 1e6:,.0f} MB"
            f" more: use a smaller model, or allow more (docker run --memory, or memory.max of the cgroup)"
        )
    try:
        if not hasattr(os, "posix_fallocate"):  # macOS
            os.ftruncate(descriptor, size)
        elif size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise Speech3Error(
            f"{size / 1e6:,.0f} MB of shared memory for the server cannot be allocated ({error.strerror}); use a "
            f"smaller model, or raise the limit of this machine or container (docker run --memory)"
        ) from error


class FileLock:
    """An advisory lock on an open file, which the kernel releases when its holder dies (flock(2))."""

    def __init__(self, path: str) -> None:
        self.meanwhile: Callable[[], None] | None = None  # called repeatedly while `acquire` waits
        self.descriptor = os.open(path, os.O_RDWR)  # a new descriptor: an inherited one would share its holder's lock
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; returns whether it was."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> bool:
        """Wait for the lock; returns True."""
        if self.meanwhile is None:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            return True
        while not self.try_acquire():
            self.meanwhile()
            time.sleep(_POLL_S)
        return True

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)


@dataclass(frozen=True, eq=False)
class Buffer:
    """One of the two buffers: a partition's values, including the model's buffers, and the rule's view of them."""

    vector_K: Tensor
    state: ServerVectors


@dataclass(frozen=True, eq=False)
class Partition:
    """A view of one partition of the server; every process that opens the memory has its own view.

    Attributes
    ----------
    record
        The partition's version and journal.
    buffers
        The two buffers, in the memory of the CPU or of a GPU.
    max_staleness
        Pushes with a greater staleness are dropped; None: no push is too stale.
    max_push
        How far a push may move the parameters, relative to their norm; a push that moves them further is refused.
    """

    record: PartitionRecord
    states: MinibatchStates
    buffers: Sequence[Buffer]
    optimizer: ServerOptimizer
    partitions: int
    max_staleness: int | None
    max_push: float

    @property
    def version(self) -> int:
        """Number of updates published so far."""
        return int(self.record.version[0])

    @property
    def published(self) -> Buffer:
        """The published buffer."""
        return self.buffers[self.record.index]

    def sync(self, push: Push) -> int:
        """Apply the push if it is due, and fetch the newest parameters if a fetch is due; call with the lock held.

        `push.pack` must have been called. Returns what became of the push's minibatches in this partition: USED, STALE
        or REFUSED; USED also if nothing was pushed.
        """
        self.settle()
        if not (push.push_due and push.numbers):
            push.fetch(self.version, self.published.vector_K, used=False)
            return USED
        numbers, push.numbers = push.numbers, []
        ended = self._step(push, numbers)
        if ended != USED:
            self.states.refuse(numbers, ended, self.partitions)
            push.fetch(self.version, self.published.vector_K, used=False)
        elif push.fetch_due:
            push.fetch(self.version, None, used=True)  # the step has written the parameters into the shard's copy
        else:
            push.pushed()
        return ended

    def settle(self) -> None:
        """Mark the minibatches of the published version as used: the shard that published it may have died first."""
        count, staleness, *numbers = self.record.journal_2J[self.record.index].tolist()
        self.states.publish(numbers[:count], staleness)

    def _step(self, push: Push, numbers: list[int]) -> int:
        """Publish the state after the push, unless the push is stale, not finite or moves the parameters too far."""
        staleness = self.version - push.version
        if push.packed is None:
            return REFUSED
        if self.max_staleness is not None and staleness > self.max_staleness:
            return STALE
        old, new = self.published, self.buffers[1 - self.record.index]
        buffers = new.vector_K[push.own.num_parameters :]
        # Their sum is finite if all are; the host reads it after the step, when it is there.
        buffers_sum = buffers.copy_(push.own.buffers).sum(dtype=torch.float64) if buffers.numel() else None
        length = self.optimizer.step(  # on a GPU, returns only when everything is written
            old.state, new.state, push.packed, staleness=staleness, minibatches=len(numbers)
        )  # fmt: skip
        finite = math.isfinite(length) and (buffers_sum is None or math.isfinite(buffers_sum))
        if not (finite and length <= self.max_push):
            return REFUSED
        self._publish(push, staleness, numbers)
        return USED

    def _publish(self, push: Push, staleness: int, numbers: list[int]) -> None:
        record, new = self.record, 1 - self.record.index
        record.journal_2J[new, :2] = len(numbers), staleness
        record.journal_2J[new, 2 : 2 + len(numbers)] = numbers
        record.ended[0] = time.monotonic()
        if push.own.vector_K.device != self.buffers[new].vector_K.device:
            wait_for_gpus(push.own.vector_K, self.buffers[new].vector_K)
        record.version[0] += 1  # the single store
        self.settle()


@dataclass(frozen=True, eq=False)
class Server:
    """One process's view of the whole parameter server; its partitions together hold the parameters."""

    memory: ServerMemory
    queue: MinibatchQueue
    partitions: tuple[Partition, ...]
    optimizer: ServerOptimizer

    @property
    def states(self) -> MinibatchStates:
        """What became of each minibatch."""
        return self.memory.states

    @property
    def version(self) -> int:
        """Number of updates published so far; with several partitions, the largest of their numbers."""
        return max(partition.version for partition in self.partitions)

    def settle(self) -> None:
        """Mark all published minibatches as used, including those of dead shards; call with all locks held."""
        for partition in self.partitions:
            partition.settle()


def sizes_of(own: Flat, config: AsgdConfig, workers: int, minibatches: int) -> MemorySizes:
    """Sizes of the server's memory; the state of a model on a GPU is kept on the GPU, so its sizes here are 0."""
    on_cpu = own.vector_K.device.type == "cpu"
    return MemorySizes(
        minibatches, workers, config.partitions, push=config.max_distance,
        state=own.vector_K.numel() if on_cpu else 0,
        velocity=own.num_parameters if on_cpu and config.momentum else 0,
        squares=own.num_parameters if on_cpu and config.adagrad else 0,
    )  # fmt: skip


def tensors_on_gpu(own: Flat, config: AsgdConfig) -> tuple[Tensor, Tensor, Tensor] | None:
    """State (2, K), velocity and squares (2, P) on the GPU of `own`, shared by CUDA IPC; None if `own` is on a CPU.

    Velocity and squares have no values if the config does not need them.
    """
    if not own.vector_K.is_cuda:
        return None
    slots = (own.num_parameters if wanted else 0 for wanted in (config.momentum, config.adagrad))
    sizes = (own.vector_K.numel(), *slots)
    state_2K, velocity_2P, squares_2P = (torch.zeros(2, size, device=own.vector_K.device) for size in sizes)
    return state_2K, velocity_2P, squares_2P


def make_server(
    memory: ServerMemory, config: AsgdConfig, workers: int, own: Flat, lock: AbstractContextManager[object],
    on_gpu: tuple[Tensor, Tensor, Tensor] | None = None, rows: Sequence[range] | None = None,
) -> Server:  # fmt: skip
    """Make this process's view of the server, for a model like `own`; `lock` and `rows` are the pool's."""
    arrays = memory.state_2K, memory.velocity_2P, memory.squares_2P
    state_2K, velocity_2P, squares_2P = on_gpu or map(torch.from_numpy, arrays)
    queue, optimizer = (
        MinibatchQueue(memory.states, memory.cursor, lock, rows),
        server_optimizer_of(config, workers),
    )
    partitions = tuple(
        Partition(
            record, memory.states, _buffers(state_2K, velocity_2P, squares_2P, stretch, own.num_parameters), optimizer,
            config.partitions, config.max_staleness, config.max_push,
        )
        for record, stretch in zip(memory.records, partition_bounds(own, config.partitions), strict=True)
    )  # fmt: skip
    return Server(memory, queue, partitions, optimizer)


def _buffers(
    state_2K: Tensor, velocity_2P: Tensor, squares_2P: Tensor, stretch: slice, num_parameters: int
) -> tuple[Buffer, Buffer]:
    moved = slice(stretch.start, min(stretch.stop, num_parameters))

    def buffer(index: int) -> Buffer:
        slots = (slot_2P[index, moved] if slot_2P.numel() else None for slot_2P in (velocity_2P, squares_2P))
        return Buffer(state_2K[index, stretch], ServerVectors(state_2K[index, moved], *slots))

    return buffer(0), buffer(1)


def published_tensors(server: Server) -> dict[str, Tensor]:
    """Copies of the published parameters and slots; call with all locks held, or while all shards are idle."""
    published = [partition.published for partition in server.partitions]
    named = {
        "parameters": [buffer.vector_K for buffer in published],
        "server.velocity": [buffer.state.velocity_P for buffer in published if buffer.state.velocity_P is not None],
        "server.squares": [buffer.state.squares_P for buffer in published if buffer.state.squares_P is not None],
    }
    tensors = {name: torch.cat(stretches) for name, stretches in named.items() if stretches}
    wait_for_gpus(*tensors.values())
    return tensors


def load_tensors(server: Server, tensors: dict[str, Tensor]) -> None:
    """Set the published state; call while all shards are idle. Missing slots become zero.

    After a warm start the server continues with the momentum of plain SGD.
    """
    begin = 0
    for partition in server.partitions:
        published, state = partition.published, partition.published.state
        stretch = slice(begin, begin + len(published.vector_K))
        moved = slice(begin, begin + len(state.parameters_P))
        published.vector_K.copy_(tensors["parameters"][stretch])
        for slot_P, saved in (
            (state.velocity_P, tensors.get("server.velocity", tensors.get("velocity"))),
            (state.squares_P, tensors.get("server.squares")),
        ):
            if slot_P is not None:
                slot_P.zero_() if saved is None else slot_P.copy_(saved[moved])
        wait_for_gpus(published.vector_K)
        begin = stretch.stop


@dataclass(frozen=True)
class EpochStart:
    """The server's version and its numbers of used, stale and refused minibatches when an epoch began or resumed."""

    version: int
    counts: dict[int, int]


def begin_epoch(server: Server, states_M: np.ndarray) -> EpochStart:
    """Fill the pool and reset the counts; call while all shards are idle."""
    server.memory.journal_S2J[:] = 0
    server.memory.ended_S[:] = 0
    server.queue.fill(states_M)
    server.memory.shards_N[:, :READY] = 0
    return EpochStart(server.version, server.states.counts())


def epoch_progress(server: Server, before: EpochStart, *, seconds: float, returned: int, restarts: int) -> Progress:
    """Progress of the epoch since it began or resumed, from the published state."""
    shards_N = server.memory.shards_N
    reports = (dict(zip(SHARD, row, strict=True)) for row in shards_N.tolist())
    return replace(
        server.states.progress(before.counts), seconds=seconds, versions=server.version - before.version,
        returned=returned, restarts=restarts, up=int(shards_N[:, UP].sum()), down=int(shards_N[:, DOWN].sum()),
        shards=tuple(
            ShardReport(int(r["minibatches"]), r["compute_s"], r["sync_s"], r["wait_s"], int(r["busy"]), r["draw_s"])
            for r in reports
        ),
    )  # fmt: skip
