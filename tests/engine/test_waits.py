"""How often the host waits for the device: once, when the results of minibatches are read; never between the passes."""

import math
from dataclasses import replace

import pytest
import torch
from test_not_finite import spoiled
from tiny import Build, loss, visit
from waits import operations, waits

from speech3.config import AsgdConfig, DnnConfig
from speech3.engine import server_optimizer as optimizer
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.gradient import gradient, stacked_scalars
from speech3.engine.interface import USED, Rate
from speech3.models import build
from speech3.models.base import cross_entropy


class OneMinibatch:
    """Always the same, which is there."""

    rows = None

    def __init__(self) -> None:
        self.inputs, self.targets = torch.randn(8, 3, 4), torch.randint(5, (8,))

    def __len__(self) -> int:
        return 1

    def draw(self, epoch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs, self.targets


@pytest.mark.parametrize("max_norm", [math.inf, 0.1])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("changes", [{}, {"dropout": 0.2, "normalization": "batch"}])
def test_the_host_waits_once_and_last(
    max_norm: float, check: bool, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DnnConfig(layers=2, width=8, left_context=1, right_context=1, **changes)
    monkeypatch.setattr("speech3.models.layers._chosen", "stock")
    model, source = build(config, 4, 5, seed=1).train(), OneMinibatch()
    parts = replace(Build()("cpu"), model=model, source=source, loss=cross_entropy, max_norm=max_norm)
    with operations(monkeypatch) as seen:
        step, g = gradient(parts, 1, 0, check=check)
        assert waits(seen) == [] and step.known and step.finite
    assert waits(seen) == ["tolist"] and seen[-1] == "tolist"
    assert "scatter_add_" in seen and "mm" in seen[seen.index("scatter_add_") :]  # forward, then backward
    assert len(g) and step.frames == 8 and math.isfinite(step.loss) and 0 <= step.correct <= 8


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_sync_waits_once_when_all_is_written(norm: bool, momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rule's step for GPUs. What is read after that is there: whether the buffers are finite."""
    monkeypatch.setattr(optimizer, "_step_numba", optimizer.step_torch)
    config = AsgdConfig(sync_every=1, momentum=momentum, push_scale=1.0)
    world = Simulated(Build(norm=norm)(), config, Times((1.0,), 0.0))
    world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    shard, partition = world.shards[0], world.server.partitions[0]
    visit(partition, shard.pushes[0])
    world.server.states.computed(0, shard.compute(1, 0, Rate(0.1, 1, 12)))
    push = shard.pushes[0]
    push.pack()
    with operations(monkeypatch) as seen:
        assert partition.sync(push) == USED
    assert waits(seen) == ["tolist"] + ["_local_scalar_dense"] * norm
    assert not {"copy_", "zero_", "sub", "add"} & set(seen[seen.index("tolist") :])
    assert {"copy_", "sub"} <= set(seen)


def test_wait_counter_of_this_file_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above could not fail."""
    x = torch.randn(4)
    with operations(monkeypatch) as seen:
        x.sum().item()
        bool((x > 0).any())
        x[x > 0]
        x.nonzero()
        x.numpy()
    assert waits(seen) == ["_local_scalar_dense", "_local_scalar_dense", "nonzero", "nonzero", "numpy"]


def test_a_finite_loss_with_another_gradient_is_reported_with_it() -> None:
    step, _ = gradient(spoiled(), 1, 5)
    assert not step.finite and math.isfinite(step.loss)
    step, g = gradient(spoiled(), 1, 5, check=False)  # the server will look
    assert step.finite and not g[0].isfinite().all()
    nan = replace(Build()("cpu"), loss=lambda y, t: (loss(y, t)[0] * math.nan, loss(y, t)[1]))
    step, _ = gradient(nan, 1, 5, check=False)
    assert not step.finite and math.isnan(step.loss)


def test_stacked_scalars_keep_values_of_any_type() -> None:
    small = torch.tensor(1e-40, dtype=torch.float64)
    assert stacked_scalars([torch.tensor(1.5), torch.tensor(2**24 + 1), small]).tolist() == [1.5, 2**24 + 1, 1e-40]
