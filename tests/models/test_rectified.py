"""Rectifiers, normalisation, dropout and bypass in two passes against PyTorch's own, in double precision."""

import copy

import pytest
import torch
from torch import nn

from speech3.models.layers import BatchNorm, rectified

CASES = ["plain", "norm first", "dropout", "bypass", "dropout and bypass"]


def _case(name):
    """Arguments: y, and what `rectified` takes by name."""
    torch.manual_seed(1)
    y = torch.randn(3, 150, 5, dtype=torch.float64, requires_grad=True)
    keep = (torch.rand(3, 5) > 0.4).double() * 1.7 if "dropout" in name else None
    x = torch.randn(3, 154, 5, dtype=torch.float64, requires_grad=True) if "bypass" in name else None
    return y, {
        "norm_first": name == "norm first",
        "keep_BD": keep,
        "bypassed_BTD": x,
        "share": 0.66 if "bypass" in name else 0.0,
    }


def _norm():
    norm = BatchNorm(5).double()
    torch.manual_seed(2)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        tensor.data += torch.rand(5)
    return norm


def _stock(y, norm, norm_first, keep_BD, bypassed_BTD, share):
    rows = y if norm_first else y.relu()
    z = nn.BatchNorm1d.forward(norm, rows.flatten(0, 1)).view(y.shape)
    if norm_first:
        return z.relu()
    z = z if keep_BD is None else z * keep_BD[:, None]
    return z if bypassed_BTD is None else z + share * bypassed_BTD[:, 2:-2]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_equals_pytorch(name, training):
    y, more = _case(name)
    ours, theirs = _norm().train(training), _norm().train(training)
    found, expected = rectified(y, ours, **more), _stock(y, theirs, **more)
    torch.testing.assert_close(found, expected)
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[key])
    inputs = [y] + ([more["bypassed_BTD"]] if "bypass" in name else [])
    a = torch.autograd.grad((found * found.sin()).sum(), [*inputs, ours.weight, ours.bias])
    b = torch.autograd.grad((expected * expected.sin()).sum(), [*inputs, theirs.weight, theirs.bias])
    for ours_of, theirs_of in zip(a, b, strict=True):
        torch.testing.assert_close(ours_of, theirs_of)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_finite_differences(name):
    y, more = _case(name)
    y = y.detach()[:, :7].requires_grad_()
    if more["bypassed_BTD"] is not None:
        more["bypassed_BTD"] = more["bypassed_BTD"].detach()[:, :11].requires_grad_()
    norm = _norm()
    leaves = [y, norm.weight, norm.bias, *([more["bypassed_BTD"]] if "bypass" in name else [])]
    assert torch.autograd.gradcheck(lambda *_: rectified(y, norm, **more), leaves)


def test_a_unit_far_from_zero_loses_no_precision():
    torch.manual_seed(1)
    y = torch.randn(8, 100, 4) * torch.tensor([1.0, 1e-2, 1, 1]) + torch.tensor([0.0, 30, 1000, -1000])
    norm = BatchNorm(4)
    exact = copy.deepcopy(norm).double()
    found, expected = rectified(y, norm), rectified(y.double(), exact)
    # float32 has six digits of 1,000, so one of 1,000 +- 1 is known to 6e-5
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=5e-4)
    torch.testing.assert_close(norm.running_var.double(), exact.running_var, rtol=1e-5, atol=0)


def test_nan_stays_in_its_unit():
    y = torch.randn(2, 6, 3)
    y[1, 2, 1] = torch.nan
    for norm_first in (False, True):
        z = rectified(y, BatchNorm(3), norm_first=norm_first)
        assert z.isnan().all(1).all(0).tolist() == [False, True, False]


def test_dropout_keeps_the_mean_in_bf16():
    torch.manual_seed(1)
    y, keep_BD, scale = torch.randn(16, 100, 64), torch.ones(16, 64), 256 / 230  # 1.113, of which bf16 makes 1.109
    norm = BatchNorm(64)
    norm.bias.data += 2  # so that no value is near zero
    with torch.autocast("cpu", torch.bfloat16):
        plain = rectified(y.bfloat16(), copy.deepcopy(norm))
        for bypassed in (None, torch.zeros_like(y).bfloat16()):
            z = rectified(
                y.bfloat16(),
                copy.deepcopy(norm),
                keep_BD=keep_BD.bfloat16(),
                scale=scale,
                bypassed_BTD=bypassed,
                share=0.5,
            )
            assert z.dtype == torch.bfloat16
            assert (z.double() / plain.double()).mean().item() == pytest.approx(scale, rel=3e-4)
    exact = rectified(y, copy.deepcopy(norm), keep_BD=keep_BD, scale=scale)
    torch.testing.assert_close(exact, scale * rectified(y, norm))


def test_one_row_is_normalised_by_those_before_it():
    y, norm = torch.randn(1, 1, 3), BatchNorm(3)
    torch.testing.assert_close(rectified(y, norm), y.relu() / (1 + norm.eps) ** 0.5)
