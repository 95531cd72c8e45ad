"""What a shard wants, one thing after another; what is in its push; and minibatches whose loss is not finite."""

from dataclasses import dataclass

import pytest
import tiny
import torch

from speech3.config import AsgdConfig
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.interface import REFUSED, USED, WorkerParts
from speech3.engine.shard import Compute, Draw, Shard, Sync

RATE = tiny.rate(0.1, 1, tiny.Batches())


def _wants(shard, told):
    """The wants of a shard that draws 0, 1, 2, ... (None at the end) and whose syncs come out as `told`."""
    loop, answer, wants, numbers, told = shard.run(), None, [], iter(range(12)), iter(told)
    try:
        while True:
            request = loop.send(answer)
            match request:
                case Draw(_):
                    answer = next(numbers, None)
                    continue
                case Compute(number):
                    wants.append(number)
                    shard.compute(1, number, RATE)
                case Sync(_, wait):
                    wants.append("wait" if wait else "try")
                    answer = next(told, True)
                    if answer:
                        shard.pushes[0].numbers, shard.pushes[0].distance = [], 0
    except StopIteration:
        return wants


def test_a_shard_syncs_if_the_server_is_free_and_waits_when_it_has_gone_far():
    shard = Shard(tiny.Build()(), AsgdConfig(sync_every=2, max_distance=4))
    wants = _wants(shard, [True, False, False, True, True, False])
    assert wants == [
        "wait", 0, 1, "try", 2, "try", 3, "wait", 4, 5, "try", 6, 7, "try", 8, "try", 9, 10, "try", 11, "wait"
    ]  # fmt: skip


def test_shard_waits_for_server_at_max_relative_distance():
    for limit, wanted in ((1e-9, "wait"), (1e9, "try")):
        shard = Shard(tiny.Build()(), AsgdConfig(sync_every=3, max_relative_distance=limit))
        assert _wants(shard, []) == ["wait", 0, 1, 2, wanted, 3, 4, 5, wanted, 6, 7, 8, wanted, 9, 10, 11, wanted]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_a_push_is_the_sum_of_gradients_or_of_local_steps(weight_decay):
    local = Shard(tiny.Build(weight_decay=weight_decay)(), AsgdConfig())
    added = Shard(tiny.Build(weight_decay=weight_decay)(), AsgdConfig(local_updates=False))
    start_P = added.sgd.parameters.parameters_P.clone()
    for number in (4, 7):
        for shard in (local, added):
            assert shard.compute(1, number, RATE).frames == 16
    assert local.pushes[0].numbers == added.pushes[0].numbers == [4, 7]
    assert torch.equal(added.pushes[0].own.parameters_P, start_P)
    model, stock = tiny.model(), tiny.model()
    optimizer = torch.optim.SGD(stock.parameters(), lr=0.1, weight_decay=weight_decay)
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for number in (4, 7):
        inputs, targets = tiny.Batches().draw(1, number)
        gradients = torch.autograd.grad(tiny.loss(model(inputs), targets)[0], list(model.parameters()))
        sums = [s + 0.1 * (g + weight_decay * p) for s, g, p in zip(sums, gradients, model.parameters(), strict=True)]
        optimizer.zero_grad()
        tiny.loss(stock(inputs), targets)[0].backward()
        optimizer.step()
    for view, wanted in zip(added.accumulated.views, sums, strict=True):
        torch.testing.assert_close(view, wanted, rtol=1e-5, atol=1e-7)
    for view, wanted in zip(local.sgd.parameters.views, stock.parameters(), strict=True):
        torch.testing.assert_close(view, wanted, rtol=1e-5, atol=1e-7)
    assert torch.equal(local.pushes[0].fetched_P, start_P)
    for shard in (local, added):
        push = shard.pushes[0]
        assert (push.numbers, push.distance, push.finite) == ([4, 7], 2, True)


@dataclass(frozen=True)
class _Poisoned(tiny.Batches):
    def draw(self, epoch, number):
        inputs, targets = super().draw(epoch, number)
        return inputs * (float("nan") if number == 6 else 1.0), targets


@pytest.mark.parametrize("local", [True, False])
def test_a_loss_that_is_not_finite_is_refused_and_training_continues(local):
    """Its statistics, which the bad inputs have reached, are refused with it."""
    batches = _Poisoned()
    parts = tiny.Build(batches, norm=True)()
    config = AsgdConfig(sync_every=2, local_updates=local)
    world = Simulated(WorkerParts(parts.model, batches, parts.loss, 1), config, Times((1.0, 1.0), 0.125))
    world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    done = list(world.epoch(1, tiny.waiting(batches), RATE))[-1]
    states_M = world.snapshot().states_M
    assert states_M[6] == REFUSED and done.refused == (states_M == REFUSED).sum() <= config.sync_every
    assert done.used == (states_M == USED).sum() == 12 - done.refused
    assert done.frames == done.used * tiny.FRAMES
    assert world.snapshot().tensors["parameters"].isfinite().all()
    assert all(shard.sgd.parameters.vector_K.isfinite().all() for shard in world.shards)


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ({"push_scale": 1.0}, 0.2),
        ({"push_scale": 0.4, "momentum": 0.5}, 0.25),
        ({"push_scale": "1/workers"}, 1.0),
        ({"push_scale": "1/accumulated", "sync_every": 2}, 0.4),
        ({"push_scale": 0.1}, 1.0),
    ],
)
def test_constraint_steps_of_all_workers_add_up_to_one(keys, share):
    parts = tiny.Build()()
    parts.model.constraint_share = 1.0
    Shard(parts, AsgdConfig(**keys), workers=5)
    assert parts.model.constraint_share == pytest.approx(share)
