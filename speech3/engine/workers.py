"""The processes of a world on this host: started, heard, replaced and ended in one way.

A process that fails says why, and the run ends with that; one that is killed, by the kernel or because it hangs
(`watchdog.py`), is replaced, unless it dies again and again without getting anywhere.
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

DEATHS = 3  # of one worker, without progress in between, that end the run
_SAID = 5000  # characters of what a worker raised: of its begin, and of its end; a pipe that nobody reads holds no more


@dataclass(frozen=True)
class Failed:
    """From a worker: why it failed, and when. One failure may make others fail, so the earliest is the cause."""

    at: float
    why: str


def run(function: Callable[..., None], args: tuple[Any, ...], pipe: Any, coordinator: int) -> None:
    """Run `function` with `args` and the worker's end of a pipe; this is what a process is started with."""
    try:
        function(*args, pipe)
    except Exception as error:
        if os.getppid() == coordinator:  # else nobody hears it
            why = str(error) if isinstance(error, Speech3Error) else traceback.format_exc()
            pipe.send(Failed(time.monotonic(), why[:_SAID] + why[_SAID:][-_SAID:]))
        os._exit(1)  # threads of libraries that wait for others would abort what ends in order


class Workers:
    """So many processes.

    Parameters
    ----------
    kind, unit
        What a worker is called, and what it makes progress in, for messages.
    task
        From a worker's number to what it runs, and with which arguments; its pipe comes after these.
    """

    def __init__(self, kind: str, unit: str, count: int, task: Callable[[int], tuple[Any, tuple[Any, ...]]]) -> None:
        self.kind, self.unit, self.task = kind, unit, task
        self.context = torch.multiprocessing.get_context("spawn")
        self.processes: list[Any] = [None] * count
        self.pipes: list[Any] = [None] * count
        self.deaths = [0] * count  # in a row

    def start(self, number: int) -> None:
        """A new process of that number."""
        self.pipes[number], theirs = self.context.Pipe()
        function, args = self.task(number)
        process = self.context.Process(target=run, args=(function, args, theirs, os.getpid()), daemon=True)
        self.processes[number] = process
        with starting_workers():
            process.start()
        theirs.close()

    def reap(self, number: int) -> int:
        """Wait for one that has ended; returns its exit status.

        Raises
        ------
        Speech3Error
            It failed: why.
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
        """Start another in the place of one that died.

        Parameters
        ----------
        status
            Its exit status.
        progressed
            Since it was started.
        hang
            What the user is told, if it was killed because it hung.

        Raises
        ------
        Speech3Error
            It is the third in a row that died without progress.
        """
        self.deaths[number] = 1 if progressed else self.deaths[number] + 1
        if self.deaths[number] >= DEATHS and hang:
            raise Speech3Error(
                f"{hang}, and so did those in its place: it was ended {DEATHS} times; look at its device (dmesg), or "
                f"train with fewer workers"
            )
        if self.deaths[number] >= DEATHS:
            raise Speech3Error(
                f"{self.kind} {number} died {DEATHS} times without a {self.unit} in between (exit status {status}; -9 "
                f"is often the kernel, out of memory): use fewer workers or a smaller model"
            )
        self.start(number)

    def close(self) -> None:
        """End them."""
        end_processes([process for process in self.processes if process is not None])
        for pipe in self.pipes:
            if pipe is not None:
                pipe.close()
