"""The pass over the cells of one frame of a clipped LSTM (formulas: `clipped`), for float32 on CUDA, by Triton.

One launch for each frame, besides the product, in place of some twenty. Triton comes only with PyTorch for CUDA. With
TRITON_INTERPRET=1 set before the import, the kernels run on CPU tensors.

Axes: T frames, S frames and the state before the first, B streams, C cells, G gates of all cells: i, f, g, o, C each.
"""

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256  # cells per program


def step_of(
    direction: str, buffers: Sequence[Tensor], w_peep_3C: Tensor | None, clip: float
) -> Callable[[int, Tensor], None]:
    """The pass over the cells of a frame, ``forward`` or ``backward``; `buffers` as in `clipped`, in its order."""
    kernel, cells_SBC = {"forward": _forward, "backward": _backward}[direction], buffers[1]
    count, cells = cells_SBC[0].numel(), cells_SBC.shape[-1]
    peep_3C = cells_SBC if w_peep_3C is None else w_peep_3C.contiguous()  # without peepholes any tensor: it is not read
    options = peep_3C, clip, count, cells, w_peep_3C is not None, _BLOCK

    def step(t: int, from_neighbour: Tensor) -> None:
        with torch.cuda.device_of(cells_SBC):  # Triton launches on the current device, not on that of the tensors
            kernel[(triton.cdiv(count, _BLOCK),)](t, from_neighbour, *buffers, *options)

    return step


@triton.jit(do_not_specialize=["t"])  # otherwise it is compiled again for t = 1 and for multiples of 16
def _forward(  # type: ignore[no-untyped-def]
    t, recurrent_BG, gates_TBG, cells_SBC, out_TBC, peep_3C, limit, count, cells,
    HAS_PEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A program has BLOCK cells; n numbers the cells of all streams, k those of one.
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, k, i_at = n < count, n % cells, n // cells * 4 * cells + n % cells
    frame = t.to(tl.int64) * count
    gates = gates_TBG + 4 * frame + i_at
    recurrent = recurrent_BG + i_at
    i = tl.load(gates, mask) + tl.load(recurrent, mask)
    f = tl.load(gates + cells, mask) + tl.load(recurrent + cells, mask)
    g = tl.load(gates + 2 * cells, mask) + tl.load(recurrent + 2 * cells, mask)
    o = tl.load(gates + 3 * cells, mask) + tl.load(recurrent + 3 * cells, mask)
    c_before = tl.load(cells_SBC + frame + n, mask)
    c_before = tl.where(t > 0, _clamp(c_before, limit), c_before)
    if HAS_PEEP:
        i += tl.load(peep_3C + k, mask) * c_before
        f += tl.load(peep_3C + cells + k, mask) * c_before
    i, f, g = tl.sigmoid(i), tl.sigmoid(f), _tanh(g)
    raw = f * c_before + i * g
    c = _clamp(raw, limit)
    if HAS_PEEP:
        o += tl.load(peep_3C + 2 * cells + k, mask) * c
    o = tl.sigmoid(o)
    tl.store(gates, i, mask)
    tl.store(gates + cells, f, mask)
    tl.store(gates + 2 * cells, g, mask)
    tl.store(gates + 3 * cells, o, mask)
    tl.store(cells_SBC + frame + count + n, raw, mask)
    tl.store(out_TBC + frame + n, o * _tanh(c), mask)


@triton.jit(do_not_specialize=["t"])
def _backward(  # type: ignore[no-untyped-def]
    t, d_next_BC, gates_TBG, cells_SBC, d_out_TBC, d_cell_BC, d_gates_TBG, peep_3C, limit, count, cells,
    HAS_PEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A program has BLOCK cells; n numbers the cells of all streams, k those of one.
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, k, i_at = n < count, n % cells, n // cells * 4 * cells + n % cells
    frame = t.to(tl.int64) * count
    gates, d_gates = gates_TBG + 4 * frame + i_at, d_gates_TBG + 4 * frame + i_at
    i, f = tl.load(gates, mask), tl.load(gates + cells, mask)
    g, o = tl.load(gates + 2 * cells, mask), tl.load(gates + 3 * cells, mask)
    c_before = tl.load(cells_SBC + frame + n, mask)
    c_before = tl.where(t > 0, _clamp(c_before, limit), c_before)
    raw = tl.load(cells_SBC + frame + count + n, mask)
    tanh_c = _tanh(_clamp(raw, limit))
    d_out = tl.load(d_out_TBC + frame + n, mask) + tl.load(d_next_BC + n, mask)
    d_o = d_out * tanh_c * o * (1 - o)
    d_c = tl.load(d_cell_BC + n, mask) + d_out * o * (1 - tanh_c * tanh_c)
    if HAS_PEEP:
        d_c += d_o * tl.load(peep_3C + 2 * cells + k, mask)
    d_c *= tl.where(tl.abs(raw) <= limit, 1.0, 0.0)
    d_i = d_c * g * i * (1 - i)
    d_f = d_c * c_before * f * (1 - f)
    tl.store(d_gates, d_i, mask)
    tl.store(d_gates + cells, d_f, mask)
    tl.store(d_gates + 2 * cells, d_c * i * (1 - g * g), mask)
    tl.store(d_gates + 3 * cells, d_o, mask)
    d_c *= f
    if HAS_PEEP:
        d_c += d_i * tl.load(peep_3C + k, mask) + d_f * tl.load(peep_3C + cells + k, mask)
    tl.store(d_cell_BC + n, d_c, mask)


@triton.jit
def _clamp(x, limit):  # type: ignore[no-untyped-def]
    x = tl.where(x > limit, limit, x)  # NaN stays NaN
    return tl.where(x < -limit, -limit, x)


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    """From exp(2 abs(x)), which may overflow to infinity; near zero, where that cancels, from the Taylor series."""
    large = 1 - 2 / (tl.exp(2 * tl.abs(x)) + 1)
    s = x * x
    small = x * (1 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, small, tl.where(x < 0, -large, large))
