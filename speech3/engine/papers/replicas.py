"""Replicas: groups of processes, each with a slice of a large model (Dean et al. 2012; backend shared).

The members of a group compute the same minibatch at the same time, each with its slice of the model. The first member
draws it and broadcasts its number; likewise it broadcasts when an epoch begins, and its learning rate. Pushes are not
coordinated: each member pushes its own slice when the server's partition of it is free, so two members may be a version
apart, like the machines of a DistBelief replica. Each member's server has its own minibatch states.

Axes: K all values of a model or of a member's slice of it, P of them parameters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from speech3.engine.flat import Flat, flatten
from speech3.engine.interface import BuildOn, Rate, WorkerParts
from speech3.runtime import end_with_parent

_EVER = timedelta(days=365)


@dataclass(frozen=True)
class Group:
    """A member's view; it is the process's default group of `torch.distributed`, over gloo, and NCCL on GPUs."""

    rank: int
    size: int

    def join(self, store: Path, device: torch.device) -> None:
        """Join the group, waiting for the other members; `store` is a path that does not exist yet."""
        kind = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # A member rests in a collective between epochs; the coordinator watches it, so no timeout is needed.
        dist.init_process_group(kind, store.as_uri(), _EVER, world_size=self.size, rank=self.rank)

    def orders(self, first: Iterator[Rate], epoch: np.ndarray) -> Iterator[Rate]:
        """Yield the learning rate of each epoch, which the first member gets and broadcasts; the caller does the work.

        A member writes the epoch that it works on into `epoch`, (1,); the source `first` does so for the first member.
        """
        if self.rank == 0:
            for rate in first:
                dist.broadcast(torch.tensor(astuple(rate), dtype=torch.float64), 0)
                yield rate
                dist.barrier()
        while self.rank:
            values = torch.zeros(len(astuple(Rate(0, 0, 0))), dtype=torch.float64)
            dist.broadcast(values, 0)
            base, number, minibatches, warmup, decay, last = values.tolist()
            epoch[0] = number
            yield Rate(base, int(number), int(minibatches), warmup, decay, int(last))
            epoch[0] = 0
            dist.barrier()

    def agreed(self, number: int | None) -> int | None:
        values = torch.tensor(-1 if number is None else number)
        dist.broadcast(values, 0)
        return None if int(values) < 0 else int(values)

    def norm(self, g: Sequence[Tensor]) -> Tensor:
        square = torch.nn.utils.get_total_norm(g).square()
        dist.all_reduce(square)
        return square.sqrt()


@dataclass(frozen=True)
class Join:
    """Joins the other members of a replica, then makes the parts of one member."""

    build: BuildOn
    group: Group
    store: Path

    def __call__(self, device: str) -> WorkerParts:
        end_with_parent()  # while it waits for the other members it cannot check for the coordinator
        self.group.join(self.store, torch.device(device))
        return replace(self.build(device), group=self.group)


class Slices:
    """Maps the values of each member's flat vector to those of the whole model's; all models are flattened.

    A tensor of the whole model is the concatenation of the members' rows, or all have the same tensor, of which the
    first member's counts. `stretches` are for each member pairs of slices: of the whole vector, and of its own.
    Checkpoints, held-out evaluation and the warm start use the whole model; the members know only their slices.
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

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
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
    untrained = (
        [*(place.tensor.detach() for place in flat.untrained.views), flat.untrained.codes] if flat.untrained else []
    )
    return [*flat.views, *untrained]
