"""The server's optimizer: how a push changes the parameters, with the refinements of the literature.

    v = momentum v + scale d;  p = p - v;  scale = push_scale * decay^staleness

d is the push (`shard.Push`). `projection` removes from d its component against v (the name is from CMU's SPEECH3 talk,
the formula is ours: if d.v < 0, d = d - (d.v / v.v) v). `adagrad`, the gamma of Dean et al. 2012, replaces
`push_scale`: each value of d is multiplied by it and divided by the square root of the sum of the squares of all its
values so far.

A step reads the published buffer, writes the other one, and also writes the new parameters into the shard's copy. On a
CPU (numba, `_one_pass`) and on a GPU (Triton, `server_optimizer_cuda.py`) all of that is one pass over memory, since
memory is the bottleneck: five PyTorch operations take 2.4 times as long on a CPU.

Axes: K values of a partition, of which P are parameters.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeVar

import numba
import numpy as np
import torch
from torch import Tensor

from speech3.config import AsgdConfig

_EPSILON = 1e-10
_TRITON = find_spec("triton") is not None  # it comes with PyTorch for CUDA
_SMALL = 0.01  # RMS of parameters; the weights of a layer with 1,024 inputs are initialised two to four times as large


@dataclass(frozen=True, eq=False)
class ServerVectors:
    """One of the server's two buffers: values, and the optimizer slots (momentum, Adagrad's sums) that settings need.

    The values are the parameters, followed by the model's buffers (running means), which no step changes.
    """

    vector_K: Tensor
    velocity_P: Tensor | None = None
    squares_P: Tensor | None = None
    num_parameters: int | None = None  # None: all values are parameters

    @property
    def parameters_P(self) -> Tensor:
        """The values that the step changes."""
        return self.vector_K[: self.num_parameters]


@dataclass(frozen=True, eq=False)
class ShardVectors:
    """The shard's side of the step: its parameters, and the fetched parameters (local updates), the push, or both.

    If `push_P` is None, the push is the fetched parameters minus the shard's own.
    """

    parameters_P: Tensor
    fetched_P: Tensor | None
    push_P: Tensor | None

    def push(self) -> Tensor:
        """The push d: the accumulated gradients, or the fetched parameters minus the shard's own."""
        if self.push_P is not None:
            return self.push_P
        assert self.fetched_P is not None
        return self.fetched_P - self.parameters_P


Norms = tuple[float, float, float]  # of push, change and parameters
StepFunction = Callable[[ServerVectors, ServerVectors, ShardVectors, float, float, float, float], Norms]
_Tensors = TypeVar("_Tensors", ServerVectors, ShardVectors)


@dataclass(frozen=True)
class ServerOptimizer:
    """The constants of the update; with the defaults it is p = p - d."""

    push_scale: float | None = 1.0  # None: one over the number of minibatches in the push
    momentum: float = 0.0
    decay: float = 1.0
    projection: bool = False
    adagrad: float = 0.0

    def scale(self, staleness: int, minibatches: int) -> float:
        """The factor of a push of `minibatches` minibatches; with Adagrad it is the decay alone."""
        share = 1 / minibatches if self.push_scale is None else self.push_scale
        return (1.0 if self.adagrad else share) * self.decay**staleness

    @torch.no_grad()
    def step(
        self, old: ServerVectors, new: ServerVectors, own: ShardVectors, *, staleness: int, minibatches: int
    ) -> float:
        """Write the updated state into `new`, and its parameters into `own`; the push is zero afterwards.

        Returns how far the parameters moved: the Euclidean norm of the change divided by that of the parameters. The
        divisor is at least the norm of parameters of size `_SMALL`, since a partition may hold only biases, which begin
        at zero. Not finite if a value of the push or of the change is not.
        """
        step = _step_of(old, own)
        along = _along(own.push(), old.velocity_P) if self.projection and old.velocity_P is not None else 0.0
        constants = self.scale(staleness, minibatches), along, self.momentum, self.adagrad
        return _length(old, *step(old, new, own, *constants))

    def warm_up(self, state: ServerVectors, own: ShardVectors) -> None:
        """Run the step on a few zeros, so that loading the compiled code (a third of a second) delays no sync."""
        self.step(_few(state), _few(state), _few(own), staleness=0, minibatches=1)


def _few(tensors: _Tensors) -> _Tensors:
    present = {name: value for name, value in vars(tensors).items() if isinstance(value, Tensor)}
    few: dict[str, Any] = {name: torch.zeros_like(tensor[:16]) for name, tensor in present.items()}
    return replace(tensors, **few)


def _along(push_P: Tensor, velocity_P: Tensor) -> float:
    """The multiple of the momentum that projection subtracts from the push: 0 if they agree (d.v >= 0)."""
    push_P = push_P.to(velocity_P.device)  # the shard may be on another GPU
    along, square = torch.stack([push_P @ velocity_P, velocity_P @ velocity_P]).tolist()
    return float(along / square) if along < 0 else 0.0


def _length(old: ServerVectors, push: float, moved: float, norm: float) -> float:
    return moved / max(norm, _SMALL * len(old.parameters_P) ** 0.5) if math.isfinite(push) else math.inf


def step_torch(
    old: ServerVectors, new: ServerVectors, own: ShardVectors, scale: float, along: float, momentum: float, gamma: float
) -> Norms:
    """The step in PyTorch, on any device: the reference."""
    push_P = d_P = own.push().to(old.parameters_P.device)
    if old.velocity_P is not None:
        d_P = d_P - along * old.velocity_P
    if old.squares_P is not None:
        squares_P = torch.addcmul(old.squares_P, d_P, d_P, out=new.squares_P)
        d_P = gamma * d_P / (squares_P.sqrt() + _EPSILON)
    d_P = scale * d_P
    if old.velocity_P is not None:
        d_P = torch.add(d_P, old.velocity_P, alpha=momentum, out=new.velocity_P)
    norms = torch.stack([push_P.norm(), d_P.norm(), old.parameters_P.norm()])
    own.parameters_P.copy_(torch.sub(old.parameters_P, d_P, out=new.parameters_P))
    if own.fetched_P is not None:
        own.fetched_P.copy_(own.parameters_P)  # not from the server's GPU a second time
    if own.push_P is not None:
        own.push_P.zero_()
    push, moved, norm = norms.tolist()  # the only wait for the device
    return push, moved, norm


def _step_of(old: ServerVectors, own: ShardVectors) -> StepFunction:
    """One pass over memory on a CPU, and on a GPU with Triton; step by step if the shard is on another device."""
    if old.parameters_P.device != own.parameters_P.device:
        return step_torch
    if old.parameters_P.is_cuda:
        return _step_triton if _TRITON else step_torch
    return _step_numba


def _in_order(old: ServerVectors, new: ServerVectors, own: ShardVectors) -> tuple[Tensor | None, ...]:
    slots = old.velocity_P, new.velocity_P, old.squares_P, new.squares_P
    return old.parameters_P, new.parameters_P, own.parameters_P, own.fetched_P, own.push_P, *slots


def _step_triton(old: ServerVectors, new: ServerVectors, own: ShardVectors, *constants: float) -> Norms:
    from speech3.engine.server_optimizer_cuda import one_pass

    return one_pass(_in_order(old, new, own), _EPSILON, *constants)


def _step_numba(old: ServerVectors, new: ServerVectors, own: ShardVectors, *constants: float) -> Norms:
    arrays: list[Any] = [None if tensor is None else tensor.numpy() for tensor in _in_order(old, new, own)]
    squares = _one_pass(*arrays, *map(np.float32, constants))
    push, moved, norm = (float(square) ** 0.5 for square in squares)
    return push, moved, norm


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})  # keeps NaN and infinity
def _one_pass(p, p_new, own, fetched, push, v, v_new, s, s_new, scale, along, momentum, gamma):  # type: ignore[no-untyped-def]
    # p, v, s: the server's parameters, momentum and squares, with their successors p_new, v_new, s_new; own, fetched,
    # push: the shard's vectors. Arguments that are None are compiled away, so there is one vectorised loop for each set
    # of options; numba does so only for a bare "if x is not None", so each optional argument has an if of its own.
    push_square, moved_square, square = np.float32(0), np.float32(0), np.float32(0)
    for i in range(len(p)):
        # The push: accumulated gradients, or the fetched parameters minus the shard's own.
        d = np.float32(0)
        if fetched is not None:
            d = fetched[i] - own[i]
        if push is not None:
            d = push[i]
        push_square += d * d
        square += p[i] * p[i]
        # The change: projection, Adagrad, scale, momentum, in this order.
        if v is not None:
            d -= along * v[i]
        if s is not None:
            square_sum = s[i] + d * d
            d *= gamma / (np.sqrt(square_sum) + np.float32(_EPSILON))
            s_new[i] = square_sum
        d *= scale
        if v is not None:
            d += momentum * v[i]
            v_new[i] = d
        moved_square += d * d
        # The new parameters go into the other buffer and into the shard's copy; the push is applied, so it is reset.
        value = p[i] - d
        p_new[i] = value
        own[i] = value
        if fetched is not None:
            fetched[i] = value
        if push is not None:
            push[i] = np.float32(0)
    return push_square, moved_square, square


def server_optimizer_of(config: AsgdConfig, workers: int) -> ServerOptimizer:
    """The optimizer that a config describes, for a number of workers."""
    scale = {"1/workers": 1 / workers, "1/accumulated": None}.get(str(config.push_scale), config.push_scale)
    push_scale = None if scale is None else float(scale)
    return ServerOptimizer(push_scale, config.momentum, config.decay, config.projection, config.adagrad)
