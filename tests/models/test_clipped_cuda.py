"""The Triton kernels of the clipped LSTM against its plain steps: in Triton's interpreter, and on a GPU if any.

Whether a kernel is interpreted is settled when it is defined, so the interpreter has a process of its own: this file,
run as a program.
"""

import importlib

import pytest
import torch
from torch import Tensor

from speech3.models import clipped
from speech3.models.clipped import clipped_lstm


def results(device: str, shape: tuple[int, ...], clip: float, *, peep: bool, proj: int) -> list[Tensor]:
    """Outputs and all gradients of the layer with random arguments."""
    frames, streams, inputs, cells = shape
    outputs = proj or cells
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int, scale: float = 0.2) -> Tensor:
        return (scale * torch.randn(size, generator=generator)).to(device).requires_grad_()

    leaves = [
        drawn(frames, streams, inputs, scale=1.0),
        drawn(streams, outputs),
        drawn(streams, cells),
        drawn(4 * cells, inputs),
        drawn(4 * cells, outputs),
        drawn(4 * cells),
    ]
    w_peep, w_hr = drawn(3, cells) if peep else None, drawn(outputs, cells) if proj else None
    found = clipped_lstm(*leaves, clip=clip, weight_peep_3C=w_peep, weight_hr_RC=w_hr)
    leaves += [weight for weight in (w_peep, w_hr) if weight is not None]
    grads = [torch.randn(out.shape, generator=generator).to(device) for out in found]
    return [*found, *torch.autograd.grad(found, leaves, grads)]


def compare(device: str) -> None:
    """Kernels and plain steps, to rounding; more cells than a program takes, so that the last one is not full."""
    triton_step_of = clipped._triton_step_of()
    assert triton_step_of is not None
    for clip, peep, proj in ((0.2, False, 0), (0.2, True, 12), (float("inf"), True, 0)):
        found, expected = [], []
        for step_of, into in ((triton_step_of, found), (None, expected)):
            clipped._fast_steps = lambda x, step_of=step_of: step_of
            into += results(device, (5, 7, 6, 45), clip, peep=peep, proj=proj)
        share = (expected[2].abs() == clip).double().mean()
        assert share == 0 if clip == float("inf") else 0.05 < share < 0.95, f"{share} of the cells are clipped"
        for ours, plain in zip(found, expected, strict=True):
            assert (ours - plain).abs().max() <= 1e-5 * plain.abs().max(), (clip, peep, proj)
    not_finite(device)


def not_finite(device: str) -> None:
    """NaN and infinity come out as they do of the plain steps."""
    bias_C = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e-20, 88.0, -200.0], device=device)
    zero, weights = bias_C.new_zeros(1, len(bias_C)), bias_C.new_zeros(4 * len(bias_C), len(bias_C))
    outputs = []
    for step_of in (clipped._triton_step_of(), None):
        clipped._fast_steps = lambda x, step_of=step_of: step_of
        outputs.append(clipped_lstm(zero[None], zero, zero, weights, weights, bias_C.repeat(4), clip=2.0)[0])
    torch.testing.assert_close(*outputs, rtol=1e-6, atol=0, equal_nan=True)
    assert outputs[0].isnan().sum() == 1


def test_kernels_in_the_interpreter(interpreted):
    interpreted(__file__)


@pytest.mark.parametrize("peep", [False, True])
@pytest.mark.parametrize("kernel", ["_forward", "_backward"])
def test_kernels_compile_for_a_gpu(kernel, peep):
    triton = pytest.importorskip("triton", reason="no Triton: it comes with PyTorch for CUDA")
    from triton.backends.compiler import GPUTarget

    if "nvidia" not in triton.backends.backends:
        pytest.skip("this Triton compiles for no GPU of NVIDIA's")
    function = getattr(importlib.import_module("speech3.models.clipped_cuda"), kernel)
    scalars = {"HAS_PEEP": "constexpr", "BLOCK": "constexpr", "limit": "fp32"}
    scalars |= dict.fromkeys(("t", "count", "cells"), "i32")
    source = triton.compiler.ASTSource(
        function, {name: scalars.get(name, "*fp32") for name in function.arg_names}, {"HAS_PEEP": peep, "BLOCK": 256}
    )
    assert "st.global" in triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_kernels_on_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(clipped, "_fast_steps", clipped._fast_steps)  # put back afterwards
    compare("cuda")


if __name__ == "__main__":
    compare("cpu")
