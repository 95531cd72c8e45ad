"""The rivals of the engine's benchmark: worlds that stay open, bare loops, whole training runs.

Each rival has its own processes, as in a run of speech3, with one thread each. While another rival runs they are
stopped (SIGSTOP), because idle shards poll for work two thousand times a second.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from speech3.config import AsgdConfig, ModelConfig, TrainConfig, TrainingConfig
from speech3.engine.gradient import loss_of
from speech3.engine.interface import USED, Progress, Rate, WorkerParts
from speech3.engine.optimizers import Sgd
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import PdfsOnly
from speech3.models.layers import gemm_library
from speech3.runtime import read_metrics
from speech3.train import train
from speech3.train.parts import BuildParts, make_parts
from speech3.train.run import open_run_backends

RATE = 0.01  # low, or a loop over one minibatch would fit it perfectly, which leads to denormal numbers
UTTERANCE_FRAMES, HELDOUT_FRAMES = 500, 512


@dataclass(frozen=True)
class Case:
    """A network and its frames.

    Attributes
    ----------
    frames
        Number of frames in the packed file; rounds compute its first minibatches.
    minibatches
        Number per worker in a round (fewer if the file has fewer), and per epoch of a whole run of one worker, which
        has a file with as many.
    """

    name: str
    bins: int
    senones: int
    model: ModelConfig
    frames: int
    minibatches: int
    minibatch: int = 256
    device: str = "cpu"
    precision: str = "float32"
    cuda_graph: bool = False

    def config(
        self, directory: Path, world: str, workers: int, *, max_epochs: int = 1, sync_every: int = 3
    ) -> TrainConfig:
        """The config to train the network with this many workers on the frames of `write`.

        With a sync after every minibatch, pushes are not scaled, as in the preset ``asgd``.
        """
        asgd = AsgdConfig(warm_start=0, sync_every=sync_every, push_scale=1.0 if sync_every == 1 else "1/workers")
        training = TrainingConfig.model_validate({
            "world": world, "workers": workers, "device": self.device, "minibatch": self.minibatch,
            "learning_rate": RATE, "schedule": "constant", "max_epochs": max_epochs, "precision": self.precision,
            "cuda_graph": self.cuda_graph, "asgd": asgd,
        })  # fmt: skip
        return TrainConfig(frames=str(directory), hmm=str(directory), model=self.model, training=training)

    @property
    def as_run(self) -> "Case":
        """The case of a whole run, whose epochs are as long as a round of one worker."""
        return replace(self, frames=self.minibatches * self.minibatch)

    def write(self, directory: Path) -> None:
        """Write normally distributed frames with random senones, and a model directory with as many senones."""
        generator = np.random.default_rng(1)
        for name, frames in (("train", self.frames), ("heldout", min(HELDOUT_FRAMES, self.frames))):
            lengths = [min(UTTERANCE_FRAMES, frames - start) for start in range(0, frames, UTTERANCE_FRAMES)]
            feats = {f"u{u}": generator.standard_normal((t, self.bins), np.float32) for u, t in enumerate(lengths)}
            senones = {f"u{u}": generator.integers(self.senones, size=t) for u, t in enumerate(lengths)}
            write_frames(directory / f"{name}.frames", feats, senones, self.senones, utterances=list(feats))
        PdfsOnly(self.senones, "a benchmark's").save(directory)


@contextmanager
def written(case: Case) -> Iterator[Path]:
    """A temporary directory with the case's frames."""
    with tempfile.TemporaryDirectory(prefix="speech3-benchmark-") as directory:
        case.write(Path(directory))
        yield Path(directory)


@dataclass
class Rival:
    """Runs one round when called and returns its measurement; its processes are stopped before and after."""

    run: Callable[[], Any]
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._signal(signal.SIGSTOP)

    def __call__(self) -> Any:
        self._signal(signal.SIGCONT)
        try:
            return self.run()
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids:
            os.kill(pid, number)


@contextmanager
def world(case: Case, directory: Path, name: str, workers: int, sync_every: int = 3) -> Iterator[Rival]:
    """A world that computes the first minibatches of a new epoch in each round; measures a `Progress`."""
    config = case.config(directory, name, workers, sync_every=sync_every)
    parts = make_parts(config, open_packed(directory / "train.frames"), torch.device(case.device))
    alone, opened = open_run_backends(config, directory / "simulation.json", parts, BuildParts(config, gemm_library()))
    assert opened is not None
    tensors, total = alone.snapshot().tensors, len(parts.source)
    round_, epoch = min(workers * case.minibatches, total), 0

    def compute(minibatches: int) -> Progress:
        nonlocal epoch
        epoch += 1
        states_M = np.full(total, USED, np.int32)
        states_M[:minibatches] = 0
        opened.load(tensors)
        *_, done = opened.epoch(epoch, states_M, Rate(RATE, epoch, total))
        assert done.used == minibatches, f"{name}: {done}"
        return done

    try:
        compute(min(6 * workers, round_))  # starts the workers and warms them up
        yield Rival(lambda: compute(round_), [process.pid for process in opened.processes])  # type: ignore[attr-defined]
    finally:
        opened.close()


@contextmanager
def bare(case: Case, directory: Path, loops: int = 1) -> Iterator[Rival]:
    """Loops of forward, backward, step on one resident minibatch, each in a process like a shard's, all at once.

    Measures frames a second of all, until the last has ended.
    """
    context = torch.multiprocessing.get_context("spawn")
    build = BuildParts(case.config(directory, "shared", 1), gemm_library())
    pipes, processes = [], []
    for _ in range(loops):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=_bare, args=(build, case.device, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)

    def run() -> float:
        for pipe in pipes:
            pipe.send(case.minibatches)
        return float(loops * case.minibatches * case.minibatch / max(pipe.recv() for pipe in pipes))

    try:
        for pipe in pipes:
            pipe.recv()
        yield Rival(run, [process.pid for process in processes if process.pid])
    finally:
        for process in processes:
            process.kill()
            process.join()


def _bare(build: BuildParts, device: str, pipe: Any) -> None:
    parts = build(device)
    parts.model.train()
    step = bare_step(parts, *parts.source.draw(1, 0))
    for _ in range(12):
        step()
    pipe.send(None)
    while True:
        steps = pipe.recv()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device != "cpu":
            torch.cuda.synchronize()
        pipe.send(time.perf_counter() - start)


def bare_step(parts: WorkerParts, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """Forward pass, backward pass and update with one minibatch; on a GPU recorded once and replayed (a CUDA graph)."""
    sgd, parameters = Sgd(parts.model), list(parts.model.parameters())

    def step() -> None:
        loss, _ = loss_of(parts, inputs, targets)
        sgd.step(torch.autograd.grad(loss, parameters), RATE)

    if not inputs.is_cuda:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def whole_run(case: Case, directory: Path) -> tuple[float, float]:
    """The second of two short epochs of `speech3.train.train`, one worker.

    Returns
    -------
    frames_per_s, between_s
        By the seconds in its metrics; and what its clock, from one record of ``metrics.jsonl`` to the next, has beyond
        these: held-out frames, the checkpoint, the looks of the coordinator. That does not depend on how long an epoch
        is.
    """
    with tempfile.TemporaryDirectory(dir=directory) as out:
        train(case.config(directory, "shared", 1, max_epochs=2), out)
        first, second = (record for record in read_metrics(Path(out) / "metrics.jsonl") if record["event"] == "epoch")
    assert second["minibatches"]["used"] == first["minibatches"]["used"]
    seconds = second["seconds"] - first["seconds"]
    return (second["frames"] - first["frames"]) / seconds, second["time"] - first["time"] - seconds


def in_turn(rivals: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
    """The measurement of each rival in each round; the order is reversed from round to round."""
    measured: dict[str, list[Any]] = {name: [] for name in rivals}
    for round_ in range(rounds):
        for name in list(rivals)[:: -1 if round_ % 2 else 1]:
            measured[name].append(rivals[name]())
    return measured


def frames_per_s(done: list[Progress]) -> list[float]:
    """Frames per second of each round of a world."""
    return [each.frames / each.seconds for each in done]


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over the rounds."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def left_out(what: str, why: str) -> None:
    """Say on standard error that a figure was not measured."""
    print(f"{what}: not run, {why}", file=sys.stderr)
