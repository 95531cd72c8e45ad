"""What every world is handed, and what it tells: minibatches in, progress out.

A world computes the minibatches of an epoch that are still waiting, by one worker or many. What drives it is an
iterator, so the run that it serves decides between two items whether to save, to look or to stop.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate, zip_longest
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from speech3.engine.pool import Pool
    from speech3.engine.recorded import Recorder

Loss = Callable[[Any, Any], tuple[Tensor, Tensor]]  # outputs, targets -> mean loss, number classified right

WAITING, USED, STALE, REFUSED = 0, -1, -2, -3  # what became of a minibatch; s + 1: it is out with shard s


class Source(Protocol):
    """Where minibatches come from; one is identified by (epoch, number) alone."""

    @property
    def rows(self) -> tuple[range, ...] | None:
        """Numbers of minibatches that one worker is to compute in order, if it can; None: no order matters.

        A recurrent model carries its state from each to the next.
        """

    def __len__(self) -> int:
        """Minibatches in an epoch."""

    def draw(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Inputs and targets, on the model's device; `len` of the targets is how many the loss is the mean of."""


class Group(Protocol):
    """The processes that share a model, as one of them sees them (`speech3.engine.replicas.group`)."""

    def norm(self, g: Sequence[Tensor]) -> Tensor:
        """Of the gradient of which every member has a part."""

    def pool(self, pool: "Pool") -> "Pool":
        """From which all members draw the same minibatches."""

    def orders(self, first: "Iterator[Rate]", epoch: np.ndarray) -> "Iterator[Rate]":
        """The learning rates of the epochs that the first member hears of."""


@dataclass(frozen=True, eq=False)
class Parts:
    """What a worker computes with.

    Attributes
    ----------
    max_norm
        Length to which a minibatch's gradient is cut down if it is longer.
    group
        The processes that share the model, where one has but a slice of it.
    betas
        Of AdamW, by which every worker steps its own parameters; None: by SGD.
    autocast
        Type in which the model computes its products (`torch.autocast`); parameters, loss and gradients are float32.
    recorder
        Replays forward and backward passes as CUDA graphs.
    """

    model: nn.Module
    source: Source
    loss: Loss
    seed: int
    max_norm: float = math.inf
    group: Group | None = None
    betas: tuple[float, float] | None = None
    autocast: torch.dtype | None = None
    recorder: "Recorder | None" = None

    @property
    def device(self) -> torch.device:
        """On which the model is."""
        return next(self.model.parameters()).device


BuildOn = Callable[[str], Parts]  # from a device, once in every process; picklable


@dataclass(frozen=True)
class Rate:
    """The learning rate in one epoch, by the number of the minibatch, whoever draws it.

    Attributes
    ----------
    warmup
        Epochs over which it rises from a tenth, linearly.
    decay
        Factor by which it falls in an epoch, exponentially.
    last
        The epoch at whose end it is zero, along half a wave of a cosine; 0: it is not.
    """

    base: float
    epoch: int  # from 1
    minibatches: int
    warmup: float = 0.0
    decay: float = 1.0
    last: int = 0

    def __call__(self, number: int) -> float:
        """For minibatch `number`, from 0."""
        passed = self.epoch - 1 + number / self.minibatches
        rise = min(1.0, 0.1 + 0.9 * passed / self.warmup) if self.warmup else 1.0
        fall = 0.5 + 0.5 * math.cos(math.pi * min(1.0, passed / self.last)) if self.last else 1.0
        return self.base * rise * fall * self.decay**passed


@dataclass(frozen=True)
class ShardReport:
    """What a shard did in the epoch: minibatches, seconds by what they went into, syncs put off for a busy server.

    A draw is the wait for a minibatch from the pool; that of the data in it is part of computing.
    """

    minibatches: int = 0
    compute_s: float = 0.0
    sync_s: float = 0.0
    wait_s: float = 0.0
    busy: int = 0
    draw_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All that it has an account of."""
        return self.compute_s + self.sync_s + self.wait_s + self.draw_s

    @property
    def sync_share(self) -> float:
        """Share of its time that it spent in syncs and waiting for them."""
        return (self.sync_s + self.wait_s) / self.total_s if self.total_s else 0.0

    def __add__(self, other: "ShardReport") -> "ShardReport":
        """Two parts of one epoch."""
        return ShardReport(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def shares(reports: Sequence[ShardReport]) -> tuple[float, ...]:
    """Share of the minibatches that each shard did."""
    total = sum(report.minibatches for report in reports)
    return tuple(report.minibatches / total if total else 0.0 for report in reports)


@dataclass(frozen=True)
class Progress:
    """How far an epoch is, counted from where the world took it up; what is counted here is in the parameters.

    Attributes
    ----------
    seconds
        Of training: held-out evaluations and starting up are not in it. Virtual in a simulation.
    staleness
        Used minibatches by the staleness of the push that brought them, from 0.
    up, down
        Bytes that all workers sent, and that came back to them; 0 where nothing is sent.
    missed
        How often a partition of the server did not take a minibatch that is used, for others did.
    note
        What a person should know of how it ended; empty: nothing.
    """

    used: int = 0
    stale: int = 0
    refused: int = 0
    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    seconds: float = 0.0
    versions: int = 0
    returned: int = 0
    restarts: int = 0
    up: int = 0
    down: int = 0
    missed: int = 0
    staleness: tuple[int, ...] = ()
    shards: tuple[ShardReport, ...] = ()
    note: str = ""

    @property
    def ended(self) -> int:
        """Minibatches that are used or dropped."""
        return self.used + self.stale + self.refused

    def __add__(self, other: "Progress") -> "Progress":
        """Two parts of one epoch."""

        def sums(mine: Sequence[Any], others: Sequence[Any], nothing: Any) -> tuple[Any, ...]:
            return tuple(a + b for a, b in zip_longest(mine, others, fillvalue=nothing))

        values = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)[:13]}
        return Progress(
            **values, staleness=sums(self.staleness, other.staleness, 0),
            shards=sums(self.shards, other.shards, ShardReport()), note=other.note or self.note,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A whole state: parameters, optimizer slots, what became of each minibatch, and the progress that goes with it."""

    tensors: dict[str, Tensor]
    states_M: np.ndarray
    progress: Progress

    @property
    def finite(self) -> bool:
        """No value is infinite or not a number, of buffers and slots neither."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())


class World(Protocol):
    """Workers of one kind."""

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Compute every minibatch that waits (`states_M`, int32, by number), changing a copy of it."""

    def snapshot(self) -> Snapshot:
        """The newest whole state; nobody is stopped."""

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Take over a state between two epochs, reached in `seconds` of training; a slot that is missing is zero."""

    def close(self) -> None:
        """End processes, give memory back."""


def turns(states_M: np.ndarray, workers: int, rows: Sequence[range] | None) -> list[tuple[int, list[int]]]:
    """Minibatches that workers compute at the same time, one each, where all step together.

    They are neighbours; with rows each worker has a stretch of its own, so that it can carry its state on.

    Returns
    -------
    turns
        How many minibatches of the epoch come before, which is what the learning rate goes by; the minibatches.
    """
    waiting = np.flatnonzero(states_M == WAITING)
    if rows is None or workers == 1:
        groups = [waiting[start : start + workers].tolist() for start in range(0, len(waiting), workers)]
        return [(group[0], group) for group in groups]
    columns = zip_longest(*np.array_split(waiting, workers))
    groups = [[int(number) for number in column if number is not None] for column in columns]
    before = accumulate(map(len, groups), initial=len(states_M) - len(waiting))
    return list(zip(before, groups, strict=False))


def position(number: int, rows: Sequence[range] | None, workers: int) -> int:
    """Minibatches of the epoch that are done, about, when this one is computed: what its learning rate goes by.

    Workers are in as many rows at a time, so the first of a row is by far not as late as its number.
    """
    if rows is None or workers == 1:
        return number
    row = bisect_right(rows, number, key=lambda row: row.start) - 1
    first = row // workers * workers  # of the rows that are computed side by side
    beside = min(workers, len(rows) - first)
    return rows[first].start + (number - rows[row].start) * beside + row - first


def minibatch_seed(seed: int, epoch: int, number: int) -> int:
    """Seed of the random numbers (dropout) of one minibatch: the same whoever computes it, and after a restart."""
    return ((seed * 1_000_003 + epoch) * 1_000_003 + number) & ((1 << 63) - 1)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's own generator of a device; torch.manual_seed looks for every accelerator, which takes 0.1 ms."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)  # torch.cuda.manual_seed's is the current GPU's
    else:
        torch.default_generator.manual_seed(seed)
