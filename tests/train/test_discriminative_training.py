"""MMI and sMBR continue networks of every family in every world; what they cannot continue is named."""

import json
import shutil

import frame_corpus
import numpy as np
import pytest
import torch
from interrupted import both_runs

from speech3.config import ModelConfig, RecipeConfig, TrainingConfig, load_config, load_preset, shipped
from speech3.errors import DataError, Speech3Error
from speech3.frames.packed import open_packed, write_frames
from speech3.hmm.model import PdfsOnly
from speech3.io.checkpoint import load_tensors
from speech3.runtime import read_metrics
from speech3.train import train
from speech3.train.parts import minibatches

TDNN = {"family": "tdnn", "layers": 1, "width": 24, "bottleneck": 8, "prefinal": 16, "subsampling": 1}
TDNN_LSTM = {"family": "tdnn_lstm", "time_layers": 1, "width": 24, "bottleneck": 8, "layers": 1, "cells": 12}
FAMILIES = {**frame_corpus.MODELS, "tdnn": TDNN, "tdnn_lstm": TDNN_LSTM}
SMALL = {
    "minibatch": 180,
    "sequence": 30,
    "max_epochs": 2,
    "learning_rate": 0.3,
    "schedule": "constant",
    "frequency_warp": 0.0,
    "speeds": (),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A corpus, and a network of every family that was trained on it by cross-entropy, but not to the end."""
    root = tmp_path_factory.mktemp("discriminative")
    frame_corpus.write(root / "corpus")
    for family, model in FAMILIES.items():
        config = frame_corpus.config(root / "corpus", "cpu", "dnn", max_epochs=1, learning_rate=0.05)
        config = config.model_copy(update={"model": ModelConfig(**model)})
        train(config, root / family)
    return root


def config_of(home, family="dnn", **training):
    preset = load_preset(TrainingConfig, "training", training.get("objective", "smbr")).model_dump()
    config = frame_corpus.config(home / "corpus", "cpu", "dnn")
    return config.model_copy(
        update={
            "model": ModelConfig(**FAMILIES[family]),
            "init": str(home / family),
            "training": TrainingConfig.model_validate(preset | SMALL | training),
        }
    )


@pytest.mark.parametrize("objective", ["mmi", "smbr"])
def test_frequencies_are_warped_as_before(objective):
    recipe = load_config(RecipeConfig, shipped("recipes") / "minilibri" / "recipe.yaml")
    assert load_preset(TrainingConfig, "training", objective).frequency_warp == recipe.training.frequency_warp == 0.1


@pytest.mark.parametrize("objective", ["mmi", "smbr"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_continued(home, tmp_path, family, objective):
    about = train(config_of(home, family, objective=objective), tmp_path / "out")
    assert about["objective"] == objective and about["best_epoch"] == 2
    assert about["heldout_loss"] < about["before"]["heldout_loss"] - 0.002
    assert about["heldout_accuracy"] > about["before"]["heldout_accuracy"] - 0.02
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert ("log posterior" if objective == "mmi" else "expected held-out accuracy") in card
    assert load_tensors(tmp_path / "out" / "model.safetensors")[0]["log_prior"].any()


@pytest.mark.parametrize(
    "training",
    [
        {"world": "simulated", "workers": 3, "simulation": {"compute_s": 1.0, "sync_s": 0.05}},
        {
            "world": "simulated",
            "workers": 2,
            "simulation": {"compute_s": 1.0, "sync_s": 0.05, "strategy": "synchronous"},
        },
        {
            "world": "simulated",
            "workers": 2,
            "gradient_clip": None,
            "lbfgs": {"iterations": 3},
            "simulation": {"compute_s": 1.0, "sync_s": 0.05, "strategy": "sandblaster"},
        },
        {"world": "shared", "workers": 2},
        {"world": "ddp", "workers": 2},
        {"optimizer": "adamw", "learning_rate": 0.003},
    ],
    ids=["asgd simulated", "synchronous", "sandblaster", "shared", "ddp", "adamw"],
)
def test_every_world_continues_it(home, tmp_path, training):
    about = train(config_of(home, **training), tmp_path / "out")
    history = [record for record in read_metrics(tmp_path / "out" / "metrics.jsonl") if record["event"] == "epoch"]
    assert about["heldout_loss"] < about["before"]["heldout_loss"] - 0.002
    minibatches_of_an_epoch = len(minibatches(config_of(home), _packed(home), torch.device("cpu")))
    for record in history:
        assert record["minibatches"] == {"used": minibatches_of_an_epoch, "stale": 0, "refused": 0, "returned": 0}


def _packed(home):
    return open_packed(home / "corpus" / "train.frames")


def test_a_run_that_was_interrupted_ends_where_one_that_was_not_does(home, tmp_path, monkeypatch):
    both_runs(config_of(home, objective="mmi"), tmp_path, monkeypatch, 3)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"model_partitions": 2, "world": "shared"}, r"model_partitions=2.*cross_entropy"),
        ({"label_smoothing": 0.1}, r"label_smoothing=0\.1.*cross_entropy"),
        ({"chunk_frames": 5000}, r"chunk_frames=5000"),
        ({"discriminative": {"boost": 0.05}}, r"discriminative\.boost=0\.05: only for .*objective=mmi"),
        ({"sequence": 0}, r"sequence=0.*objective=smbr.*150"),
    ],
)
def test_keys_that_do_not_fit_are_named(home, tmp_path, training, message):
    with pytest.raises(Speech3Error, match=message):
        train(config_of(home, **training), tmp_path / "out")


def test_what_cannot_be_continued_is_named(home, tmp_path):
    config = config_of(home)
    with pytest.raises(Speech3Error, match=r"objective=smbr: continues a network.*--init"):
        train(config.model_copy(update={"init": None}), tmp_path / "out")
    shutil.copytree(home / "corpus", tmp_path / "third")
    about = json.loads((tmp_path / "third" / "hmm.json").read_text())
    (tmp_path / "third" / "hmm.json").write_text(json.dumps({**about, "subsampling": 3}))
    with pytest.raises(Speech3Error, match=r"third has one score per 3 frames.*objective=lfmmi"):
        train(config.model_copy(update={"hmm": str(tmp_path / "third")}), tmp_path / "out")
    feats = {"u": np.zeros((60, frame_corpus.DIM), np.float32)}
    for name in ("train", "heldout"):
        write_frames(tmp_path / "other" / f"{name}.frames", feats, {"u": np.zeros(60, int)}, 7, utterances=["u"])
    PdfsOnly(7, "a test's").save(tmp_path / "other")
    other = config.model_copy(update={"frames": str(tmp_path / "other"), "hmm": str(tmp_path / "other")})
    with pytest.raises(DataError, match=r"dnn/model\.safetensors: .* 7 here"):
        train(other, tmp_path / "out")
    assert not (tmp_path / "out" / "run.json").exists()
