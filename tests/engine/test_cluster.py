"""World cluster on two Ray nodes of this machine: whatever is killed, training goes on and every minibatch is counted.

One Ray and one world are shared by the tests that train, in the order in which they stand.
"""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import tiny
import tiny_cluster
import torch
from torch import nn
from torch.utils.data import TensorDataset

from speech3.config import AsgdConfig
from speech3.engine import fit
from speech3.engine.flat import flatten
from speech3.engine.interface import USED
from speech3.errors import MachineError, Speech3Error

ray = pytest.importorskip("ray", reason="world cluster needs ray: pip install speech3[cluster]")

from ray.cluster_utils import Cluster as Nodes  # noqa: E402

from speech3.engine.backends import cluster as cluster_module, cluster_actors as messages  # noqa: E402
from speech3.engine.backends.cluster import Cluster  # noqa: E402

pytestmark = pytest.mark.slow

BATCHES = tiny.Batches(300, pause_s=0.002)
BUILD = tiny_cluster.Linear(BATCHES)
RATE = 0.01
CONFIG = AsgdConfig(sync_every=2, max_distance=6, partitions=2)
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
PATIENCE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def nodes():
    """Two nodes with a CPU each; this process is on the first. Their processes can import what stands beside us."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr(cluster_module, "JOIN_S", 300.0)  # nobody begins alone
        patch.setattr(messages, "_engine_digest", lambda: "")  # who edits the engine meanwhile is no failure of these
        nodes = Nodes(initialize_head=True, head_node_args={**NODE, "_system_config": PATIENCE})
        nodes.add_node(**NODE)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return tiny.Gate(tmp_path_factory.mktemp("gate"), at=150, each=12)  # the first of epoch 1 is drawn to be compared


@pytest.fixture(scope="module")
def world(nodes, gate):
    before = signal.getsignal(signal.SIGTERM)
    world = Cluster(tiny.Gated(BUILD, gate), BUILD(), CONFIG, workers=2, address=nodes.address)
    assert signal.getsignal(signal.SIGTERM) is before  # Ray would have its own
    world.load({"parameters": flatten(BUILD().model).vector_K})
    yield world
    world.close()


def _epoch(world, gate, epoch, after, torn=0):
    """Train an epoch, in which `after` is called once 60 minibatches are used; returns what was last told.

    The second half waits for that; `after` may open the gate before it has done.

    The model's gradients are constant, so the parameters tell that each minibatch is in them, and once; `torn` may be
    so in one partition only, having been on their way to the other when somebody died.
    """
    before = world.copied.tensors["parameters"].clone()
    gate.close(f"epoch{epoch}")
    for done in world.epoch(epoch, tiny.waiting(BATCHES), tiny.rate(RATE, epoch, BATCHES)):
        if after and done.used >= 60:
            after()
            after = None
            gate.open(f"epoch{epoch}")
    assert after is None
    snapshot = world.snapshot()
    assert (snapshot.states_M == USED).all()
    assert (done.used, done.stale, done.refused) == (len(BATCHES), 0, 0)
    assert done.frames == len(BATCHES) * tiny.FRAMES
    assert sum(done.staleness) == len(BATCHES) and done.versions > 0
    moved = (before - snapshot.tensors["parameters"]).double() / (RATE / 2)  # push_scale is 1/workers
    weight, bias = moved[:25].view(5, 5), moved[32:37]
    largest = torch.stack([BATCHES.draw(epoch, number)[0].mean(0) for number in range(len(BATCHES))]).abs().max()
    torch.testing.assert_close(weight, BUILD.gradients(epoch), rtol=1e-3, atol=0.01 + torn * float(largest))
    torch.testing.assert_close(bias, torch.full((5,), 300.0).double(), rtol=1e-4, atol=torn)
    world.load(snapshot.tensors)
    return done


def _shard(world, number):
    return world.workers[number].placed.pid


def _node_of(nodes, pid):
    """The number of the node whose child a process is."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes.list_all_nodes()]
    return raylets.index(int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]))


def test_two_shards_on_two_nodes(nodes, world, gate):
    assert {_node_of(nodes, _shard(world, number)) for number in (0, 1)} == {0, 1}
    snapshots = []
    done = _epoch(world, gate, 1, lambda: snapshots.append(world.snapshot()))
    assert (done.returned, done.restarts, done.note) == (0, 0, "")
    assert all(shard.minibatches > 10 and shard.compute_s > 0.002 for shard in done.shards)
    # Every push goes up whole, as float32; every one but those at the end comes down.
    values = len(flatten(BUILD().model).vector_K)
    assert done.up == done.versions * 4 * values and abs(done.down - done.up) <= 4 * 4 * values
    inside = snapshots[0]
    assert inside.progress.used == (inside.states_M == USED).sum() < len(BATCHES)
    assert inside.progress.frames == inside.progress.used * tiny.FRAMES


def test_a_shard_is_killed(world, gate):
    def kill():
        time.sleep(random.random() * 0.02)
        os.kill(first, signal.SIGKILL)

    first = _shard(world, 0)
    done = _epoch(world, gate, 2, kill, torn=CONFIG.max_distance)
    assert done.restarts == 1 and done.returned <= CONFIG.max_distance + 1  # one is drawn ahead
    tiny.until(lambda: world._look() or world.workers[0].prepared)
    assert _shard(world, 0) != first


def test_a_partition_is_killed(world, gate, monkeypatch):
    """Its parameters are gone: what was trained since the last copy is trained again, not counted as if it were in."""
    monkeypatch.setattr(cluster_module, "COPY_S", 1e9)
    first, copies = world.server.facts[1].pid, []

    def kill():
        copies.append(world.snapshot().progress.used)
        gate.open("epoch3")
        tiny.until(lambda: world._look() or world.states.ended >= copies[0] + 80)
        os.kill(first, signal.SIGKILL)

    done = _epoch(world, gate, 3, kill, torn=2 * CONFIG.max_distance)
    assert "a partition of the server died (1 times): the server was restored from its last copy" in done.note
    assert world.server.facts[1].pid != first and done.restarts == 0
    assert 80 <= world.undone <= len(BATCHES) - copies[0]
    assert f"{world.undone} minibatches were computed again" in done.note


def test_run_continues_when_node_is_lost_and_another_joins(nodes, world, gate):
    second = next(iter(nodes.worker_nodes))
    there = [number for number in (0, 1) if _node_of(nodes, _shard(world, number)) == 1]
    lose = partial(nodes.remove_node, second, allow_graceful=False)
    done = _epoch(world, gate, 4, lose, torn=2 * CONFIG.max_distance)
    assert len(there) == 1 and done.restarts == 1
    assert not world.workers[there[0]].placed and world.workers[1 - there[0]].prepared  # the other trained on alone
    nodes.add_node(**NODE)
    tiny.until(lambda: world._look() or world.workers[there[0]].prepared)


def test_shards_without_room_end_run_and_leave_no_process(nodes, world, monkeypatch):
    """All CPUs are the other world's; then there are not enough nodes; then the other world ends."""
    patience = cluster_module.ROOM_S
    monkeypatch.setattr(cluster_module, "ROOM_S", 0.5)
    with pytest.raises(MachineError, match=r"no Ray node had room for a shard .* the cluster"):
        Cluster(BUILD, BUILD(), CONFIG, workers=1)
    with pytest.raises(MachineError, match=r"training\.workers=3"):
        Cluster(BUILD, BUILD(), CONFIG, workers=3)
    with pytest.raises(Speech3Error, match=r"training\.workers=1: .* a CPU and a GPU"):
        Cluster(BUILD, BUILD(), CONFIG, workers=1, device="cuda")
    pids = [_shard(world, 0), _shard(world, 1), *(facts.pid for facts in world.server.facts)]
    assert all(map(tiny.state, pids))
    world.close()
    tiny.until(lambda: not any(map(tiny.state, pids)))
    monkeypatch.setattr(cluster_module, "ROOM_S", patience)
    build = tiny_cluster.Elsewhere(BATCHES, file="/data/x.frames")  # now there is room, but no such file
    with pytest.raises(Speech3Error, match=r"^shard 0 on node \S+: /data/x\.frames: no such file$"):
        Cluster(build, build(), AsgdConfig(), workers=1, address=nodes.address)


def test_fit_trains_there(nodes, world):
    """The model and the data travel with the workers; `world`, which had all CPUs, is closed."""
    generator = torch.Generator().manual_seed(3)
    words_NW = torch.randint(50, (400, 4), generator=generator)
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8), nn.Linear(8, 2))
    dataset = TensorDataset(words_NW, (words_NW < 25).sum(1).gt(2).long())
    result = fit(
        model,
        dataset,
        nn.CrossEntropyLoss(),
        strategy="asgd",
        workers=2,
        epochs=12,
        minibatch=20,
        learning_rate=3.0,
        options={"cluster": {"address": nodes.address}, "codec": "rows", "asgd": {"push_scale": "1/workers"}},
        quiet=True,
    )
    assert [each.used for each in result.history] == [20] * 12
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert (model(words_NW).argmax(1) == dataset.tensors[1]).float().mean() > 0.95
