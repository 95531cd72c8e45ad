"""Ternary gradients with momentum and AdamW: the expected path is that of float32; a convex loss falls as far.

The gradient of a quadratic loss is linear in the parameters, as are the server's step and momentum. So an unbiased code
(no clipping) leaves the expectation of the parameters where float32 puts them, minibatch by minibatch,
stale or not. Each row of the model is a bucket with a code of its own, so the rows are independent samples of one path.

Axes: R rows, P parameters of a row.
"""

import math
from dataclasses import dataclass, replace

import convex
import numpy as np
import pytest
import tiny
import torch
from torch import nn

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.one_process import Simulated, Synchronous, Times
from speech3.engine.flat import flatten
from speech3.engine.interface import WorkerParts

ROWS, VALUES, STEPS, RATE, MOMENTUM = 400, 16, 60, 0.05, 0.8
CURVATURE_P = torch.linspace(0.2, 2, VALUES)
UNCLIPPED = CodecConfig(kind="ternary", bucket=VALUES, clip=1e6)


@dataclass(frozen=True)
class Centres:
    """Each minibatch is a quadratic with another minimum."""

    rows: tuple[range, ...] | None = None

    def __len__(self) -> int:
        return STEPS

    def draw(self, epoch: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = np.random.default_rng(number)
        return torch.zeros(1), torch.from_numpy(1 + 0.5 * random.standard_normal(VALUES)).float()


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x_RP = nn.Parameter(torch.zeros(ROWS, VALUES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.x_RP


def quadratic(x_RP, centre_P):
    return 0.5 * (CURVATURE_P * (x_RP - centre_P).square()).sum(), torch.tensor(0)


def trained(kind, workers, codec):
    """The parameters after an epoch, with one momentum for all workers."""
    parts, times = WorkerParts(Rows(), Centres(), quadratic, seed=1), Times((1.0,) * workers, 0.1, jitter=0.2)
    if kind == "synchronous":
        backend = Synchronous(parts, times, momentum=MOMENTUM, codec=codec)
    else:
        config = AsgdConfig(sync_every=1, push_scale=1.0, momentum=MOMENTUM, max_push=math.inf)
        backend = Simulated(parts, config, times, codec=codec)
        backend.load({"parameters": flatten(Rows()).vector_K})
    list(backend.epoch(1, np.zeros(STEPS, np.int32), tiny.rate(RATE, 1, Centres())))
    return backend.snapshot().tensors["parameters"][: ROWS * VALUES].view(ROWS, VALUES).double()


def literal(workers):
    """Synchronous SGD with momentum in float64."""
    x_P, v_P = np.zeros(VALUES), np.zeros(VALUES)
    centres = [Centres().draw(1, number)[1].double().numpy() for number in range(STEPS)]
    for first in range(0, STEPS, workers):
        v_P = MOMENTUM * v_P + RATE * CURVATURE_P.double().numpy() * (
            x_P - np.mean(centres[first : first + workers], 0)
        )
        x_P = x_P - v_P
    return torch.from_numpy(x_P)


@pytest.mark.parametrize(("kind", "workers"), [("synchronous", 1), ("synchronous", 3), ("asgd", 1), ("asgd", 3)])
def test_expected_path_is_that_of_float32(kind, workers):
    float_RP, ternary_RP = (trained(kind, workers, codec) for codec in (CodecConfig(), UNCLIPPED))
    if kind == "synchronous" or workers == 1:
        torch.testing.assert_close(float_RP[0], literal(workers), atol=1e-5, rtol=0)
    coded = kind == "asgd" or workers > 1  # one worker alone sends nothing
    error_P = ternary_RP.std(0) / ROWS**0.5
    assert bool((error_P > 1e-4).all()) == coded
    assert bool(((ternary_RP.mean(0) - float_RP[0]).abs() <= 5 * error_P + 1e-5).all())


def test_clipping_moves_the_expected_path():
    """So the test above is able to fail: values are clipped at half a standard deviation here."""
    float_RP, ternary_RP = (trained("asgd", 1, c) for c in (CodecConfig(), UNCLIPPED.model_copy(update={"clip": 0.5})))
    error_P = ternary_RP.std(0) / ROWS**0.5
    assert bool(((ternary_RP.mean(0) - float_RP[0]).abs() > 5 * error_P).any())


@pytest.mark.parametrize("kind", ["synchronous", "asgd"])
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adamw", 0.2)])
def test_convex_loss_falls_as_far(kind, optimizer, rate):
    """Softmax regression, a rate that falls to 2 % in eight epochs; the excess is over the minimum by L-BFGS."""
    source, epochs, workers = convex.Source(), 8, 3
    least = convex.least(len(source))
    begin, excess = convex.objective(convex.model(), len(source)).item() - least, {}
    for codec in (CodecConfig(), CodecConfig(kind="ternary")):
        parts = replace(convex.Build()(), optimizer=optimizer)
        times, momentum = Times((1.0,) * workers, 0.1, jitter=0.2), MOMENTUM if optimizer == "sgd" else 0.0
        if kind == "synchronous":
            backend = Synchronous(parts, times, momentum=momentum, codec=codec)
        else:
            backend = Simulated(
                parts, AsgdConfig(sync_every=1, momentum=momentum, max_push=math.inf), times, codec=codec
            )
            backend.load({"parameters": flatten(convex.Build()().model).vector_K})
        for epoch in range(1, epochs + 1):
            base = rate * 0.02 ** ((epoch - 1) / (epochs - 1))
            list(backend.epoch(epoch, np.zeros(len(source), np.int32), tiny.rate(base, epoch, source)))
        judge = convex.Build()().model
        flatten(judge).load(backend.snapshot().tensors["parameters"])
        excess[codec.kind] = convex.objective(judge[0], len(source)).item() - least
    assert excess["none"] < 0.05 * begin
    assert excess["ternary"] < excess["none"] + 0.1 * begin
