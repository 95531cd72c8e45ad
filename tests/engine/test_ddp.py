"""PyTorch's data parallelism, two processes over gloo: SGD on the mean gradient; a death is an error, not a hang."""

import math
import multiprocessing
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from waits import operations, waits

from speech3.config import TrainingConfig
from speech3.engine.backends import ddp, ddp as ddp_process
from speech3.engine.backends.ddp import Ddp, Deadline, Member, ModelWithLoss, Worker
from speech3.engine.flat import flatten
from speech3.engine.gradient import device_for
from speech3.engine.interface import USED, Rate
from speech3.engine.optimizers import Sgd
from speech3.engine.papers.terngrad import Exchange
from speech3.engine.trainer import check_workers
from speech3.errors import MachineError, Speech3Error

BATCHES = tiny.Batches(11)
GROUPS = ((0, 1), (3, 4), (5, 6), (7, 8), (9, 10)), ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10,))


class Build(tiny.Build):
    """However slow its process is, it sends no state inside an epoch."""

    def __call__(self, device="cpu"):
        ddp_process._SNAPSHOT_S = float("inf")
        return super().__call__(device)


@pytest.fixture(scope="module")
def world():
    build = Build(BATCHES, weight_decay=0.01)
    world = Ddp(build, workers=2, device="cpu", momentum=0.5)
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
    assert next(done.used for done in moves if done.used) == 2  # after one step: how long it takes is not known yet
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
    with pytest.raises(MachineError, match=r"world ddp: process 1 died"):
        list(moves)
    with pytest.raises(Speech3Error, match=r"process 1 died \(exit status -9\)"):
        list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_when_it_is_late(monkeypatch):
    monkeypatch.setattr(ddp, "patience_s", lambda usual_s: 5.0 if usual_s else 60.0)
    hanging = Ddp(tiny.Build(BATCHES), workers=2, device="cpu")
    try:
        hanging.load({"parameters": flatten(tiny.model()).vector_K})
        list(hanging.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))
        os.kill(hanging.processes[1].pid, signal.SIGSTOP)
        with pytest.raises(Speech3Error, match=r"world ddp: process 1 hung \(\d+ s without .*last checkpoint"):
            list(hanging.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)))
        assert not any(tiny.state(process.pid) for process in hanging.processes)
    finally:
        hanging.close()


def test_the_deadline_goes_by_the_usual_time_of_a_step():
    deadline, signs_N2 = Deadline(since=0.0, looked=0.0), np.array([[6.0, 10.0], [5.0, 9.0]])

    def late_s(now, step=1.0):
        for moment in np.arange(deadline.looked, now, step):  # nobody was away
            assert not deadline.late_s(moment, signs_N2)
        return deadline.late_s(now, signs_N2)

    assert not late_s(309.0) and late_s(311.0) == 301.0  # nothing is known yet
    deadline.looked, deadline.usual_s = 10.0, 0.01
    assert not late_s(30.0) and late_s(30.6) == pytest.approx(20.6)
    deadline.looked, deadline.usual_s = 10.0, 2.0  # 20 steps, and 50 that a GPU may be behind
    assert not late_s(149.0) and late_s(150.5) == 140.5
    deadline.since = 100.0  # an epoch begins: the last sign is one of the last epoch's
    deadline.looked = 100.0
    assert not late_s(239.0)
    assert not deadline.late_s(1000.0, signs_N2)  # who looks was stopped
    assert not late_s(1139.0) and late_s(1141.0)
    signs_N2[1] = 0.0  # builds its parts
    assert not late_s(5000.0)


def _alone(monkeypatch, parts, minibatches, others=None, report_ms=math.inf):
    """An epoch of one process, here; `others` is what the sums of other processes are. Yields what it sends."""
    for name, value in {"REPORT_STEPS": 4, "_FIRST_REPORT": 4, "_REPORT_MS": report_ms}.items():
        monkeypatch.setattr(ddp_process, name, value)
    monkeypatch.setattr(ddp_process.dist, "all_reduce", lambda sums: sums.add_(others) if others is not None else None)
    sgd = Sgd(parts.model)
    workers = 1 if others is None else 2
    member = Member(0, workers, "cpu", multiprocessing.get_context("spawn").RawArray("d", 2 * workers))
    exchange = Exchange(list(parts.model.parameters()), ddp_process.CodecConfig())
    worker, states_M = Worker(member, parts, sgd, ModelWithLoss(parts), exchange), np.zeros(minibatches, np.int32)
    return worker.epoch(1, states_M, Rate(0.1, 1, minibatches), {"parameters": sgd.parameters.vector_K.clone()})


def test_between_two_reports_no_process_waits_for_the_device(monkeypatch):
    parts = replace(Build(BATCHES)(), loss=tiny.loss, max_norm=0.5)
    with operations(monkeypatch) as seen:
        reports = []
        for kind, (done, tensors, _) in _alone(monkeypatch, parts, len(BATCHES)):
            reports.append((kind, done.used, done.frames, tensors is not None))
            seen.append("report")
    assert reports == [("moved", 4, 64, False), ("moved", 8, 128, False), ("ended", 11, 11 * 16, True)]
    # Of each report: what the steps did, the sums of all; of the last the state, too.
    sums = ["cpu", "tolist", "tolist"]
    first, last = [*["tolist"] * 4, *sums, "report"], [*["tolist"] * 3, *sums, "cpu", "numpy", "report"]
    expected = [*first, *first, *last]
    assert [name for name in seen if name == "report" or name in waits(seen)] == expected


def test_slow_steps_are_reported_one_by_one(monkeypatch):
    done = [done.used for _, (done, _, _) in _alone(monkeypatch, Build(BATCHES)(), len(BATCHES), report_ms=0)]
    assert done == [4, 5, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("others", "blamed"),
    [
        ([0.0] * 10 + [0.0, 0.0, 0.0], r"minibatch 5: the gradient is not finite \(the loss is \d"),
        ([0.0] * 10 + [2.0, 4.0, float("nan")], r"minibatch 4: the loss is nan"),  # in the same step, and it is why
        ([0.0] * 10 + [3.0, 9.0, float("nan")], r"minibatch 5: the gradient is not finite"),  # a step later
    ],
)
def test_the_source_of_a_gradient_that_is_not_finite(others, blamed, monkeypatch):
    from test_not_finite import spoiled

    others = torch.tensor(others, dtype=torch.float64)
    with pytest.raises(Speech3Error, match=blamed):
        numbers = []
        # Two processes: this one has minibatches 0, 2, 4, ...; so that 5 is among its own, those before 1 are used.
        monkeypatch.setattr(ddp_process, "turns", lambda *_: [(n, [n, n + 1]) for n in (3, 5, 7)])
        for _ in _alone(monkeypatch, spoiled(), 12, others):
            numbers.append(1)
    assert not numbers  # nothing was sent


def test_workers_on_more_gpus_than_there_are_are_refused():
    assert device_for("cuda:3", 1) == "cuda:3" and device_for("cpu", 1) == "cpu"


def test_workers_take_turns_over_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_for("cuda", worker) for worker in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    check_workers(TrainingConfig(world="ddp", workers=2, device="cuda"))
    check_workers(TrainingConfig(world="ddp", workers=1, device="cuda:1"))
    with pytest.raises(MachineError, match=r"training\.device=cuda:1"):
        check_workers(TrainingConfig(world="ddp", workers=2, device="cuda:1"))
