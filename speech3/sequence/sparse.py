"""The total probability of the denominator graph by PyTorch's sparse products: the reference, and the path to CUDA.

The same recursion as in `forward_backward`, written so that autograd finds the gradient by itself, in any precision.

Axes: T frames, S pdfs, J states, B chunks.
"""

import warnings

import torch
from torch import Tensor

from speech3.sequence.denominator import Denominator


def denominator_log_z(y_TSB: Tensor, graph: Denominator, leak: float) -> Tensor:
    """Log of the total probability of each chunk, (B,), differentiable.

    Parameters
    ----------
    y_TSB
        Outputs of the network, float32 or float64, on any device.
    """
    device, dtype = y_TSB.device, y_TSB.dtype

    def tensor(array) -> Tensor:  # type: ignore[no-untyped-def]
        return torch.from_numpy(array).to(device)

    size = (graph.num_states, graph.num_states)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that sparse matrices are a beta feature of PyTorch
        arcs_JJ = torch.sparse_csr_tensor(
            tensor(graph.in_ptr_J1), tensor(graph.in_src_A), tensor(graph.in_weight_A).to(dtype), size,
            check_invariants=False,
        )  # fmt: skip
    first_J, loop_J = tensor(graph.first_J).long(), tensor(graph.loop_J).long()
    loops_J1, initial_J1 = (tensor(array).to(dtype)[:, None] for array in (graph.loops_J, graph.initial_J))
    largest_TB = y_TSB.detach().amax(1)
    x_TSB = (y_TSB - largest_TB[:, None]).exp()
    alpha_JB, log_z_B = initial_J1.expand(-1, y_TSB.shape[2]), largest_TB.sum(0)
    for x_SB in x_TSB:
        pre_JB = x_SB[first_J] * (arcs_JJ @ alpha_JB) + x_SB[loop_J] * (loops_J1 * alpha_JB)
        total_B = pre_JB.sum(0)
        alpha_JB, log_z_B = pre_JB / total_B + leak * initial_J1, log_z_B + total_B.log()
    return log_z_B
