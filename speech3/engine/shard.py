"""A shard, an asynchronous worker: it draws a minibatch, computes its gradient, and syncs with the server.

A sync pushes what the shard has computed and fetches the newest parameters, partition by partition, wherever the server
is free. The loop (`Shard.run`) is a generator that yields requests; the backend that runs it carries them out. So
processes on a host and workers of a simulation run the same code, and a schedule recorded by the former can be replayed
by the latter.

Pushes may be more or less frequent than fetches (`n_push` and `n_fetch` of Downpour SGD, Dean et al. 2012). After a
push without a fetch, the shard continues from its own copy, which already contains the push; after a fetch without a
push, what is not yet pushed stays with the shard, as the paper's "accrued gradients" do. We depart from the paper in
two ways: the gradients of a push are already multiplied by the learning rate of the shard's own steps; and nothing is
sent in the background: a busy partition is skipped, and receives the push in a later round, with what was computed in
the meantime.

Axes: K values of a partition, of which P are parameters.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.codecs import Codec, Sender, key_of, make_codec, warm_up
from speech3.engine.flat import Flat, partition_bounds, wait_for_gpus
from speech3.engine.gradient import Step, gradient
from speech3.engine.interface import Rate, WorkerParts, ahead_of, position
from speech3.engine.optimizers import optimizer_of
from speech3.engine.server_optimizer import ShardVectors, server_optimizer_of

_DOWN_BUCKET = 64


def wire_of(config: CodecConfig, views: Sequence[Tensor], stretch: slice = slice(None)) -> "Wire":
    """The configured wire for the slice `stretch` of a model's flat vector; `views` are its parameters."""
    down = None
    if config.down == "ternary":
        bucket = min(config.bucket or _DOWN_BUCKET, _DOWN_BUCKET)
        down = make_codec(config.model_copy(update={"kind": "ternary", "bucket": bucket}), views, stretch)
    return Wire(make_codec(config, views, stretch), down)


class Wire:
    """The shard's end of the wire.

    Up (to the server) goes the push, encoded (`codecs`) or as float32; the server applies the decoded values. On one
    host nothing needs to be sent, but pushes are encoded and decoded all the same, so that a run has the same result as
    it would have over a network. Down (to the shard) go the newest parameters as float32, or the ternary code of their
    difference from those that the shard has. The server knows these (`has_P`), so the error of one encoding is part of
    the next difference. That is stable only if the error of an encoding is smaller than the encoded difference. With
    one scale for 64 values, the error stays at 2.6 times the step between two fetches (if steps are normally
    distributed); with one for a whole tensor it grows without bound, to 60 times the step after 200 fetches. So buckets
    here have at most 64 values. The first fetch of an epoch is float32, and the model's buffers always are.
    """

    received: Tensor  # what the shard received last: float32 parameters, or codes

    def __init__(self, codec: Codec | None = None, down: Codec | None = None) -> None:
        self.sender = Sender(codec) if codec else None
        self.down_codec = down
        self.has_P: Tensor | None = None  # what the server knows the shard to have; None before the first fetch
        self.key = 0  # selects the random numbers of the next push
        self.up = self.down = self.sent = 0  # bytes since the last call of `counted`; `sent`: up, not yet counted

    @property
    def plain(self) -> bool:
        return self.sender is None and self.down_codec is None

    def begin(self) -> None:
        """Forget all earlier encoding errors, so that an epoch resumed after a crash equals one without a crash."""
        self.has_P, self.sent = None, 0
        if self.sender:
            self.sender.forget()

    def warm_up(self, like_P: Tensor) -> None:
        warm_up((self.sender.codec if self.sender else None, self.down_codec), like_P)

    def send(self, own: ShardVectors, buffers: Tensor) -> ShardVectors:
        """Encode a push; returns it decoded, as the server sees it. If the server is busy, a later call replaces it."""
        self.sent = buffers.nbytes
        if self.sender is None:
            self.sent += own.parameters_P.nbytes
            return own
        message = self.sender.encode(own.push(), self.key)
        self.sent += message.nbytes
        decoded_P = torch.zeros_like(own.parameters_P)
        self.sender.codec.add(message, decoded_P)
        wait_for_gpus(decoded_P)  # or the server's step would wait for the codec's kernels, with the partition locked
        return ShardVectors(own.parameters_P, own.fetched_P, decoded_P)

    def acknowledge(self, *, used: bool) -> None:
        """Count the last push, if there is one, as received by the server, which used or refused it."""
        self.up, self.sent = self.up + self.sent, 0
        if self.sender:
            self.sender.acknowledge(used=used)

    def receive(self, own: Flat) -> None:
        """Replace the newest parameters in `own` by those that the shard decodes."""
        self.received = self._encode_fetch(own.parameters_P)
        self.down += own.buffers.nbytes + self.received.nbytes

    def _encode_fetch(self, own_P: Tensor) -> Tensor:
        """What is sent to the shard for the newest parameters `own_P`, which are replaced by the decoded ones."""
        if self.down_codec is None:
            return own_P
        if self.has_P is None:
            self.has_P = own_P.clone()
            return own_P
        message = self.down_codec.encode(own_P - self.has_P, key_of(self.key, 1))
        self.down_codec.add(message, self.has_P)
        own_P.copy_(self.has_P)
        return message

    def counted(self) -> tuple[int, int]:
        counts, self.up, self.down = (self.up, self.down), 0, 0
        return counts


@dataclass(eq=False)
class Push:
    """A shard's push to one partition: what it has computed over that slice of its copy since its last push there.

    `pack` encodes it before the partition is locked, and `unpack` decodes the reply after the partition is released, so
    that no shard waits for another's codec.
    """

    own: Flat  # the partition's slice of the shard's copy
    # With local updates, the parameters as fetched: the push is these minus the shard's own. A push without a fetch
    # sets them to the shard's own parameters, and a fetch without a push adds to them what was not pushed, so that the
    # difference stays the push.
    fetched_P: Tensor | None
    push_P: Tensor | None  # without local updates, the learning rate times the sum of the gradients
    wire: Wire = field(default_factory=Wire)  # what encodes the push and decodes the reply
    # The partition's version at the last fetch, plus one for each of the shard's pushes since. The staleness of the
    # push is the partition's version minus this: the number of versions that other shards have published.
    version: int = -1
    numbers: list[int] = field(default_factory=list)  # the numbers of the minibatches in the push
    distance: int = 0  # minibatches since the last fetch
    finite: bool = True  # false once a loss or a gradient was not finite
    push_due: bool = True
    fetch_due: bool = True
    # The encoded push, as the server sees it, between `pack` and the sync; None if there is none or it is not finite.
    packed: ShardVectors | None = None
    # Set by the sync, for `unpack`:
    fetched: bool = False  # parameters were fetched
    complete: bool = False  # the server's step has written them into `own` and `fetched_P`; nothing is left to do
    replaced: bool = False  # the model's buffers were fetched, too; after a push the shard keeps its own
    kept_P: Tensor | None = None  # local updates not yet pushed, which the fetch must not lose

    def begin(self) -> None:
        self.version, self.distance, self.finite, self.numbers = -1, 0, True, []
        self.push_due = self.fetch_due = True
        self.wire.begin()

    def add(self, number: int, key: int) -> None:
        """Count a computed minibatch; `key` selects the random numbers of the push's codec."""
        self.numbers.append(number)
        self.distance, self.wire.key = self.distance + 1, key

    def receive(self, version: int, numbers: list[int], key: int, *, fetch_due: bool, finite: bool) -> None:
        """Become a push that was sent to a partition on another host; without minibatches, it is a fetch only."""
        self.version, self.numbers, self.wire.key, self.finite = version, numbers, key, finite
        self.push_due, self.fetch_due = bool(numbers), fetch_due

    @torch.no_grad()
    def pack(self) -> None:
        """Encode the push, if it is due and finite; call before the partition is locked."""
        self.packed = None
        if self.push_due and self.numbers and self.finite:
            self.own.collect()
            own = ShardVectors(self.own.parameters_P, self.fetched_P, self.push_P)
            if not self.fetch_due:  # the optimizer writes into a copy, so that the shard keeps its own parameters
                own = ShardVectors(self.own.parameters_P.clone(), None, own.push())
            self.packed = self.wire.send(own, self.own.buffers)

    @torch.no_grad()
    def pushed(self) -> None:
        """The push was published without a fetch: the shard continues from its own parameters."""
        self.version += 1
        self.wire.acknowledge(used=True)
        if self.fetched_P is not None:
            self.fetched_P.copy_(self.own.parameters_P)
        if self.push_P is not None:
            self.push_P.zero_()

    @torch.no_grad()
    def fetch(self, version: int, newest_K: Tensor | None, *, used: bool) -> None:
        """Fetch the newest parameters; `newest_K` is None if the server's step has already written them into `own`."""
        self.wire.acknowledge(used=used)
        self.fetched, self.complete, self.replaced = True, newest_K is None and self.wire.plain, newest_K is not None
        # With local updates, what was not pushed: steps that the newest parameters do not contain.
        self.kept_P = self.fetched_P - self.own.parameters_P if self.fetched_P is not None and self.numbers else None
        if newest_K is not None:
            self.own.vector_K.copy_(newest_K)
            wait_for_gpus(self.own.vector_K, newest_K)
        self.version, self.distance, self.finite = version, 0, True

    @torch.no_grad()
    def unpack(self) -> None:
        """Decode the fetched parameters after the partition is released; what was not pushed stays with the shard."""
        if not self.fetched:
            return
        self.fetched = False
        if self.replaced:
            self.own.spread()
        self.wire.receive(self.own)
        if self.fetched_P is not None and not self.complete:  # else the optimizer has already copied them in its pass
            self.fetched_P.copy_(self.own.parameters_P)
        if self.fetched_P is not None and self.kept_P is not None:
            self.fetched_P.add_(self.kept_P)
        if self.push_P is not None and not (self.complete or self.numbers):
            self.push_P.zero_()


@dataclass(frozen=True)
class Draw:
    """Request a minibatch, preferably the one following `after`. Result: its number, or None if none is waiting."""

    after: int | None


@dataclass(frozen=True)
class Compute:
    """Request that `Shard.compute` be called with this number and its result be written into the minibatch states."""

    number: int


@dataclass(frozen=True)
class Sync:
    """Request a sync: pack the push to a partition, call `Partition.sync` with the lock held, unpack the push.

    It is carried out if the partition is free or, with `wait`, as soon as it is. Result: whether it was carried out.
    """

    partition: int
    wait: bool


Request = Draw | Compute | Sync


@runtime_checkable
class Constrained(Protocol):
    """A module that, in each forward pass of training, moves its parameters a step towards meeting a constraint."""

    constraint_share: float  # the share of the step that it takes


class Shard:
    """A worker's copy of the model, and what it has computed since the last fetch.

    Its rounds of syncs begin with a partition that depends on `number`, so that workers do not all begin with the same.

    `accumulated`: without local updates, the learning rate times the sum of the gradients, of which each push is a
    slice; with local updates, None.
    """

    def __init__(
        self,
        parts: WorkerParts,
        config: AsgdConfig,
        *,
        number: int = 0,
        workers: int = 1,
        codec: CodecConfig | None = None,
    ) -> None:
        self.parts, self.config, self.workers = parts, config, workers
        parts.begin_training()
        self.sgd = optimizer_of(parts)
        for module in parts.model.modules():
            if isinstance(module, Constrained):
                module.constraint_share = _constraint_share(config, workers)
        own = self.sgd.parameters
        self.accumulated = None if config.local_updates else own.zeros_like()
        self.pushes: list[Push] = []
        for bounds in partition_bounds(own, config.partitions):
            part, wire = own.part(bounds), wire_of(codec or CodecConfig(), own.views, bounds)
            fetched_P = part.parameters_P.clone() if config.local_updates else None
            push_P = self.accumulated.part(bounds).parameters_P if self.accumulated else None
            self.pushes.append(Push(part, fetched_P, push_P, wire))
        first = number % len(self.pushes)
        self.round = [*range(first, len(self.pushes)), *range(first)]
        self.unread: list[Step] = []

    def run(self) -> Generator[Request, Any, None]:
        """Compute minibatches of an epoch as long as any are waiting, and sync; the last sync pushes what is left."""
        self.begin()
        for partition in self.round:
            yield Sync(partition, wait=True)  # there is nothing to push yet, so this only fetches
        last: int | None = None
        drawn: deque[int] = deque()  # one, or more if the source reads minibatches before they are computed
        while True:
            while len(drawn) <= ahead_of(self.parts.source) and (number := (yield Draw(last))) is not None:
                drawn.append(number)
                last = number
            if not drawn:
                break
            yield Compute(drawn.popleft())
            yield from self.sync_due(last=False)
        yield from self.sync_due(last=True)

    def begin(self) -> None:
        """Reset the pushes: the successor of a dead shard pushes none of that shard's work, which is computed again."""
        self.unread.clear()
        for push in self.pushes:
            push.begin()

    def sync_due(self, *, last: bool) -> Generator[Request, Any, None]:
        """Sync with each partition where a push or fetch is due; skip a busy one until the next round if possible."""
        for partition in self.round:
            push = self.pushes[partition]
            if self._due(push, last=last):
                self.check()
                self._due(push, last=last)  # again: a push found not to be finite is sent at once, and fetches
                yield Sync(partition, wait=last or not push.finite or self.must_wait(push))

    def _due(self, push: Push, *, last: bool) -> bool:
        """Decide whether a push is to be sent and parameters are to be fetched; returns whether either is."""
        config = self.config
        # A push that is not finite is sent at once: the server refuses it, and the shard fetches intact parameters.
        now = last or not push.finite
        push.push_due = now or len(push.numbers) >= config.sync_every
        push.fetch_due = push.push_due if now or not config.fetch_every else push.distance >= config.fetch_every
        return bool((push.push_due and push.numbers) or (push.fetch_due and not last))

    def check(self) -> None:
        """Read the results of all minibatches, for which the host waits for a GPU; mark a push that is not finite."""
        finite = all([step.finite for step in self.unread])
        self.unread.clear()
        for push in self.pushes:
            push.finite = push.finite and finite

    def must_wait(self, push: Push) -> bool:
        """Whether the shard is so far from the parameters it fetched, or has so much to push, that it must wait."""
        if max(push.distance, len(push.numbers)) >= self.config.max_distance:
            return True
        limit, fetched_P = self.config.max_relative_distance, push.fetched_P
        if limit is None or fetched_P is None:
            return False
        return bool(torch.dist(push.own.parameters_P, fetched_P) >= limit * fetched_P.norm())

    @torch.no_grad()
    def compute(self, epoch: int, number: int, rate: Rate) -> Step:
        """Compute the gradient of a minibatch; update the shard's own copy with it, or add it to the pushes.

        A GPU may still be computing when this returns. A gradient that is not finite is noticed at the next sync at the
        latest: the push is refused, and the shard fetches intact parameters.
        """
        with torch.enable_grad():
            # The server checks the push, and so the gradient, but not the moments of AdamW or Muon: check these here.
            check = self.parts.optimizer != "sgd"
            step, g = gradient(self.parts, epoch, number, check=check)
        now, key = rate(position(number, self.parts.source.rows, self.workers)), key_of(self.parts.seed, epoch, number)
        for push in self.pushes:
            push.add(number, key)
        self.unread.append(step)
        if check or step.known:
            self.check()
        if self.unread or step.finite:
            self._move(g, now)
        return step

    def _move(self, g: Sequence[Tensor], rate: float) -> None:
        if self.accumulated is None:
            self.sgd.step(g, rate)
            return
        torch._foreach_add_(self.accumulated.views, tuple(g), alpha=rate)
        if self.parts.weight_decay:
            self.accumulated.vector_K.add_(self.sgd.parameters.parameters_P, alpha=rate * self.parts.weight_decay)


def _constraint_share(config: AsgdConfig, workers: int) -> float:
    """The share of its constraint's step that a module takes, so that all workers' pushes add up to one whole step.

    A gradient step is scaled by the learning rate, but a constraint moves parameters all the way: if each of five
    workers did that and pushed it in full, the server would move them five times as far.
    """
    scale = server_optimizer_of(config, workers).push_scale or 1 / config.sync_every
    return min(1.0, (1 - config.momentum) / (workers * scale))
