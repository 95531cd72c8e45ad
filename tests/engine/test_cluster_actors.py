"""A partition and a shard of world cluster, without Ray between them: they do what the simulated world does."""

import pickle
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tiny
import torch

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.backends.processes import Clock
from speech3.engine.flat import flatten, partition_bounds
from speech3.engine.interface import REFUSED, STALE, USED, WAITING, Rate, ShardReport
from speech3.engine.pool import MinibatchStates
from speech3.errors import MachineError

ray = pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")

from speech3.engine.backends import cluster_actors as actors_module  # noqa: E402 - imports ray
from speech3.engine.backends.cluster import (  # noqa: E402
    Cluster,
    ServerCopy,
    ShardHandle,
    check,
)
from speech3.engine.backends.cluster_actors import (  # noqa: E402
    Order,
    PartitionActor,
    PartitionReport,
    PushMessage,
    ShardActor,
    ShardWork,
    facts_of,
    plans_of,
)

BATCHES = tiny.Batches(24)
RATE = Rate(0.3, 1, len(BATCHES), warmup=0.5)


def mailed(message):
    """As it arrives elsewhere: a copy whose arrays cannot be written to."""
    buffers = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[memoryview(bytes(buffer.raw())).toreadonly() for buffer in buffers])


class Handle:
    """An actor's handle; what is asked is done at once, and fetched by `ray.get`."""

    def __init__(self, actor):
        self.actor = actor

    def __getattr__(self, method):
        return SimpleNamespace(remote=lambda *args: mailed(getattr(self.actor, method)(*mailed(args))))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(actors_module.ray, "get", lambda answer: answer)


@dataclass
class Pair:
    """A shard and its partitions, and what these report."""

    shard: ShardActor
    partitions: list[PartitionActor]
    world: Cluster

    @property
    def states(self):
        return self.world.states

    @property
    def progress(self):
        return replace(self.states.progress(self.world.before), versions=max(self.world.versions))

    def work(self, incarnation=7, rate=RATE):
        for partition in self.partitions:
            partition.admit(incarnation)
        outcome = self.shard.run(Order(incarnation, rate.epoch, rate, [Handle(each) for each in self.partitions]))
        for number, partition in enumerate(self.partitions):
            self.world._receive_report(number, partition.report())
        return outcome

    def tensors(self):
        states = [partition.snapshot()[0] for partition in self.partitions]
        return {name: torch.cat([torch.from_numpy(each[name]) for each in states]) for name in states[0]}


def coordinator(states_M, partitions):
    """Of a server that does nothing: it gathers what the partitions report."""
    world = object.__new__(Cluster)
    states = MinibatchStates.of(len(states_M))
    states.begin(np.minimum(states_M, WAITING))
    world.server, world.workers = Mock(plans=[None] * partitions), []
    world.copied, world.before, world.incarnations, world.work = (
        ServerCopy({}, states),
        states.counts(),
        {},
        {},
    )
    world.copied_at = world.copy_took = world.deaths_since_copy = 0
    world._begin_again()
    return world


def pair(config, build, codec=CodecConfig(), states_M=None):  # noqa: B008 - frozen
    parts, shard = build(), ShardActor()
    own, batches = flatten(parts.model), build.batches
    shard.prepare(0, build, "cpu", config, codec, 1)
    states_M = tiny.waiting(batches) if states_M is None else states_M
    partitions = []
    plans = plans_of(parts, own, config, 1, codec)
    for plan, stretch in zip(plans, partition_bounds(own, config.partitions), strict=True):
        partition = PartitionActor()
        partition.prepare(mailed(plan))
        partition.begin({"parameters": own.vector_K[stretch].numpy()}, states_M)
        partitions.append(partition)
    return Pair(shard, partitions, coordinator(states_M, config.partitions))


@pytest.mark.parametrize(
    ("config", "codec"),
    [
        (AsgdConfig(sync_every=2, max_distance=5), CodecConfig()),
        (AsgdConfig(sync_every=2, max_distance=5, partitions=3, momentum=0.5), CodecConfig()),
        (AsgdConfig(sync_every=2, max_distance=6, fetch_every=5, partitions=2, adagrad=0.1), CodecConfig()),
        (AsgdConfig(sync_every=4, max_distance=6, fetch_every=2), CodecConfig(kind="bf16", down="ternary")),
        (AsgdConfig(local_updates=False, push_scale=0.3, partitions=2), CodecConfig()),
        (AsgdConfig(local_updates=False, push_scale=0.3), CodecConfig(kind="topk", share=0.2)),
        (AsgdConfig(local_updates=False, partitions=3), CodecConfig(kind="rows")),
        (AsgdConfig(sync_every=2, partitions=2), CodecConfig(kind="ternary", down="ternary")),
        (AsgdConfig(sync_every=1, partitions=2), CodecConfig(kind="none", down="ternary")),
    ],
)
def test_one_shard_is_that_of_the_simulated_world(config, codec):
    """To the last bits of a float32: what is sent is subtracted there, and not in the pass that steps."""
    build = tiny.Build(BATCHES, norm=True, weight_decay=0.01)
    world = Simulated(build(), config, Times((1.0,), 0.1), codec=codec)
    world.load({"parameters": flatten(build().model).vector_K})
    done = list(world.epoch(1, tiny.waiting(BATCHES), RATE))[-1]
    ours = pair(config, build, codec)
    outcome = ours.work()
    theirs, tensors = world.snapshot().tensors, ours.tensors()
    assert tensors.keys() == theirs.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=2e-6)
    progress = ours.progress
    assert progress.loss_sum == pytest.approx(done.loss_sum, rel=1e-5)
    sent = {"seconds": 0.0, "up": 0, "down": 0, "shards": (), "loss_sum": 0.0}
    assert replace(progress, **sent) == replace(done, **sent) and progress.used == len(BATCHES)
    assert outcome.work.report.minibatches == len(BATCHES)
    assert (outcome.work.up, outcome.work.down) == (done.up, done.down)


def test_messages_of_expelled_shard_change_nothing():
    ours = pair(AsgdConfig(sync_every=2, partitions=2), tiny.Build(BATCHES))
    first, before = ours.partitions[0], ours.tensors()["parameters"]
    first.admit(3)
    assert [first.draw(3, None), first.draw(3, 0)] == [0, 1]
    assert not first.expel(3).numbers.size and first.draw(3, 1) is None
    assert first.sync(PushMessage(3, 0, True, ShardWork(), 0, steps={0: tiny.step(1, 1.0, 1)})) is None
    assert torch.equal(ours.tensors()["parameters"], before)
    # What it had out waits again, but not what a partition had published: 1, in the account of who asks.
    states_M = tiny.waiting(BATCHES)
    states_M[1] = USED
    assert first.give_back(3, states_M) == [0]
    first.admit(4)
    assert [first.draw(4, None), first.draw(4, 0)] == [0, 2]


class Dies(Handle):
    """A partition that dies at its third message."""

    visits = 0

    def __getattr__(self, method):
        self.visits += method == "sync"
        if self.visits == 3:
            raise ray.exceptions.ActorDiedError
        return super().__getattr__(method)


def test_a_shard_reports_a_partition_that_is_lost_or_does_not_know_it():
    ours = pair(AsgdConfig(sync_every=2), tiny.Build(BATCHES))
    ours.partitions[0].admit(1)
    outcome = ours.shard.run(Order(1, 1, RATE, [Dies(ours.partitions[0])]))
    assert "actor" in outcome.lost and outcome.work.report.minibatches == 4
    outcome = ours.shard.run(Order(9, 1, RATE, [Handle(ours.partitions[0])]))
    assert outcome.expelled and not outcome.lost and not outcome.work.report.minibatches
    # It can work again, with nothing left in its hands of what was lost.
    numbers = ours.partitions[0].give_back(1, tiny.waiting(BATCHES))
    assert numbers == [0, 1, 2, 3, 4]  # 4 was drawn while 3 was computed
    ours.world._receive_report(0, ours.partitions[0].report())
    ours.partitions[0].begin({"parameters": flatten(tiny.model()).vector_K.numpy()}, tiny.waiting(BATCHES))
    ours.world = coordinator(tiny.waiting(BATCHES), 1)
    ours.work(incarnation=2)
    assert ours.states.finished and ours.progress.frames == len(BATCHES) * tiny.FRAMES


def test_too_long_push_is_refused_by_all_partitions_and_dropped():
    config = AsgdConfig(sync_every=2, partitions=2, max_push=1e-6)
    ours = pair(config, tiny.Build(BATCHES))
    before = ours.tensors()["parameters"]
    ours.work()
    assert (ours.states.states_M == REFUSED).all() and ours.progress.frames == 0
    assert torch.equal(ours.tensors()["parameters"], before)


def _told(world, partition, numbers, ended=USED, staleness=0):
    """What a partition says of one push."""
    states = MinibatchStates.of(len(world.states))
    for number in numbers:
        states.computed(number, tiny.step(10, 0.5, 4))
    if ended == USED:
        states.publish(numbers, staleness)
    else:
        states.refuse(numbers, ended, 1)
    world._receive_report(
        partition, PartitionReport(np.array(numbers), states.rows(np.array(numbers)), int(ended == USED), {})
    )


def test_a_minibatch_is_counted_with_the_first_partition_and_dropped_by_the_last():
    world = coordinator(np.array([0, 0, 0, USED, 5], np.int32), 2)
    assert world.states.states_M.tolist() == [WAITING, WAITING, WAITING, USED, WAITING]
    _told(world, 0, [0, 1], staleness=1)
    _told(world, 0, [2], STALE, 9)
    assert world.states.states_M.tolist() == [USED, USED, WAITING, USED, WAITING]
    assert world.states.progress(world.before).frames == 20
    world.server.copy.return_value = {}
    world._copy()
    _told(world, 1, [0, 1], staleness=3)
    _told(world, 1, [2], staleness=2)
    assert world.states.states_M.tolist() == [USED, USED, USED, USED, WAITING]
    done = world.states.progress(world.before)
    assert (done.used, done.frames, done.correct, done.loss_sum) == (3, 30, 12, 15.0)
    assert (done.staleness, world.versions, done.missed) == ((0, 0, 1, 2), [1, 2], 1)
    # A dead shard's minibatch is everybody's again: one refusal of two is no longer held against it.
    _told(world, 0, [4], REFUSED)
    world.server.ask.return_value, world.server.ask_queue.return_value, world.returned = [], [4], 0
    world._give_back(1)
    _told(world, 1, [4], REFUSED)
    assert world.returned == 1 and not world.states.finished
    _told(world, 0, [4], REFUSED)
    assert world.states.finished and world.states.counts() == {USED: 4, STALE: 0, REFUSED: 1}
    # The copy is of its time; the server begins again there.
    assert world.copied.versions == 1 and world.copied.states.ended == 3
    world._begin_again()
    assert world.states.states_M.tolist() == [USED, USED, WAITING, USED, WAITING] and world.versions == [1, 1]
    _told(world, 1, [2], STALE, 9)
    assert world.states.states_M[2] == WAITING and not world.states.progress(world.before).missed
    _told(world, 0, [2], STALE, 9)
    assert world.states.states_M[2] == STALE


def test_minibatch_refused_by_one_partition_and_used_by_other_is_missed():
    world = coordinator(np.zeros(2, np.int32), 2)
    _told(world, 0, [1], STALE, 9)
    assert world.states.states_M.tolist() == [WAITING, WAITING]
    _told(world, 1, [1])
    assert world.states.states_M.tolist() == [WAITING, USED] and world.states.progress(world.before).missed == 1
    _told(world, 0, [0])
    _told(world, 1, [0], STALE, 9)  # too late, and elsewhere it is used
    assert world.states.finished and world.states.progress(world.before).missed == 2


def test_a_shard_that_hangs_is_replaced(monkeypatch):
    """It pushes at most every four minibatches, which take two seconds each: that makes 160 s."""
    world = coordinator(tiny.waiting(BATCHES), 1)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    worker = ShardHandle(Mock(), pending="a reply", placed=Mock(), prepared=True, incarnation=5, heard=1000.0)
    world.workers, world.incarnations, world.most_pushed, world.hang, world.restarts = [worker], {5: 0}, 4, "", 0
    world.work = {5: ShardWork(ShardReport(minibatches=10, compute_s=20.0))}
    world.server.ask.return_value, world.server.ask_queue.return_value, world.returned = [], [3, 4], 0
    world.clock, world.kind = Clock(looked=1000.0), Mock()

    def at(seconds):
        for now in range(int(world.clock.looked), seconds):  # the coordinator looks all the time
            world.clock.look(float(now))
        monkeypatch.setattr(time, "monotonic", lambda: float(seconds))
        world._replace_hung()
        return world.workers[0]

    assert at(1159) is worker and not world.hang
    assert at(1161) is not worker and world.hang == "shard 0 hung (161 s without a push) and was killed"
    assert (world.restarts, world.returned) == (1, 2) and world.workers[0].go


def test_facts_differ_by_model_and_by_minibatches():
    def facts(build, width=None):
        parts = build()
        if width:
            parts = type(parts)(torch.nn.Linear(5, width), parts.source, parts.loss, parts.seed)
        return facts_of(parts, flatten(parts.model))

    one = facts(tiny.Build(BATCHES))
    assert not one.differs(facts(tiny.Build(BATCHES))) and not facts_of().differs(one)
    assert one.differs(facts(tiny.Build(BATCHES), width=3)).startswith("model ")
    assert one.differs(facts(tiny.Build(BATCHES, dropout=0.5))).startswith("model ")
    assert one.differs(facts(tiny.Build(tiny.Batches(23)))).startswith("minibatches ")
    check("shard 1", one, facts(tiny.Build(BATCHES)))
    assert one.differs(replace(one, engine="edited")) == f"engine {one.engine} there, edited here"
    there = replace(facts(tiny.Build(BATCHES), width=3), node="10.0.0.7")
    with pytest.raises(MachineError, match=r"shard 1 on node 10\.0\.0\.7 differs from the others"):
        check("shard 1", there, one)


def test_the_digest_is_of_every_file_of_the_engine(monkeypatch):
    """A node with another `server.py` must not join, whatever its file of the backend is."""
    read, noted = Path.read_bytes, set()

    def noting(path):
        noted.add(path.name)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", noting)
    actors_module._engine_digest.__wrapped__()
    assert noted >= {"cluster_actors.py", "server.py", "shard.py", "codecs.py", "terngrad.py"}
