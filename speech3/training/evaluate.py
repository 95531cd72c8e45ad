"""Held-out evaluation: the loss, by which the epochs of a run are compared, and the frame accuracy."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from speech3.engine.world import Loss


@torch.no_grad()
def evaluate(model: nn.Module, minibatches: Iterable[tuple[Any, Any]], loss: Loss) -> tuple[float, float]:
    """Mean loss and frame accuracy (0 to 1) of a model over minibatches."""
    model.eval()
    loss_sum, correct, frames = 0.0, 0, 0
    for inputs, targets in minibatches:
        mean, right = loss(model(inputs), targets)
        loss_sum, correct = loss_sum + mean.item() * len(targets), correct + int(right)
        frames += len(targets)
    return loss_sum / frames, correct / frames
