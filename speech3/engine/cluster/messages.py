"""The messages of world cluster, between coordinator, server partitions and shards, and the facts that must agree.

All participants in a run must have the same code, the same model and the same minibatches, since a minibatch is
identified by its number alone. The coordinator compares the `Facts` of each with its own.

Axes: P parameters of a partition.
"""

import hashlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import ray.util
from torch import Tensor

import speech3
from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.codecs.codec import Codec
from speech3.engine.flat import Flat, partition_bounds
from speech3.engine.gradient import Step
from speech3.engine.ledger import Ledger
from speech3.engine.wire import Wire, wire_of
from speech3.engine.world import Parts, Rate, ShardReport


@dataclass(frozen=True)
class Facts:
    """What must be the same in all processes of a run, and where this process is.

    Attributes
    ----------
    engine
        Digest of the source files of the engine.
    model
        Digest of the model's modules and the shapes of its parameters; empty: there is no model.
    minibatches
        Digest of the number of minibatches and the targets of the first; empty: there are none.
    """

    speech3: str
    engine: str
    model: str = ""
    minibatches: str = ""
    node: str = ""
    pid: int = 0

    def differs(self, other: "Facts") -> str:
        """A description of the differences; empty if there are none."""
        same = [each.name for each in fields(self)[:4]]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in same}
        return ", ".join(f"{name} {a} there, {b} here" for name, (a, b) in pairs.items() if a and b and a != b)


def facts_of(parts: Parts | None = None, own: Flat | None = None) -> Facts:
    """The facts of this process, with the model and minibatches of a shard; a partition has neither."""
    facts = Facts(speech3.__version__, _engine_digest(), node=ray.util.get_node_ip_address(), pid=os.getpid())
    if parts is None or own is None:
        return facts
    shapes = [tuple(view.shape) for view in own.views]
    targets = parts.source.draw(1, 0)[1] if len(parts.source) else None
    # Targets are tensors of class numbers, or whatever else the loss takes, such as numerators of sentences.
    what = targets.cpu().numpy().tobytes() if isinstance(targets, Tensor) else pickle.dumps(targets)
    minibatches = _digest(repr((len(parts.source), parts.source.rows)).encode() + what)
    model = _digest(repr((parts.model, shapes, len(own.vector_K))).encode())
    return replace(facts, model=model, minibatches=minibatches)


def _digest(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:12]


@cache
def _engine_digest() -> str:
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return _digest(b"".join(path.read_bytes() for path in files))


@dataclass(frozen=True)
class Work:
    """What a shard did in one incarnation: its report, and bytes up and down."""

    report: ShardReport = field(default_factory=ShardReport)
    up: int = 0
    down: int = 0

    def newer(self, other: "Work") -> bool:
        """Whether this is as new as `other`, or newer; both are of one incarnation, which only adds to its work."""
        return (self.report.minibatches, self.up, self.down) >= (other.report.minibatches, other.up, other.down)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.report + other.report, self.up + other.up, self.down + other.down)


@dataclass(frozen=True, eq=False)
class PushMessage:
    """A shard's sync with a partition: its push, and whether it fetches.

    Attributes
    ----------
    steps
        Results of the push's minibatches, by number; empty: the shard only fetches.
    values
        The push: float32 (P,), or its code in bytes.
    """

    incarnation: int
    version: int
    fetch_due: bool
    work: Work
    key: int
    finite: bool = True
    steps: dict[int, Step] = field(default_factory=dict)
    values: np.ndarray | None = None
    buffers: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes counted as sent up."""
        return _bytes(self.values, self.buffers)


@dataclass(frozen=True, eq=False)
class Reply:
    """A partition's reply: what became of the push and, if they are fetched, the newest parameters or their code."""

    ended: int
    version: int
    values: np.ndarray | None = None
    buffers: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes counted as sent down."""
        return _bytes(self.values, self.buffers)


@dataclass(frozen=True, eq=False)
class Report:
    """What happened in a partition since its last report.

    Attributes
    ----------
    numbers, rows
        The minibatches of the pushes that it received, and their rows in its ledger.
    versions
        Number of versions that it published.
    work
        The work of each shard that sent a push, by incarnation.
    """

    numbers: np.ndarray
    rows: Ledger
    versions: int
    work: dict[int, Work]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a partition is made from: its sizes, and the codecs of its slice of the parameters."""

    config: AsgdConfig
    workers: int
    values: int
    parameters: int
    minibatches: int
    rows: tuple[range, ...] | None
    up: Codec | None
    down: Codec | None


@dataclass(frozen=True, eq=False)
class Order:
    """To a shard: work on an epoch, as this incarnation, with these partitions."""

    incarnation: int
    epoch: int
    rate: Rate
    partitions: Sequence[Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of an order.

    Attributes
    ----------
    lost
        Why a partition could not be reached; empty: all were reached.
    expelled
        Whether the shard's incarnation had been expelled.
    """

    work: Work
    lost: str = ""
    expelled: bool = False


def wires_on_cpu(codec: CodecConfig, own: Flat, partitions: int) -> list[Wire]:
    """One wire for each partition of a model, on the CPU since messages are, even if the model is on a GPU."""
    vector_K = own.vector_K.cpu()
    views = [vector_K.as_strided(view.shape, view.stride(), view.storage_offset()) for view in own.views]
    return [wire_of(codec, views, stretch) for stretch in partition_bounds(own, partitions)]


def _bytes(*arrays: np.ndarray | None) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


def plans_of(parts: Parts, own: Flat, config: AsgdConfig, workers: int, codec: CodecConfig) -> list[Plan]:
    """The plans of the partitions, which are on CPUs wherever `own` is."""
    plans, source = [], parts.source
    wires = wires_on_cpu(codec, own, config.partitions)
    for stretch, wire in zip(partition_bounds(own, config.partitions), wires, strict=True):
        part, up = own.part(stretch), wire.sender.codec if wire.sender else None
        plans.append(Plan(
            config, workers, len(part.vector_K), part.num_parameters, len(source), source.rows, up, wire.down_codec
        ))  # fmt: skip
    return plans
