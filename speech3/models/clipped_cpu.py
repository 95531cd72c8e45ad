"""The pass over the cells of one frame of a clipped LSTM (formulas: `clipped`), for float32 on a CPU, by numba.

One loop over a frame's cells, which LLVM compiles to the processor's widest vectors, in a tenth of the time of the
product before it. It must not call the C library, so sigmoid and tanh use an exponential of their own, exact to a
relative error of 1.5e-7 (a rounding of float32 is 0.6e-7), which propagates NaN.

Axes: T frames, S frames and the state before the first, B streams, C cells, G gates of all cells: i, f, g, o, C each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from torch import Tensor

# No flag that lets the compiler assume that there are no NaNs, or reorder sums that round.
_jit = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
_inline = numba.njit(inline="always")

_ONE, _TWO = np.float32(1), np.float32(2)
_LIMIT = np.float32(87)  # exp(87) and exp(-87) are normal float32 numbers
_LOG2_E = np.float32(1.4426950408889634)
_LN_2_HIGH, _LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # n times the first is exact
_ROUND = np.float32(1.5 * 2**23)  # a float32 plus this has no bits left for a fraction
# expm1(r) / r for abs(r) <= ln(2) / 2, to 1.3e-8: interpolated at 4,000 Chebyshev nodes, degree 5.
_E0, _E1, _E2, _E3, _E4, _E5 = np.array([1.00000001, 0.5, 0.16666505, 0.04166635, 0.00836916, 0.00139411], np.float32)


def step_of(
    direction: str, buffers: Sequence[Tensor], w_peep_3C: Tensor | None, clip: float
) -> Callable[[int, Tensor], None]:
    """The pass over the cells of a frame, ``forward`` or ``backward``; `buffers` as in `clipped`, in its order."""
    kernel: Any = {"forward": _forward, "backward": _backward}[direction]
    arrays = [each.numpy() for each in buffers]
    peep_3C = None if w_peep_3C is None else w_peep_3C.contiguous().numpy()  # None: compiled without peepholes
    limit = np.float32(clip)

    def step(t: int, from_neighbour: Tensor) -> None:
        kernel(t, from_neighbour.numpy(), *arrays, peep_3C, limit)

    return step


@_jit
def _forward(t, recurrent_BG, gates_TBG, cells_SBC, out_TBC, peep_3C, limit):  # type: ignore[no-untyped-def]
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


@_jit
def _backward(t, d_next_BC, gates_TBG, cells_SBC, d_out_TBC, d_cell_BC, d_gates_TBG, peep_3C, limit):  # type: ignore[no-untyped-def]
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
