"""Dropout against its definition: which values are zero, how large the others are, how the gradient passes."""

import pytest
import torch

from speech3.models.dnn import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_the_share_of_zeros_and_the_scale(p: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 333)
    y = Dropout(p).train()(x)
    rounded = round(256 * p) / 256
    assert abs((y == 0).double().mean().item() - rounded) < 4 * (p * (1 - p) / x.numel()) ** 0.5
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rounded)))


def test_the_mean_stays_in_bf16() -> None:
    torch.manual_seed(1)
    x = torch.rand(1000, 333) + 0.5  # 256 / 230 is 1.113, of which bf16 makes 1.109
    y = Dropout(0.1).train()(x.bfloat16()).float()
    kept = y != 0
    assert (y[kept] / x[kept]).mean().item() == pytest.approx(256 / 230, rel=3e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_mask_for_all_along_the_first_axis(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    y = Dropout(0.1).train()(torch.ones(40, 100, 333, dtype=dtype), first_alone=True)
    assert (y == y[:1]).all() and 0.05 < (y == 0).double().mean().item() < 0.15


def test_units_and_neighbours_are_independent() -> None:
    torch.manual_seed(1)
    kept = (Dropout(0.5).train()(torch.ones(4096, 64)) != 0).double()
    correlation = torch.corrcoef(kept.t()) - torch.eye(64)
    assert correlation.abs().max() < 6 / 4096**0.5
    assert abs(kept.mean().item() - 0.5) < 0.01


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(1)
    x = torch.ones(50, 7, requires_grad=True)
    y = Dropout(0.3).train()(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_nothing_happens_outside_training_and_the_seed_decides_in_it() -> None:
    x, dropout = torch.randn(5, 11), Dropout(0.4)
    assert dropout.eval()(x) is x
    torch.manual_seed(3)
    first = dropout.train()(x)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x))
    assert not torch.equal(first, dropout(x))


def test_a_probability_near_one_leaves_something() -> None:
    torch.manual_seed(1)
    y = Dropout(0.999).train()(torch.ones(100_000))
    assert 0 < (y != 0).double().mean().item() < 0.01 and torch.isfinite(y).all()
