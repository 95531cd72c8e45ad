"""Our product and loss against PyTorch's own layers and against float64."""

import pytest
import torch
from torch.nn import functional

from speech3.models import layers
from speech3.models.base import SmoothedCrossEntropy, cross_entropy
from speech3.models.layers import Linear, gemm_library, linear, use_gemm_library


def _relative(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(256, 440, 512), (7, 13, 5), (1, 3, 1)])
def test_linear_against_float64(library, shape, relu):
    rows, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    x, w, b, g = (
        torch.randn(size, generator=generator)
        for size in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    )
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    narrow = [t.requires_grad_() for t in (x, w, b)]
    expected = functional.linear(*wide)
    found = linear(*narrow, relu=relu)
    # Units whose float64 value is at zero to rounding may fall to either side of the rectifier.
    g = g * (expected.abs() > 1e-4)
    if relu:
        expected = expected.relu()
    assert _relative(found, expected) < 3e-6
    for ours, theirs in zip(
        torch.autograd.grad(found, narrow, g), torch.autograd.grad(expected, wide, g.double()), strict=True
    ):
        assert ours.shape == theirs.shape
        assert _relative(ours, theirs) < 3e-6 or theirs.abs().max() == 0


def test_linear_of_sequences_strided_and_expanded(library):
    generator = torch.Generator().manual_seed(0)
    layer, stock = Linear(12, 8), torch.nn.Linear(12, 8)
    stock.load_state_dict(layer.state_dict())
    base = torch.randn(4, 6, 24, generator=generator)
    for x in (base[..., :12], base[..., 12:].transpose(0, 1), base[:1, :1, :12].expand(4, 6, 12)):
        results = []
        for module in (layer, stock):
            leaf = x.detach().clone().requires_grad_()
            out = module(leaf if x.is_contiguous() else leaf.transpose(0, 1).contiguous().transpose(0, 1))
            results.append([out, *torch.autograd.grad(out.sum(), [leaf, *module.parameters()])])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_no_input_gradient_is_computed_for_data(library):
    layer = Linear(3, 2)
    x = torch.randn(5, 3)
    layer(x).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(2, 3))


def test_the_choice_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(layers, "_chosen", None)
    monkeypatch.setattr(layers, "_measure", lambda: measured.append(1) or "stock")
    assert (gemm_library(), gemm_library(), len(measured)) == ("stock", "stock", 1)


def test_without_the_private_operator_the_product_is_stock(monkeypatch):
    def missing(*_):
        raise AttributeError("no such operator")

    monkeypatch.setattr(layers, "_mm", missing)
    monkeypatch.setattr(layers, "_chosen", None)
    assert gemm_library() == "stock"
    use_gemm_library("onednn")
    assert gemm_library() == "stock"


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_cross_entropy_against_float64(scale):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(64, 300, generator=generator) * scale).requires_grad_()
    senones = torch.randint(300, (64,), generator=generator)
    loss, correct = cross_entropy(logits, senones)
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide, senones)
    assert abs(loss.item() - expected.item()) < 1e-6 * expected.item()
    assert correct.item() == (wide.argmax(1) == senones).sum()
    (ours,), (theirs,) = torch.autograd.grad(3 * loss, logits), torch.autograd.grad(3 * expected, wide)
    assert (ours - theirs).abs().max() < 3e-7 * 3 / 64 * max(1, scale)


def test_smoothed_cross_entropy_is_that_of_pytorch():
    torch.manual_seed(2)
    logits, senones = (3 * torch.randn(4, 5, 7)).requires_grad_(), torch.randint(7, (20,))
    loss, correct = SmoothedCrossEntropy(0.2)(logits, senones)
    expected = functional.cross_entropy(logits.flatten(0, 1), senones, label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)
    assert correct == cross_entropy(logits, senones)[1]
    (g,), (expected_g,) = (torch.autograd.grad(each, logits) for each in (loss, expected))
    torch.testing.assert_close(g, expected_g)


def test_cross_entropy_of_what_is_not_finite():
    logits = torch.zeros(2, 3)
    logits[0, 1] = float("nan")
    assert not cross_entropy(logits, torch.tensor([0, 1]))[0].isfinite()


def test_the_rectifier_keeps_nan(library):
    x = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])
    assert linear(x, torch.ones(3, 2), torch.zeros(3), relu=True).isnan().all(1).tolist() == [True, False]
