"""Sandblaster's virtual workers: what processes compute, on a clock that is worked out by hand; 64 of every kind."""

from dataclasses import replace
from functools import partial

import convex
import numpy as np
import pytest
import tiny
import torch

from speech3.config import AsgdConfig, CodecConfig, LbfgsConfig
from speech3.engine.backends.one_process import Simulated, Synchronous, Times
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, Rate
from speech3.engine.papers.sandblaster import Sandblaster
from speech3.engine.papers.sandblaster_workers import Gather, Move, Processes, Virtual

CONFIG = LbfgsConfig(history=8, iterations=5)
BUILD = convex.Build()
PORTIONS = 30


def _virtual(times, build=BUILD, config=CONFIG):
    return Sandblaster(partial(Virtual, build(), times), build(), config, workers=len(times.compute_s))


def _epoch(world, epoch=1, minibatches=PORTIONS):
    done = list(world.epoch(epoch, np.zeros(minibatches, np.int32), Rate(0.1, epoch, minibatches)))[-1]
    assert (world.snapshot().states_M == USED).all() and done.used == minibatches
    return done


def test_the_losses_are_those_of_processes():
    real = Sandblaster(partial(Processes, BUILD), BUILD(), CONFIG, workers=2)
    virtual = _virtual(Times((1.0, 1.5), 0.1, bandwidth=1e4, latency_s=0.01))
    try:
        for epoch in (1, 2):
            theirs, ours = _epoch(real, epoch), _epoch(virtual, epoch)
            assert ours.loss_sum == pytest.approx(theirs.loss_sum, rel=1e-6)
            assert (ours.frames, ours.correct, ours.versions) == (theirs.frames, theirs.correct, theirs.versions)
        torch.testing.assert_close(
            virtual.snapshot().tensors["parameters"], real.snapshot().tensors["parameters"], rtol=1e-3, atol=1e-4
        )
    finally:
        real.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_clock_equals_one_computed_by_hand(workers):
    group = _virtual(Times((2.0,) * workers, 0.3, bandwidth=1e3, latency_s=0.01)).workers
    size = 4 * group.layout.values
    convex.through(group.begin(1, 0.0))
    convex.through(group.operate(Move(0, 0.1)))
    assert group.seconds() == pytest.approx(0.02 + 0.3 / workers)
    before = group.seconds()
    done = convex.through(group.evaluate(1, [(number,) for number in range(PORTIONS)]))
    assert group.seconds() - before == pytest.approx(0.02 + size / 1e3 + PORTIONS / workers * (2.0 + 0.02))
    assert (group.up, group.down) == (0, workers * size) and done.keepers == tuple(range(workers))
    before = group.seconds()
    convex.through(group.operate(Gather(1, done.keepers, done.progress.frames, 0.0)))
    assert group.seconds() - before == pytest.approx(0.01 + size / 1e3 + 0.02 + 0.3 / workers)
    assert (group.up, group.down) == (workers * size, workers * size)
    # Of those who ended at the same moment, all but the last have begun with a backup task.
    backups = [1] * (workers - 1) + [0]
    assert [each.minibatches for each in group.reports()] == [PORTIONS // workers + backup for backup in backups]


def test_a_slow_worker_is_not_waited_for():
    """It has each of its portions for longer than the others need for all, and one of them does it over."""
    even, slow = (_virtual(Times((1.0, 1.0, seconds), 0.0)) for seconds in (1.0, 1000.0))
    fast, done = _epoch(even), _epoch(slow)
    assert done.seconds < 2 * fast.seconds
    assert 0 < done.shards[2].minibatches < 0.1 * fast.shards[2].minibatches
    torch.testing.assert_close(
        slow.snapshot().tensors["parameters"], even.snapshot().tensors["parameters"], rtol=1e-3, atol=1e-4
    )


def test_a_dead_workers_portions_are_computed_again():
    times = Times((1.0, 1.0), 0.01, failures=((0, 5.5), (1, 7.2), (0, 90.0)), restart_s=3.0)
    calm, hurt = _virtual(replace(times, failures=())), _virtual(times)
    expected, done = _epoch(calm), _epoch(hurt)
    assert (done.restarts, expected.restarts) == (3, 0) and done.returned > 5
    assert done.seconds > expected.seconds + 3
    torch.testing.assert_close(
        hurt.snapshot().tensors["parameters"], calm.snapshot().tensors["parameters"], rtol=1e-3, atol=1e-4
    )
    later = _virtual(times)
    later.load(calm.snapshot().tensors, seconds=60.0)  # of training: two failures are past
    assert _epoch(later, 2).restarts == 1


def test_two_runs_are_bitwise_equal():
    times = Times((1.0, 1.1, 1.2), 0.1, jitter=0.3)
    first, again = _virtual(times), _virtual(times)
    assert _epoch(first) == _epoch(again)
    assert torch.equal(first.snapshot().tensors["parameters"], again.snapshot().tensors["parameters"])


BATCHES = tiny.Batches(256)
MANY = Times((1.0,) * 64, 0.01, jitter=0.1, bandwidth=1e4, latency_s=0.001)


@pytest.mark.parametrize("method", ["asgd", "synchronous", "ternary", "sandblaster"])
def test_64_workers_train_with_real_gradients(method):
    build = tiny.Build(BATCHES)
    match method:
        case "asgd":
            world = Simulated(build(), AsgdConfig(sync_every=1), MANY)
        case "sandblaster":
            world = _virtual(MANY, build, LbfgsConfig(iterations=4))
        case _:
            codec = CodecConfig(kind="ternary" if method == "ternary" else "none")
            world = Synchronous(build(), MANY, codec=codec)
    world.load({"parameters": flatten(tiny.model()).vector_K.clone()})
    progress = []
    for epoch in (1, 2):
        moves = world.epoch(epoch, tiny.waiting(BATCHES), Rate(0.5, epoch, len(BATCHES)))
        progress.append(list(moves)[-1])
        world.load(world.snapshot().tensors)
    assert [done.used for done in progress] == [256] * 2
    losses = [done.loss_sum / done.frames for done in progress]
    assert losses[1] < 0.97 * losses[0], losses
    assert all(done.up and done.down for done in progress)
    if method in ("asgd", "sandblaster"):
        assert min(shard.minibatches for shard in progress[0].shards) > 0 and len(progress[0].shards) == 64
