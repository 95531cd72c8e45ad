"""Whole runs on a GPU, in every world that one GPU can have and for every kind of minibatch: they learn, and resume."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentences import config_of, write

from speech3.config import ModelConfig, TrainConfig, TrainingConfig
from speech3.frames.packed import pack
from speech3.hmm.model import PdfsOnly
from speech3.io.progress import read_metrics
from speech3.training import train
from speech3.training.run import _Run

SENONES, DIM = 6, 12
SHARDS = {"world": "shared", "workers": 2, "asgd": {"warm_start": 0.25}}
VIRTUAL = {"world": "simulated", "workers": 2, "simulation": {"compute_s": 1.0, "sync_s": 0.05}}
WORLDS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.5},
    "shared": SHARDS,
    "shared_ternary": SHARDS | {"codec": {"kind": "ternary", "down": "ternary"}},
    "shared_partitions": {**SHARDS, "asgd": {"warm_start": 0.25, "partitions": 2, "momentum": 0.3}},
    "shared_adagrad": {**SHARDS, "asgd": {"warm_start": 0.25, "adagrad": 0.05}},
    "simulated": VIRTUAL,
    "synchronous_ternary": {
        **VIRTUAL, "simulation": VIRTUAL["simulation"] | {"method": "synchronous"}, "codec": {"kind": "ternary"},
    },
    "sandblaster": {"world": "sandblaster", "workers": 2, "schedule": "constant", "learning_rate": 0.1},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dnn": {"family": "dnn", "layers": 1, "width": 32, "normalization": "batch", "dropout": 0.1},
    "cnn": {"family": "cnn", "layers": 1, "width": 32, "convolutions": [{"maps": 8, "kernel": [3, 3]}]},
    "lstm": {"family": "lstm", "layers": 1, "cells": 16, "delay": 2},
    "blstm": {"family": "lstm", "layers": 1, "cells": 16, "bidirectional": True, "lookahead": 5},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames around centres of their senones."""
    root, rng = tmp_path_factory.mktemp("frames"), np.random.default_rng(0)
    centres = rng.normal(0, 1.5, (SENONES, DIM))
    for name, count in (("train", 40), ("heldout", 6)):
        senones = {f"{name}{u}": np.repeat(rng.integers(0, SENONES, 12), 6) for u in range(count)}
        feats = {u: (centres[s] + rng.normal(size=(len(s), DIM))).astype(np.float32) for u, s in senones.items()}
        pack(root / f"{name}.frames", feats, senones, SENONES, utterances=list(feats))
    PdfsOnly(SENONES, "a test's").save(root)
    return root


def config(corpus: Path, device: str, model: str, **training: Any) -> TrainConfig:
    small = {"minibatch": 96, "max_epochs": 3, "learning_rate": 0.05, "schedule": "constant", "device": device}
    return TrainConfig(
        data=str(corpus), hmm=str(corpus), model=ModelConfig(**MODELS[model]),
        training=TrainingConfig.model_validate(small | training),
    )  # fmt: skip


def learnt(out: Path) -> list[float]:
    """Held-out accuracies of a finished run; its losses are numbers."""
    epochs = [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "epoch"]
    assert all(math.isfinite(record["heldout_loss"]) for record in epochs)
    return [record["heldout_accuracy"] for record in epochs]


@pytest.mark.parametrize("world", WORLDS)
def test_worlds(world: str, corpus: Path, gpu: str, tmp_path: Path) -> None:
    train(config(corpus, gpu, "dnn", **WORLDS[world]), tmp_path)
    assert learnt(tmp_path)[-1] > 0.5  # by chance: 0.17


@pytest.mark.parametrize("model", ["cnn", "lstm", "blstm"])
def test_models(model: str, corpus: Path, gpu: str, tmp_path: Path) -> None:
    train(config(corpus, gpu, model, max_epochs=4, **SHARDS), tmp_path)
    assert learnt(tmp_path)[-1] > 0.3


def test_lfmmi(gpu: str, tmp_path: Path) -> None:
    write(tmp_path)
    train(config_of(tmp_path, device=gpu, **SHARDS), tmp_path / "out")
    assert len(learnt(tmp_path / "out")) == 4


def test_a_run_whose_frames_come_in_chunks_resumes(
    corpus: Path, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, whole_epoch = config(corpus, gpu, "dnn", chunk_frames=1600, momentum=0.5), _Run._end_epoch

    def stop(run: _Run) -> None:
        whole_epoch(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(_Run, "_end_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        train(chunks, tmp_path)
    monkeypatch.setattr(_Run, "_end_epoch", whole_epoch)
    train(chunks, tmp_path)
    assert len(learnt(tmp_path)) == 3 and learnt(tmp_path)[-1] > 0.5
