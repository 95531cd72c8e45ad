"""AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization").

A shard of an asynchronous world keeps its own moments, those of the gradients that it computed itself; a fetch does not
change them. Its pushes are differences of parameters, as always with local updates. The server does not hold the
moments, so a shard that is restarted, or resumed from a checkpoint, begins with moments of zero.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten
from speech3.engine.world import Proximal

_EPSILON = 1e-8


class AdamW:
    """The parameters of a model and the AdamW step, with the same interface as `speech3.engine.sgd.Sgd`.

    Parameters
    ----------
    betas
        Decay factors per step of the moving averages of the gradient and of its square.
    weight_decay
        Applied to all parameters, including biases and normalisation, as in `torch.optim.AdamW`; it is multiplied by
        the learning rate.
    proximal
        Called after each step with the learning rate, if it is not None.

    Attributes
    ----------
    mean, square
        Moving averages of the gradient and of its square, without bias correction.
    steps
        Number of steps so far.
    """

    def __init__(
        self, model: nn.Module, betas: tuple[float, float], *, weight_decay: float = 0.0,
        proximal: Proximal | None = None,
    ) -> None:  # fmt: skip
        self.betas, self.weight_decay, self.proximal = betas, weight_decay, proximal
        self.parameters: Flat = flatten(model)
        self.mean, self.square = self.parameters.zeros_like(), self.parameters.zeros_like()
        self._gradient, self._direction = self.parameters.zeros_like(), self.parameters.zeros_like()
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Iterable[Tensor], learning_rate: float) -> None:
        """Apply one gradient: a tensor for each parameter."""
        torch._foreach_copy_(self._gradient.views, tuple(gradient))
        (first, second), self.steps = self.betas, self.steps + 1
        g_P = self._gradient.vector_K
        self.mean.vector_K.lerp_(g_P, 1 - first)
        self.square.vector_K.mul_(second).addcmul_(g_P, g_P, value=1 - second)
        self._write_direction()
        parameters_P = self.parameters.parameters_P
        parameters_P.mul_(1 - learning_rate * self.weight_decay)
        parameters_P.sub_(self._direction.vector_K, alpha=learning_rate)
        if self.proximal:
            self.proximal(learning_rate)

    def _write_direction(self) -> None:
        """Write the direction of the step, which the learning rate multiplies, from the moments."""
        (first, second), direction_P = self.betas, self._direction.vector_K
        corrected = math.sqrt(1 - second**self.steps)
        torch.sqrt(self.square.vector_K, out=direction_P).add_(_EPSILON * corrected)
        torch.div(self.mean.vector_K, direction_P, out=direction_P).mul_(corrected / (1 - first**self.steps))

    def state(self) -> dict[str, Tensor]:
        """Copies of parameters and moments, for a checkpoint."""
        self.parameters.collect()
        return {
            "parameters": self.parameters.vector_K.clone(), "adam.mean": self.mean.vector_K.clone(),
            "adam.square": self.square.vector_K.clone(), "adam.steps": torch.tensor([float(self.steps)]),
        }  # fmt: skip

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load parameters and moments; missing moments become zero."""
        self.parameters.load(tensors["parameters"])
        self.steps = int(tensors["adam.steps"].item()) if "adam.steps" in tensors else 0
        for name, slot in (("adam.mean", self.mean), ("adam.square", self.square)):
            slot.vector_K.copy_(tensors[name]) if name in tensors else slot.vector_K.zero_()


SLOTS = ("velocity", "adam.mean", "adam.square", "adam.steps")  # what a state may contain besides the parameters
