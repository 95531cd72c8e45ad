"""PyTorch's data parallelism on a GPU, one process over NCCL: it is plain SGD; and with ternary gradients it learns."""

import math

import pytest
import tiny
import torch

from speech3.config import CodecConfig
from speech3.engine.backends.ddp import Ddp
from speech3.engine.flat import flatten
from speech3.engine.interface import USED
from speech3.engine.optimizers import Sgd

BATCHES = tiny.Batches(60)


@pytest.mark.parametrize("kind", ["none", "ternary"])
def test_one_process(kind: str, gpu: str) -> None:
    model = tiny.model()
    sgd = Sgd(model, momentum=0.5, weight_decay=0.01)
    world = Ddp(
        tiny.Build(BATCHES, weight_decay=0.01), workers=1, device=gpu, momentum=0.5, codec=CodecConfig(kind=kind)
    )
    try:
        world.load({"parameters": sgd.parameters.vector_K.clone()})
        *_, done = world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES))
        snapshot = world.snapshot()
    finally:
        world.close()
    assert (done.used, done.frames) == (len(BATCHES), len(BATCHES) * tiny.FRAMES)
    assert (snapshot.states_M == USED).all() and math.isfinite(done.loss_sum)
    found_K = snapshot.tensors["parameters"]
    if kind == "none":
        for number in range(len(BATCHES)):
            inputs, targets = BATCHES.draw(1, number)
            sgd.step(torch.autograd.grad(tiny.loss(model(inputs), targets)[0], list(model.parameters())), 0.1)
        torch.testing.assert_close(found_K, sgd.parameters.vector_K, rtol=1e-4, atol=1e-5)
    else:
        first, last = (flatten(tiny.model()).vector_K, found_K)
        assert last.isfinite().all() and not torch.equal(first, last)
        assert 0 < done.up < 4 * len(BATCHES) * sgd.parameters.num_parameters  # bytes: fewer than of float32
