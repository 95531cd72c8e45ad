"""Shards on one GPU, which reach the server by CUDA IPC: they train, and whatever kills them, no minibatch is lost."""

import gc
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, Progress

BATCHES = tiny.Batches(300, pause_s=0.002)
RATE = 0.3


def parameters() -> Tensor:
    """Those to begin with."""
    return flatten(tiny.model()).vector_K


@contextmanager
def opened(
    config: AsgdConfig, folder: Path, device: str, workers: int, codec: CodecConfig | None = None
) -> Iterator[tuple[Shared, tiny.Gate]]:
    """A world whose shards each draw a few minibatches of an epoch, however long one of them takes to begin."""
    gate = tiny.Gate(folder, at=200, each=11, processes=workers)
    build = tiny.Build(BATCHES)
    world = Shared(tiny.Gated(build, gate), build(device), config, workers=workers, device=device, codec=codec)
    try:
        world.load({"parameters": parameters()})
        yield world, gate
    finally:
        world.close()


def epoch(
    world: Shared, gate: tiny.Gate, number: int, inside: Callable[[], None] | None = None
) -> tuple[Progress, Tensor]:
    """Train one; once 50 minibatches are used, `inside` is called, and the last 100 wait for that.

    Every minibatch must be used once. Returns the last progress, and the parameters.
    """
    if inside:
        gate.close(f"epoch{number}")
    for done in world.epoch(number, tiny.waiting(BATCHES), tiny.rate(RATE, number, BATCHES)):
        if inside and done.used >= 50:
            inside()
            inside = None
            gate.open(f"epoch{number}")
    snapshot = world.snapshot()
    assert inside is None and (snapshot.states_M == USED).all()
    assert (done.used, done.stale, done.refused) == (len(BATCHES), 0, 0)
    assert done.frames == len(BATCHES) * tiny.FRAMES
    assert sum(done.staleness) == len(BATCHES)
    assert snapshot.tensors["parameters"].isfinite().all()
    return done, snapshot.tensors["parameters"].cpu()


def accuracy(vector_K: Tensor) -> float:
    """Of a model with these parameters."""
    model = tiny.model()
    flatten(model).vector_K.copy_(vector_K)
    inputs, targets = (torch.cat(each) for each in zip(*(BATCHES.draw(9, n) for n in range(20)), strict=True))
    return float((model(inputs).argmax(1) == targets).float().mean())


def test_one_shard_is_plain_sgd(gpu: str, tmp_path: Path) -> None:
    model = tiny.model().double()
    for number in range(len(BATCHES)):
        inputs, targets = BATCHES.draw(1, number)
        gradients = torch.autograd.grad(tiny.loss(model(inputs.double()), targets)[0], list(model.parameters()))
        with torch.no_grad():
            for parameter, g in zip(model.parameters(), gradients, strict=True):
                parameter -= RATE * g
    for local_updates, sync_every in ((True, 3), (False, 1)):
        config = AsgdConfig(push_scale=1.0, local_updates=local_updates, sync_every=sync_every)
        with opened(config, tmp_path, gpu, 1) as (world, gate):
            _, found_K = epoch(world, gate, 1)
        ours = tiny.model()
        flatten(ours).vector_K.copy_(found_K)
        for mine, expected in zip(ours.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("workers", "config", "codec"),
    [
        (2, AsgdConfig(sync_every=2, max_distance=6), None),
        (4, AsgdConfig(sync_every=2, max_distance=6), None),
        (2, AsgdConfig(sync_every=2, partitions=2, momentum=0.2, decay=0.9), CodecConfig(kind="topk", share=0.5)),
        (2, AsgdConfig(sync_every=2, fetch_every=2, local_updates=False), CodecConfig(kind="bf16")),
    ],
    ids=["two", "four", "partitions_topk", "fetch_bf16"],
)
def test_shards_train(workers: int, config: AsgdConfig, codec: CodecConfig | None, gpu: str, tmp_path: Path) -> None:
    with opened(config, tmp_path, gpu, workers, codec) as (world, gate):
        assert gpu == "cpu" or all(tensor.is_cuda for tensor in world.on_gpu[0])
        for number in (1, 2, 3):
            done, vector_K = epoch(world, gate, number)
            assert done.restarts == 0 and all(shard.minibatches > 10 for shard in done.shards)
        assert math.isfinite(done.loss_sum) and accuracy(vector_K) > 0.75


def test_the_gpus_memory_is_free_when_it_is_closed(gpu: str, tmp_path: Path) -> None:
    """PyTorch keeps shared memory until every process that opened it has destroyed its tensors."""
    if gpu == "cpu":
        pytest.skip("its memory is not PyTorch's")
    before = torch.cuda.memory_allocated()
    with opened(AsgdConfig(sync_every=2), tmp_path, gpu, 1) as (world, gate):
        epoch(world, gate, 1)
        assert torch.cuda.memory_allocated() > before
    del world, gate
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == before


def test_killed(gpu: str, tmp_path: Path) -> None:
    """In the midst of a sync, between writing and publishing; then at random moments."""
    with opened(AsgdConfig(sync_every=2, max_distance=6), tmp_path, gpu, 2) as (world, gate):

        def pids() -> list[int]:
            return [process.pid for process in world.processes]

        def in_a_sync() -> None:
            gate.close("publish")
            gate.open("epoch1")  # so that there is something to publish
            (pid,) = tiny.until(lambda: gate.standing("publish"))
            before = world.server.version
            os.kill(pid, signal.SIGKILL)
            tiny.until(lambda: not tiny.state(pid))
            assert world.server.version == before
            gate.open("publish")

        def at_random() -> None:
            time.sleep(random.random() * 0.02)
            os.kill(random.choice(pids()), signal.SIGKILL)

        first = pids()
        for number, kill in enumerate((in_a_sync, at_random, at_random), 1):
            done, vector_K = epoch(world, gate, number, kill)
            assert done.restarts == 1 and done.returned <= 6
        assert pids() != first and accuracy(vector_K) > 0.75
