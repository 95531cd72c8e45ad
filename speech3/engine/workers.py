"""The worker processes of a world on this host: how they are started, monitored, replaced and stopped.

A process that raises an error reports it, and the run ends. A process that is killed, by the kernel or because it hangs
(`watchdog.py`), is replaced, unless it dies repeatedly without progress.
"""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.multiprocessing

from speech3.errors import Speech3Error
from speech3.io.parallel import NOT_BEGUN, end_processes, starting_workers

DEATHS = 3  # deaths of one worker without progress in between, after which the run ends
_MAX_CHARS = 5000  # characters kept of an error's beginning and of its end, since a pipe holds little until it is read


@dataclass(frozen=True)
class Failed:
    """A worker's message: why it failed, and when. One failure may cause others, so the earliest is the cause."""

    at: float
    why: str


def run(function: Callable[..., None], args: tuple[Any, ...], pipe: Any, coordinator: int) -> None:
    """The main function of a process: call `function` with `args` and the worker's end of a pipe."""
    try:
        function(*args, pipe)
    except Exception as error:
        if os.getppid() == coordinator:  # otherwise no process would receive the message
            why = str(error) if isinstance(error, Speech3Error) else traceback.format_exc()
            pipe.send(Failed(time.monotonic(), why[:_MAX_CHARS] + why[_MAX_CHARS:][-_MAX_CHARS:]))
        os._exit(1)  # a normal exit would abort in threads of libraries that wait for other processes


class Workers:
    """A fixed number of worker processes.

    Parameters
    ----------
    kind, unit
        The words for a worker and for the unit of its progress in error messages.
    task
        Maps a worker's number to the function that it runs and its arguments, to which the worker's pipe is added.
    """

    def __init__(self, kind: str, unit: str, count: int, task: Callable[[int], tuple[Any, tuple[Any, ...]]]) -> None:
        self.kind, self.unit, self.task = kind, unit, task
        self.context = torch.multiprocessing.get_context("spawn")
        self.processes: list[Any] = [None] * count
        self.pipes: list[Any] = [None] * count
        self.deaths = [0] * count  # of each worker, without progress in between

    def start(self, number: int) -> None:
        """Start a process for worker `number`."""
        self.pipes[number], theirs = self.context.Pipe()
        function, args = self.task(number)
        process = self.context.Process(target=run, args=(function, args, theirs, os.getpid()), daemon=True)
        self.processes[number] = process
        with starting_workers():
            process.start()
        theirs.close()

    def reap(self, number: int) -> int:
        """Join a process that has exited; returns its exit status.

        Raises
        ------
        Speech3Error
            The process failed; the message says why.
        """
        process, pipe = self.processes[number], self.pipes[number]
        process.join()
        try:
            while pipe.poll():
                if isinstance(said := pipe.recv(), Failed):
                    raise Speech3Error(f"{self.kind} {number}: {said.why}")
        except (EOFError, OSError):
            pass
        if process.exitcode == 1:
            raise Speech3Error(f"{self.kind} {number} {NOT_BEGUN}")
        return int(process.exitcode)

    def replace(self, number: int, status: int, *, progressed: bool, hang: str = "") -> None:
        """Start a new process in place of one that died.

        Parameters
        ----------
        status
            Exit status of the dead process.
        progressed
            Whether the process made progress after it was started.
        hang
            The message to the user, if the process was killed because it hung.

        Raises
        ------
        Speech3Error
            It was the third process of this worker in succession that died without progress.
        """
        self.deaths[number] = 1 if progressed else self.deaths[number] + 1
        if self.deaths[number] >= DEATHS and hang:
            raise Speech3Error(
                f"{hang}, and so did its replacements: it was killed {DEATHS} times; check its device (dmesg), or "
                f"train with fewer workers"
            )
        if self.deaths[number] >= DEATHS:
            raise Speech3Error(
                f"{self.kind} {number} died {DEATHS} times without a {self.unit} in between (exit status {status}; -9 "
                f"is often the kernel, out of memory): use fewer workers or a smaller model"
            )
        self.start(number)

    def close(self) -> None:
        """Stop all processes."""
        end_processes([process for process in self.processes if process is not None])
        for pipe in self.pipes:
            if pipe is not None:
                pipe.close()
