"""One LSTM layer with cell clipping, at the speed of PyTorch's own LSTM, forward and backward.

    i_t = sigmoid(W_i x_t + R_i h_(t-1) + b_i + p_i c_(t-1))     input gate
    f_t = sigmoid(W_f x_t + R_f h_(t-1) + b_f + p_f c_(t-1))     forget gate
    g_t =    tanh(W_g x_t + R_g h_(t-1) + b_g)                   candidate
    c_t = clamp(f_t c_(t-1) + i_t g_t, -clip, clip)              cell
    o_t = sigmoid(W_o x_t + R_o h_(t-1) + b_o + p_o c_t)         output gate
    h_t = P (o_t tanh(c_t))                                      output

Diagonal peepholes p and the recurrent projection P, which may be absent, are those of Sak et al. 2014. Clipping keeps a
cell that integrates its input over hundreds of frames from growing without bound (Kaldi's `cell-clip`, 50).

The whole sequence is one node of autograd's graph. The product with the input comes before the forward loop, the
gradients of weights and input after the backward loop, for all frames at once. In each loop remain one product and one
pass over the cells: in plain PyTorch (the reference), or for float32 by numba on a CPU and by Triton on a GPU
(`clipped_cuda`). The backward pass needs the gates of each frame and its cell before clipping: where that was clipped,
no gradient passes.

In numba that pass is one loop over a frame's cells, which LLVM compiles to the processor's widest vectors, in a tenth
of the time of the product before it. It must not call the C library, so sigmoid and tanh use an exponential of their
own, exact to a relative error of 1.5e-7 (a rounding of float32 is 0.6e-7), which propagates NaN.

Axes: T frames, S frames and the state before the first, B streams, I inputs, C cells, R outputs (C without projection),
G gates of all cells: i, f, g, o, C each. N frames of all streams. 3: peepholes of i, f, o.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from speech3.models.layers import exactly, float_jit, multiply

# Computes the cells of frame t in place: forward from the recurrent product (B, G) with the previous outputs, backward
# from the gradient (B, C) of the outputs that comes from the next frame.
Step = Callable[[int, Tensor], None]
# Makes one, ``forward`` or ``backward``, from the buffers that it works in, the peepholes and the limit of the cells.
StepOf = Callable[[str, Sequence[Tensor], Tensor | None, float], Step]

_MANY_FRAMES, _FEW_ROWS = 8, 32  # least frames, most rows for which a copy of the recurrent weights pays, as measured

_inline = numba.njit(inline="always")

_ONE, _TWO = np.float32(1), np.float32(2)
_LIMIT = np.float32(87)  # exp(87) and exp(-87) are normal float32 numbers
_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # n times the first is exact
_ROUND = np.float32(1.5 * 2**23)  # a float32 plus this has no bits left for a fraction
# expm1(r) / r for abs(r) <= ln(2) / 2, to 1.3e-8: interpolated at 4,000 Chebyshev nodes, degree 5.
_E0, _E1, _E2, _E3, _E4, _E5 = np.array([1.00000001, 0.5, 0.16666505, 0.04166635, 0.00836916, 0.00139411], np.float32)


def clipped_lstm(
    x_TBI: Tensor,
    h0_BR: Tensor,
    c0_BC: Tensor,
    weight_ih_GI: Tensor,
    weight_hh_GR: Tensor,
    bias_G: Tensor,
    *,
    clip: float,
    weight_peep_3C: Tensor | None = None,
    weight_hr_RC: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer of LSTM cells with c_t limited to +-`clip`, over a whole chunk; infinity gives exactly `nn.LSTM`.

    `x_TBI` has any strides and T > 0. All other tensors have one floating-point type, in which everything is computed
    even under autocast. Weights are as in `nn.LSTM`, gates in the order i, f, g, o, but with one bias, the sum of its
    two.

    Returns `y_TBR`, `h_BR`, `c_BC`: outputs of all frames; outputs and cells of the last. Gradients flow through all
    three.
    """
    if not (clip > 0 and len(x_TBI)):
        raise ValueError(f"clipped_lstm: clip {clip} must be above zero, and {len(x_TBI)} frames must be at least one")
    with exactly(x_TBI):
        weights = weight_ih_GI, weight_hh_GR, bias_G, weight_peep_3C, weight_hr_RC
        y_TBR, h_BR, c_BC = _ClippedLstm.apply(x_TBI.to(weight_ih_GI.dtype), h0_BR, c0_BC, *weights, float(clip))
    return y_TBR, h_BR, c_BC


class _ClippedLstm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TBI: Tensor,
        h0_BR: Tensor,
        c0_BC: Tensor,
        w_ih_GI: Tensor,
        w_hh_GR: Tensor,
        bias_G: Tensor,
        w_peep_3C: Tensor | None,
        w_hr_RC: Tensor | None,
        clip: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The input product of all frames at once.
        frames, streams, _ = x_TBI.shape
        x_NI = x_TBI.reshape(frames * streams, -1)
        gates_TBG = multiply(x_NI, w_ih_GI, bias_G).view(frames, streams, -1)
        cells_SBC = x_TBI.new_empty(frames + 1, *c0_BC.shape)  # before clipping; the first is the initial state
        cells_SBC[0] = c0_BC
        h_SBR = x_TBI.new_empty(frames + 1, *h0_BR.shape)
        h_SBR[0] = h0_BR
        out_TBC = h_SBR[1:] if w_hr_RC is None else x_TBI.new_empty(frames, *c0_BC.shape)
        step = _step_of("forward", (gates_TBG, cells_SBC, out_TBC), w_peep_3C, clip)
        # Frame by frame: only the recurrent product, and the cell in place.
        w_many_hh_GR = _for_many(w_hh_GR, frames, streams)
        w_many_hr_RC = None if w_hr_RC is None else _for_many(w_hr_RC, frames, streams)
        for t, h_BR in enumerate(h_SBR[:frames].unbind()):
            step(t, multiply(h_BR, w_many_hh_GR))
            if w_many_hr_RC is not None:
                h_SBR[t + 1] = multiply(out_TBC[t], w_many_hr_RC)
        projected = None if w_hr_RC is None else out_TBC
        ctx.save_for_backward(x_NI, w_ih_GI, w_hh_GR, w_peep_3C, w_hr_RC, gates_TBG, cells_SBC, h_SBR, projected)
        ctx.clip = clip
        ctx.set_materialize_grads(False)
        return h_SBR[1:], h_SBR[frames].clone(), cells_SBC[frames].clamp(-clip, clip)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, d_y_TBR: Tensor | None, d_h_BR: Tensor | None, d_c_BC: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        x_NI, w_ih_GI, w_hh_GR, w_peep_3C, w_hr_RC, gates_TBG, cells_SBC, h_SBR, out_TBC = ctx.saved_tensors
        frames, streams, _ = gates_TBG.shape
        need_x, need_h0 = ctx.needs_input_grad[:2]
        d_y_TBR = torch.zeros_like(h_SBR[1:]) if d_y_TBR is None else d_y_TBR.contiguous()
        d_next_BR = torch.zeros_like(h_SBR[0]) if d_h_BR is None else d_h_BR.contiguous()
        d_cell_BC = torch.zeros_like(cells_SBC[0]).add_(0.0 if d_c_BC is None else d_c_BC)
        d_out_TBC = d_y_TBR  # gradient of the outputs from the layer above; the loop adds that from the next frame
        if w_hr_RC is not None:
            d_y_TBR = d_y_TBR.clone()
            d_out_TBC = multiply(d_y_TBR.view(-1, d_y_TBR.shape[-1]), w_hr_RC.t()).view(frames, streams, -1)
        # Back through time: gradients of the gates.
        d_gates_TBG = torch.empty_like(gates_TBG)
        buffers = gates_TBG, cells_SBC, d_out_TBC, d_cell_BC, d_gates_TBG
        step = _step_of("backward", buffers, w_peep_3C, ctx.clip)
        for t, d_gates_BG in reversed(list(enumerate(d_gates_TBG.unbind()))):
            if w_hr_RC is None:
                step(t, d_next_BR)
            else:
                d_y_TBR[t] += d_next_BR
                step(t, multiply(d_next_BR, w_hr_RC.t()))
            if t or need_h0:
                d_next_BR = multiply(d_gates_BG, w_hh_GR.t())

        # Weights: one product each, over all frames.
        d_gates_NG, h_NR = d_gates_TBG.flatten(0, 1), h_SBR[:frames].flatten(0, 1)
        d_gates_GN = d_gates_NG.t().contiguous()  # reduces oneDNN's time for each of two products to 3/4
        d_hr_RC = None if w_hr_RC is None else multiply(d_y_TBR.flatten(0, 1).t(), out_TBC.flatten(0, 1).t())
        d_peep_3C = None if w_peep_3C is None else _peephole_gradient(d_gates_TBG, cells_SBC, ctx.clip)
        return (
            multiply(d_gates_NG, w_ih_GI.t()).view(frames, streams, -1) if need_x else None,
            d_next_BR if need_h0 else None,
            d_cell_BC,
            multiply(d_gates_GN, x_NI.t()),
            multiply(d_gates_GN, h_NR.t()),
            d_gates_GN.sum(1),
            d_peep_3C,
            d_hr_RC,
            None,
        )


def _for_many(weight_NK: Tensor, frames: int, rows: int) -> Tensor:
    """The weights with outputs innermost, as oneDNN needs them for few rows: it would transpose them in every frame."""
    return weight_NK.t().contiguous().t() if frames >= _MANY_FRAMES and rows <= _FEW_ROWS else weight_NK


def _peephole_gradient(d_gates_TBG: Tensor, cells_SBC: Tensor, clip: float) -> Tensor:
    c_SBC = cells_SBC.clamp(-clip, clip)
    c_SBC[0] = cells_SBC[0]
    d_i, d_f, _, d_o = d_gates_TBG.chunk(4, -1)
    pairs = ((d_i, c_SBC[:-1]), (d_f, c_SBC[:-1]), (d_o, c_SBC[1:]))
    return torch.stack([(d_TBC * c_TBC).sum((0, 1)) for d_TBC, c_TBC in pairs])


def _fast_steps(x: Tensor) -> StepOf | None:
    """The compiled steps for tensors like `x`; None if there are only the plain ones."""
    if x.dtype != torch.float32 or x.device.type not in ("cpu", "cuda"):
        return None
    return _numba_step_of if x.device.type == "cpu" else _triton_step_of()


@functools.cache
def _triton_step_of() -> StepOf | None:
    try:
        from speech3.models.clipped_cuda import step_of
    except ImportError:  # no Triton
        return None
    return step_of


def _step_of(direction: str, buffers: Sequence[Tensor], w_peep_3C: Tensor | None, clip: float) -> Step:
    if fast := _fast_steps(buffers[0]):
        return fast(direction, buffers, w_peep_3C, clip)
    return functools.partial(_PLAIN[direction], *buffers, w_peep_3C, clip)


def _forward(
    gates_TBG: Tensor,
    cells_SBC: Tensor,
    out_TBC: Tensor,
    w_peep_3C: Tensor | None,
    clip: float,
    t: int,
    recurrent_BG: Tensor,
) -> None:
    """`gates_TBG` holds the products with the inputs, which are replaced by the activated gates."""
    i, f, g, o = gates_TBG[t].add_(recurrent_BG).chunk(4, -1)
    c_before = cells_SBC[t].clamp(-clip, clip) if t else cells_SBC[0]
    if w_peep_3C is not None:
        i += w_peep_3C[0] * c_before
        f += w_peep_3C[1] * c_before
    cells_SBC[t + 1] = f.sigmoid_() * c_before + i.sigmoid_() * g.tanh_()
    c = cells_SBC[t + 1].clamp(-clip, clip)
    if w_peep_3C is not None:
        o += w_peep_3C[2] * c
    out_TBC[t] = o.sigmoid_() * c.tanh()


def _backward(
    gates_TBG: Tensor,
    cells_SBC: Tensor,
    d_out_TBC: Tensor,
    d_cell_BC: Tensor,
    d_gates_TBG: Tensor,
    w_peep_3C: Tensor | None,
    clip: float,
    t: int,
    d_next_BC: Tensor,
) -> None:
    """`d_cell_BC` holds the gradient of the cells from the next frame; it is replaced by that of the previous cells."""
    i, f, g, o = gates_TBG[t].chunk(4, -1)
    d_i, d_f, d_g, d_o = d_gates_TBG[t].chunk(4, -1)
    c_before = cells_SBC[t].clamp(-clip, clip) if t else cells_SBC[0]
    tanh_c = cells_SBC[t + 1].clamp(-clip, clip).tanh()
    d_out = d_out_TBC[t] + d_next_BC
    d_o.copy_(d_out * tanh_c * o * (1 - o))
    d_cell_BC.add_(d_out * o * (1 - tanh_c * tanh_c))
    if w_peep_3C is not None:
        d_cell_BC.add_(d_o * w_peep_3C[2])
    d_cell_BC.mul_(cells_SBC[t + 1].abs() <= clip)
    d_i.copy_(d_cell_BC * g * i * (1 - i))
    d_f.copy_(d_cell_BC * c_before * f * (1 - f))
    d_g.copy_(d_cell_BC * i * (1 - g * g))
    d_cell_BC.mul_(f)
    if w_peep_3C is not None:
        d_cell_BC.add_(d_i * w_peep_3C[0] + d_f * w_peep_3C[1])


_PLAIN: dict[str, Callable[..., None]] = {"forward": _forward, "backward": _backward}


def _numba_step_of(direction: str, buffers: Sequence[Tensor], w_peep_3C: Tensor | None, clip: float) -> Step:
    kernel: Any = {"forward": _forward_loop, "backward": _backward_loop}[direction]
    arrays = [each.numpy() for each in buffers]
    peep_3C = None if w_peep_3C is None else w_peep_3C.contiguous().numpy()  # None: compiled without peepholes
    limit = np.float32(clip)

    def step(t: int, from_neighbour: Tensor) -> None:
        kernel(t, from_neighbour.numpy(), *arrays, peep_3C, limit)

    return step


@float_jit
def _forward_loop(t, recurrent_BG, gates_TBG, cells_SBC, out_TBC, peep_3C, limit):  # type: ignore[no-untyped-def]
    """One loop over the cells of each stream; the gates of the frame are replaced by their activations."""
    cells = out_TBC.shape[2]
    limit_before = limit if t > 0 else np.float32(np.inf)  # the initial state is not clipped
    for b in range(out_TBC.shape[1]):
        gates, recurrent = gates_TBG[t, b], recurrent_BG[b]
        i_C, f_C, g_C, o_C = gates[:cells], gates[cells : 2 * cells], gates[2 * cells : 3 * cells], gates[3 * cells :]
        r_i, r_f, r_g = recurrent[:cells], recurrent[cells : 2 * cells], recurrent[2 * cells : 3 * cells]
        r_o, before, after, out = recurrent[3 * cells :], cells_SBC[t, b], cells_SBC[t + 1, b], out_TBC[t, b]
        for k in range(cells):
            c_before = _clamp(before[k], limit_before)
            i, f, g, o = i_C[k] + r_i[k], f_C[k] + r_f[k], g_C[k] + r_g[k], o_C[k] + r_o[k]
            if peep_3C is not None:
                i += peep_3C[0, k] * c_before
                f += peep_3C[1, k] * c_before
            i, f, g = _sigmoid(i), _sigmoid(f), _tanh(g)
            raw = f * c_before + i * g
            c = _clamp(raw, limit)
            if peep_3C is not None:
                o += peep_3C[2, k] * c
            o = _sigmoid(o)
            i_C[k], f_C[k], g_C[k], o_C[k], after[k], out[k] = i, f, g, o, raw, o * _tanh(c)


@float_jit
def _backward_loop(t, d_next_BC, gates_TBG, cells_SBC, d_out_TBC, d_cell_BC, d_gates_TBG, peep_3C, limit):  # type: ignore[no-untyped-def]
    """One loop over the cells of each stream."""
    cells = d_out_TBC.shape[2]
    limit_before = limit if t > 0 else np.float32(np.inf)  # the initial state is not clipped
    for b in range(d_out_TBC.shape[1]):
        gates, d_gates = gates_TBG[t, b], d_gates_TBG[t, b]
        i_C, f_C, g_C, o_C = gates[:cells], gates[cells : 2 * cells], gates[2 * cells : 3 * cells], gates[3 * cells :]
        d_i, d_f, d_g = d_gates[:cells], d_gates[cells : 2 * cells], d_gates[2 * cells : 3 * cells]
        d_o, before, after = d_gates[3 * cells :], cells_SBC[t, b], cells_SBC[t + 1, b]
        d_out_C, d_next, d_cell = d_out_TBC[t, b], d_next_BC[b], d_cell_BC[b]
        for k in range(cells):
            i, f, g, o, raw = i_C[k], f_C[k], g_C[k], o_C[k], after[k]
            c_before, tanh_c = _clamp(before[k], limit_before), _tanh(_clamp(raw, limit))
            d_out = d_out_C[k] + d_next[k]
            through_o = d_out * tanh_c * o * (_ONE - o)
            d_c = d_cell[k] + d_out * o * (_ONE - tanh_c * tanh_c)
            if peep_3C is not None:
                d_c += through_o * peep_3C[2, k]
            d_c = d_c if abs(raw) <= limit else d_c * np.float32(0)
            through_i = d_c * g * i * (_ONE - i)
            through_f = d_c * c_before * f * (_ONE - f)
            d_i[k], d_f[k], d_g[k], d_o[k] = through_i, through_f, d_c * i * (_ONE - g * g), through_o
            d_c *= f
            if peep_3C is not None:
                d_c += through_i * peep_3C[0, k] + through_f * peep_3C[1, k]
            d_cell[k] = d_c


@_inline
def _clamp(x, limit):  # type: ignore[no-untyped-def]
    x = limit if x > limit else x  # NaN stays NaN
    return -limit if x < -limit else x


@_inline
def _expm1(x):  # type: ignore[no-untyped-def]
    """s, a power of two, and e, so that exp(x) = s + s e and expm1(x) = (s - 1) + s e, both without cancellation."""
    x = _clamp(x, _LIMIT)
    rounded = x * _LOG2_E + _ROUND
    n = rounded - _ROUND
    r = (x - n * _LN_2_HIGH) - n * _LN_2_LOW
    e = r * (_E0 + r * (_E1 + r * (_E2 + r * (_E3 + r * (_E4 + r * _E5)))))
    exponent = np.float32(rounded).view(np.int32) << 23  # the bits of _ROUND are shifted out
    return np.int32(exponent + 0x3F800000).view(np.float32), e


@_inline
def _sigmoid(x):  # type: ignore[no-untyped-def]
    s, e = _expm1(-x)
    return _ONE / (_ONE + (s + s * e))


@_inline
def _tanh(x):  # type: ignore[no-untyped-def]
    """From exp(-2 abs(x)), which cannot overflow, with the sign of x."""
    s, e = _expm1(_TWO * x if x < 0 else -_TWO * x)
    m = s * e + (s - _ONE)
    y = m / (m + _TWO)
    return y if x < 0 else -y
