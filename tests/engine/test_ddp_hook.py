"""The ternary communication hook, two processes over gloo: the mean of two codings whose scale is the larger.

Axes: P parameters.
"""

from dataclasses import dataclass, replace

import pytest
import tiny
import torch

from speech3.config import CodecConfig
from speech3.engine.backends.ddp import Ddp
from speech3.engine.codecs import add, as_floats, key_of, layout, pack, statistics
from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.interface import USED, Rate, WorkerParts
from speech3.errors import Speech3Error

BATCHES = tiny.Batches(41)
STEPS = 21
TERNARY = CodecConfig(kind="ternary", float_below=6)


def expected(config, batches, parameters, epochs, workers=2, lr=0.2):
    """Parameters after plain steps on the mean of all workers' codings, each coded and decoded on its own."""
    parts = WorkerParts(tiny.model(), batches, tiny.loss, seed=1)
    own = flatten(parts.model)
    own.vector_K.copy_(parameters)
    floats = as_floats(own.views, below=config.float_below, last=config.float_last)
    where = layout(own.views, bucket=config.bucket, floats=floats)
    levels = set()
    for epoch in epochs:
        for first in range(0, len(batches), workers):
            group = range(first, min(first + workers, len(batches)))
            pushes = []
            for number in group:
                push = own.zeros_like()
                for view, g in zip(push.views, gradient(parts, epoch, number)[1], strict=True):
                    view.copy_(g * (workers / len(group)))
                pushes.append(push.vector_K)
            pushes += [torch.zeros_like(pushes[0])] * (workers - len(group))
            found = [torch.empty(2, len(where.sizes_B)) for _ in pushes]
            for push, (limits, scales) in zip(pushes, found, strict=True):
                statistics(push, where, config.clip, limits, scales)
            shared = torch.stack([scales for _, scales in found]).amax(0)
            mean = torch.zeros_like(pushes[0])
            for rank, (push, (limits, _)) in enumerate(zip(pushes, found, strict=True)):
                words = torch.zeros(where.words, dtype=torch.int32)
                pack(push, where, limits, shared, key_of(1, epoch, first, rank), words)
                add(words, where, shared, 1 / workers, mean)
                for each in where.floats:
                    mean[each] += push[each] / workers
            start, size = int(where.starts_B[0]), int(where.sizes_B[0])
            levels |= {round(float(2 * v)) for v in mean[start : start + size] / shared[0]}
            own.parameters_P.sub_(lr * mean)
    return own.vector_K, levels


def train(world, batches, parameters, epochs):
    world.load({"parameters": parameters})
    for epoch in epochs:
        done = list(world.epoch(epoch, tiny.waiting(batches), Rate(0.2, epoch, len(batches))))[-1]
        world.load(world.snapshot().tensors)
    return world.snapshot().tensors["parameters"], done


@pytest.fixture(scope="module")
def world():
    """Worlds by config, started once."""
    worlds = {}

    def start(config, build=None):
        if (config, build) not in worlds:
            worlds[config, build] = Ddp(build or tiny.Build(BATCHES), workers=2, device="cpu", codec=config)
        return worlds[config, build]

    yield start
    for each in worlds.values():
        each.close()


@pytest.mark.slow
def test_two_processes_step_by_the_mean_of_their_codings_and_learn(world, capfd):
    """DDP rebuilds its buckets after the first step, and a run that goes on begins with the first ones again."""
    start = flatten(tiny.model()).vector_K.clone()
    found, done = train(world(TERNARY), BATCHES, start, (1, 2, 3))
    reference, levels = expected(TERNARY, BATCHES, start, (1, 2, 3))
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-6)
    assert levels == {-2, -1, 0, 1, 2}
    assert done.used == len(BATCHES) and done.frames == len(BATCHES) * tiny.FRAMES
    # 3 + 3 + 1 words of codes, so two shares of 4, of which the sums are 64 digits, 13 in a word; 3 scales, 5 float32s.
    assert (done.up, done.down) == (STEPS * 2 * 4 * (8 + 3 + 5), STEPS * 2 * 4 * (2 * 5 + 3 + 5))
    _, plain = train(world(CodecConfig()), BATCHES, start, (1, 2, 3))
    assert plain.up == plain.down == STEPS * 2 * 4 * (35 + 7 + 35 + 5)
    assert done.correct > 0.9 * plain.correct > 0.4 * plain.frames
    middle, _ = train(world(TERNARY), BATCHES, start, (1,))
    again, _ = train(
        world(TERNARY.model_copy(update={"float_below": 7})), BATCHES, middle, (2, 3)
    )  # of the same tensors
    assert torch.equal(again, found)
    assert "Warning" not in capfd.readouterr().err  # of either process


def test_buckets_and_the_softmax_layer_as_float32(world):
    config, start = CodecConfig(kind="ternary", bucket=3, float_last=True), flatten(tiny.model()).vector_K.clone()
    found, _ = train(world(config), BATCHES, start, (1,))
    torch.testing.assert_close(found, expected(config, BATCHES, start, (1,))[0], rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class _Broken(tiny.Build):
    """The gradient of minibatch 5 has a NaN, its loss has not."""

    def __call__(self, device="cpu"):
        parts = super().__call__(device)
        weight = next(parts.model.parameters())

        def loss(outputs, targets):
            value, right = tiny.loss(outputs, targets)
            bad = torch.equal(targets, parts.source.draw(1, 5)[1])
            return value + (0 * weight[0, 0]).abs().sqrt() if bad else value, right

        return replace(parts, loss=loss)


def test_a_gradient_that_is_not_finite_is_not_coded_into_numbers(world):
    broken = world(TERNARY, _Broken(BATCHES))
    broken.load({"parameters": flatten(tiny.model()).vector_K.clone()})
    with pytest.raises(Speech3Error, match=r"minibatch [45]: the gradient is not finite .* too high"):
        list(broken.epoch(1, tiny.waiting(BATCHES), Rate(0.2, 1, len(BATCHES))))


def test_a_part_of_an_epoch(world):
    states = tiny.waiting(BATCHES)
    states[:4] = USED
    world(TERNARY).load({"parameters": flatten(tiny.model()).vector_K.clone()})
    done = list(world(TERNARY).epoch(1, states, Rate(0.2, 1, len(BATCHES))))[-1]
    snapshot = world(TERNARY).snapshot()
    assert done.used == len(BATCHES) - 4 and (snapshot.states_M == USED).all()
    assert snapshot.tensors["parameters"].isfinite().all()
