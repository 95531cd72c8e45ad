"""Worker processes on this host: how they are started, watched, replaced and stopped, and the memory they share.

A worker is one process, or a group of processes that compute together: a replica, or all of backend ddp. If one process
of a group exits, the others are killed, since they would wait for it. A process that raises an error reports it, and
the run ends. A worker that was killed can be replaced, unless it dies repeatedly without progress.

The kernel reports a death, but not a hang: a shard may be stopped or stuck in a driver, and may hold a lock that all
others wait for. So each shard writes its current activity and the time when it began (its heartbeat) into shared
memory, and the watchdog finds a shard whose activity takes far longer than usual; it is killed, and then replaced like
any shard that died. A shard that waits for a lock has a later deadline than the holder of the lock, so the holder is
killed first. All deadlines start anew when a shard is killed, and when the coordinator itself was stopped or too busy
to check.

Axes: N shards.
"""

import fcntl
import gc
import math
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from speech3.engine.gradient import use_device
from speech3.engine.server import Status
from speech3.errors import MachineError, Speech3Error
from speech3.runtime import (
    NOT_BEGUN,
    START_METHOD,
    Surroundings,
    end_processes,
    end_with_parent,
    memory_left,
    starting_workers,
    worker_context,
)

_WORDS = ("before it began an epoch", "in a minibatch", "drawing a minibatch", "in a sync", "waiting for the server")

LEAST_S = 20.0  # shortest deadline for a minibatch, for waiting for a lock, and for being idle while there is work
FIRST_S = 300.0  # deadline for the first minibatch, which loads code and data, and whose usual time is unknown
HELD_S = 5.0  # shortest deadline while holding a lock, for which others may wait
_TIMES = 20  # a deadline is this multiple of the usual time
_ASLEEP_S = 2.0  # if the coordinator has not checked for this long, it was stopped or busy
LOOK_S = 0.1  # between two checks of the workers; also between two points at which a run may save or stop
DEATHS = 3  # deaths of one worker without progress in between, after which the run ends
_POLL_S = 0.001  # between two attempts to acquire a lock
_MAX_CHARS = 5000  # characters kept of an error's beginning and of its end, since a pipe holds little until it is read
_KILLS = 3  # attempts to kill a worker that hangs
_DIES_S = 10.0  # time for it to exit after each
_CLOSES_S = 3.0  # time for processes to close what they have opened, at the end; then they are killed
_REPORT_S = 2.0  # time for processes to report that they lost another; then they are killed


class Activity(IntEnum):
    """What a shard does, as it writes with each heartbeat."""

    IDLE, COMPUTES, DRAWS, SYNCS, WAITS = range(5)


def patience_s(usual_s: float) -> float:
    """The deadline in seconds for work that usually takes `usual_s`; 0: the usual time is not known yet."""
    return max(LEAST_S, _TIMES * usual_s) if usual_s else FIRST_S


@dataclass(frozen=True)
class Hang:
    """A shard that hangs; its string is the message to the user."""

    worker: int
    seconds: float
    doing: int

    def __str__(self) -> str:
        return f"shard {self.worker} hung {_WORDS[self.doing]} ({self.seconds:.0f} s without a heartbeat)"


@dataclass(kw_only=True)
class Clock:
    """Measures how long ago a heartbeat was; time in which the coordinator was stopped or busy does not count."""

    looked: float = field(default_factory=time.monotonic)  # when the coordinator last checked
    since: float = 0.0  # time before this moment does not count

    def look(self, now: float) -> None:
        """Record a check; if the coordinator was stopped or busy before it, deadlines start anew."""
        if now - self.looked > _ASLEEP_S:
            self.since = now
        self.looked = now

    def quiet_s(self, heartbeat: float) -> float:
        """Seconds that count between a heartbeat and the last check."""
        return self.looked - max(self.since, heartbeat)


@dataclass
class Watchdog(Clock):
    """Learns how long each shard's minibatches take, and reports a shard that is past its deadline."""

    usual_N: np.ndarray  # each shard's usual seconds per minibatch, as last measured; 0: not known yet for this process
    before_N: np.ndarray = field(init=False)  # minibatches computed in its place before its process was started

    def __post_init__(self) -> None:
        self.before_N = np.zeros_like(self.usual_N)

    def started(self, worker: int, minibatches: float) -> None:
        """Record that a process was started in the place of a shard that had computed `minibatches` minibatches."""
        self.usual_N[worker], self.before_N[worker] = 0.0, minibatches

    def find(self, shards_N: np.ndarray, work: bool) -> Hang | None:
        """Return the shard that hangs, if any; of several, the one that has hung longest: others may wait for it.

        `work` says whether there is an epoch to work on in which minibatches are waiting.
        """
        self.look(time.monotonic())
        done_N = shards_N[:, Status.MINIBATCHES] > self.before_N
        self.usual_N[done_N] = shards_N[done_N, Status.COMPUTE_S] / shards_N[done_N, Status.MINIBATCHES]
        sync_s = float((shards_N[:, Status.SYNC_S] / np.maximum(1.0, shards_N[:, Status.MINIBATCHES])).max())
        late = [
            Hang(worker, seconds, int(row[Status.DOING]))
            for worker, row in enumerate(shards_N)
            # The activity is read before its time, as it is written after it: else a shard that begins another activity
            # in between would be judged by the time of the one before.
            if self._limit(worker, row, work, sync_s) < (seconds := self.quiet_s(row[Status.SINCE]))
        ]
        worst = max(late, key=lambda hang: hang.seconds, default=None)
        if worst:
            self.since = self.looked  # shards that waited for it get a new deadline
        return worst

    def _limit(self, worker: int, row: np.ndarray, work: bool, sync_s: float) -> float:
        """Seconds after which a shard hangs; `sync_s`: the usual time of a sync, of the slowest shard."""
        usual_s, doing = float(self.usual_N[worker]), int(row[Status.DOING])
        if not row[Status.READY]:
            return math.inf  # it is still building its parts, which takes long for a large corpus
        if doing == Activity.COMPUTES:
            return patience_s(usual_s)
        usual_sync_s = float(row[Status.SYNC_S]) / max(1.0, float(row[Status.MINIBATCHES]))
        if doing in (Activity.DRAWS, Activity.SYNCS):
            return max(HELD_S, _TIMES * usual_sync_s)
        # It waits for the others; or it has ended the epoch, and waits for the other members of its replica.
        if doing == Activity.WAITS or row[Status.EPOCH]:
            return max(LEAST_S, _TIMES * sync_s * len(self.usual_N))
        return LEAST_S if work else math.inf


@dataclass(frozen=True)
class Task:
    """What a process does: it calls `function` with `args` and its end of a pipe; its current GPU is `device`."""

    function: Callable[..., None]
    args: tuple[Any, ...]
    device: str = "cpu"


@dataclass(frozen=True)
class Failed:
    """A process's message: why it failed, and when. One failure may cause others, so the earliest is the cause."""

    at: float
    why: str
    cause: Exception | None = None  # the exception of what the user passed, if it is that


@dataclass(frozen=True)
class Death:
    """How a worker died: the process that died first, by its rank in the worker, and its exit status."""

    rank: int
    status: int


class Unkillable(Speech3Error):
    """A process that SIGKILL does not end: it is stuck in the kernel, and may hold locks that others wait for."""

    def __init__(self, what: str, processes: Sequence[Any]) -> None:
        pids = " ".join(str(process.pid) for process in processes)
        super().__init__(
            f"{what}, and SIGKILL does not end it: process {pids} is stuck in the kernel, in a driver or on a network "
            f"file system (ps -o pid,stat,wchan -p {pids}; dmesg); run the same command again to resume from the last "
            f"checkpoint, without that device or with fewer workers"
        )


def coordinator() -> int:
    """This process, as its workers see it in `os.getppid`; 0: they are children of the server that forks them."""
    return os.getpid() if START_METHOD == "spawn" else 0


_before_end: list[Callable[[], None]] = []  # in a worker


def before_end(close: Callable[[], None]) -> None:
    """In a worker of this module: have `close` called before the process ends, unless SIGKILL ends it."""
    if multiprocessing.parent_process() is not None:
        _before_end.append(close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # by which `Workers.close` asks it to end


def _close_all() -> None:
    if _before_end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while _before_end:
        with suppress(Exception):
            _before_end.pop()()
    gc.collect()  # the semaphores of queues are freed with these


def run_task(_: Surroundings | None, task: Task, pipe: Any, coordinator: int) -> None:
    if not coordinator:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the caller may have started the server itself
        end_with_parent()
        coordinator = os.getppid()
    try:
        use_device(task.device)
        task.function(*task.args, pipe)
    except Exception as error:
        if os.getppid() == coordinator:  # otherwise no process would receive the message
            why = str(error) if isinstance(error, Speech3Error) else traceback.format_exc()
            pipe.send(Failed(time.monotonic(), why[:_MAX_CHARS] + why[_MAX_CHARS:][-_MAX_CHARS:], _portable(error)))
        _close_all()
        os._exit(1)  # a normal exit would abort in threads of libraries that wait for other processes
    finally:
        _close_all()


def _portable(error: Exception) -> Exception | None:
    """The cause of an error for the user, as another process can receive it; its traceback is a note of it."""
    if not isinstance(error, Speech3Error) or not isinstance(error.__cause__, Exception):
        return None
    cause = error.__cause__
    try:
        there = pickle.loads(pickle.dumps(cause))
        assert type(there) is type(cause)
    except Exception:  # of a class that others cannot import, or that cannot be made of its message
        there = RuntimeError(f"{type(cause).__name__}: {cause}"[:_MAX_CHARS])
    there.add_note("".join(traceback.format_exception(cause))[-_MAX_CHARS:])
    return there if len(pickle.dumps(there)) < 4 * _MAX_CHARS else None


class Workers:
    """A fixed number of workers: their `names`, the `unit` of their progress in messages, and the `tasks` of each."""

    def __init__(self, names: Sequence[str], unit: str, tasks: Callable[[int], Sequence[Task]]) -> None:
        self.names, self.unit, self.tasks = names, unit, tasks
        self.context = worker_context()
        self.coordinator = coordinator()
        self.groups: list[list[tuple[Any, Any]]] = [[] for _ in names]  # processes, with our ends of the pipes
        self.deaths = [0] * len(names)  # of each worker, without progress in between
        self.note = ""  # the last remark about a worker that hung
        self._hung: dict[int, str] = {}
        self._kills: dict[int, tuple[int, float]] = {}  # attempts for a worker that is still alive, time of the last

    @property
    def processes(self) -> list[Any]:
        return [process for group in self.groups for process, _ in group]

    @property
    def pipes(self) -> list[Any]:
        return [pipe for group in self.groups for _, pipe in group]

    def start_all(self) -> None:
        """Start all workers; if one cannot be started, stop those that were."""
        try:
            for number in range(len(self.names)):
                self.start(number)
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> None:
        self.groups[number] = []
        for task in self.tasks(number):
            pipe, theirs = self.context.Pipe()
            with starting_workers():
                # The surroundings are unpickled first: a task's tensors may open a GPU, which reads the environment.
                args = Surroundings(), task, theirs, self.coordinator
                process = self.context.Process(target=run_task, args=args, daemon=True)
                process.start()
            self.groups[number].append((process, pipe))
            theirs.close()

    def dead(self) -> list[int]:
        """Wait a little; returns the workers of which a process has exited."""
        multiprocessing.connection.wait([process.sentinel for process in self.processes], timeout=LOOK_S)
        return [
            number for number, group in enumerate(self.groups) if not all(process.is_alive() for process, _ in group)
        ]

    def kill_hung(self, number: int, why: str) -> None:
        """Kill a worker that hangs, which is noticed as a death; `why` is the remark for the user."""
        self.check_killed()
        if number in self._kills:
            return
        self._hung[number] = why
        self._kill(number)

    def check_killed(self) -> None:
        """Kill workers again that hung, were killed and are still there; in the end, raises `Unkillable`."""
        for number, (attempts, last) in list(self._kills.items()):
            left = self._alive(number)
            if left and time.monotonic() - last > _DIES_S:
                if attempts >= _KILLS:
                    raise Unkillable(self._hung[number], left)
                self._kill(number)

    def _kill(self, number: int) -> None:
        attempts, _ = self._kills.get(number, (0, 0.0))
        self._kills[number] = attempts + 1, time.monotonic()
        for process in self._alive(number):
            process.kill()

    def _alive(self, number: int) -> list[Any]:
        return [process for process, _ in self.groups[number] if process.is_alive()]

    def end(self, number: int, heard: Sequence[Failed] = ()) -> Death:
        """Stop what is left of a worker of which a process has exited; `heard` are failures already received from it.

        Raises `Speech3Error`: no process was killed, but one failed (the message is that of the first failure) or
        exited before it began. `Unkillable`: another process of the worker cannot be stopped.
        """
        self._kills.pop(number, None)
        limit, failed, died = time.monotonic() + _REPORT_S, list(heard), list[Death]()
        for rank, (process, pipe) in enumerate(self.groups[number]):
            words = _reported_failure(pipe, limit)
            failed += words
            process.join(max(0.0, limit - time.monotonic()))
            if process.exitcode is not None and not words:  # else it still waits for the others
                died.append(Death(rank, process.exitcode))
        left = end_processes([process for process, _ in self.groups[number]])
        if left:
            raise Unkillable(self._hung.get(number) or f"{self.names[number]} lost one of its processes", left)
        for _, pipe in self.groups[number]:
            pipe.close()
        if hang := self._hung.get(number):
            self.note = f"{hang} and was killed"
        killed = [death for death in died if death.status < 0]
        if failed and not killed:
            first_failed = min(failed, key=lambda each: each.at)
            raise MachineError(f"{self.names[number]}: {first_failed.why}") from first_failed.cause
        first = (killed or died or [Death(0, -9)])[0]  # if none had exited in time, they were killed here
        if first.status == 1:
            raise MachineError(f"{self.names[number]} {NOT_BEGUN}")
        return first

    def replace(self, number: int, death: Death, *, progressed: bool) -> None:
        """Start a worker in place of one that died; an error if it died `DEATHS` times without progress in between."""
        self.deaths[number] = 1 if progressed else self.deaths[number] + 1
        hang = self._hung.pop(number, "")
        if self.deaths[number] >= DEATHS and hang:
            raise MachineError(
                f"{hang}, and so did its replacements: it was killed {DEATHS} times; check its device (dmesg), or "
                f"train with fewer workers"
            )
        if self.deaths[number] >= DEATHS:
            raise MachineError(
                f"{self.names[number]} died {DEATHS} times without a {self.unit} used in between (exit status "
                f"{death.status}; -9 often means that the kernel killed it for lack of memory): use "
                f"fewer workers or a smaller model"
            )
        self.start(number)

    def end_others(self) -> None:
        """Stop all processes that can be; afterwards nobody writes into memory that they share."""
        end_processes(self.processes)

    def close(self) -> None:
        """End all processes; those with something to close (`before_end`) have a moment for it."""
        limit = time.monotonic() + _CLOSES_S
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(max(0.0, limit - time.monotonic()))
        end_processes(self.processes)
        for pipe in self.pipes:
            pipe.close()


def _reported_failure(pipe: Any, limit: float) -> list[Failed]:
    """The failure that a process reports before it exits; waits for either until `limit`."""
    with suppress(EOFError, OSError):
        while pipe.poll(max(0.0, limit - time.monotonic())):
            if isinstance(said := pipe.recv(), Failed):
                return [said]
    return []


def open_memory(path: str, size: int) -> mmap.mmap:
    """Open a block of memory made by `memory_file`; any process of this host can, while the block's creator runs."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


@contextmanager
def memory_file(name: str, size: int) -> Iterator[str]:
    """Path of a new zeroed block of `size` bytes, allocated at once so that no access fails for lack of memory later.

    It is in no file system (memfd): other processes open it through /proc while its creator runs, and the kernel frees
    it when the last of them has exited, even if it was killed. Where memfd is missing, it is a temporary file.

    Raises `Speech3Error` if there is not enough memory.
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
        raise MachineError(
            f"the server needs {size / 1e6:,.0f} MB of memory, but this container may use only {left / 1e6:,.0f} MB"
            f" more: use a smaller model, or allow more (docker run --memory, or memory.max of the cgroup)"
        )
    try:
        if not hasattr(os, "posix_fallocate"):  # macOS
            os.ftruncate(descriptor, size)
        elif size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise MachineError(
            f"{size / 1e6:,.0f} MB of shared memory for the server cannot be allocated ({error.strerror}); use a "
            f"smaller model, or raise the limit of this machine or container (docker run --memory)"
        ) from error


class FileLock:
    """An advisory lock on an open file, which the kernel releases when its holder dies (flock(2))."""

    def __init__(self, path: str) -> None:
        self.meanwhile: Callable[[], None] | None = None  # called repeatedly while `acquire` waits
        self.descriptor = os.open(path, os.O_RDWR)  # a new descriptor: an inherited one would share its holder's lock
        self.close = weakref.finalize(self, os.close, self.descriptor)
        os.register_at_fork(after_in_child=self.close)  # else a forked child would hold the lock after this one's death

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self) -> bool:
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
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
