"""The ONNX graphs against PyTorch, through onnxruntime."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from speech3.config import ModelConfig
from speech3.errors import MismatchError, Speech3Error
from speech3.models import AcousticModel, build, logits
from speech3.models.onnx import OnnxNetwork, to_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FEAT_DIM, SENONES = 6, 7
LENGTHS = (1, 2, 9, 40)
CNN = {
    "family": "cnn",
    "channels": 2,
    "left_context": 2,
    "right_context": 2,
    "layers": 1,
    "width": 12,
    "convolutions": [{"maps": 4, "kernel": [2, 2], "pool": 2}, {"maps": 5, "kernel": [1, 3]}],
}
WINDOWS = {
    "relu": {"family": "dnn", "layers": 2, "width": 12},
    "sigmoid": {"family": "dnn", "layers": 1, "width": 12, "activation": "sigmoid", "left_context": 0},
    "batch": {"family": "dnn", "layers": 2, "width": 12, "normalization": "batch", "right_context": 0},
    "layer": {"family": "dnn", "layers": 2, "width": 12, "normalization": "layer", "dropout": 0.5},
    "linear": {"family": "dnn", "layers": 0, "left_context": 2, "right_context": 1},
    "one frame": {"family": "dnn", "layers": 1, "width": 4, "left_context": 0, "right_context": 0},
    **{f"cnn {norm}": {**CNN, "normalization": norm} for norm in ("none", "batch", "layer")},
    "cnn to the last frame": {**CNN, "convolutions": [{"maps": 3, "kernel": [2, 5]}], "activation": "sigmoid"},
    "cnn of one channel": {**CNN, "channels": 1, "layers": 0},
    "at a third": {"family": "dnn", "layers": 2, "width": 12, "normalization": "batch", "subsampling": 3},
    "cnn at a third": {**CNN, "subsampling": 3, "two_outputs": True},
}
TDNN = {"family": "tdnn", "layers": 2, "width": 9, "bottleneck": 4, "prefinal": 5, "subsampling": 3}
CONVOLUTIONS = [{"maps": 4, "kernel": [2, 3], "stride": 2}, {"maps": 5, "kernel": [1, 2]}]
SUBSAMPLED = {
    "tdnn": TDNN,
    "tdnn of two outputs": {**TDNN, "two_outputs": True, "context": 2, "layers": 1},
    "tdnn at every frame": {**TDNN, "subsampling": 1, "bypass": 0.0},
    "cnn_tdnn": {**TDNN, "family": "cnn_tdnn", "convolutions": CONVOLUTIONS},
    "cnn_tdnn at every frame": {**TDNN, "family": "cnn_tdnn", "convolutions": CONVOLUTIONS, "subsampling": 1},
}
RECURRENT = {
    "lstm": {"layers": 2, "cells": 8},
    "no clip": {"layers": 1, "cells": 8, "cell_clip": math.inf},
    "lstmp": {"layers": 2, "cells": 8, "projection": 3, "peepholes": True, "cell_clip": 0.2, "delay": 3},
    "peepholes": {"layers": 1, "cells": 5, "peepholes": True, "left_context": 2, "right_context": 1},
    "fully connected": {"input_layers": [9, 6], "layers": 1, "cells": 5, "output_layers": [4], "delay": 5},
    "at a third": {"layers": 2, "cells": 8, "delay": 4, "left_context": 1, "right_context": 2, "subsampling": 3},
    "blstm at a third": {"layers": 2, "cells": 5, "bidirectional": True, "lookahead": 7, "left_context": 1,
                         "right_context": 1, "subsampling": 3, "two_outputs": True},
    "normalised": {"layers": 2, "cells": 8, "cell_normalization": "batch", "dropout": 0.2, "dropout_per_chunk": True},
    "layer norm": {"layers": 2, "cells": 8, "cell_normalization": "layer", "delay": 2},
    "blstm": {"layers": 2, "cells": 5, "bidirectional": True, "cell_clip": 0.3, "lookahead": 2},
    "tdnn_lstm": {"family": "tdnn_lstm", "time_layers": 2, "width": 9, "bottleneck": 4, "layers": 1, "cells": 5,
                  "delay": 2, "cell_normalization": "batch", "output_layers": [6], "convolutions": CONVOLUTIONS},
    "tdnn_blstm at a third": {"family": "tdnn_lstm", "time_layers": 1, "width": 9, "bottleneck": 4, "layers": 2,
                              "cells": 5, "bidirectional": True, "lookahead": 4, "subsampling": 3, "two_outputs": True},
    "tc": {"input_layers": [9], "layers": 2, "cells": 5, "bidirectional": True, "projection": 3, "peepholes": True,
           "left_context": 2, "right_context": 3, "output_layers": [7], "normalization": "batch", "dropout": 0.3},
}  # fmt: skip


def random_model(keys: dict[str, Any]) -> AcousticModel:
    """With input statistics, norms and biases that are not those of the beginning."""
    model = build(ModelConfig.model_validate(keys), FEAT_DIM, SENONES, seed=1)
    torch.manual_seed(2)
    model.set_input_statistics(torch.randn(FEAT_DIM), torch.rand(FEAT_DIM) + 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def log_priors() -> np.ndarray:
    return np.log(np.random.default_rng(3).dirichlet(np.ones(SENONES))).astype(np.float32)


def features(frames: int) -> np.ndarray:
    return np.random.default_rng(frames).standard_normal((frames, FEAT_DIM)).astype(np.float32)


def expected(model: AcousticModel, feats_TF: np.ndarray) -> np.ndarray:
    return logits(model, torch.from_numpy(feats_TF)).double().log_softmax(1).numpy() - log_priors()


def written(model: AcousticModel, path: Path, **changed: Any) -> OnnxNetwork:
    """The model's file, opened; `changed` in its metadata."""
    proto = to_onnx(model, log_priors(), {"features": {"kind": "given"}})
    about = json.loads(proto.metadata_props[0].value)
    onnx.helper.set_model_props(proto, {"speech3": json.dumps({**about, **changed})})
    path.write_bytes(proto.SerializeToString())
    return OnnxNetwork(path)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_score_as_in_pytorch(name: str, tmp_path: Path) -> None:
    model = random_model(WINDOWS[name])
    network = written(model, tmp_path / "x.onnx")
    for frames in LENGTHS:
        found_TS = network.loglikes(features(frames))
        assert found_TS.dtype == np.float32
        np.testing.assert_allclose(found_TS, expected(model, features(frames)), atol=1e-4)
    pdfs = np.array([4, 0])
    np.testing.assert_array_equal(network.loglikes(features(9), pdfs), network.loglikes(features(9))[:, pdfs])
    assert network.loglikes(features(0)).shape == (0, SENONES)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 3, 8, 39])
def test_windows_in_chunks_score_as_at_once(name: str, chunk: int, tmp_path: Path) -> None:
    model = random_model(WINDOWS[name])
    whole, parts = written(model, tmp_path / "x.onnx"), written(model, tmp_path / "y.onnx", chunk_frames=chunk)
    for frames in LENGTHS:
        np.testing.assert_allclose(parts.loglikes(features(frames)), whole.loglikes(features(frames)), atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 8, 3000])
@pytest.mark.parametrize("name", SUBSAMPLED)
def test_time_delay_networks_score_as_in_pytorch(name: str, chunk: int, tmp_path: Path) -> None:
    model = random_model(SUBSAMPLED[name])
    nn.init.normal_(model.output.weight)  # zero as it begins
    network = written(model, tmp_path / "x.onnx", chunk_frames=chunk)
    assert network.about["subsampling"] == SUBSAMPLED[name].get("subsampling", 3)
    for frames in LENGTHS:
        np.testing.assert_allclose(network.loglikes(features(frames)), expected(model, features(frames)), atol=1e-4)
    assert network.loglikes(features(0)).shape == (0, SENONES)


def test_outputs_of_lfmmi_are_given_as_they_are(tmp_path: Path) -> None:
    model = random_model({"family": "tdnn", "layers": 1, "width": 16, "bottleneck": 4, "prefinal": 8, "subsampling": 3})
    torch.nn.init.normal_(model.output.weight, std=30.0)  # so that some lie beyond the limit
    proto = to_onnx(model, log_priors(), {"features": {"kind": "given"}, "objective": "lfmmi"})
    (tmp_path / "x.onnx").write_bytes(proto.SerializeToString())
    feats_TF = features(32)
    found = OnnxNetwork(tmp_path / "x.onnx").loglikes(feats_TF)
    raw = logits(model, torch.from_numpy(feats_TF)).numpy()
    assert np.abs(raw).max() > 30 > np.abs(raw).min()
    np.testing.assert_allclose(found, raw.clip(-30, 30), atol=1e-3)


@pytest.mark.parametrize("name", RECURRENT)
def test_cells_score_as_in_pytorch(name: str, tmp_path: Path) -> None:
    model = random_model({"family": "lstm", **RECURRENT[name]})
    network = written(model, tmp_path / "x.onnx")
    for frames in LENGTHS:
        np.testing.assert_allclose(network.loglikes(features(frames)), expected(model, features(frames)), atol=1e-4)
    assert network.loglikes(features(0)).shape == (0, SENONES)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_cells_in_chunks_score_as_in_pytorch(
    name: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model({"family": "lstm", **RECURRENT[name]})
    at_once = written(model, tmp_path / "x.onnx").loglikes(features(40))
    monkeypatch.setattr("speech3.models.lstm._SCORED_AT_A_TIME", chunk)
    monkeypatch.setattr("speech3.models.lstm._LOOKAHEAD", 4)
    network = written(model, tmp_path / "y.onnx")
    assert network.about["chunk_frames"] == chunk
    for frames in LENGTHS:
        np.testing.assert_allclose(network.loglikes(features(frames)), expected(model, features(frames)), atol=1e-4)
    difference = np.abs(network.loglikes(features(40)) - at_once).max()
    assert difference > 1e-3 if RECURRENT[name].get("bidirectional") else difference < 1e-5


def test_the_graph_alone_is_enough_for_others(tmp_path: Path) -> None:
    import onnxruntime

    model = random_model(WINDOWS["relu"])
    written(model, tmp_path / "x.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    (found_TS,) = session.run(["loglikes"], {"feats": features(20)})
    np.testing.assert_allclose(found_TS, expected(model, features(20)), atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["speech3"])
    assert about["features"] == {"kind": "given"} and about["format"] == 1
    assert (about["feat_dim"], about["num_senones"], about["left_context"]) == (FEAT_DIM, SENONES, 5)
    priors = {each.name: each for each in onnx.load(tmp_path / "x.onnx").graph.initializer}["log_prior"]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(priors), log_priors())


def test_features_of_another_width_are_refused(tmp_path: Path) -> None:
    network = written(random_model(WINDOWS["relu"]), tmp_path / "x.onnx")
    with pytest.raises(MismatchError, match=r"features of shape \(5, 9\), but the model was"):
        network.loglikes(np.zeros((5, 9), np.float32))


def test_it_goes_to_another_process(tmp_path: Path) -> None:
    import pickle

    network = written(random_model(WINDOWS["relu"]), tmp_path / "x.onnx")
    there = pickle.loads(pickle.dumps(network))
    np.testing.assert_array_equal(there.loglikes(features(9)), network.loglikes(features(9)))


def test_what_is_no_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.onnx"
    model = random_model(WINDOWS["relu"])
    with pytest.raises(Speech3Error, match=r"x\.onnx: of another version of speech3 \(format 99"):
        written(model, path, format=99)
    written(model, path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-100], b"RIFF", b"", whole[:500] + b"\0" * 500 + whole[1000:]):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=r"x\.onnx: not"):
            OnnxNetwork(path)
    proto = onnx.load_from_string(whole)
    for others in ({}, {"speech3": "no JSON"}, {"speech3": "[1]"}, {"speech3": "{}"}):
        del proto.metadata_props[:]
        onnx.helper.set_model_props(proto, others)
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(Speech3Error, match=r"x\.onnx: not written by speech3 export"):
            OnnxNetwork(path)
    with pytest.raises(Speech3Error, match=r"gone\.onnx: no such file"):
        OnnxNetwork(tmp_path / "gone.onnx")


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(WINDOWS["relu"])
    written(model, tmp_path / "x.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(Speech3Error, match=r"pip install speech3\[onnx\]"):
        OnnxNetwork(tmp_path / "x.onnx")
    with pytest.raises(Speech3Error, match=r"pip install speech3\[onnx\]"):
        to_onnx(model, log_priors(), {})
