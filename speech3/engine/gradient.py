"""The gradient of one minibatch, which the workers of every world compute."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from speech3.engine.flat import trained
from speech3.engine.items import each_tensor
from speech3.engine.world import Parts, minibatch_seed, seed_generators
from speech3.errors import Speech3Error


@dataclass(frozen=True, slots=True)
class Step:
    """Results of one minibatch before the update: number of frames, their mean loss, number classified correctly."""

    frames: int
    loss: float
    correct: int


def gradient(parts: Parts, epoch: int, number: int, *, check: bool = True) -> tuple[Step, tuple[Tensor, ...] | None]:
    """Draw a minibatch and compute its gradient (the mean over its frames, clipped), one tensor per parameter.

    The host waits for the device only once, after all work is started, and gets all results in one transfer.

    Parameters
    ----------
    check
        Whether to check that the gradient is finite. False where its effect is checked later, as the server checks a
        push: the check takes 1 to 2 % of the time of a small network's minibatch. With clipping it is done anyway.

    Returns
    -------
    step, gradient
        The gradient is None if the loss or a checked gradient is not finite. With a recorder it is valid only until the
        next gradient is computed.
    """
    inputs, targets = parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    work = partial(_passes, parts, check)
    if parts.recorder is None:
        results, g = work(inputs, targets)
    else:
        results, g = parts.recorder(work, inputs, targets, (next(parts.model.parameters()).data_ptr(), check))
    loss, right, *lengths = results.tolist()
    finite = all(map(math.isfinite, (loss, *lengths)))
    return Step(len(targets), loss, int(right)), g if finite else None


def _passes(parts: Parts, check: bool, inputs: Any, targets: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Start both passes; returns loss, number correct and the norm if computed, as one tensor, and the gradient."""
    total, correct = loss_of(parts, inputs, targets)
    g = torch.autograd.grad(total, trained(parts.model))
    results = [total.detach(), correct]
    if check or parts.max_norm < math.inf:
        results.append(limit(g, parts.max_norm, parts.group.norm if parts.group else torch.nn.utils.get_total_norm))
    return together(results), g


def loss_of(parts: Parts, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch and the number classified correctly.

    The model computes in the precision of `parts`; the loss always gets float32 outputs.
    """
    if parts.autocast is None:
        return parts.loss(parts.model(inputs), targets)
    with torch.autocast(parts.device.type, parts.autocast):
        outputs = parts.model(inputs)
    return parts.loss(each_tensor(outputs, lambda y: y.float() if y.dtype == parts.autocast else y), targets)


def together(scalars: Sequence[Tensor]) -> Tensor:
    """Combine scalars of any type into one float64 tensor on the device of the first, for a single transfer."""
    return torch.stack([scalar.to(scalars[0].device, torch.float64) for scalar in scalars])


@torch.no_grad()
def limit(
    g: Sequence[Tensor], max_norm: float, norm: Callable[[Sequence[Tensor]], Tensor] = torch.nn.utils.get_total_norm
) -> Tensor:
    """Clip a gradient to the norm `max_norm`, in place (Pascanu et al. 2013); `norm` computes the norm.

    Returns
    -------
    length
        The norm before clipping, a scalar on the gradient's device; the host does not wait for it. It is not finite if
        a value of the gradient is not; the gradient is then left unchanged.
    """
    length = norm(g)
    if max_norm < math.inf:
        shrink = torch.where(length.isfinite(), (max_norm / length).clamp(max=1.0), 1.0)
        for each in g:
            each.mul_(shrink)
    return length


class Diverged(Speech3Error):
    """A loss or a gradient is not finite, in a world without a server that could refuse the push."""

    def __init__(self, epoch: int, number: int, loss: float, rate: float) -> None:
        what = f"the gradient is not finite (the loss is {loss:g})" if math.isfinite(loss) else f"the loss is {loss}"
        super().__init__(
            f"epoch {epoch}, minibatch {number}: {what}; the learning rate ({rate:g}) is most likely too high, or the "
            f"data contain NaN: lower training.learning_rate or repair the data, and start again"
        )
        self.epoch, self.number = epoch, number
