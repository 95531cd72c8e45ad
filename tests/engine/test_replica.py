"""Replicas of two processes each train; one that dies takes its replica along, and no more; one that fails is named.

That they compute what one process would is tested with whole runs (tests/training/test_partitioned.py).

Axes: B minibatch, F feature bins.
"""

import os
import signal
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from speech3.config import AsgdConfig, DnnConfig
from speech3.engine.backends.one_process import OneWorker
from speech3.engine.backends.shared import Shared
from speech3.engine.interface import REFUSED, STALE, USED, WAITING, WorkerParts
from speech3.engine.pool import MinibatchQueue, MinibatchStates, combined, give_back
from speech3.engine.server import Status
from speech3.errors import Speech3Error
from speech3.models import build
from speech3.models.base import cross_entropy
from speech3.models.split import SplitCrossEntropy, split_model

BATCHES = tiny.Batches(40)


def whole_model(dropout=0.0):
    config = DnnConfig(layers=2, width=7, normalization="batch", dropout=dropout, left_context=0, right_context=0)
    return build(config, 5, 5, seed=2)


def slices(dropout=0.0):
    return [split_model(whole_model(dropout), rank, 2, None) for rank in range(2)]


@dataclass(frozen=True)
class Cursed(tiny.Batches):
    """Raises in the second member of a replica, once a file is there."""

    file: Path | None = None

    def draw(self, epoch, number):
        if self.file is not None and self.file.exists() and dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("the second member is bewitched")
        return super().draw(epoch, number)


@dataclass(frozen=True)
class Build:
    """The whole model's parts in this process, a member's in a replica."""

    batches: tiny.Batches = BATCHES
    dropout: float = 0.0
    max_norm: float = 5.0

    def __call__(self, device="cpu"):
        torch.set_num_threads(1)
        parts = WorkerParts(whole_model(self.dropout), self.batches, cross_entropy, 1, self.max_norm)
        if not dist.is_initialized():
            return parts
        mesh, rank = DeviceMesh.from_group(dist.group.WORLD, "cpu"), dist.get_rank()
        model = split_model(parts.model, rank, 2, mesh)
        return replace(parts, model=model, loss=SplitCrossEntropy(mesh, 5), seed=1 + rank)


def _pids(world):
    return [[group[rank][0].pid for group in world.workers.groups] for rank in range(2)]


@pytest.fixture(scope="module")
def curse(tmp_path_factory):
    return tmp_path_factory.mktemp("curse") / "cast"


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return tiny.Gate(tmp_path_factory.mktemp("gate"), at=60, each=11, processes=4)


@pytest.fixture(scope="module")
def world(curse, gate):
    made = Build(Cursed(120, pause_s=0.002, file=curse), dropout=0.1)
    config = AsgdConfig(sync_every=2, max_distance=6, partitions=2)
    world = Shared(tiny.Gated(made, gate), made(), config, split=slices(0.1), workers=2)
    world.load(OneWorker(made()).snapshot().tensors)
    yield world
    pids = _pids(world)
    world.close()
    assert len(pids) == 2 and not any(tiny.state(pid) for member in pids for pid in member)


def _epoch(world, gate, epoch, action):
    """Train an epoch; when 30 minibatches are used, `action` is called, and the second half waits for that.

    Returns the last progress.
    """
    gate.close(f"epoch{epoch}")
    moves, last = world.epoch(epoch, np.zeros(120, np.int32), tiny.rate(0.2, epoch, range(120))), None
    for done in moves:
        if action and done.used >= 30:
            action()
            action = None
            gate.open(f"epoch{epoch}")
        last = done
    assert action is None
    return last


@pytest.mark.slow
def test_two_replicas_train(world, gate):
    before, inside = world.snapshot().tensors["parameters"], []
    done = _epoch(world, gate, 1, lambda: inside.append(world.snapshot()))
    assert (done.used, done.stale, done.refused, done.frames) == (120, 0, 0, 120 * tiny.FRAMES)
    assert (done.returned, done.restarts) == (0, 0)
    # Both members push their part: each at most 6 of the 120 minibatches at a time.
    sent = [server.memory.shards_N[:, Status.UP].sum() for server in world.servers]
    own = [sum(each.numel() for each in model.parameters()) for model in slices()]
    assert all(up >= 20 * 4 * values for up, values in zip(sent, own, strict=True))
    assert sum(sent) == done.up and done.down > 20 * 4 * sum(own)
    assert len(done.shards) == 2 and all(shard.minibatches > 10 for shard in done.shards)
    assert inside[0].progress.used == (inside[0].states_M == USED).sum() < 120
    snapshot = world.snapshot()
    assert (snapshot.states_M == USED).all()
    one = OneWorker(Build(BATCHES)())
    one.load(snapshot.tensors)
    assert not torch.equal(before, snapshot.tensors["parameters"])
    inputs, targets = (torch.cat(each) for each in zip(*(BATCHES.draw(9, n) for n in range(20)), strict=True))
    assert (one.parts.model.eval()(inputs).argmax(1) == targets).float().mean() > 0.6


def test_a_member_that_dies_takes_its_replica_along_and_no_other(world, gate):
    first = _pids(world)

    def kill():
        tiny.until(lambda: first[1][0] in gate.standing("epoch2"))  # so it has a minibatch out
        os.kill(first[1][0], signal.SIGKILL)

    done = _epoch(world, gate, 2, kill)
    assert (done.used, done.stale, done.refused) == (120, 0, 0) and (world.snapshot().states_M == USED).all()
    assert done.restarts == 1 and 0 < done.returned <= 6
    assert done.frames == 120 * tiny.FRAMES
    second = _pids(world)
    assert not tiny.state(first[0][0]) and not tiny.state(first[1][0])
    assert all(tiny.state(pid) for member in second for pid in member)
    assert [pids[0] for pids in first] != [pids[0] for pids in second]
    assert [pids[1] for pids in first] == [pids[1] for pids in second]


def test_a_member_that_fails_is_named(world, gate, curse):
    with pytest.raises(Speech3Error, match=r"(?s)shard \d: .*ValueError: the second member is bewitched"):
        _epoch(world, gate, 3, curse.touch)


def test_states_of_two_slices_are_combined():
    """Columns: waiting; out with replica 0 and 1; used in one slice; in both; dropped in one; in both."""
    rows_GM = np.array([[0, 1, 2, USED, USED, STALE, STALE], [0, 1, 2, 1, USED, 1, REFUSED]], np.int32)
    states_of_parts = [replace(MinibatchStates.of(7), states_M=row_M) for row_M in rows_GM]
    states_of_parts[0].frames_M[:], states_of_parts[0].loss_M[:] = 5, -2.0  # the second has not written its rows yet
    whole = combined(states_of_parts)
    assert whole.states_M.tolist() == [WAITING, 1, 2, USED, USED, 1, STALE]
    done = whole.progress({USED: 0, STALE: 0, REFUSED: 0})
    assert (done.used, done.stale, done.frames, done.loss_sum, done.missed) == (2, 1, 10, -20.0, 0)
    with tempfile.TemporaryFile() as lock:
        pools = [MinibatchQueue(states, np.array([7, 0]), lock) for states in states_of_parts]
        assert give_back(pools, 0) == 2
    assert rows_GM.tolist() == [[0, 0, 2, USED, USED, 0, STALE], [0, 0, 2, USED, USED, 0, REFUSED]]
    assert pools[0].cursor[0] == 1
