"""Recording and replaying, where a recording is a call: the logic, without a GPU; with one, real graphs."""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor, nn

from speech3.config import AsgdConfig, TrainingConfig
from speech3.engine import gradient as recorded
from speech3.engine.backends.one_process import OneWorker, Simulated, Times
from speech3.engine.gradient import CudaGraphs, described, gradient
from speech3.engine.interface import Rate, Results, Targets, WorkerParts, tensors
from speech3.engine.trainer import check_workers
from speech3.errors import SettingError, Speech3Error

BATCHES = tiny.Batches(12)


class Recordings:
    """Stand for CUDA graphs: a replay calls what was recorded and writes the results where the first ones lay."""

    def __init__(self) -> None:
        self.made = self.replayed = 0

    def __call__(
        self, work: Callable[[], Results], device: torch.device, pool: Any = None, stream: Any = None
    ) -> Callable[[], Results]:
        self.made += 1
        kept: list[Results] = []

        def replay() -> Results:
            self.replayed += 1
            told, g = work()
            if not kept:
                kept.append((told, g))
            for there, here in zip([kept[0][0], *kept[0][1]], [told, *g], strict=True):
                there.copy_(here)
            return kept[0]

        return replay


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recordings]:
    fake = Recordings()
    monkeypatch.setattr(recorded, "capture", fake)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield fake


def parts_of(*, dropout: float = 0.3, norm: bool = True, **changes: Any) -> WorkerParts:
    return replace(tiny.Build(BATCHES, dropout, norm)("cpu"), **changes)


def trained_by(world: OneWorker | Simulated) -> dict[str, Tensor]:
    for epoch in (1, 2):
        for _ in world.epoch(epoch, tiny.waiting(BATCHES), Rate(0.2, epoch, len(BATCHES))):
            pass
    return world.snapshot().tensors


@pytest.mark.parametrize("changes", [{}, {"max_norm": 0.1}, {"optimizer": "adamw"}])
def test_worker_with_cuda_graphs_equals_worker_without(changes: dict[str, Any], recordings: Recordings) -> None:
    """To the last bit, dropout and running means included."""
    plain = trained_by(OneWorker(parts_of(**changes)))
    replayed = trained_by(OneWorker(parts_of(cuda_graphs=CudaGraphs(), **changes)))
    assert all(torch.equal(plain[name], replayed[name]) for name in plain)
    assert (recordings.made, recordings.replayed) == (1, 2 * 12 - 3)


@pytest.mark.parametrize("config", [{"sync_every": 1}, {"sync_every": 3, "local_updates": False}])
def test_shards_with_cuda_graphs_equal_shards_without(config: dict[str, Any], recordings: Recordings) -> None:
    times = Times((0.01, 0.01), 0.001)
    plain, replayed = (
        trained_by(Simulated(parts_of(cuda_graphs=cuda_graphs), AsgdConfig(**config), times))
        for cuda_graphs in (None, CudaGraphs())
    )
    assert torch.equal(plain["parameters"], replayed["parameters"])
    assert recordings.replayed > 10


def test_a_gradient_that_is_not_finite_is_seen_in_a_replay(recordings: Recordings) -> None:
    parts = parts_of(cuda_graphs=CudaGraphs())
    for number in range(5):
        assert gradient(parts, 1, number)[0].finite
    with torch.no_grad():
        next(parts.model.parameters()).fill_(math.nan)
    step, _ = gradient(parts, 1, 5)
    assert not step.finite and math.isnan(step.loss) and recordings.replayed == 3


@dataclass(frozen=True)
class Sizes(tiny.Batches):
    """Minibatches of these sizes by turns."""

    sizes: tuple[int, ...] = (16,)

    def draw(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().draw(epoch, number)
        size = self.sizes[number % len(self.sizes)]
        return inputs[:size], targets[:size]


def test_each_shape_has_its_recording(recordings: Recordings) -> None:
    plain, replayed = (
        trained_by(OneWorker(parts_of(source=Sizes(12, sizes=(16, 16, 9)), cuda_graphs=cuda_graphs)))
        for cuda_graphs in (None, CudaGraphs())
    )
    assert torch.equal(plain["parameters"], replayed["parameters"])
    assert (recordings.made, recordings.replayed) == (2, 24 - 2 * 3)


def test_varying_shapes_warn_once_and_are_computed_directly(recordings: Recordings) -> None:
    varying = Sizes(12, sizes=tuple(range(2, 14)))
    plain = trained_by(OneWorker(parts_of(source=varying)))
    cuda_graphs = CudaGraphs()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        replayed = trained_by(OneWorker(parts_of(source=varying, cuda_graphs=cuda_graphs)))
    assert torch.equal(plain["parameters"], replayed["parameters"])
    assert recordings.made == 0 and len(cuda_graphs.seen) == 8
    (warning,) = said
    assert "cuda_graph=true: 8 minibatches were of different kinds" in str(warning.message)


def test_parameters_in_other_memory_are_recorded_again(recordings: Recordings) -> None:
    """A graph reads and writes the memory of its own; a server may hand a worker another buffer."""
    parts = parts_of(dropout=0.0, norm=False, cuda_graphs=CudaGraphs())
    for number in range(4):
        gradient(parts, 1, number)
    for parameter in parts.model.parameters():
        parameter.data = parameter.data.clone() * 2
    found, expected = (gradient(each, 1, 4)[0] for each in (parts, replace(parts, cuda_graphs=None)))
    assert found.read == expected.read and recordings.replayed == 1


def test_what_cannot_be_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(work: Callable[[], Results], *_: Any) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(recorded, "capture", capture)
    parts = parts_of(cuda_graphs=CudaGraphs())
    for number in range(3):
        gradient(parts, 1, number)
    with pytest.raises(SettingError, match=r"cannot be recorded, .*\.item\(\).* not permitted"):
        gradient(parts, 1, 3)


def test_a_model_that_replaces_a_buffer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay runs no Python, so the buffer would keep the value that it had when the graph was recorded."""

    def capture(work: Callable[[], Results], *_: Any) -> Callable[[], Results]:
        return partial(lambda results: results, work())

    class Mean(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 3)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean
            self.mean = self.mean + 0.1 * x.mean(0).detach()
            return super().forward(x - self.mean)

    monkeypatch.setattr(recorded, "capture", capture)
    model = Mean()
    graphs, x = CudaGraphs(), torch.randn(4, 2)

    def passes(inputs: Tensor, targets: Tensor) -> Results:
        return model(inputs).sum(), ()

    for _ in range(3):
        graphs(passes, x, x, (), model.buffers)
    with pytest.raises(
        SettingError, match=r"puts another tensor in the place of a buffer, .* change the buffer in place"
    ):
        graphs(passes, x, x, (), model.buffers)


def test_out_of_memory_during_capture_names_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(work: Callable[[], Results], *_: Any) -> Callable[[], Results]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(recorded, "capture", full)
    parts = parts_of(cuda_graphs=CudaGraphs())
    with pytest.raises(Speech3Error, match=r"cpu has too little memory to record .* training\.minibatch"):
        for number in range(5):
            gradient(parts, 1, number)


def test_described_ignores_only_values_of_tensors() -> None:
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    assert described((x, {"a": x}, [1, "b"])) == described((y, {"a": y}, [1, "b"]))
    for other in (x.double(), x[:1], x.to("meta")):
        assert described(x) != described(other)
    assert described((x, 1)) != described((x, 2))  # such as the place of a chunk
    assert described(Targets(x, 2)) == described(Targets(y, 2)) != described(Targets(y, 3))
    first, second = np.zeros(2), np.zeros(2)
    assert described(first) == described(first) != described(second)
    assert [each is x for each in tensors(({"a": x}, Targets([x], 1), 5))] == [True, True]


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (r"cuda_graph=true: needs a GPU; on cpu", {}),
        (r"cuda_graph=true: works only in worlds sgd, shared and cluster", {"device": "cuda", "world": "ddp"}),
        (r"cuda_graph=true: works only in worlds", {"device": "cuda", "world": "shared", "model_partitions": 2}),
    ],
)
def test_cuda_graph_is_refused_where_it_cannot_be(
    message: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(Speech3Error, match=message):
        check_workers(TrainingConfig.model_validate({**keys, "cuda_graph": True}))
    check_workers(TrainingConfig(cuda_graph=True, device="cuda", world="shared"))


def test_real_graphs(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu == "cpu":
        monkeypatch.setattr(recorded, "capture", Recordings())
    for autocast in (None, torch.bfloat16):
        plain, replayed = (
            replace(
                tiny.Build(Sizes(12, sizes=(16, 16, 9)), dropout=0.3, norm=True)(gpu),
                autocast=autocast,
                cuda_graphs=cuda_graphs,
            )
            for cuda_graphs in (None, CudaGraphs())
        )
        found, expected = (trained_by(OneWorker(parts)) for parts in (replayed, plain))
        torch.testing.assert_close(found["parameters"], expected["parameters"], rtol=1e-4, atol=1e-6)
        assert replayed.cuda_graphs and len(replayed.cuda_graphs.graphs) == 2


class _Waits(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(x.sum() < 1e9)


def test_a_model_that_waits_for_the_gpu(gpu: str) -> None:
    if gpu == "cpu":
        pytest.skip("nobody waits for the CPU")
    parts = replace(tiny.Build(BATCHES)(gpu), model=_Waits(5, 5).to(gpu), cuda_graphs=CudaGraphs())
    with pytest.raises(Speech3Error, match="cannot be recorded"):
        for number in range(5):
            gradient(parts, 1, number)
