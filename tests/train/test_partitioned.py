"""Runs whose worker is a replica of two processes: they learn what one process does, are killed, and go on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from speech3.config import CnnConfig, DnnConfig, LstmConfig, TrainConfig, TrainingConfig, load_preset
from speech3.engine import trainer as checks
from speech3.errors import Speech3Error
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.io.checkpoint import load_tensors
from speech3.runtime import read_metrics
from speech3.train import train

DIM, SENONES, FRAMES = 6, 7, 40 * 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Frames around one point a senone, with noise."""
    root, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    centers = rng.normal(0, 2.5, (SENONES, DIM))
    for name, utterances in (("train", FRAMES // 40), ("heldout", 8)):
        labels = {f"{name}{i}": rng.integers(0, SENONES, 8).repeat(5).astype(np.int32) for i in range(utterances)}
        feats = {u: (centers[x] + rng.normal(0, 1.5, (40, DIM))).astype(np.float32) for u, x in labels.items()}
        write_frames(root / "frames" / f"{name}.frames", feats, labels, SENONES, utterances=list(feats), info={})
    PdfsOnly(SENONES, "made by hand").save(root / "hmm")
    return root


def _config(corpus, model=None, **training):
    values = {"minibatch": 32, "learning_rate": 0.2, "max_epochs": 3, "schedule": "constant", "momentum": 0.5,
              "gradient_clip": 0.5, "world": "shared", "workers": 1, "model_partitions": 2,
              "asgd": {"warm_start": 0.0, "sync_every": 1, "push_scale": 1.0, "momentum": 0.5}, **training}  # fmt: skip
    return TrainConfig(
        frames=str(corpus / "frames"),
        hmm=str(corpus / "hmm"),
        training=TrainingConfig(**values),
        model=model or DnnConfig(layers=2, width=25, left_context=2, right_context=2, normalization="batch"),
    )


SCRIPT = """
import sys
from pathlib import Path
sys.path.append({path!r})
import tiny
from speech3.config import TrainConfig
from speech3.train import run, train
from speech3.train.parts import BuildParts
if __name__ == "__main__":
    config, out, gate = sys.argv[1:]
    run.BuildParts = lambda *args: tiny.Gated(BuildParts(*args), tiny.Gate(Path(gate), at=25))
    train(TrainConfig.model_validate_json(config), out)
"""


def _killed(config, out, script):
    """Kill the run, and only the process that looks after the others, once its first epoch is over."""
    script.write_text(SCRIPT.format(path=tiny.PATH))
    tiny.Gate(script.parent).close("epoch2")  # which does not end before that
    command = [sys.executable, str(script), config.model_dump_json(), str(out), str(script.parent)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        tiny.until(lambda: process.poll() is not None or list(out.glob("checkpoints/e0002-m00000000*")), 120)
        assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        members = [int(pid) for pid in children.read_text().split()]
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and len(members) >= 2
    tiny.until(lambda: not any(map(tiny.state, members)))


@pytest.mark.slow
def test_a_replica_of_two_processes_learns_what_one_process_does(corpus, tmp_path):
    """Momentum, gradients that are cut down by their whole length, normalisation; killed between two epochs, and taken
    up again from a checkpoint, which is of the unsplit model.
    """
    alone = train(_config(corpus, world="sgd", model_partitions=1), tmp_path / "alone")
    config, out = _config(corpus), tmp_path / "split"
    _killed(config, out, tmp_path / "script.py")
    tensors = load_tensors(max((out / "checkpoints").iterdir()), "nn-checkpoint")[0]
    assert tensors["best.output.weight"].shape == (SENONES, 25) and tensors["server.velocity"].any()
    about = train(config, out)
    (found, _), (wanted, _) = (load_tensors(tmp_path / name / "model.safetensors", "nn") for name in ("split", "alone"))
    assert about["best_epoch"] == alone["best_epoch"] and found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert about["heldout_accuracy"] == pytest.approx(alone["heldout_accuracy"], abs=0.005)
    assert about["heldout_accuracy"] > 0.8
    for record in read_metrics(out / "metrics.jsonl"):
        if record["event"] == "epoch":
            assert record["minibatches"] == {"used": 50, "stale": 0, "refused": 0, "returned": 0}
            assert record["versions"] == 50 and record["frames"] == record["epoch"] * FRAMES


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        (
            None,
            {"world": "ddp"},
            "model_partitions=2: only the workers of world shared can be groups .*not those of ddp",
        ),
        (None, {"workers": 2}, "model_partitions=2 with training.workers=2: these are 4 processes, and .* has 3 cores"),
        (None, {"model_partitions": 3, "world": "sgd"}, "model_partitions=3: only the workers of world shared"),
        (None, {"speeds": (0.9, 1.0)}, r"speeds=\[0\.9, 1\.0\]: not with training.model_partitions=2"),
        (DnnConfig(layers=1, width=1), {}, r"model_partitions=2: layer layers.hidden.0 .* 1 units \(model.width\)"),
        (CnnConfig(convolutions=({"maps": 1, "kernel": (1, 1)},), channels=1), {}, r"\(model.convolutions\[0\].maps\)"),
        (LstmConfig(layers=1, cells=8), {}, "model_partitions=2: a model of family lstm cannot be split"),
    ],
)
def test_partitions_that_cannot_be_are_refused_before_anything_is_written(
    corpus, tmp_path, monkeypatch, model, training, message
):
    monkeypatch.setattr(checks, "available_jobs", lambda: 3)
    with pytest.raises(Speech3Error, match=message):
        train(_config(corpus, model, **training), tmp_path / "out")
    assert not list(tmp_path.glob("out/c*"))


def test_the_preset_is_one_replica_of_two_processes():
    preset, plain = (load_preset(TrainingConfig, "training", name) for name in ("partitioned", "asgd"))
    assert (preset.world, preset.workers, preset.model_partitions) == ("shared", 1, 2)
    assert preset.model_copy(update={"workers": 2, "model_partitions": 1}) == plain
