"""Group lasso: its step solves its problem, and a network without unused units is the one in which they are zero."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from speech3.config import ModelConfig
from speech3.models import AcousticModel, build, logits
from speech3.models.groups import GroupLasso, units_of, used_units, without_units
from speech3.models.lstm import Lstm
from speech3.models.tdnn import Tdnn

FEAT_DIM, SENONES = 6, 7
TDNN = {
    "family": "tdnn",
    "layers": 2,
    "width": 9,
    "bottleneck": 4,
    "prefinal": 5,
    "subsampling": 3,
    "two_outputs": True,
}
CONVOLUTIONS = [{"maps": 4, "kernel": [2, 3], "stride": 2}, {"maps": 5, "kernel": [1, 2]}]
MODELS: dict[str, dict[str, Any]] = {
    "dnn": {"family": "dnn", "layers": 3, "width": 12},
    "normalised": {"family": "dnn", "layers": 2, "width": 12, "normalization": "batch", "activation": "sigmoid"},
    "two outputs": {"family": "dnn", "layers": 1, "width": 12, "two_outputs": True, "subsampling": 3},
    "cnn": {"family": "cnn", "channels": 2, "layers": 2, "width": 12, "normalization": "batch",
            "convolutions": [{"maps": 4, "kernel": [2, 2]}]},
    "lstm": {"family": "lstm", "layers": 2, "cells": 12, "cell_normalization": "batch", "peepholes": True},
    "lstmp": {"family": "lstm", "layers": 2, "cells": 12, "projection": 3, "output_layers": [5]},
    "blstm": {"family": "lstm", "layers": 2, "cells": 12, "bidirectional": True, "lookahead": 3, "two_outputs": True,
              "cell_normalization": "batch"},
    "tdnn_lstm": {"family": "tdnn_lstm", "time_layers": 1, "width": 9, "bottleneck": 4, "layers": 2, "cells": 12},
    "tdnn": TDNN,
    "cnn_tdnn": {**TDNN, "family": "cnn_tdnn", "convolutions": CONVOLUTIONS},
}  # fmt: skip


def _random(keys: dict[str, Any]) -> tuple[ModelConfig, AcousticModel]:
    """Its outputs, norms and biases are not those of the beginning."""
    config = ModelConfig.model_validate(keys)
    model = build(config, FEAT_DIM, SENONES, seed=1).eval()
    torch.manual_seed(2)
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if each.ndim == 1 or "output" in name:
            each.data += 0.3 * torch.rand_like(each)
    return config, model


def _groups(model: AcousticModel) -> list[Tensor]:
    """The weights that read each unit of all layers, written out by hand."""
    if isinstance(model, Tdnn):
        weights = [layer.affine.weight for layer in model.layers]
        return [torch.stack([w[:, unit], w[:, unit + 4]]) for w in weights for unit in range(4)]
    heads = [model.output.weight, *([model.xent_output.weight] if model.two_outputs else [])]
    if isinstance(model, Lstm):
        return [_of_cell(model, heads, layer, cell) for layer in range(2) for cell in range(12)]
    readers = [layer.weight for layer in model.layers.hidden[1:]] + [torch.cat(heads)]
    return [weight[:, unit].detach().clone() for weight in readers for unit in range(12)]


def _of_cell(model: Lstm, heads: list[Tensor], number: int, cell: int) -> Tensor:
    cells = [each for each in (model.layers[number].ahead, model.layers[number].back) if each is not None]
    if cells[0].weight_hr is not None:
        return torch.cat([each.weight_hr[:, cell] for each in cells]).detach().clone()
    last = number == 1
    later = heads if last else [each.weight_ih for each in (model.layers[1].ahead, model.layers[1].back) if each]
    both = [weight[:, cell + direction * 12] for weight in later for direction in range(len(cells))]
    return torch.cat([*(each.weight_hh[:, cell] for each in cells), *both]).detach().clone()


@pytest.mark.parametrize("name", MODELS)
def test_the_step_solves_its_problem(name: str) -> None:
    # The w that minimises |w - v|^2 / 2 + t |w|, t = rate penalty sqrt(n): v - w = t w / |w|, or w = 0 where |v| <= t.
    _, model = _random(MODELS[name])
    for layer in units_of(model):
        for each in layer.read:
            model.get_parameter(each.name).data.unflatten(1, (each.times, -1))[:, :, ::2] *= 0.1
    before = {key: value.clone() for key, value in model.state_dict().items()}
    units = _groups(model)
    GroupLasso(2.0, model)(0.05)
    zero = 0
    for unit, after in zip(units, _groups(model), strict=True):
        threshold = 0.05 * 2.0 * unit.numel() ** 0.5
        if unit.norm() <= threshold:
            zero += 1
            assert not after.any()
        else:
            torch.testing.assert_close(unit - after, threshold * after / after.norm(), rtol=1e-4, atol=1e-5)
    assert 0 < zero < len(units)
    read = {each.name for layer in units_of(model) for each in layer.read}
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key not in read)


def _without_some(config: ModelConfig, model: AcousticModel) -> tuple[ModelConfig, AcousticModel]:
    """The network in which some units are read with weights of zero stays as `model`; the one without them."""
    for number, units in enumerate(units_of(model)):
        for each in units.read:
            weight = model.get_parameter(each.name)
            weight.data.unflatten(1, (each.times, -1))[:, :, number :: 2 + number] = 0
    small, tensors = without_units(config, model, used_units(model))
    network = build(small, FEAT_DIM, SENONES, seed=5)
    network.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return small, network.eval()


@pytest.mark.parametrize("name", MODELS)
def test_removed_is_zero(name: str) -> None:
    config, model = _random(MODELS[name])
    small, network = _without_some(config, model)
    key = "bottlenecks" if isinstance(model, Tdnn) else "layer_cells" if isinstance(model, Lstm) else "widths"
    sizes = getattr(small, key)
    assert sizes == {4: (2, 3), 12: (6, 8, 9)}[4 if isinstance(model, Tdnn) else 12][: len(sizes)]
    assert sum(p.numel() for p in network.parameters()) < sum(p.numel() for p in model.parameters())
    if isinstance(model, Lstm):
        frames = torch.randn(8 * model.subsampling + model.window, FEAT_DIM, dtype=torch.float64)
        feats = frames.unfold(0, model.window, model.subsampling).transpose(1, 2)
        expected, found = (each.double().steps(feats, each.states(), 7)[0] for each in (model, network))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        return
    frames = 4 + model.left_context + model.right_context if isinstance(model, Tdnn) else model.window
    feats = torch.randn(5, frames // 3 * 3 if isinstance(model, Tdnn) else frames, FEAT_DIM, dtype=torch.float64)
    expected, found = model.double()(feats), network.double()(feats)
    for a, b in zip(*(each if isinstance(each, tuple) else (each,) for each in (expected, found)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["normalised", "blstm", "cnn_tdnn"])
def test_the_exported_network_is_smaller_and_equal(name: str, tmp_path: Any) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from speech3.models.onnx import OnnxNetwork, to_onnx

    config, model = _random(MODELS[name])
    _, network = _without_some(config, model)
    scores, sizes = [], []
    feats_TF = np.random.default_rng(1).standard_normal((40, FEAT_DIM)).astype(np.float32)
    for number, each in enumerate((model, network)):
        content = to_onnx(each, np.zeros(SENONES), {"features": {"kind": "given"}}).SerializeToString()
        (tmp_path / f"{number}.onnx").write_bytes(content)
        sizes.append(len(content))
        scores.append(OnnxNetwork(tmp_path / f"{number}.onnx").loglikes(feats_TF))
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-4)
    expected = logits(network, torch.from_numpy(feats_TF)).log_softmax(1)
    np.testing.assert_allclose(scores[1], expected, atol=1e-4)
    assert sizes[1] < sizes[0]
