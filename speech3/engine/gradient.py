"""The gradient of one minibatch: what every worker of every world computes."""

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
    """What one minibatch did: its mean loss and the frames classified right, before the step."""

    frames: int
    loss: float
    correct: int


def gradient(parts: Parts, epoch: int, number: int, *, check: bool = True) -> tuple[Step, tuple[Tensor, ...] | None]:
    """Draw a minibatch and compute its gradient, the mean over its frames, parameter by parameter.

    The host waits for the device once, when all is started there: what it is told comes in one transfer.

    Parameters
    ----------
    check
        False where others look at what the gradient does before it counts, as the server does at a push: to look at
        each gradient costs one to two per cent of a small network's step.

    Returns
    -------
    step, gradient
        No gradient where the loss is not finite, or a value of the gradient. With a recorder it is good until the
        next one is computed.
    """
    inputs, targets = parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    work = partial(_passes, parts, check)
    if parts.recorder is None:
        told, g = work(inputs, targets)
    else:
        told, g = parts.recorder(work, inputs, targets, (next(parts.model.parameters()).data_ptr(), check))
    loss, right, *lengths = told.tolist()
    finite = all(map(math.isfinite, (loss, *lengths)))
    return Step(len(targets), loss, int(right)), g if finite else None


def _passes(parts: Parts, check: bool, inputs: Any, targets: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Start them: loss, number classified right and maybe length of the gradient, together; and the gradient."""
    total, correct = loss_of(parts, inputs, targets)
    g = torch.autograd.grad(total, trained(parts.model))
    told = [total.detach(), correct]
    if check or parts.max_norm < math.inf:
        told.append(limit(g, parts.max_norm, parts.group.norm if parts.group else torch.nn.utils.get_total_norm))
    return together(told), g


def loss_of(parts: Parts, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """The loss of a minibatch and how many are right, in the precision of `parts`; outputs are float32 for the loss."""
    if parts.autocast is None:
        return parts.loss(parts.model(inputs), targets)
    with torch.autocast(parts.device.type, parts.autocast):
        outputs = parts.model(inputs)
    return parts.loss(each_tensor(outputs, lambda y: y.float() if y.dtype == parts.autocast else y), targets)


def together(scalars: Sequence[Tensor]) -> Tensor:
    """Single values of any type in one float64 tensor, on the device of the first, to be fetched in one transfer."""
    return torch.stack([scalar.to(scalars[0].device, torch.float64) for scalar in scalars])


@torch.no_grad()
def limit(
    g: Sequence[Tensor], max_norm: float, norm: Callable[[Sequence[Tensor]], Tensor] = torch.nn.utils.get_total_norm
) -> Tensor:
    """Cut a gradient down to the length `max_norm`, in place (Pascanu et al. 2013); `norm` measures it.

    Returns
    -------
    length
        Before, a scalar on the gradient's device, of which nobody has waited for the value. It is infinite or not a
        number where a value of the gradient is; the gradient is then left as it is.
    """
    length = norm(g)
    if max_norm < math.inf:
        shrink = torch.where(length.isfinite(), (max_norm / length).clamp(max=1.0), 1.0)
        for each in g:
            each.mul_(shrink)
    return length


class Diverged(Speech3Error):
    """A loss or a gradient is not finite, where nobody can refuse a push."""

    def __init__(self, epoch: int, number: int, loss: float, rate: float) -> None:
        what = f"the gradient is not finite (the loss is {loss:g})" if math.isfinite(loss) else f"the loss is {loss}"
        super().__init__(
            f"epoch {epoch}, minibatch {number}: {what}; the learning rate ({rate:g}) is most likely too high, or the "
            f"data hold NaN: lower training.learning_rate, or mend the data, and begin again"
        )
        self.epoch, self.number = epoch, number
