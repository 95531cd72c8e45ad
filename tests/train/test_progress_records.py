"""The records of an epoch's progress: true, not too many, forgotten where an epoch is done again, and passed over."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speech3.config import DnnConfig, TrainConfig, TrainingConfig
from speech3.evaluate.comparison import compare_runs
from speech3.evaluate.page import System, _training
from speech3.evaluate.run_watch import follow
from speech3.evaluate.wer import score
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.io.checkpoint import load_tensors
from speech3.runtime import read_metrics
from speech3.train import run as run_module, train

MINIBATCHES, FRAMES = 20, 16


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Two virtual shards after half an epoch of one worker."""
    rng = np.random.default_rng(0)
    for name, count in (("train", MINIBATCHES), ("heldout", 2)):
        labels = {f"{name}{i}": rng.integers(0, 4, FRAMES).astype(np.int32) for i in range(count)}
        feats = {u: (x[:, None] + rng.normal(0, 0.2, (FRAMES, 3))).astype(np.float32) for u, x in labels.items()}
        write_frames(tmp_path / "frames" / f"{name}.frames", feats, labels, 4, utterances=list(feats), info={})
    PdfsOnly(4, "made by hand").save(tmp_path / "hmm")
    training = {
        "minibatch": FRAMES,
        "max_epochs": 2,
        "world": "simulated",
        "workers": 2,
        "asgd": {"warm_start": 0.5},
        "simulation": {"compute_s": 0.01, "sync_s": 0.001},
        "checkpoint_s": 0,
    }
    return TrainConfig(
        frames=str(tmp_path / "frames"),
        hmm=str(tmp_path / "hmm"),
        model=DnnConfig(layers=1, width=8),
        training=TrainingConfig(**training),
    )


def progress_of(out: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "progress"]


def test_an_epoch_of_seconds_has_none(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "out")
    assert [record["event"] for record in read_metrics(tmp_path / "out" / "metrics.jsonl")] == ["epoch", "epoch"]


def test_they_come_after_some_time_and_not_at_once(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 4))  # seconds; one reading a minibatch
    monkeypatch.setattr(run_module.time, "monotonic", lambda: float(next(clock)))
    sgd = config.model_copy(update={"training": TrainingConfig(minibatch=FRAMES, max_epochs=1)})
    train(sgd, tmp_path / "out")
    counts = [record["minibatches"]["used"] for record in progress_of(tmp_path / "out")]
    assert 2 <= len(counts) <= MINIBATCHES // 2 and counts == sorted(set(counts))


def test_they_tell_of_the_epoch_so_far(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PROGRESS_S", 0.0)
    train(config, tmp_path / "out")
    records = progress_of(tmp_path / "out")
    assert {record["epoch_minibatches"] for record in records} == {MINIBATCHES}
    for number in (1, 2):
        mine = [record for record in records if record["epoch"] == number]
        ended = [record["minibatches"]["used"] for record in mine]
        assert ended == sorted(ended) and ended[-1] == MINIBATCHES and len(set(ended)) > 4
        assert [record["frames"] for record in mine] == [(MINIBATCHES * (number - 1) + each) * FRAMES for each in ended]
    assert "shards" not in records[0] and len(records[-1]["shards"]) == 2
    epoch = read_metrics(tmp_path / "out" / "metrics.jsonl")[-1]
    assert {key: epoch[key] for key in ("staleness", "shards", "versions")} == {
        key: records[-1][key] for key in ("staleness", "shards", "versions")
    }


def test_who_reads_epochs_passes_them_over(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config, tmp_path / "plain" / "out")
    monkeypatch.setattr(run_module, "_PROGRESS_S", 0.0)
    train(config, tmp_path / "progress" / "out")
    one, other = (tmp_path / name / "out" for name in ("plain", "progress"))
    assert progress_of(other) and not progress_of(one)
    assert compare_runs([one]) == compare_runs([other])
    none = score({"u": "a"}, {"u": "a"})
    sections = [_training([System("dnn", none, metrics=read_metrics(out / "metrics.jsonl"))]) for out in (one, other)]
    assert sections[0] == sections[1] != ""
    assert load_tensors(one / "model.safetensors", "nn")[1] == load_tensors(other / "model.safetensors", "nn")[1]


def test_a_resumed_run_forgets_those_of_the_epoch_that_it_does_again(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(run_module, "_PROGRESS_S", 0.0)

    class Killed(BaseException):
        pass

    def killed(run: run_module._Run) -> None:
        raise Killed

    monkeypatch.setattr(run_module._Run, "_end_epoch", killed)
    with pytest.raises(Killed):
        train(config, out)
    before = progress_of(out)
    view = next(follow(out, lambda: None))
    assert before[-1]["epoch"] == 1 and view.minibatches == (MINIBATCHES, MINIBATCHES) and not view.finished
    monkeypatch.undo()
    train(config, out)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["epoch", "epoch"]
    assert [epoch.number for epoch in next(follow(out, lambda: None)).epochs] == [1, 2]
