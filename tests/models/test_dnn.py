"""The DNN against the same network of PyTorch's layers, its file, and the scoring of utterances."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from speech3.config import DnnConfig, ModelConfig, load_preset
from speech3.errors import Speech3Error
from speech3.io.checkpoint import save_tensors
from speech3.models import build, load_network, logits, network_tensors


def _stock(config, dim, senones):
    layers, width = [nn.Flatten()], dim * (config.left_context + 1 + config.right_context)
    for _ in range(config.layers):
        layers.append(nn.Linear(width, config.width))
        width = config.width
        layers += {"none": [], "batch": [nn.BatchNorm1d(width)], "layer": [nn.LayerNorm(width)]}[config.normalization]
        layers.append(nn.ReLU() if config.activation == "relu" else nn.Sigmoid())
    return nn.Sequential(*layers, nn.Linear(width, senones))


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("normalization", ["none", "batch", "layer"])
def test_equals_the_network_of_stock_layers(activation, normalization):
    config = DnnConfig(layers=3, width=32, activation=activation, normalization=normalization, right_context=2)
    model, stock = build(config, 6, 20, seed=1), _stock(config, 6, 20)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for ours, theirs in zip(linears, [m for m in stock if isinstance(m, nn.Linear)], strict=True):
        theirs.load_state_dict(ours.state_dict())
    feats = torch.randn(50, 8, 6) * 2 + 3
    model.set_input_statistics(feats.mean((0, 1)), feats.var((0, 1), correction=0))
    normal = (feats - feats.mean((0, 1))) / feats.std((0, 1), correction=0)
    torch.testing.assert_close(model(feats), stock(normal), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(feats.flatten(1)), stock(normal), rtol=1e-4, atol=1e-5)
    ours = torch.autograd.grad(model(feats).square().mean(), [m.weight for m in linears])
    theirs = torch.autograd.grad(stock(normal).square().mean(), [m.weight for m in stock if isinstance(m, nn.Linear)])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_dropout_acts_in_training_only():
    model = build(DnnConfig(layers=2, width=64, dropout=0.5), 4, 5, seed=1)
    feats = torch.randn(8, 11, 4)
    assert not torch.equal(model(feats), model(feats))
    model.eval()
    assert torch.equal(model(feats), model(feats))


def test_seed_and_scale_of_the_initial_parameters():
    first, second, third = (build(DnnConfig(), 40, 100, seed) for seed in (1, 1, 2))
    assert torch.equal(first.layers.hidden[1].weight, second.layers.hidden[1].weight)
    assert not torch.equal(first.layers.hidden[1].weight, third.layers.hidden[1].weight)
    # He et al.: the mean square of the activations stays from layer to layer.
    x = torch.randn(200, 11 * 40)
    for layer in first.layers.hidden:
        x = layer(x, relu=True)
    assert 0.5 < x.square().mean().item() < 2


def test_constant_bins_are_only_shifted():
    model = build(DnnConfig(layers=0, left_context=0, right_context=0), 2, 3, seed=1)
    model.set_input_statistics(torch.tensor([5.0, 1.0]), torch.tensor([0.0, 4.0]))
    assert model.scale_F.tolist() == [1.0, 0.5]
    assert model(torch.tensor([[[5.0, 1.0]]])).isfinite().all()


@pytest.mark.parametrize("length", [1, 3, 1024, 2500])
def test_logits_of_an_utterance_are_those_of_its_windows(length):
    model = build(DnnConfig(layers=1, width=16, left_context=3, right_context=1, dropout=0.5), 4, 6, seed=1)
    feats = torch.randn(length, 4)
    padded = torch.cat([feats[:1].expand(3, -1), feats, feats[-1:]])
    windows = torch.stack([padded[t : t + 5] for t in range(length)])
    found = logits(model, feats)
    assert model.training
    torch.testing.assert_close(found, model.eval()(windows).detach(), rtol=1e-5, atol=1e-5)


def test_logits_of_other_features_are_refused():
    model = build(DnnConfig(layers=1, width=16), 4, 6, seed=1)
    with pytest.raises(Speech3Error, match=r"\(10, 13\).* trained on 4 bins"):
        logits(model, torch.zeros(10, 13))


@pytest.mark.parametrize("normalization", ["none", "batch"])
def test_a_stored_network_scores_the_same(tmp_path, normalization):
    config = DnnConfig(layers=2, width=16, normalization=normalization)
    model = build(config, 4, 6, seed=1)
    model(torch.randn(30, 11, 4) + 2)  # moves the running statistics
    about = {"kind": "nn", "model": json.loads(config.model_dump_json()), "feat_dim": 4, "num_senones": 6}
    prior = np.log(np.full(6, 1 / 6, np.float32))
    save_tensors(tmp_path / "model.safetensors", {**network_tensors(model), "log_prior": prior}, about)
    loaded, log_prior, found = load_network(tmp_path)
    feats = torch.randn(20, 4)
    assert torch.equal(logits(loaded, feats), logits(model, feats))
    assert not loaded.training
    np.testing.assert_array_equal(log_prior, prior)
    assert found == about
    save_tensors(tmp_path / "model.safetensors", {**network_tensors(model), "log_prior": prior[:5]}, about)
    with pytest.raises(Speech3Error, match=r"model.safetensors: tensors are not"):
        load_network(tmp_path)
    save_tensors(tmp_path / "model.safetensors", {"log_prior": prior}, about)
    with pytest.raises(Speech3Error, match=r"layers.hidden.0.weight"):
        load_network(tmp_path)


@pytest.mark.parametrize(("name", "layers", "width"), [("dnn", 4, 512), ("dnn_small", 3, 256)])
def test_presets(name, layers, width):
    config = load_preset(ModelConfig, "models", name)
    assert (config.layers, config.width) == (layers, width)
