"""Splitting the flat vector of a model into the slices of a replica's members, and joining them.

Each member's slice of a tensor is the rows that it owns. Checkpoints, held-out evaluation and the warm start use the
whole model; the members know only their slices.

Axes: K all values of a model or of a member's slice of it, P of them parameters.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten


class Slices:
    """Maps the values of each member's flat vector to those of the whole model's.

    Parameters
    ----------
    whole, members
        The whole model, and the model split for each member. A tensor of the whole model is the concatenation of the
        members' rows, or all have the same tensor, of which the first member's counts. All models are flattened.

    Attributes
    ----------
    whole, members
        Numbers of values and parameters (K, P) of their flat vectors.
    stretches
        For each member, pairs of slices: of the whole vector, and of its own.
    """

    def __init__(self, whole: nn.Module, members: Sequence[nn.Module]) -> None:
        all_of_it, slices_of_it = flatten(whole), [flatten(member) for member in members]
        self.whole, self.members = _sizes(all_of_it), [_sizes(each) for each in slices_of_it]
        self.stretches: list[list[tuple[slice, slice]]] = [[] for _ in members]
        for tensor, *slices in zip(_tensors(all_of_it), *map(_tensors, slices_of_it), strict=True):
            same = all(each.shape == tensor.shape for each in slices)
            sizes = [each.numel() for each in slices]
            if not same and sum(sizes) != tensor.numel():
                raise ValueError(f"slices of {[tuple(each.shape) for each in slices]} are not {tuple(tensor.shape)}")
            starts = [0] * len(slices) if same else [start for start, _ in pairwise(accumulate(sizes, initial=0))]
            for found, each, start in zip(self.stretches, slices, starts, strict=True):
                first, own = tensor.storage_offset() + start, each.storage_offset()
                found.append((slice(first, first + each.numel()), slice(own, own + each.numel())))

    def take(self, vector: Tensor) -> list[Tensor]:
        """Split a vector of all values (K,), or an optimizer slot (P,), into the members' slices."""
        parts = []
        for (values, parameters), stretches in zip(self.members, self.stretches, strict=True):
            part = vector.new_zeros(values if len(vector) == self.whole[0] else parameters)
            for there, here in stretches:
                if there.stop <= len(vector):
                    part[here] = vector[there]
            parts.append(part)
        return parts

    def together(self, parts: Sequence[Tensor]) -> Tensor:
        """Join what `take` split, in the memory of the CPU."""
        values, parameters = self.whole
        vector = torch.zeros(values if len(parts[0]) == self.members[0][0] else parameters)
        for part, stretches in reversed(list(zip(parts, self.stretches, strict=True))):  # the first member's values win
            for there, here in stretches:
                if there.stop <= len(vector):
                    vector[there] = part[here].cpu()
        return vector


def _sizes(flat: Flat) -> tuple[int, int]:
    return flat.vector_K.numel(), flat.num_parameters


def _tensors(flat: Flat) -> list[Tensor]:
    """The tensors of the flat vector, in its order."""
    rest = [*(place.tensor.detach() for place in flat.rest.views), flat.rest.codes] if flat.rest else []
    return [*flat.views, *rest]
