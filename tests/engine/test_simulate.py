"""The simulator: bit-deterministic, golden trajectories, schedules done by hand, and what it says of stragglers.

`python tests/engine/test_simulate.py` writes `golden/` again.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from speech3.config import AsgdConfig
from speech3.engine.backends.one_process import OneWorker, Simulated, Synchronous, Times, measure
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, Progress, Rate, WorkerParts
from speech3.engine.server import Partition
from speech3.errors import Speech3Error

GOLDEN = Path(__file__).parent / "golden"
CONFIGS = {
    "local": AsgdConfig(sync_every=2, max_distance=4),
    "accumulated": AsgdConfig(sync_every=2, local_updates=False, push_scale="1/accumulated"),
    "momentum": AsgdConfig(sync_every=1, momentum=0.5, projection=True),
    "adagrad": AsgdConfig(sync_every=1, local_updates=False, adagrad=0.03),
    "max_staleness": AsgdConfig(sync_every=1, max_staleness=2, decay=0.8, push_scale=0.5),
}
THREE = Times((1.0, 1.25, 2.0), 0.125)
TWELVE = tiny.Batches()


def _world(config, times=THREE, **build):
    world = Simulated(tiny.Build(**build)(), config, times)
    world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    return world


def _train(world, epochs=2, batches=TWELVE, base=0.3):
    done = Progress()
    for epoch in range(1, epochs + 1):
        world.load(world.snapshot().tensors, done.seconds)
        done += list(world.epoch(epoch, tiny.waiting(batches), tiny.rate(base, epoch, batches)))[-1]
    return done


def _trajectory(name):
    world = _world(CONFIGS[name], norm=name == "local")
    done = _train(world)
    parameters = world.snapshot().tensors["parameters"]
    return {
        "version": world.server.version,
        "seconds": round(done.seconds, 6),
        "used": done.used,
        "stale": done.stale,
        "staleness": list(done.staleness),
        "loss_sum": round(done.loss_sum, 4),
        "parameters": [round(value, 6) for value in parameters.tolist()],
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_golden_trajectories(name):
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    got = _trajectory(name)
    np.testing.assert_allclose(got.pop("parameters"), golden.pop("parameters"), rtol=1e-4, atol=1e-5)
    assert got.pop("loss_sum") == pytest.approx(golden.pop("loss_sum"), rel=1e-4)
    assert got == golden
    assert golden["used"] + golden["stale"] == 24 and len(golden["staleness"]) > 1


@pytest.mark.parametrize("name", ["local", "adagrad"])
def test_a_result_is_the_same_to_the_last_bit(name):
    times = Times((1.0, 1.5, 10.0), 0.1, jitter=0.2, failures=((1, 4.0), (2, 5.0), (1, 20.0)), restart_s=2.0)
    results = []
    for _ in range(2):
        world = _world(CONFIGS[name], times, dropout=0.3, norm=True)
        results.append((_train(world), world.snapshot().tensors["parameters"]))
    assert results[0][0] == results[1][0] and results[0][0].restarts == 3
    assert torch.equal(results[0][1], results[1][1])
    other = _world(CONFIGS[name], Times((1.0, 1.5, 10.0), 0.2, jitter=0.2), dropout=0.3, norm=True)
    assert _train(other) != results[0][0]
    assert not torch.equal(other.snapshot().tensors["parameters"], results[0][1])


def test_a_sync_that_waits_counts_as_busy_once():
    """Four equal workers that may not continue: each waits for its turn, however many go before it."""
    batches = tiny.Batches(4)
    world = Simulated(tiny.Build(batches)(), AsgdConfig(sync_every=1, max_distance=1), Times((1.0,) * 4, 1.0))
    world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    done = _train(world, 1, batches, 0.1)
    # The first two compute everything before the others have fetched, each of which waits once for five seconds.
    assert [(shard.busy, shard.wait_s) for shard in done.shards] == [(0, 0.0), (1, 1.0), (1, 5.0), (1, 5.0)]


def test_schedule_equals_one_computed_by_hand():
    """Workers A (1 s) and B (2 s), a sync of 1/4 s, four minibatches, against plain numpy in float64.

    A fetches at 0, B waits and fetches at 1/4. A has 0 from 1/4 to 5/4, B has 1 from 1/2 to 5/2. A publishes 1 at 5/4
    and has 2 from 3/2 to 5/2; B, whose minibatch was begun before, publishes 2 at 5/2; A finds it busy and has 3 until
    7/2, when it publishes 3 with two minibatches. B fetched version 0 (staleness 1), A version 1 (staleness 1).
    """
    batches, rate = tiny.Batches(4), 0.25
    torch.manual_seed(3)
    parts = WorkerParts(nn.Linear(5, 5, bias=False), batches, tiny.loss, 1)
    start = parts.model.weight.detach().numpy().astype(np.float64)
    config = AsgdConfig(sync_every=1, momentum=0.5, decay=0.75, push_scale="1/workers")
    world = Simulated(parts, config, Times((1.0, 2.0), 0.25))
    world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
    done = _train(world, 1, batches, rate)

    def stepped(weight, number):
        inputs, targets = (tensor.numpy() for tensor in batches.draw(1, number))
        outputs = inputs.astype(np.float64) @ weight.T
        shares = np.exp(outputs - outputs.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(len(targets)), targets] -= 1
        return weight - rate * shares.T @ inputs / len(targets)

    p, v = start, 0.0
    a = stepped(p, 0)
    b_fetched, b = p, stepped(p, 1)
    v = 0.5 * v + 0.5 * (p - a)
    p = p - v
    a_fetched, a = p, stepped(p, 2)
    v = 0.5 * v + 0.5 * 0.75 * (b_fetched - b)
    p = p - v
    a = stepped(a, 3)
    v = 0.5 * v + 0.5 * 0.75 * (a_fetched - a)
    p = p - v
    ours = world.snapshot().tensors["parameters"][:25].reshape(5, 5)
    np.testing.assert_allclose(ours, p, rtol=0, atol=1e-6)
    assert (done.versions, done.staleness, done.used, done.seconds) == (3, (1, 3), 4, 3.5)
    first, second = done.shards
    assert (first.minibatches, first.compute_s, first.sync_s, first.wait_s, first.busy) == (3, 3.0, 0.75, 0.0, 1)
    assert (second.minibatches, second.compute_s, second.sync_s, second.wait_s, second.busy) == (1, 2, 0.5, 0.25, 1)


@pytest.mark.parametrize("local", [True, False])
def test_one_worker_is_plain_sgd(local):
    config = AsgdConfig(sync_every=1, push_scale=1.0, local_updates=local)
    world, one = _world(config, Times((1.0,), 0.25), norm=True), OneWorker(tiny.Build(norm=True)())
    done, plain = _train(world), _train(one)
    ours, theirs = (each.snapshot().tensors["parameters"] for each in (world, one))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (done.used, done.frames) == (plain.used, plain.frames) == (24, 24 * 16)
    assert done.correct == plain.correct
    assert done.loss_sum == pytest.approx(plain.loss_sum, rel=1e-5)
    assert done.seconds == 2 * 12 * 1.25  # a fetch before the first; the last sync is where the epoch ends
    assert done.staleness == (24,)


def test_the_others_keep_their_rate_beside_a_straggler():
    batches, config = tiny.Batches(300), AsgdConfig(sync_every=1)
    rates = []
    for slowest in (1.0, 10.0):
        world = Simulated(tiny.Build(batches)(), config, Times((1.0, 1.0, 1.0, slowest), 0.02, jitter=0.05))
        world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
        done = _train(world, 1, batches)
        fast = done.shards[:3]
        rates.append(sum(s.minibatches for s in fast) / sum(s.compute_s + s.sync_s + s.wait_s for s in fast))
        assert done.used == 300
    assert rates[1] >= 0.98 * rates[0]
    assert done.shards[3].minibatches * 9 < fast[0].minibatches
    assert done.seconds < 300 / 3 * 1.15
    assert len(done.staleness) > 20  # the straggler's pushes


def test_a_dead_workers_minibatches_are_computed_by_others():
    times = Times((1.0, 1.0), 0.125, failures=((1, 3.0), (0, 4.0)), restart_s=100.0)
    world = _world(AsgdConfig(sync_every=3, push_scale=1.0), times)
    done = _train(world, 1)
    # At 3 worker 1 has three out; at 4 worker 0 its fourth, the first three are published. Nobody is left until 103.
    assert (done.used, done.restarts) == (12, 2)
    assert done.frames == 12 * tiny.FRAMES
    assert done.returned == 4 and done.seconds > 103
    assert (world.memory.states.states_M == USED).all()
    assert sum(done.staleness) == done.used
    assert sum(shard.minibatches for shard in done.shards) == 12 + done.returned


def test_a_death_at_the_end_of_an_epoch_does_not_lengthen_it():
    config = AsgdConfig(sync_every=1)
    seconds = _train(_world(config, Times((1.0, 1.0), 0.125)), 1).seconds
    hurt = _world(config, Times((1.0, 1.0), 0.125, failures=((1, seconds - 0.5),), restart_s=50.0))
    assert seconds <= _train(hurt, 1).seconds < seconds + 2


def test_worker_that_finished_epoch_resumes_for_minibatches_of_dead_worker():
    batches = tiny.Batches(2)
    times = Times((1.0, 10.0), 0.125, failures=((1, 5.0),), restart_s=100.0)
    done = _train(_world(AsgdConfig(sync_every=1), times, batches=batches), 1, batches)
    assert (done.used, done.returned, done.seconds) == (2, 1, 5.0 + 0.125 + 1.0)
    assert [shard.minibatches for shard in done.shards] == [2, 1]


def test_worker_about_to_finish_epoch_continues_with_minibatches_of_dead_worker():
    """From 4 to 6 worker 0 pushes what it thinks is the last; from 6 it fetches, from 8 it computes, at 9 it pushes."""
    batches = tiny.Batches(3)
    times = Times((1.0, 10.0), 2.0, failures=((1, 5.0),), restart_s=100.0)
    done = _train(_world(AsgdConfig(sync_every=3), times, batches=batches), 1, batches)
    assert (done.used, done.returned, done.seconds) == (3, 1, 9.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_unpushed_work_of_dead_worker_is_not_in_model(optimizer):
    """Its successor has the same place in the simulator: it has nothing to publish, and no moments of its gradients."""
    batches = tiny.Batches(2)
    parameters, ends = [], []
    for failures in ((), ((0, 2.0),)):
        parts = replace(tiny.Build(batches)(), optimizer=optimizer)
        times = Times((1.0,), 0.25, failures=failures, restart_s=1.0)
        world = Simulated(parts, AsgdConfig(sync_every=2, push_scale=1.0), times)
        world.load({"parameters": world.shards[0].sgd.parameters.vector_K.clone()})
        ends.append(_train(world, 1, batches, base=0.01))
        parameters.append(world.snapshot().tensors["parameters"])
    done = ends[1]
    assert (done.used, done.frames, done.versions, done.returned) == (2, 32, 1, 2)
    assert (done.shards[0].minibatches, done.seconds) == (4, 5.25)  # computed again, from 3.25 on
    assert torch.equal(*parameters)


def test_rest_of_epoch_is_computed_after_resume():
    world = _world(AsgdConfig(sync_every=1))
    states_M = np.array([USED, 0, USED, 0] * 3, np.int32)
    done = list(world.epoch(1, states_M, Rate(0.1, 1, 12)))[-1]
    assert (done.used, done.frames) == (6, 6 * 16)
    assert (world.snapshot().states_M == USED).all()
    assert (states_M == 0).sum() == 6


@pytest.mark.parametrize("sync_s", [0.0, 0.5])
def test_synchronous_workers_are_sgd_on_the_mean_gradient(sync_s):
    batches = tiny.Batches(11)
    world = Synchronous(tiny.Build(batches)(), Times((1.0, 2.0, 1.5), sync_s), momentum=0.5)
    done = _train(world, 1, batches)
    stock = tiny.model()
    optimizer = torch.optim.SGD(stock.parameters(), lr=0.3, momentum=0.5)
    for group in ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10)):
        inputs, targets = (torch.cat(each) for each in zip(*(batches.draw(1, n) for n in group), strict=True))
        optimizer.zero_grad()
        tiny.loss(stock(inputs), targets)[0].backward()
        optimizer.step()
    for a, b in zip(world.parts.model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert (done.used, done.frames, done.seconds) == (11, 11 * 16, 4 * (2.0 + sync_s))


def test_synchronous_workers_take_the_step_of_a_constraint_once_between_them():
    parts = tiny.Build()()
    parts.model.constraint_share = 1.0
    Synchronous(parts, Times((1.0,) * 4, 0.0))
    assert parts.model.constraint_share == 0.25


def test_a_synchronous_step_whose_loss_is_not_finite_names_the_minibatch():
    parts = tiny.Build()()
    world = Synchronous(
        WorkerParts(parts.model, parts.source, lambda o, t: (o.sum() * float("inf"), t.sum()), 1),
        Times((1.0, 1.0), 0.0),
    )
    with pytest.raises(Speech3Error, match=r"epoch 1, minibatch 0: the loss is .*learning_rate"):
        _train(world, 1)


def test_times_can_be_measured(monkeypatch):
    syncs, sync = [], Partition.sync
    monkeypatch.setattr(Partition, "sync", lambda *args: syncs.append(sync(*args)) or syncs[-1])
    compute_s, sync_s = measure(tiny.Build(tiny.Batches(3, pause_s=0.01))(), AsgdConfig(), rounds=3)
    assert compute_s >= 0.01 and sync_s > 0
    assert syncs == [USED] * 6  # those that are measured are published, not refused


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in CONFIGS:
        (GOLDEN / f"{name}.json").write_text(json.dumps(_trajectory(name)) + "\n")


def test_minibatches_of_hung_worker_are_computed_by_others_once_noticed():
    batches = tiny.Batches(40)
    config = AsgdConfig(sync_every=1, push_scale=1.0)
    ends = {}
    for name, faults in (("whole", {}), ("dies", {"failures": ((0, 5.5),)}), ("hangs", {"hangs": ((0, 5.5),)})):
        world = Simulated(tiny.Build(batches)(), config, Times((1.0,) * 4, 0.0, restart_s=2.0, notice_s=30.0, **faults))
        world.load({"parameters": flatten(tiny.model()).vector_K})
        done = None
        for done in world.epoch(1, tiny.waiting(batches), tiny.rate(0.1, 1, batches)):
            if name == "hangs" and 5.5 < done.seconds < 35.5:
                assert (
                    world.memory.states.states_M == 1
                ).sum() == 1 and done.restarts == 0  # it is out, and nobody knows
        assert done.used == 40 and done.returned == done.restarts == len(faults)
        ends[name] = done.seconds
    assert ends["whole"] == pytest.approx(10)
    assert ends["dies"] == pytest.approx(11)  # 0.5 s of work and 2 s of a restart, shared by four
    assert ends["hangs"] == pytest.approx(36.5)  # the last minibatch of all was with it
