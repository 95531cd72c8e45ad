"""The two kinds of Ray actors of backend cluster, a partition of the server and a shard, and their messages.

A partition is the same as in the other backends, but in an actor's own memory. An actor handles one call at a time, so
the partition needs no lock, and it never says that it is busy, since to ask would take as long as to send the push
itself. A shard is also the same. It sends its pushes to all partitions before it waits for the first reply, and
requests its next minibatch before it computes the current one, to save round trips.

Each time a shard is set to work it is a new incarnation, whose number goes with everything it sends. Partitions reply
only to incarnations that were admitted. So messages still in flight from a shard that is presumed dead, or from before
the server was restored from its last copy, change nothing.

Axes: K values of a partition, P of them parameters, M minibatches of an epoch.
"""

import hashlib
import os
import pickle
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.util
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

import speech3
from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.codecs import Codec, warm_up
from speech3.engine.flat import Flat, partition_bounds, wait_for_gpus
from speech3.engine.gradient import Step
from speech3.engine.interface import USED, WAITING, BuildOn, Rate, Rows, ShardReport, WorkerParts, each_tensor
from speech3.engine.pool import MinibatchQueue, MinibatchStates
from speech3.engine.server import make_server, memory_layout, private_memory
from speech3.engine.server_optimizer import ShardVectors
from speech3.engine.shard import Compute, Draw, Push, Shard, Sync, Wire, wire_of


@dataclass(frozen=True)
class Facts:
    """What must be the same in all processes of a run, and where this process is.

    A minibatch is identified by its number alone, so all must have the same code, model and minibatches; the
    coordinator compares the facts of each with its own.
    """

    speech3: str
    engine: str  # digest of the source files of the engine
    model: str = ""  # digest of the model's modules and the shapes of its parameters; empty: there is no model
    minibatches: str = ""  # digest of the number of minibatches and the targets of the first; empty: there are none
    node: str = ""
    pid: int = 0

    def differs(self, other: "Facts") -> str:
        """A description of the differences; empty if there are none."""
        same = [each.name for each in fields(self)[:4]]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in same}
        return ", ".join(f"{name} {a} there, {b} here" for name, (a, b) in pairs.items() if a and b and a != b)


def facts_of(parts: WorkerParts | None = None, own: Flat | None = None) -> Facts:
    """The facts of this process, with the model and minibatches of a shard; a partition has neither."""
    facts = Facts(speech3.__version__, _engine_digest(), node=ray.util.get_node_ip_address(), pid=os.getpid())
    if parts is None or own is None:
        return facts
    shapes = [tuple(view.shape) for view in own.views]
    targets = parts.source.draw(1, 0)[1] if len(parts.source) else None
    targets = getattr(targets, "targets", targets)  # without a teacher's outputs, which differ by processor
    # Targets are tensors, nested as the caller of `fit` nests them, or whatever else the loss takes, such as numerators
    # of sentences. Of a tensor only the values are the same in every process.
    values = each_tensor(targets, lambda tensor: tensor.detach().cpu().to_dense().double().numpy().tobytes())
    minibatches = _digest(repr((len(parts.source), parts.source.rows)).encode() + pickle.dumps(values))
    model = _digest(repr((parts.model, shapes, len(own.vector_K))).encode())
    return replace(facts, model=model, minibatches=minibatches)


def _digest(what: bytes) -> str:
    return hashlib.sha256(what).hexdigest()[:12]


@cache
def _engine_digest() -> str:
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return _digest(b"".join(path.read_bytes() for path in files))


@dataclass(frozen=True)
class ShardWork:
    """What a shard did in one incarnation: its report, and bytes up and down."""

    report: ShardReport = field(default_factory=ShardReport)
    up: int = 0
    down: int = 0

    def newer(self, other: "ShardWork") -> bool:
        """Whether this is as new as `other`, or newer; both are of one incarnation, which only adds to its work."""
        return (self.report.minibatches, self.up, self.down) >= (other.report.minibatches, other.up, other.down)

    def __add__(self, other: "ShardWork") -> "ShardWork":
        return ShardWork(self.report + other.report, self.up + other.up, self.down + other.down)


@dataclass(frozen=True, eq=False)
class PushMessage:
    """A shard's sync with a partition: its push, and whether it fetches."""

    incarnation: int
    version: int
    fetch_due: bool
    work: ShardWork
    key: int
    finite: bool = True
    steps: dict[int, Step] = field(default_factory=dict)  # results by minibatch; empty: the shard only fetches
    values: np.ndarray | None = None  # the push: float32 (P,), or its code in bytes
    buffers: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """A partition's reply: what became of the push and, if they are fetched, the newest parameters or their code."""

    ended: int
    version: int
    values: np.ndarray | None = None
    buffers: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """What happened in a partition since its last report."""

    numbers: np.ndarray  # the minibatches of the pushes that it received
    rows: MinibatchStates  # their rows in its minibatch states
    versions: int  # number of versions that it published
    work: dict[int, ShardWork]  # the work of each shard that sent a push, by incarnation


@dataclass(frozen=True, eq=False)
class PartitionPlan:
    """What a partition is made from: its sizes, and the codecs of its slice of the parameters."""

    config: AsgdConfig
    workers: int
    values: int
    parameters: int
    minibatches: int
    rows: Rows
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
class OrderResult:
    work: ShardWork
    lost: str = ""  # why a partition could not be reached; empty: all were reached
    expelled: bool = False  # whether the shard's incarnation had been expelled


def wires_on_cpu(codec: CodecConfig, own: Flat, partitions: int) -> list[Wire]:
    """One wire for each partition of a model, on the CPU since messages are."""
    vector_K = own.vector_K.cpu()
    views = [vector_K.as_strided(view.shape, view.stride(), view.storage_offset()) for view in own.views]
    return [wire_of(codec, views, stretch) for stretch in partition_bounds(own, partitions)]


def _bytes_of(message: PushMessage | Reply) -> int:
    return sum(array.nbytes for array in (message.values, message.buffers) if array is not None)


def plans_of(
    parts: WorkerParts, own: Flat, config: AsgdConfig, workers: int, codec: CodecConfig
) -> list[PartitionPlan]:
    """The plans of the partitions, which are on CPUs wherever `own` is."""
    plans, source = [], parts.source
    wires = wires_on_cpu(codec, own, config.partitions)
    for stretch, wire in zip(partition_bounds(own, config.partitions), wires, strict=True):
        part, up = own.part(stretch), wire.sender.codec if wire.sender else None
        sizes = len(part.vector_K), part.num_parameters, len(source)
        plans.append(PartitionPlan(config, workers, *sizes, source.rows, up, wire.down_codec))
    return plans


class PartitionActor:
    """A partition of the server; the first one also has the queue, from which minibatches are drawn."""

    def ping(self) -> Facts:
        return facts_of()

    def prepare(self, plan: PartitionPlan) -> Facts:
        torch.set_num_threads(1)
        self.plan, config = plan, plan.config.model_copy(update={"partitions": 1})
        self.like = Flat(torch.zeros(plan.values), (), plan.parameters)
        memory = private_memory(memory_layout(self.like, config, plan.workers, plan.minibatches))
        self.server = make_server(memory, config, self.like, nullcontext(), None, plan.rows)
        # The queue's states are those of the whole server, `server.states` those of this partition.
        states = MinibatchStates.of(plan.minibatches)
        self.queue = MinibatchQueue(states, np.zeros(2, np.int64), nullcontext(), plan.rows)
        self.push_P = torch.zeros(plan.parameters)
        self.pushes: dict[int, Push] = {}
        self.pushed: list[int] = []  # minibatches of the pushes since the last report
        self.reported = 0  # version of the last report
        self.work: dict[int, ShardWork] = {}
        published = self.server.partitions[0].published
        self.server.optimizer.warm_up(published, ShardVectors(self.like.parameters_P, None, self.push_P))
        warm_up((plan.up, plan.down), self.push_P)
        return facts_of()

    def begin(self, tensors: dict[str, np.ndarray], states_M: np.ndarray) -> None:
        """Begin an epoch, or the rest of one, from a state, with no incarnation admitted."""
        self.pushes.clear()
        self.report()
        self.server.begin_epoch(states_M)
        self.reported = self.server.version
        self.server.load({name: torch.from_numpy(array.copy()) for name, array in tensors.items()})
        self.queue.fill(states_M)

    def admit(self, incarnation: int) -> None:
        # The partition's end of the push, in the form of a shard that accumulates gradients. Its values are needed only
        # during a sync, so the pushes of all shards share memory for them.
        self.pushes[incarnation] = Push(self.like, None, self.push_P, Wire(None, self.plan.down))

    def expel(self, incarnation: int) -> PartitionReport:
        """Expel an incarnation: messages that it sent and that arrive later are ignored."""
        self.pushes.pop(incarnation, None)
        return self.report()

    def draw(self, incarnation: int, after: int | None) -> int | None:
        """Draw a minibatch as in `MinibatchQueue.draw`; None for an incarnation that is not admitted."""
        return self.queue.draw(incarnation, after) if incarnation in self.pushes else None

    def give_back(self, incarnation: int, states_M: np.ndarray) -> list[int]:
        """Return a shard's minibatches to the queue, except those used or dropped in `states_M`; returns which."""
        ended = np.flatnonzero((self.queue.states_M == incarnation + 1) & (states_M != WAITING))
        self.queue.states_M[ended] = states_M[ended]
        numbers = np.flatnonzero(self.queue.states_M == incarnation + 1).tolist()
        self.queue.give_back(incarnation)
        return numbers

    def sync(self, message: PushMessage) -> Reply | None:
        """Call `Partition.sync` with a received push; None if its sender is not admitted."""
        if message.incarnation not in self.pushes:
            return None
        self.work[message.incarnation] = message.work
        partition, push = self.server.partitions[0], self.pushes[message.incarnation]
        for number, step in message.steps.items():
            self.server.states.computed(number, step)
        self.pushed += message.steps
        numbers, key = list(message.steps), message.key
        push.receive(message.version, numbers, key, fetch_due=message.fetch_due, finite=message.finite)
        self._read(message, push)
        push.pack()
        ended = partition.sync(push)
        push.unpack()
        if message.steps and ended == USED and not message.fetch_due:
            return Reply(ended, partition.version)
        return Reply(ended, partition.version, push.wire.received.numpy(), push.own.buffers.numpy())

    def report(self) -> PartitionReport:
        numbers, version = np.unique(np.array(self.pushed, np.int64)), self.server.version
        report = PartitionReport(numbers, self.server.states.rows(numbers), version - self.reported, self.work)
        self.pushed, self.reported, self.work = [], version, {}
        return report

    def snapshot(self) -> tuple[dict[str, np.ndarray], PartitionReport]:
        return {name: tensor.numpy() for name, tensor in self.server.tensors().items()}, self.report()

    def _read(self, message: PushMessage, push: Push) -> None:
        """Write the received values into the push; arrays from Ray are read-only and cannot be tensors."""
        if message.buffers is not None:
            np.copyto(push.own.buffers.numpy(), message.buffers)
        if message.values is None:
            self.push_P.zero_()
        elif self.plan.up:
            self.plan.up.add(torch.from_numpy(message.values.copy()), self.push_P.zero_())
        else:
            np.copyto(self.push_P.numpy(), message.values)


class _Expelled(Exception):
    """A partition does not admit this incarnation."""


class ShardActor:
    """A shard, which builds its model and its source of minibatches on its own node."""

    def ping(self) -> Facts:
        return facts_of()

    def prepare(
        self, worker: int, build: BuildOn, device: str, config: AsgdConfig, codec: CodecConfig, workers: int
    ) -> Facts:
        parts, up = build(device), codec.model_copy(update={"down": "float32"})  # `_Run` decodes what comes down
        self.shard = Shard(parts, config, number=worker, workers=workers, codec=up)
        own = self.shard.sgd.parameters
        self.down = [wire.down_codec for wire in wires_on_cpu(codec, own, config.partitions)]
        for push, down in zip(self.shard.pushes, self.down, strict=True):
            push.wire.warm_up(push.own.parameters_P)
            warm_up([down], push.own.parameters_P.cpu())
        return facts_of(parts, own)

    def run(self, order: Order) -> OrderResult:
        """Carry out the requests of the shard's loop, until no minibatch is waiting."""
        run = _Run(self.shard, self.down, order)
        try:
            run.run()
        except _Expelled:
            return OrderResult(run.work, expelled=True)
        except RayTaskError:
            raise
        except RayError as error:
            return OrderResult(run.work, lost=str(error))
        return OrderResult(run.work)


class _Run:
    def __init__(self, shard: Shard, down: Sequence[Codec | None], order: Order) -> None:
        self.shard, self.down, self.order = shard, down, order
        self.has: list[Tensor | None] = [None] * len(down)  # parameters to which coded differences are added
        self.steps: dict[int, Step] = {}  # of minibatches not yet pushed to all partitions
        self.sent: list[tuple[int, Any]] = []  # partition, pending reply
        self.drawn: Any = None  # pending reply with the number of the next minibatch
        self.work = ShardWork()

    def run(self) -> None:
        loop, answer = self.shard.run(), None
        while True:
            try:
                request = loop.send(answer)
            except StopIteration:
                self._receive()
                return
            if not isinstance(request, Sync):
                self._receive()
            match request:
                case Draw(after):
                    answer = self._draw(after)
                case Compute(number):
                    self._compute(number)
                case Sync(partition):
                    self._send(partition)
                    answer = True

    def _draw(self, after: int | None) -> int | None:
        begun = time.perf_counter()
        pending = self.drawn or self.order.partitions[0].draw.remote(self.order.incarnation, after)
        self.drawn = None
        number: int | None = ray.get(pending)
        self._did(wait_s=time.perf_counter() - begun)
        return number

    def _compute(self, number: int) -> None:
        begun = time.perf_counter()
        self.drawn = self.order.partitions[0].draw.remote(self.order.incarnation, number)
        unsent = {each for push in self.shard.pushes for each in push.numbers}
        self.steps = {each: step for each, step in self.steps.items() if each in unsent}
        self.steps[number] = self.shard.compute(self.order.epoch, number, self.order.rate)
        wait_for_gpus(self.shard.sgd.parameters.vector_K)
        self._did(minibatches=1, compute_s=time.perf_counter() - begun)

    def _send(self, partition: int) -> None:
        """Send the push, if it is due; later minibatches belong to the next push."""
        begun, push = time.perf_counter(), self.shard.pushes[partition]
        numbers = push.numbers if push.push_due else []
        message = PushMessage(self.order.incarnation, push.version, push.fetch_due, self.work, push.wire.key)
        if numbers:
            push.numbers = []
            push.own.collect()
            message = replace(message, finite=push.finite, steps={number: self.steps[number] for number in numbers})
            if push.finite:
                message = replace(message, values=self._packed(push), buffers=push.own.buffers.cpu().numpy())
        self._did(up=_bytes_of(message))
        self.sent.append((partition, self.order.partitions[partition].sync.remote(message)))
        self._did(sync_s=time.perf_counter() - begun)

    def _packed(self, push: Push) -> np.ndarray:
        values = ShardVectors(push.own.parameters_P, push.fetched_P, push.push_P).push()
        if push.wire.sender:
            values = push.wire.sender.encode(values, push.wire.key)
        return values.cpu().numpy()

    def _receive(self) -> None:
        for partition, pending in self.sent:
            begun = time.perf_counter()
            answer: Reply | None = ray.get(pending)
            if answer is None:
                raise _Expelled
            came = time.perf_counter()
            self._take(partition, answer)
            self._did(down=_bytes_of(answer), wait_s=came - begun, sync_s=time.perf_counter() - came)
        self.sent.clear()

    def _take(self, partition: int, answer: Reply) -> None:
        push = self.shard.pushes[partition]
        if answer.values is None or answer.buffers is None:
            push.pushed()
        else:
            newest_K = self._unpacked(partition, answer.values, answer.buffers).to(push.own.vector_K.device)
            push.fetch(answer.version, newest_K, used=answer.ended == USED)
            push.unpack()

    def _unpacked(self, partition: int, values: np.ndarray, buffers: np.ndarray) -> Tensor:
        """Decode the newest values; arrays from Ray are read-only."""
        codec, has_P = self.down[partition], self.has[partition]
        if codec is None or has_P is None:  # the first fetch is never coded
            newest_K = torch.from_numpy(np.concatenate([values, buffers]))
            self.has[partition] = newest_K[: len(values)].clone() if codec else None
            return newest_K
        codec.add(torch.from_numpy(values.copy()), has_P)
        return torch.cat([has_P, torch.from_numpy(buffers.copy())])

    def _did(self, *, up: int = 0, down: int = 0, **report: Any) -> None:
        """Add to the work done: bytes, and fields of `ShardReport`."""
        self.work += ShardWork(ShardReport(**report), up, down)
