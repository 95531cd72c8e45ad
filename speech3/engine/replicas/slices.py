"""The flat vector of a model whose tensors are split over a group, each member's slice the rows that it owns.

A checkpoint, a held-out evaluation and the warm start know the whole model alone; the members know their slices.

Axes: K all values of a model or of a member's part of it, P of them parameters.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from speech3.engine.flat import flatten, not_trained, trained


class Slices:
    """Where in the whole model's flat vector lie the values of each member's.

    Parameters
    ----------
    whole, members
        The whole model, and the same after it was split for each member. A tensor of the one has the rows of the
        others one after another, or all have the same: that of the first counts then. They are flattened.

    Attributes
    ----------
    whole, members
        Values and parameters (K, P) of their flat vectors.
    stretches
        For each member, of the whole vector and of its own.
    """

    def __init__(self, whole: nn.Module, members: Sequence[nn.Module]) -> None:
        self.whole = _sizes(whole)
        self.members = [_sizes(member) for member in members]
        self.stretches: list[list[tuple[slice, slice]]] = [[] for _ in members]
        for tensor, *slices in zip(_tensors(whole), *map(_tensors, members), strict=True):
            same = all(each.shape == tensor.shape for each in slices)
            sizes = [each.numel() for each in slices]
            if not same and sum(sizes) != tensor.numel():
                raise ValueError(f"slices of {[tuple(each.shape) for each in slices]} are not {tuple(tensor.shape)}")
            starts = [0] * len(slices) if same else [start for start, _ in pairwise(accumulate(sizes, initial=0))]
            for found, each, start in zip(self.stretches, slices, starts, strict=True):
                first, own = tensor.storage_offset() + start, each.storage_offset()
                found.append((slice(first, first + each.numel()), slice(own, own + each.numel())))

    def take(self, vector: Tensor) -> list[Tensor]:
        """Each member's part of all values (K,), or of a slot of the parameters (P,)."""
        parts = []
        for (values, parameters), stretches in zip(self.members, self.stretches, strict=True):
            part = vector.new_zeros(values if len(vector) == self.whole[0] else parameters)
            for there, here in stretches:
                if there.stop <= len(vector):
                    part[here] = vector[there]
            parts.append(part)
        return parts

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """What `take` took apart, in the memory of the CPU."""
        values, parameters = self.whole
        vector = torch.zeros(values if len(parts[0]) == self.members[0][0] else parameters)
        for part, stretches in reversed(list(zip(parts, self.stretches, strict=True))):  # the first has the last word
            for there, here in stretches:
                if there.stop <= len(vector):
                    vector[there] = part[here].cpu()
        return vector


def _sizes(model: nn.Module) -> tuple[int, int]:
    flat = flatten(model)
    return flat.vector_K.numel(), flat.num_parameters


def _tensors(model: nn.Module) -> list[Tensor]:
    """Those of the flat vector, in its order."""
    return [*(parameter.detach() for parameter in trained(model)), *not_trained(model)]
