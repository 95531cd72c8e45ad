"""DistBelief's figure: presets laid over a config, the clock that they share, rows that fail."""

import json
import math

import pytest
import yaml

from speech3.config import CodecConfig, TrainConfig, load_config, training_overrides
from speech3.errors import Speech3Error
from speech3.training import simulation
from speech3.training.simulation import own_methods, preset_methods, simulate
from speech3.training.throughput import throughput


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "conf.yaml"
    path.write_text(yaml.safe_dump({
        "data": "none", "hmm": "none", "model": {"width": 8},
        "training": {"max_epochs": 7, "evaluations": 3, "minibatch": 128, "codec": {"clip": 2.0},
                     "simulation": {"compute_s": 0.01, "sync_s": 0.002}},
    }))  # fmt: skip
    return path


def test_keys_of_a_preset_go_before_the_configs_and_overrides_before_both(conf):
    found = preset_methods(conf, ["training.minibatch=64"], ["asgd", "terngrad_ddp", "sandblaster", "sgd"])
    assert [(each.name, each.alone) for each in found] == [
        ("sgd", True), ("asgd", False), ("terngrad_ddp", False), ("sandblaster", False),
    ]  # fmt: skip
    training = {each.name: each.config.training for each in found}
    assert {name: each.simulation.method for name, each in training.items()} == {
        "sgd": "synchronous", "asgd": "asgd", "terngrad_ddp": "synchronous", "sandblaster": "sandblaster",
    }  # fmt: skip
    assert training["terngrad_ddp"].codec == CodecConfig(kind="ternary", float_below=8192, clip=2.0)
    assert [each.max_epochs for each in training.values()] == [7, 10, 7, 7]  # only asgd.yaml says how many
    assert {(each.world, each.evaluations, each.minibatch) for each in training.values()} == {("simulated", 3, 64)}


def test_without_plain_sgd_the_config_is_the_baseline(conf):
    mine = conf.with_name("mine.yaml")
    mine.write_text("world: sandblaster\nlbfgs: {history: 3}\n")
    first, second = preset_methods(conf, [], [str(mine)])
    assert (first.name, first.alone, second.name) == ("sgd", True, "mine")
    assert second.config.training.lbfgs.history == 3 and second.config.training.minibatch == 128
    assert first.config.training.max_epochs == 7 and first.config.training.minibatch == 128


def test_a_preset_that_is_none(conf):
    with pytest.raises(Speech3Error, match=r"uphill: neither a YAML file nor a preset of conf/training \(asgd, "):
        preset_methods(conf, [], ["sgd", "uphill"])
    assert "training.asgd.sync_every=1" in training_overrides("asgd")


@pytest.fixture
def trained(monkeypatch):
    """What was trained; training takes no time, and asynchronous training by 4 workers fails."""
    seen = {}

    def train(config, out):
        training = config.training
        seen[out.name] = training
        if training.simulation.method == "asgd" and training.workers == 4:
            raise Speech3Error("the learning rate is too high")
        out.mkdir(parents=True)
        record = {"event": "epoch", "epoch": 1, "frames": 100, "workers": training.workers}
        record |= {"seconds": 8.0 / training.workers, "heldout_accuracy": 0.5}
        (out / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        (out / "run.json").write_text("{}")

    monkeypatch.setattr(simulation, "train", train)
    return seen


def test_a_row_for_each_method_and_number_of_workers(conf, trained, tmp_path):
    methods = preset_methods(conf, ["training.simulation.failures=[[3,1.0]]"], ["asgd", "sgd", "sandblaster"])
    outcomes, failed = simulate(methods, [2, 4], tmp_path / "out")
    assert [outcome.curve.name for outcome in outcomes] == ["sgd", "asgd2", "sandblaster2", "sandblaster4"]
    assert failed == ["asgd4"]
    assert [outcome.learning_rate for outcome in outcomes] == [0.1, 0.4, 0.1, 0.1]  # each preset's own
    by_name = {name.split("_rate")[0]: training for name, training in trained.items()}
    # A minibatch of sandblaster's is four times the baseline's.
    assert {name: each.simulation.compute_s for name, each in by_name.items()} == {
        "sgd": 0.01, "asgd2": 0.01, "asgd4": 0.01, "sandblaster2": 0.04, "sandblaster4": 0.04,
    }  # fmt: skip
    assert [each.simulation.failures for each in by_name.values()] == [(), (), ((3, 1.0),), (), ((3, 1.0),)]


def test_what_one_method_cannot_have_is_told_before_any_is_trained(conf, trained, tmp_path):
    methods = preset_methods(conf, ["training.gradient_clip=1"], ["sgd", "asgd", "sandblaster"])
    with pytest.raises(Speech3Error, match=r"sandblaster2: training\.gradient_clip=1: .*line search of sandblaster"):
        simulate(methods, [2], tmp_path / "out")
    assert not trained


def test_numbers_that_are_none(conf, trained, tmp_path):
    config = load_config(TrainConfig, conf)
    with pytest.raises(Speech3Error, match="--seeds -2: a seed is 0 or more"):
        simulate(own_methods(config), [2], tmp_path / "out", seeds=[1, -2])
    for gigabits in ([1.0, math.nan], [math.inf], [-1.0]):
        with pytest.raises(Speech3Error, match=r"--gigabits .*: give gigabits per second above 0"):
            throughput(config, [2], gigabits)
    assert not trained


def test_the_baseline_cannot_fail(conf, trained, tmp_path, monkeypatch):
    def train(config, out):
        raise Speech3Error("the learning rate is too high")

    monkeypatch.setattr(simulation, "train", train)
    with pytest.raises(Speech3Error, match="sgd: training failed at every learning rate tried; try smaller ones"):
        simulate(own_methods(load_config(TrainConfig, conf)), [2], tmp_path / "out", rates=[1.0, 2.0])
