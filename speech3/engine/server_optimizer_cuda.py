"""The server's step on a GPU, in Triton: one pass over memory, as `server_optimizer._one_pass` on a CPU.

PyTorch's operations move 15 vectors of P values for a push by local updates; this kernel moves the 6 that must be moved
(it reads the server's parameters, the shard's and those it fetched, and writes all three). Import this module only
where it is used. Without a GPU it runs in Triton's interpreter, if TRITON_INTERPRET=1 is set before it is imported.

Axes: P parameters, T blocks of them.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def one_pass(tensors: Sequence[Tensor | None], epsilon: float, *constants: float) -> tuple[float, float, float]:
    """One step with the arguments of `server_optimizer._one_pass`; returns the norms of push, change and parameters.

    The host waits for the GPU once, for these norms.
    """
    p, _, _, fetched, push, v, _, s, _ = tensors
    assert p is not None
    blocks = triton.cdiv(len(p), _BLOCK)
    squares_3T = torch.empty(3, blocks, device=p.device)
    with torch.cuda.device_of(p):  # Triton launches on the current device, not on the tensors'
        if blocks:
            present = (each is not None for each in (fetched, push, v, s))
            _one_pass[(blocks,)](*tensors, squares_3T, len(p), *constants, epsilon, *present, _BLOCK)
    pushed, moved, norm = squares_3T.sum(1, dtype=torch.float64).sqrt().tolist()
    return pushed, moved, norm


@triton.jit
def _one_pass(  # type: ignore[no-untyped-def]
    p, p_new, own, fetched, push, v, v_new, s, s_new, squares_3T, count, scale, along, momentum, gamma, epsilon,
    FETCHED: tl.constexpr, PUSH: tl.constexpr, V: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0)
    i = t.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = i < count
    value = tl.load(p + i, valid, other=0.0)
    # The push: accumulated gradients, or the fetched parameters minus the shard's own.
    if PUSH:
        d = tl.load(push + i, valid, other=0.0)
        tl.store(push + i, tl.zeros([BLOCK], tl.float32), valid)
    else:
        d = tl.load(fetched + i, valid, other=0.0) - tl.load(own + i, valid, other=0.0)
    tl.store(squares_3T + t, tl.sum(d * d, 0))
    # The change: projection, Adagrad, scale, momentum, in this order.
    if V:
        velocity = tl.load(v + i, valid, other=0.0)
        d -= along * velocity
    if S:
        square = tl.load(s + i, valid, other=0.0) + d * d
        d *= gamma / (tl.sqrt(square) + epsilon)
        tl.store(s_new + i, square, valid)
    d *= scale
    if V:
        d += momentum * velocity
        tl.store(v_new + i, d, valid)
    tl.store(squares_3T + tl.num_programs(0) + t, tl.sum(d * d, 0))
    tl.store(squares_3T + 2 * tl.num_programs(0) + t, tl.sum(value * value, 0))
    value -= d
    tl.store(p_new + i, value, valid)
    tl.store(own + i, value, valid)
    if FETCHED:
        tl.store(fetched + i, value, valid)
