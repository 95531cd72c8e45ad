"""Parts that show what was counted how often, or that cannot be built everywhere; importable by actors.

Axes: B minibatch, C outputs.
"""

import os
from dataclasses import dataclass, field

import tiny
import torch
from torch import nn

from speech3.engine.interface import WorkerParts
from speech3.errors import Speech3Error


def linear_loss(outputs_BC: torch.Tensor, targets_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One whose gradient is the same at all parameters: the mean input, so sums of minibatches tell which are in."""
    return outputs_BC.sum(1).mean(), (targets_B >= 0).sum()


@dataclass(frozen=True)
class Linear(tiny.Build):
    """A layer with that loss."""

    def __call__(self, device: str = "cpu") -> WorkerParts:
        torch.manual_seed(1)
        return WorkerParts(nn.Linear(5, 5).to(device), self.batches, linear_loss, seed=1)

    def gradients(self, epoch: int) -> torch.Tensor:
        """Sum over the epoch's minibatches, of the weight."""
        means = [self.batches.draw(epoch, number)[0].double().mean(0) for number in range(len(self.batches))]
        return torch.stack(means).sum(0).expand(5, 5)


@dataclass(frozen=True)
class Elsewhere(tiny.Build):
    """In another process a file is missing."""

    home: int = field(default_factory=os.getpid)
    file: str = ""

    def __call__(self, device: str = "cpu") -> WorkerParts:
        if os.getpid() != self.home:
            raise Speech3Error(f"{self.file}: no such file")
        return super().__call__(device)
