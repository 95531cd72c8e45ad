"""All parameters of a model in one flat float32 vector, so that a step, a push or a checkpoint is one operation.

Axes: P all parameters, with the padding between them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGN = 16  # floats: every parameter starts on a cache line


@dataclass(frozen=True, eq=False)
class Flat:
    """A flat vector and its views, one in the shape of each parameter. Padding is zero and stays zero."""

    vector_P: Tensor
    views: tuple[Tensor, ...]

    def zeros_like(self) -> "Flat":
        """Another vector of the same layout, all zero: an optimizer slot."""
        vector_P = torch.zeros_like(self.vector_P)
        return Flat(vector_P, tuple(_view(vector_P, int(view.storage_offset()), view) for view in self.views))


def flatten(model: nn.Module) -> Flat:
    """Move the model's parameters into one vector; the model computes with views of it from now on.

    Raises
    ------
    ValueError
        A parameter is not float32.
    """
    parameters = list(model.parameters())
    offsets, size = [], 0
    for parameter in parameters:
        if parameter.dtype != torch.float32:
            raise ValueError(f"parameters must be float32, not {parameter.dtype}")
        offsets.append(size)
        size += parameter.numel() + -parameter.numel() % _ALIGN
    vector_P = torch.zeros(size, device=parameters[0].device if parameters else None)
    views = []
    for parameter, offset in zip(parameters, offsets, strict=True):
        view = _view(vector_P, offset, parameter)
        view.copy_(parameter.detach())
        parameter.data = view
        views.append(view)
    return Flat(vector_P, tuple(views))


def _view(vector_P: Tensor, offset: int, like: Tensor) -> Tensor:
    return vector_P[offset : offset + like.numel()].view(like.shape)
