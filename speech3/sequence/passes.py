"""Both passes over a graph for the outputs of a network: compiled on the CPU, sparse products on other devices.

Axes: B chunks, T output frames of a chunk, S pdfs.
"""

from typing import Any

import torch
from torch import Tensor

from speech3.sequence import forward_backward, sparse
from speech3.sequence.graph import Graph


def total(y_BTS: Tensor, graph: Graph, leak: float) -> tuple[Tensor, Tensor]:
    """Log of the total probability of each chunk, (B,) float64, and its gradient, the posteriors (B, T, S)."""
    y_TSB = y_BTS.detach().permute(1, 2, 0).contiguous()
    if _compiled(y_TSB):
        largest_T1B = y_TSB.amax(1, keepdim=True)
        log_z_B, posterior_TSB = forward_backward.denominator_posteriors(
            (y_TSB - largest_T1B).exp_().numpy(), graph, leak
        )
        log_z = torch.from_numpy(log_z_B) + largest_T1B.sum((0, 1)).double()
        return log_z, torch.from_numpy(posterior_TSB).permute(2, 0, 1)
    with torch.enable_grad():
        y_TSB.requires_grad_()
        log_z = sparse.denominator_log_z(y_TSB, graph, leak)
        (posterior,) = torch.autograd.grad(log_z.sum(), y_TSB)
    return log_z.detach().double(), posterior.permute(2, 0, 1)


def accuracy(y_BTS: Tensor, a_BTS: Tensor, graph: Graph, leak: float) -> tuple[Tensor, Tensor]:
    """Expected accuracy of the paths of each chunk, (B,) float64, and its gradient (B, T, S).

    Parameters
    ----------
    a_BTS
        Accuracy of each pdf in each frame, of the type of `y_BTS`.
    """
    y_TSB, a_TSB = (each.detach().permute(1, 2, 0).contiguous() for each in (y_BTS, a_BTS))
    if _compiled(y_TSB):
        x_TSB = (y_TSB - y_TSB.amax(1, keepdim=True)).exp_()
        sum_B, gradient_TSB = forward_backward.expected_accuracy(x_TSB.numpy(), a_TSB.numpy(), graph, leak)
        return torch.from_numpy(sum_B), torch.from_numpy(gradient_TSB).permute(2, 0, 1)
    with torch.enable_grad():
        y_TSB.requires_grad_()
        sum_of_B = sparse.expected_accuracy(y_TSB, a_TSB, graph, leak)
        (gradient,) = torch.autograd.grad(sum_of_B.sum(), y_TSB)
    return sum_of_B.detach().double(), gradient.permute(2, 0, 1)


def _compiled(y_TSB: Tensor) -> bool:
    return y_TSB.device.type == "cpu"


class Attached(torch.autograd.Function):
    """Values (B,) that were computed along with their gradients (B, T, S): `apply(outputs, values, gradients)`."""

    @staticmethod
    def forward(ctx: Any, y_BTS: Tensor, value_B: Tensor, gradient_BTS: Tensor) -> Tensor:
        ctx.save_for_backward(gradient_BTS)
        return value_B.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_B: Tensor) -> tuple[Tensor, None, None]:
        (gradient_BTS,) = ctx.saved_tensors
        return grad_B.to(gradient_BTS.dtype)[:, None, None] * gradient_BTS, None, None
