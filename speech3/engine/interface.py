"""The interface of backends: what every backend is given, and the progress that it reports.

A backend computes those minibatches of an epoch that are still waiting, with one worker or many. It is an iterator over
progress, so its caller can save, evaluate or stop between two items.

Axes: M minibatches of an epoch.
"""

import copy
import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import accumulate, zip_longest
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from speech3.errors import Speech3Error

Proximal = Callable[[float], None]  # changes the parameters after each of a worker's own steps; gets the learning rate
Loss = Callable[[Any, Any], tuple[Tensor, Tensor]]  # outputs, targets -> mean loss, number classified correctly
Results = tuple[Tensor, tuple[Tensor, ...]]  # loss, number correct and perhaps gradient norm (one tensor); gradient
Passes = Callable[[Any, Any], Results]  # starts both passes of a minibatch, given inputs and targets

Rows = Sequence[range] | None  # numbers of minibatches that one worker should compute in order (`Source.rows`)

NUMBERED = -1  # a value of `Rate.last`
WAITING, USED, STALE, REFUSED = 0, -1, -2, -3  # states of a minibatch; s + 1: it is assigned to shard s


class Source(Protocol):
    """A source of minibatches; a minibatch is identified by (epoch, number) alone."""

    @property
    def rows(self) -> "Rows":
        """Numbers of minibatches that one worker should compute in order; None: the order does not matter.

        A recurrent model carries its state from each of them to the next.
        """

    def __len__(self) -> int:
        """Number of minibatches in an epoch."""

    def draw(self, epoch: int, number: int) -> tuple[Any, Any]:
        """Inputs and targets, on the model's device; the loss is a mean over `len` of the targets."""


def expect(source: Source, epoch: int, numbers: Sequence[int]) -> None:
    """Tell a source that reads ahead which minibatches this process will draw next, in this order."""
    if ahead_of(source):
        source.expect(epoch, numbers)  # type: ignore[attr-defined]


def ahead_of(source: Source) -> int:
    """Number of minibatches that a source reads before they are drawn."""
    return int(getattr(source, "ahead", 0))


class ReplicaGroup(Protocol):
    """The processes of a replica that share a model, from one member's view (`speech3.engine.papers.replicas`)."""

    @property
    def rank(self) -> int:
        """This member's number."""

    def norm(self, g: Sequence[Tensor]) -> Tensor:
        """The norm of the whole gradient, of which every member has a slice."""

    def agreed(self, number: int | None) -> int | None:
        """The number that the first member has drawn."""

    def orders(self, first: "Iterator[Rate]", epoch: np.ndarray) -> "Iterator[Rate]":
        """The learning rate of each epoch, which the first member sends to the others; `epoch` gets its number."""


@dataclass(frozen=True, eq=False)
class WorkerParts:
    """The parts that a worker computes with."""

    model: nn.Module
    source: Source
    loss: Loss
    seed: int  # seed from which the random numbers of every minibatch are derived
    max_norm: float = math.inf  # norm to which the gradient of a minibatch is clipped
    group: ReplicaGroup | None = None  # the processes that share the model, if each holds only a slice of it
    # The optimizer with which every worker updates its own parameters, by its name or as what it is made of
    # (`speech3.engine.optimizers.OwnOptimizer`); the betas are those of AdamW and Muon.
    optimizer: Literal["sgd", "adamw", "muon"] | Any = "sgd"
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.0
    # Type in which the model computes its products (`torch.autocast`); parameters, loss and gradients are float32.
    autocast: torch.dtype | None = None
    # Replays forward and backward passes as CUDA graphs (`speech3.engine.gradient`).
    cuda_graphs: Callable[[Passes, Any, Any, Hashable, Callable[[], Iterable[Tensor]]], Results] | None = None
    # Makes, for a model, the operation that follows each of a worker's own steps; None: there is none.
    proximal: Callable[[nn.Module], Proximal] | None = None
    # Names of modules that stay in evaluation mode during training, such as frozen batch normalisation.
    evaluated: tuple[str, ...] = ()
    skips: bool = False  # whether the model may leave out trained parameters in some minibatches
    # Makes the error for the user of an exception that the model raised with these inputs; None: it is not the user's.
    explained: Callable[[Exception, Any], Speech3Error] | None = None

    def begin_training(self) -> None:
        """Put the model into training mode, all but the modules `evaluated`."""
        self.model.train()
        for name in self.evaluated:
            self.model.get_submodule(name).training = False

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


BuildOn = Callable[[str], WorkerParts]  # makes the parts on a device, called once in every process; picklable


@dataclass(frozen=True)
class Rate:
    """The learning rate in one epoch: a function of the minibatch's number, whichever worker draws it.

    `last`: the number of epochs after which cosine decay reaches zero; 0: no cosine decay; `NUMBERED`: a call returns
    no learning rate but the minibatch's number over all epochs, by which the caller's own optimizer looks up its
    settings (`optimizers.Settings`).
    """

    base: float
    epoch: int  # from 1
    minibatches: int  # number of minibatches in an epoch
    warmup: float = 0.0  # epochs over which it rises linearly from a tenth of `base`
    decay: float = 1.0  # factor by which it decays in each epoch, continuously
    last: int = 0

    def __call__(self, number: int) -> float:
        """The learning rate for minibatch `number` (from 0)."""
        if self.last == NUMBERED:
            return float((self.epoch - 1) * self.minibatches + number)
        passed = self.epoch - 1 + number / self.minibatches
        rise = min(1.0, 0.1 + 0.9 * passed / self.warmup) if self.warmup else 1.0
        fall = 0.5 + 0.5 * math.cos(math.pi * min(1.0, passed / self.last)) if self.last else 1.0
        return self.base * rise * fall * self.decay**passed


@dataclass(frozen=True)
class ShardReport:
    """What a shard did in the epoch: minibatches, seconds by activity, and syncs that found the server busy.

    `draw_s` is the time to get a minibatch's number from the queue; reading its data is part of `compute_s`.
    """

    minibatches: int = 0
    compute_s: float = 0.0
    sync_s: float = 0.0
    wait_s: float = 0.0
    busy: int = 0
    draw_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.sync_s + self.wait_s + self.draw_s

    @property
    def sync_share(self) -> float:
        """Share of its time that the shard spent in syncs and waiting for them."""
        return (self.sync_s + self.wait_s) / self.total_s if self.total_s else 0.0

    def __add__(self, other: "ShardReport") -> "ShardReport":
        return ShardReport(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def shares(reports: Sequence[ShardReport]) -> tuple[float, ...]:
    total = sum(report.minibatches for report in reports)
    return tuple(report.minibatches / total if total else 0.0 for report in reports)


@dataclass(frozen=True)
class Progress:
    """Progress of an epoch since the backend began to work on it; what counts as used is in the parameters."""

    used: int = 0
    stale: int = 0
    refused: int = 0
    # Of the used minibatches: number of frames, sum of their losses, and number classified correctly.
    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    seconds: float = 0.0  # training time, without held-out evaluations and start-up; virtual in a simulation
    versions: int = 0  # number of published updates
    # Minibatches that dead workers returned, and workers that were replaced.
    returned: int = 0
    restarts: int = 0
    # Bytes that all workers sent and received; 0 where nothing is sent.
    up: int = 0
    down: int = 0
    missed: int = 0  # how often one partition of the server did not apply a minibatch that others applied
    left_out: int = 0  # frames of the used minibatches that the loss could not use; they are not in `frames`
    staleness: tuple[int, ...] = ()  # number of used minibatches for each staleness of their push, from 0
    shards: tuple[ShardReport, ...] = ()  # what each shard did
    note: str = ""  # a remark for the user on how the epoch ended; may be empty

    @property
    def ended(self) -> int:
        return self.used + self.stale + self.refused

    def __add__(self, other: "Progress") -> "Progress":
        def sums(mine: Sequence[Any], others: Sequence[Any], nothing: Any) -> tuple[Any, ...]:
            return tuple(a + b for a, b in zip_longest(mine, others, fillvalue=nothing))

        values: dict[str, Any] = {
            each.name: getattr(self, each.name) + getattr(other, each.name)
            for each in fields(self)
            if each.name not in ("staleness", "shards", "note")
        }
        values["staleness"] = sums(self.staleness, other.staleness, 0)
        values["shards"] = sums(self.shards, other.shards, ShardReport())
        return Progress(**values, note=other.note or self.note)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A consistent state: parameters, optimizer slots, the state of each minibatch, and the progress up to it."""

    tensors: dict[str, Tensor]
    states_M: np.ndarray
    progress: Progress

    @property
    def finite(self) -> bool:
        """Whether all values are finite, including buffers and slots."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())


class Backend(Protocol):
    """Workers of one kind, and the way in which they train together."""

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Compute every minibatch that is WAITING in `states_M` (int32), which is not modified."""

    def snapshot(self) -> Snapshot:
        """The newest consistent state; workers are not stopped."""

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Load a state that was reached after `seconds` of training; call between epochs. Missing slots become zero."""

    def close(self) -> None:
        """Stop processes and free memory."""


def turns(states_M: np.ndarray, workers: int, rows: Rows) -> list[tuple[int, list[int]]]:
    """Group the waiting minibatches into steps of synchronous training, with one minibatch per worker.

    The minibatches of a step have consecutive numbers; with rows, each worker has a stretch of the epoch of its own, so
    that it can carry the state of a recurrent model.

    Returns, for each step, the number of the epoch's minibatches that precede it, which determines the learning rate,
    and the numbers of its minibatches.
    """
    waiting = np.flatnonzero(states_M == WAITING)
    if rows is None or workers == 1:
        groups = [waiting[start : start + workers].tolist() for start in range(0, len(waiting), workers)]
        return [(group[0], group) for group in groups]
    columns = zip_longest(*np.array_split(waiting, workers))
    groups = [[int(number) for number in column if number is not None] for column in columns]
    before = accumulate(map(len, groups), initial=len(states_M) - len(waiting))
    return list(zip(before, groups, strict=False))


def position(number: int, rows: Rows, workers: int) -> int:
    """Approximate number of minibatches of the epoch computed before this one, which determines its learning rate.

    As many rows are computed at once as there are workers, so most minibatches are computed earlier or later than their
    numbers suggest.
    """
    if rows is None or workers == 1:
        return number
    row = bisect_right(rows, number, key=lambda row: row.start) - 1
    first = row // workers * workers  # the first of the rows that are computed at once
    beside = min(workers, len(rows) - first)
    return rows[first].start + (number - rows[row].start) * beside + row - first


def minibatch_seed(seed: int, epoch: int, number: int) -> int:
    """Seed of a minibatch's random numbers (dropout): independent of the worker, and the same after a restart."""
    return ((seed * 1_000_003 + epoch) * 1_000_003 + number) & ((1 << 63) - 1)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed PyTorch's generator of a device; torch.manual_seed would seed every accelerator, which takes 0.1 ms."""
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)  # torch.cuda.manual_seed seeds the current GPU
    else:
        torch.default_generator.manual_seed(seed)


@dataclass(frozen=True)
class Targets:
    """The stacked targets of a minibatch; `len` is the number of items, whatever the targets are."""

    stacked: Any
    items: int

    def __len__(self) -> int:
        return self.items


@dataclass(frozen=True, eq=False)
class Microbatches:
    """The inputs of a minibatch whose gradient is computed in portions: inputs and targets of each."""

    microbatches: tuple[tuple[Any, Targets], ...]


def each_tensor(values: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply `change` to every tensor in nested tuples, lists and dictionaries; other values are kept."""
    match values:
        case Tensor():
            return change(values)
        case Targets():
            return Targets(each_tensor(values.stacked, change), values.items)
        case PackedSequence():  # its batch sizes stay in the host's memory
            orders = (None if order is None else change(order) for order in values[2:])
            return PackedSequence(change(values.data), values.batch_sizes, *orders)
        case MutableMapping() if type(values) is not dict:  # with attributes, as the outputs of Hugging Face's models
            changed = copy.copy(values)
            for key, value in values.items():
                changed[key] = each_tensor(value, change)
            return changed
        case Mapping():
            return {key: each_tensor(value, change) for key, value in values.items()}
        case tuple() if hasattr(values, "_fields"):
            return type(values)(*(each_tensor(value, change) for value in values))
        case tuple() | list():
            return type(values)(each_tensor(value, change) for value in values)
    return values


def tensors(values: Any) -> list[Tensor]:
    """Every tensor in nested values, in the order of `each_tensor`."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    each_tensor(values, note)
    return found
