"""Frame cross-entropy over senones, its gradient and the number of correctly classified frames, in few passes.

Axes: B minibatch, S senones.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def cross_entropy(logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and the number of frames for which no senone scores better than the correct one.

    Logits may have more axes, (..., S); their frames are then numbered row by row.

    Returns
    -------
    loss, correct
        Scalars (float, int64); the loss is that of `torch.nn.functional.cross_entropy` but for rounding.
    """
    loss, correct = _CrossEntropy.apply(logits_BS.flatten(0, -2), senones_B)
    return loss, correct


@dataclass(frozen=True)
class SmoothedCrossEntropy:
    """Cross-entropy against targets of which a share is spread evenly over all senones (Szegedy et al. 2016)."""

    share: float

    def __call__(self, logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        """As `cross_entropy`, and equal to that of PyTorch with ``label_smoothing`` but for rounding."""
        loss, correct = cross_entropy(logits_BS, senones_B)
        return (1 - self.share) * loss - self.share * logits_BS.log_softmax(-1).mean(), correct


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BS: Tensor, senones_B: Tensor) -> tuple[Tensor, Tensor]:
        own_B1 = logits_BS.gather(1, senones_B[:, None])
        max_B = logits_BS.amax(1)
        posterior_BS = torch.softmax(logits_BS, 1)
        # log-sum-exp = max - log of the largest posterior, which cannot underflow, unlike that of the correct senone.
        loss_B = max_B - posterior_BS.amax(1).log() - own_B1.squeeze(1)
        correct = (own_B1.squeeze(1) >= max_B).sum()
        ctx.mark_non_differentiable(correct)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(posterior_BS.scatter_add_(1, senones_B[:, None], torch.full_like(own_B1, -1)))
        return loss_B.mean(), correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (difference_BS,) = ctx.saved_tensors
        return difference_BS * (grad / len(difference_BS)), None
