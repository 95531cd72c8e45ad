"""What the processes of a replica do together, as each of them sees it.

They compute the same minibatch at the same time, each with its slice of the model. Which one, the first draws and tells
the others; likewise when an epoch begins, and at what rate. Nothing else is agreed upon: each pushes its own slice when
the server's partition of it is free, and two members may be a version apart, as the machines of a DistBelief replica.

The pool has a row of states for each member's slice: a minibatch is used as soon as one slice of it is in a published
version, and ended when all members have done with theirs.

Axes: G members, M minibatches of an epoch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from speech3.engine.ledger import Ledger
from speech3.engine.pool import Pool
from speech3.engine.world import REFUSED, STALE, USED, WAITING, Rate

_EVER = timedelta(days=365)  # a group rests in a collective; the coordinator looks after it, no clock


@dataclass(frozen=True)
class Group:
    """A member's view; it is the process's default group of `torch.distributed`, by gloo, on GPUs by NCCL as well."""

    rank: int
    size: int

    def meet(self, store: Path, device: torch.device) -> None:
        """Wait for the others, at a file that is not there yet."""
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", init_method=store.as_uri(), rank=self.rank,
            world_size=self.size, timeout=_EVER,
        )  # fmt: skip

    def orders(self, first: Iterator[Rate], epoch: np.ndarray) -> Iterator[Rate]:
        """The learning rates of the epochs that the first member hears of; work is done between two of them.

        Parameters
        ----------
        epoch
            (1,), where a member says which it is at work on; the first does so itself.
        """
        if self.rank == 0:
            for rate in first:
                dist.broadcast(torch.tensor(astuple(rate), dtype=torch.float64), 0)
                yield rate
                dist.barrier()
        while self.rank:
            told = torch.zeros(len(astuple(Rate(0, 0, 0))), dtype=torch.float64)
            dist.broadcast(told, 0)
            base, number, minibatches, warmup, decay, last = told.tolist()
            epoch[0] = number
            yield Rate(base, int(number), int(minibatches), warmup, decay, int(last))
            epoch[0] = 0
            dist.barrier()

    def pool(self, pool: Pool) -> Pool:
        """From which all members draw the same minibatches."""
        return GroupPool(pool, self)

    def norm(self, g: Sequence[Tensor]) -> Tensor:
        """Of the gradient of which every member has a part."""
        square = torch.nn.utils.get_total_norm(g).square()
        dist.all_reduce(square)
        return square.sqrt()


class GroupPool(Pool):
    """Of a member: the first one draws, and all note in their row that the minibatch is out."""

    def __init__(self, pool: Pool, group: Group) -> None:
        super().__init__(pool.ledger, pool.cursor, pool.lock)
        self.starts_R, self.group = pool.starts_R, group

    def draw(self, shard: int, after: int | None = None) -> int | None:
        """See `Pool.draw`."""
        drawn = super().draw(shard, after) if self.group.rank == 0 else None
        told = torch.tensor(-1 if drawn is None else drawn)
        dist.broadcast(told, 0)
        number = int(told)
        if number < 0:
            return None
        self.states_M[number] = shard + 1
        return number


def combined(ledgers: Sequence[Ledger]) -> Ledger:
    """Of the whole model: a minibatch is used if any member's slice is, dropped if all are; else out, or waiting."""

    def rows(name: str) -> np.ndarray:
        return np.stack([getattr(ledger, name) for ledger in ledgers])

    states_GM = rows("states_M")
    used_M, dropped_GM = (states_GM == USED).any(0), np.isin(states_GM, (STALE, REFUSED))
    wrote_1M = rows("frames_M").argmax(0)[None]  # all that have, wrote the same
    frames_M, loss_M, correct_M = (
        np.take_along_axis(rows(name), wrote_1M, 0)[0] for name in ("frames_M", "loss_M", "correct_M")
    )
    return Ledger(
        np.where(used_M, USED, states_GM.max(0)), frames_M, loss_M, correct_M, dropped_GM.sum(0),
        rows("staleness_M").max(0),
    )  # fmt: skip


def give_back(pools: Sequence[Pool], shard: int) -> int:
    """What a dead group had out waits again, unless a slice of it is used; returns how many wait.

    The first pool is the one that is drawn from; all of the group's processes have ended.
    """
    with pools[0].lock:
        states_GM = np.stack([pool.states_M for pool in pools])
        out_M, used_M = (states_GM == shard + 1).any(0), (states_GM == USED).any(0)
        for pool in pools:
            pool.states_M[out_M & used_M] = USED
            pool.states_M[out_M & ~used_M] = WAITING
        waiting = np.flatnonzero(out_M & ~used_M)
        pools[0].reopen(waiting)
    return len(waiting)
