"""PyTorch's own data parallelism as a world: the rival, started for the user.

N processes, each with `torch.nn.parallel.DistributedDataParallel` around its copy of the model; gloo on CPUs, NCCL on
GPUs. In each step they compute N minibatches, one each, and their mean gradient moves all copies alike (Li et al. 2020,
"PyTorch Distributed"); where gradients are cut down, it is the mean that is. There is no server, so a process that dies
ends the run; it goes on from its last checkpoint. Gradients may be sent as ternary codes (`codecs.ddp_hook`).
"""

import math
import multiprocessing.connection
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from speech3.config import CodecConfig
from speech3.engine.adamw import SLOTS, AdamW, optimizer_of
from speech3.engine.codecs.codec import key_of
from speech3.engine.codecs.ddp_hook import Exchange, mean_of_codes
from speech3.engine.codecs.shared import SharedCodes
from speech3.engine.flat import trained
from speech3.engine.gradient import Diverged, limit
from speech3.engine.sgd import Sgd
from speech3.engine.world import (
    USED,
    BuildOn,
    Parts,
    Progress,
    Rate,
    Snapshot,
    minibatch_seed,
    seed_generators,
    turns,
)
from speech3.errors import Speech3Error
from speech3.io.parallel import NOT_BEGUN, end_processes, starting_workers

_REPORT_STEPS = 50  # between two reports, for which the processes add up their sums
_GO_ON = ", and training with it: run it again (`speech3 train` resumes from the last checkpoint)"
_DIED = (math.inf, f"a process died{_GO_ON}")  # when, and what is said of it
_LOOK_S = 0.1
_SNAPSHOT_S = 5.0  # between two copies of the parameters that the first sends along, for checkpoints inside an epoch


class Ddp:
    """The world of synchronous processes.

    Parameters
    ----------
    build
        Makes the parts of a worker in its process.

    Raises
    ------
    Speech3Error
        A process failed or died.
    """

    def __init__(
        self, build: BuildOn, *, workers: int, device: str, momentum: float = 0.0, weight_decay: float = 0.0,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.newest = Snapshot({}, np.zeros(0, np.int32), Progress())
        self.meeting = tempfile.TemporaryDirectory(prefix="speech3-ddp-")
        context = torch.multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        self.tensors: dict[str, Tensor] = {}
        try:
            for rank in range(workers):
                ours, theirs = context.Pipe()
                place = f"cuda:{rank}" if device.startswith("cuda") else device
                process = context.Process(
                    target=_main, daemon=True,
                    args=(rank, workers, f"{self.meeting.name}/store", build, place, momentum, weight_decay,
                          codec or CodecConfig(), theirs),
                )  # fmt: skip
                with starting_workers():
                    process.start()
                self.processes.append(process)
                self.pipes.append(ours)
                theirs.close()
        except BaseException:
            self.close()
            raise

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Yields at each report of the first process, and ten times a second, so that Ctrl-C is heard."""
        self.newest, progress = Snapshot(self.tensors, states_M, Progress()), Progress()
        for pipe in self.pipes:
            self._send(pipe, (epoch, states_M, rate, self.tensors))
        ended = False
        while not ended:
            multiprocessing.connection.wait(
                [*self.pipes, *(process.sentinel for process in self.processes)], timeout=_LOOK_S
            )
            for pipe in self.pipes:
                if not pipe.poll():
                    continue
                kind, value = self._receive(pipe)
                if kind == "failed":
                    self._fail(value)
                progress, tensors, states_M = value
                if tensors is not None:
                    named = {name: torch.from_numpy(array) for name, array in tensors.items()}
                    self.newest = Snapshot(named, states_M, progress)
                ended = kind == "ended"
            yield progress
            if not ended and not all(process.is_alive() for process in self.processes):
                self._fail(_DIED)

    def snapshot(self) -> Snapshot:
        """The state that the first process sent last."""
        return self.newest

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Take over parameters and optimizer state with the next epoch."""
        self.tensors = {name: tensor.cpu() for name, tensor in tensors.items() if name in ("parameters", *SLOTS)}

    def close(self) -> None:
        """End the processes."""
        end_processes(self.processes)
        self.meeting.cleanup()

    def _send(self, pipe: Any, value: Any) -> None:
        try:
            pipe.send(value)
        except OSError:
            self._fail(_DIED)

    def _receive(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            return "failed", _DIED

    def _fail(self, said: tuple[float, str]) -> NoReturn:
        """Who was killed is to blame, not those whose connection to it broke; else who said first that it failed."""
        ended = multiprocessing.connection.wait([process.sentinel for process in self.processes], timeout=1.0)
        why = min([said, *self._last_words()])[1]
        for rank, process in enumerate(self.processes):
            if process.sentinel in ended:
                process.join()
                if (process.exitcode or 0) < 0:
                    why = f"process {rank} died (exit status {process.exitcode}){_GO_ON}"
                elif process.exitcode == 1 and why == _DIED[1]:
                    why = f"process {rank} {NOT_BEGUN}"
        raise Speech3Error(f"world ddp: {why}")

    def _last_words(self) -> Iterator[tuple[float, str]]:
        for pipe in self.pipes:
            with suppress(EOFError, OSError):
                while pipe.poll():
                    kind, value = pipe.recv()
                    if kind == "failed":
                        yield value


class _Loss(nn.Module):
    """Model and loss in one module, as DDP wants them: its forward pass prepares the exchange of gradients."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.model, self.loss = parts.model, parts.loss

    def forward(self, inputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.loss(self.model(inputs), targets)


def _main(
    rank: int, workers: int, store: str, build: BuildOn, device: str, momentum: float, weight_decay: float,
    codec: CodecConfig, pipe: Any,
) -> None:  # fmt: skip
    coordinator = os.getppid()
    try:
        if device.startswith("cuda"):
            torch.cuda.set_device(device)  # or the barriers of all processes are on the first GPU
        parts = build(device)
        dist.init_process_group(
            "nccl" if device.startswith("cuda") else "gloo", init_method=Path(store).as_uri(), rank=rank,
            world_size=workers, timeout=timedelta(minutes=5),
        )  # fmt: skip
        sgd = optimizer_of(parts, momentum=momentum, weight_decay=weight_decay)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # broadcast_buffers has no successor yet that does the same
            together = DistributedDataParallel(
                _Loss(parts), broadcast_buffers=False, gradient_as_bucket_view=True, init_sync=False
            )  # fmt: skip
        exchange = Exchange(trained(parts.model), codec)
        if codec.kind == "ternary":
            together.register_comm_hook(exchange, mean_of_codes)
            SharedCodes(sgd.parameters, codec).alone(sgd.parameters.zeros_like().views, workers)  # numba loads its code
        dist.barrier()
        while os.getppid() == coordinator:
            if pipe.poll(1.0):
                _epoch(rank, workers, parts, sgd, together, exchange, pipe, *pipe.recv())
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        text = str(error) if isinstance(error, Speech3Error) else traceback.format_exc()
        pipe.send(("failed", (time.monotonic(), text)))
        os._exit(1)  # threads of gloo that wait for others would have C++ abort what ends in order


def _epoch(
    rank: int, workers: int, parts: Parts, sgd: Sgd | AdamW, together: nn.Module, exchange: Exchange, pipe: Any,
    epoch: int, states_M: np.ndarray, rate: Rate, tensors: dict[str, Tensor],
) -> None:  # fmt: skip
    """This process's share of an epoch: of every `workers` waiting minibatches, the one at its rank."""
    sgd.load(tensors)
    parts.model.train()
    groups = turns(states_M, workers, parts.source.rows)
    device = sgd.parameters.vector_K.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # frames, loss, correct: of this process
    exchange.up = exchange.down = 0
    began, used = time.perf_counter(), 0
    saved = began
    states = states_M.copy()
    for turn, (before, group) in enumerate(groups, start=1):
        # Where the last group is short, the others compute with it but weigh nothing: DDP divides by `workers`.
        weight, number = (workers / len(group), group[rank]) if rank < len(group) else (0.0, group[0])
        inputs, targets = parts.source.draw(epoch, number)
        seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
        loss, correct = together(inputs, targets)
        if not torch.isfinite(loss):
            raise Diverged(epoch, number, loss.item(), rate(number))
        for parameter in trained(parts.model):
            parameter.grad = None
        exchange.begin(key_of(parts.seed, epoch, before, rank))
        (loss * weight).backward()
        g = [p.grad for p in trained(parts.model) if p.grad is not None]
        if not limit(g, parts.max_norm):
            raise Diverged(epoch, number, loss.item(), rate(number))
        sgd.step(g, rate(before))
        states[group] = USED
        if weight:
            frames = len(targets)
            sums += torch.tensor([frames, loss.item() * frames, int(correct)], dtype=torch.float64, device=device)
        used += len(group)
        if turn % _REPORT_STEPS and turn < len(groups):
            continue
        together_sums = torch.cat([sums, sums.new_tensor([exchange.up, exchange.down])])
        dist.all_reduce(together_sums)
        now = time.perf_counter()
        if rank == 0:
            ended = turn == len(groups)
            keep = ended or now - saved >= _SNAPSHOT_S
            saved = now if keep else saved
            state = {name: tensor.cpu().numpy() for name, tensor in sgd.state().items()} if keep else None
            report = _progress(used, together_sums, now - began), state, states.copy()
            pipe.send(("ended" if ended else "moved", report))


def _progress(used: int, sums: Tensor, seconds: float) -> Progress:
    frames, loss_sum, correct, up, down = sums.tolist()
    return Progress(
        used=used, frames=int(frames), loss_sum=loss_sum, correct=int(correct), seconds=seconds, up=int(up),
        down=int(down),
    )  # fmt: skip
