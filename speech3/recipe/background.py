"""Steps that run in processes of their own, each with one thread, while the recipe goes on."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType

from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors
from speech3.io.limits import out_of_memory
from speech3.io.parallel import end_with_parent, starting_workers
from speech3.io.progress import console, say


class Background:
    """A context manager; on an error, or Ctrl-C, what still runs is killed, as it can resume."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[ProcessPoolExecutor, Future[float]]] = {}

    @property
    def names(self) -> list[str]:
        """The steps that were started and not waited for."""
        return list(self._running)

    def start(self, name: str, head: str, log: Path, run: Callable[[], float]) -> None:
        """Start a step.

        Parameters
        ----------
        head
            Begins the line that is printed when the step has ended.
        log
            File for what it prints.
        run
            Runs the step and returns its seconds; it is pickled.
        """
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_start, initargs=(str(log),))
        with starting_workers():
            future = pool.submit(run)
        future.add_done_callback(lambda done: _say_ended(head, done))
        self._running[name] = pool, future

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until these steps have ended, if they were started here.

        Raises
        ------
        Speech3Error
            A step raised it, or its process died.
        """
        for name in names:
            if name in self._running:
                pool, future = self._running[name]
                try:
                    future.result()
                except BrokenProcessPool as error:
                    raise Speech3Error(
                        f"{name}: its process died, {out_of_memory()}; run the same command again with jobs=1, which"
                        " trains one network after the other"
                    ) from error
                pool.shutdown()
                del self._running[name]

    def __enter__(self) -> "Background":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            for process in multiprocessing.active_children():
                process.terminate()
        for pool, _ in self._running.values():
            pool.shutdown(cancel_futures=True)


def _say_ended(head: str, done: Future[float]) -> None:
    if done.cancelled():
        return
    error = done.exception()
    if error is None:
        say(f"{head}: {done.result():.1f} s")
    elif isinstance(error, Speech3Error):
        say(f"{head}: {error}; the recipe stops before the first step that needs it")


def _start(log: str) -> None:
    end_with_parent()
    with explained_disk_errors(Path(log)):
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(file, sys.stderr.fileno())
    console.quiet = False  # `--quiet` is for the terminal; the log is complete
