"""A small corpus of packed frames with senones, configs to train small networks on it, and what they learnt."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import ModelConfig, TrainConfig, TrainingConfig
from speech3.frames.packed import write_frames
from speech3.hmm.model import PdfsOnly
from speech3.runtime import read_metrics

SENONES, DIM = 6, 12
MODELS: dict[str, dict[str, Any]] = {
    "dnn": {"family": "dnn", "layers": 1, "width": 32, "normalization": "batch", "dropout": 0.1},
    "cnn": {"family": "cnn", "layers": 1, "width": 32, "convolutions": [{"maps": 8, "kernel": [3, 3]}]},
    "lstm": {"family": "lstm", "layers": 1, "cells": 16, "delay": 2},
    "blstm": {"family": "lstm", "layers": 1, "cells": 16, "bidirectional": True, "lookahead": 5},
}


def write(root: Path) -> None:
    """Frames around centres of their senones."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 1.5, (SENONES, DIM))
    for name, count in (("train", 40), ("heldout", 6)):
        senones = {f"{name}{u}": np.repeat(rng.integers(0, SENONES, 12), 6) for u in range(count)}
        feats = {u: (centres[s] + rng.normal(size=(len(s), DIM))).astype(np.float32) for u, s in senones.items()}
        write_frames(root / f"{name}.frames", feats, senones, SENONES, utterances=list(feats))
    PdfsOnly(SENONES, "a test's").save(root)


def config(corpus: Path, device: str, model: str, **training: Any) -> TrainConfig:
    small = {"minibatch": 96, "max_epochs": 3, "learning_rate": 0.05, "schedule": "constant", "device": device}
    return TrainConfig(
        frames=str(corpus),
        hmm=str(corpus),
        model=ModelConfig(**MODELS[model]),
        training=TrainingConfig.model_validate(small | training),
    )


def learnt(out: Path) -> list[float]:
    """Held-out accuracies of a finished run; its losses are numbers."""
    epochs = [record for record in read_metrics(out / "metrics.jsonl") if record["event"] == "epoch"]
    assert all(math.isfinite(record["heldout_loss"]) for record in epochs)
    return [record["heldout_accuracy"] for record in epochs]
