"""Muon: the polar factor by an SVD, PyTorch's optimizer, and which parameters it moves."""

import copy

import pytest
import torch
from torch import nn

from speech3.config import CnnTdnnConfig, LstmConfig
from speech3.engine.optimizers import AdamW, Muon, hidden_matrices, orthogonalized
from speech3.models import build

BETAS = (0.95, 0.98)


@pytest.mark.parametrize("shape", [(3, 8, 40), (2, 30, 12), (1, 16, 16)])
def test_orthogonalized_is_near_the_polar_factor(shape):
    matrices_NRC = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, values, v = torch.linalg.svd(matrices_NRC, full_matrices=False)
    found = orthogonalized(matrices_NRC)
    # The same singular vectors, and values near one, but for those that are tiny beside the others.
    diagonal = (u.mT @ found @ v.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(u @ torch.diag_embed(diagonal) @ v, found, atol=1e-3, rtol=1e-3)
    large = values > 0.02 * values.norm(dim=1, keepdim=True)
    assert ((diagonal > 0.6) & (diagonal < 1.25))[large].all()


def _layers():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 16), nn.Linear(16, 24), nn.BatchNorm1d(24), nn.Linear(24, 16), nn.Linear(16, 9)
    )


def test_steps_are_those_of_pytorch():
    model = _layers()
    stock, plain = copy.deepcopy(model), copy.deepcopy(model)
    matrices = [stock[1].weight, stock[3].weight]
    theirs = torch.optim.Muon(
        matrices, lr=0.01, weight_decay=0.1, momentum=BETAS[0], nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    own, adamw = Muon(model, BETAS, weight_decay=0.1), AdamW(plain, BETAS, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        g = [torch.randn(p.shape, generator=generator) for p in stock.parameters()]
        for parameter, each in zip(stock.parameters(), g, strict=True):
            parameter.grad = each
        theirs.step()
        own.step(g, 0.01)
        adamw.step(g, 0.01)
    for index in (1, 3):  # PyTorch iterates in bfloat16, so its steps are known to two or three digits
        moved, expected = model[index].weight - plain[index].weight, stock[index].weight - plain[index].weight
        assert (moved - expected).norm() < 0.02 * expected.norm()
    for name, parameter in model.named_parameters():  # all others are AdamW's
        if name not in ("1.weight", "3.weight"):
            assert torch.equal(parameter, plain.get_parameter(name)), name


def _names(model):
    names = [name for name, _ in model.named_parameters()]
    return {names[index]: axis for index, axis in hidden_matrices(model)}


def test_matrices_of_hidden_layers():
    tdnn = CnnTdnnConfig(layers=1, width=32, bottleneck=12, prefinal=16, two_outputs=True, subsampling=3)
    found = _names(build(tdnn, 40, 50, 1))
    assert found.pop("layers.0.linear.weight") == 1  # its halves are one matrix
    assert set(found.values()) == {0}
    assert {"layers.0.affine.weight", "prefinal.affine.weight", "front.affine.weight"} < set(found)
    assert not any(name.startswith(("output", "xent_output")) for name in found)
    lstm = LstmConfig(cells=16, layers=1, projection=12, peepholes=True)
    assert set(_names(build(lstm, 40, 50, 1))) == {f"layers.0.ahead.weight_{name}" for name in ("ih", "hh", "hr")}
