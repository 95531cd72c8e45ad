"""Two real processes, recorded; then the same shards in this process, and the same parameters to the last bit."""

import json

import pytest
import tiny
import torch
from replay import replay

from speech3.config import AsgdConfig
from speech3.engine.backends.shared import Shared
from speech3.engine.flat import flatten
from speech3.errors import Speech3Error

BATCHES = tiny.Batches(60, pause_s=0.001)
BUILD = tiny.Build(BATCHES, dropout=0.2, norm=True, weight_decay=0.01)
CONFIG = AsgdConfig(sync_every=2, max_distance=4, max_staleness=1, momentum=0.5, decay=0.9)
PARTITIONS = CONFIG.model_copy(update={"partitions": 3, "fetch_every": 3})


def _rates(epoch):
    return tiny.rate(0.2 / epoch, epoch, BATCHES)


@pytest.fixture(scope="module", params=[CONFIG, PARTITIONS], ids=["one", "partitions"])
def run(request, tmp_path_factory):
    """The config, the record, the state that training began with, the one it ended with, and its progress."""
    config, record = request.param, tmp_path_factory.mktemp("record")
    build = tiny.Gated(BUILD, tiny.Gate(tmp_path_factory.mktemp("gate"), each=20))
    world = Shared(build, BUILD(), config, workers=2, record=record)
    try:
        start = world.snapshot().tensors | {"parameters": flatten(BUILD().model).vector_K}
        world.load(start)
        done = [list(world.epoch(epoch, tiny.waiting(BATCHES), _rates(epoch)))[-1] for epoch in (1, 2)]
        return config, record, start, world.snapshot().tensors, sum(done[1:], done[0])
    finally:
        world.close()


def test_a_replay_ends_at_the_same_parameters_to_the_last_bit(run):
    config, record, start, end, done = run
    events = [json.loads(line) for path in record.iterdir() for line in path.read_text().splitlines()]
    # A push has at most 4 minibatches; for each that is dropped as stale the other shard published two: 120 / 4 * 2/3
    assert sum(kind == "publish" for kind, _, _ in events) >= done.versions >= 20
    assert sum(kind == "draw" and value is not None for kind, value, _ in events) == 120
    assert all(shard.minibatches >= 2 * 20 for shard in done.shards)  # both were at work
    again = replay(BUILD(), config, start, _rates, record, weight_decay=0.01)
    assert set(again) == {"parameters", "server.velocity"}
    for name, tensor in again.items():
        assert torch.equal(tensor, end[name])
        assert not torch.equal(tensor, start[name])


def test_another_config_does_not_end_there(run):
    config, record, start, end, _ = run
    other = replay(BUILD(), config, start, _rates, record, weight_decay=0.0)
    assert not torch.equal(other["parameters"], end["parameters"])
    with pytest.raises(Speech3Error, match=r"shard.*another config"):
        replay(BUILD(), config.model_copy(update={"sync_every": 3}), start, _rates, record, weight_decay=0.01)


def test_a_record_that_is_not_whole(run, tmp_path):
    config, record, start, _, _ = run
    with pytest.raises(Speech3Error, match="no record of a shard"):
        replay(BUILD(), config, start, _rates, tmp_path)
    (tmp_path / "shard0.jsonl").write_text((record / "shard0.jsonl").read_text())
    with pytest.raises(Speech3Error, match="nobody wrote that it published version"):
        replay(BUILD(), config.model_copy(update={"push_scale": 0.5}), start, _rates, tmp_path, weight_decay=0.01)
