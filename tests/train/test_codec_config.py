"""Codecs from a config: by name, where there are none, and their bytes in the metrics."""

import pytest
from pydantic import ValidationError

from speech3.config import CodecConfig, SimulationConfig, TrainConfig, TrainingConfig, load_config, load_preset
from speech3.engine.interface import Progress
from speech3.engine.trainer import check_workers
from speech3.errors import Speech3Error
from speech3.train.rundir import RunState, Schedule, epoch_record


def test_a_codec_by_its_name():
    assert TrainingConfig(codec="ternary").codec == CodecConfig(kind="ternary")
    assert TrainingConfig().codec.kind == "none"
    for name, world in (("terngrad_ddp", "ddp"), ("terngrad_momentum", "ddp"), ("asgd_ternary", "shared")):
        preset = load_preset(TrainingConfig, "training", name)
        assert (preset.world, preset.codec.kind) == (world, "ternary")
        check_workers(TrainingConfig(world=world, codec=preset.codec))


def test_a_codecs_name_and_one_of_its_keys(tmp_path):
    (tmp_path / "my.yaml").write_text("frames: d\nhmm: h\nmodel: dnn\n")
    changes = ["training=asgd", "training.codec=bf16", "training.codec.down=ternary"]
    codec = load_config(TrainConfig, tmp_path / "my.yaml", changes).training.codec
    assert codec == CodecConfig(kind="bf16", down="ternary")
    changes = ["training=asgd", "training.minibatch=3", "training.minibatch.size=4"]
    with pytest.raises(Speech3Error, match="is a value, not a group of keys"):
        load_config(TrainConfig, tmp_path / "my.yaml", changes)


@pytest.mark.parametrize("codec", ["zip", {"kind": "topk", "share": 0}, {"kind": "ternary", "clip": 0}, {"bits": 2}])
def test_what_is_no_codec(codec):
    with pytest.raises(ValidationError):
        TrainingConfig(codec=codec)


@pytest.mark.parametrize(
    ("codec", "training"),
    [
        ("ternary", {"world": "sgd"}),
        ("bf16", {"world": "ddp"}),
        ("topk", {"world": "ddp"}),
        ("bf16", {"world": "simulated", "workers": 2, "simulation": SimulationConfig(strategy="synchronous")}),
        ("ternary", {"world": "simulated", "workers": 2, "simulation": SimulationConfig(strategy="sandblaster")}),
    ],
)
def test_a_world_without_that_codec(codec, training):
    with pytest.raises(Speech3Error, match=rf"training.codec={codec}: this world supports only none.*world shared"):
        check_workers(TrainingConfig(codec=codec, **training))


def test_only_shards_fetch():
    with pytest.raises(Speech3Error, match=r"training.codec.down=ternary: only shards fetch"):
        check_workers(TrainingConfig(world="ddp", codec={"kind": "ternary", "down": "ternary"}))


def test_bytes_of_a_minibatch():
    done = Progress(used=3, stale=1, up=400, down=4000)
    state = RunState(epoch=1, schedule=Schedule(0.1), done=done)
    assert epoch_record(TrainingConfig(), state, 1.0, 0.5)["bytes_per_minibatch"] == {"up": 100, "down": 1000}
    nothing = RunState(epoch=1, schedule=Schedule(0.1), done=Progress(used=3))
    assert "bytes_per_minibatch" not in epoch_record(TrainingConfig(), nothing, 1.0, 0.5)
    assert (done + done).up == 800
