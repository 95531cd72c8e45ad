"""The gradient of one minibatch, which the workers of every world compute."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from speech3.engine.flat import trained
from speech3.engine.items import Portions, each_tensor
from speech3.engine.world import Parts, minibatch_seed, seed_generators
from speech3.errors import Speech3Error


@dataclass(eq=False)
class Step:
    """Results of one minibatch before the update, which on a GPU may still be under way: the host waits to read them.

    Attributes
    ----------
    frames
        Number of frames.
    results
        float64 in the host's memory: their mean loss, the number classified correctly and, if it was computed, the norm
        of the gradient.
    copied
        Recorded on the GPU when `results` are there; None if they are.
    left_out
        Number of further frames that the loss could not use (`left_out` of the targets, if they have it).
    """

    frames: int
    results: Tensor
    copied: torch.cuda.Event | None = None
    left_out: int = 0

    @classmethod
    def started(cls, frames: int, results: Tensor, left_out: int = 0) -> "Step":
        """The step whose results the device is computing; one transfer to pinned memory, for which nobody waits yet."""
        if not results.is_cuda:
            return cls(frames, results, left_out=left_out)
        with torch.cuda.device(results.device):
            there = results.to("cpu", non_blocking=True)
            return cls(frames, there, torch.cuda.current_stream().record_event(), left_out)

    def __reduce__(self) -> tuple[Any, ...]:
        return Step, (self.frames, torch.tensor(self.read, dtype=torch.float64), None, self.left_out)

    @cached_property
    def read(self) -> list[float]:
        """The results; waits until they are there."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.results.tolist()

    @property
    def known(self) -> bool:
        """Whether reading the results does not wait."""
        return self.copied is None or self.copied.query()

    @property
    def loss(self) -> float:
        """Mean loss of the frames."""
        return self.read[0]

    @property
    def correct(self) -> int:
        """Number of frames classified correctly."""
        return int(self.read[1])

    @property
    def finite(self) -> bool:
        """Whether the loss and, where it was computed, the norm of the gradient are finite."""
        loss, _, *norm = self.read
        return all(map(math.isfinite, (loss, *norm)))


def gradient(
    parts: Parts, epoch: int, number: int, *, check: bool = True, drawn: tuple[Any, Any] | None = None
) -> tuple[Step, tuple[Tensor, ...]]:
    """Draw a minibatch and compute its gradient (the mean over its frames, clipped), one tensor per parameter.

    On a GPU this starts the work and returns; whoever reads the step waits for it.

    Parameters
    ----------
    check
        Whether to check that the gradient is finite. False where its effect is checked later, as the server checks a
        push: the check takes 1 to 2 % of the time of a small network's minibatch. With clipping it is done anyway.
    drawn
        The minibatch, if it is already drawn.

    Returns
    -------
    step, gradient
        The gradient must not be used if `step.finite` is false. With a recorder it is valid only until the next
        gradient is computed.
    """
    inputs, targets = drawn or parts.source.draw(epoch, number)
    seed_generators(minibatch_seed(parts.seed, epoch, number), parts.device)
    work = partial(_passes, parts, check)
    if parts.recorder is None:
        results, g = work(inputs, targets)
    else:
        results, g = parts.recorder(work, inputs, targets, (next(parts.model.parameters()).data_ptr(), check))
    return Step.started(len(targets), results, getattr(targets, "left_out", 0)), g


def _passes(parts: Parts, check: bool, inputs: Any, targets: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Start both passes; returns loss, number correct and the norm if computed, as one tensor, and the gradient."""
    total, correct, g = _of_portions(parts, inputs) if isinstance(inputs, Portions) else _of(parts, inputs, targets)
    results = [total.detach(), correct]
    if check or parts.max_norm < math.inf:
        results.append(limit(g, parts.max_norm, parts.group.norm if parts.group else torch.nn.utils.get_total_norm))
    return together(results), g


def _of(parts: Parts, inputs: Any, targets: Any) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    total, correct = loss_of(parts, inputs, targets)
    # A model may leave out parameters in some minibatches (LayerDrop, mixtures of experts): their gradient is zero.
    return total, correct, torch.autograd.grad(total, trained(parts.model), materialize_grads=True)


def _of_portions(parts: Parts, inputs: Portions) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The same of a minibatch in portions: the means over its items, whatever the sizes of the portions."""
    items = sum(len(targets) for _, targets in inputs.portions)
    sums: list[Tensor] = []
    for number, (portion, targets) in enumerate(inputs.portions):
        total, correct, g = _of(parts, portion, targets)
        share = len(targets) / items
        if number:
            sums = [sums[0] + share * total.detach(), sums[1] + correct, *sums[2:]]
            torch._foreach_add_(sums[2:], g, alpha=share)
        else:
            sums = [share * total.detach(), correct, *(share * each for each in g)]
    return sums[0], sums[1], tuple(sums[2:])


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
