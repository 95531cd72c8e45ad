"""Forward-backward over a graph for a batch of chunks, with its gradient; compiled on the CPU.

In the compiled version (Povey et al. 2016) the batch is the innermost, contiguous axis, so an arc is one multiply-add
of vectors. Forward probabilities are scaled to sum to one in each frame, so float32 is enough. In the leaky HMM every
state can follow every other with a small probability, so no chunk has probability zero. With alpha the forward
probabilities, i the initial weights, x the exponentials of the outputs and c the leak:

    alpha_0 = i
    pre_t[j] = x_t[first_j] sum over arcs k -> j of w_kj alpha_{t-1}[k]  +  x_t[loop_j] l_j alpha_{t-1}[j]
    alpha_t = pre_t / tot_t + c i,  tot_t = sum of pre_t
    log Z = sum of log tot_t

If each frame of a path has an accuracy a_t[pdf], the expected accuracy of the paths is the derivative of log Z with
respect to e if x_t is multiplied by exp(e a_t), and its gradient, which sMBR needs, that of the posteriors. Both passes
compute these derivatives, d_alpha and so on, along with the values, with a_t - m_t instead of a_t, where m_t is the
expected accuracy that frame t adds. This keeps them small (Povey's thesis, 2003, section 6.3), and their sum over the
states of a frame is zero; so the leak has no derivative in the forward pass, and log Z none at all.

The other version, by PyTorch's sparse products, is the reference and the path to CUDA: the same recursion, written so
that autograd computes the gradient, in any precision.

Axes: T output frames of a chunk, S pdfs, J states, A arcs, B chunks, W chunks that are computed together.
"""

import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model
from torch import Tensor

from speech3.sequence.graph import SequenceGraph

# Vectors of WIDTH values, one for each chunk, are loaded, computed with and stored as a whole. A loop over the chunks
# would leave this to LLVM's vectorizer, which checks before each such loop whether the arrays overlap, and keeps sums
# in memory. Sixteen float32 values are one register of AVX-512, two of AVX2 and four of NEON.
WIDTH = 16
_compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class Lanes(types.Type):
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, ir.VectorType(manager.lookup(lanes.dtype).get_value_type(), WIDTH))


@_compiled
def load(typing: Any, rows: Any, j: Any) -> Any:
    """Row `j` of a contiguous array (any number, `WIDTH`)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args), align=rows.dtype.bitwidth // 8)

    return (Lanes(rows.dtype)(rows, j), code) if rows.layout == "C" else None


@_compiled
def store(typing: Any, rows: Any, j: Any, lanes: Any) -> Any:
    """Overwrite row `j` of a contiguous array (any number, `WIDTH`)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args), align=rows.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return (types.void(rows, j, lanes), code) if rows.layout == "C" else None


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    rows, number = signature.args[:2]
    j = context.cast(builder, args[1], number, types.intp)
    data = context.make_array(rows)(context, builder, args[0]).data
    first = builder.gep(data, [builder.mul(j, ir.Constant(j.type, WIDTH))])
    return builder.bitcast(first, context.get_value_type(Lanes(rows.dtype)).as_pointer())


@_compiled
def spread(typing: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0])

    return Lanes(value)(value), code


def _spread(builder: Any, value: Any) -> Any:
    empty = ir.Constant(ir.VectorType(value.type, WIDTH), ir.Undefined)
    index = ir.IntType(32)
    one = builder.insert_element(empty, value, ir.Constant(index, 0))
    return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(index, WIDTH), [0] * WIDTH))


@_compiled
def at_least_zero(typing: Any, lanes: Any) -> Any:
    """The larger of each value and zero; NaN stays NaN."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, [0.0] * WIDTH)
        return builder.select(builder.fcmp_unordered(">", args[0], zero), args[0], zero)

    return lanes(lanes), code


def _define(operation: Callable[..., Any], instruction: str) -> None:
    """Define an operation of two vectors, or of a vector and a number."""

    @_compiled
    def compute(typing: Any, left: Any, right: Any) -> Any:
        lanes = left if isinstance(left, Lanes) else right

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            both = (
                value if isinstance(its, Lanes) else _spread(builder, context.cast(builder, value, its, lanes.dtype))
                for value, its in zip(args, signature.args, strict=True)
            )
            return getattr(builder, instruction)(*both)

        return lanes(left, right), code

    @overload(operation)
    def of_lanes(left, right):  # type: ignore[no-untyped-def]
        if isinstance(left, Lanes) or isinstance(right, Lanes):
            return lambda left, right: compute(left, right)
        return None


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
_define(operator.truediv, "fdiv")


def denominator_log_z(y_TSB: Tensor, graph: SequenceGraph, leak: float) -> Tensor:
    """Log of the total probability of each chunk, (B,), differentiable; float32 or float64, on any device."""
    on = _on(graph, y_TSB.device, y_TSB.dtype)
    largest_TB = y_TSB.detach().amax(1)
    x_TSB = (y_TSB - largest_TB[:, None]).exp()
    alpha_JB, log_z_B = on.initial_J1.expand(-1, y_TSB.shape[2]), largest_TB.sum(0)
    for x_SB in x_TSB:
        arrived_JB = _Product.apply(alpha_JB, on.into_JJ, on.out_of_JJ)
        pre_JB = x_SB[on.first_J] * arrived_JB + x_SB[on.loop_J] * (on.loops_J1 * alpha_JB)
        total_B = pre_JB.sum(0)
        alpha_JB, log_z_B = pre_JB / total_B + leak * on.initial_J1, log_z_B + total_B.log()
    return log_z_B


def sparse_expected_accuracy(y_TSB: Tensor, a_TSB: Tensor, graph: SequenceGraph, leak: float) -> Tensor:
    """Expected accuracy of the paths of each chunk, (B,), differentiable in `y_TSB`, which must require a gradient."""
    log_z_B = denominator_log_z(y_TSB, graph, leak)
    (posterior_TSB,) = torch.autograd.grad(log_z_B.sum(), y_TSB, create_graph=True)
    return (posterior_TSB * a_TSB).sum((0, 1))


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """A graph's arrays on a device; its arcs sorted by the state that they enter, and by the state that they leave."""

    into_JJ: Tensor
    out_of_JJ: Tensor
    first_J: Tensor
    loop_J: Tensor
    loops_J1: Tensor
    initial_J1: Tensor


@lru_cache(maxsize=2)  # a run has one graph; its copy stays on the device
def _on(graph: SequenceGraph, device: torch.device, dtype: torch.dtype) -> _OnDevice:
    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    def matrix(ptr_J1: np.ndarray, state_A: np.ndarray, weight_A: np.ndarray) -> Tensor:
        arrays, size = (tensor(ptr_J1.astype(state_A.dtype)), tensor(state_A)), (graph.num_states, graph.num_states)
        return torch.sparse_csr_tensor(*arrays, tensor(weight_A).to(dtype), size, check_invariants=False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's sparse matrices are a beta feature
        into_JJ = matrix(graph.in_ptr_J1, graph.in_src_A, graph.in_weight_A)
        out_of_JJ = matrix(graph.out_ptr_J1, graph.out_dst_A, graph.out_weight_A)
    loops_J1, initial_J1 = (tensor(array).to(dtype)[:, None] for array in (graph.loops_J, graph.initial_J))
    return _OnDevice(
        into_JJ, out_of_JJ, tensor(graph.first_J).long(), tensor(graph.loop_J).long(), loops_J1, initial_J1
    )


# Autograd would transpose the matrix in every frame; the graph has its arcs in both orders.
class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_JB: Tensor, matrix_JJ: Tensor, transposed_JJ: Tensor) -> Tensor:
        ctx.save_for_backward(matrix_JJ, transposed_JJ)
        return matrix_JJ @ x_JB

    @staticmethod
    def backward(ctx: Any, grad_JB: Tensor) -> tuple[Tensor, None, None]:
        matrix_JJ, transposed_JJ = ctx.saved_tensors
        return _Product.apply(grad_JB, transposed_JJ, matrix_JJ), None, None


# Division by zero gives infinity, as in NumPy: scores so far apart that no path is left are for the caller to report.
_jit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})


def compiled_passes(
    x_TSB: np.ndarray, graph: SequenceGraph, leak: float, a_TSB: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`value_and_gradient` in compiled code; the batch is the innermost axis.

    Parameters
    ----------
    x_TSB
        float32 or float64, exponentials of the outputs; the largest value of a frame should be near one.
    a_TSB
        Of the same type: accuracy of each pdf in each frame.

    Returns
    -------
    value_B, gradient_TSB
        float64, and the type of `x_TSB`. If outputs are not finite, or no path has a probability above zero, the value
        is not finite either.
    """
    frames, _, batch = x_TSB.shape
    dtype = x_TSB.dtype
    first_J, loop_J, in_ptr_J1, in_src_A, out_ptr_J1, out_dst_A = _unsigned(graph)
    states, constants = (first_J, loop_J, graph.loops_J), (graph.initial_J, dtype.type(leak))
    arcs_in, arcs_out = (in_ptr_J1, in_src_A, graph.in_weight_A), (out_ptr_J1, out_dst_A, graph.out_weight_A)
    # Allocated by NumPy, which asks for large pages; getting thousands of small ones would take as long as the arcs.
    alpha_TJW = np.empty((frames + 1, graph.num_states, WIDTH), dtype)
    d_alpha_TJW = None if a_TSB is None else np.empty_like(alpha_TJW)
    per_frame_TB, gradient_TSB = np.empty((frames, batch), dtype), np.empty_like(x_TSB)
    for start in range(0, batch, WIDTH):
        part = slice(start, start + WIDTH)
        x_TSW = _padded(x_TSB[:, :, part])
        a_TSW = None if a_TSB is None else _padded(a_TSB[:, :, part])
        alphas = alpha_TJW, d_alpha_TJW
        total_TW, mean_TW = _forward(x_TSW, a_TSW, *states, *arcs_in, *constants, *alphas)
        gradient_TSW = _backward(x_TSW, a_TSW, *states, *arcs_out, *constants, *alphas, total_TW, mean_TW)
        per_frame_TB[:, part] = (total_TW if a_TSB is None else mean_TW)[:, : batch - start]
        gradient_TSB[:, :, part] = gradient_TSW[:, :, : batch - start]
    per_frame_TB = per_frame_TB.astype(np.float64)
    if a_TSB is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            per_frame_TB = np.log(per_frame_TB)
    return per_frame_TB.sum(0), gradient_TSB


def _padded(values_TSB: np.ndarray) -> np.ndarray:
    """Pad to `WIDTH` chunks with copies of the last, since other values might overflow."""
    padding = WIDTH - values_TSB.shape[2]
    return np.concatenate([values_TSB, np.repeat(values_TSB[:, :, -1:], padding, axis=2)], axis=2)


@lru_cache(maxsize=2)  # a run has one graph
def _unsigned(graph: SequenceGraph) -> tuple[np.ndarray, ...]:
    """The graph's indices, unsigned: compiled code need not ask whether one is negative and counts from the end."""
    arrays = graph.first_J, graph.loop_J, graph.in_ptr_J1, graph.in_src_A, graph.out_ptr_J1, graph.out_dst_A
    return tuple(array.astype(np.uint32) for array in arrays)


@_jit
def _over_arcs(rows, j, ptr, state, weight):  # type: ignore[no-untyped-def]
    """The sum of rows over the arcs of state j."""
    total = spread(rows.dtype.type(0))
    for k in range(ptr[j], ptr[j + 1]):
        total = total + weight[k] * load(rows, state[k])
    return total


@_jit
def _forward(x, a, first, loop, loops, ptr, src, weight, initial, leak, alpha, d_alpha):  # type: ignore[no-untyped-def]
    frames, states = len(x), len(first)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    total, mean = np.empty((frames, WIDTH), x.dtype), np.zeros((frames, WIDTH), x.dtype)
    for j in range(states):
        alpha[0, j] = initial[j]
        if a is not None:
            d_alpha[0, j] = 0
    # Loops over frames and states; each operation is on `WIDTH` chunks at once.
    for t in range(frames):
        tot, m = spread(zero), spread(zero)
        for j in range(states):
            x_first, x_loop = load(x[t], first[j]), loops[j] * load(x[t], loop[j])
            arrived, before = _over_arcs(alpha[t], j, ptr, src, weight), load(alpha[t], j)
            pre = x_first * arrived + x_loop * before
            store(alpha[t + 1], j, pre)
            tot = tot + pre
            if a is not None:
                d_arrived = _over_arcs(d_alpha[t], j, ptr, src, weight) + load(a[t], first[j]) * arrived
                d_before = load(d_alpha[t], j) + load(a[t], loop[j]) * before
                d_pre = x_first * d_arrived + x_loop * d_before
                store(d_alpha[t + 1], j, d_pre)
                m = m + d_pre
        scale = one / tot
        m = m * scale
        store(total, t, tot)
        store(mean, t, m)
        # Scale to a sum of one, and add the leak.
        for j in range(states):
            pre = load(alpha[t + 1], j)
            store(alpha[t + 1], j, pre * scale + leak * initial[j])
            if a is not None:
                store(d_alpha[t + 1], j, (load(d_alpha[t + 1], j) - m * pre) * scale)
    return total, mean


@_jit
def _backward(x, a, first, loop, loops, ptr, dst, weight, initial, leak, alpha, d_alpha, total, mean):  # type: ignore[no-untyped-def]
    frames, states = len(x), len(first)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    posterior = np.zeros_like(x)  # or its derivative
    beta = np.ones((states, WIDTH), x.dtype)  # of pre_t / tot_t
    enter, d_beta, d_enter = np.empty_like(beta), np.zeros_like(beta), np.empty_like(beta)
    for t in range(frames - 1, -1, -1):
        scale, m = one / load(total, t), load(mean, t)
        # Split the posterior of each state into that of having entered and that of having looped.
        for j in range(states):
            x_first, x_loop = load(x[t], first[j]), loops[j] * load(x[t], loop[j])
            before, now = load(alpha[t], j), load(alpha[t + 1], j) - leak * initial[j]
            after = load(beta, j)
            scaled = after * scale
            stayed = x_loop * scaled
            store(enter, j, x_first * scaled)
            store(beta, j, stayed)
            if a is None:
                looped = before * stayed
                _add(posterior[t], first[j], at_least_zero(now * after - looped))
                _add(posterior[t], loop[j], looped)
            else:
                d_after, d_now = load(d_beta, j), load(d_alpha[t + 1], j)
                d_scaled = d_after * scale
                d_stayed = x_loop * (d_scaled + (load(a[t], loop[j]) - m) * scaled)
                d_looped = load(d_alpha[t], j) * stayed + before * d_stayed
                store(d_enter, j, x_first * (d_scaled + (load(a[t], first[j]) - m) * scaled))
                store(d_beta, j, d_stayed)
                _add(posterior[t], first[j], d_now * after + now * d_after - d_looped)
                _add(posterior[t], loop[j], d_looped)
        # Back over the arcs, and through the leak, which every state can take.
        leaked, d_leaked = spread(zero), spread(zero)
        for i in range(states):
            after = load(beta, i) + _over_arcs(enter, i, ptr, dst, weight)
            store(beta, i, after)
            leaked = leaked + initial[i] * after
            if a is not None:
                d_after = load(d_beta, i) + _over_arcs(d_enter, i, ptr, dst, weight)
                store(d_beta, i, d_after)
                d_leaked = d_leaked + initial[i] * d_after
        for i in range(states):
            _add(beta, i, leak * leaked)
            if a is not None:
                _add(d_beta, i, leak * d_leaked)
    return posterior


@_jit
def _add(rows, j, lanes):  # type: ignore[no-untyped-def]
    store(rows, j, load(rows, j) + lanes)


def value_and_gradient(
    y_BTS: Tensor, graph: SequenceGraph, leak: float, a_BTS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log of the total probability of each chunk, (B,) float64, and its gradient, the posteriors (B, T, S).

    With accuracies: the expected accuracy of the chunk's paths, summed over frames, and its gradient.

    `a_BTS`: accuracy of each pdf in each frame, of the type of `y_BTS`.
    """
    y_TSB = y_BTS.detach().permute(1, 2, 0).contiguous()
    a_TSB = None if a_BTS is None else a_BTS.detach().permute(1, 2, 0).contiguous()
    if _compiled_pass(y_TSB):
        largest_T1B = y_TSB.amax(1, keepdim=True)
        accuracies = None if a_TSB is None else a_TSB.numpy()
        found = compiled_passes((y_TSB - largest_T1B).exp_().numpy(), graph, leak, accuracies)
        value_B, gradient_TSB = map(torch.from_numpy, found)
        if a_TSB is None:
            value_B += largest_T1B.sum((0, 1))
    else:
        with torch.enable_grad():
            y_TSB.requires_grad_()
            if a_TSB is None:
                value_B = denominator_log_z(y_TSB, graph, leak)
            else:
                value_B = sparse_expected_accuracy(y_TSB, a_TSB, graph, leak)
            (gradient_TSB,) = torch.autograd.grad(value_B.sum(), y_TSB)
    return value_B.detach().double(), gradient_TSB.permute(2, 0, 1)


def _compiled_pass(y_TSB: Tensor) -> bool:
    return y_TSB.device.type == "cpu"


class Attached(torch.autograd.Function):
    """Values (B,) that were computed along with their gradients (B, T, S): `apply(outputs, values, gradients)`."""

    @staticmethod
    def forward(ctx: Any, y_BTS: Tensor, value_B: Tensor, gradient_BTS: Tensor) -> Tensor:
        ctx.save_for_backward(gradient_BTS)
        return value_B.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor, None, None]:
        (gradient_BTS,) = ctx.saved_tensors
        return grad_B.to(gradient_BTS.dtype)[:, None, None] * gradient_BTS, None, None
