"""Work spread over processes, results in the order of the inputs."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from speech3.errors import Speech3Error
from speech3.io.progress import progress

A = TypeVar("A")
R = TypeVar("R")

_ALONE_S = 2.0
_END_S = 5.0  # in which a killed process is gone
# A sum over threads is rounded by their number, so work is done by one thread a process, wherever it is done.
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

# Said of a process that ended as Python does after an error outside of what it was started for.
NOT_BEGUN = (
    "could not begin (exit status 1; why stands above, on standard error): a script that starts processes must do so "
    'under `if __name__ == "__main__":`, for each of them imports it; and what they are handed must be defined in a '
    "file that can be imported, not in a notebook"
)


def available_jobs() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def parallel_map(
    function: Callable[[A], R], items: Sequence[A], jobs: int, label: str, *, show: bool = True,
    start_at_once: bool = False,
) -> Iterator[R]:  # fmt: skip
    """Yield ``function(item)`` for every item, in order, from `jobs` single-threaded processes.

    Parameters
    ----------
    function
        A module-level function (or a ``functools.partial`` of one): it is pickled.
    jobs
        1 runs in this process, as does everything that takes no more than two seconds.
    start_at_once
        Every item takes long: no two seconds are spent on finding out.

    Raises
    ------
    Speech3Error
        From `function`, or because a worker process died (the message says how).
    """
    alone = (_alone(function, item) for item in items)
    if start_at_once and jobs > 1 and len(items) > 1:
        results = _pool_map(function, items, jobs, label)
    else:
        results = alone if jobs == 1 else _from_alone_to_pool(function, items, jobs, label)
    yield from progress(results, len(items), label) if show else results


def _from_alone_to_pool(function: Callable[[A], R], items: Sequence[A], jobs: int, label: str) -> Iterator[R]:
    # Starting processes takes a second or two, so small work is done before they would be there.
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
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(items)), mp_context=context, initializer=end_with_parent)
    try:
        with starting_workers():
            futures = deque(pool.submit(function, item) for item in items)
        while futures:  # a result that was taken is not kept: together they may be larger than memory
            yield futures.popleft().result()
    except BrokenProcessPool as error:
        raise Speech3Error(
            f"{label}: a worker process died, most likely because memory ran out; run again with fewer jobs"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def end_processes(processes: Sequence[Any]) -> None:
    """Kill them and wait until they are gone, but not for one that a driver holds, which cannot be killed."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join(_END_S)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Processes started in this block have one thread, and do not see Ctrl-C.

    Ctrl-C reaches all processes of a terminal, but the parent alone answers it: after the block, if pressed in it.
    """
    # Libraries must see these before they are imported, hence the environment and not a call; likewise the mask,
    # which a process inherits: a handler of its own would come after its imports, seconds too late.
    saved = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    resource_tracker.ensure_running()  # its start takes SIGINT out of the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_with_parent() -> None:
    """In a worker: do not wait for work for ever when the parent was killed and cannot say that there is no more."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
