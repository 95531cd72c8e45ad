"""A process of world ddp: its share of an epoch, step by step with the others; the coordinator is in `ddp`.

On a GPU nobody waits for a step: what it did stays on the device until the processes add up their sums, and is looked
at then. So a loss or a gradient that is not finite is noticed some steps late, but before anything computed from it
leaves a process.

Axes: N processes, R steps since the last report, K values of the state.
"""

import math
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from speech3.config import CodecConfig
from speech3.engine.adamw import AdamW, optimizer_of
from speech3.engine.codecs.codec import key_of
from speech3.engine.codecs.ddp_hook import Exchange, mean_of_codes
from speech3.engine.codecs.shared import SharedCodes
from speech3.engine.flat import trained
from speech3.engine.gradient import Diverged, limit, loss_of, together
from speech3.engine.sgd import Sgd
from speech3.engine.world import USED, BuildOn, Parts, Progress, Rate, minibatch_seed, seed_generators, turns

REPORT_STEPS = 50  # between two reports, for which the processes add up their sums
_SNAPSHOT_S = 5.0  # between two copies of the parameters that the first sends along, for checkpoints inside an epoch
_RENDEZVOUS = timedelta(minutes=5)  # and if the coordinator is gone; while it is there, it looks after who hangs
_STEPS, _SINCE = range(2)


@dataclass(frozen=True, eq=False)
class Member:
    """A process among the others.

    Attributes
    ----------
    signs
        2 N values in memory that the coordinator sees: of each process the half steps that it has begun, and when the
        last, by the clock of `time.monotonic`.
    """

    rank: int
    workers: int
    device: str
    signs: Any

    def began(self) -> None:
        """Half a step: to draw and compute, or to exchange gradients."""
        signs_N2 = np.frombuffer(self.signs).reshape(-1, 2)
        signs_N2[self.rank] = signs_N2[self.rank, _STEPS] + 1, time.monotonic()


@dataclass
class Told:
    """What this process's steps did.

    Attributes
    ----------
    sums
        Of all steps that have been looked at: frames, loss times frames, frames classified right.
    steps
        Of those that have not: the minibatch, and its frames, 0 where it weighs nothing.
    told_R3
        On the device, of each of these: loss, right, length of the gradient.
    """

    told_R3: Tensor
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    steps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, frames: int, loss: Tensor, correct: Tensor, length: Tensor) -> None:
        """A step was started."""
        self.told_R3[len(self.steps)] = together([loss, correct, length])
        self.steps.append((number, frames))

    def look(self) -> tuple[float, float, float]:
        """Add up the steps since the last look; waits for the device.

        Returns
        -------
        step, number, loss
            The first of these steps, from 1, whose loss or gradient is not finite, its minibatch and loss; 0 if none.
        """
        told = self.told_R3[: len(self.steps)].tolist()
        steps, self.steps = self.steps, []
        for step, ((number, frames), (loss, right, length)) in enumerate(zip(steps, told, strict=True), start=1):
            if not (math.isfinite(loss) and math.isfinite(length)):
                return step, number, loss
            if frames:
                self.sums = [old + new for old, new in zip(self.sums, (frames, loss * frames, right), strict=True)]
        return 0, 0, 0


class Both(nn.Module):
    """Model and loss in one module, as DDP wants them: its forward pass prepares the exchange of gradients."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.model, self.parts = parts.model, parts

    def forward(self, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As of `loss_of`."""
        return loss_of(self.parts, inputs, targets)


def main(
    member: Member, store: str, build: BuildOn, momentum: float, weight_decay: float, codec: CodecConfig,
    pipe: Connection,
) -> None:  # fmt: skip
    """Until the coordinator is gone: epochs as it sends them."""
    coordinator, on_gpu = os.getppid(), member.device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(member.device)  # or the barriers of all processes are on the first GPU
    parts = build(member.device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=Path(store).as_uri(), rank=member.rank,
        world_size=member.workers, timeout=_RENDEZVOUS,
    )  # fmt: skip
    sgd = optimizer_of(parts, momentum=momentum, weight_decay=weight_decay)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has no successor yet that does the same
        both = DistributedDataParallel(
            Both(parts), broadcast_buffers=False, gradient_as_bucket_view=True, init_sync=False
        )  # fmt: skip
    exchange = Exchange(trained(parts.model), codec)
    if codec.kind == "ternary":
        both.register_comm_hook(exchange, mean_of_codes)
        codes = SharedCodes(sgd.parameters, codec)
        codes.alone(sgd.parameters.zeros_like().views, member.workers)  # numba loads its code
    dist.barrier()
    while os.getppid() == coordinator:
        if pipe.poll(1.0):
            for message in run_epoch(member, parts, sgd, both, exchange, *pipe.recv()):
                pipe.send(message)


def run_epoch(
    member: Member, parts: Parts, sgd: Sgd | AdamW, both: nn.Module, exchange: Exchange,
    epoch: int, states_M: np.ndarray, rate: Rate, tensors: dict[str, Tensor],
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """This process's share of an epoch: of every `workers` waiting minibatches, the one at its rank.

    Yields
    ------
    Of the first process what is to be sent: ``moved`` or ``ended``, with progress, maybe the state, and what became of
    the minibatches.
    """
    sgd.load(tensors)
    parts.model.train()
    groups = turns(states_M, member.workers, parts.source.rows)
    told = Told(torch.zeros(REPORT_STEPS, 3, dtype=torch.float64, device=sgd.parameters.vector_K.device))
    exchange.up = exchange.down = 0
    began, used = time.perf_counter(), 0
    saved = began
    states = states_M.copy()
    for turn, (before, group) in enumerate(groups, start=1):
        member.began()
        # Where the last group is short, the others compute with it but weigh nothing: DDP divides by `workers`.
        in_group = member.rank < len(group)
        weight, number = (member.workers / len(group), group[member.rank]) if in_group else (0.0, group[0])
        inputs, targets = parts.source.draw(epoch, number)
        seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
        loss, correct = both(inputs, targets)
        for parameter in trained(parts.model):
            parameter.grad = None
        exchange.begin(key_of(parts.seed, epoch, before, member.rank))
        member.began()
        (loss * weight).backward()
        g = [p.grad for p in trained(parts.model) if p.grad is not None]
        length = limit(g, parts.max_norm)
        sgd.step(g, rate(before))
        told.add(number, len(targets) if weight else 0, loss.detach(), correct, length)
        states[group] = USED
        used += len(group)
        if turn % REPORT_STEPS and turn < len(groups):
            continue
        sums = _added_up(member, told, exchange, epoch, rate)
        now = time.perf_counter()
        if member.rank == 0:
            ended = turn == len(groups)
            keep = ended or now - saved >= _SNAPSHOT_S
            saved = now if keep else saved
            state = {name: tensor.cpu().numpy() for name, tensor in sgd.state().items()} if keep else None
            yield "ended" if ended else "moved", (_progress(used, sums, now - began), state, states.copy())


def _added_up(member: Member, told: Told, exchange: Exchange, epoch: int, rate: Rate) -> list[float]:
    """Frames, loss times frames, right, bytes up and down, of all processes.

    Raises
    ------
    Diverged
        In every process the same: a loss that is not finite is to blame, not the mean gradient that has it in it.
    """
    troubles_N3 = [[0.0, 0.0, 0.0] for _ in range(member.workers)]
    troubles_N3[member.rank] = list(told.look())
    mine = [*told.sums, exchange.up, exchange.down, *(value for trouble in troubles_N3 for value in trouble)]
    all_of_them = torch.tensor(mine, dtype=torch.float64, device=told.told_R3.device)
    dist.all_reduce(all_of_them)
    sums, of_processes = (part.tolist() for part in all_of_them.cpu().split([5, 3 * member.workers]))
    troubles = [trouble for trouble in zip(*[iter(of_processes)] * 3, strict=True) if trouble[0]]
    if troubles:
        _, number, loss = min(troubles, key=lambda trouble: (trouble[0], math.isfinite(trouble[2])))
        raise Diverged(epoch, int(number), loss, rate(int(number)))
    return list(sums)


def _progress(used: int, sums: list[float], seconds: float) -> Progress:
    frames, loss_sum, correct, up, down = sums
    return Progress(
        used=used, frames=int(frames), loss_sum=loss_sum, correct=int(correct), seconds=seconds, up=int(up),
        down=int(down),
    )  # fmt: skip
