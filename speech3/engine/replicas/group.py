"""The group of processes of one replica, from one member's view.

The members compute the same minibatch at the same time, each with its slice of the model. The first member draws it and
broadcasts its number; likewise it broadcasts when an epoch begins, and its learning rate. Pushes are not coordinated:
each member pushes its own slice when the server's partition of it is free, so two members may be a version apart, like
the machines of a DistBelief replica.

Each member's server has its own ledger: a minibatch is used as soon as it is in a published version of one slice, and
dropped when all members' pushes of it were.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from speech3.engine.world import BuildOn, Parts, Rate
from speech3.runtime import end_with_parent

_EVER = timedelta(days=365)  # a group rests in a collective; the coordinator watches it, so no timeout is needed


@dataclass(frozen=True)
class Group:
    """A member's view; it is the process's default group of `torch.distributed`, over gloo, and NCCL on GPUs."""

    rank: int
    size: int

    def join(self, store: Path, device: torch.device) -> None:
        """Join the group, waiting for the other members; `store` is a path that does not exist yet."""
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", init_method=store.as_uri(), rank=self.rank,
            world_size=self.size, timeout=_EVER,
        )  # fmt: skip

    def orders(self, first: Iterator[Rate], epoch: np.ndarray) -> Iterator[Rate]:
        """Yield the learning rate of each epoch, which the first member gets and broadcasts; the caller does the work.

        Parameters
        ----------
        epoch
            (1,), where a member writes the epoch that it works on; the source `first` does so for the first member.
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
        """The number of the minibatch that the first member has drawn; those that the others pass are ignored."""
        values = torch.tensor(-1 if number is None else number)
        dist.broadcast(values, 0)
        return None if int(values) < 0 else int(values)

    def norm(self, g: Sequence[Tensor]) -> Tensor:
        """The norm of the whole gradient, of which every member has a slice."""
        square = torch.nn.utils.get_total_norm(g).square()
        dist.all_reduce(square)
        return square.sqrt()


@dataclass(frozen=True)
class Join:
    """Joins the other members of a replica, then makes the parts of one member."""

    build: BuildOn
    group: Group
    store: Path

    def __call__(self, device: str) -> Parts:
        """Make the parts on the member's device."""
        end_with_parent()  # while it waits for the other members it cannot check for the coordinator
        self.group.join(self.store, torch.device(device))
        return replace(self.build(device), group=self.group)
