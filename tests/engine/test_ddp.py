"""PyTorch's data parallelism, two processes over gloo: SGD on the mean gradient; a death is an error, not a hang."""

import os
import signal
import threading

import numpy as np
import pytest
import tiny
import torch

from speech3.engine import ddp
from speech3.engine.ddp import Ddp
from speech3.engine.flat import flatten
from speech3.engine.sgd import Sgd
from speech3.engine.world import USED, Rate
from speech3.errors import Speech3Error

BATCHES = tiny.Batches(11)
GROUPS = ((0, 1), (3, 4), (5, 6), (7, 8), (9, 10)), ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10,))


class Build(tiny.Build):
    """However slow its process is, it sends no state inside an epoch."""

    def __call__(self, device="cpu"):
        ddp._SNAPSHOT_S = float("inf")
        return super().__call__(device)


@pytest.fixture(scope="module")
def world():
    build = Build(BATCHES)
    world = Ddp(build, workers=2, device="cpu", momentum=0.5, weight_decay=0.01)
    yield world
    world.close()
    assert not any(tiny.state(process.pid) for process in world.processes)


def test_two_processes_are_sgd_on_the_mean_gradient(world):
    """Over two epochs; the first was begun before (minibatch 2 is used), the second ends with a group of one."""
    model = tiny.model()
    sgd = Sgd(model, momentum=0.5, weight_decay=0.01)
    world.load({"parameters": sgd.parameters.vector_K.clone()})
    for epoch, groups in enumerate(GROUPS, 1):
        rate = Rate(0.2, epoch, len(BATCHES), warmup=2.0)
        states_M = tiny.waiting(BATCHES)
        states_M[2] = USED if epoch == 1 else 0
        loss_sum = right = 0
        for group in groups:
            inputs, targets = (torch.cat(each) for each in zip(*(BATCHES.draw(epoch, n) for n in group), strict=True))
            loss, correct = tiny.loss(model(inputs), targets)
            sgd.step(torch.autograd.grad(loss, list(model.parameters())), rate(group[0]))
            loss_sum, right = loss_sum + loss.item() * len(targets), right + int(correct)
        done = list(world.epoch(epoch, states_M, rate))[-1]
        used = sum(map(len, groups))
        assert (done.used, done.frames, done.correct) == (used, used * tiny.FRAMES, right)
        assert done.loss_sum == pytest.approx(loss_sum, rel=1e-5)
        snapshot = world.snapshot()
        assert (snapshot.states_M == USED).all() and snapshot.progress == done
        torch.testing.assert_close(snapshot.tensors["parameters"], sgd.parameters.vector_K, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(snapshot.tensors["velocity"], sgd.velocity.vector_K, rtol=1e-5, atol=1e-6)
        world.load(snapshot.tensors)
    assert not np.array_equal(snapshot.tensors["parameters"], flatten(tiny.model()).vector_K)


def test_until_the_first_state_arrives_the_state_is_that_of_the_beginning(world):
    start = flatten(tiny.model()).vector_K
    states_M = np.zeros(240, np.int32)
    states_M[:20] = USED
    world.load({"parameters": start})
    moves = world.epoch(1, states_M, Rate(0.01, 1, len(states_M)))
    assert next(done.used for done in moves if done.used) == 100
    snapshot = world.snapshot()
    np.testing.assert_array_equal(snapshot.states_M, states_M)
    assert snapshot.progress.used == 0 and torch.equal(snapshot.tensors["parameters"], start)
    assert list(moves)[-1].used == 220 and (world.snapshot().states_M == USED).all()


def test_a_process_that_dies_ends_the_epoch_with_an_error(world):
    world.load({"parameters": flatten(tiny.model()).vector_K})
    victim = world.processes[1].pid
    os.kill(victim, signal.SIGSTOP)  # so the other waits for its gradients
    moves = world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES))
    assert [next(moves).used for _ in range(3)] == [0, 0, 0]  # we do not: Ctrl-C is heard
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(Speech3Error, match=r"world ddp: process 1 died \(exit status -9\).*last checkpoint"):
        list(moves)
    with pytest.raises(Speech3Error, match=r"process 1 died \(exit status -9\)"):
        list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))
