"""Shards as processes: they train; whatever kills them, at whatever moment, is noticed, and no minibatch is lost."""

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
import torch

from speech3.config import AsgdConfig
from speech3.engine.backends import shared as shared_module
from speech3.engine.backends.processes import FileLock, Workers, memory_file
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.engine.interface import USED, WAITING, Rate
from speech3.engine.server import Status
from speech3.errors import MachineError, Speech3Error

BATCHES = tiny.Batches(300, pause_s=0.002)
BUILD = tiny.Build(BATCHES, slow_sync_s=0.001)
CONFIG = AsgdConfig(sync_every=2, max_distance=6)


def _pids(world):
    return [process.pid for process in world.processes]


def _whole(world, done, batches=BATCHES):
    """Every minibatch of the epoch is in the published state, once."""
    assert (world.snapshot().states_M == USED).all()
    assert (done.used, done.stale, done.refused) == (len(batches), 0, 0)
    assert done.frames == len(batches) * tiny.FRAMES
    assert sum(done.staleness) == done.used
    assert sum(shard.minibatches for shard in done.shards) >= len(batches)


def _epoch(world, epoch, after):
    """Train an epoch; when 50 minibatches are used, `after` is called, and the last 100 wait for that.

    Returns the last progress.
    """
    world.build.gate.close(f"epoch{epoch}")
    moves = world.epoch(epoch, tiny.waiting(BATCHES), tiny.rate(0.3, epoch, BATCHES))
    last = None
    for done in moves:
        assert last is None or (done.used >= last.used and done.versions >= last.versions)
        if after and done.used >= 50:
            after()
            after = None
            world.build.gate.open(f"epoch{epoch}")
        last = done
    assert after is None
    return last


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    gate = tiny.Gate(tmp_path_factory.mktemp("gate"), at=200, each=11)
    world = Shared(tiny.Gated(BUILD, gate), BUILD(), CONFIG, workers=2)
    world.load({"parameters": flatten(tiny.model()).vector_K})
    yield world
    world.close()


def test_shards_get_the_whole_learning_rate_schedule():
    batches = tiny.Batches(20)
    world = Shared(tiny.Build(batches), tiny.Build(batches)(), CONFIG, workers=1)
    try:
        world.load({"parameters": flatten(tiny.model()).vector_K})
        before = world.snapshot().tensors["parameters"]
        # A cosine that ended with the epoch before: the rate is zero.
        *_, done = world.epoch(3, tiny.waiting(batches), Rate(0.3, 3, len(batches), last=2))
        assert done.used == len(batches)
        assert torch.equal(world.snapshot().tensors["parameters"], before)
        *_, done = world.epoch(3, tiny.waiting(batches), Rate(0.3, 3, len(batches), last=4))
        assert not torch.equal(world.snapshot().tensors["parameters"], before)
    finally:
        world.close()


def test_shards_train(world):
    before = world.snapshot().tensors["parameters"]
    snapshots = []

    def look():
        snapshots.append(world.snapshot())
        for pid in _pids(world):
            os.kill(pid, signal.SIGINT)  # Ctrl-C reaches them too, and does not end them

    done = _epoch(world, 1, look)
    _whole(world, done)
    assert not world.server.memory.syncing_S.any()
    assert (done.returned, done.restarts) == (0, 0)
    assert all(shard.minibatches > 10 for shard in done.shards)
    assert all(shard.compute_s >= 0.002 * shard.minibatches and shard.sync_s > 0 for shard in done.shards)
    model = tiny.model()
    flat = flatten(model)
    flat.vector_K.copy_(world.snapshot().tensors["parameters"])
    assert not torch.equal(flat.vector_K, before)
    inputs, targets = (torch.cat(each) for each in zip(*(BATCHES.draw(9, n) for n in range(20)), strict=True))
    assert (model(inputs).argmax(1) == targets).float().mean() > 0.75
    # The copy that was taken in the middle is of one moment.
    inside = snapshots[0]
    assert inside.progress.used == (inside.states_M == USED).sum() < len(BATCHES)
    assert inside.progress.frames == inside.progress.used * tiny.FRAMES
    assert not torch.equal(inside.tensors["parameters"], flat.vector_K)


def test_shard_killed_at_random_moment_is_replaced(world):
    def kill():
        time.sleep(random.random() * 0.02)
        os.kill(_pids(world)[0], signal.SIGKILL)

    first = _pids(world)
    done = _epoch(world, 2, kill)
    _whole(world, done)
    assert done.restarts == 1 and done.returned <= CONFIG.max_distance
    assert _pids(world)[0] != first[0] and _pids(world)[1] == first[1]


def test_shard_killed_while_holding_lock_is_replaced(world):
    inode, gate, held = Path(world.addresses[0].locks[0]).stat().st_ino, world.build.gate, []

    def kill():
        gate.close("publish")
        gate.open("epoch3")  # so that there is something to publish
        (pid,) = tiny.until(lambda: gate.standing("publish"))
        held.append(pid)
        assert (pid, inode) in tiny.flocks({pid})
        os.kill(pid, signal.SIGKILL)
        tiny.until(lambda: not tiny.state(pid))
        gate.open("publish")

    done = _epoch(world, 3, kill)
    _whole(world, done)
    assert held[0] not in _pids(world)
    assert done.restarts == 1 and 0 < done.returned <= CONFIG.max_distance


def test_close_leaves_no_process_and_no_memory():
    """Neither a process nor a descriptor, which is what keeps memory that has no name."""
    before = tiny.descriptors()
    world = Shared(tiny.Build(), tiny.Build()(), CONFIG, workers=1)
    pids = _pids(world)
    assert any("memfd:server" in each for each in tiny.descriptors()) and all(map(tiny.state, pids))
    world.close()
    del world
    gc.collect()
    assert not any(map(tiny.state, pids))
    assert not any("memfd" in each for each in set(tiny.descriptors()) - set(before))


def test_a_shard_that_fails_is_named():
    build = tiny.Build(tiny.Batches(12, trouble="raise"))
    world = Shared(build, build(), CONFIG, workers=1)
    try:
        with pytest.raises(Speech3Error, match=r"(?s)shard 0: .*minibatch 5 is bewitched"):
            list(world.epoch(1, tiny.waiting(build.batches), tiny.rate(0.1, 1, build.batches)))
    finally:
        world.close()


MAYFLY = """
import os
if os.getpid() != {pid}:
    os._exit(3)
def main(*_):
    pass
"""


def test_shard_that_dies_repeatedly_ends_run(monkeypatch, tmp_path):
    (tmp_path / "speech3_mayfly.py").write_text(MAYFLY.format(pid=os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    import speech3_mayfly

    monkeypatch.setattr(shared_module, "run_shard_process", speech3_mayfly.main)
    world = Shared(tiny.Build(), tiny.Build()(), CONFIG, workers=1)
    try:
        with pytest.raises(MachineError, match=r"shard 0 died 3 times .*exit status 3"):
            list(world.epoch(1, tiny.waiting(tiny.Batches()), tiny.rate(0.1, 1, tiny.Batches())))
        assert world.restarts == 2
    finally:
        world.close()


class _Dead:
    """A process that has died."""

    exitcode = -9

    def __init__(self):
        self.sentinel, theirs = os.pipe()
        os.close(theirs)

    def is_alive(self):
        return False

    def join(self, timeout=None):
        self.close()

    def terminate(self):
        pass

    def kill(self):
        pass

    def poll(self, timeout):
        return False

    def close(self):
        descriptor, self.sentinel = self.sentinel, None
        if descriptor is not None:
            os.close(descriptor)


def _of_dead_shards(monkeypatch):
    """A backend whose only shard is dead whenever it is started."""

    def start(self, worker):
        self.tasks(worker)
        self.groups[worker] = [(_Dead(), _Dead())]

    monkeypatch.setattr(Workers, "start", start)
    return Shared(tiny.Build(), tiny.Build()(), CONFIG, workers=1)


def test_replacements_that_compute_nothing_end_run(monkeypatch):
    """Whatever the first one had computed: a minibatch that kills whoever draws it must not be tried for ever."""

    world = _of_dead_shards(monkeypatch)
    memory = world.server.memory
    memory.shards_N[0, Status.MINIBATCHES] = 7
    memory.states.states_M[:3] = 1
    memory.journal_S2J[0, 0, :4] = 2, 0, 0, 1  # published, but it died before it could mark them
    try:
        for deaths in (1, 2):
            world._replace_dead()
            assert world.workers.deaths == [deaths] and world.returned == 1
            assert memory.states.states_M[:4].tolist() == [USED, USED, WAITING, WAITING]
        with pytest.raises(Speech3Error, match="shard 0 died 3 times"):
            world._replace_dead()
    finally:
        world.close()


def test_shard_that_always_dies_in_its_push_ends_run(monkeypatch):
    """It computes minibatches each time, but none arrives: its replacements must not be tried for ever."""

    world = _of_dead_shards(monkeypatch)
    memory = world.server.memory

    def dies(used):
        memory.shards_N[0, Status.MINIBATCHES] += 2
        memory.states.states_M[used : used + 2] = 1
        world._replace_dead()

    try:
        dies(used=0)
        memory.states.publish([0], 0)  # the second published one minibatch before it died
        dies(used=1)
        assert world.workers.deaths == [1]
        dies(used=1)
        with pytest.raises(Speech3Error, match="shard 0 died 3 times without a minibatch used in between"):
            dies(used=1)
    finally:
        world.close()


def test_a_forked_child_holds_no_lock(tmp_path):
    """A DataLoader that forks: its processes may outlive a shard that dies with the lock."""
    (tmp_path / "lock").touch()
    lock = FileLock(str(tmp_path / "lock"))
    lock.acquire()
    child = os.fork()
    if not child:
        try:
            os.fstat(lock.descriptor)
            os._exit(1)
        except OSError:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not FileLock(str(tmp_path / "lock")).try_acquire(), "the parent still holds it"
    lock.release()
    assert FileLock(str(tmp_path / "lock")).try_acquire()


def test_too_little_shared_memory_names_remedy(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(tiny.descriptors())
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Speech3Error, match=r"MB of shared memory .*No space left on device.*smaller model"):
        Shared(tiny.Build(), tiny.Build()(), CONFIG, workers=1)
    assert len(tiny.descriptors()) == before


def test_memory_file_of_macos_is_removed(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with memory_file("server", 4096) as path:
        assert Path(path).stat().st_size == 4096 and Path(path).parent == tmp_path
        one, other = FileLock(path), FileLock(path)
        assert one.try_acquire() and not other.try_acquire()
        one.release()
        assert other.acquire() and not one.try_acquire()
        one.close(), other.close()
    assert not list(tmp_path.iterdir())


COORDINATOR = """
import sys
sys.path[:0] = {path!r}
if __name__ == "__main__":
    import tiny
    from speech3.config import AsgdConfig
    from speech3.engine.flat import flatten
    from speech3.engine.backends.shared import Shared
    build = tiny.Build(tiny.Batches(100000, pause_s=0.005))
    parts = build()
    world = Shared(build, parts, AsgdConfig(push_scale=1.0), workers=1)
    world.load(tensors={{"parameters": flatten(parts.model).vector_K}})
    for done in world.epoch(1, tiny.waiting(build.batches), tiny.rate(0.1, 1, build.batches)):
        if done.used > 5:
            print(*[process.pid for process in world.processes], flush=True)
"""


def test_shards_end_with_the_coordinator(tmp_path):
    script = tmp_path / "coordinator.py"
    script.write_text(COORDINATOR.format(path=[str(Path(__file__).parent)]))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as coordinator:
        try:
            pid = int(coordinator.stdout.readline())
            assert tiny.state(pid)
        finally:
            coordinator.kill()
    tiny.until(lambda: not tiny.state(pid))
