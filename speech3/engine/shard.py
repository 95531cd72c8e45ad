"""A shard, an asynchronous worker: it draws a minibatch, computes its gradient, and syncs with the server.

A sync pushes what the shard has computed and fetches the newest parameters, partition by partition, wherever the server
is free. The loop is a generator that yields requests; the world that runs it carries them out. So processes on a host
and workers of a simulation run the same code, and a schedule recorded by the former can be replayed by the latter.
"""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.assembly import rule_of
from speech3.engine.codecs.codec import key_of
from speech3.engine.flat import partition_bounds
from speech3.engine.gradient import Step, gradient
from speech3.engine.optimizers import optimizer_of
from speech3.engine.push import Push
from speech3.engine.wire import wire_of
from speech3.engine.world import Parts, Rate, ahead_of, position


@dataclass(frozen=True)
class Draw:
    """Request a minibatch, preferably the one following `after`. Result: its number, or None if none is waiting."""

    after: int | None


@dataclass(frozen=True)
class Compute:
    """Request that `Shard.compute` be called with this number and its result be written into the ledger."""

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
    """A module that, in each forward pass of training, moves its parameters a step towards meeting a constraint.

    Attributes
    ----------
    constraint_share
        The share of the step that it takes.
    """

    constraint_share: float


class Shard:
    """A worker's copy of the model, and what it has computed since the last fetch.

    Its rounds of syncs begin with a partition that depends on `number`, so that workers do not all begin with the same.

    Attributes
    ----------
    accumulated
        Without local updates, the learning rate times the sum of the gradients, of which each push is a slice; with
        local updates, None.
    """

    def __init__(
        self, parts: Parts, config: AsgdConfig, *, number: int = 0, workers: int = 1, weight_decay: float = 0.0,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.parts, self.config, self.workers, self.weight_decay = parts, config, workers, weight_decay
        parts.begin_training()
        self.sgd = optimizer_of(parts, weight_decay=weight_decay)
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
                self._due(push, last=last)
                yield Sync(partition, wait=last or not push.finite or self.must_wait(push))

    def _due(self, push: Push, *, last: bool) -> bool:
        """Settle whether a push is to be sent and parameters are to be fetched; returns whether either is."""
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
        if self.weight_decay:
            self.accumulated.vector_K.add_(self.sgd.parameters.parameters_P, alpha=rate * self.weight_decay)


def _constraint_share(config: AsgdConfig, workers: int) -> float:
    """The share of its constraint's step that a module takes, so that all workers' pushes add up to one whole step.

    A gradient step is scaled by the learning rate, but a constraint moves parameters all the way: if each of five
    workers did that and pushed it in full, the server would move them five times as far.
    """
    scale = rule_of(config, workers).push_scale or 1 / config.sync_every
    return min(1.0, (1 - config.momentum) / (workers * scale))
