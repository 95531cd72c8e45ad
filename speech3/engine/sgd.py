"""Plain SGD on one worker: draw a minibatch, compute its gradient, step. The baseline of every other world.

With g the mean gradient of a minibatch: v = momentum v + learning rate (g + weight decay p); p = p - v. It is the
server's step of the asynchronous engine with the push d = learning rate g; at a constant learning rate it is also
`torch.optim.SGD`'s.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten
from speech3.engine.gradient import diverged, gradient
from speech3.engine.world import USED, WAITING, Parts, Progress, Rate, Snapshot


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
                self.parameters.parameters_P.mul_(1 - learning_rate * self.weight_decay)
            for parameter, g in zip(self.parameters.views, gradient, strict=True):
                parameter.add_(g, alpha=-learning_rate)
            return
        for parameter, v, g in zip(self.parameters.views, self.velocity.views, gradient, strict=True):
            v.mul_(self.momentum).add_(g, alpha=learning_rate)
            if self.weight_decay:
                v.add_(parameter, alpha=learning_rate * self.weight_decay)
            parameter.sub_(v)

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters and velocity, as a checkpoint has them."""
        slots = {"velocity": self.velocity.vector_K.clone()} if self.velocity else {}
        return {"parameters": self.parameters.vector_K.clone(), **slots}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over parameters and velocity; one that is missing is zero."""
        self.parameters.vector_K.copy_(tensors["parameters"])
        if self.velocity:
            self.velocity.vector_K.copy_(
                tensors["velocity"]
            ) if "velocity" in tensors else self.velocity.vector_K.zero_()


class OneWorker:
    """The world of plain SGD: the minibatches of an epoch one after another, in this process."""

    def __init__(self, parts: Parts, *, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.parts = parts
        self.sgd = Sgd(parts.model, momentum=momentum, weight_decay=weight_decay)
        self.states_M = np.zeros(0, np.int32)
        self.progress = Progress()

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Yields after every minibatch, when the parameters are whole.

        Raises
        ------
        Speech3Error
            A loss is NaN or infinite; the parameters are those from before that minibatch.
        """
        self.states_M, self.progress = states_M.copy(), Progress()
        self.parts.model.train()
        for number in np.flatnonzero(states_M == WAITING).tolist():
            start = time.perf_counter()
            step, g = gradient(self.parts, epoch, number)
            if g is None:
                raise diverged(epoch, number, step.loss, rate)
            self.sgd.step(g, rate(number))
            self.states_M[number] = USED
            done = self.progress
            self.progress = replace(
                done, used=done.used + 1, frames=done.frames + step.frames, correct=done.correct + step.correct,
                loss_sum=done.loss_sum + step.loss * step.frames, seconds=done.seconds + time.perf_counter() - start,
            )  # fmt: skip
            yield self.progress

    def snapshot(self) -> Snapshot:
        """Parameters and velocity after the last minibatch."""
        return Snapshot(self.sgd.state(), self.states_M.copy(), self.progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Take over parameters and, if there is one, a velocity."""
        self.sgd.load(tensors)

    def close(self) -> None:
        """Nothing to end."""
