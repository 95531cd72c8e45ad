"""The queue of minibatches; and shards in any interleaving, with deaths at any instruction: the accounting adds up."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings, strategies as st
from tiny import Killed, killed_at
from torch import nn

from speech3.config import AsgdConfig
from speech3.engine.interface import REFUSED, STALE, USED, WAITING, WorkerParts, position, turns
from speech3.engine.pool import MinibatchQueue, MinibatchStates
from speech3.engine.server import make_server, memory_layout, private_memory
from speech3.engine.shard import Compute, Draw, Shard, Sync


def _pool(states=(0,) * 6):
    pool = MinibatchQueue(MinibatchStates.of(len(states)), np.zeros(2, np.int64), nullcontext())
    pool.fill(np.array(states, np.int32))
    return pool


def test_each_minibatch_is_drawn_once():
    pool = _pool()
    assert [pool.draw(shard) for shard in (0, 1, 0, 2, 1, 0, 0, 1)] == [0, 1, 2, 3, 4, 5, None, None]
    assert pool.states_M.tolist() == [1, 2, 1, 3, 2, 1]
    assert not pool.finished


def _in_rows(states, *starts):
    ends = [*starts[1:], len(states)]
    pool = MinibatchQueue(
        MinibatchStates.of(len(states)),
        np.zeros(2, np.int64),
        nullcontext(),
        [range(start, end) for start, end in zip(starts, ends, strict=True)],
    )
    pool.fill(np.array(states, np.int32))
    return pool


def test_a_shard_continues_its_row_then_begins_another():
    pool = _in_rows((0,) * 9, 0, 3, 6)
    assert [pool.draw(0), pool.draw(1), pool.draw(0, 0), pool.draw(1, 3), pool.draw(0, 1)] == [0, 3, 1, 4, 2]
    assert [pool.draw(0, 2), pool.draw(1, 4)] == [6, 5]  # the first went over to the third row
    # Nobody began the second half of what is left of the third but who has its first half: 7 and 8 are one stretch.
    assert [pool.draw(1, 5), pool.draw(0, 6), pool.draw(0, 7), pool.draw(1, 8)] == [8, 7, None, None]
    pool.states.publish(range(9), 0)
    assert pool.finished


def test_shard_without_row_takes_second_half_of_longest_waiting_stretch():
    pool = _in_rows((1, 0, 0, 2, 0, 0, 0, 0, 0, 3), 0, 3, 9)
    assert [pool.draw(4), pool.draw(4, 6), pool.draw(5), pool.draw(1, 3)] == [6, 7, 2, 4]
    assert pool.states_M.tolist() == [1, 0, 6, 2, 2, 0, 5, 5, 0, 3]


def test_a_resumed_row_continues_where_it_was():
    """No shard works before the waiting stretch, so its first half is left to nobody."""
    pool = _in_rows((USED,) * 4 + (0,) * 6, 0)
    drawn = [pool.draw(0)]
    while (number := pool.draw(0, drawn[-1])) is not None:
        drawn.append(number)
    assert drawn == [4, 5, 6, 7, 8, 9]


def test_row_of_dead_shard_is_drawn_again():
    pool = _in_rows((0,) * 6, 0, 3)
    last = None
    for _ in range(4):
        last = pool.draw(0, last)
    pool.states.publish([0, 1], 0)
    assert pool.give_back(0) == 2
    assert pool.draw(1) == 3  # a whole row is better than the rest of one
    assert [pool.draw(1, 3), pool.draw(1, 4), pool.draw(1, 5), pool.draw(1, 2)] == [4, 5, 2, None]


class _Looked(np.ndarray):
    """States that count how many of them are looked at."""

    count = 0

    def __eq__(self, other):
        _Looked.count += self.size
        return np.asarray(self) == other

    def __ne__(self, other):
        _Looked.count += self.size
        return np.asarray(self) != other


@pytest.mark.parametrize(("length", "each"), [(None, 4), (4, 8), (40, 8)])
def test_draw_reads_few_states(length, each, monkeypatch):
    """Three shards draw an epoch, in rows of some length or in order; a fourth that died had the first two."""
    states, size = (4, 4) + (0,) * 5998, 6000
    pool = _in_rows(states, *range(0, size, length)) if length else _pool(states)
    pool.states_M = pool.states_M.view(_Looked)
    monkeypatch.setattr(_Looked, "count", 0)
    last, drawn = [None] * 3, []
    for turn in range(2 * size):
        shard = turn % 3
        last[shard] = pool.draw(shard, last[shard])
        drawn += [] if last[shard] is None else [last[shard]]
        if len(drawn) == 5000 and pool.states_M[0] == 4:
            pool.states.states_M[:2] = WAITING
            pool.reopen(np.array([0, 1]))
    assert sorted(drawn) == list(range(size))
    assert _Looked.count < each * size


def test_learning_rate_depends_on_minibatches_done_not_on_row():
    rows = tuple(range(begin, begin + 10) for begin in range(0, 70, 10))
    assert [position(number, None, 5) for number in (0, 33)] == [0, 33]
    assert [position(number, rows, 1) for number in (0, 33)] == [0, 33]
    # Three workers in rows 0 to 2, then 3 to 5, then one in the last.
    assert [position(number, rows, 3) for number in (0, 10, 20, 1, 29)] == [0, 1, 2, 3, 29]
    assert [position(number, rows, 3) for number in (30, 40, 59, 60, 61)] == [30, 31, 59, 60, 61]
    assert sorted(position(number, rows, 3) for number in range(70)) == list(range(70))


def test_turns_group_waiting_minibatches_into_synchronous_steps():
    states = np.array([0, 0, 0, USED, USED, 0, 0, 0, 0], np.int32)
    assert turns(states, 3, None) == [(0, [0, 1, 2]), (5, [5, 6, 7]), (8, [8])]
    # In rows the first worker's numbers say nothing of how far the epoch is: 2, 5 and 8 are done before these turns.
    assert turns(states, 3, (range(9),)) == [(2, [0, 5, 7]), (5, [1, 6, 8]), (8, [2])]
    states[2:] = USED
    assert turns(states, 3, (range(9),)) == [(7, [0, 1])] and turns(states, 1, (range(9),)) == [(0, [0]), (1, [1])]
    states[:2] = USED
    assert turns(states, 2, None) == turns(states, 2, (range(9),)) == []


def test_only_waiting_minibatches_are_drawn():
    pool = _pool((USED, 0, STALE, REFUSED, 0, USED))
    assert [pool.draw(0), pool.draw(0), pool.draw(0)] == [1, 4, None]
    pool.states.publish([1, 4], 0)
    assert pool.finished and pool.states.counts() == {USED: 4, STALE: 1, REFUSED: 1}
    assert not _pool((USED, 0)).finished
    nothing = _pool((USED, STALE))
    assert nothing.draw(0) is None and nothing.finished


def test_minibatches_of_dead_shard_wait_again():
    pool = _pool()
    for shard in (0, 1, 0, 1, 1, 1):
        pool.draw(shard)
    pool.states.publish([1], 0)
    assert pool.draw(0) is None
    assert pool.give_back(1) == 3 and pool.give_back(1) == 0
    assert pool.states_M.tolist() == [1, USED, 1, WAITING, WAITING, WAITING]
    assert [pool.draw(0) for _ in range(4)] == [3, 4, 5, None]
    assert pool.give_back(0) == 5
    assert [pool.draw(2) for _ in range(6)] == [0, 2, 3, 4, 5, None]


@pytest.mark.parametrize("starts", [None, (0,), (0, 3)])
def test_a_shard_killed_at_any_instruction_of_a_draw_loses_nothing(starts):
    def pool():
        states = (USED, USED, 0, 0)
        return _pool(states) if starts is None else _in_rows(states, *starts)

    with killed_at(10**9) as run:
        pool().draw(0)
    for instruction in range(run()):
        killed = pool()
        with killed_at(instruction):
            killed.draw(0)
        assert killed.give_back(0) in (0, 1)
        assert {killed.draw(1), killed.draw(1)} == {2, 3} and killed.draw(1) is None


M, P = 10, 64


class _Light(Shard):
    """A shard whose minibatches cost nothing: number n takes one from parameter n of each partition.

    The loss of minibatch `bad` is not finite. If `late`, as on a GPU, that is seen only when the shard is to sync, and
    the shard's own parameters, or what it accumulated, are spoiled by then.
    """

    bad, late = -1, False

    def compute(self, epoch, number, rate):
        for push in self.pushes:
            push.add(number, 0)
        step = tiny.step(number + 1, math.nan if number == self.bad else 0.5 / (number + 1), 1)
        self.unread.append(step)
        if not self.late:
            self.check()
        for push in self.pushes if self.late or number != self.bad else ():
            moves = math.nan if number == self.bad else 1
            if self.accumulated is None:
                push.own.parameters_P[number] -= moves
            else:
                push.push_P[number] += moves
        return step


class _Host:
    """Shards that are driven as `shared.py` does, one want at a time in whatever order; and the coordinator."""

    def __init__(self, config, workers, bad, late=False, rows=None):
        def shard(worker):
            light = _Light(WorkerParts(nn.Linear(P, 1, bias=False), range(M), tiny.loss, 1), config, number=worker)
            light.bad, light.late = bad, late
            return light

        self.new, self.holders = shard, [None] * config.partitions
        self.shards = [shard(worker) for worker in range(workers)]
        own = self.shards[0].sgd.parameters
        self.memory = private_memory(memory_layout(own, config, workers, M))
        self.server = make_server(self.memory, config, own, nullcontext(), rows=rows)
        self.server.load({"parameters": torch.full((P,), 50.0)})
        self.before = self.server.begin_epoch(np.zeros(M, np.int32))
        self.loops = [shard.run() for shard in self.shards]
        self.wants = [None] * workers
        self.answers = [None] * workers
        self.returned = self.deaths = 0

    def move(self, worker, dies_at):
        """Let a shard do the next thing; `dies_at`: after so many instructions."""
        if dies_at is None:
            self._move(worker)
            return
        try:
            with killed_at(dies_at):
                self._move(worker)
        except StopIteration:
            pass
        self.deaths += 1
        self.holders = [None if holder == worker else holder for holder in self.holders]
        self.server.mark_published()
        self.returned += self.server.queue.give_back(worker)
        self.shards[worker] = self.new(worker)
        self.loops[worker], self.wants[worker] = self.shards[worker].run(), None
        self.answers[worker] = None

    def _move(self, worker):
        want = self.wants[worker]
        if want is None:
            if self.loops[worker] is None:  # rests
                if self.memory.cursor[0] < M:
                    self.loops[worker] = self.shards[worker].run()
                return
            answer, self.answers[worker] = self.answers[worker], None
            try:
                self.wants[worker] = self.loops[worker].send(answer)
            except StopIteration:
                self.loops[worker] = None
            return
        match want:
            case Draw(after):
                self.answers[worker] = self.server.queue.draw(worker, after)
            case Compute(number):
                self.server.states.computed(number, self.shards[worker].compute(1, number, None))
            case Sync(number, wait):
                push = self.shards[worker].pushes[number]
                if self.holders[number] is None:
                    push.pack()
                    self.holders[number] = worker  # syncs at its next move, the lock in hand
                    return
                if self.holders[number] == worker:
                    self.server.partitions[number].sync(push)
                    self.holders[number], self.answers[worker] = None, True
                    push.unpack()
                elif wait:
                    return
                else:
                    self.answers[worker] = False
        self.wants[worker] = None


CONFIGS = [
    AsgdConfig(sync_every=1, push_scale=1.0, max_push=100),
    AsgdConfig(sync_every=2, max_distance=3, push_scale=1.0, max_push=100, max_staleness=1),
    AsgdConfig(sync_every=3, max_distance=3, push_scale=1.0, max_push=100, local_updates=False, max_staleness=0),
    AsgdConfig(sync_every=1, push_scale=1.0, max_push=100, partitions=3, max_staleness=1),
    AsgdConfig(sync_every=2, max_distance=2, push_scale=1.0, max_push=100, partitions=2, max_staleness=0),
    AsgdConfig(sync_every=1, max_distance=3, fetch_every=3, push_scale=1.0, max_push=100),
    AsgdConfig(sync_every=3, max_distance=3, fetch_every=1, push_scale=1.0, max_push=100, partitions=2),
    AsgdConfig(sync_every=3, max_distance=3, fetch_every=2, push_scale=1.0, max_push=100, local_updates=False),
]
MOVES = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.none() | st.none() | st.integers(0, 700)), min_size=50, max_size=150
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    moves=MOVES,
    config=st.sampled_from(CONFIGS),
    workers=st.integers(1, 3),
    bad=st.sampled_from([-1, 3]),
    late=st.booleans(),
    rows=st.sampled_from([None, (range(4), range(4, M)), (range(M),)]),
)
def test_every_minibatch_ends_used_or_dropped_in_any_interleaving_with_deaths(moves, config, workers, bad, late, rows):
    host = _Host(config, workers, bad, late, rows)
    version = 0
    endless = [(worker, None) for worker in range(workers)] * 300
    for worker, dies_at in moves + endless:
        host.move(worker % workers, dies_at)
        assert version <= host.server.version <= version + 1
        version = host.server.version
        out = host.server.states.states_M > 0
        assert out.sum() <= workers * config.partitions * config.max_distance
        if host.server.queue.finished and not any(host.loops):
            break
    assert host.server.queue.finished
    states_M = host.server.states.states_M
    used = states_M == USED
    done = host.server.progress(host.before, seconds=0, returned=0, restarts=0)
    assert (states_M < 0).all() and done.used + done.stale + done.refused == M
    assert done.used == used.sum() and (config.max_staleness is not None or done.stale == 0)
    assert done.versions == host.server.version
    assert sum(done.staleness) == done.used
    assert done.frames == (np.flatnonzero(used) + 1).sum()
    assert done.correct == done.used and done.loss_sum == 0.5 * done.used
    assert host.returned <= host.deaths * config.partitions * config.max_distance
    # Each used minibatch is in the model, and in no partition of it more than once; no other is.
    taken_SM = [50 - partition.published.parameters_P[:M].numpy() for partition in host.server.partitions]
    assert np.array_equal(np.max(taken_SM, axis=0), used) and np.min(taken_SM) >= 0
    assert done.refused >= (bad >= 0)


def test_harness_of_this_file_kills_shards():
    host = _Host(CONFIGS[0], 1, -1)
    host.move(0, None)
    host.move(0, None)
    assert host.holders == [0]
    host.move(0, 20)
    assert (host.deaths, host.holders, host.server.version) == (1, [None], 0)
    with pytest.raises(Killed):
        raise Killed
    assert torch.equal(host.server.partitions[0].published.vector_K, torch.full((P,), 50.0))
