"""A model, minibatches and a loss so small that an epoch takes milliseconds; importable by processes that are spawned.

And gates, at which processes wait for a test, so that no test depends on how fast a machine is.

Axes: B minibatch, C classes.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

import speech3.engine
from speech3.engine.gradient import Step
from speech3.engine.interface import BuildOn, Rate, Source, WorkerParts
from speech3.engine.server import Partition
from speech3.engine.shard import Push

FRAMES = 16  # of a minibatch


@dataclass(frozen=True)
class Batches:
    """Random inputs whose class is the largest of them.

    Attributes
    ----------
    pause_s
        That a minibatch takes longer.
    trouble
        What happens in a shard's process at minibatch 5: ``raise`` or nothing.
    device
        Where they are, drawn on the CPU.
    """

    minibatches: int = 12
    pause_s: float = 0.0
    trouble: str = ""
    rows: tuple[range, ...] | None = None
    device: str = "cpu"

    def __len__(self) -> int:
        return self.minibatches

    def draw(self, epoch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.trouble and number == 5 and multiprocessing.parent_process():
            raise ValueError("minibatch 5 is bewitched")
        time.sleep(self.pause_s)
        generator = torch.Generator().manual_seed(100 * epoch + number)
        inputs = torch.randn(FRAMES, 5, generator=generator).to(self.device)
        return inputs, inputs.argmax(1)


def loss(outputs_BC: torch.Tensor, targets_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy, and how many are right."""
    return nn.functional.cross_entropy(outputs_BC, targets_B), (outputs_BC.argmax(1) == targets_B).sum()


def model(dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    """5 - 7 - 5, always the same one."""
    torch.manual_seed(1)
    between = [nn.BatchNorm1d(7)] if norm else []
    return nn.Sequential(nn.Linear(5, 7), *between, nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 5))


@dataclass(frozen=True)
class Build:
    """Makes the parts, in this process or another; a process's device is its argument."""

    batches: Batches = Batches()
    dropout: float = 0.0
    norm: bool = False
    weight_decay: float = 0.0
    slow_sync_s: float = 0.0  # a shard's process holds the server longer, between writing and publishing

    def __call__(self, device: str = "cpu") -> WorkerParts:
        torch.set_num_threads(1)
        if self.slow_sync_s and multiprocessing.parent_process():
            publish = Partition._publish
            Partition._publish = lambda *args: (time.sleep(self.slow_sync_s), publish(*args))[1]
        there = replace(self.batches, device=device)
        return WorkerParts(model(self.dropout, self.norm).to(device), there, loss, 1, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Gate:
    """Where processes wait for a test, or for each other, by files; a minute at most, so nothing hangs.

    Attributes
    ----------
    folder
        Empty.
    at
        While gate ``epochN`` is closed, minibatches of epoch N from that number on wait to be computed.
    each, processes
        In every epoch nobody draws more than `each` minibatches before so many processes have drawn as many.
    """

    folder: Path
    at: int = sys.maxsize
    each: int = 0
    processes: int = 2

    def close(self, name: str) -> None:
        """Nobody stands there yet."""
        for path in self.folder.glob(f"{name}.*"):
            path.unlink()
        (self.folder / name).touch()

    def open(self, name: str) -> None:
        """Who stands there goes on."""
        (self.folder / name).unlink(missing_ok=True)

    def standing(self, name: str) -> set[int]:
        """The processes that have come to it since it was closed."""
        return {int(path.suffix[1:]) for path in self.folder.glob(f"{name}.*")}

    def wait(self, name: str) -> None:
        """Stand there while it is closed."""
        if (self.folder / name).exists():
            (self.folder / f"{name}.{os.getpid()}").touch()
            until(lambda: not (self.folder / name).exists())

    def draw(self, epoch: int, number: int) -> None:
        """What a process does before it has a minibatch."""
        if self.each:
            self._meet(self.folder / f"drawn{epoch}.{os.getpid()}")
        if number >= self.at:
            self.wait(f"epoch{epoch}")

    def _meet(self, own: Path) -> None:
        """Each process has a file with a letter for every minibatch."""

        def there() -> int:
            return sum(path.stat().st_size >= self.each for path in self.folder.glob(f"{own.stem}.*"))

        with own.open("a") as stream:
            stream.write(".")
        if own.stat().st_size == self.each + 1:
            until(lambda: there() >= self.processes)


@dataclass(frozen=True)
class GatedSource:
    """Minibatches behind a gate."""

    source: Source
    gate: Gate

    @property
    def rows(self) -> tuple[range, ...] | None:
        return self.source.rows

    def __len__(self) -> int:
        return len(self.source)

    def draw(self, epoch: int, number: int) -> tuple[Any, torch.Tensor]:
        self.gate.draw(epoch, number)
        return self.source.draw(epoch, number)


@dataclass(frozen=True)
class Gated:
    """The parts of another build, with a gate before each minibatch; gate ``publish`` is in the midst of a sync."""

    build: BuildOn
    gate: Gate

    def __call__(self, device: str) -> WorkerParts:
        parts, publish = self.build(device), Partition._publish
        Partition._publish = lambda *args: (self.gate.wait("publish"), publish(*args))[1]
        return replace(parts, source=GatedSource(parts.source, self.gate))


def visit(partition: Partition, push: Push) -> int:
    """What a driver does when a shard wants to sync, without the lock."""
    push.pack()
    ended = partition.sync(push)
    push.unpack()
    return ended


def waiting(batches: Batches) -> np.ndarray:
    """States of an epoch of which nothing is done."""
    return np.zeros(len(batches), np.int32)


def rate(base: float, epoch: int, batches: Batches) -> Rate:
    """A constant learning rate."""
    return Rate(base, epoch, len(batches))


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the engine catches it."""


PATH = str(Path(__file__).parent)  # for scripts that import this
ENGINE = str(Path(speech3.engine.__file__).parent)


@contextmanager
def killed_at(instruction: int) -> Iterator[Callable[[], int]]:
    """Raise `Killed` at that bytecode instruction of the engine's own files, from 0; yields how many were run.

    Locks that are context managers are released on the way out, as the kernel does for a dead process.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            count += 1
            if count > instruction:
                sys.settrace(None)
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: count
    except Killed:
        pass
    finally:
        sys.settrace(before)


def state(pid: int) -> str:
    """The state of a process, a letter as in ps(1); empty where there is none, or what is left of it."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return letter.replace("Z", "")


def until(condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
    """Wait until it is true, and return that; a test hangs no longer than `limit_s`."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
    return value


def flocks(pids: set[int]) -> set[tuple[int, int]]:
    """(pid, inode) of the advisory locks that these processes hold."""
    rows = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
    return {(int(row[4]), int(row[5].rsplit(":", 1)[1])) for row in rows if row[1] == "FLOCK" and int(row[4]) in pids}


def descriptors() -> list[str]:
    """Where this process's open files point."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return found


def step(frames: int, loss: float, correct: int) -> Step:
    """Results of a minibatch that nobody has computed."""
    return Step(frames, torch.tensor([loss, correct], dtype=torch.float64))
