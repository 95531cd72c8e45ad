"""The gradient of one minibatch: what every worker of every world computes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speech3.engine.flat import trained
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

    Parameters
    ----------
    check
        False where others look at what the gradient does before it counts, as the server does at a push: to look at
        each gradient costs one to two per cent of a small network's step.

    Returns
    -------
    step, gradient
        No gradient where the loss is not finite, or a value of the gradient.
    """
    inputs, targets = parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    total, correct = parts.loss(parts.model(inputs), targets)
    value = total.item()
    g = torch.autograd.grad(total, trained(parts.model)) if math.isfinite(value) else None
    norm = parts.group.norm if parts.group else torch.nn.utils.get_total_norm
    if g is not None and (check or parts.max_norm < math.inf) and not limit(g, parts.max_norm, norm):
        g = None
    return Step(len(targets), value, int(correct)), g


@torch.no_grad()
def limit(
    g: Sequence[Tensor], max_norm: float, norm: Callable[[Sequence[Tensor]], Tensor] = torch.nn.utils.get_total_norm
) -> bool:
    """Cut a gradient down to the length `max_norm`, in place (Pascanu et al. 2013); `norm` measures it.

    Returns
    -------
    finite
        False where it has no length, for a value is infinite or not a number; it is then left as it is.
    """
    length = norm(g)
    if not length.isfinite():
        return False
    if max_norm < math.inf:
        shrink = (max_norm / length).clamp(max=1.0)
        for each in g:
            each.mul_(shrink)
    return True


class Diverged(Speech3Error):
    """A loss or a gradient is not finite, where nobody can refuse a push."""

    def __init__(self, epoch: int, number: int, loss: float, rate: float) -> None:
        what = f"the gradient is not finite (the loss is {loss:g})" if math.isfinite(loss) else f"the loss is {loss}"
        super().__init__(
            f"epoch {epoch}, minibatch {number}: {what}; the learning rate ({rate:g}) is most likely too high, or the "
            f"data hold NaN: lower training.learning_rate, or mend the data, and begin again"
        )
        self.epoch, self.number = epoch, number
