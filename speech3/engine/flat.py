"""All parameters of a model in one flat float32 vector, so that a step, a push or a checkpoint is one operation.

After the parameters come the frozen parameters (``requires_grad=False``) and the model's buffers (such as the running
means of batch normalisation), if they are float32: the model computes with them, but no gradient changes them.

Axes: K all values: first the P values of the trained parameters and the padding between them, then the others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from speech3.errors import Speech3Error

_ALIGN = 16  # floats: every parameter starts on a cache line


@dataclass(frozen=True, eq=False)
class Flat:
    """A flat vector and its views, one for each trained parameter, in its shape. Padding is zero and stays zero."""

    vector_K: Tensor
    views: tuple[Tensor, ...]
    num_parameters: int  # P

    @property
    def parameters_P(self) -> Tensor:
        """The part that gradients change."""
        return self.vector_K[: self.num_parameters]

    @property
    def buffers(self) -> Tensor:
        """The rest, which no gradient changes: (K - P,)."""
        return self.vector_K[self.num_parameters :]

    def part(self, bounds: slice) -> "Flat":
        """The values within `bounds`, without views."""
        parameters = max(0, min(self.num_parameters - bounds.start, bounds.stop - bounds.start))
        return Flat(self.vector_K[bounds], (), parameters)

    def zeros_like(self) -> "Flat":
        """Another vector with the same layout of the parameters, all zero, without buffers: an optimizer slot."""
        vector_P = torch.zeros_like(self.parameters_P)
        views = tuple(_view(vector_P, int(view.storage_offset()), view) for view in self.views)
        return Flat(vector_P, views, self.num_parameters)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that gradients change, in the order of the flat vector."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def frozen_and_buffers(model: nn.Module) -> list[Tensor]:
    """The float32 tensors after the trained parameters in the flat vector: frozen parameters and buffers."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    return [tensor for tensor in [*frozen, *model.buffers()] if tensor.dtype == torch.float32]


def flatten(model: nn.Module) -> Flat:
    """Move the model's parameters and buffers into one vector, and replace them in the model by views of it.

    Raises
    ------
    ValueError
        A trained parameter is not float32.
    """
    parameters, buffers = trained(model), frozen_and_buffers(model)
    offsets, size, num_parameters = [], 0, 0
    for index, tensor in enumerate([*parameters, *buffers]):
        if tensor.dtype != torch.float32:
            raise ValueError(f"parameters must be float32, not {tensor.dtype}")
        offsets.append(size)
        size += tensor.numel() + -tensor.numel() % _ALIGN
        num_parameters = size if index < len(parameters) else num_parameters
    vector_K = torch.zeros(size, device=parameters[0].device if parameters else None)
    views = []
    for tensor, offset in zip([*parameters, *buffers], offsets, strict=True):
        view = _view(vector_K, offset, tensor)
        view.copy_(tensor.detach())
        tensor.data = view
        views.append(view)
    return Flat(vector_K, tuple(views[: len(parameters)]), num_parameters)


def partition_bounds(flat: Flat, count: int) -> list[slice]:
    """Divide a vector into partitions of whole cache lines, of nearly equal size; the last also has the buffers.

    Raises
    ------
    Speech3Error
        There are fewer cache lines of parameters than partitions.
    """
    lines = flat.num_parameters // _ALIGN
    if count > max(1, lines):
        raise Speech3Error(
            f"training.asgd.partitions={count}: the model has only {flat.num_parameters} parameters, and a partition "
            f"takes at least {_ALIGN}; use {max(1, lines)} at most"
        )
    bounds = [lines * number // count * _ALIGN for number in range(count)]
    return [slice(begin, end) for begin, end in zip(bounds, [*bounds[1:], flat.vector_K.numel()], strict=True)]


def wait_for_gpus(*tensors: Tensor) -> None:
    """Wait until the work that made these tensors has finished, so that other processes may see its results.

    The engine does everything on the current stream of each GPU; it does not wait for copies on other streams.
    """
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _view(vector: Tensor, offset: int, like: Tensor) -> Tensor:
    return vector[offset : offset + like.numel()].view(like.shape)
