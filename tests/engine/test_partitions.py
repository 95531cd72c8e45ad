"""A server in partitions, pushes and fetches apart: against one server, Downpour's procedure, processes."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from tiny import killed_at

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.engine.gradient import gradient
from speech3.engine.interface import REFUSED, STALE, USED, WorkerParts
from speech3.errors import SettingError

BATCHES = tiny.Batches(48)
START = {"parameters": flatten(tiny.model()).vector_K.clone()}
VALUES = 16 * (3 + 1 + 3 + 1)  # of the flat vector of 5 - 7 - 5, padding included


def _train(config, times, codec=None, batches=BATCHES, epochs=1):
    world = Simulated(tiny.Build(batches, weight_decay=0.01)(), config, times, codec=codec)
    world.load(START)
    for epoch in range(1, epochs + 1):
        done = list(world.epoch(epoch, tiny.waiting(batches), tiny.rate(0.2, epoch, batches)))[-1]
    return world, done


CONFIGS = {
    "local": AsgdConfig(sync_every=2, max_distance=4, momentum=0.5, decay=0.9, max_staleness=3),
    "gradients": AsgdConfig(sync_every=3, max_distance=3, local_updates=False),
    "adagrad": AsgdConfig(sync_every=1, adagrad=0.05),
    "downpour": AsgdConfig(sync_every=2, fetch_every=3, max_distance=6, adagrad=0.05),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_partitions_never_busy_equal_one_server(name):
    """A sync takes no time, so every round finds all of them free: the same steps, value by value."""
    times = Times((1.0, 1.3, 2.1), 0.0, jitter=0.2)
    one, done = _train(CONFIGS[name], times, epochs=2)
    for partitions in (2, 8):
        config = CONFIGS[name].model_copy(update={"partitions": partitions})
        many, again = _train(config, times, epochs=2)
        assert again == done
        for key, tensor in one.snapshot().tensors.items():
            assert torch.equal(many.snapshot().tensors[key], tensor)
        assert many.server.version == one.server.version > 20


def test_busy_partitions_have_versions_of_their_own():
    config = AsgdConfig(sync_every=1, max_distance=6, partitions=4)
    world, done = _train(config, Times((1.0, 1.1, 1.2), 0.8))
    assert len(set(world.memory.version_S.tolist())) > 1 and done.used == len(BATCHES)
    assert sum(shard.busy for shard in done.shards) > 10
    # A minibatch counts once, with the largest of its stalenesses.
    assert done.frames == len(BATCHES) * tiny.FRAMES and sum(done.staleness) == len(BATCHES)
    assert len(done.staleness) > 1
    again, _ = _train(config, Times((1.0, 1.1, 1.2), 0.8))
    assert torch.equal(again.snapshot().tensors["parameters"], world.snapshot().tensors["parameters"])


def test_a_minibatch_is_dropped_only_if_all_partitions_refuse_it():
    """By hand: shard 1 pushes to partition 1 before shard 0 does, so shard 0 is stale there, and nowhere else."""
    config = AsgdConfig(sync_every=1, partitions=2, max_staleness=0, push_scale=1.0)
    world = Simulated(tiny.Build(BATCHES)(), config, Times((1.0, 1.0), 0.1))
    world.load(START)
    world.memory.states.states_M[:3] = 1, 2, 1
    rate, (p0, p1) = tiny.rate(0.2, 1, BATCHES), world.server.partitions
    first, second = world.shards
    for shard in world.shards:
        for partition, push in zip((p0, p1), shard.pushes, strict=True):
            tiny.visit(partition, push)
    states = world.server.states

    def compute(shard, number):
        states.computed(number, shard.compute(1, number, rate))

    compute(first, 0)
    compute(second, 1)
    assert tiny.visit(p1, second.pushes[1]) == USED
    assert tiny.visit(p1, first.pushes[1]) == STALE and world.memory.states.states_M[0] == 1  # another may take it
    assert tiny.visit(p0, first.pushes[0]) == USED and world.memory.states.states_M[0] == USED
    assert tiny.visit(p0, second.pushes[0]) == STALE and world.memory.states.states_M[1] == USED  # as it was
    assert states.refusals_M[:2].tolist() == [1, 1]
    compute(first, 2)
    second.compute(1, 1, rate)
    for partition, push in zip((p0, p1), second.pushes, strict=True):
        assert tiny.visit(partition, push) == USED
    assert tiny.visit(p0, first.pushes[0]) == STALE and world.memory.states.states_M[2] == 1
    assert tiny.visit(p1, first.pushes[1]) == STALE and world.memory.states.states_M[2] == STALE
    zero = dict.fromkeys((USED, STALE, REFUSED), 0)
    assert states.progress(zero).missed == 2  # what none took is dropped, and counted as that


def test_bytes_of_stale_push_are_counted():
    config = AsgdConfig(sync_every=1, max_staleness=0)
    _, done = _train(config, Times((1.0, 1.1, 1.2), 0.0))
    assert done.stale > 10 and done.up == (done.used + done.stale) * START["parameters"].nbytes


def test_minibatch_refused_by_some_partitions_counts_as_missed():
    """The second of three partitions takes no push, whatever there is in it."""
    config = AsgdConfig(sync_every=2, partitions=3)
    world = Simulated(tiny.Build(BATCHES)(), config, Times((1.0, 1.3), 0.1))
    world.load(START)
    whole, parts = world.server, world.server.partitions
    world.server = replace(whole, partitions=(parts[0], replace(parts[1], max_push=0.0), parts[2]))
    done = list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.2, 1, BATCHES)))[-1]
    assert (done.used, done.refused, done.missed) == (len(BATCHES), 0, len(BATCHES))
    assert world.memory.version_S[1] == 0 < world.memory.version_S[0]
    world.server = whole
    done = list(world.epoch(2, tiny.waiting(BATCHES), tiny.rate(0.2, 2, BATCHES)))[-1]
    assert (done.used, done.missed) == (len(BATCHES), 0)


def _downpour(config, minibatches):
    """Algorithm 7.1 of Dean et al. 2012 with one replica, and Adagrad on the server; their steps count from 1 here."""
    server = tiny.model()
    replica, rate = copy.deepcopy(server), 0.2
    parts = WorkerParts(replica, BATCHES, tiny.loss, seed=1)
    accrued = [torch.zeros_like(p) for p in replica.parameters()]
    squares = [torch.zeros_like(p) for p in replica.parameters()]
    for step in range(1, minibatches + 1):
        g = gradient(parts, 1, step - 1)[1]
        with torch.no_grad():
            for p, each, a in zip(replica.parameters(), g, accrued, strict=True):
                a.add_(rate * each)
                p.sub_(rate * each)
            if step % config.sync_every == 0:
                for p, a, s in zip(server.parameters(), accrued, squares, strict=True):
                    s.add_(a * a)
                    p.sub_(config.adagrad * a / (s.sqrt() + 1e-10))
                    a.zero_()
            if step % config.fetch_every == 0:
                for p, newest in zip(replica.parameters(), server.parameters(), strict=True):
                    p.copy_(newest)
    return server


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (1, 4), (4, 1), (2, 3), (6, 4), (4, 12)])
@pytest.mark.parametrize("partitions", [1, 3])
def test_separate_pushes_and_fetches_equal_downpour(n_push, n_fetch, partitions):
    config = AsgdConfig(
        sync_every=n_push, fetch_every=n_fetch, max_distance=12, adagrad=0.02, partitions=partitions, max_push=10
    )
    world = Simulated(tiny.Build(BATCHES)(), config, Times((1.0,), 0.1))
    world.load(START)
    done = list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.2, 1, BATCHES)))[-1]
    wanted = flatten(_downpour(config, len(BATCHES)))
    torch.testing.assert_close(world.snapshot().tensors["parameters"], wanted.vector_K, rtol=1e-4, atol=1e-6)
    assert done.staleness == (48,)  # its own pushes make nothing stale
    assert done.up == 48 // n_push * 4 * VALUES and done.down == (1 + 48 // n_fetch) * 4 * VALUES


@pytest.mark.parametrize("codec", ["bf16", "ternary", "topk", "rows"])
def test_codec_encodes_each_partition(codec):
    config = AsgdConfig(sync_every=1, max_distance=3, push_scale=0.5, partitions=3, fetch_every=2)
    right = {}
    for kind in ("none", codec):
        world, done = _train(
            config, Times((1.0,) * 3, 0.1, jitter=0.2), CodecConfig(kind=kind, share=0.2), tiny.Batches(120), epochs=2
        )
        right[kind] = done.correct / done.frames
    assert right[codec] > 0.85 * right["none"] > 0.4
    assert world.snapshot().tensors["parameters"].isfinite().all()


def test_links_take_virtual_time():
    """One worker: what a sync holds the server, its bytes over the bandwidth, and the way there and back."""
    config = AsgdConfig(sync_every=2, partitions=2)
    bandwidth, latency_s = 1000.0, 0.25
    _, done = _train(config, Times((1.0,), 0.5, bandwidth=bandwidth, latency_s=latency_s))
    assert done.up + done.down == (1 + 2 * 24) * 4 * VALUES
    # The last rounds' way back is nobody's loss; the time is when the last partition was pushed to.
    rounds_s = 24 * 0.5 + (done.up + done.down) / bandwidth + 2 * 2 * latency_s * 24
    assert done.seconds == pytest.approx(48 + rounds_s, abs=2 * (0.5 + 4 * VALUES / bandwidth + 4 * latency_s))
    assert done.shards[0].sync_s == pytest.approx(25 * 0.5 + (done.up + done.down) / bandwidth + 25 * 4 * latency_s)


class _Round:
    """Two shards of a server in partitions: the second has pushed minibatch 1, the first is about to push 0 and 2."""

    def __init__(self, config):
        batches = tiny.Batches(6)
        self.world, self.rate = (
            Simulated(tiny.Build(batches)(), config, Times((1.0, 1.0), 0.1)),
            tiny.rate(0.2, 1, batches),
        )
        self.server, self.shards = self.world.server, self.world.shards
        self.world.load(START)
        self.before = self.server.begin_epoch(tiny.waiting(batches))
        for worker in (0, 1):
            self.fetch(worker)
        self.compute(0), self.compute(1), self.visit(1), self.compute(0)

    def fetch(self, worker):
        self.shards[worker].begin()
        for partition, push in zip(self.server.partitions, self.shards[worker].pushes, strict=True):
            tiny.visit(partition, push)

    def compute(self, worker):
        if (number := self.server.queue.draw(worker)) is not None:
            self.server.states.computed(number, self.shards[worker].compute(1, number, self.rate))
        return number is not None

    def visit(self, worker):
        for request in self.shards[worker].sync_due(last=worker == 1):
            tiny.visit(self.server.partitions[request.partition], self.shards[worker].pushes[request.partition])

    def published(self):
        """Of each partition, as bytes: values, momentum, the journal."""
        tensors = [(each.published.vector_K, each.published.velocity_P) for each in self.server.partitions]
        journals = [each.memory.journal_S2J[each.number, each.version % 2] for each in self.server.partitions]
        return [[bytes(np.asarray(a)) for a in (*t, j)] for t, j in zip(tensors, journals, strict=True)]


@pytest.mark.parametrize("fetch_every", [None, 4])
def test_a_shard_killed_at_any_instruction_of_a_round_leaves_each_partition_whole(fetch_every):
    config = AsgdConfig(sync_every=2, fetch_every=fetch_every, partitions=2, momentum=0.5, push_scale=0.5)
    whole = _Round(config)
    before = whole.published()
    with killed_at(10**9) as run:
        whole.visit(0)
    after, met = whole.published(), set()
    for instruction in range(0, run() + 1, 11):
        again = _Round(config)
        with killed_at(instruction):
            again.visit(0)
        versions = again.world.memory.version_S.tolist()
        met.add(tuple(versions))
        assert again.published() == [after[n] if version == 2 else before[n] for n, version in enumerate(versions)]
        # The coordinator's part; then all go on.
        again.server.mark_published()
        assert again.server.queue.give_back(0) == (0 if 2 in versions else 2)
        again.fetch(0)
        while any([again.compute(0), again.compute(1)]):
            again.visit(0), again.visit(1)
        again.visit(1)
        for request in again.shards[0].sync_due(last=True):
            tiny.visit(again.server.partitions[request.partition], again.shards[0].pushes[request.partition])
        done = again.server.progress(again.before, seconds=0.0, returned=0, restarts=0)
        assert again.server.queue.finished and done.used == 6 and done.frames == 6 * tiny.FRAMES
        assert sum(done.staleness) == 6
    assert met == {(1, 1), (2, 1), (2, 2)}


def test_keys_that_need_fetched_parameters_refuse_fetch_every():
    AsgdConfig(sync_every=2, fetch_every=2, max_relative_distance=0.1)
    with pytest.raises(ValueError, match=r"max_relative_distance uses .*remove fetch_every"):
        AsgdConfig(sync_every=2, fetch_every=4, max_relative_distance=0.1)


def test_more_partitions_than_cache_lines_are_refused():
    with pytest.raises(SettingError, match=r"training\.asgd\.partitions=9"):
        _train(AsgdConfig(partitions=9), Times((1.0,), 0.1))


def test_more_partitions_than_open_files_are_refused():
    with pytest.raises(ValueError, match="less than or equal to 256"):
        AsgdConfig(partitions=257)


def test_processes_report_what_some_partitions_refuse():
    """All pushes are too long but those to the last of eight: its biases are large, and all outputs alike."""
    start = {"parameters": START["parameters"].clone()}
    start["parameters"][112:128] = 1000.0
    batches = tiny.Batches(24)
    config = AsgdConfig(sync_every=2, partitions=8, max_push=1e-3)
    world = Shared(tiny.Build(batches), tiny.Build(batches)(), config, workers=1)
    try:
        world.load(start)
        done = list(world.epoch(1, tiny.waiting(batches), tiny.rate(0.2, 1, batches)))[-1]
    finally:
        world.close()
    assert (done.used, done.refused, done.missed) == (24, 0, 7 * 24)


def test_a_partition_of_nothing_but_zeros_takes_pushes():
    """Biases begin at zero, and a partition may have no more than one: its pushes are not measured by their length."""
    start = {"parameters": START["parameters"].clone()}
    start["parameters"][48:64] = 0.0  # a bias, the fourth of eight stretches
    world = Simulated(tiny.Build(BATCHES)(), AsgdConfig(sync_every=2, partitions=8), Times((1.0,), 0.0))
    world.load(start)
    done = list(world.epoch(1, tiny.waiting(BATCHES), tiny.rate(0.2, 1, BATCHES)))[-1]
    assert (done.used, done.refused, done.missed) == (len(BATCHES), 0, 0)
    assert world.snapshot().tensors["parameters"][48:55].abs().min() > 0


def test_two_processes():
    config = AsgdConfig(sync_every=1, partitions=4, max_distance=6)
    batches = tiny.Batches(300, pause_s=0.001)
    world = Shared(tiny.Build(batches), tiny.Build(batches)(), config, workers=2)
    try:
        world.load(START)
        for epoch in (1, 2):
            moves = world.epoch(epoch, tiny.waiting(batches), tiny.rate(0.3, epoch, batches))
            for done in moves:
                if epoch == 1 and done.used > 100 and not done.restarts:
                    world.processes[0].kill()
        snapshot = world.snapshot()
    finally:
        world.close()
    assert (snapshot.states_M == USED).all() and done.used == 300 and done.frames == 300 * tiny.FRAMES
    assert sum(done.staleness) == 300
    assert done.correct / done.frames > 0.6 and np.isfinite(done.loss_sum)
    assert snapshot.tensors["parameters"].isfinite().all()
