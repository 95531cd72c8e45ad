"""The CNN against stacks of PyTorch's own layers and closed forms, what it refuses, and a training run of it."""

import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

from speech3.config import CnnConfig, ConvolutionConfig, ModelConfig, TrainConfig, TrainingConfig, load_preset, parse
from speech3.errors import Speech3Error
from speech3.frames.packed import write_frames
from speech3.hmm.model import Hmm, monophone_tree
from speech3.io.checkpoint import save_tensors
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.models import build, cnn, load_network, logits, network_tensors
from speech3.models.cnn import Convolution
from speech3.train import train

SMALL = CnnConfig(
    convolutions=(ConvolutionConfig(maps=8, kernel=(3, 4), pool=2), ConvolutionConfig(maps=12, kernel=(2, 3))),
    layers=1,
    width=16,
    left_context=3,
    right_context=4,
)


class _MapsLast(nn.Module):
    def __init__(self, module, back=True):
        super().__init__()
        self.module, self.back = module, back

    def forward(self, x):
        y = self.module(x.movedim(1, -1))
        return y.movedim(-1, 1) if self.back else y


def _stock(config, bins, senones):
    """Maps first, as PyTorch has them, in the order of textbooks: the maximum after the activation."""
    layers, channels, frames = [], config.channels, config.left_context + 1 + config.right_context
    activation = nn.ReLU if config.activation == "relu" else nn.Sigmoid
    for each in config.convolutions:
        layers.append(nn.Conv2d(channels, each.maps, each.kernel))
        pool = nn.MaxPool2d((each.pool, 1))
        norm = {"batch": nn.BatchNorm2d(each.maps), "layer": _MapsLast(nn.LayerNorm(each.maps))}
        layers += [activation(), pool] if config.normalization == "none" else [pool, norm[config.normalization]]
        layers += [] if config.normalization == "none" else [activation()]
        bins, frames = (bins - each.kernel[0] + 1) // each.pool, frames - each.kernel[1] + 1
        channels = each.maps
    width = bins * frames * channels + (config.left_context + 1 + config.right_context) * config.adapted
    layers += [_MapsLast(nn.Identity(), back=False), nn.Flatten()]
    for _ in range(config.layers):
        layers.append(nn.Linear(width, config.width))
        width = config.width
        norm = {"none": nn.Identity(), "batch": nn.BatchNorm1d(width), "layer": nn.LayerNorm(width)}
        layers += [norm[config.normalization], activation()]
    return nn.Sequential(*layers, nn.Linear(width, senones))


def _products(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("normalization", ["none", "batch", "layer"])
def test_equals_the_network_of_stock_layers_in_double_precision(activation, normalization):
    config = SMALL.model_copy(update={"activation": activation, "normalization": normalization})
    model, stock = build(config, 33, 20, seed=1), _stock(config, 11, 20).double()
    for ours, theirs in zip(_products(model), _products(stock), strict=True):
        nn.init.normal_(ours.bias)  # zero as it begins
        theirs.load_state_dict(ours.state_dict())
    feats = torch.randn(50, 8, 33) * 2 + 3
    mean, deviation = feats.mean((0, 1)), feats.std((0, 1), correction=0)
    model.set_input_statistics(mean, deviation**2)
    planes = ((feats - mean) / deviation).double().view(50, 8, 3, 11).permute(0, 2, 3, 1)
    expected = stock(planes)
    # float32 against float64: sums of 16 to 144 products, each rounded to 6e-8, through four layers.
    torch.testing.assert_close(model(feats).double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(feats.flatten(1)).double(), expected, rtol=1e-4, atol=1e-5)
    for name in ("weight", "bias"):
        ours = torch.autograd.grad(model(feats).square().mean(), [getattr(m, name) for m in _products(model)])
        theirs = torch.autograd.grad(stock(planes).square().mean(), [getattr(m, name) for m in _products(stock)])
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-5)


def test_adapted_values_bypass_the_convolutions():
    config = SMALL.model_copy(update={"adapted": 5})
    model, stock = build(config, 38, 20, seed=1), _stock(config, 11, 20).double()
    for ours, theirs in zip(_products(model), _products(stock), strict=True):
        nn.init.normal_(ours.bias)
        theirs.load_state_dict(ours.state_dict())
    feats = torch.randn(50, 8, 38) * 2 + 3
    mean, deviation = feats.mean((0, 1)), feats.std((0, 1), correction=0)
    model.set_input_statistics(mean, deviation**2)
    bins, adapted = ((feats - mean) / deviation).double().split([33, 5], 2)
    flat = 1 + next(place for place, layer in enumerate(stock) if isinstance(layer, nn.Flatten))
    seen = stock[:flat](bins.reshape(50, 8, 3, 11).permute(0, 2, 3, 1))
    expected = stock[flat:](torch.cat([seen, adapted.flatten(1)], 1))
    torch.testing.assert_close(model(feats).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_cache", [200, 400_000])
@pytest.mark.parametrize(("kernel", "pool"), [((1, 1), 5), ((3, 2), 1), ((5, 4), 1), ((2, 4), 2), ((4, 1), 2)])
def test_a_convolution_is_that_of_pytorch(kernel, pool, in_cache, monkeypatch):
    monkeypatch.setattr(cnn, "_IN_CACHE", in_cache)  # one to three windows at a time, or all
    torch.manual_seed(1)
    ours = Convolution(3, 4, kernel, pool).double()
    theirs = nn.Sequential(nn.Conv2d(3, 4, kernel), nn.MaxPool2d((pool, 1))).double()
    theirs[0].load_state_dict(ours.state_dict())
    x = torch.randn(4, 5, 4, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x).permute(0, 3, 1, 2), theirs(x.permute(0, 3, 1, 2)))
    torch.testing.assert_close(ours.stock(x), ours(x))  # what other devices compute
    leaves = [x, ours.weight, ours.bias]
    assert torch.autograd.gradcheck(lambda *_: ours(x), leaves, fast_mode=True)
    found = torch.autograd.grad(ours(x).sin().sum(), leaves)
    expected = torch.autograd.grad(theirs(x.permute(0, 3, 1, 2)).sin().sum(), [x, *theirs.parameters()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():  # a transposed input, as nobody here has it, is no excuse
        turned = torch.randn(2, 3, 5, 4, dtype=torch.float64)
        torch.testing.assert_close(ours(turned.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), theirs(turned))


@pytest.mark.parametrize("in_cache", [200, 400_000])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [((3, 2), (3, 1), (1, 1)), ((3, 3), (1, 2), (3, 1)), ((1, 4), (2, 3), (1, 2)), ((2, 2), (2, 2), (2, 2))],
)
def test_a_convolution_with_strides_and_dilation_is_that_of_pytorch(kernel, stride, dilation, in_cache, monkeypatch):
    monkeypatch.setattr(cnn, "_IN_CACHE", in_cache)
    torch.manual_seed(1)
    ours = Convolution(3, 4, kernel, stride=stride, dilation=dilation).double()
    x = torch.randn(4, 9, 11, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), ours.stock(x))
    assert ours(x)[0, :, :, 0].numel() == ours.places(x)
    assert torch.autograd.gradcheck(lambda *_: ours(x), [x, ours.weight, ours.bias], fast_mode=True)


def _first_maps(model, feats_BWF):
    """Of the first convolution, from the features: (B, frequency, time, maps)."""
    found = []
    handle = model.convolutions[0].convolution.register_forward_hook(
        lambda module, inputs, output: found.append(output)
    )
    model(feats_BWF)
    handle.remove()
    return found[0].detach()


def test_a_weight_looks_at_its_channel_bin_and_frame():
    convolutions = (ConvolutionConfig(maps=8, kernel=(3, 4)),)
    model = build(SMALL.model_copy(update={"convolutions": convolutions}), 33, 20, seed=1)
    weight = model.convolutions[0].convolution.weight  # maps, channels, frequency, time
    feats = torch.arange(2 * 8 * 33, dtype=torch.float32).view(2, 8, 33)  # the utterance's 8 frames of 3 x 11 bins
    for channel, row, column in ((0, 0, 0), (1, 2, 0), (2, 0, 3), (1, 1, 2)):
        with torch.no_grad():
            weight.zero_()
            weight[0, channel, row, column] = 1
        maps = _first_maps(model, feats)
        assert maps.shape == (2, 9, 5, 8)
        for k in range(9):
            for w in range(5):
                torch.testing.assert_close(maps[:, k, w, 0], feats[:, w + column, 11 * channel + k + row])
        assert (maps[..., 1:] == 0).all()
        others = feats.clone()
        others.view(2, 8, 3, 11)[:, :, [c for c in range(3) if c != channel]] += 7  # other derivatives: not seen
        torch.testing.assert_close(_first_maps(model, others), maps)


def test_pooling_takes_the_largest_of_neighbours_in_frequency_and_drops_what_is_left_over():
    config = SMALL.model_copy(
        update={"convolutions": (ConvolutionConfig(maps=1, kernel=(1, 1), pool=3),), "channels": 1}
    )
    model = build(config, 11, 4, seed=1)
    with torch.no_grad():
        model.convolutions[0].convolution.weight.fill_(1)
    x = torch.randn(2, 11, 8, 1)
    expected = torch.stack([x[:, 3 * k : 3 * k + 3].amax(1) for k in range(3)], 1).relu()
    assert torch.equal(model.convolutions(x), expected)


def test_dropout_acts_in_training_only_and_equal_seeds_give_equal_parameters():
    first, second, third = (build(SMALL.model_copy(update={"dropout": 0.5}), 33, 20, seed) for seed in (1, 1, 2))
    for (name, a), b, c in zip(first.named_parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b) and (a.ndim == 1 or not torch.equal(a, c)), name
    feats = torch.randn(8, 8, 33)
    assert not torch.equal(first.convolutions(feats.view(8, 11, 8, 3)), first.convolutions(feats.view(8, 11, 8, 3)))
    assert torch.equal(first.eval()(feats), second.eval()(feats))


def test_scale_of_the_initial_parameters():
    model = build(load_preset(ModelConfig, "models", "cnn"), 120, 100, seed=1)
    for layer in _products(model)[:-1]:  # Glorot, twice the variance for rectifiers: 4 / (inputs + outputs)
        places = layer.weight[0, 0].numel()
        inputs_and_outputs = (layer.weight.shape[0] + layer.weight.shape[1]) * places
        assert layer.weight.square().mean().item() == pytest.approx(4 / inputs_and_outputs, rel=0.05)
        assert (layer.bias == 0).all()


def test_nan_stays_nan():
    model = build(SMALL, 33, 20, seed=1).eval()
    feats = torch.randn(3, 8, 33)
    feats[1, 4, 5] = torch.nan
    assert model(feats).isnan().all(1).tolist() == [False, True, False]


def _by_hand(convolutions, widths, maps):
    weights = sum(maps_ * channels * k * w for maps_, channels, k, w in convolutions)
    weights += sum(a * b for a, b in itertools.pairwise(widths))
    biases, norms = sum(maps) + sum(widths[1:]), 2 * (sum(maps) + sum(widths[1:-1]))
    return weights + biases + norms


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # 40 - 9 + 1 = 32, 32 // 3 = 10, 10 - 4 + 1 = 7 in frequency; 11 - 9 + 1 = 3, 3 - 3 + 1 = 1 in time
        ("cnn", _by_hand([(128, 3, 9, 9), (256, 128, 4, 3)], [7 * 1 * 256, 1024, 1024, 800], [128, 256])),
        ("cnn_small", _by_hand([(32, 3, 9, 9), (64, 32, 4, 3)], [7 * 1 * 64, 256, 256, 800], [32, 64])),
        # 40 - 8 + 1 = 33, 33 // 3 = 11, 11 - 4 + 1 = 8; 11 - 11 + 1 = 1
        ("cnn_kaldi", _by_hand([(64, 3, 8, 11), (128, 64, 4, 1)], [8 * 1 * 128, 512, 512, 800], [64, 128])),
    ],
)
def test_presets(name, parameters):
    model = build(load_preset(ModelConfig, "models", name), 120, 800, seed=1)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.randn(2, 11, 120)).shape == (2, 800)
    assert (model.left_context, model.right_context) == (5, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 2}, r"model.channels=2: features of 33 values .* set model.channels=1"),
        (
            {"left_context": 0},
            r"model.convolutions\[1\].kernel=2 x 3: larger than its input, 4 in frequency x 2 frames",
        ),
        (
            {"convolutions": (ConvolutionConfig(maps=4, kernel=(12, 1)),)},
            r"model.convolutions\[0\].kernel=12 x 1: larger than its input, 11 in frequency x 8 frames",
        ),
        (
            {"convolutions": (ConvolutionConfig(maps=4, kernel=(8, 1), pool=5),)},
            r"model.convolutions\[0\].pool=5: the convolution leaves 4 bins in frequency",
        ),
    ],
)
def test_what_leaves_no_room_is_refused(changes, message):
    with pytest.raises(Speech3Error, match=message):
        build(SMALL.model_copy(update=changes), 33, 20, seed=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("kernel", [0, 3]), ("kernel", [3]), ("pool", 0), ("maps", 0), ("stride", 2), ("kernel", [3, -1])],
)
def test_a_convolution_without_extent_is_refused(key, value):
    values = {"family": "cnn", "convolutions": [{"maps": 4, "kernel": [3, 3], key: value}]}
    with pytest.raises(Speech3Error, match=rf"convolutions.*0.*{key}"):
        parse(ModelConfig, values, "my.yaml")


def test_logits_of_an_utterance_are_those_of_its_windows_and_a_stored_network_scores_the_same(tmp_path):
    config = SMALL.model_copy(update={"normalization": "batch", "dropout": 0.3})
    model = build(config, 33, 6, seed=1)
    model(torch.randn(30, 8, 33) + 2)  # moves the running statistics
    feats = torch.randn(1100, 33)
    padded = torch.cat([feats[:1].expand(3, -1), feats, feats[-1:].expand(4, -1)])
    found = logits(model, feats)
    windows = torch.stack([padded[t : t + 8] for t in range(1100)])
    torch.testing.assert_close(found, model.eval()(windows).detach(), rtol=1e-5, atol=1e-5)
    about = {"kind": "nn", "model": json.loads(config.model_dump_json()), "feat_dim": 33, "num_senones": 6}
    prior = np.log(np.full(6, 1 / 6, np.float32))
    save_tensors(tmp_path / "model.safetensors", {**network_tensors(model), "log_prior": prior}, about)
    assert torch.equal(logits(load_network(tmp_path)[0], feats), found)


@pytest.fixture
def corpus(tmp_path):
    """A bump on a spectrum of 8 bins, somewhere in one half, that rises or falls: no frame alone says which of four."""
    rng = np.random.default_rng(0)
    bump = np.exp(-0.5 * np.square(np.arange(8) - np.arange(8)[:, None])).astype(np.float32)
    for name, count in (("train", 60), ("heldout", 15)):
        feats, labels = {}, {}
        for u in range(count):
            senones = rng.integers(0, 4, 6)
            place = (rng.integers(0, 4, 6) + 4 * (senones // 2)).repeat(6)
            size = np.where(senones[:, None] % 2 == 0, np.arange(6), np.arange(6)[::-1]).ravel() + 1
            static = bump[place] * size[:, None] + rng.normal(0, 0.1, (36, 8))
            feats[f"{name}{u}"] = np.hstack([static, np.gradient(static, axis=0)]).astype(np.float32)
            labels[f"{name}{u}"] = senones.repeat(6).astype(np.int32)
        write_frames(
            tmp_path / f"{name}.frames", feats, labels, 6, utterances=list(feats), info={"features": "made up"}
        )
    Hmm(Lexicon((Pronunciation("WORD", ("a",)),)), monophone_tree(np.arange(2)), np.full(6, 0.5)).save(tmp_path / "hmm")
    return tmp_path


def test_a_run_learns(corpus):
    model = CnnConfig(
        channels=2,
        convolutions=(ConvolutionConfig(maps=8, kernel=(3, 3), pool=2),),
        layers=1,
        width=16,
        left_context=1,
        right_context=1,
        normalization="batch",
        dropout=0.1,
    )
    config = TrainConfig(
        frames=str(corpus),
        hmm=str(corpus / "hmm"),
        seed=1,
        model=model,
        training=TrainingConfig(minibatch=64, learning_rate=0.3, max_epochs=4, checkpoint_s=0),
    )
    about = train(config, corpus / "whole")
    assert about["heldout_accuracy"] > 0.85 and about["model"]["family"] == "cnn"
