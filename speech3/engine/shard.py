"""A shard: draw a minibatch, compute, step or accumulate, sync if the server is free.

The loop is a generator that says what it wants; the world that drives it answers. So processes on a host and workers
of a simulation run the very same lines, and a schedule recorded from the one can be replayed in the other.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.codec import key_of
from speech3.engine.gradient import gradient
from speech3.engine.server import Push
from speech3.engine.sgd import Sgd
from speech3.engine.wire import wire_of
from speech3.engine.world import Parts, Rate, position


@dataclass(frozen=True)
class Draw:
    """Wants a minibatch, best the one `after` another. Answer: its number, or None if none is waiting."""

    after: int | None


@dataclass(frozen=True)
class Compute:
    """Wants `Shard.compute` called with this number."""

    number: int


@dataclass(frozen=True)
class Sync:
    """Wants `Server.sync` called with the lock held: if the server is free, or, with `wait`, once it is."""

    wait: bool


Want = Draw | Compute | Sync


class Shard:
    """A worker's copy of the model, and what it did to it since the last fetch."""

    def __init__(
        self, parts: Parts, config: AsgdConfig, *, workers: int = 1, weight_decay: float = 0.0,
        codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.parts, self.config, self.workers, self.weight_decay = parts, config, workers, weight_decay
        self.sgd = Sgd(parts.model, weight_decay=weight_decay)
        own = self.sgd.parameters
        self.accumulated = None if config.local_updates else own.zeros_like()
        fetched_P = own.parameters_P.clone() if config.local_updates else None
        self.push = Push(own, fetched_P, self.accumulated.vector_K if self.accumulated else None)
        self.push.wire = wire_of(codec or CodecConfig(), own.views)

    def run(self) -> Generator[Want, Any, None]:
        """The rest of an epoch, as long as minibatches are waiting."""
        self.push.begin(-1)  # a dead one's successor pushes nothing of what it had: others compute that again
        self.push.wire.begin()
        yield Sync(wait=True)  # nothing to push yet: fetches
        number: int | None = None
        while (number := (yield Draw(number))) is not None:
            yield Compute(number)
            if not self.push.finite:
                yield Sync(wait=True)  # to be refused, and to fetch what is whole
            elif len(self.push.numbers) >= self.config.sync_every:
                yield Sync(wait=self.far())
        if self.push.numbers:
            yield Sync(wait=True)

    def far(self) -> bool:
        """Has it gone as far from what it fetched as it may?"""
        limit = self.config.max_relative_distance
        if len(self.push.numbers) >= self.config.max_distance:
            return True
        if limit is None or self.push.fetched_P is None:
            return False
        gone = torch.dist(self.push.own.parameters_P, self.push.fetched_P)
        return bool(gone >= limit * self.push.fetched_P.norm())

    @torch.no_grad()
    def compute(self, epoch: int, number: int, rate: Rate) -> None:
        """The gradient of a minibatch: step the own copy with it, or add it to the push."""
        if not self.parts.model.training:  # else a walk through the modules for nothing, 0.3 % of a small minibatch
            self.parts.model.train()
        with torch.enable_grad():
            step, g = gradient(self.parts, epoch, number)
        push = self.push
        push.numbers.append(number)
        push.wire.key = key_of(self.parts.seed, epoch, number)
        push.rate = rate(position(number, self.parts.source.rows, self.workers))
        if g is None:
            push.finite = False
            return
        if self.accumulated is None:
            self.sgd.step(g, push.rate)
        else:
            for view, each in zip(self.accumulated.views, g, strict=True):
                view.add_(each, alpha=push.rate)
            if self.weight_decay:
                self.accumulated.vector_K.add_(push.own.parameters_P, alpha=push.rate * self.weight_decay)
        push.frames += step.frames
        push.loss_sum += step.loss * step.frames
        push.correct += step.correct
