"""Layers, parameters, context and FLOPs against closed forms and PyTorch's own counter."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from speech3.config import (
    CnnConfig,
    CnnTdnnConfig,
    DnnConfig,
    FeatureConfig,
    LstmConfig,
    ModelConfig,
    PitchConfig,
    load_preset,
    presets,
)
from speech3.errors import Speech3Error
from speech3.hmm.gmm import Gmm
from speech3.io.checkpoint import save_tensors
from speech3.models import AcousticModel, build, logits, network_tensors
from speech3.models.cnn import Convolution
from speech3.models.info import describe_model, layers_of, model_facts, model_info, name_of_features

F, S = 120, 800


def saved(directory: Path, config: ModelConfig, features: FeatureConfig | None = None, **about) -> Path:
    """A model directory as training leaves it."""
    network = build(config, F, S, seed=1)
    tensors = {**network_tensors(network), "log_prior": np.zeros(S, np.float32)}
    said = {"kind": "nn", "model": json.loads(config.model_dump_json()), "feat_dim": F, "num_senones": S, **about}
    save_tensors(directory / "model.safetensors", tensors, said)
    if features:
        (directory / "features.yaml").write_text(yaml.safe_dump(features.model_dump()))
    return directory


def fbank40_d2() -> FeatureConfig:
    """As an extraction writes it: with its rate."""
    return load_preset(FeatureConfig, "features", "fbank40_d2").model_copy(update={"sample_frequency": 8000})


def test_dnn_in_closed_form(tmp_path):
    info = model_info(
        saved(tmp_path, DnnConfig(layers=2, width=64, right_context=3, normalization="batch"), fbank40_d2())
    )
    matrices = 9 * F * 64 + 64 * 64 + 64 * S
    assert info.flops == 2 * matrices
    assert info.parameters == matrices + (64 + 64 + S) + 2 * 2 * 64
    assert [(layer.kind, layer.output, layer.flops) for layer in info.layers] == [
        ("fully connected", (64,), 2 * 9 * F * 64),
        ("batch normalisation", (64,), 0),
        ("fully connected", (64,), 2 * 64 * 64),
        ("batch normalisation", (64,), 0),
        ("fully connected", (S,), 2 * 64 * S),
    ]
    assert info.layers[0].shapes == {"weight": (64, 9 * F), "bias": (64,)}
    assert (info.system, info.senones, info.feat_dim, info.gaussians) == ("dnn", S, F, None)
    assert (info.left_context, info.right_context) == (5, 3)
    assert (info.latency_frames, info.latency_ms) == (3 + 4, 70.0), "two derivatives over two frames each"
    assert (info.features, info.normalization) == ("fbank40_d2", "speaker")
    assert info.file_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert model_info(tmp_path / "model.safetensors") == info


def test_what_the_features_look_at_is_waited_for(tmp_path):
    pitch = {"normalization_right_context": 30, "max_frames_latency": 10}
    features = FeatureConfig(pitch=pitch, deltas=1, right_context=1, cmvn="sliding", sample_frequency=8000)
    info = model_info(saved(tmp_path, DnnConfig(layers=1, width=8, right_context=3), features))
    assert info.latency_frames == 3 + 30 + 10 + 2 + 1
    assert model_facts(info)["latency"] == (
        "46 frames (460 ms): 3 of the model, 43 of the features; not counting normalisation of the features"
    )
    slope = features.model_copy(update={"pitch": PitchConfig(add_normalized_log_pitch=False), "cmvn": "global"})
    info = model_info(saved(tmp_path, DnnConfig(layers=1, width=8, right_context=3), slope))
    assert model_facts(info)["latency"] == "8 frames (80 ms): 3 of the model, 5 of the features"
    assert "normalised by global statistics" in model_facts(info)["features"]


def test_cnn_in_closed_form():
    config = CnnConfig.model_validate(
        {
            "convolutions": [{"maps": 8, "kernel": (9, 9), "pool": 3}, {"maps": 16, "kernel": (4, 3)}],
            "layers": 1,
            "width": 32,
        }
    )
    found = {layer.name: layer for layer in layers_of(build(config, F, S, seed=1))}
    first, second, hidden, output = found.values()
    # 40 bins x 11 frames; 32 x 3 after the first kernel, 10 x 3 after the maximum of three, 7 x 1 after the second
    assert (first.output, first.flops) == ((10, 3, 8), 2 * (32 * 3) * 8 * (3 * 9 * 9))
    assert second.flops == 2 * 7 * 16 * (8 * 4 * 3) and second.kind == "convolution"
    assert (hidden.flops, output.flops) == (2 * 7 * 16 * 32, 2 * 32 * S)


@pytest.mark.parametrize("projection", [0, 48])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_in_closed_form(tmp_path, projection, bidirectional):
    config = LstmConfig(
        layers=2,
        cells=64,
        projection=projection,
        bidirectional=bidirectional,
        peepholes=True,
        delay=0 if bidirectional else 5,
        input_layers=(32,),
        right_context=2,
    )
    info = model_info(saved(tmp_path, config, fbank40_d2()))
    out = projection or 64
    both = 1 + bidirectional
    gates = 4 * 64 * (32 + out) + 4 * 64 * (both * out + out)
    weights = both * (gates + 2 * 3 * 64 + 2 * 64 * projection) + 3 * F * 32 + both * out * S
    assert info.flops == 2 * weights
    assert info.parameters == weights + both * 2 * 4 * 64 + 32 + S
    assert info.system == ("blstm" if bidirectional else "lstm")
    assert info.left_context is None
    assert info.right_context == (None if bidirectional else 2 + 5)
    assert info.latency_ms == (None if bidirectional else 110.0)
    assert ("whole utterance" in model_facts(info)["latency"]) == bidirectional


@pytest.mark.parametrize("subsampling", [1, 3])
def test_time_delay_network_in_closed_form(tmp_path, subsampling):
    config = CnnTdnnConfig(layers=2, width=64, bottleneck=16, prefinal=24, two_outputs=True, subsampling=subsampling)
    info = model_info(saved(tmp_path, config, fbank40_d2()))
    # 120 bins: (120 - 5) // 2 + 1 = 58, (58 - 3) // 2 + 1 = 28
    weights = 58 * 48 * 35 + 28 * 64 * 48 * 9 + 28 * 64 * 64 + 2 * (2 * 2 * 16 * 64) + 64 * 24 + 24 * S
    assert sum(layer.flops for layer in info.layers) == pytest.approx(2 * weights / subsampling, abs=len(info.layers))
    found = {layer.name: layer for layer in info.layers}
    linear, second = found["layers.0.linear"], found["front.convolutions.1.convolution"]
    assert (linear.kind, linear.output, linear.parameters) == ("semi-orthogonal", (16,), 2 * 16 * 64)
    assert (second.kind, second.output, second.shapes["weight"]) == ("convolution", (28, 64), (64, 48, 3, 3))
    assert (found["xent_output"].kind, found["xent_output"].flops) == ("fully connected, in training only", 0)
    assert found["xent_output"].output == (S,)
    beside = 3 + 3 + 2 * 3 - (subsampling - 1) // 2  # kernels of 7 frames and 3 steps, two layers of +- a step
    assert (info.left_context, info.right_context, info.subsampling) == (beside, beside, subsampling)
    assert info.latency_frames == beside + subsampling - 1 + 4
    assert info.system == "cnn_tdnn" and info.parameters == sum(
        each.numel() for each in build(config, F, S, 1).parameters()
    )
    of = "the frame itself" if subsampling == 1 else "the 3 frames that an output is for"
    assert model_facts(info)["context"] == f"{beside} frames before and {beside} after {of}"
    assert f"{beside + subsampling - 1} of the model, 4 of the features" in model_facts(info)["latency"]


@pytest.mark.parametrize("library", ["stock"], indirect=True)
@pytest.mark.parametrize("name", presets("models"))
def test_presets_have_the_parameters_and_flops_that_pytorch_counts(name, library):
    model = build(load_preset(ModelConfig, "models", name), F, S, seed=1)
    layers = layers_of(model)
    assert sum(layer.parameters for layer in layers) == sum(each.numel() for each in model.parameters())
    if model.recurrent:
        return  # its products are an operator of our own, which PyTorch's counter does not know
    counts = [_flops(model, frames) for frames in (48, 96)]
    rounded = 0 if model.subsampling == 1 else len(layers)  # a third of an output's FLOPs, in each layer
    assert sum(layer.flops for layer in layers) == pytest.approx((counts[1] - counts[0]) / 48, abs=rounded, rel=0)


def _flops(model: AcousticModel, frames: int) -> int:
    """Of an utterance, in PyTorch's own functions."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_stock_linear, module)
        elif isinstance(module, Convolution):
            module.forward = module.stock
    with FlopCounterMode(display=False) as counted:
        logits(model, torch.zeros(frames, F))
    return int(counted.get_total_flops())


def _stock_linear(layer: nn.Linear, x: torch.Tensor, relu: bool = False) -> torch.Tensor:
    y = nn.Linear.forward(layer, x)
    return y.relu() if relu else y


def test_gaussians(tmp_path):
    gmm = Gmm(np.array([0, 2, 5]), np.ones(5), np.zeros((5, 39)), np.ones((5, 39)))
    gmm.save(tmp_path / "model.safetensors", {"features": "mfcc13_d2"})
    info = model_info(tmp_path)
    assert (info.system, info.senones, info.gaussians, info.feat_dim) == ("gmm", 2, 5, 39)
    assert info.parameters == 5 * (1 + 39 + 39)
    assert info.flops == 2 * 5 * 2 * 39
    assert info.latency_ms is None, "nobody says how long a frame is"
    assert "5 Gaussians of 39 dimensions" in describe_model(info)


def test_features_are_named_by_their_preset():
    assert name_of_features(fbank40_d2()) == "fbank40_d2"
    assert name_of_features(FeatureConfig(num_mel_bins=7)) == "fbank, no preset"
    assert name_of_features(None) == ""


def test_no_model(tmp_path):
    with pytest.raises(Speech3Error, match=f"{tmp_path}: no model directory.*exp/dnn"):
        model_info(tmp_path)
