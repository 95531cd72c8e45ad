"""A map over several processes, with results in the order of the inputs; what to set when a limit is reached.

Limits are those of the system or of a container: open files, processes, memory, shared memory.
"""

import contextlib
import errno
import functools
import multiprocessing
import multiprocessing.process
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import reduction, resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from speech3.errors import MachineError, Speech3Error
from speech3.runtime.reporting import progress, say

# Apple's libraries may crash in a process that is forked.
START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
if START_METHOD == "forkserver":
    from multiprocessing import forkserver

_FILES = 65_536  # open files that are allowed if the system lets us: each process, archive and pipe needs some
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = {"memory": ("memory.max", "memory/memory.limit_in_bytes"), "processes": ("pids.max", "pids/pids.max")}
_USED = ("memory.current", "memory/memory.usage_in_bytes")
_STAT = ("memory.stat", "memory/memory.stat")
_NO_LIMIT = 1 << 60  # version 1 of cgroups writes a number near 2^63 where there is none
A = TypeVar("A")
R = TypeVar("R")
_ALONE_S = 2.0
_AHEAD = 16  # items per process that are handed out before the results of earlier ones are taken
_END_S = 5.0  # time allowed for a killed process to exit
# The rounding of a sum depends on the number of threads, so every process uses one thread.
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# The message for a process that exited with an error before it began its work.
NOT_BEGUN = (
    "could not start (exit status 1; see the reason above, on standard error): a script that starts processes must do "
    'so under `if __name__ == "__main__":`, because each process imports the script; and what is passed to them must '
    "be defined in a file that can be imported, not in a notebook"
)
_function: bytes | Callable[[Any], Any] = b""


def available_jobs() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS lacks it


def parallel_map(
    function: Callable[[A], R],
    items: Sequence[A],
    jobs: int,
    label: str,
    *,
    show: bool = True,
    start_at_once: bool = False,
) -> Iterator[R]:
    """Yield ``function(item)`` for every item, in order, from `jobs` single-threaded processes.

    With one job, everything runs in this process, as it does if it takes at most two seconds, unless `start_at_once`
    says that every item takes long. `function` is pickled, so it is a module-level function or a partial of one.

    Raises `Speech3Error`: from `function`, or because a worker process died (the message says how).
    """
    alone = (_alone(function, item) for item in items)
    if start_at_once and jobs > 1 and len(items) > 1:
        results = _pool_map(function, items, jobs, label)
    else:
        results = alone if jobs == 1 else _from_alone_to_pool(function, items, jobs, label)
    yield from progress(results, len(items), label) if show else results


def _from_alone_to_pool(function: Callable[[A], R], items: Sequence[A], jobs: int, label: str) -> Iterator[R]:
    # Starting processes takes a second or two, so small amounts of work are finished sooner without them.
    start = time.monotonic()
    for done, item in enumerate(items, 1):
        yield _alone(function, item)
        if time.monotonic() - start > _ALONE_S and done < len(items) - 1:
            yield from _pool_map(function, items[done:], jobs, label)
            return


def _alone(function: Callable[[A], R], item: A) -> R:
    torch = sys.modules.get("torch")
    if torch is None:
        return function(item)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(item)
    finally:
        torch.set_num_threads(threads)


def _pool_map(function: Callable[[A], R], items: Sequence[A], jobs: int, label: str) -> Iterator[R]:
    if not processes_work(label):
        yield from (_alone(function, item) for item in items)
        return
    pool = worker_pool(min(jobs, len(items)), _begin, without_shared_memory(function))
    try:
        left = iter(items)
        with starting_workers():
            futures = deque(
                pool.submit(_call, without_shared_memory(item)) for item in islice(left, _AHEAD * min(jobs, len(items)))
            )
        while futures:  # drop each result once it is yielded: together they may be larger than memory
            yield pickle.loads(futures.popleft().result())
            futures.extend(pool.submit(_call, without_shared_memory(item)) for item in islice(left, 1))
    except BrokenProcessPool as error:
        raise MachineError(
            f"{label}: a worker process died, {out_of_memory()}; run the command again with fewer jobs"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def without_shared_memory(value: object) -> bytes:
    """A value to be sent to another process, without PyTorch's shared memory.

    PyTorch teaches multiprocessing to send each tensor as a file in /dev/shm, which is often small in containers, with
    an open file for each. Plain pickling copies the tensors, which are small or sent once.
    """
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def _begin(function: bytes) -> None:
    global _function
    _function = function


def _call(item: bytes) -> bytes:
    global _function
    if isinstance(_function, bytes):
        _function = pickle.loads(_function)
    assert callable(_function)
    return without_shared_memory(_function(pickle.loads(item)))


def worker_pool(processes: int, begin: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """A pool whose processes call ``begin(*arguments)`` first, and exit with this process; see `worker_context`."""
    start = functools.partial(_start, Surroundings(), begin, *arguments)
    return ProcessPoolExecutor(processes, worker_context(), initializer=start)


def worker_context(at_once: Sequence[str] = ()) -> Any:
    """The `multiprocessing` context of all worker processes; start them in a block `starting_workers`.

    On Linux they are forked from a server process that has imported what this process had imported when it first called
    this function: importing PyTorch takes two seconds of a core in each process that is spawned. The server stays until
    this process exits; it has an environment and an output of its own (see `Surroundings`).

    `at_once`: modules that the workers will need: the server starts to import them at once, while this process goes on.
    """
    # A worker that starts processes itself, such as a shard that reads with a DataLoader, must not wait for imports.
    if START_METHOD == "forkserver" and multiprocessing.parent_process() is None:
        imported = [name for name in sys.modules if name.partition(".")[0] == "speech3"]
        forkserver.set_forkserver_preload(["torch", "numba", *imported, *at_once])  # no effect on a server that runs
        if at_once:
            with starting_workers():
                forkserver.ensure_running()
    return multiprocessing.get_context(START_METHOD)


class Surroundings:
    """Pickled for a new process, it makes the environment and the output of this process those of the new one."""

    def __reduce__(self) -> tuple[Any, ...]:
        if START_METHOD == "spawn":
            return _adopt, ({}, {})
        return _adopt, (dict(os.environ), {number: reduction.DupFd(number) for number in (1, 2) if _is_open(number)})


def _adopt(environment: dict[str, str], outputs: dict[int, Any]) -> None:
    os.environ.update(environment)
    for number, output in outputs.items():
        os.dup2(output.detach(), number)


def _is_open(number: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(number)
        return True
    return False


def _start(_: Surroundings | None, begin: Callable[..., None], *arguments: Any) -> None:
    end_with_parent()
    begin(*arguments)


def processes_work(label: str) -> bool:
    """Whether the locks of worker processes can be made; if not, say that all work is done in this process."""
    try:
        multiprocessing.get_context(START_METHOD).Lock()
    except (OSError, ImportError) as error:
        why = f"{getattr(error, 'strerror', None) or error}; is /dev/shm missing, full or read-only?"
        say(f"{label}: no worker processes, since semaphores cannot be made ({why}): all is done in this process")
        return False
    return True


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start processes in this block with one thread, and with Ctrl-C blocked.

    Ctrl-C is sent to all processes of a terminal, but only the parent handles it; in this block, it is handled at the
    end of the block. A limit that does not allow so many processes or open files is an error that says what to set.
    """
    # The variables must be set before libraries are imported, hence the environment. The signal mask is inherited for
    # the same reason: a handler in the new process would be installed after its imports, seconds too late.
    saved = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    resource_tracker.ensure_running()  # starting it removes SIGINT from the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with explained_limits():
            yield
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_processes(processes: Sequence[Any]) -> list[Any]:
    """Kill processes and wait a few seconds for them to exit; return those that did not, blocked in a driver.

    This process does not wait for these when it exits.
    """
    for process in processes:
        process.kill()
    end = time.monotonic() + _END_S
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    left = [process for process in processes if process.exitcode is None]
    for process in left:  # `multiprocessing` waits at exit for those that it knows, without limit
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    return left


def end_with_parent() -> None:
    """In a worker: exit when the parent exits, instead of waiting for ever for work if the parent was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def allow_open_files() -> None:
    """Raise this process's limit of open files to the most that the system allows; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def explained_limits() -> Iterator[None]:
    """Errors of this block that say that a limit was reached become errors that say what to set."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if found := explained_limit(error):
            raise found from error
        raise


def explained_limit(error: BaseException) -> Speech3Error | None:
    """The error for the user, if `error` says that a limit was reached; else None."""
    number = error.errno if isinstance(error, OSError) else 0
    words = str(error)
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in words:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return MachineError(
            f"too many open files: {soft:,} are allowed; allow more (ulimit -n {_FILES}, or docker run --ulimit"
            f" nofile={_FILES}), or use fewer jobs or workers"
        )
    if number == errno.EAGAIN or "can't start new thread" in words or "Resource temporarily unavailable" in words:
        limit = container_limit("processes")
        here = f" ({limit:,} are allowed in this container)" if limit else ""
        return MachineError(
            f"no more processes or threads can be started{here}; allow more (ulimit -u, docker run --pids-limit, or"
            " pids.max of the cgroup), or use fewer jobs or workers"
        )
    if isinstance(error, MemoryError) or number == errno.ENOMEM or "Cannot allocate memory" in words:
        limit = container_limit("memory")
        here = f": this container may use {limit / 2**30:.1f} GiB" if limit else ""
        return MachineError(
            f"memory ran out{here}; use fewer jobs or workers, or allow more (docker run --memory, or memory.max of the"
            " cgroup; ulimit -v)"
        )
    if "no locator available" in words:
        return MachineError(
            "there is no directory to keep compiled code in: set NUMBA_CACHE_DIR to one that you may write to"
        )
    if "/torch_" in words and ("No space left" in words or "unable to" in words):
        return MachineError(
            "the shared memory of this machine or container (/dev/shm) is full: make it larger (docker run"
            " --shm-size=8g, or mount -o remount,size=8g /dev/shm)"
        )
    return None


def out_of_memory() -> str:
    """What to do if a process was killed for lack of memory, with the container's limit if there is one."""
    limit = container_limit("memory")
    if limit is None:
        return "most likely because memory ran out"
    return (
        f"most likely because memory ran out: this container may use {limit / 2**30:.1f} GiB (docker run --memory, or"
        " memory.max of its cgroup)"
    )


def memory_left() -> int | None:
    """Bytes that this container may still use; None if there is no limit."""
    limit, used, stat = container_limit("memory"), _number(_USED), dict[str, int]()
    if limit is None:
        return None
    for name in _STAT:
        with contextlib.suppress(OSError, ValueError):
            pairs = (line.split() for line in (_CGROUP / name).read_text(encoding="utf-8").splitlines())
            stat = {key: int(value) for key, value in pairs}
            break
    # Cached files are given up when memory is needed; shared memory is not.
    files = stat.get("file", stat.get("total_cache")), stat.get("shmem", stat.get("total_shmem", 0))
    if used is None or files[0] is None:
        return limit
    return max(0, limit - (used - (files[0] - files[1])))


def container_limit(what: str) -> int | None:
    """The limit of this container (its cgroup) on `memory`, in bytes, or `processes`; None if there is none."""
    return _number(_LIMITS[what])


def _number(names: tuple[str, ...]) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # `max` is no number
            value = int((_CGROUP / name).read_text(encoding="utf-8"))
            return value if value < _NO_LIMIT else None
    return None
