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
pass over the cells: in plain PyTorch below (the reference), by numba (`clipped_cpu`), or by Triton (`clipped_cuda`).
The backward pass needs the gates of each frame and its cell before clipping: where that was clipped, no gradient
passes.

Axes: T frames, S frames and the state before the first, B streams, I inputs, C cells, R outputs (C without projection),
G gates of all cells: i, f, g, o, C each. N frames of all streams. 3: peepholes of i, f, o.
"""

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from speech3.models import clipped_cpu
from speech3.models.layers import exactly, multiply

# Computes the cells of frame t in place: forward from the recurrent product (B, G) with the previous outputs, backward
# from the gradient (B, C) of the outputs that comes from the next frame.
Step = Callable[[int, Tensor], None]

_MANY_FRAMES, _FEW_ROWS = 8, 32  # least frames, most rows for which a copy of the recurrent weights pays, as measured


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


def _fast_steps(x: Tensor) -> ModuleType | None:
    """The compiled steps for tensors like `x`; None if there are only the plain ones."""
    if x.dtype != torch.float32 or x.device.type not in ("cpu", "cuda"):
        return None
    return clipped_cpu if x.device.type == "cpu" else _triton_steps()


@functools.cache
def _triton_steps() -> ModuleType | None:
    try:
        from speech3.models import clipped_cuda
    except ImportError:  # no Triton
        return None
    return clipped_cuda


def _step_of(direction: str, buffers: Sequence[Tensor], w_peep_3C: Tensor | None, clip: float) -> Step:
    """The pass over the cells of a frame, ``forward`` or ``backward``, in these buffers."""
    if fast := _fast_steps(buffers[0]):
        step: Step = fast.step_of(direction, buffers, w_peep_3C, clip)
        return step
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
