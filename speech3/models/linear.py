"""The float32 product x w^T + b, through whichever library is faster on this processor, and its backward pass.

`torch.mm` and `nn.Linear` use MKL, which is slow on processors not made by Intel; oneDNN in the same PyTorch was
measured at twice its speed on an AMD core with AVX-512, at the same accuracy. Only this module chooses, by measuring
once per process. oneDNN reads transposed operands in place, so no product copies its inputs.

Axes: B rows, I inputs, O outputs; M, N rows of the operands of a product, K their common axis.
"""

import time
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

BF16_WORTH_IT = 1.2  # how much faster bf16 must be than float32 for ``training.precision=auto``
Product = Literal["onednn", "stock"]
_chosen: Product | None = None


def gemm_library() -> Product:
    """The library in use; the first call in a process measures, which takes some milliseconds."""
    global _chosen
    if _chosen is None:
        _chosen = _measure()
    return _chosen


def use_gemm_library(name: str) -> None:
    """Set the library for this process: a resumed run must round as it did before it was interrupted."""
    global _chosen
    _chosen = "onednn" if name == "onednn" and _onednn_available() else "stock"


@cache
def bf16_over_float32() -> float:
    """How many times as fast a product of this processor is under ``training.precision=bf16``; measured once."""
    x_BI, weight_OI = torch.ones(512, 512), torch.ones(512, 512)
    best = {False: float("inf"), True: float("inf")}
    for _ in range(6):
        for rounded in best:
            start = time.perf_counter()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                linear(x_BI, weight_OI, None)
            best[rounded] = min(best[rounded], time.perf_counter() - start)
    return best[False] / best[True]


def linear(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, *, relu: bool = False) -> Tensor:
    """x w^T + b (..., O), optionally followed by ReLU; equal to `torch.nn.functional.linear` but for rounding."""
    if _stock(x_BI):
        y_BO = nn.functional.linear(x_BI, weight_OI, bias_O)
        return y_BO.relu() if relu else y_BO
    y_BO = _OneDnnLinear.apply(x_BI.reshape(-1, x_BI.shape[-1]), weight_OI, bias_O, relu)
    return y_BO.view(*x_BI.shape[:-1], -1)


def multiply(a_MK: Tensor, b_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """a b^T + bias (M, N), without autograd, for layers with their own backward pass."""
    if _stock(a_MK):
        return a_MK @ b_NK.t() if bias_N is None else torch.addmm(bias_N, a_MK, b_NK.t())
    return _mm(a_MK, b_NK, bias_N)


class Linear(nn.Linear):
    """`nn.Linear` whose products use the faster library."""

    def forward(self, x_BI: Tensor, relu: bool = False) -> Tensor:
        return linear(x_BI, self.weight, self.bias, relu=relu)


def autocasts(x: Tensor) -> bool:
    """Whether `torch.autocast` is on for `x`; products are then PyTorch's own, which round their inputs."""
    return torch.is_autocast_enabled(x.device.type)


def exactly(x: Tensor) -> torch.autocast:
    """Switch autocast off in this block: computations on the device of `x` keep their type."""
    return torch.autocast(x.device.type, enabled=False)


def _stock(x: Tensor) -> bool:
    return x.device.type != "cpu" or x.dtype != torch.float32 or gemm_library() == "stock" or autocasts(x)


def _mm(a_MK: Tensor, b_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a_MK, b_NK, bias_N, "none", [], "")


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, relu: bool) -> Tensor:
        y_BO = _mm(x_BI, weight_OI, bias_O)
        if relu:  # oneDNN's own, fused with the product, is no faster and turns NaN into zero
            y_BO.relu_()
        ctx.relu = relu
        ctx.save_for_backward(x_BI, weight_OI, *((y_BO,) if relu else ()))
        return y_BO

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BO: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x_BI, weight_OI, *y = ctx.saved_tensors
        grad_BO = torch.ops.aten.threshold_backward(grad_BO, y[0], 0) if ctx.relu else grad_BO.contiguous()
        grad_x_BI = _mm(grad_BO, weight_OI.t()) if ctx.needs_input_grad[0] else None
        # A product with ones sums over rows twice as fast as sum(0), whose memory access is strided.
        grad_bias_O = grad_BO.new_ones(len(grad_BO)) @ grad_BO if ctx.needs_input_grad[2] else None
        return grad_x_BI, _mm(grad_BO.t(), x_BI.t()), grad_bias_O, None


def _onednn_available() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        a = torch.arange(6.0).view(2, 3)
        return torch.equal(_mm(a, a, torch.zeros(2)), a @ a.t())
    except (AttributeError, RuntimeError):  # a private operator: another PyTorch may lack it or change its signature
        return False


def _measure() -> Product:
    """Time the three products of a layer's training step in both libraries, interleaved; keep the best of six."""
    if not _onednn_available():
        return "stock"
    a, b = torch.ones(256, 256), torch.ones(256, 256)
    best = {"onednn": float("inf"), "stock": float("inf")}
    for _ in range(6):
        start = time.perf_counter()
        _mm(a, b), _mm(a, b.t()), _mm(a.t(), b.t())
        middle = time.perf_counter()
        torch.mm(a, b.t()), torch.mm(a, b), torch.mm(a.t(), b)
        end = time.perf_counter()
        best = {"onednn": min(best["onednn"], middle - start), "stock": min(best["stock"], end - middle)}
    return "onednn" if best["onednn"] < best["stock"] else "stock"
