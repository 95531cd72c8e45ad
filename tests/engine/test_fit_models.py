"""Models that `fit` must train alike by every strategy: frozen, skipped and counted parts, and buffers of any type."""

import copy
import math
from functools import partial

import moons
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from speech3.engine import fit
from speech3.engine.fitting.arguments import config_of
from speech3.engine.flat import flatten
from speech3.errors import SettingError

DATA = moons.moons(600)
SMALL = {"minibatch": 30, "learning_rate": 0.2, "epochs": 2, "seed": 3}
SIMULATED = [
    ("sgd", False, {}),
    ("asgd", True, {}),
    ("asgd_zhang", True, {"asgd": {"warm_start": 0.5}}),
    ("downpour", True, {"asgd": {"warm_start": 0.5, "partitions": 2}}),
    ("ddp", True, {}),
    ("sandblaster", True, {"lbfgs": {"iterations": 3}}),
]
PROCESSES = [("asgd", False, {}), ("ddp", False, {}), ("sandblaster", False, {"lbfgs": {"iterations": 3}})]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in PROCESSES]
EVERYWHERE = pytest.mark.parametrize(("strategy", "simulate", "options"), [*SIMULATED, *SLOW])


class Unusual(nn.Module):
    """Skips a layer in some minibatches and another in all of the first, and has buffers of many types."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.into, self.out = nn.Linear(2, 16), nn.Linear(16, 2)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.frozen, self.norm = nn.BatchNorm1d(16).requires_grad_(False), nn.BatchNorm1d(16)
        self.register_buffer("passes", torch.tensor(2**40))
        self.register_buffer("mean", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.average = nn.Parameter(torch.zeros(3, dtype=torch.float16), requires_grad=False)
        self.wide = nn.Parameter(torch.full((2,), 1e-300, dtype=torch.float64), requires_grad=False)
        self.train()
        self.frozen.eval()

    def forward(self, points):
        if self.training:
            self.passes += 1
            self.mean.lerp_(points.double().mean(0), 0.1)
            self.replaced = 0.9 * self.replaced + 0.1 * points.detach().mean(0)
            self.seen[int(self.passes) % 3] = True
            with torch.no_grad():
                self.average += 0.25
                self.wide.mul_(2)
        hidden = self.norm(self.frozen(self.into(points)).tanh())
        for layer in self.layers:
            if torch.rand(()) < 0.5:
                hidden = hidden + layer(hidden).tanh()
        return self.out(hidden)


@EVERYWHERE
def test_every_strategy_trains_unusual_models(strategy, simulate, options):
    model, before = Unusual(), Unusual()
    result = fit(
        model,
        DATA,
        nn.CrossEntropyLoss(),
        strategy=strategy,
        simulate=simulate,
        workers=None if strategy == "sgd" else 2,
        options=options,
        **SMALL,
    )
    assert result.dropped == 0
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before.state_dict()[name])}
    still = {"mask", "frozen.weight", "frozen.bias", "frozen.running_mean", "frozen.running_var"}
    still |= {"frozen.num_batches_tracked"}
    assert moved == set(before.state_dict()) - still
    passes = int(model.passes) - 2**40
    assert passes == int(model.norm.num_batches_tracked) == int(model.average[0] * 4)
    assert 0 < passes <= 40 or strategy == "sandblaster"
    assert passes == 40 or strategy != "sgd"
    assert torch.equal(model.wide, torch.full((2,), 1e-300 * 2.0**passes, dtype=torch.float64))
    assert model.seen.all() and model.mask.tolist() == [0.0, -torch.inf]
    assert model.training and not model.frozen.training


def test_a_model_that_was_wholly_in_evaluation_mode_is_trained():
    models = [moons.network(), moons.network().eval()]
    for model in models:
        fit(model, DATA, nn.CrossEntropyLoss(), strategy="asgd", workers=2, simulate=True, **SMALL)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))
    assert models[0].training and not models[1].training


class Bad(Unusual):
    """Its float64 buffer becomes NaN in one minibatch."""

    def forward(self, points):
        outputs = super().forward(points)
        if self.training and int(self.passes) == 2**40 + 7:
            self.mean *= torch.nan
        return outputs


def test_a_refused_push_restores_buffers_of_any_type():
    model = Bad()
    result = fit(
        model, DATA, nn.CrossEntropyLoss(), strategy="asgd", workers=1, simulate=True, **{**SMALL, "epochs": 1}
    )
    # Computed again from the last state that was published, the seventh is never passed.
    assert result.history[0].used == 6 and result.history[0].refused == 14
    assert int(model.passes) - 2**40 == 6 and model.mean.isfinite().all()


def test_codes_are_exact_and_finite():
    model = Unusual()
    for dtype in (torch.complex64, torch.bfloat16, torch.uint8, torch.int16):
        model.register_buffer(f"of_{dtype}".replace(".", "_"), (100 * torch.rand(3)).to(dtype))
    before = copy.deepcopy(model.state_dict())
    own = flatten(model)
    values_K = own.vector_K.clone()
    assert values_K.isfinite().all()
    for tensor in (*model.buffers(), model.average, model.wide):
        tensor.zero_()
    model.replaced = model.replaced + 3
    own.load(values_K)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))


class WithWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs * self.weight, targets)


class Holds:
    def __init__(self, loss):
        self.loss = loss

    def __call__(self, outputs, targets):
        return self.loss(outputs, targets)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda loss: loss,
        Holds,
        lambda loss: partial(loss.forward),
        lambda loss: loss.forward,
        lambda loss: lambda outputs, targets: loss(outputs, targets),
    ],
)
def test_a_loss_with_parameters_is_refused_by_their_names(wrapped):
    with pytest.raises(SettingError, match=r"^loss: WithWeight\.weight would not be"):
        fit(moons.network(), DATA, wrapped(WithWeight()), strategy="sgd", **SMALL)
    frozen = WithWeight().requires_grad_(False)
    fit(moons.network(), DATA, wrapped(frozen), strategy="sgd", **{**SMALL, "epochs": 1})


class Aside(nn.Linear):
    """Has a layer that it does not use."""

    def __init__(self):
        super().__init__(2, 2)
        self.aside = nn.Linear(3, 3)


def test_parameters_that_are_never_used_are_named():
    with pytest.warns(RuntimeWarning, match=r"in 20 minibatches.* aside.bias, aside.weight; freeze"):
        fit(Aside(), DATA, nn.CrossEntropyLoss(), strategy="sgd", **SMALL)


def test_five_workers_with_full_pushes_learn_without_batch_normalisation():
    """The preset's warmup and clipped gradients go along; without them the workers' steps add up to too large ones."""
    found = []
    for gradient_clip in (None, math.inf):
        generator = torch.Generator().manual_seed(1)
        classes = torch.randint(0, 40, (4000,), generator=generator)
        centers, noise = torch.randn(40, 60, generator=generator), torch.randn(4000, 60, generator=generator)
        data = TensorDataset((centers[classes] + noise).repeat(1, 8), classes)
        torch.manual_seed(1)
        hidden = [layer for _ in range(2) for layer in (nn.Linear(128, 128), nn.ReLU())]
        model = nn.Sequential(nn.Linear(480, 128), nn.ReLU(), *hidden, nn.Linear(128, 40))
        result = fit(
            model,
            data,
            nn.CrossEntropyLoss(),
            strategy="asgd",
            workers=5,
            simulate=True,
            minibatch=64,
            epochs=2,
            learning_rate=0.4,
            gradient_clip=gradient_clip,
        )
        found.append(result.history[-1].accuracy)
    assert found[0] > 0.6 > 2 * found[1]
    training = config_of("asgd", {}, simulate=True, own=False, workers=2, max_epochs=2, minibatch=30)
    assert (training.warmup, training.gradient_clip, training.asgd.push_scale) == (0.25, 1.0, 1.0)
