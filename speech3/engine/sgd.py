"""Plain SGD on one worker: draw a minibatch, compute its gradient, step. The baseline of every other world.

With g the mean gradient of a minibatch: v = momentum v + learning rate (g + weight decay p); p = p - v. It is the
server's step of the asynchronous engine with the push d = learning rate g; at a constant learning rate it is also
`torch.optim.SGD`'s.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten
from speech3.errors import Speech3Error

Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # outputs, targets -> mean loss, number classified right


class Source(Protocol):
    """Where minibatches come from; one is identified by (epoch, number) alone."""

    def __len__(self) -> int:
        """Minibatches in an epoch."""

    def draw(self, epoch: int, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, on the device of the model."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one minibatch did: its mean loss and the frames classified right, before the step; time in seconds."""

    number: int
    frames: int
    loss: float
    correct: int
    seconds: float


class Sgd:
    """The parameters of a model and the step that moves them.

    Attributes
    ----------
    parameters
        The flat vector that the model computes with.
    velocity
        v, or none without momentum.
    """

    def __init__(self, model: nn.Module, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.momentum, self.weight_decay = momentum, weight_decay
        self.parameters = flatten(model)
        self.velocity: Flat | None = self.parameters.zeros_like() if momentum else None

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        """Apply one gradient, given parameter by parameter as autograd leaves it: a copy would cost a pass."""
        if self.velocity is None:
            if self.weight_decay:
                self.parameters.vector_P.mul_(1 - learning_rate * self.weight_decay)
            for parameter, g in zip(self.parameters.views, gradient, strict=True):
                parameter.add_(g, alpha=-learning_rate)
            return
        for parameter, v, g in zip(self.parameters.views, self.velocity.views, gradient, strict=True):
            v.mul_(self.momentum).add_(g, alpha=learning_rate)
            if self.weight_decay:
                v.add_(parameter, alpha=learning_rate * self.weight_decay)
            parameter.sub_(v)


def minibatch_seed(seed: int, epoch: int, number: int) -> int:
    """Seed of the random numbers (dropout) of one minibatch: the same whoever computes it, and after a restart."""
    return ((seed * 1_000_003 + epoch) * 1_000_003 + number) & ((1 << 63) - 1)


def train_minibatches(
    model: nn.Module, sgd: Sgd, source: Source, loss: Loss, *,
    epoch: int, numbers: Iterable[int], learning_rate: float, seed: int,
) -> Iterator[Step]:  # fmt: skip
    """Draw, compute, step for each of `numbers`; yields between minibatches, when the parameters are whole.

    Raises
    ------
    Speech3Error
        A loss is NaN or infinite; the parameters are those from before that minibatch.
    """
    parameters = list(model.parameters())
    model.train()
    for number in numbers:
        start = time.perf_counter()
        inputs, targets = source.draw(epoch, number)
        _seed_generators(minibatch_seed(seed, epoch, number), inputs.device)
        total, correct = loss(model(inputs), targets)
        value = total.item()
        if not math.isfinite(value):
            raise Speech3Error(
                f"epoch {epoch}, minibatch {number}: the loss is {value}; the learning rate ({learning_rate:g}) is "
                f"most likely too high: lower training.learning_rate and begin again"
            )
        sgd.step(torch.autograd.grad(total, parameters), learning_rate)
        yield Step(number, len(targets), value, int(correct), time.perf_counter() - start)


def _seed_generators(seed: int, device: torch.device) -> None:
    # torch.manual_seed looks for every kind of accelerator, which takes 0.1 ms.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
