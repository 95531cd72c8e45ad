"""Sandblaster: PyTorch's minimum, whoever is slow or dies, and after a restart; partitions compute what one would."""

import copy
import gc
import os
import signal
from functools import partial

import convex
import numpy as np
import pytest
import tiny
import torch
from torch import nn

from speech3.config import LbfgsConfig
from speech3.engine.backends import processes as watchdog
from speech3.engine.backends.one_process import Times
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, WAITING, Rate, WorkerParts
from speech3.engine.papers.sandblaster import Sandblaster, batches_of
from speech3.engine.papers.sandblaster_workers import (
    Combine,
    ComputePortion,
    Gather,
    Move,
    Multiply,
    Processes,
    Remember,
    VectorLayout,
    Vectors,
    Virtual,
    Workspace,
    gather_buffers,
)
from speech3.errors import Speech3Error

CONFIG = LbfgsConfig(history=8, iterations=10)
BUILD = convex.Build()


def _world(workers, build):
    return Sandblaster(partial(Processes, build), build(), CONFIG, workers=workers)


def _vectors(parts, workers, history=3):
    own = flatten(parts.model)
    layout = VectorLayout(own.vector_K.numel(), own.num_parameters, history, workers)
    vectors = Vectors.over(layout, bytearray(layout.bytes))
    vectors.points_2K[:] = own.vector_K
    return vectors, layout


def _operate(vectors, layout, operation):
    with torch.no_grad():
        return sum(operation(vectors, layout.partition(part)) for part in range(layout.workers))


def _spread(order, keep, build=BUILD):
    """The gradient of all minibatches in that order, each kept by the worker that `keep` names."""
    workers = max(keep) + 1
    vectors, layout = _vectors(build(), workers)
    workspaces = [Workspace(build(), vectors, layout, worker) for worker in range(workers)]
    frames = 0
    for number, worker in zip(order, keep, strict=True):
        done = workspaces[worker].compute(ComputePortion(1, 0, 1, number, (number,)))
        workspaces[worker].keep(1)
        frames += done.progress.frames
    _operate(vectors, layout, Gather(0, tuple(sorted(set(keep))), frames, 0.0))
    return vectors.gradients_2P[0].clone(), frames


def test_gradient_does_not_depend_on_order_and_worker_of_portions():
    rng = np.random.default_rng(0)
    linear = convex.model().double()
    expected = torch.autograd.grad(convex.objective(linear, 30), list(linear.parameters()))
    for workers in (1, 3):
        g_P, frames = _spread(rng.permutation(30).tolist(), rng.integers(workers, size=30).tolist())
        assert frames == sum(len(targets) for _, targets in convex.data(30))
        views = flatten(convex.model()).zeros_like()
        views.vector_K.copy_(g_P)
        for view, each in zip(views.views, expected, strict=True):
            torch.testing.assert_close(view.double(), each, rtol=1e-5, atol=1e-6)


def test_portions_not_kept_or_of_earlier_point_are_in_no_sum():
    vectors, layout = _vectors(convex.Build()(), 1)
    bench = Workspace(convex.Build()(), vectors, layout, 0)
    bench.compute(ComputePortion(1, 0, 1, 3, (3,)))
    bench.keep(1)
    bench.compute(ComputePortion(2, 0, 1, 4, (4,)))  # somebody else was first
    bench.compute(ComputePortion(2, 0, 1, 7, (7,)))
    bench.keep(2)
    fresh, _ = _vectors(convex.Build()(), 1)
    alone = Workspace(convex.Build()(), fresh, layout, 0)
    alone.compute(ComputePortion(1, 0, 1, 7, (7,)))
    alone.keep(1)
    torch.testing.assert_close(vectors.sums_NK, fresh.sums_NK, rtol=0, atol=0)


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_operations_on_partitions_equal_those_on_one_vector(workers):
    """50 partitions of 32 values: some are empty."""
    torch.manual_seed(0)
    vectors, layout = _vectors(convex.Build()(), workers)
    for each in (vectors.points_2K, vectors.gradients_2P, vectors.pairs_2HP, vectors.direction_P, vectors.sums_NK):
        each.normal_()
    base, slots, p = 1, (2, 0), layout.parameters
    rows = torch.stack([*(vectors.pairs_2HP[i, slot] for i in (0, 1) for slot in slots), vectors.gradients_2P[1]])
    dots_JJ = _operate(vectors, layout, Multiply(base, slots))
    np.testing.assert_allclose(dots_JJ, (rows.double() @ rows.double().T).numpy(), rtol=1e-12)
    weights = (0.5, -1.0, 2.0, 0.25, -3.0)
    _operate(vectors, layout, Combine(base, slots, weights))
    direction_P = torch.tensor(weights) @ rows
    torch.testing.assert_close(vectors.direction_P, direction_P)
    _operate(vectors, layout, Move(base, 0.3))
    torch.testing.assert_close(vectors.points_2K[0, :p], vectors.points_2K[1, :p] + 0.3 * direction_P)
    keepers = (0, workers - 1) if workers > 1 else (0,)
    slope, squared, length = _operate(vectors, layout, Gather(0, keepers, 7, 0.1))
    g_P = vectors.sums_NK[list(keepers), :p].sum(0) / 7 + 0.1 * vectors.points_2K[0, :p]
    torch.testing.assert_close(vectors.gradients_2P[0], g_P)
    expected = [g_P @ vectors.direction_P, g_P @ g_P, vectors.points_2K[0, :p].square().sum()]
    np.testing.assert_allclose([slope, squared, length], [each.item() for each in expected], rtol=1e-4)
    _operate(vectors, layout, Remember(base, 1))
    torch.testing.assert_close(vectors.pairs_2HP[0, 1], vectors.points_2K[0, :p] - vectors.points_2K[1, :p])
    torch.testing.assert_close(vectors.pairs_2HP[1, 1], vectors.gradients_2P[0] - vectors.gradients_2P[1])


def test_running_means_are_the_workers_mean_and_constants_are_not_rounded():
    parts = tiny.Build(norm=True)()
    vectors, layout = _vectors(parts, 3)
    p = layout.parameters
    vectors.points_2K[:, -1] = 1 / 3  # a constant
    vectors.sums_NK[:, p:] = vectors.points_2K[0, p:]
    vectors.sums_NK[1, p] += 3.0
    gather_buffers(vectors, 0, (0, 1, 2), 0)
    assert vectors.points_2K[1, -1] == vectors.points_2K[0, -1]
    assert vectors.points_2K[1, p] == vectors.points_2K[0, p] + 1.0


def test_batches_are_parts_of_the_epoch_and_rows_stay_whole():
    two = batches_of(7, None, LbfgsConfig(batches=2, iterations=3))
    assert [batch.portions for batch in two] == [((0,), (1,), (2,), (3,)), ((4,), (5,), (6,))]
    assert [[stretch.tolist() for stretch in batch.stretches] for batch in two] == [[[0, 1], [2], [3]], [[4], [5], [6]]]
    rows = batches_of(7, (range(3), range(3, 5), range(5, 7)), LbfgsConfig(batches=2, iterations=2))
    assert [batch.portions for batch in rows] == [((0, 1, 2), (3, 4)), ((5, 6),)]


def _run(world, epoch=1, states_M=None, after=None, at=4, minibatches=30):
    """An epoch; `after` is called when so many iterations are accepted. Returns the last progress."""
    states_M = np.zeros(minibatches, np.int32) if states_M is None else states_M
    done = None
    for done in world.epoch(epoch, states_M, Rate(0.1, epoch, minibatches)):
        if after and done.versions >= at:
            after()
            after = None
    return done


def _loss(world, minibatches=30, weight_decay=0.0):
    linear = convex.model()
    flatten(linear).vector_K.copy_(world.snapshot().tensors["parameters"])
    return convex.objective(linear.double(), minibatches, weight_decay).item()


def _whole(world, done, iterations=10):
    frames = sum(len(targets) for _, targets in convex.data(30))
    assert (world.snapshot().states_M == USED).all()
    assert (done.used, done.versions, done.frames) == (30, iterations, iterations * frames)
    assert sum(shard.minibatches for shard in done.shards) >= (iterations + 1) * 30


@pytest.fixture(scope="module")
def world():
    world = _world(2, BUILD)
    yield world
    world.close()


@pytest.fixture(scope="module")
def reference(world):
    """Parameters and progress after one epoch of nobody's trouble."""
    _begin_again(world)
    done = _run(world)
    _whole(world, done)
    return world.snapshot().tensors["parameters"], done


def _begin_again(world):
    world.load({"parameters": flatten(convex.model()).vector_K})


def test_the_loss_is_as_low_as_pytorchs(world):
    _begin_again(world)
    for epoch in range(1, 5):
        done = _run(world, epoch)
    assert abs(_loss(world) - convex.least(30)) < 1e-5
    assert done.loss_sum / done.frames == pytest.approx(_loss(world), abs=1e-4)
    assert done.restarts == done.returned == 0


def test_what_is_minimised_has_the_weight_decay(world):
    _begin_again(world)
    world.weight_decay = 0.05
    try:
        for epoch in range(1, 4):
            _run(world, epoch)
    finally:
        world.weight_decay = 0.0
    assert abs(_loss(world, weight_decay=0.05) - convex.least(30, 0.05)) < 1e-5


def test_training_resumes_from_the_middle_of_an_epoch(world, reference):
    _begin_again(world)
    moves = world.epoch(1, np.zeros(30, np.int32), Rate(0.1, 1, 30))
    done = next(done for done in moves if done.versions == 4)
    middle = world.snapshot()
    assert middle.progress.versions == done.versions == 4 and done.used == 12
    assert (middle.states_M[:12] == USED).all() and (middle.states_M[12:] == WAITING).all()
    assert middle.tensors["lbfgs.pairs"].shape == (2, 4, flatten(convex.model()).num_parameters)
    for _ in moves:
        pass
    world.load({"parameters": torch.zeros_like(middle.tensors["parameters"])})
    assert "lbfgs.pairs" not in world.snapshot().tensors
    world.load(middle.tensors)
    rest = _run(world, 1, middle.states_M)
    assert (rest.used, rest.versions) == (18, 6)
    torch.testing.assert_close(world.snapshot().tensors["parameters"], reference[0], rtol=1e-3, atol=1e-4)


def test_training_survives_worker_killed_at_any_moment(world, reference):
    """Both workers, one after another."""
    _begin_again(world)
    pids = [process.pid for process in world.workers.processes.processes]
    moves = world.epoch(1, np.zeros(30, np.int32), Rate(0.1, 1, 30))
    killed = 0
    for done in moves:
        if killed < 2 and done.versions >= 3 * killed + 1:
            os.kill(pids[killed], signal.SIGKILL)
            killed += 1
    _whole(world, done)
    assert done.restarts == killed == 2
    assert not set(pids) & {process.pid for process in world.workers.processes.processes}
    torch.testing.assert_close(world.snapshot().tensors["parameters"], reference[0], rtol=1e-3, atol=1e-4)


def test_stopped_worker_is_killed_and_replaced(world, reference, monkeypatch):
    monkeypatch.setattr(watchdog, "LEAST_S", 2.0)
    monkeypatch.setattr(watchdog, "FIRST_S", 2.0)
    _begin_again(world)
    stopped = 0
    for done in world.epoch(1, np.zeros(30, np.int32), Rate(0.1, 1, 30)):
        if not stopped and done.versions >= 3:
            stopped = world.workers.processes.processes[0].pid
            os.kill(stopped, signal.SIGSTOP)
    _whole(world, done)
    assert " hung (" in done.note and done.note.endswith(" without a reply) and was killed")
    assert done.restarts >= 1 and stopped not in {process.pid for process in world.workers.processes.processes}
    torch.testing.assert_close(world.snapshot().tensors["parameters"], reference[0], rtol=1e-3, atol=1e-4)


def test_a_slow_worker_delays_no_other_and_its_death_loses_nothing(tmp_path, reference):
    """It sits on a portion for half an epoch, a sum in its hands, then it is killed."""
    build = convex.Build(convex.Source(stuck=tmp_path / "stuck"))
    world = _world(2, build)
    try:
        killed, moves = None, world.epoch(1, np.zeros(30, np.int32), Rate(0.1, 1, 30))
        next(moves)
        assert not all(worker.ready for worker in world.workers.workers)  # Ctrl-C is heard while they start, too
        for done in moves:
            if not killed and done.versions >= 5:
                killed, held_up = int((tmp_path / "stuck").read_text()), done
                os.kill(killed, signal.SIGKILL)
        _whole(world, done)
        tensors = world.snapshot().tensors["parameters"]
    finally:
        world.close()
    assert min(shard.minibatches for shard in held_up.shards) < 30 and held_up.restarts == 0
    assert killed and done.restarts <= 1
    torch.testing.assert_close(tensors, reference[0], rtol=1e-3, atol=1e-4)


def test_dropout_is_the_same_all_through_an_epoch():
    """Else no line search would keep its conditions: two evaluations of one point give the same."""
    build = convex.Build(dropout=0.4)
    first, _ = _spread(list(range(30)), [0] * 30, build)
    again, _ = _spread(list(range(30)), [0] * 30, build)
    without, _ = _spread(list(range(30)), [0] * 30)
    assert torch.equal(first, again) and not torch.equal(first, without)


def test_minimum_ends_epoch_with_note(world):
    _begin_again(world)
    for epoch in range(1, 12):
        done = _run(world, epoch)
        assert (world.snapshot().states_M == USED).all() and done.used == 30
        if done.note:
            break
    assert "at a minimum" in done.note
    assert abs(_loss(world) - convex.least(30)) < 1e-5


def test_a_minimum_ends_only_its_own_batch():
    """The first four minibatches are at their minimum from the beginning; the others pull the weight to 5."""

    class Halves:
        rows = None

        def __len__(self):
            return 8

        def draw(self, epoch, number):
            return torch.ones(4, 1), torch.full((4, 1), 0.0 if number < 4 else 5.0)

    def loss(outputs, targets):
        return (outputs - targets).square().mean(), torch.tensor(0)

    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    parts, own = (WorkerParts(copy.deepcopy(model), Halves(), loss, 1) for _ in range(2))
    config = LbfgsConfig(batches=2, iterations=2)
    world = Sandblaster(partial(Virtual, parts, Times((1.0,), 0.0)), own, config, workers=1)
    done = list(world.epoch(1, np.zeros(8, np.int32), Rate(0.1, 1, 8)))[-1]
    assert done.used == 8 and done.note.startswith("ended early")
    assert done.frames == 16 + 16 * done.versions  # the first batch counts once, the second with each step
    assert world.snapshot().tensors["parameters"][0].item() == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(("poison", "words"), [(7, r"epoch 3, minibatch 7: .*before any step.*--init")])
def test_a_loss_that_is_not_finite_from_the_start(poison, words):
    build = convex.Build(convex.Source(poison=poison))
    world = _world(1, build)
    before = world.snapshot().tensors["parameters"]
    try:
        with pytest.raises(Speech3Error, match=words):
            _run(world, 3)
        assert torch.equal(world.snapshot().tensors["parameters"], before)
    finally:
        world.close()


def test_a_worker_that_fails_is_named():
    build = tiny.Build(tiny.Batches(12, trouble="raise"))
    world = _world(1, build)
    try:
        with pytest.raises(Speech3Error, match=r"(?s)worker 0: .*minibatch 5 is bewitched"):
            _run(world, minibatches=12)
    finally:
        world.close()


def test_close_leaves_no_process_and_no_memory():
    before = tiny.descriptors()
    world = _world(1, tiny.Build())
    pids = [process.pid for process in world.workers.processes.processes]
    assert any("memfd:sandblaster" in each for each in tiny.descriptors()) and all(map(tiny.state, pids))
    world.close()
    del world
    gc.collect()
    assert not any(map(tiny.state, pids))
    assert not any("memfd" in each for each in set(tiny.descriptors()) - set(before))
