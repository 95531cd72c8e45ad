"""The parameter server's memory, which all processes of a run share, and its locks.

The memory is in no file system (memfd): other processes open it through /proc while its creator runs, and the kernel
frees it when the last of them has exited, even if it was killed. Where memfd is missing, it is a temporary file.

Axes: M minibatches of an epoch, N shards, K values of the model, of which P are parameters, J the most minibatches in a
push plus two, S partitions of the server.
"""

import fcntl
import mmap
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.engine.ledger import ROW, Ledger
from speech3.errors import Speech3Error
from speech3.runtime import memory_left

SHARD = (
    "minibatches", "compute_s", "sync_s", "wait_s", "busy", "up", "down", "draw_s", "ready", "epoch", "doing", "since",
)  # fmt: skip
MINIBATCHES, COMPUTE_S, SYNC_S, WAIT_S, BUSY, UP, DOWN, DRAW_S, READY, EPOCH, DOING, SINCE = range(len(SHARD))

_POLL_S = 0.001  # between two attempts to acquire a lock
_ALIGN = 64  # bytes: no two fields share a cache line


@dataclass(frozen=True, eq=False)
class Record:
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
        (0: none), its current activity and when that began, as a heartbeat (`speech3.engine.watchdog`).
    """

    version_S: np.ndarray
    state_2K: np.ndarray
    velocity_2P: np.ndarray
    squares_2P: np.ndarray
    journal_S2J: np.ndarray
    ended_S: np.ndarray
    syncing_S: np.ndarray
    ledger: Ledger
    cursor: np.ndarray
    order: np.ndarray
    shards_N: np.ndarray

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> "ServerMemory":
        """Build from arrays, which `Sizes.shapes` names; removes the ledger's from `arrays`."""
        ledger = Ledger(**{name: arrays.pop(name) for name in ROW})
        return cls(**arrays, ledger=ledger)

    @property
    def records(self) -> tuple[Record, ...]:
        """One record for each partition."""
        fields = (self.version_S[:, None], self.journal_S2J, self.ended_S[:, None], self.syncing_S[:, None])
        return tuple(Record(*rows) for rows in zip(*fields, strict=True))


@dataclass(frozen=True)
class Sizes:
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


def private_memory(sizes: Sizes) -> ServerMemory:
    """The server's memory in a single process, such as the simulator."""
    return ServerMemory.of({name: np.zeros(shape, dtype) for name, (dtype, shape) in sizes.shapes().items()})


def shared_memory(sizes: Sizes, block: "SharedMemory") -> ServerMemory:
    """The server's memory in `block`, shared by every process that opens the block."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (dtype, shape) in sizes.shapes().items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(block.map, dtype, count, offset).reshape(shape)
        offset += -(-count * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
    return ServerMemory.of(arrays)


def memory_bytes(sizes: Sizes) -> int:
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
