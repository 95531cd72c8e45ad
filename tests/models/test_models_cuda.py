"""Every family on a GPU in float32 against the CPU in float64: outputs and gradients, steps, whole utterances.

Axes: T steps or frames, B minibatch or streams, W context window, F feature bins, S senones.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from speech3.config import ModelConfig, load_preset
from speech3.engine.gradient import precision
from speech3.engine.optimizers import AdamW, Muon, Sgd
from speech3.frames.chunks import RecurrentChunks, SequenceInputs
from speech3.models import AcousticModel, build, logits
from speech3.models.base import cross_entropy
from speech3.models.dnn import Dropout
from speech3.models.tdnn import TdnnLstm

SENONES = 200
FAMILIES = ("dnn", "cnn", "lstm", "lstmp", "tc_dnn_blstm_dnn", "tdnn", "cnn_tdnn", "tdnn_lstm")
# Rounding of float32 moves outputs by 1e-6 of their length; now and then it moves a unit over the corner of its
# rectifier, which moves the gradient by more (0.0014 was seen). Products in tf32 would move both by several 1e-4, which
# shows in the outputs.
OUTPUTS, GRADIENTS = 1e-5, 5e-3


@pytest.fixture
def float32() -> Iterator[None]:
    """Convolutions in float32: PyTorch's default for them is tf32."""
    with precision("float32"):
        yield


def network(preset: str) -> AcousticModel:
    """Without dropout; outputs that begin at zero get random weights, so that gradients pass them."""
    at_a_third = {"subsampling": 3, "two_outputs": True} if preset in ("tdnn", "cnn_tdnn") else {}
    config = load_preset(ModelConfig, "models", preset).model_copy(update={"dropout": 0.0, **at_a_third})
    if hasattr(config, "time_dropout"):
        config = config.model_copy(update={"time_dropout": 0.0})
    model = build(config, 120 if preset == "cnn" else 40, SENONES, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "output" in name and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05, generator=generator)
    model.set_input_statistics(torch.full((model.feat_dim,), 0.3), torch.full((model.feat_dim,), 1.7))
    return model


def inputs_of(model: AcousticModel) -> tuple[Any, int]:
    """Random ones, float64 on the CPU, and how many outputs they have."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, model.feat_dim, generator=generator, dtype=torch.float64)

    if model.subsampling > 1:
        return drawn(8, model.left_context + 60 + model.right_context), 8 * 60 // model.subsampling
    if isinstance(model, TdnnLstm):
        begins_B, rest_B = torch.tensor([True, False] * 4), torch.tensor([60, 20] * 4)
        feats_BTF = drawn(8, model.left_context + 20 + 60 + model.right_context)
        return RecurrentChunks(feats_BTF, begins_B, rest_B, 20), 8 * 60
    if not model.recurrent:
        return drawn(64, model.window), 64
    lengths_B = torch.tensor([20, 20, 13, 7])
    own = lengths_B.max().item()
    scored_N = torch.nonzero((torch.arange(own)[:, None] < lengths_B).flatten()).flatten()
    feats_TBWF = drawn(own, len(lengths_B), model.window)
    begins_B = torch.ones(4, dtype=torch.bool)
    return SequenceInputs(feats_TBWF, lengths_B, begins_B, scored_N, own, (1, 0), scored_N), len(scored_N)


def moved(inputs: Any, device: str, dtype: torch.dtype) -> Any:
    """The same on another device, floats in another type."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else inputs.dtype)
    return type(inputs)(*(moved(each, device, dtype) if isinstance(each, Tensor) else each for each in inputs))


def computed(model: AcousticModel, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All outputs and all gradients of a minibatch in training, as float64 on the CPU."""
    inputs, count = inputs_of(model)
    senones_N = torch.randint(SENONES, (count,), generator=torch.Generator().manual_seed(4))
    model = copy.deepcopy(model).to(device, dtype).train()
    outputs = model(moved(inputs, device, dtype))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = torch.stack([cross_entropy(each.reshape(count, -1), senones_N.to(device))[0] for each in outputs]).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return tuple(
        torch.cat([each.detach().flatten() for each in tensors]).double().cpu() for tensors in (outputs, gradients)
    )


def difference(ours: Tensor, expected: Tensor) -> float:
    """Length of the difference over that of what is expected."""
    return float((ours - expected).norm() / expected.norm())


@pytest.mark.parametrize("preset", FAMILIES)
def test_outputs_and_gradients(preset: str, gpu: str, float32: None) -> None:
    model = network(preset)
    found, expected = computed(model, gpu, torch.float32), computed(model, "cpu", torch.float64)
    assert difference(found[0], expected[0]) < OUTPUTS
    assert difference(found[1], expected[1]) < GRADIENTS


@pytest.mark.parametrize("preset", ["cnn", "cnn_tdnn"])
def test_convolutions_as_pytorch_has_them_by_default(preset: str, gpu: str) -> None:
    model = network(preset)
    found, expected = computed(model, gpu, torch.float32), computed(model, "cpu", torch.float64)
    assert difference(found[0], expected[0]) < 0.01
    assert difference(found[1], expected[1]) < 0.1


@pytest.mark.parametrize("preset", FAMILIES)
def test_whole_utterances(preset: str, gpu: str, float32: None) -> None:
    model = network(preset)
    feats_TF = torch.randn(333, model.feat_dim, generator=torch.Generator().manual_seed(5))
    there_TS = logits(copy.deepcopy(model).to(gpu), feats_TF.to(gpu))
    assert difference(there_TS.double().cpu(), logits(model, feats_TF).double()) < OUTPUTS


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_steps(optimizer: str, gpu: str) -> None:
    def trained(device: str) -> Tensor:
        model = network("dnn").to(device)
        steps = (
            Sgd(model, momentum=0.9, weight_decay=0.01)
            if optimizer == "sgd"
            else {"adamw": AdamW, "muon": Muon}[optimizer](model, (0.9, 0.98), weight_decay=0.1)
        )
        generator = torch.Generator().manual_seed(6)
        for _ in range(5):
            feats = torch.randn(64, model.window, model.feat_dim, generator=generator).to(device)
            senones = torch.randint(SENONES, (64,), generator=generator).to(device)
            loss, _ = cross_entropy(model(feats), senones)
            steps.step(torch.autograd.grad(loss, list(model.parameters())), 0.01 if optimizer == "sgd" else 1e-4)
        return steps.parameters.vector_K.detach().double().cpu()

    assert difference(trained(gpu), trained("cpu")) < (1e-5 if optimizer == "sgd" else 1e-3)


def test_dropout(gpu: str) -> None:
    dropped = Dropout(0.25).train()(torch.ones(1000, 1003, device=gpu))
    assert abs(float((dropped == 0).float().mean()) - 0.25) < 0.002
    assert abs(float(dropped.mean()) - 1) < 0.002
