"""A finite loss whose gradient is not, and running means that are not: nothing of them is applied, published or kept.

Axes: B minibatch, C classes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Batches, Build, loss
from torch import Tensor, nn

from speech3.config import AsgdConfig
from speech3.engine.backends.one_process import OneWorker, Simulated, Synchronous, Times
from speech3.engine.gradient import clip
from speech3.engine.interface import REFUSED, USED, Backend, Rate, Snapshot, WorkerParts
from speech3.errors import Speech3Error

BAD = 5  # the minibatch
NAN, INF = float("nan"), float("inf")


class _Spoiled(torch.autograd.Function):
    """Its input, whose gradient is not a number, or infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float) -> Tensor:
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.value, None


@dataclass(frozen=True)
class SpoiledGradient:
    """The tiny loss; that of minibatch `BAD` has a gradient that is not finite, and a value as any other."""

    value: float

    def __call__(self, outputs_BC: Tensor, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        bad = torch.equal(targets_B, Batches().draw(1, BAD)[1])
        return loss(_Spoiled.apply(outputs_BC, self.value) if bad else outputs_BC, targets_B)


class Overflowing(nn.Module):
    """Counts what it has seen in a buffer; at minibatch `BAD` that is no number any more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x_BC: Tensor) -> Tensor:
        """(B, 5) to (B, 5)."""
        self.seen += 1
        if torch.equal(x_BC, Batches().draw(1, BAD)[0]):
            self.seen += INF
        return self.linear(x_BC)


def spoiled(value: float = NAN, max_norm: float = INF, optimizer: str = "sgd") -> WorkerParts:
    return replace(Build()("cpu"), loss=SpoiledGradient(value), max_norm=max_norm, optimizer=optimizer)


def run(world: Backend) -> Snapshot:
    for _ in world.epoch(1, np.zeros(12, np.int32), Rate(0.1, 1, 12)):
        pass
    return world.snapshot()


def asgd(parts: WorkerParts, workers: int = 2, **config: Any) -> Simulated:
    times = Times((0.01,) * workers, 0.001)
    return Simulated(parts, AsgdConfig(sync_every=1, push_scale=1.0, **config), times)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("max_norm", [INF, 1.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_one_worker_stops_before_the_step(value: float, max_norm: float, optimizer: str) -> None:
    world = OneWorker(spoiled(value, max_norm, optimizer), momentum=0.5)
    with pytest.raises(Speech3Error, match=r"epoch 1, minibatch 5: the gradient is not finite \(the loss is \d"):
        run(world)
    snapshot = world.snapshot()
    assert snapshot.progress.used == BAD
    assert snapshot.finite
    # Those from before that minibatch, to the last bit.
    before = OneWorker(spoiled(value, max_norm, optimizer), momentum=0.5)
    for progress in before.epoch(1, np.zeros(12, np.int32), Rate(0.1, 1, 12)):
        if progress.used == BAD:
            break
    assert torch.equal(snapshot.tensors["parameters"], before.snapshot().tensors["parameters"])


def test_synchronous_workers_stop_before_the_step() -> None:
    world = Synchronous(spoiled(), Times((0.01, 0.01), 0.001))
    with pytest.raises(Speech3Error, match="minibatch 5: the gradient is not finite"):
        run(world)
    assert world.snapshot().finite


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("extra", [{}, {"momentum": 0.5}, {"adagrad": 0.05}, {"partitions": 2}])
def test_server_refuses_push_that_is_not_finite_and_continues(local: bool, extra: dict[str, Any]) -> None:
    snapshot = run(asgd(spoiled(), local_updates=local, max_push=100, **extra))
    assert snapshot.finite
    assert snapshot.states_M[BAD] == REFUSED
    assert (snapshot.states_M == USED).sum() == 11 == snapshot.progress.used


def test_a_shards_moments_stay_whole() -> None:
    snapshot = run(asgd(spoiled(optimizer="adamw"), workers=1, max_push=100))
    assert (snapshot.states_M == USED).sum() == 11  # those after it, too: with moments of NaN none would be


@pytest.mark.parametrize("extra", [{}, {"partitions": 2}])
def test_running_means_that_are_not_finite_are_not_published(extra: dict[str, Any]) -> None:
    torch.manual_seed(1)
    parts = replace(Build()("cpu"), model=Overflowing())
    snapshot = run(asgd(parts, max_push=100, **extra))
    assert snapshot.finite
    assert snapshot.states_M[BAD] == REFUSED or "partitions" in extra  # there the partition of the parameters takes it
    assert snapshot.progress.used >= 11


def test_a_step_that_overflows_only_on_the_server_is_refused() -> None:
    world = asgd(Build()("cpu"), workers=1, momentum=0.9, max_push=INF)
    moves = world.epoch(1, np.zeros(12, np.int32), Rate(0.1, 1, 12))
    next(moves)
    for buffer in world.server.partitions[0].buffers:
        buffer.velocity_P[:] = 3e38  # times 0.9 it is finite, and so is the push, but not the parameters' norm
        buffer.parameters_P[:] = -3e38
    for _ in moves:
        pass
    assert world.snapshot().finite
    assert world.snapshot().progress.refused >= 10


def test_clip_reports_norm_that_is_not_finite_and_changes_nothing() -> None:
    for value in (NAN, INF):
        g = [torch.tensor([1.0, value]), torch.tensor([2.0])]
        assert not clip(g, 1.0).isfinite()
        assert g[1].item() == 2.0
    assert clip([torch.tensor([3.0, 4.0])], INF) == 5
