"""Shards that hang: found by what they say that they are doing, ended, replaced; nobody waits for them for ever."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from speech3.config import AsgdConfig
from speech3.engine import fit
from speech3.engine.backends import processes as watchdog, processes as workers
from speech3.engine.backends.processes import Activity, Unkillable, Watchdog
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, Progress
from speech3.engine.server import Status
from speech3.errors import Speech3Error
from speech3.runtime import parallel

BATCHES = tiny.Batches(80, pause_s=0.02)

IDLE, COMPUTES, DRAWS, SYNCS, WAITS = Activity


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds in place of minutes; this process's alone, which is the one that looks."""
    monkeypatch.setattr(watchdog, "LEAST_S", 3.0)
    monkeypatch.setattr(watchdog, "HELD_S", 1.5)


class SlowToSend(Dataset):
    """Takes longer to be pickled by a shard than a draw may."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index % 2)), index % 2

    def __reduce__(self) -> tuple[object, ...]:
        if multiprocessing.parent_process() is not None:
            time.sleep(3.0)
        return SlowToSend, ()


def make(folder: Path, **config: object) -> Shared:
    build = tiny.Build(BATCHES)
    world = Shared(tiny.Gated(build, tiny.Gate(folder)), build(), AsgdConfig(sync_every=1, **config), workers=2)
    world.load({"parameters": flatten(tiny.model()).vector_K})
    return world


def whole(world: Shared, done: Progress) -> None:
    """Every minibatch is used, once."""
    assert (world.snapshot().states_M == USED).all()
    assert (done.used, done.stale, done.refused, done.frames) == (80, 0, 0, 80 * tiny.FRAMES)


def test_the_first_wait_may_be_as_long_as_others_syncs_take() -> None:
    """A shard whose first sync waits for those of the others knows no time of its own yet."""
    found = Watchdog(np.zeros(3))
    shards_N = np.zeros((3, len(Status)))
    shards_N[:, Status.READY] = shards_N[:, Status.EPOCH] = 1
    shards_N[:2, Status.SYNC_S] = 1.0  # the usual sync of the others: a limit of 20 times three seconds
    shards_N[:, Status.SINCE] = time.monotonic()
    shards_N[2, [Status.DOING, Status.SINCE]] = WAITS, time.monotonic() - 30.0
    assert found.find(shards_N, work=True) is None
    shards_N[2, Status.SINCE] -= 60.0
    hang = found.find(shards_N, work=True)
    assert hang and hang.worker == 2


def test_starting_the_processes_of_a_loader_is_not_a_draw() -> None:
    """A large dataset takes long to send to them; a draw has but a moment, since it holds a lock."""
    data = DataLoader(SlowToSend(), batch_size=20, num_workers=1)
    found = fit(nn.Linear(4, 2), data, nn.CrossEntropyLoss(), strategy="asgd", workers=1, epochs=1, quiet=True)
    assert found.history[0].used == 20


def test_stopped_shard_is_replaced(tmp_path: Path) -> None:
    world, stopped, done = make(tmp_path), 0, None
    try:
        for done in world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)):
            if done.used >= 10 and not stopped:
                stopped = world.processes[0].pid
                os.kill(stopped, signal.SIGSTOP)
        whole(world, done)
        assert done.restarts == 1
        assert done.note.startswith("shard 0 hung ") and done.note.endswith(" without a heartbeat) and was killed")
        assert world.processes[0].pid != stopped
    finally:
        world.close()


def test_stopped_shard_holding_lock_is_replaced_and_snapshot_succeeds(tmp_path: Path) -> None:
    world, gate, held, done = make(tmp_path), tiny.Gate(tmp_path), set(), None
    try:
        for done in world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)):
            if done.used >= 10 and not held:
                gate.close("publish")
                held = tiny.until(lambda: gate.standing("publish"))
                threading.Timer(3.0, gate.open, ["publish"]).start()  # for who takes its place; the first is ended then
                begun = time.monotonic()
                assert world.snapshot().progress.used >= 10  # as Ctrl-C wants it
                assert time.monotonic() - begun < 30
        whole(world, done)
        assert done.restarts >= 1 and " hung in a sync (" in done.note
    finally:
        world.close()


def test_backend_with_stopped_shard_closes(tmp_path: Path) -> None:
    world = make(tmp_path)
    for _ in world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)):
        os.kill(world.processes[0].pid, signal.SIGSTOP)
        break
    pids = [process.pid for process in world.processes]
    world.close()
    assert not any(tiny.state(pid) for pid in pids)


def test_shard_that_hangs_repeatedly_ends_run(tmp_path: Path) -> None:
    world = make(tmp_path)
    try:
        world.workers.deaths[1], hang = 2, watchdog.Hang(1, 31.0, COMPUTES)
        world.workers.kill_hung(1, str(hang))
        assert tiny.until(world.workers.dead) == [1]
        with pytest.raises(Speech3Error, match=r"^shard 1 hung in a minibatch \(31 s without .*killed 3 times"):
            world._replace_dead()
    finally:
        world.close()


@pytest.mark.parametrize("holds_lock", [False, True])
def test_shard_that_cannot_be_killed_ends_run_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds_lock: bool
) -> None:
    """A stand-in for one that is stuck in a driver: it is stopped, and this process's SIGKILL does not reach it."""
    monkeypatch.setattr(workers, "_DIES_S", 0.3)
    monkeypatch.setattr(parallel, "_END_S", 1.0)
    world, gate, stuck, done = make(tmp_path), tiny.Gate(tmp_path), None, None
    try:
        with pytest.raises(Unkillable) as caught:
            for done in world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.1, 1, BATCHES)):
                if done.used >= 10 and not stuck:
                    if holds_lock:
                        gate.close("publish")
                        pid = next(iter(tiny.until(lambda: gate.standing("publish"))))
                    else:
                        pid = world.processes[1].pid
                    (stuck,) = (process for process in world.processes if process.pid == pid)
                    stuck.kill = lambda: None
                    os.kill(pid, signal.SIGSTOP)
        found = str(caught.value)
        assert found.startswith("shard ") and f" hung {'in a sync' if holds_lock else ''}" in found
        assert f"process {stuck.pid} is stuck in the kernel" in found and "resume" in found
        snapshot = world.snapshot()
        assert snapshot.finite and snapshot.progress.used == (snapshot.states_M == USED).sum() >= 10
        assert [process for process in world.processes if tiny.state(process.pid)] == [stuck]
    finally:
        begun = time.monotonic()
        world.close()
        if stuck:
            left = stuck in multiprocessing.active_children()
            os.kill(stuck.pid, signal.SIGKILL)
    assert time.monotonic() - begun < 5 and not left  # this process would wait for it at its own end


def rows(*each: tuple[int, float]) -> np.ndarray:
    """Shards that are at something since so many seconds; 50 minibatches of 0.1 s, syncs of 1 ms."""
    shards_N, now = np.zeros((len(each), len(Status))), time.monotonic()
    shards_N[:, [Status.READY, Status.EPOCH, Status.MINIBATCHES, Status.COMPUTE_S, Status.SYNC_S]] = 1, 1, 50, 5.0, 0.05
    for row, (doing, seconds) in zip(shards_N, each, strict=True):
        row[[Status.DOING, Status.SINCE]] = doing, now - seconds
    return shards_N


@pytest.mark.parametrize("doing", [COMPUTES, DRAWS, SYNCS, WAITS])
def test_deadline_of_each_activity(doing: int) -> None:
    limit = 1.5 if doing in (DRAWS, SYNCS) else 3.0
    assert Watchdog(np.zeros(2)).find(rows((doing, limit - 0.5), (COMPUTES, 0.1)), True) is None
    assert Watchdog(np.zeros(2)).find(rows((COMPUTES, 0.1), (doing, limit + 0.5)), True).worker == 1


def test_a_slow_shard_is_given_its_own_time() -> None:
    shards_N = rows((COMPUTES, 50.0), (COMPUTES, 0.1))
    shards_N[0, Status.COMPUTE_S] = 150.0  # three seconds a minibatch, so a minute
    assert Watchdog(np.zeros(2)).find(shards_N, True) is None
    shards_N[0, Status.SINCE] -= 11
    assert Watchdog(np.zeros(2)).find(shards_N, True).worker == 0


def test_the_first_minibatch_has_longer_until_a_time_is_known() -> None:
    shards_N = rows((COMPUTES, 200.0))
    shards_N[0, Status.MINIBATCHES] = 0
    dog = Watchdog(np.zeros(1))
    assert dog.find(shards_N, True) is None
    dog.usual_N[0] = 0.1  # of an epoch before
    assert dog.find(shards_N, True).worker == 0
    shards_N[0, Status.MINIBATCHES], dog = 50, Watchdog(np.zeros(1))
    dog.started(0, 50)  # in the place of one that died
    assert dog.find(shards_N, True) is None
    shards_N[0, Status.MINIBATCHES] = 51
    assert dog.find(shards_N, True).worker == 0


def test_idle_shard_hangs_only_while_there_is_work_and_starting_shard_never() -> None:
    shards_N = rows((IDLE, 100.0), (COMPUTES, 1000.0))
    shards_N[1, Status.READY] = 0
    shards_N[0, Status.EPOCH] = 0
    dog = Watchdog(np.zeros(2))
    assert dog.find(shards_N, False) is None
    assert dog.find(shards_N, True).worker == 0


def test_member_waiting_for_its_replica_has_deadline() -> None:
    assert Watchdog(np.zeros(2)).find(rows((IDLE, 2.5), (COMPUTES, 0.1)), False) is None
    assert Watchdog(np.zeros(2)).find(rows((IDLE, 3.5), (COMPUTES, 0.1)), False).worker == 0


def test_longest_hanging_shard_is_reported_and_others_get_new_deadline() -> None:
    dog, shards_N = Watchdog(np.zeros(3)), rows((DRAWS, 20.0), (SYNCS, 21.0), (WAITS, 19.0))
    assert dog.find(shards_N, True).worker == 1
    assert dog.find(shards_N, True) is None


def test_time_while_the_watchdog_was_stopped_does_not_count() -> None:
    dog = Watchdog(np.zeros(1))
    dog.looked -= 100
    assert dog.find(rows((COMPUTES, 100.0)), True) is None
    assert Watchdog(np.zeros(1)).find(rows((COMPUTES, 100.0)), True)
