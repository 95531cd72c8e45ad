"""DistBelief's figure: presets laid over a config, the clock that they share, rows that fail."""

import json
import math

import numpy as np
import pytest
import yaml

from speech3.config import CodecConfig, TrainConfig, load_config, training_overrides
from speech3.errors import SettingError, Speech3Error, TrainingError
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.train import simulation, simulation as throughputs
from speech3.train.simulation import own_strategies, preset_strategies, simulate, throughput


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Of three bins, enough for ten minibatches of sandblaster's."""
    path = tmp_path_factory.mktemp("frames")
    feats, labels = np.random.default_rng(0).normal(size=(10_500, 3)).astype(np.float32), np.zeros(10_500, np.int32)
    write_frames(path / "train.frames", {"a": feats}, {"a": labels}, 4, utterances=["a"], info={})
    PdfsOnly(4, "a test's").save(path)
    return path


@pytest.fixture
def conf(frames, tmp_path):
    path = tmp_path / "conf.yaml"
    path.write_text(yaml.safe_dump({
        "frames": str(frames), "hmm": str(frames), "model": {"width": 8},
        "training": {"max_epochs": 7, "evaluations": 3, "minibatch": 128, "codec": {"clip": 2.0},
                     "simulation": {"compute_s": 0.01, "sync_s": 0.002}},
    }))  # fmt: skip
    return path


def test_keys_of_a_preset_go_before_the_configs_and_overrides_before_both(conf):
    found = preset_strategies(conf, ["training.minibatch=64"], ["asgd", "terngrad_ddp", "sandblaster", "sgd"])
    assert [(each.name, each.alone) for each in found] == [
        ("sgd", True),
        ("asgd", False),
        ("terngrad_ddp", False),
        ("sandblaster", False),
    ]
    training = {each.name: each.config.training for each in found}
    assert {name: each.simulation.strategy for name, each in training.items()} == {
        "sgd": "synchronous",
        "asgd": "asgd",
        "terngrad_ddp": "synchronous",
        "sandblaster": "sandblaster",
    }
    assert training["terngrad_ddp"].codec == CodecConfig(kind="ternary", float_below=8192, clip=2.0)
    assert [each.max_epochs for each in training.values()] == [7, 10, 7, 7]  # only asgd.yaml says how many
    assert {(each.world, each.evaluations, each.minibatch) for each in training.values()} == {("simulated", 3, 64)}


def test_without_plain_sgd_the_config_is_the_baseline(conf):
    mine = conf.with_name("mine.yaml")
    mine.write_text("world: sandblaster\nlbfgs: {history: 3}\n")
    first, second = preset_strategies(conf, [], [str(mine)])
    assert (first.name, first.alone, second.name) == ("sgd", True, "mine")
    assert second.config.training.lbfgs.history == 3 and second.config.training.minibatch == 128
    assert first.config.training.max_epochs == 7 and first.config.training.minibatch == 128


def test_a_preset_that_is_none(conf):
    with pytest.raises(SettingError, match="uphill: neither a YAML file nor a preset of conf/training"):
        preset_strategies(conf, [], ["sgd", "uphill"])
    assert "training.asgd.sync_every=1" in training_overrides("asgd")


@pytest.fixture
def trained(monkeypatch):
    """What was trained; training takes no time, and asynchronous training by 4 workers fails."""
    seen = {}

    def train(config, out):
        training = config.training
        seen[out.name] = training
        if training.simulation.strategy == "asgd" and training.workers == 4:
            raise Speech3Error("the learning rate is too high")
        out.mkdir(parents=True)
        record = {"event": "epoch", "epoch": 1, "frames": 100, "workers": training.workers}
        record |= {"seconds": 8.0 / training.workers, "heldout_accuracy": 0.5}
        (out / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        (out / "run.json").write_text("{}")

    monkeypatch.setattr(simulation, "train", train)
    return seen


def test_a_row_for_each_method_and_number_of_workers(conf, trained, tmp_path):
    strategies = preset_strategies(conf, ["training.simulation.failures=[[3,1.0]]"], ["asgd", "sgd", "sandblaster"])
    outcomes, failed = simulate(strategies, [2, 4], tmp_path / "out", seeds=[1, 1])
    assert [outcome.last for outcome in outcomes] == [(0.5,)] * 4  # a seed given twice is trained and counted once
    assert [outcome.curve.name for outcome in outcomes] == ["sgd", "asgd2", "sandblaster2", "sandblaster4"]
    assert failed == ["asgd4"]
    assert [outcome.learning_rate for outcome in outcomes] == [0.1, 0.4, 0.1, 0.1]  # each preset's own
    by_name = {name.split("_rate")[0]: training for name, training in trained.items()}
    # A minibatch of sandblaster's is four times the baseline's.
    assert {name: each.simulation.compute_s for name, each in by_name.items()} == {
        "sgd": 0.01,
        "asgd2": 0.01,
        "asgd4": 0.01,
        "sandblaster2": 0.04,
        "sandblaster4": 0.04,
    }
    assert [each.simulation.failures for each in by_name.values()] == [(), (), ((3, 1.0),), (), ((3, 1.0),)]


def test_what_one_method_cannot_have_is_an_error_before_any_is_trained(conf, trained, tmp_path):
    strategies = preset_strategies(conf, ["training.gradient_clip=1"], ["sgd", "asgd", "sandblaster"])
    with pytest.raises(SettingError, match=r"sandblaster2: training\.gradient_clip=1"):
        simulate(strategies, [2], tmp_path / "out")
    model = "model={family: tdnn, subsampling: 1, layers: 1, width: 8, bottleneck: 4, prefinal: 4}"
    strategies = preset_strategies(conf, [model], ["sgd", "asgd", "sandblaster"])
    with pytest.raises(SettingError, match=r"sandblaster2: .* time-delay network"):
        simulate(strategies, [2], tmp_path / "out")
    assert not trained


def test_an_epoch_too_small_for_one_method_is_an_error_before_any_is_trained(conf, trained, tmp_path):
    strategies = preset_strategies(conf, ["training.minibatch=2048"], ["sgd", "sandblaster"])
    with pytest.raises(SettingError, match=r"sandblaster2: training\.lbfgs: batches=1 with iterations=10"):
        simulate(strategies, [2], tmp_path / "out")
    strategies = own_strategies(load_config(TrainConfig, conf, ["training.max_epochs=1"]))
    with pytest.raises(SettingError, match=r"async3: training\.asgd\.warm_start=1"):
        simulate(strategies, [3], tmp_path / "out")
    assert not trained


def test_a_config_of_sandblasters_is_simulated_as_that(conf):
    for changes in (["training=sandblaster"], ["training.world=simulated", "training.simulation.strategy=sandblaster"]):
        strategies = own_strategies(load_config(TrainConfig, conf, changes))
        kinds = [(strategy.name, strategy.config.training.simulation.strategy) for strategy in strategies]
        assert kinds == [("sgd", "synchronous"), ("sandblaster", "sandblaster"), ("sync", "synchronous")]


def test_a_split_model_is_refused_before_anything_is_measured(conf, trained, tmp_path, monkeypatch):
    config = load_config(TrainConfig, conf, ["training=partitioned"])
    for module, name in ((simulation, "_with_times"), (throughputs, "measure_costs")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("measured"))
    for work in (lambda: simulate(own_strategies(config), [2], tmp_path), lambda: throughput(config, [2], [1.0])):
        with pytest.raises(SettingError, match=r"training\.model_partitions=2: .* cannot be simulated"):
            work()
    split = conf.with_name("split.yaml")
    split.write_text("world: shared\nmodel_partitions: 2\n")
    with pytest.raises(Speech3Error, match=r"split3: training\.model_partitions=2: .* cannot be simulated"):
        simulate(preset_strategies(conf, [], ["sgd", str(split)]), [3], tmp_path)
    assert not trained


def test_a_network_that_the_frames_cannot_feed_is_named_before_another_is_measured(conf, monkeypatch):
    monkeypatch.setattr(throughputs, "measure_costs", lambda *_: pytest.fail("measured"))
    with pytest.raises(SettingError, match=r"cnn: model\.convolutions\[0\]\.kernel=9 x 9"):
        throughput(load_config(TrainConfig, conf), [2], [1.0], ["dnn_small", "cnn"])


def test_more_workers_than_codes_can_be_added_up_for(conf, trained, tmp_path):
    config = load_config(TrainConfig, conf, ["training.codec=ternary"])
    with pytest.raises(Speech3Error, match=r"--throughput: 16,384 workers: .* for 16,383 workers at most"):
        throughput(config, [2, 16_384], [1.0])
    with pytest.raises(Speech3Error, match=r"sync16384: 16,384 workers: .* for 16,383 workers at most"):
        simulate(own_strategies(config), [16_384], tmp_path / "out")
    assert not trained


@pytest.mark.parametrize("codec", ["kind=topk", "kind=bf16", "down=ternary"])
def test_without_synchronous_workers_where_they_cannot_have_the_codec(conf, trained, tmp_path, capfd, codec):
    config = load_config(TrainConfig, conf, [f"training.codec.{codec}", "training.codec.clip=2.5"])
    outcomes, _ = simulate(own_strategies(config), [2], tmp_path / "out")
    assert [outcome.curve.name for outcome in outcomes] == ["sgd", "async2"]
    assert "no row of synchronous workers: training.codec is" in capfd.readouterr().err
    assert [strategy.name for strategy in own_strategies(config, synchronous=False)] == ["sgd", "async"]
    assert not capfd.readouterr().err  # they were not asked for
    ternary = load_config(TrainConfig, conf, ["training.codec=ternary"])
    assert [strategy.name for strategy in own_strategies(ternary)] == ["sgd", "async", "sync"]


def test_plain_sgd_is_not_warmed_up(conf, trained, tmp_path):
    """It needs no rising learning rate, and as the baseline it would lose time by one."""
    simulate(own_strategies(load_config(TrainConfig, conf, ["training.warmup=0.5"])), [2], tmp_path / "out")
    warmup = {name.split("_rate")[0]: training.warmup for name, training in trained.items()}
    assert warmup == {"sgd": 0.0, "async2": 0.5, "sync2": 0.5}


def test_two_rows_of_one_name_are_refused(conf, trained, tmp_path):
    for name in ("asgd", "asgd1"):
        conf.with_name(f"{name}.yaml").write_text("world: shared\n")
    mine, other = str(conf.with_name("asgd.yaml")), str(conf.with_name("asgd1.yaml"))
    with pytest.raises(SettingError, match=r"--strategies asgd,.*/asgd\.yaml"):
        preset_strategies(conf, [], ["asgd", "sgd", mine])
    strategies = preset_strategies(conf, [], ["sgd", mine, other, mine])
    with pytest.raises(SettingError, match="asgd with 12 workers and asgd1 with 2 workers"):
        simulate(strategies, [2, 12], tmp_path / "out")
    assert not trained


def test_numbers_that_are_none(conf, trained, tmp_path):
    config = load_config(TrainConfig, conf)
    with pytest.raises(Speech3Error, match="--seeds -2: seeds must be at least 0"):
        simulate(own_strategies(config), [2], tmp_path / "out", seeds=[1, -2])
    for gigabits in ([1.0, math.nan], [math.inf], [-1.0]):
        with pytest.raises(Speech3Error, match=r"--gigabits .*: must be finite numbers of Gbit/s above 0"):
            throughput(config, [2], gigabits)
    assert not trained


def test_the_baseline_cannot_fail(conf, trained, tmp_path, monkeypatch):
    def train(config, out):
        raise Speech3Error("the learning rate is too high")

    monkeypatch.setattr(simulation, "train", train)
    with pytest.raises(TrainingError, match="sgd: training failed at every learning rate tried"):
        simulate(own_strategies(load_config(TrainConfig, conf)), [2], tmp_path / "out", rates=[1.0, 2.0])
