"""Held-out evaluation: the loss, by which the epochs of a run are compared, and the frame accuracy."""

import torch
from torch import nn

from speech3.engine import Loss
from speech3.errors import MOST_BAD, Speech3Error
from speech3.frames.chunks import Chunks
from speech3.frames.minibatches import Minibatches
from speech3.frames.sequences import Sequences
from speech3.io.progress import progress

_FRAMES = 2400  # in a minibatch: 16 chunks of 150, a whole vector for the objectives of sequences


def check_left_out(what: str, frames: int, left_out: int) -> None:
    """Raise an error if more than 5 % of all frames are of chunks without a path through their numerators (LF-MMI)."""
    if left_out > MOST_BAD * (frames + left_out):
        raise Speech3Error(
            f"{what}: {left_out / (frames + left_out):.1%} of the frames cannot be used, more than"
            f" {100 * MOST_BAD:g} %: no path through the transcripts of their chunks fits; the labels are those of"
            " another alignment, the transcripts are too long for the recordings, or training.lfmmi.tolerance is too"
            " small for training.speeds: pack the frames again, or raise it"
        )


@torch.no_grad()
def evaluate(model: nn.Module, heldout: Minibatches | Sequences | Chunks, loss: Loss) -> tuple[float, float]:
    """Mean loss and frame accuracy (0 to 1) of a model over all frames of a source of minibatches.

    Raises
    ------
    Speech3Error
        The loss cannot use more than 5 % of the frames.
    """
    model.eval()
    loss_sum, correct, frames, left_out = 0.0, 0, 0, 0
    about = -(-heldout.num_frames // _FRAMES)  # a few more where chunks overlap
    for inputs, targets in progress(heldout.sequential(_FRAMES), about, "held-out"):
        mean, right = loss(model(inputs), targets)
        loss_sum, correct = loss_sum + mean.item() * len(targets), correct + int(right)
        frames += len(targets)
        left_out += getattr(targets, "left_out", 0)
    if left_out:
        check_left_out("held-out data", frames, left_out)
    return loss_sum / frames, correct / frames
