"""The passive server: publishing, dropping, refusing; and a shard that dies at any instruction.

Axes: P parameters.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import tiny
import torch
from tiny import Killed, killed_at

from speech3.config import AsgdConfig
from speech3.engine.flat import Flat
from speech3.engine.interface import REFUSED, STALE, USED, WAITING
from speech3.engine.server import Partition, make_server, memory_layout, private_memory
from speech3.engine.server_optimizer import ServerOptimizer
from speech3.engine.shard import Push

M, P, BUFFERS = 8, 16, 3  # parameter n falls by one when minibatch n is used; buffer 0 holds the last one's number


class _Bench:
    """A server, and shards that are pushes without a model."""

    def __init__(self, momentum=0.0, max_staleness=None, max_push=10.0, local=False):
        self.local = local
        config = AsgdConfig(push_scale=1.0, momentum=momentum, max_staleness=max_staleness, max_push=max_push)
        like = Flat(torch.zeros(P + BUFFERS), (), P)
        self.memory = private_memory(memory_layout(like, config, 2, M))
        self.whole = make_server(self.memory, config, like, nullcontext())
        self.server = self.whole.partitions[0]
        self.buffers = self.server.buffers
        self.buffers[0].vector_K[:P] = 100.0
        self.before = self.whole.begin_epoch(np.zeros(M, np.int32))
        self.shards = [self.push(), self.push()]

    def push(self):
        own = Flat(torch.full((P + BUFFERS,), -1.0), (), P)
        push = Push(own, torch.zeros(P) if self.local else None, None if self.local else torch.zeros(P))
        tiny.visit(self.server, push)
        return push

    def draw(self, shard, value=1.0):
        """Draw a minibatch for a shard, and let it compute."""
        number, push = self.whole.queue.draw(shard), self.shards[shard]
        push.numbers.append(number)
        self.whole.states.computed(number, tiny.step(number + 1, 0.5 / (number + 1), 1))
        if self.local:
            push.own.parameters_P[number] -= value
        else:
            push.push_P[number] += value
        push.own.buffers[0] = number
        return number

    def sync(self, shard):
        return tiny.visit(self.server, self.shards[shard])

    def published(self):
        return self.buffers[self.server.version % 2].vector_K

    def state(self):
        """All that is published, as bytes."""
        index = self.server.version % 2
        memory = self.memory
        arrays = (memory.state_2K, memory.velocity_2P, memory.squares_2P, memory.journal_S2J[0])
        return tuple(array[index].tobytes() for array in arrays)

    def everything(self):
        """All that decides how shards go on, as bytes."""
        memory = vars(self.memory) | vars(self.memory.states)
        return tuple(memory[name].tobytes() for name in sorted(memory.keys() - {"states", "ended_S"}))

    def progress(self):
        return self.whole.progress(self.before, seconds=0.0, returned=0, restarts=0)


@pytest.mark.parametrize("local", [True, False])
def test_a_push_is_published_whole_and_its_shard_has_the_newest(local):
    bench = _Bench(local=local)
    assert bench.server.version == 0 and torch.equal(bench.shards[0].own.vector_K, bench.published())
    first, second = bench.draw(0), bench.draw(0)
    other = bench.draw(1)
    assert (first, second, other) == (0, 1, 2)
    assert bench.whole.states.states_M.tolist() == [1, 1, 2, 0, 0, 0, 0, 0]
    assert bench.sync(0) == USED
    assert bench.server.version == 1
    assert bench.published().tolist() == [99.0, 99.0] + [100.0] * 14 + [1.0, 0.0, 0.0]
    assert torch.equal(bench.shards[0].own.vector_K, bench.published())
    assert (bench.shards[0].numbers, bench.shards[0].version) == ([], 1)
    assert bench.whole.states.states_M.tolist() == [USED, USED, 2, 0, 0, 0, 0, 0]
    assert bench.sync(1) == USED  # its staleness is one
    assert bench.published()[:3].tolist() == [99.0] * 3 and bench.published()[P] == 2
    done = bench.progress()
    assert (done.used, done.versions, done.staleness) == (3, 2, (2, 1))
    assert (done.frames, done.loss_sum, done.correct) == (1 + 2 + 3, 1.5, 3)
    assert bench.sync(1) == USED and bench.server.version == 2  # nothing to push: fetches


def test_a_stale_push_is_dropped_and_its_shard_begins_again_from_the_newest():
    bench = _Bench(max_staleness=1)
    bench.draw(1)
    for _ in range(2):
        bench.draw(0)
        assert bench.sync(0) == USED
    before = bench.state()
    assert bench.sync(1) == STALE
    assert (bench.state(), bench.server.version) == (before, 2)
    assert bench.shards[1].version == 2 and torch.equal(bench.shards[1].own.vector_K, bench.published())
    assert not bench.shards[1].push_P.any()
    assert bench.whole.states.states_M.tolist() == [STALE, USED, USED, 0, 0, 0, 0, 0]
    bench.draw(1)
    bench.draw(0)
    assert bench.sync(0) == bench.sync(1) == USED  # a staleness of one may be
    done = bench.progress()
    assert (done.used, done.stale, done.versions, done.staleness) == (4, 1, 4, (3, 1))


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, 5000.0])
def test_a_push_that_is_not_finite_or_explodes_changes_nothing(value, local):
    bench = _Bench(0.5, local=local)
    bench.draw(0)
    bench.sync(0)
    before = bench.state()
    bench.draw(0)
    bench.draw(1, value)
    assert bench.sync(1) == REFUSED
    assert (bench.state(), bench.server.version) == (before, 1)
    assert torch.equal(bench.shards[1].own.vector_K, bench.published())
    slot_P = bench.shards[1].fetched_P if local else bench.shards[1].push_P
    assert torch.equal(slot_P, bench.published()[:P] if local else torch.zeros(P))
    assert bench.whole.states.states_M.tolist() == [USED, 1, REFUSED, 0, 0, 0, 0, 0]
    assert bench.sync(0) == USED
    # What was refused is in no slot either: v = 0.5 * 1 for the first minibatch, and 1 for the second.
    assert bench.published()[:3].tolist() == [98.5, 99.0, 100.0]
    assert (bench.progress().refused, bench.progress().used) == (1, 2)


def test_an_infinite_push_is_refused_even_without_a_limit():
    bench = _Bench(max_push=float("inf"))
    bench.draw(0, float("inf"))
    assert bench.sync(0) == REFUSED


def test_push_with_loss_that_was_not_finite_is_refused():
    bench = _Bench()
    bench.draw(0)
    bench.shards[0].finite = False
    assert bench.sync(0) == REFUSED and bench.server.version == 0
    assert bench.shards[0].finite


def test_large_staleness_counts_in_last_bin():
    bench = _Bench()
    bench.draw(0)
    bench.memory.version_S[0] = 200
    assert bench.sync(0) == USED
    assert bench.whole.states.staleness_M[0] == 200 and bench.progress().staleness == (0,) * 63 + (1,)


def _prepare(kind, local):
    """Shard 1 was here before; shard 0 has two minibatches and wants to sync."""
    bench = _Bench(0.5 if kind == "momentum" else 0.0, max_staleness=0 if kind == "stale" else None, local=local)
    bench.draw(0, 1e30 if kind == "refused" else 1.0)
    bench.draw(1)
    bench.sync(1)
    bench.draw(0)
    return bench


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(("kind", "outcome"), [("momentum", USED), ("stale", STALE), ("refused", REFUSED)])
def test_shard_killed_at_any_instruction_of_sync_leaves_a_published_version(kind, outcome, local):
    whole = _prepare(kind, local)
    before = whole.state()
    with killed_at(10**9) as run:
        assert whole.sync(0) == outcome
    after = whole.state()
    assert (after != before) == (outcome == USED)
    instructions = run()
    assert instructions > 100
    met, memories = set(), set()
    for instruction in range(instructions + 1):
        bench = _prepare(kind, local)
        with killed_at(instruction):
            bench.sync(0)
        # What is published is the state from before or from after, to the last bit.
        version, state = bench.server.version, bench.state()
        assert version in (1, 2) if outcome == USED else version == 1
        assert state == (after if version == 2 else before)
        # The coordinator's part.
        bench.server.mark_published()
        returned = bench.whole.queue.give_back(0)
        states = bench.whole.states.states_M.tolist()
        ended = [states[0], states[2]]
        assert states[1] == USED and states[3:] == [WAITING] * 5
        assert set(ended) <= ({USED} if version == 2 else {WAITING, outcome} - {USED})
        assert returned == ended.count(WAITING)
        met.add((version, returned))
        # Others go on, alike from the same memory; at the end each minibatch that is not dropped is in the model once.
        if bench.everything() in memories:
            continue
        memories.add(bench.everything())
        push = bench.shards[0] = bench.push()
        assert torch.equal(push.own.vector_K, bench.published())
        for shard in (0, 1) * M:
            if bench.memory.cursor[0] < M and WAITING in bench.whole.states.states_M:
                bench.draw(shard)
                bench.sync(shard)
        bench.whole.queue.draw(0)
        assert bench.whole.queue.finished
        used = bench.whole.states.states_M == USED
        done = bench.progress()
        assert done.used + done.stale + done.refused == M
        assert done.frames == sum(np.flatnonzero(used) + 1)
        assert done.loss_sum == 0.5 * done.used and done.correct == done.used
        assert sum(done.staleness) == done.used
        if kind != "momentum":
            assert bench.published()[:M].tolist() == np.where(used, 99.0, 100.0).tolist()
    if outcome == USED:
        assert met == {(1, 2), (2, 0)}
    else:
        assert met == {(1, 2), (1, 1), (1, 0)}


def test_shard_killed_inside_step_leaves_published_buffer_unchanged(monkeypatch):
    """The step is compiled, so the instructions of the test above skip it: here it dies half-way."""
    bench = _prepare("momentum", True)
    before = bench.state()

    def half(optimizer, old, new, own, **_):
        for tensor in (new.parameters_P, new.velocity_P, own.parameters_P, own.fetched_P):
            tensor[: P // 2] = 12345.0
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ServerOptimizer, "step", half)
        with pytest.raises(Killed):
            bench.sync(0)
    assert bench.state() == before and bench.server.version == 1
    assert bench.whole.queue.give_back(0) == 2
    bench.shards[0] = bench.push()
    bench.draw(0), bench.draw(0)
    assert bench.sync(0) == USED
    assert bench.published()[:3].tolist() == [99.0, 98.5, 99.0]


def test_next_sync_marks_minibatches_of_dead_shard_used(monkeypatch):
    bench = _Bench()
    bench.draw(0)
    bench.draw(1)
    with monkeypatch.context() as dies:
        dies.setattr(Partition, "mark_published", lambda _: None)
        bench.sync(0)
    assert bench.whole.states.states_M[0] == 1 and bench.server.version == 1
    assert bench.sync(1) == USED
    assert bench.whole.states.states_M[:2].tolist() == [USED, USED]
    assert bench.whole.queue.give_back(0) == 0
