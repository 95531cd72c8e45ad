"""Linear layers, and ReLU with batch normalisation, through whichever kernels are faster on this processor.

The float32 product x w^T + b: `torch.mm` and `nn.Linear` use MKL, which is slow on processors not made by Intel; oneDNN
in the same PyTorch was measured at twice its speed on an AMD core with AVX-512, at the same accuracy. Only this module
chooses, by measuring once per process. oneDNN reads transposed operands in place, so no product copies its inputs.

`rectified`: ReLU and batch normalisation of a layer in training, with dropout per chunk and a bypass, in few passes.
PyTorch's operators pass over a layer's values some twenty times in a training step, a seventh of the time of a narrow
time-delay layer; numba does it in two passes forward and two backward. Elsewhere (evaluation, a GPU) PyTorch's are
used.

With r = max(0, y), m and v the mean and variance of r over chunks and time steps, a = gain / sqrt(v + eps), k the scale
of dropout (0, or 1 / (1 - p), for a unit of a chunk):

    z = k (a (r - m) + bias) + share x
    r' = (r - m) / sqrt(v + eps), g' = k dz, dgain = sum(g' r'), dbias = sum(g'), dx = share dz
    dy = a (g' - mean(g') - r' mean(g' r')) where y > 0, else 0

If the normalisation comes first, r is y itself, z is rectified at the end, and dz is 0 where z is.

Axes: B rows or chunks, I inputs, O outputs; M, N rows of the operands of a product, K their common axis; T time steps,
D units.
"""

import time
from functools import cache
from typing import Any, Literal

import numba
import numpy as np
import torch
from torch import Tensor, nn

BF16_WORTH_IT = 1.2  # how much faster bf16 must be than float32 for ``training.precision=auto``
Product = Literal["onednn", "stock"]
_chosen: Product | None = None
_ROWS = 64  # rows that are summed in the type of the values; these sums are then added up in float64
# No flag that lets the compiler assume that there are no NaNs, or reorder sums that round.
float_jit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})


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


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows of a minibatch; a single row is normalised by the running statistics."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and len(input) == 1:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def rectified(
    y_BTD: Tensor,
    norm: BatchNorm,
    *,
    norm_first: bool = False,
    keep_BD: Tensor | None = None,
    scale: float = 1.0,
    bypassed_BTD: Tensor | None = None,
    share: float = 0.0,
) -> Tensor:
    """ReLU of y, normalised over B and T, times `keep_BD` and `scale`, plus `share` times `bypassed_BTD`; shaped as y.

    In training the running statistics of `norm` are updated.
    `norm_first`: normalise before ReLU, without the rest.
    `keep_BD`, `scale`: dropout, 1 or 0 for each unit of a chunk, and the factor of those that are kept, which is not
    rounded to the type of the values (in bf16 1.113 would be 1.109). `bypassed_BTD` may have more time steps than y, as
    many at the beginning as at the end; the middle is used.
    """
    rows = y_BTD.shape[0] * y_BTD.shape[1]
    if norm.training and y_BTD.device.type == "cpu" and rows > 1 and not autocasts(y_BTD):
        kept_BD, norms = None if keep_BD is None else keep_BD * scale, (norm.weight, norm.bias, norm.eps)
        z_BTD, mean_D, variance_D = _Rectified.apply(y_BTD, *norms, norm_first, kept_BD, bypassed_BTD, share)
        _move(norm, mean_D, variance_D * (rows / (rows - 1)))
        return z_BTD
    if norm_first:
        return norm(y_BTD.flatten(0, 1)).view(y_BTD.shape).relu()
    z_BTD = norm(y_BTD.relu().flatten(0, 1)).view(y_BTD.shape)
    if keep_BD is not None:
        z_BTD = z_BTD * keep_BD[:, None] * scale
    if bypassed_BTD is None:
        return z_BTD
    first, end = _middle(bypassed_BTD.shape[1], y_BTD.shape[1])
    return z_BTD + share * bypassed_BTD[:, first:end]


def _middle(times: int, wanted: int) -> tuple[int, int]:
    """The first of the `wanted` time steps in the middle, and the one after the last."""
    first = (times - wanted) // 2
    return first, first + wanted


@torch.no_grad()
def _move(norm: BatchNorm, mean_D: Tensor, variance_D: Tensor) -> None:
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    assert norm.momentum is not None
    norm.num_batches_tracked += 1
    norm.running_mean.lerp_(mean_D, norm.momentum)
    norm.running_var.lerp_(variance_D, norm.momentum)


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_BTD: Tensor,
        gain_D: Tensor,
        bias_D: Tensor,
        eps: float,
        norm_first: bool,
        keep_BD: Tensor | None,
        bypassed_BTD: Tensor | None,
        share: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        y_BTD = y_BTD.contiguous()
        sum_D, square_D, shift_D = _moments(y_BTD.numpy(), not norm_first)
        rows = y_BTD.shape[0] * y_BTD.shape[1]
        mean_D, variance_D = sum_D / rows + shift_D, np.maximum(square_D / rows - (sum_D / rows) ** 2, 0)
        deviation_D = np.sqrt(variance_D + eps)
        scale_D = gain_D.detach().numpy() / deviation_D
        offset_D = bias_D.detach().numpy() - mean_D * scale_D
        dtype = y_BTD.numpy().dtype
        keep = np.ones((1, 1), dtype) if keep_BD is None else keep_BD.numpy()
        bypassed = None if bypassed_BTD is None else bypassed_BTD.detach().contiguous().numpy()
        z_BTD = torch.empty_like(y_BTD)
        scale, offset = (keep * scale_D).astype(dtype), (keep * offset_D).astype(dtype)
        _apply(y_BTD.numpy(), scale, offset, norm_first, bypassed, dtype.type(share), z_BTD.numpy())
        if bypassed is not None:
            ctx.share, ctx.bypassed, ctx.middle = share, bypassed.shape, _middle(bypassed.shape[1], y_BTD.shape[1])
        ctx.statistics = mean_D, 1 / deviation_D, scale_D, keep
        ctx.save_for_backward(y_BTD, *((z_BTD,) if norm_first else ()))
        found = torch.from_numpy(mean_D.astype(dtype)), torch.from_numpy(variance_D.astype(dtype))
        ctx.mark_non_differentiable(*found)
        return z_BTD, *found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz_BTD: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        y_BTD, *z = ctx.saved_tensors
        mean_D, inverse_D, scale_D, keep = ctx.statistics
        dz, y, dtype = dz_BTD.contiguous().numpy(), y_BTD.numpy(), y_BTD.numpy().dtype
        z_BTD = z[0].numpy() if z else None
        mean, inverse, rows = mean_D.astype(dtype), inverse_D.astype(dtype), y.shape[0] * y.shape[1]
        dbias_D, dgain_D = _sums(dz, y, z_BTD, mean, inverse, keep)
        # dy = scale k dz - (scale mean(g') + scale r' mean(g' r'))
        slope_D = scale_D * inverse_D * dgain_D / rows
        level_D = scale_D * dbias_D / rows - mean_D * slope_D
        dy_BTD = torch.empty_like(y_BTD)
        factors = (keep * scale_D).astype(dtype), slope_D.astype(dtype), level_D.astype(dtype)
        _back(dz, y, z_BTD, *factors, dy_BTD.numpy())
        dx_BTD = None
        if ctx.needs_input_grad[6]:
            dx_BTD, (first, end) = dz_BTD.new_empty(ctx.bypassed), ctx.middle
            dx_BTD[:, :first] = dx_BTD[:, end:] = 0
            torch.mul(dz_BTD, ctx.share, out=dx_BTD[:, first:end])
        dgain, dbias = (torch.from_numpy(each.astype(dtype)) for each in (dgain_D, dbias_D))
        return dy_BTD, dgain, dbias, None, None, None, dx_BTD, None


@float_jit
def _moments(y_BTD, rectify):  # type: ignore[no-untyped-def]
    """Sums of r - shift and of its square, and shift, which is one of the rows, so that little of the sums cancels."""
    chunks, times, units = y_BTD.shape
    zero = y_BTD.dtype.type(0)
    shift_D = y_BTD[0, 0].copy()
    if rectify:
        shift_D = np.where(shift_D < zero, zero, shift_D)
    sum_D, square_D = np.zeros(units), np.zeros(units)
    for b in range(chunks):
        for begin in range(0, times, _ROWS):
            s_D, q_D = np.zeros_like(shift_D), np.zeros_like(shift_D)
            for t in range(begin, min(begin + _ROWS, times)):
                y_D = y_BTD[b, t]
                for d in range(units):
                    r = y_D[d]
                    if rectify:
                        r = zero if r < zero else r
                    r -= shift_D[d]
                    s_D[d] += r
                    q_D[d] += r * r
            for d in range(units):
                sum_D[d] += s_D[d]
                square_D[d] += q_D[d]
    return sum_D, square_D, shift_D


@float_jit
def _apply(y_BTD, scale_BD, offset_BD, norm_first, x_BTD, share, z_BTD):  # type: ignore[no-untyped-def]
    """Compute z; scale and offset have one row per chunk, or one for all."""
    chunks, times, units = y_BTD.shape
    zero, each = y_BTD.dtype.type(0), len(scale_BD) > 1
    for b in range(chunks):
        scale_D, offset_D = scale_BD[b if each else 0], offset_BD[b if each else 0]
        for t in range(times):
            y_D, z_D = y_BTD[b, t], z_BTD[b, t]
            if norm_first:
                for d in range(units):
                    z = y_D[d] * scale_D[d] + offset_D[d]
                    z_D[d] = zero if z < zero else z
            elif x_BTD is None:
                for d in range(units):
                    z_D[d] = (zero if y_D[d] < zero else y_D[d]) * scale_D[d] + offset_D[d]
            else:
                x_D = x_BTD[b, t + (x_BTD.shape[1] - times) // 2]
                for d in range(units):
                    z_D[d] = (zero if y_D[d] < zero else y_D[d]) * scale_D[d] + offset_D[d] + share * x_D[d]


@float_jit
def _sums(dz_BTD, y_BTD, z_BTD, mean_D, inverse_D, keep_BD):  # type: ignore[no-untyped-def]
    """Sums of g' and of g' r'."""
    chunks, times, units = y_BTD.shape
    zero, each = y_BTD.dtype.type(0), len(keep_BD) > 1
    sum_D, product_D = np.zeros(units), np.zeros(units)
    for b in range(chunks):
        keep_D = keep_BD[b if each else 0]
        for begin in range(0, times, _ROWS):
            s_D, p_D = np.zeros_like(mean_D), np.zeros_like(mean_D)
            for t in range(begin, min(begin + _ROWS, times)):
                dz_D, y_D = dz_BTD[b, t], y_BTD[b, t]
                if z_BTD is None:
                    for d in range(units):
                        r = zero if y_D[d] < zero else y_D[d]
                        s_D[d] += dz_D[d]
                        p_D[d] += dz_D[d] * (r - mean_D[d])
                else:
                    z_D = z_BTD[b, t]
                    for d in range(units):
                        g = zero if z_D[d] <= zero else dz_D[d]
                        s_D[d] += g
                        p_D[d] += g * (y_D[d] - mean_D[d])
            for d in range(units):
                keep = keep_D[d if len(keep_D) > 1 else 0]
                sum_D[d] += keep * s_D[d]
                product_D[d] += keep * p_D[d] * inverse_D[d]
    return sum_D, product_D


@float_jit
def _back(dz_BTD, y_BTD, z_BTD, factor_BD, slope_D, level_D, dy_BTD):  # type: ignore[no-untyped-def]
    """Compute dy = factor dz - slope r - level, through ReLU."""
    chunks, times, units = y_BTD.shape
    zero, each = y_BTD.dtype.type(0), len(factor_BD) > 1
    for b in range(chunks):
        factor_D = factor_BD[b if each else 0]
        for t in range(times):
            dz_D, y_D, dy_D = dz_BTD[b, t], y_BTD[b, t], dy_BTD[b, t]
            if z_BTD is None:
                for d in range(units):
                    g = factor_D[d] * dz_D[d] - slope_D[d] * y_D[d] - level_D[d]
                    dy_D[d] = zero if y_D[d] <= zero else g
            else:
                z_D = z_BTD[b, t]
                for d in range(units):
                    g = zero if z_D[d] <= zero else dz_D[d]
                    dy_D[d] = factor_D[d] * g - slope_D[d] * y_D[d] - level_D[d]
