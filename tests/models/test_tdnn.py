"""Time-delay networks against PyTorch's convolutions and closed forms, in chunks and whole, and what they refuse."""

import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from speech3.config import CnnTdnnConfig, ModelConfig, TdnnConfig, load_preset, parse
from speech3.config.models import StridedConvolutionConfig
from speech3.engine.flat import flatten
from speech3.errors import Speech3Error
from speech3.io.checkpoint import save_tensors
from speech3.models import build, load_network, logits, network_tensors
from speech3.models.tdnn import FactoredLayer, Tdnn, constrain, joined

BINS, SENONES = 11, 7
SIZES = {"layers": 2, "width": 12, "bottleneck": 5, "prefinal": 6, "dropout": 0.0, "subsampling": 3}
CONVOLUTIONS = (
    StridedConvolutionConfig(maps=4, kernel=(3, 5), stride=2),
    StridedConvolutionConfig(maps=3, kernel=(2, 2)),
    StridedConvolutionConfig(maps=5, kernel=(1, 3), stride=2),
)
CONFIGS = {
    "tdnn": TdnnConfig(**SIZES),
    "tdnn at every frame": TdnnConfig(**{**SIZES, "subsampling": 1}),
    "wide context": TdnnConfig(**SIZES, context=2, bypass=0.3, two_outputs=True),
    "cnn_tdnn": CnnTdnnConfig(**SIZES, convolutions=CONVOLUTIONS, two_outputs=True),
    "cnn_tdnn at every frame": CnnTdnnConfig(**{**SIZES, "subsampling": 1}, convolutions=CONVOLUTIONS),
    "adapted": CnnTdnnConfig(**SIZES, convolutions=CONVOLUTIONS, two_outputs=True, adapted=4),
    "adapted at every frame": CnnTdnnConfig(**{**SIZES, "subsampling": 1}, convolutions=CONVOLUTIONS, adapted=4),
}


def random_model(config: TdnnConfig) -> Tdnn:
    """Nothing in it is zero or one."""
    model = build(config, BINS, SENONES, seed=1)
    assert isinstance(model, Tdnn)
    torch.manual_seed(2)
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if name.startswith(("output", "xent_output")) or each.ndim == 1:
            each.data += 0.3 * torch.rand_like(each)
    return model


def chunks(model: Tdnn, count: int, frames: int) -> torch.Tensor:
    return torch.randn(count, model.left_context + frames + model.right_context, BINS) * 2 + 1


def reference(model: Tdnn, config: TdnnConfig, feats: torch.Tensor) -> list[torch.Tensor]:
    """The outputs (B, T, S) of each head, of PyTorch's convolutions, with the parameters of `model`."""

    def normed(x, norm):
        running = norm.running_mean.clone(), norm.running_var.clone()
        return functional.batch_norm(x, *running, norm.weight, norm.bias, training=model.training, eps=norm.eps)

    dilation = 3 // config.subsampling
    x = (feats + model.shift_F) * model.scale_F
    if isinstance(config, CnnTdnnConfig):
        bins = BINS - config.adapted
        beside, x = x[:, :, bins:], x[:, None, :, :bins]  # B, maps, time, frequency
        for number, (block, each) in enumerate(zip(model.front.convolutions, config.convolutions, strict=True)):
            in_time = {"dilation": (dilation, 1)} if number else {}
            stride = (1 if number else config.subsampling, each.stride)
            x = functional.conv2d(x, block.convolution.weight, block.convolution.bias, stride=stride, **in_time)
            x = normed(x, block.norm).relu()
        x = x.permute(0, 2, 3, 1).flatten(2)
        # The convolutions see two frames before the one in the centre, then three more.
        centre = 5 + config.subsampling * torch.arange(x.shape[1])
        near = [beside[:, centre - 1], beside[:, centre], beside[:, centre + 1]]
        x = torch.cat([x, torch.stack(near, 3).flatten(2)], 2)
        x = x @ model.front.affine.weight.T + model.front.affine.bias
        x = x.transpose(1, 2)
    else:
        weight = model.front.affine.weight.squeeze(3)
        x = functional.conv1d(x.transpose(1, 2), weight, model.front.affine.bias, stride=config.subsampling)
    x = normed(x.relu(), model.front.norm)  # B, units, time
    offset = config.context * dilation
    for layer in model.layers:
        y = functional.conv1d(x, layer.linear.weight.permute(1, 2, 0), dilation=offset)
        weight = layer.affine.weight.unflatten(1, (2, -1)).transpose(1, 2)
        y = functional.conv1d(y, weight, layer.affine.bias, dilation=offset)
        x = normed(y.relu(), layer.norm) + config.bypass * x[:, :, offset : x.shape[2] - offset]
    heads = [(model.prefinal, model.output)]
    if config.two_outputs:
        heads.append((model.xent_prefinal, model.xent_output))
    found = []
    for prefinal, output in heads:
        y = normed(
            (x.transpose(1, 2) @ prefinal.affine.weight.T + prefinal.affine.bias).relu().transpose(1, 2), prefinal.norm
        )
        found.append(y.transpose(1, 2) @ output.weight.T + output.bias)
    return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_network_of_stock_layers(name, training):
    config = CONFIGS[name]
    model = random_model(config).double().train(training)
    feats = chunks(model, 3, 12).double()
    found = model(feats)
    found = found if config.two_outputs else (found,)
    expected = reference(model, config, feats)  # with the weights as the constraint has left them
    assert found[0].shape == (3, 12 // config.subsampling, SENONES)
    parameters = dict(model.named_parameters())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    ours, theirs = (
        torch.autograd.grad(sum((y * y.sin()).sum() for y in each), list(parameters.values()))
        for each in (found, expected)
    )
    for key, a, b in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", CONFIGS)
def test_single_precision_is_near_double(name, library):
    model = random_model(CONFIGS[name])
    feats = chunks(model, 4, 60)
    outputs = model(feats)
    expected = reference(model.double(), CONFIGS[name], feats.double())
    for a, b in zip(outputs if CONFIGS[name].two_outputs else [outputs], expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


class Wrapped(NamedTuple):
    feats_BTF: torch.Tensor
    begins_B: torch.Tensor


@pytest.mark.parametrize("name", CONFIGS)
def test_a_chunk_has_the_outputs_that_the_whole_utterance_has_there(name):
    model = random_model(CONFIGS[name]).eval()
    step, left, right = model.subsampling, model.left_context, model.right_context
    feats = torch.randn(120, BINS)
    whole = logits(model, feats)
    assert whole.shape == (120 // step, SENONES)
    for start in (left + -left % 3, 120 - right - 30 - (120 - right) % 3):
        chunk = feats[start - left : start + 30 + right][None]
        found = model(Wrapped(chunk, torch.zeros(1)))
        found = found[0] if CONFIGS[name].two_outputs else found
        torch.testing.assert_close(found[0], whole[start // step :][: 30 // step], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 50])
def test_an_utterance_is_scored_in_pieces_as_in_one(name, frames, monkeypatch):
    model, feats = random_model(CONFIGS[name]), torch.randn(frames, BINS)
    whole = logits(model, feats)
    assert whole.shape == (-(-frames // model.subsampling), SENONES) and model.training
    monkeypatch.setattr(Tdnn, "outputs_at_a_time", 3)
    torch.testing.assert_close(logits(model, feats), whole, rtol=1e-4, atol=1e-5)
    assert logits(model, feats[:0]).shape == (0, SENONES)


@pytest.mark.parametrize("name", ["tdnn", "cnn_tdnn"])
def test_every_third_output_at_every_frame_is_that_of_three_frames(name):
    third = random_model(CONFIGS[name])
    every = build(CONFIGS[name].model_copy(update={"subsampling": 1}), BINS, SENONES, seed=5)
    every.load_state_dict(third.state_dict())
    feats = torch.randn(90, BINS)
    torch.testing.assert_close(logits(third, feats), logits(every, feats)[1::3], rtol=1e-4, atol=1e-5)
    assert (every.left_context, every.right_context) == (third.left_context + 1, third.right_context + 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_context_is_what_an_output_depends_on_and_no_more(name):
    model = random_model(CONFIGS[name]).eval()
    nn.init.ones_(model.output.weight)
    step, left, right = model.subsampling, model.left_context, model.right_context
    feats = torch.randn(1, left + step + right, BINS, requires_grad=True)
    output = model(feats)
    output = output[0] if CONFIGS[name].two_outputs else output
    assert output.shape[1] == 1
    (grad,) = torch.autograd.grad(output.sum(), feats)
    used = grad[0].abs().sum(1).nonzero().flatten()
    assert (used.min(), used.max()) == (0, len(grad[0]) - 1)


def test_outputs_begin_at_zero_and_equal_seeds_give_equal_parameters():
    config = CONFIGS["cnn_tdnn"]
    first, second, third = (build(config, BINS, SENONES, seed) for seed in (1, 1, 2))
    for (name, a), b, c in zip(first.named_parameters(), second.parameters(), third.parameters(), strict=True):
        assert torch.equal(a, b) and (a.ndim == 1 or "output" in name or not torch.equal(a, c)), name
    assert all((outputs == 0).all() for outputs in first(chunks(first, 2, 6)))


def test_nan_stays_nan():
    model = random_model(CONFIGS["cnn_tdnn"])
    feats = chunks(model, 3, 6)
    feats[1, 4, 5] = torch.nan
    assert all(outputs.isnan().all() for outputs in model(feats)), "the statistics are of all chunks"
    model = random_model(CONFIGS["cnn_tdnn"]).eval()
    assert [outputs.isnan().any(2).any(1).tolist() for outputs in model(feats)] == [[False, True, False]] * 2


def _eigenvalues(weight_2OD):
    m = weight_2OD.detach().transpose(0, 1).flatten(1).double()
    return torch.linalg.eigvalsh(m @ m.T)


def test_the_constraint_is_the_step_of_the_paper():
    weight = torch.randn(2, 5, 8, dtype=torch.float64) * torch.tensor([1, 1, 1.1, 1, 1.2])[:, None]
    m = torch.cat(tuple(weight), 1).numpy()
    for _ in range(60):
        p = m @ m.T
        alpha_squared = np.trace(p @ p.T) / np.trace(p)
        spread = np.trace(p @ p.T) * 5 / np.trace(p) ** 2
        nu = 1 / 32 if spread > 1.1 else 1 / 16 if spread > 1.02 else 1 / 8
        m = m - 4 * nu / alpha_squared * (p - alpha_squared * np.eye(5)) @ m
        constrain(weight)
        np.testing.assert_allclose(torch.cat(tuple(weight), 1).numpy(), m, atol=1e-12)
    assert spread < 1.0001


def test_training_makes_the_matrices_semi_orthogonal_and_keeps_those_that_are():
    model = random_model(TdnnConfig(**{**SIZES, "bottleneck": 10}))
    feats, weights = chunks(model, 2, 9), [layer.linear.weight for layer in model.layers]
    vector = flatten(model).vector_K  # as the engine's worlds have it: the constraint must reach it
    begin, lengths = vector.clone(), [weight.norm().item() for weight in weights]
    model.eval()(feats)
    assert torch.equal(vector, begin), "no training, no constraint"
    model.train()
    for _ in range(60):
        model(feats)
    assert not torch.equal(vector, begin)
    for weight, length in zip(weights, lengths, strict=True):
        eigenvalues = _eigenvalues(weight)
        assert eigenvalues.max() / eigenvalues.min() < 1.001
        assert weight.norm().item() == pytest.approx(length, rel=0.15), "the scale floats: it is not pulled to one"
    before = [weight.detach().clone() for weight in weights]
    model(feats)
    for weight, old in zip(weights, before, strict=True):
        torch.testing.assert_close(weight.detach(), old, rtol=1e-4, atol=1e-6)


def test_five_shares_of_the_constraint_are_one_step():
    """Workers that begin with the same matrix push the difference: their sum moves the server's as far as one step."""
    weight = torch.randn(2, 6, 9, dtype=torch.float64)
    whole, part = weight.clone(), weight.clone()
    constrain(whole)
    constrain(part, 0.2)
    torch.testing.assert_close(weight + 5 * (part - weight), whole)


@pytest.mark.parametrize("seed", range(5))
def test_the_constraint_does_not_diverge_where_eigenvalues_differ_much(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2, 6, 9, generator=generator) * torch.logspace(-2, 0, 6)[:, None]
    for _ in range(400):
        constrain(weight)
    eigenvalues = _eigenvalues(weight)
    assert eigenvalues.max() / eigenvalues.min() < 1.01


@pytest.mark.parametrize("offset", [1, 2])
def test_joined_halves_are_those_of_two_times(offset):
    halves = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    found = joined(halves, offset)
    for t in range(9 - 2 * offset):
        first = halves[:, t, :3] + halves[:, t + offset, 3:]
        second = halves[:, t + offset, :3] + halves[:, t + 2 * offset, 3:]
        torch.testing.assert_close(found[:, t], torch.cat((first, second), 1))
    assert torch.autograd.gradcheck(lambda x: joined(x, offset), [halves])


def test_dropout_zeroes_a_unit_of_a_chunk_at_all_its_times():
    layer = FactoredLayer(TdnnConfig(**{**SIZES, "dropout": 0.5, "width": 200, "bypass": 0.0}), 5, torch.Generator())
    nn.init.constant_(layer.norm.bias, 0.7)
    x = torch.randn(3, 10, 200)
    for _ in range(60):
        constrain(layer.linear.weight)
    y = layer(x)
    zero = y == 0
    assert y.shape == (3, 8, 200) and torch.equal(zero.all(1), zero.any(1))
    dropped = zero.all(1)
    assert 0.4 < dropped.float().mean() < 0.6 and not torch.equal(dropped[0], dropped[1])
    whole = layer.eval()(x)
    assert (whole != 0).all() and torch.equal(layer(x), whole)
    layer.train()
    layer.dropout.dropped = 0
    torch.testing.assert_close(y[~zero], 2 * layer(x)[~zero], rtol=1e-4, atol=1e-5)


def test_the_bypass_adds_its_share_of_the_input_at_the_same_time():
    layer = FactoredLayer(TdnnConfig(**{**SIZES, "context": 2}), 5, torch.Generator())
    nn.init.zeros_(layer.affine.weight)
    nn.init.constant_(layer.norm.bias, 0.25)
    x = torch.randn(2, 9, 12)
    for mode in (True, False):
        torch.testing.assert_close(layer.train(mode)(x), 0.25 + 0.66 * x[:, 2:-2])


def test_a_stored_network_scores_the_same(tmp_path):
    config = CONFIGS["cnn_tdnn"]
    model = random_model(config)
    model(chunks(model, 4, 30))  # moves the running statistics
    about = {"kind": "nn", "model": json.loads(config.model_dump_json()), "feat_dim": BINS, "num_senones": SENONES}
    prior = np.full(SENONES, -np.log(SENONES), np.float32)
    save_tensors(tmp_path / "model.safetensors", {**network_tensors(model), "log_prior": prior}, about)
    feats = torch.randn(40, BINS)
    read = load_network(tmp_path)[0]
    assert torch.equal(logits(read, feats), logits(model, feats)) and read.left_context == model.left_context


@pytest.mark.parametrize(
    ("name", "width", "bottleneck", "prefinal", "front", "beside"),
    [
        ("tdnn", 384, 96, 192, 5 * 40 * 384 + 3 * 384, 2 + 27 - 1),
        # 40 bins: (40 - 5) // 2 + 1 = 18, (18 - 3) // 2 + 1 = 8
        ("cnn_tdnn", 384, 96, 192, 48 * 35 + 64 * 48 * 9 + 3 * (48 + 64) + 8 * 64 * 384 + 3 * 384, 3 + 3 + 27 - 1),
        ("cnn_tdnn_1m", 256, 64, 160, 32 * 35 + 48 * 32 * 9 + 3 * (32 + 48) + 8 * 48 * 256 + 3 * 256, 3 + 3 + 27 - 1),
        ("cnn_tdnn_100k", 72, 18, 32, 12 * 35 + 16 * 12 * 9 + 3 * (12 + 16) + 8 * 16 * 72 + 3 * 72, 3 + 3 + 27 - 1),
    ],
)
def test_presets(name, width, bottleneck, prefinal, front, beside):
    at_a_third = {"subsampling": 3, "two_outputs": True}
    model = build(load_preset(ModelConfig, "models", name).model_copy(update=at_a_third), 40, 500, seed=1)
    layers = 9 * (4 * bottleneck * width + 3 * width)
    heads = 2 * (width * prefinal + 3 * prefinal + prefinal * 500 + 500)
    assert sum(parameter.numel() for parameter in model.parameters()) == front + layers + heads
    assert (model.left_context, model.right_context, model.subsampling) == (beside, beside, 3)
    assert [tuple(y.shape) for y in model(torch.randn(2, beside + 15 + beside, 40))] == [(2, 5, 500)] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subsampling": 2}, "subsampling: Input should be 1 or 3"),
        ({"bottleneck": 12}, "bottleneck=12 must be below width=12"),
        ({"layers": 2, "bottlenecks": [4, 30]}, "bottleneck=30 must be below width=12"),
        ({"left_context": 5}, "left_context: .*the layers of this family determine the context; leave it out"),
        ({"window": 5}, "unknown key 'window'; known here: .*bottleneck"),
        ({"convolutions": []}, "convolutions: .*at least 1"),
        ({"convolutions": [{"maps": 4, "kernel": [3, 2]}]}, "convolutions.0.kernel: 2 frames, moved by subsampling=3"),
        ({"convolutions": [{"maps": 4, "kernel": [3, 3], "stride": 0}]}, "convolutions.0.stride: .*greater"),
        ({"convolutions": [{"maps": 4, "kernel": [3, 3], "pool": 2}]}, "unknown key 'convolutions.0.pool'.*stride"),
        ({"context": 0}, "context: .*greater"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    values = {"family": "cnn_tdnn", **SIZES, **changes}
    with pytest.raises(Speech3Error, match=f"(?s)^my.yaml: .*{message}"):
        parse(ModelConfig, values, "my.yaml")


def test_a_kernel_larger_than_the_bins_is_refused():
    convolutions = (CONVOLUTIONS[0], StridedConvolutionConfig(maps=4, kernel=(6, 3)))
    config = CnnTdnnConfig(**SIZES, convolutions=convolutions)
    message = r"^model.convolutions\[1\].kernel=6 x 3: larger than its input, 5 in frequency; .*fbank40"
    with pytest.raises(Speech3Error, match=message):
        build(config, BINS, SENONES, seed=1)


def test_a_config_is_one_of_its_family_however_it_is_made():
    assert type(ModelConfig(family="tdnn", layers=3)) is TdnnConfig
    assert type(ModelConfig(family="cnn_tdnn")) is CnnTdnnConfig
    for config in CONFIGS.values():
        assert parse(ModelConfig, config.model_dump(), "x") == config
        assert parse(ModelConfig, json.loads(config.model_dump_json()), "x") == config
    assert {each.system for each in CONFIGS.values()} == {"tdnn", "cnn_tdnn"}
