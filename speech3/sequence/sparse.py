"""Total probability and expected accuracy of a graph by PyTorch's sparse products: the reference, and the path to CUDA.

The recursion is that of `forward_backward`, written so that autograd computes the gradient, in any precision. Only the
product with the arcs has its own backward pass: the product with the transposed matrix, which the graph already has as
its arcs sorted by the state that they leave. Autograd would transpose the matrix itself, which on a GPU would convert
it again in every frame.

Axes: T frames, S pdfs, J states, B chunks.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speech3.sequence.graph import Graph


def denominator_log_z(y_TSB: Tensor, graph: Graph, leak: float) -> Tensor:
    """Log of the total probability of each chunk, (B,), differentiable.

    Parameters
    ----------
    y_TSB
        Outputs of the network, float32 or float64, on any device.
    """
    on = _on(graph, y_TSB.device, y_TSB.dtype)
    largest_TB = y_TSB.detach().amax(1)
    x_TSB = (y_TSB - largest_TB[:, None]).exp()
    alpha_JB, log_z_B = on.initial_J1.expand(-1, y_TSB.shape[2]), largest_TB.sum(0)
    for x_SB in x_TSB:
        arrived_JB = _Product.apply(alpha_JB, on.into_JJ, on.out_of_JJ)
        pre_JB = x_SB[on.first_J] * arrived_JB + x_SB[on.loop_J] * (on.loops_J1 * alpha_JB)
        total_B = pre_JB.sum(0)
        alpha_JB, log_z_B = pre_JB / total_B + leak * on.initial_J1, log_z_B + total_B.log()
    return log_z_B


def expected_accuracy(y_TSB: Tensor, a_TSB: Tensor, graph: Graph, leak: float) -> Tensor:
    """Expected accuracy of the paths of each chunk, (B,), differentiable in `y_TSB`, which must require a gradient.

    Parameters
    ----------
    a_TSB
        Accuracy of each pdf in each frame.
    """
    log_z_B = denominator_log_z(y_TSB, graph, leak)
    (posterior_TSB,) = torch.autograd.grad(log_z_B.sum(), y_TSB, create_graph=True)
    return (posterior_TSB * a_TSB).sum((0, 1))


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """A graph's arrays on a device; its arcs sorted by the state that they enter, and by the state that they leave."""

    into_JJ: Tensor
    out_of_JJ: Tensor
    first_J: Tensor
    loop_J: Tensor
    loops_J1: Tensor
    initial_J1: Tensor


@lru_cache(maxsize=2)  # a run has one graph; its copy stays on the device
def _on(graph: Graph, device: torch.device, dtype: torch.dtype) -> _OnDevice:
    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    def matrix(ptr_J1: np.ndarray, state_A: np.ndarray, weight_A: np.ndarray) -> Tensor:
        size = (graph.num_states, graph.num_states)
        return torch.sparse_csr_tensor(
            tensor(ptr_J1.astype(state_A.dtype)), tensor(state_A), tensor(weight_A).to(dtype), size,
            check_invariants=False,
        )  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's sparse matrices are a beta feature
        into_JJ = matrix(graph.in_ptr_J1, graph.in_src_A, graph.in_weight_A)
        out_of_JJ = matrix(graph.out_ptr_J1, graph.out_dst_A, graph.out_weight_A)
    loops_J1, initial_J1 = (tensor(array).to(dtype)[:, None] for array in (graph.loops_J, graph.initial_J))
    return _OnDevice(
        into_JJ, out_of_JJ, tensor(graph.first_J).long(), tensor(graph.loop_J).long(), loops_J1, initial_J1
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_JB: Tensor, matrix_JJ: Tensor, transposed_JJ: Tensor) -> Tensor:
        ctx.save_for_backward(matrix_JJ, transposed_JJ)
        return matrix_JJ @ x_JB

    @staticmethod
    def backward(ctx: Any, grad_JB: Tensor) -> tuple[Tensor, None, None]:
        matrix_JJ, transposed_JJ = ctx.saved_tensors
        return _Product.apply(grad_JB, transposed_JJ, matrix_JJ), None, None
