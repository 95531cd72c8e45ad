"""World shared where it cannot begin, or a shard has too much to say."""

import multiprocessing
import os
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from speech3.config import AsgdConfig
from speech3.engine.backends import processes as workers, shared
from speech3.engine.backends.processes import Task, Workers
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.errors import Speech3Error

BATCHES = tiny.Batches(12)


@dataclass(frozen=True)
class Talkative(tiny.Build):
    """Cannot be built in a shard, and says so in 200,000 characters."""

    def __call__(self, device="cpu"):
        if multiprocessing.parent_process():
            raise Speech3Error("no frames: " + "x" * 200_000 + " at all")
        return super().__call__(device)


def test_error_longer_than_pipe_is_shortened():
    build = Talkative(BATCHES)
    world = Shared(build, build(), AsgdConfig(), workers=1)
    try:
        with pytest.raises(Speech3Error, match=r"shard 0: no frames: x+ at all$"):
            list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))
    finally:
        world.close()


def test_if_the_second_cannot_be_started_the_first_is_ended(monkeypatch):
    start, begun = Workers.start, []

    def only_the_first(self, worker):
        if worker:
            begun.extend(self.processes)
            raise OSError("no more processes")
        start(self, worker)

    monkeypatch.setattr(Workers, "start", only_the_first)
    build = tiny.Build(BATCHES)
    with pytest.raises(OSError, match="no more processes"):
        Shared(build, build(), AsgdConfig(), workers=2)
    assert len(begun) == 1 and not begun[0].is_alive()


@pytest.mark.parametrize("on_gpu", [True, False])
def test_after_a_death_in_a_sync_the_next_lets_its_kernels_end(on_gpu, monkeypatch):
    """A stand-in for a partition in the memory of a GPU: only that says that kernels may be under way."""
    slept, memory = [], SimpleNamespace(syncing_S=np.zeros(1, np.int64))
    partition = SimpleNamespace(
        memory=memory, number=0, published=SimpleNamespace(vector_K=SimpleNamespace(is_cuda=on_gpu))
    )
    monkeypatch.setattr(shared.time, "sleep", slept.append)
    shared._enter(partition)  # nobody had it
    assert memory.syncing_S[0] == 1 and not slept
    shared._enter(partition)  # who had it did not leave
    assert slept == [shared._KERNELS_S] * on_gpu


def test_shards_on_a_gpu_exit_by_themselves(monkeypatch):
    """A stand-in for tensors on a GPU, whose memory PyTorch does not free while a process that was killed had it."""
    monkeypatch.setattr(shared, "_LEAVE_S", 60.0)
    build = tiny.Build(BATCHES)
    world = Shared(build, build(), AsgdConfig(), workers=1)
    try:
        world.load({"parameters": flatten(tiny.model()).vector_K})
        list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))
        next(world.epoch(2, tiny.waiting(BATCHES), tiny.rate(0.1, 2, BATCHES)))  # and is left in it
        world.on_gpu = [("state", "velocity", "squares")]
        (process,) = world.processes
    finally:
        world.close()
    assert process.exitcode == 0


def test_a_process_has_its_gpu_before_it_builds_anything(monkeypatch):
    """Otherwise it would use the first GPU as well."""
    done = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: done.append(name))
    workers.run_task(None, Task(lambda word, pipe: done.append((word, pipe)), ("built",), "cuda:1"), None, os.getppid())
    workers.run_task(None, Task(lambda word, pipe: done.append((word, pipe)), ("built",), "cpu"), None, os.getppid())
    assert done == ["cuda:1", ("built", None), ("built", None)]
