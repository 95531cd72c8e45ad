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


def gradient(parts: Parts, epoch: int, number: int) -> tuple[Step, tuple[Tensor, ...] | None]:
    """Draw a minibatch and compute its gradient, the mean over its frames, parameter by parameter.

    Returns
    -------
    step, gradient
        No gradient where the loss is not finite.
    """
    inputs, targets = parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    total, correct = parts.loss(parts.model(inputs), targets)
    value = total.item()
    g = torch.autograd.grad(total, trained(parts.model)) if math.isfinite(value) else None
    if g is not None:
        limit(g, parts.max_norm, parts.group.norm if parts.group else torch.nn.utils.get_total_norm)
    return Step(len(targets), value, int(correct)), g


@torch.no_grad()
def limit(
    g: Sequence[Tensor], max_norm: float, norm: Callable[[Sequence[Tensor]], Tensor] = torch.nn.utils.get_total_norm
) -> None:
    """Cut a gradient down to the length `max_norm`, in place (Pascanu et al. 2013); `norm` measures it."""
    if max_norm < math.inf:
        shrink = (max_norm / norm(g)).clamp(max=1.0)
        for each in g:
            each.mul_(shrink)


class Diverged(Speech3Error):
    """The loss of a minibatch is not finite, where nobody can refuse a push."""

    def __init__(self, epoch: int, number: int, loss: float, rate: float) -> None:
        super().__init__(
            f"epoch {epoch}, minibatch {number}: the loss is {loss}; the learning rate ({rate:g}) is most likely too "
            f"high, or the data hold NaN: lower training.learning_rate, or mend the data, and begin again"
        )
        self.epoch, self.number = epoch, number
