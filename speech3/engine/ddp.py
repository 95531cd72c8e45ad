"""World ddp: PyTorch's own synchronous data parallelism, as a baseline.

Each of N processes wraps its copy of the model in `torch.nn.parallel.DistributedDataParallel`, with gloo on CPUs and
NCCL on GPUs. In each step every process computes one minibatch, and all copies are updated with the mean gradient (Li
et al. 2020, "PyTorch Distributed"); gradient clipping applies to that mean. Gradients may be sent as ternary codes
(`codecs.ddp_hook`).

There is no server, so a process that dies ends the run, which can be resumed from its last checkpoint. A process that
hangs would block all others, so a watchdog (`Deadline`) stops the run if no process has begun a step for many times the
usual time of a step. This module is the coordinator; the processes run `ddp_process`.

Axes: N processes, M minibatches of an epoch.
"""

import multiprocessing
import multiprocessing.connection
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.adamw import SLOTS
from speech3.engine.ddp_process import REPORT_STEPS, Member, main
from speech3.engine.device import device_for
from speech3.engine.torch_optimizer import STATE
from speech3.engine.watchdog import Clock, patience_s
from speech3.engine.workers import LOOK_S, Failed, Task, Unkillable, Workers
from speech3.engine.world import BuildOn, Progress, Rate, Snapshot
from speech3.errors import Speech3Error
from speech3.runtime import end_processes

_RESUME = ", which stopped training: run it again (`speech3 train` resumes from the last checkpoint)"


@dataclass
class Deadline(Clock):
    """The watchdog's deadline for the next heartbeat of any process; the beginning of each half step is a heartbeat.

    Attributes
    ----------
    usual_s
        Usual seconds of a step, as last measured; 0: not known yet.
    """

    usual_s: float = 0.0

    def late_s(self, now: float, heartbeats_N2: np.ndarray) -> float:
        """Seconds without a heartbeat of any process if past the deadline, else 0; given `Member.heartbeats`.

        A process that hangs blocks all others within a step, so the latest heartbeat of any process is the one that
        counts. On a GPU, a process may run ahead of its device by all steps between two reports and then wait for all
        of them, so the deadline allows for that. There is no deadline until every process has begun its first step.
        """
        self.look(now)
        quiet_s = self.quiet_s(heartbeats_N2[:, 1].max())
        limit_s = patience_s(self.usual_s) + REPORT_STEPS * self.usual_s
        return float(quiet_s) if heartbeats_N2[:, 0].all() and quiet_s > limit_s else 0.0


class Ddp:
    """The world of synchronous processes.

    Parameters
    ----------
    build
        Makes the parts of a worker in its process.

    Raises
    ------
    Speech3Error
        A process fails, dies or hangs; raised by `epoch`.
    """

    def __init__(
        self, build: BuildOn, *, workers: int, device: str, momentum: float = 0.0, weight_decay: float = 0.0,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.newest = Snapshot({}, np.zeros(0, np.int32), Progress())
        self.meeting = tempfile.TemporaryDirectory(prefix="speech3-ddp-")
        self.deadline, heartbeats = Deadline(), multiprocessing.get_context("spawn").RawArray("d", 2 * workers)
        self.heartbeats_N2 = np.frombuffer(heartbeats).reshape(workers, 2)
        self.tensors: dict[str, Tensor] = {}
        to_all = f"{self.meeting.name}/store", build, momentum, weight_decay, codec or CodecConfig()
        members = [Member(rank, workers, device_for(device, rank), heartbeats) for rank in range(workers)]
        tasks = [Task(main, (member, *to_all), member.device) for member in members]
        self.workers, self.error = Workers(["world ddp"], "step", lambda _: tasks), ""
        try:
            self.workers.start_all()
        except BaseException:
            self.meeting.cleanup()
            raise

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress at each report of the first process, and ten times a second, for Ctrl-C."""
        self.newest, progress = Snapshot(self.tensors, states_M, Progress()), Progress()
        if self.error:
            raise Speech3Error(self.error)
        for pipe in self.workers.pipes:
            with suppress(OSError):  # a process died, which is noticed below
                # NumPy arrays: a tensor would be sent through /dev/shm, which is often small in containers.
                pipe.send((epoch, states_M, rate, {name: tensor.numpy() for name, tensor in self.tensors.items()}))
        ended, self.deadline.since = False, time.monotonic()
        while not ended:
            multiprocessing.connection.wait(
                [*self.workers.pipes, *(process.sentinel for process in self.processes)], timeout=LOOK_S
            )
            for pipe in self.workers.pipes:
                if not pipe.poll():
                    continue
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    self._died()
                if isinstance(message, Failed):
                    self._died(message)
                kind, (progress, tensors, states_M) = message
                self.deadline.usual_s = progress.seconds * len(self.processes) / max(1, progress.used)
                if tensors is not None:
                    named = {name: torch.from_numpy(array) for name, array in tensors.items()}
                    self.newest = Snapshot(named, states_M, progress)
                ended = kind == "ended"
            yield progress
            if not ended and not all(process.is_alive() for process in self.processes):
                self._died()
            if not ended and (late_s := self.deadline.late_s(time.monotonic(), self.heartbeats_N2)):
                self._end_hung(late_s)

    @property
    def processes(self) -> list[Any]:
        """The processes, one for each worker."""
        return self.workers.processes

    def snapshot(self) -> Snapshot:
        """The last state that the first process has sent."""
        return self.newest

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Load parameters and optimizer state, which the processes receive with the next epoch."""
        self.tensors = {name: tensor.cpu() for name, tensor in tensors.items() if name in ("parameters", STATE, *SLOTS)}

    def close(self) -> None:
        """Stop the processes."""
        self.workers.close()
        self.meeting.cleanup()

    def _died(self, *heard: Failed) -> NoReturn:
        """A process has exited, or reports a failure: stop the others, and raise the cause."""
        try:
            death = self.workers.end(0, heard)
            self.error = f"world ddp: process {death.rank} died (exit status {death.status}){_RESUME}"
        except Speech3Error as error:
            self.error = str(error)
        raise Speech3Error(self.error)

    def _end_hung(self, late_s: float) -> NoReturn:
        """Stop all processes; the one that hangs has begun the fewest half steps, except if it hangs in an exchange."""
        steps_N = self.heartbeats_N2[:, 0]
        behind = np.flatnonzero(steps_N == steps_N.min()).tolist()
        who = f"process {behind[0]}" if len(behind) == 1 else "a process"
        what = f"world ddp: {who} hung ({late_s:.0f} s without a heartbeat)"
        if left := end_processes(self.processes):
            raise Unkillable(what, left)
        raise Speech3Error(f"{what}{_RESUME}")
