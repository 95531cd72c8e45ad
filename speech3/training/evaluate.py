"""Held-out evaluation: the loss, by which the epochs of a run are compared, and the frame accuracy."""

import torch
from torch import nn

from speech3.engine.world import Loss
from speech3.frames.chunks import Chunks
from speech3.frames.minibatches import Minibatches
from speech3.frames.sequences import Sequences
from speech3.io.progress import progress

_FRAMES = 2400  # in a minibatch: 16 chunks of 150, a whole vector for the objectives of sequences


@torch.no_grad()
def evaluate(model: nn.Module, heldout: Minibatches | Sequences | Chunks, loss: Loss) -> tuple[float, float]:
    """Mean loss and frame accuracy (0 to 1) of a model over all frames of a source of minibatches."""
    model.eval()
    loss_sum, correct, frames = 0.0, 0, 0
    about = -(-heldout.num_frames // _FRAMES)  # a few more where chunks overlap
    for inputs, targets in progress(heldout.sequential(_FRAMES), about, "held-out"):
        mean, right = loss(model(inputs), targets)
        loss_sum, correct = loss_sum + mean.item() * len(targets), correct + int(right)
        frames += len(targets)
    return loss_sum / frames, correct / frames
