"""Stochastic gradient descent with momentum and weight decay: how a worker updates its own parameters p.

With the mean gradient g of a minibatch: v = momentum v + learning rate (g + weight decay p); p = p - v. Without weight
decay this equals the server's step of the asynchronous engine with the push d = learning rate g; at a constant learning
rate it also equals `torch.optim.SGD`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten
from speech3.engine.world import Proximal


class Sgd:
    """The parameters of a model and the SGD step.

    Attributes
    ----------
    parameters
        The flat vector that the model computes with.
    velocity
        The vector v, or None without momentum.
    proximal
        Called after each step with the learning rate, if it is not None.
    """

    def __init__(
        self, model: nn.Module, *, momentum: float = 0.0, weight_decay: float = 0.0, proximal: Proximal | None = None
    ) -> None:
        self.momentum, self.weight_decay, self.proximal = momentum, weight_decay, proximal
        self.parameters = flatten(model)
        self.velocity: Flat | None = self.parameters.zeros_like() if momentum else None

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        """Apply one gradient: a tensor for each parameter, as autograd returns them, which saves a copy."""
        if self.velocity is None:
            if self.weight_decay:
                self.parameters.parameters_P.mul_(1 - learning_rate * self.weight_decay)
            torch._foreach_add_(self.parameters.views, tuple(gradient), alpha=-learning_rate)
        else:
            v_P = self.velocity.vector_K.mul_(self.momentum)
            torch._foreach_add_(self.velocity.views, tuple(gradient), alpha=learning_rate)
            if self.weight_decay:
                v_P.add_(self.parameters.parameters_P, alpha=learning_rate * self.weight_decay)
            self.parameters.parameters_P.sub_(v_P)
        if self.proximal:
            self.proximal(learning_rate)

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters and velocity, for a checkpoint."""
        self.parameters.collect()
        slots = {"velocity": self.velocity.vector_K.clone()} if self.velocity else {}
        return {"parameters": self.parameters.vector_K.clone(), **slots}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load parameters and velocity; if the velocity is missing, it becomes zero."""
        self.parameters.load(tensors["parameters"])
        if self.velocity:
            self.velocity.vector_K.copy_(
                tensors["velocity"]
            ) if "velocity" in tensors else self.velocity.vector_K.zero_()
