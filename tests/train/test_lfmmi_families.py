"""LF-MMI for every family: chunks are scored as whole utterances, all learn, and go on from frame cross-entropy."""

import numpy as np
import pytest
import torch
from sentences import DIM, PHONES, config_of, write

from speech3.config import ModelConfig, RecipeConfig, TrainConfig, TrainingConfig, load_config, load_preset, shipped
from speech3.config.experiment import LfmmiSystemConfig
from speech3.errors import MismatchError, Speech3Error
from speech3.frames.packed import open_packed, segment_labels, write_frames
from speech3.io.checkpoint import save_tensors
from speech3.models import build, load_network, logits, network_tensors
from speech3.models.info import model_info
from speech3.runtime import read_metrics
from speech3.train import train
from speech3.train.init import read_init
from speech3.train.parts import minibatches

FAMILIES = {
    "dnn": {"family": "dnn", "layers": 1, "width": 32, "normalization": "batch"},
    "cnn": {"family": "cnn", "channels": 1, "layers": 1, "width": 32, "convolutions": [{"maps": 8, "kernel": [3, 3]}]},
    "lstm": {"family": "lstm", "layers": 2, "cells": 16, "delay": 4},
    "blstm": {"family": "lstm", "layers": 1, "cells": 16, "bidirectional": True, "lookahead": 7},
    "tc_dnn_blstm_dnn": {"family": "lstm", "input_layers": [24], "layers": 1, "cells": 12, "bidirectional": True,
                         "lookahead": 7, "output_layers": [24], "left_context": 2, "right_context": 3,
                         "normalization": "batch"},
    "tdnn_lstm": {"family": "tdnn_lstm", "time_layers": 2, "width": 32, "bottleneck": 12, "layers": 1, "cells": 16,
                  "cell_normalization": "batch"},
}  # fmt: skip
OUTPUTS = 2 * PHONES


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    write(root)
    return root


def _config(corpus, family, **training):
    """As from a file: the keys that depend on the objective are left out."""
    base = config_of(corpus, **training)
    values = {"max_epochs": 6, **base.training.model_dump(), **training}
    return TrainConfig(
        frames=base.frames,
        hmm=base.hmm,
        model=ModelConfig(**FAMILIES[family]),
        training=TrainingConfig.model_validate(values),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_what_was_said(corpus, tmp_path, family):
    about = train(_config(corpus, family), tmp_path)
    model, log_prior, _ = load_network(tmp_path)
    assert model.subsampling == 3 and model.two_outputs and not log_prior.any()
    assert about["heldout_loss"] < 0.5  # 0.9 without training
    assert about["heldout_per"] < 0.4
    assert logits(model, torch.zeros(25, DIM)).shape == (9, OUTPUTS)
    info = model_info(tmp_path)
    assert info.subsampling == 3
    assert [layer.kind for layer in info.layers if layer.name == "xent_output"] == ["fully connected, in training only"]
    if family in ("dnn", "cnn"):
        assert (info.left_context, info.right_context, info.latency_frames) == (4, 4, 6)
    if family == "lstm":  # one frame more for the window of the step's middle frame, and two steps
        assert info.latency_frames == 0 + 2 * 3 + 2


def test_several_workers_learn_and_are_averaged(corpus, tmp_path):
    simulation = {"compute_s": 1.0, "sync_s": 0.05}
    config = _config(corpus, "tc_dnn_blstm_dnn", world="simulated", workers=2, simulation=simulation, average=2)
    about = train(config, tmp_path)
    assert about["heldout_loss"] < 0.5
    (record,) = [record for record in read_metrics(tmp_path / "metrics.jsonl") if record["event"] == "average"]
    assert record["epochs"] == [3, 4] and record["heldout_loss"] < 0.6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chunk_that_is_an_utterance_is_scored_as_such(corpus, tmp_path, family):
    config = _config(corpus, family, sequence=48)
    feats = {"u": np.random.default_rng(1).standard_normal((48, DIM)).astype(np.float32)}
    labels = {"u": segment_labels(np.array([1, 2, 3, 1]), np.array([0, 12, 24, 36, 48]))}
    write_frames(tmp_path / "u.frames", feats, labels, 2 * PHONES + 2, utterances=["u"])
    model = build(config.model, DIM, OUTPUTS, seed=2).eval()
    ((inputs, _),) = minibatches(config, open_packed(tmp_path / "u.frames"), torch.device("cpu")).sequential(48)
    with torch.no_grad():
        found_BTS, second_BTS = model(inputs)
    expected_TS = logits(model, torch.from_numpy(feats["u"]))
    torch.testing.assert_close(found_BTS[0], expected_TS, atol=1e-5, rtol=1e-5)
    assert second_BTS.shape == found_BTS.shape and not torch.equal(second_BTS, found_BTS)


def test_a_chunk_in_the_middle_has_read_what_was_before(corpus):
    frames = open_packed(corpus / "frames" / "heldout.frames")
    length = int(frames.offsets_U1[1])
    feats_TF = torch.from_numpy(frames.frames_NF[:length].copy())
    differences = []
    for context in (0, 10):
        config = _config(corpus, "lstm", sequence=30, chunk_context=context)
        model = build(config.model, DIM, OUTPUTS, seed=2).eval()
        inputs, _ = next(iter(minibatches(config, frames, torch.device("cpu")).sequential(60)))
        assert inputs.begins_B.tolist() == [True, False] and inputs.warm_up == -(-context // 3)
        start = int(np.ceil(length / 3)) - int(inputs.rest_B[1])
        assert inputs.rest_B[0] == int(np.ceil(length / 3)) and start > 0
        with torch.no_grad():
            found_TS = model(inputs)[0][1]
        # The last chunk begins `length - 60` frames after the first, maybe within an output: compare by its frames.
        first = round((length - 30) / (-(-length // 30) - 1))
        expected_TS = logits(model, feats_TF[first % 3 :])[first // 3 :][: len(found_TS)]
        differences.append(float((found_TS[: len(expected_TS)] - expected_TS).abs().max()))
    assert differences[0] > 4 * differences[1] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_it_continues_from_cross_entropy(corpus, tmp_path, capsys, family):
    """A model of senones at every frame keeps its layers, and gets new outputs."""
    narrow = build(ModelConfig(**FAMILIES[family]), DIM, 7, seed=5)
    about = {"kind": "nn", "model": FAMILIES[family], "feat_dim": DIM, "num_senones": 7}
    save_tensors(tmp_path / "ce" / "model.safetensors", network_tensors(narrow), about)
    config = _config(corpus, family, max_epochs=2).model_copy(update={"init": str(tmp_path / "ce")})
    init = read_init(config, open_packed(corpus / "frames" / "train.frames"))
    wide = build(config.model, DIM, OUTPUTS, seed=1)
    found = init.put_into(wide)
    assert found["new"] == [f"{layer}.{kind}" for layer in ("output", "xent_output") for kind in ("weight", "bias")]
    assert "so the output layer is new" in capsys.readouterr().err
    narrow.eval(), wide.eval()
    feats_TF = torch.randn(48, DIM, generator=torch.Generator().manual_seed(1))
    for each in (narrow, wide):
        each.output = torch.nn.Identity()
        each.num_senones = 24 if family == "tc_dnn_blstm_dnn" else 16 if family == "lstm" else 32
    if family in ("dnn", "cnn"):
        torch.testing.assert_close(logits(wide, feats_TF), logits(narrow, feats_TF)[1::3])
    elif family in ("lstm", "blstm"):  # it is the narrow network at every third frame
        narrow.delay, inside = wide.delay, slice(len(feats_TF) // 3 - wide.delay)  # beyond, the last frame is repeated
        torch.testing.assert_close(logits(wide, feats_TF)[inside], logits(narrow, feats_TF[1::3])[inside])
    result = train(config, tmp_path / "out")
    assert result["before"]["path"].endswith("ce/model.safetensors") and result["best_epoch"] > 0


def test_other_features_than_those_of_cross_entropy_name_the_recipe_s_keys(corpus, tmp_path):
    """`speech3 pack` does not pack labels of phones."""
    tensors = network_tensors(build(ModelConfig(**FAMILIES["lstm"]), 3 * DIM, 7, seed=5))
    about = {"kind": "nn", "model": FAMILIES["lstm"], "feat_dim": 3 * DIM, "num_senones": 7}
    save_tensors(tmp_path / "ce" / "model.safetensors", tensors, about)
    config = _config(corpus, "lstm").model_copy(update={"init": str(tmp_path / "ce")})
    with pytest.raises(MismatchError, match=r"24 feature bins.* has 8"):
        train(config, tmp_path / "out")


def test_frame_cross_entropy_at_a_third_of_the_frames(corpus, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("train", "heldout"):
        labels = {f"u{i}": np.repeat(rng.integers(0, OUTPUTS, 8), 6) for i in range(20)}
        feats = {
            u: (np.eye(OUTPUTS)[x] + rng.normal(0, 0.1, (48, OUTPUTS))).astype(np.float32) for u, x in labels.items()
        }
        write_frames(tmp_path / f"{name}.frames", feats, labels, OUTPUTS, utterances=list(feats))
    base = config_of(corpus, objective="cross_entropy", max_epochs=8)
    model = ModelConfig(**FAMILIES["dnn"], subsampling=3)
    config = TrainConfig(frames=str(tmp_path), hmm=base.hmm, model=model, training=base.training)
    about = train(config, tmp_path / "out")
    assert about["heldout_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("model", "training", "words"),
    [
        ({"two_outputs": False}, {}, r"lfmmi\.cross_entropy=0\.1.*model\.two_outputs=true"),
        ({"subsampling": 1}, {}, r"model\.subsampling=1.*per 3 frames"),
        (
            {},
            {"world": "shared", "model_partitions": 2, "workers": 1, "optimizer": "adamw"},
            r"model_partitions=2.*cross_entropy",
        ),
        ({}, {"chunk_frames": 500}, r"chunk_frames=500"),
        ({}, {"label_smoothing": 0.1}, r"label_smoothing=0\.1: only for .*cross_entropy"),
        ({}, {"targets_inside": True}, r"targets_inside=true: only for a recurrent network"),
        ({"subsampling": 3, "left_context": 0}, {}, ">= 1"),
        ({"left_context": 0, "right_context": 0}, {}, ">= 1"),  # subsampling follows from the objective
    ],
)
def test_what_cannot_be_trained_is_named(corpus, tmp_path, model, training, words):
    base = config_of(corpus, **training)
    with pytest.raises((Speech3Error, ValueError), match=words):
        values = {"model": {"family": "dnn", **model}, "training": base.training}
        train(TrainConfig(frames=base.frames, hmm=base.hmm, **values), tmp_path / "out")


@pytest.mark.parametrize(
    "preset",
    ["dnn", "cnn", "lstm", "lstmp", "blstm", "tc_dnn_blstm_dnn", "tdnn", "cnn_tdnn", "tdnn_lstm", "tdnn_blstm"],
)
def test_a_recipe_takes_every_preset(preset, corpus):
    path = shipped("recipes") / "digits" / "recipe.yaml"
    system = load_config(RecipeConfig, path, [f"lfmmi.model={preset}", "lfmmi.model.dropout=0.2"]).lfmmi
    assert system.features == ("fbank40_d2_utt" if preset == "cnn" else "fbank40_utt")
    config = TrainConfig(frames="x", hmm="y", model=system.model, training=system.training)
    dim = 120 if preset == "cnn" else 40
    model = build(config.model, dim, 10, seed=0)
    assert model.subsampling == 3 and model.two_outputs and config.model.dropout == 0.2
    assert LfmmiSystemConfig(model=load_preset(ModelConfig, "models", preset)).features == system.features


def test_parameters_of_other_runs_do_not_change():
    """The output layers are drawn last: a network without the second one is as it was."""
    for family in FAMILIES.values():
        one, two = (build(ModelConfig(**family, two_outputs=both), DIM, OUTPUTS, seed=3) for both in (False, True))
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name])
