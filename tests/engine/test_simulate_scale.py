"""Synchronous workers on the virtual clock: ternary gradients as DDP's hook codes them, TernGrad's exchange."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from speech3.config import CodecConfig
from speech3.engine.backends.ddp import Ddp
from speech3.engine.backends.one_process import Synchronous, Times
from speech3.engine.flat import flatten
from speech3.engine.interface import Rate

BATCHES = tiny.Batches(41)
TERNARY = CodecConfig(kind="ternary", float_below=6)
NETWORK = Times((1.0,) * 4, 0.25, bandwidth=1e3, latency_s=0.01)


def _train(world, batches=BATCHES, epochs=(1,)):
    world.load({"parameters": flatten(tiny.model()).vector_K.clone()})
    for epoch in epochs:
        done = list(world.epoch(epoch, tiny.waiting(batches), Rate(0.2, epoch, len(batches))))[-1]
        world.load(world.snapshot().tensors)
    return world.snapshot().tensors["parameters"], done


def _simulated(workers, codec=None, batches=BATCHES, times=NETWORK):
    return Synchronous(tiny.Build(batches)(), replace(times, compute_s=(1.0,) * workers), codec=codec)


def test_ternary_gradients_are_those_of_ddp():
    codec = CodecConfig(kind="ternary", bucket=3, float_last=True)
    ddp = Ddp(tiny.Build(BATCHES), workers=2, device="cpu", codec=codec)
    try:
        theirs, done = _train(ddp, epochs=(1, 2))
    finally:
        ddp.close()
    ours, simulated = _train(_simulated(2, codec), epochs=(1, 2))
    assert torch.equal(ours, theirs)
    assert (simulated.up, simulated.down) == (done.up, done.down)
    assert (simulated.used, simulated.frames, simulated.correct) == (done.used, done.frames, done.correct)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_exchange_takes_as_long_as_terngrads_model_says(workers):
    parameters = 5 * 7 + 7 + 7 * 5 + 5
    _, done = _train(_simulated(workers))
    steps, depth = math.ceil(41 / workers), math.log2(workers)
    size = 4 * parameters
    assert done.up == done.down == steps * workers * size
    assert done.seconds == pytest.approx(steps * (1.25 + 2 * depth * (size / 1e3 + 0.01)))


def test_what_is_charged_is_what_is_sent():
    _, plain = _train(_simulated(4))
    _, coded = _train(_simulated(4, TERNARY))
    steps = math.ceil(41 / 4)
    assert coded.up < coded.down < plain.up / 3  # two bits up, nine levels down
    assert plain.seconds - coded.seconds == pytest.approx(2 * (plain.up + plain.down - coded.up - coded.down) / 4 / 1e3)
    assert coded.seconds > steps * 1.25


def test_one_worker_sends_nothing():
    _, done = _train(_simulated(1, TERNARY))
    assert (done.up, done.down, done.seconds) == (0, 0, 41.0)


def test_a_model_whose_tensors_are_all_too_small_to_be_coded_is_trained_as_without_codes():
    plain, sent = _train(_simulated(4))
    small, done = _train(_simulated(4, CodecConfig(kind="ternary", float_below=8192)))
    torch.testing.assert_close(small, plain)
    assert (done.up, done.down, done.seconds) == (sent.up, sent.down, sent.seconds)
