"""Limits of the system or container: open files, processes, memory, shared memory; what to set when one is reached."""

import contextlib
import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speech3.errors import Speech3Error

_FILES = 65_536  # open files that are allowed if the system lets us: each process, archive and pipe needs some
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = {"memory": ("memory.max", "memory/memory.limit_in_bytes"), "processes": ("pids.max", "pids/pids.max")}
_USED = ("memory.current", "memory/memory.usage_in_bytes")
_STAT = ("memory.stat", "memory/memory.stat")
_NO_LIMIT = 1 << 60  # version 1 of cgroups writes a number near 2^63 where there is none


def allow_open_files() -> None:
    """Raise this process's limit of open files to the most that the system allows; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit_of(what: str) -> int | None:
    """The limit of this container (its cgroup) on `memory`, in bytes, or `processes`; None if there is none."""
    return _number(_LIMITS[what])


def memory_left() -> int | None:
    """Bytes that this container may still use; None if there is no limit."""
    limit, used, stat = limit_of("memory"), _number(_USED), dict[str, int]()
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


def out_of_memory() -> str:
    """What to do if a process was killed for lack of memory, with the container's limit if there is one."""
    limit = limit_of("memory")
    if limit is None:
        return "most likely because memory ran out"
    return (
        f"most likely because memory ran out: this container may use {limit / 2**30:.1f} GiB (docker run --memory, or"
        " memory.max of its cgroup)"
    )


def explained(error: BaseException) -> Speech3Error | None:
    """The error for the user, if `error` says that a limit was reached; else None."""
    number = error.errno if isinstance(error, OSError) else 0
    words = str(error)
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in words:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Speech3Error(
            f"too many open files: {soft:,} are allowed; allow more (ulimit -n {_FILES}, or docker run --ulimit"
            f" nofile={_FILES}), or use fewer jobs or workers"
        )
    if number == errno.EAGAIN or "can't start new thread" in words or "Resource temporarily unavailable" in words:
        limit = limit_of("processes")
        here = f" ({limit:,} are allowed in this container)" if limit else ""
        return Speech3Error(
            f"no more processes or threads can be started{here}; allow more (ulimit -u, docker run --pids-limit, or"
            " pids.max of the cgroup), or use fewer jobs or workers"
        )
    if isinstance(error, MemoryError) or number == errno.ENOMEM or "Cannot allocate memory" in words:
        limit = limit_of("memory")
        here = f": this container may use {limit / 2**30:.1f} GiB" if limit else ""
        return Speech3Error(
            f"memory ran out{here}; use fewer jobs or workers, or allow more (docker run --memory, or memory.max of the"
            " cgroup; ulimit -v)"
        )
    if "/torch_" in words and ("No space left" in words or "unable to" in words):
        return Speech3Error(
            "the shared memory of this machine or container (/dev/shm) is full: make it larger (docker run"
            " --shm-size=8g, or mount -o remount,size=8g /dev/shm)"
        )
    return None


@contextmanager
def explained_limits() -> Iterator[None]:
    """Errors of this block that say that a limit was reached become errors that say what to set."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if found := explained(error):
            raise found from error
        raise


def _number(names: tuple[str, ...]) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # `max` is no number
            value = int((_CGROUP / name).read_text(encoding="utf-8"))
            return value if value < _NO_LIMIT else None
    return None
