"""A shard: draw a minibatch, compute, step or accumulate, sync with each partition of the server that is free.

The loop is a generator that says what it wants; the world that drives it answers. So processes on a host and workers
of a simulation run the very same lines, and a schedule recorded from the one can be replayed in the other.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.adamw import optimizer_of
from speech3.engine.codecs.codec import key_of
from speech3.engine.flat import partition_bounds
from speech3.engine.gradient import Step, gradient
from speech3.engine.push import Push
from speech3.engine.wire import wire_of
from speech3.engine.world import Parts, Rate, position


@dataclass(frozen=True)
class Draw:
    """Wants a minibatch, best the one `after` another. Answer: its number, or None if none is waiting."""

    after: int | None


@dataclass(frozen=True)
class Compute:
    """Wants `Shard.compute` called with this number, and what that returns written into the ledger."""

    number: int


@dataclass(frozen=True)
class Sync:
    """Wants its push of a partition packed, then, with the lock held, `Partition.sync`, then the push unpacked.

    If the partition is free, or, with `wait`, once it is. Answer: was it?
    """

    partition: int
    wait: bool


Want = Draw | Compute | Sync


class Shard:
    """A worker's copy of the model, and what it did to it since the last fetch.

    Parameters
    ----------
    number
        Of the worker: each begins its rounds with another partition.

    Attributes
    ----------
    accumulated
        Without local updates, the learning rate times the sum of the gradients: the pushes are stretches of it.
    pushes
        What it has for each partition, and what it knows of it.
    """

    def __init__(
        self, parts: Parts, config: AsgdConfig, *, number: int = 0, workers: int = 1, weight_decay: float = 0.0,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.parts, self.config, self.workers, self.weight_decay = parts, config, workers, weight_decay
        self.sgd = optimizer_of(parts, weight_decay=weight_decay)
        own = self.sgd.parameters
        self.accumulated = None if config.local_updates else own.zeros_like()
        self.pushes: list[Push] = []
        for stretch in partition_bounds(own, config.partitions):
            cut, wire = own.cut(stretch), wire_of(codec or CodecConfig(), own.views, stretch)
            fetched_P = cut.parameters_P.clone() if config.local_updates else None
            push_P = self.accumulated.cut(stretch).parameters_P if self.accumulated else None
            self.pushes.append(Push(cut, fetched_P, push_P, wire))
        first = number % len(self.pushes)
        self.round = [*range(first, len(self.pushes)), *range(first)]

    def run(self) -> Generator[Want, Any, None]:
        """The rest of an epoch, as long as minibatches are waiting."""
        self.begin()
        for partition in self.round:
            yield Sync(partition, wait=True)  # nothing to push yet: fetches
        number: int | None = None
        while (number := (yield Draw(number))) is not None:
            yield Compute(number)
            yield from self.visit(last=False)
        yield from self.visit(last=True)

    def begin(self) -> None:
        """Nothing in hand: a dead one's successor pushes nothing of what it had, others compute that again."""
        for push in self.pushes:
            push.begin()

    def visit(self, *, last: bool) -> Generator[Want, Any, None]:
        """A round of the partitions with which a sync is due; one that is busy is left for the next, if it may be."""
        for partition in self.round:
            config, push = self.config, self.pushes[partition]
            now = last or not push.finite  # to be refused, and to fetch what is whole
            push.brings = now or len(push.numbers) >= config.sync_every
            push.takes = push.brings if now or not config.fetch_every else push.distance >= config.fetch_every
            if (push.brings and push.numbers) or (push.takes and not last):
                yield Sync(partition, wait=now or self.far(push))

    def far(self, push: Push) -> bool:
        """Is it so far from what it fetched, or has it so much to push, that it is to wait for the partition?"""
        if max(push.distance, len(push.numbers)) >= self.config.max_distance:
            return True
        limit, fetched_P = self.config.max_relative_distance, push.fetched_P
        if limit is None or fetched_P is None:
            return False
        return bool(torch.dist(push.own.parameters_P, fetched_P) >= limit * fetched_P.norm())

    @torch.no_grad()
    def compute(self, epoch: int, number: int, rate: Rate) -> Step:
        """The gradient of a minibatch: step the own copy with it, or add it to the push."""
        if not self.parts.model.training:  # else a walk through the modules for nothing, 0.3 % of a small minibatch
            self.parts.model.train()
        with torch.enable_grad():
            # What a gradient does to parameters the server sees in the push; what it does to moments nobody sees.
            step, g = gradient(self.parts, epoch, number, check=self.parts.betas is not None)
        now, key = rate(position(number, self.parts.source.rows, self.workers)), key_of(self.parts.seed, epoch, number)
        for push in self.pushes:
            push.add(number, now, key, finite=g is not None)
        if g is not None:
            self._move(g, now)
        return step

    def _move(self, g: Sequence[Tensor], rate: float) -> None:
        if self.accumulated is None:
            self.sgd.step(g, rate)
            return
        for view, each in zip(self.accumulated.views, g, strict=True):
            view.add_(each, alpha=rate)
        if self.weight_decay:
            self.accumulated.vector_K.add_(self.sgd.parameters.parameters_P, alpha=rate * self.weight_decay)
