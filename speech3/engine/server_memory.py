"""The memory that all processes of a run see, and its locks.

The memory belongs to no file system (memfd): other processes open it through /proc while its creator lives, and the
kernel takes it back when the last of them is gone, killed or not. Where there is no memfd it is a temporary file.

Axes: M minibatches of an epoch, N shards, K values of the model, P of them parameters, J minibatches of a push and two
more, S partitions of the server.
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

SHARD = (
    "minibatches", "compute_s", "sync_s", "wait_s", "busy", "up", "down", "draw_s", "ready", "epoch", "doing", "since",
)  # fmt: skip
MINIBATCHES, COMPUTE_S, SYNC_S, WAIT_S, BUSY, UP, DOWN, DRAW_S, READY, EPOCH, DOING, SINCE = range(len(SHARD))

_POLL_S = 0.001  # between two tries to have a lock
_ALIGN = 64  # bytes: no two fields share a cache line


@dataclass(frozen=True, eq=False)
class Record:
    """Of a partition: its version, the journal of two buffers, when a push was published last, is there a sync."""

    version: np.ndarray  # (1,)
    journal_2J: np.ndarray
    ended: np.ndarray  # (1,)
    syncing: np.ndarray  # (1,)

    @property
    def index(self) -> int:
        """Of the published one of two buffers."""
        return int(self.version[0]) % 2


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """Arrays in one block of memory. What has 2 rows has two buffers: version mod 2 names the published one.

    Attributes
    ----------
    version_S
        int64: storing it publishes what was written into the other buffer.
    state_2K, velocity_2P, squares_2P
        float32: parameters with buffers; the server's momentum; Adagrad's sum of squares. The last two may be empty.
    journal_S2J
        int64: how many minibatches made this version, the staleness of their push, and their numbers.
    ended_S
        float64: when a push was published last, by `time.monotonic`; 0: none was in this epoch.
    syncing_S
        int64: 1 from when a shard has the lock of the partition to when it releases it; still 1 if it died meanwhile.
    ledger
        The minibatches.
    cursor
        int64 (1,): `speech3.engine.pool`.
    order
        float64 (5,): the epoch that shards are to work on (0: none) and its learning rate: base, warm-up, decay, last.
    shards_N
        float64 (N, `SHARD`): what each shard reports: counts and seconds of the epoch, the epoch that it is working on
        (0: none), what it is doing and since when (`speech3.engine.watchdog`).
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
        """From the arrays that `Sizes.shapes` names."""
        ledger = Ledger(**{name: arrays.pop(name) for name in ROW})
        return cls(**arrays, ledger=ledger)

    @property
    def records(self) -> tuple[Record, ...]:
        """One for each partition."""
        fields = (self.version_S[:, None], self.journal_S2J, self.ended_S[:, None], self.syncing_S[:, None])
        return tuple(Record(*rows) for rows in zip(*fields, strict=True))


@dataclass(frozen=True)
class Sizes:
    """What the size of a memory follows from: numbers of minibatches, shards and partitions, the most minibatches of a
    push, values of the state, of its velocity and squares; these three are 0 where they lie on a GPU.
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
            "cursor": (np.int64, (1,)), "order": (np.float64, (5,)),
            "shards_N": (np.float64, (self.shards, len(SHARD))),
        }  # fmt: skip


def private_memory(sizes: Sizes) -> ServerMemory:
    """A memory for one process, as the simulator is."""
    return ServerMemory.of({name: np.zeros(shape, dtype) for name, (dtype, shape) in sizes.shapes().items()})


def shared_memory(sizes: Sizes, block: "SharedMemory") -> ServerMemory:
    """The memory that lies in `block`, the same in every process that opens it."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, (dtype, shape) in sizes.shapes().items():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(block.map, dtype, count, offset).reshape(shape)
        offset += -(-count * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
    return ServerMemory.of(arrays)


def memory_bytes(sizes: Sizes) -> int:
    """How much memory a memory takes."""
    each = (int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in sizes.shapes().values())
    return sum(-(-size // _ALIGN) * _ALIGN for size in each)


class SharedMemory:
    """A block of memory by a path that other processes of this host can open while its creator lives."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR)
        try:
            self.map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)


@contextmanager
def memory_file(name: str, size: int) -> Iterator[str]:
    """Path of a new block of `size` bytes, zeroed, taken from memory now so that nobody meets a full one later.

    Raises
    ------
    Speech3Error
        There is not that much memory.
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
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise Speech3Error(
            f"{size / 1e6:,.0f} MB of shared memory for the server cannot be had ({error.strerror}); use a smaller "
            f"model, or raise the limit of this machine or container"
        ) from error


class FileLock:
    """An advisory lock on an open file, which the kernel releases when its holder dies (flock(2))."""

    def __init__(self, path: str) -> None:
        self.meanwhile: Callable[[], None] | None = None  # called again and again while it is waited for
        self.descriptor = os.open(path, os.O_RDWR)  # of its own: a descriptor that is inherited shares its lock
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def try_acquire(self) -> bool:
        """True if it was free."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> bool:
        """Wait for it; true."""
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
        """Let others have it."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
