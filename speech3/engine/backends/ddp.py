"""Backend ddp: PyTorch's own synchronous data parallelism, as a baseline.

Each of N processes wraps its copy of the model in `torch.nn.parallel.DistributedDataParallel` (Li et al. 2020, "PyTorch
Distributed"), with gloo on CPUs and NCCL on GPUs. In each step every process computes one minibatch, and all copies are
updated with the mean gradient, to which gradient clipping applies. Gradients may be sent as ternary codes
(`papers/terngrad.py`).

There is no server, so a process that dies ends the run, which can be resumed from its last checkpoint. A process that
hangs would block all others, so a watchdog (`Deadline`) stops the run. On a GPU, results stay on the device until the
processes report, and are checked only then: a loss or gradient that is not finite is noticed some steps late, but
before a process sends anything that was computed from it to the coordinator.

Axes: N processes, M minibatches of an epoch.
"""

import math
import multiprocessing.connection
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from speech3.config import CodecConfig
from speech3.engine.backends.processes import LOOK_S, Clock, Failed, Task, Unkillable, Workers, patience_s
from speech3.engine.codecs import key_of
from speech3.engine.flat import trained
from speech3.engine.gradient import Diverged, Step, clip, device_for, loss_of, stacked_scalars
from speech3.engine.interface import (
    USED,
    BuildOn,
    Microbatches,
    Progress,
    Rate,
    Snapshot,
    WorkerParts,
    expect,
    minibatch_seed,
    seed_generators,
    turns,
)
from speech3.engine.optimizers import SLOTS, STATE, AdamW, Sgd, optimizer_of
from speech3.engine.papers.terngrad import Exchange, SharedCodes, mean_of_codes
from speech3.errors import MachineError, Speech3Error
from speech3.runtime import end_processes, worker_context

REPORT_STEPS = 50  # most steps between two reports, for each of which the processes add up their results
_FIRST_REPORT = 1  # steps before the first report of an epoch, when it is not known yet how long a step takes
_REPORT_MS = 1000  # aimed at between two reports
_SNAPSHOT_S = 5.0  # between two copies of the parameters in the first process's reports, for checkpoints in an epoch
_RENDEZVOUS = timedelta(minutes=5)  # also for collectives; the coordinator's watchdog usually acts earlier
_RESUME = ", which stopped training: run it again (`speech3 train` resumes from the last checkpoint)"


@dataclass(frozen=True, eq=False)
class Member:
    """One process of the group.

    `heartbeats`: 2 N values in memory shared with the coordinator: for each process the number of half
    steps that it has begun, and when it began the last of them, on the clock `time.monotonic`.
    """

    rank: int
    workers: int
    device: str
    heartbeats: Any

    def began(self) -> None:
        """Write a heartbeat: a half step begins (draw a minibatch and compute its loss; or exchange gradients)."""
        heartbeats_N2 = np.frombuffer(self.heartbeats).reshape(-1, 2)
        heartbeats_N2[self.rank] = heartbeats_N2[self.rank, 0] + 1, time.monotonic()


class ModelWithLoss(nn.Module):
    """Model and loss in one module, as DDP requires: its forward pass prepares the exchange of gradients."""

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__()
        self.model, self.parts = parts.model, parts

    def forward(self, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return loss_of(self.parts, inputs, targets)


@dataclass(frozen=True, eq=False)
class Worker:
    """What a process computes with; `wrapped` is its copy of the model with the loss, in DDP's wrapper."""

    member: Member
    parts: WorkerParts
    sgd: Sgd | AdamW
    wrapped: DistributedDataParallel
    exchange: Exchange

    def epoch(
        self, epoch: int, states_M: np.ndarray, rate: Rate, arrays: Mapping[str, np.ndarray | Tensor]
    ) -> Iterator[tuple[str, Any]]:
        """Compute this process's share of an epoch: the minibatch at its rank in each group of up to `workers`.

        Yields, in the first process, the reports to the coordinator: ``moved`` or ``ended``, with the progress, the
        state (None in most reports), and what became of the minibatches.
        """
        member, parts, sgd, exchange = self.member, self.parts, self.sgd, self.exchange
        sgd.load({name: torch.as_tensor(array) for name, array in arrays.items()})
        parts.begin_training()
        groups = turns(states_M, member.workers, parts.source.rows)
        mine = [group[member.rank] if member.rank < len(group) else group[0] for _, group in groups]
        expect(parts.source, epoch, mine)
        unread: list[tuple[int, Step]] = []  # minibatch, and its step, whose results may still be on their way
        exchange.up = exchange.down = 0
        began = saved = reported = time.perf_counter()
        last, due = 0, _FIRST_REPORT  # steps before the last report and before the next
        done, states = Progress(), states_M.copy()
        for turn, (number, (before, group)) in enumerate(zip(mine, groups, strict=True), start=1):
            member.began()
            # 1. Both passes. DDP divides by the number of workers. If the last group is smaller, the surplus workers
            # compute with weight 0, and the weights of the others correct the divisor.
            weight = member.workers / len(group) if member.rank < len(group) else 0.0
            inputs, targets = parts.source.draw(epoch, number)
            seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
            exchange.begin(key_of(parts.seed, epoch, before, member.rank))
            loss, correct = self._passes(weight, inputs, targets)
            # 2. The update.
            g = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(parts.model)]
            length = clip(g, parts.max_norm)
            sgd.step(g, rate(before))
            # 3. Note the results; now and then, all processes add theirs up and the first reports.
            frames, left_out = (len(targets), getattr(targets, "left_out", 0)) if weight else (0, 0)
            unread.append((number, Step.started(frames, stacked_scalars([loss, correct, length]), left_out)))
            states[group] = USED
            done += Progress(used=len(group))
            if turn < min(due, len(groups)):
                continue
            results, took_ms = self._added_up(unread, reported, epoch, rate)
            unread.clear()
            now = reported = time.perf_counter()
            done = replace(done + results, seconds=now - began)
            steps = _REPORT_MS * (turn - last) * member.workers / max(1, took_ms)
            last, due = turn, turn + max(1, int(min(REPORT_STEPS, steps)))
            if member.rank == 0:
                ended = turn == len(groups)
                keep = ended or now - saved >= _SNAPSHOT_S
                saved = now if keep else saved
                state = {name: tensor.cpu().numpy() for name, tensor in sgd.state().items()} if keep else None
                yield "ended" if ended else "moved", (done, state, states.copy())

    def _passes(self, weight: float, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Both passes of a minibatch whose loss has a weight; returns its loss and the number classified correctly."""
        parts, wrapped = self.parts, self.wrapped
        for parameter in trained(parts.model):
            parameter.grad = None
        portions = inputs.microbatches if isinstance(inputs, Microbatches) else ((inputs, targets),)
        loss = correct = torch.zeros((), device=parts.device)
        for number, (microbatch, its_targets) in enumerate(portions, start=1):
            last, share = number == len(portions), len(its_targets) / max(1, len(targets))
            with nullcontext() if last else wrapped.no_sync():
                part, right = wrapped(microbatch, its_targets)
                if last:
                    self.member.began()  # in the last backward pass, DDP exchanges the gradients
                (part * (weight * share)).backward()
            loss, correct = loss + share * part.detach(), correct + right
        return loss, correct

    def _added_up(
        self, unread: Sequence[tuple[int, Step]], since: float, epoch: int, rate: Rate
    ) -> tuple[Progress, float]:
        """The results of all processes' steps since the last report, and the milliseconds spent; waits for the device.

        The milliseconds, counted from `since`, are whole: their sum determines when the next report is, and so must be
        exactly the same in all processes.

        Raises `Diverged` if a loss or gradient is not finite. The same error is raised in every process; it names the
        minibatch whose loss is not finite, rather than one of those that were in the same mean gradient.
        """
        workers, exchange = self.member.workers, self.exchange
        # Of each process: the first step (from 1) whose loss or gradient is not finite, its minibatch and its loss.
        bad = [
            (float(turn), float(number), step.loss) for turn, (number, step) in enumerate(unread, 1) if not step.finite
        ]
        troubles_N3 = [(0.0, 0.0, 0.0) for _ in range(workers)]
        troubles_N3[self.member.rank] = next(iter(bad), (0.0, 0.0, 0.0))
        mine = sum((step.progress for _, step in unread if step.frames or step.left_out), Progress())
        took_ms = round(1000 * (time.perf_counter() - since))  # now that the steps are read
        counts = [mine.loss_sum, mine.frames, mine.correct, mine.left_out, exchange.up, exchange.down, took_ms]
        exchange.up = exchange.down = 0
        values = [*counts, *(value for trouble in troubles_N3 for value in trouble)]
        all_of_them = torch.tensor(values, dtype=torch.float64, device=self.parts.device)
        dist.all_reduce(all_of_them)
        sums, of_processes = (part.tolist() for part in all_of_them.cpu().split([len(counts), 3 * workers]))
        troubles = [trouble for trouble in zip(*[iter(of_processes)] * 3, strict=True) if trouble[0]]
        if troubles:
            _, number, loss = min(troubles, key=lambda trouble: (trouble[0], math.isfinite(trouble[2])))
            raise Diverged(epoch, int(number), loss, rate(int(number)))
        loss_sum, (frames, correct, left_out, up, down) = sums[0], map(int, sums[1:6])
        results = Progress(frames=frames, loss_sum=loss_sum, correct=correct, left_out=left_out, up=up, down=down)
        return results, sums[6]


def run_ddp_process(
    member: Member, store: str, build: BuildOn, momentum: float, codec: CodecConfig, pipe: Connection
) -> None:
    """The main function of a process: work on the epochs that the coordinator sends, until the coordinator exits."""
    coordinator, on_gpu = os.getppid(), member.device.startswith("cuda")
    parts = build(member.device)
    group: dict[str, Any] = {"init_method": Path(store).as_uri(), "rank": member.rank, "world_size": member.workers}
    device_id = torch.device(member.device) if on_gpu else None
    dist.init_process_group("nccl" if on_gpu else "gloo", **group, timeout=_RENDEZVOUS, device_id=device_id)
    sgd = optimizer_of(parts, momentum=momentum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has no equivalent successor yet
        if parts.skips:
            _use_up_warning(parts.device)
        wrapped = DistributedDataParallel(
            ModelWithLoss(parts),
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            init_sync=False,
            find_unused_parameters=parts.skips,
        )
    exchange = Exchange(trained(parts.model), codec)
    if codec.kind == "ternary":
        wrapped.register_comm_hook(exchange, mean_of_codes)
        codes = SharedCodes(sgd.parameters, codec)
        codes.alone(sgd.parameters.zeros_like().views, member.workers)  # so that numba loads its compiled code now
    worker = Worker(member, parts, sgd, wrapped, exchange)
    dist.barrier()
    while os.getppid() == coordinator:
        if pipe.poll(1.0):
            for message in worker.epoch(*pipe.recv()):
                pipe.send(message)


def _use_up_warning(device: torch.device) -> None:
    """Let PyTorch give its warning about `find_unused_parameters` now, where nobody sees it.

    It warns in C++, on standard error and once in a process, that a model has used all its parameters; ours may do
    so in most minibatches. No filter applies to it, so a module of one weight uses it up.
    """
    tiny = nn.Linear(1, 1, device=device)
    wrapped = DistributedDataParallel(tiny, broadcast_buffers=False, init_sync=False, find_unused_parameters=True)
    sys.stderr.flush()
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        wrapped(torch.zeros(1, 1, device=device))
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)


@dataclass
class Deadline(Clock):
    """The watchdog's deadline for the next heartbeat of any process; the beginning of each half step is a heartbeat."""

    usual_s: float = 0.0  # usual seconds of a step, as last measured; 0: not known yet

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
    """The backend of synchronous processes.

    Raises `Speech3Error` if a process fails, dies or hangs; raised by `epoch`.
    """

    def __init__(
        self, build: BuildOn, *, workers: int, device: str, momentum: float = 0.0, codec: CodecConfig | None = None
    ) -> None:
        self.newest = Snapshot({}, np.zeros(0, np.int32), Progress())
        self.meeting = tempfile.TemporaryDirectory(prefix="speech3-ddp-")
        self.deadline, heartbeats = Deadline(), worker_context().RawArray("d", 2 * workers)
        self.heartbeats_N2 = np.frombuffer(heartbeats).reshape(workers, 2)
        self.tensors: dict[str, Tensor] = {}
        to_all = f"{self.meeting.name}/store", build, momentum, codec or CodecConfig()
        members = [Member(rank, workers, device_for(device, rank), heartbeats) for rank in range(workers)]
        tasks = [Task(run_ddp_process, (member, *to_all), member.device) for member in members]
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
            raise MachineError(self.error)
        # Every process begins the epoch with the same state.
        for pipe in self.workers.pipes:
            with suppress(OSError):  # a process died, which is noticed below
                # NumPy arrays: a tensor would be sent through /dev/shm, which is often small in containers.
                pipe.send((epoch, states_M, rate, {name: tensor.numpy() for name, tensor in self.tensors.items()}))
        ended, self.deadline.since = False, time.monotonic()
        # Until the first process reports the end. All step together, so its reports are those of all.
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
        return self.workers.processes

    def snapshot(self) -> Snapshot:
        return self.newest

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Load parameters and optimizer state, which the processes receive with the next epoch."""
        self.tensors = {name: tensor.cpu() for name, tensor in tensors.items() if name in ("parameters", STATE, *SLOTS)}

    def close(self) -> None:
        self.workers.close()
        self.meeting.cleanup()

    def _died(self, *heard: Failed) -> NoReturn:
        """A process has exited, or reports a failure: stop the others, and raise the cause."""
        try:
            death = self.workers.end(0, heard)
            self.error = f"world ddp: process {death.rank} died (exit status {death.status}){_RESUME}"
        except Speech3Error as error:
            self.error = str(error)
            raise MachineError(self.error) from error.__cause__
        raise MachineError(self.error)

    def _end_hung(self, late_s: float) -> NoReturn:
        """Stop all processes; the one that hangs has begun the fewest half steps, except if it hangs in an exchange."""
        steps_N = self.heartbeats_N2[:, 0]
        behind = np.flatnonzero(steps_N == steps_N.min()).tolist()
        who = f"process {behind[0]}" if len(behind) == 1 else "a process"
        what = f"world ddp: {who} hung ({late_s:.0f} s without a heartbeat)"
        if left := end_processes(self.processes):
            raise Unkillable(what, left)
        raise MachineError(f"{what}{_RESUME}")
