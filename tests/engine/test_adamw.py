"""AdamW against PyTorch's, in one worker, in a shard, and across a checkpoint."""

import copy
from dataclasses import replace

import numpy as np
import tiny
import torch

from speech3.config import AsgdConfig
from speech3.engine.backends.one_process import OneWorker, Simulated, Times
from speech3.engine.interface import USED, Rate
from speech3.engine.optimizers import AdamW

BETAS = (0.8, 0.95)
PARTS = replace(tiny.Build()(), optimizer="adamw", betas=BETAS)


def _parts():
    return replace(PARTS, model=copy.deepcopy(PARTS.model))


def _train(world, numbers=range(12), rate=0.01, epoch=1):
    states_M = np.full(12, USED, np.int32)
    states_M[list(numbers)] = 0
    return list(world.epoch(epoch, states_M, Rate(rate, epoch, 12)))


def test_steps_are_those_of_pytorch():
    model = tiny.model()
    stock = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(stock.parameters(), lr=0.01, betas=BETAS, weight_decay=0.1)
    own = AdamW(model, BETAS, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        g = [torch.randn(p.shape, generator=generator) for p in stock.parameters()]
        for parameter, each in zip(stock.parameters(), g, strict=True):
            parameter.grad = each
        optimizer.param_groups[0]["lr"] = rate = 0.01 / (1 + step)
        optimizer.step()
        own.step(g, rate)
    for mine, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_worker_resumes_from_its_state():
    whole, first, second = (OneWorker(replace(_parts(), weight_decay=0.1)) for _ in range(3))
    _train(whole)
    _train(first, range(5))
    second.load(first.snapshot().tensors)
    _train(second, range(5, 12))
    assert torch.equal(whole.sgd.parameters.vector_K, second.sgd.parameters.vector_K)
    assert second.sgd.steps == 12


def test_one_simulated_shard_that_pushes_everything_is_one_worker():
    alone = OneWorker(_parts())
    start = alone.snapshot().tensors
    config = AsgdConfig(local_updates=True, push_scale=1.0, warm_start=0.0, momentum=0.0)
    shard = Simulated(_parts(), config, Times((1.0,), 0.0))
    shard.load(start)
    _train(alone)
    _train(shard)
    found, expected = shard.snapshot().tensors["parameters"], alone.snapshot().tensors["parameters"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
