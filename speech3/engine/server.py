"""The passive server: memory, a version, and what a shard does to them while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is nobody to send a message to: the shard that
holds the lock steps the parameters itself, and takes the new ones with it.

The state has two buffers. A push is written into the one that is not published, together with the numbers of the
minibatches in it, then a single store of the version publishes both. So a shard killed at any instruction leaves the
last published version whole; if it died just after publishing, the next to hold the lock finds in the journal which
minibatches are used.

Axes: K values of a model, P of them parameters, J minibatches of a push.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from speech3.engine.board import STALENESS_BINS, TOTALS, Board
from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.pool import Pool
from speech3.engine.rule import Own, Rule, State
from speech3.engine.wire import Wire
from speech3.engine.world import REFUSED, STALE, USED

FRAMES, LOSS_SUM, CORRECT, ENDED = range(len(TOTALS))


@dataclass(frozen=True, eq=False)
class Buffer:
    """One of the two buffers: the model's values with its buffers, and as the rule sees it."""

    vector_K: Tensor
    state: State


@dataclass(eq=False)
class Push:
    """What a shard brings: its copy of the parameters, and what it computed since it fetched them.

    Attributes
    ----------
    fetched_P
        With local updates, the parameters as fetched: the push is fetched minus own.
    push_P
        Without, the learning rate times the sum of the gradients.
    version
        That was fetched last.
    finite
        False once a loss was not.
    wire
        By which it is sent.
    """

    own: Flat
    fetched_P: Tensor | None
    push_P: Tensor | None
    version: int = -1
    numbers: list[int] = field(default_factory=list)
    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    rate: float = 0.0
    finite: bool = True
    wire: Wire = field(default_factory=Wire)

    def begin(self, version: int) -> None:
        """Nothing computed yet since `version` was fetched."""
        self.version, self.numbers, self.finite = version, [], True
        self.frames, self.loss_sum, self.correct = 0, 0.0, 0

    def as_own(self) -> Own:
        """As the rule sees it, once it is sent."""
        return self.wire.send(self.own, self.fetched_P, self.push_P)


class Server:
    """One view of the server's memory; every process that has the memory open has its own.

    Parameters
    ----------
    buffers
        Two, in memory of the CPU or of a GPU.
    max_staleness
        An older push is dropped; None: none is.
    max_push
        Norm of a push over that of the parameters beyond which it is refused.
    """

    def __init__(
        self, board: Board, pool: Pool, buffers: Sequence[Buffer], rule: Rule, *,
        max_staleness: int | None, max_push: float,
    ) -> None:  # fmt: skip
        self.board, self.pool, self.buffers, self.rule = board, pool, buffers, rule
        self.max_staleness, self.max_push = max_staleness, max_push

    @property
    def version(self) -> int:
        """Published updates so far."""
        return int(self.board.version[0])

    def sync(self, push: Push) -> int:
        """Apply a push and take the newest parameters; with the lock held. Returns what became of its minibatches."""
        self.settle()
        staleness = self.version - push.version
        if not push.numbers:
            ended = USED
            self.fetch(push)
        elif (ended := self._judge(push, staleness)) != USED:
            self.pool.mark(push.numbers, ended)
            self.fetch(push)
        push.wire.receive(push.own, push.fetched_P, push.push_P, used=ended == USED)
        push.begin(self.version)
        return ended

    def settle(self) -> None:
        """Mark the minibatches of the published version as used: who published it may have died before."""
        count, *numbers = self.board.journal_2J[self.version % 2].tolist()
        self.pool.mark(numbers[:count], USED)

    def begin_epoch(self) -> None:
        """Count from zero; while no shard is at work."""
        for counts in (self.board.totals_2, self.board.staleness_2, self.board.journal_2J):
            counts[:] = 0

    @torch.no_grad()
    def fetch(self, push: Push) -> None:
        """Copy the published parameters into the shard's."""
        published = self.buffers[self.version % 2]
        push.own.vector_K.copy_(published.vector_K)
        if push.fetched_P is not None:
            push.fetched_P.copy_(published.state.parameters_P)
        if push.push_P is not None:
            push.push_P.zero_()
        wait_for_gpus(push.own.vector_K, published.vector_K)

    def _judge(self, push: Push, staleness: int) -> int:
        """Publish the push, unless it is stale, not finite or longer than it may be."""
        if not push.finite:
            return REFUSED
        if self.max_staleness is not None and staleness > self.max_staleness:
            return STALE
        old, new = self.buffers[self.version % 2], self.buffers[(self.version + 1) % 2]
        length = self.rule.step(
            old.state, new.state, push.as_own(), staleness=staleness, minibatches=len(push.numbers), rate=push.rate
        )
        if not (math.isfinite(length) and length <= self.max_push):
            return REFUSED
        new.vector_K[push.own.num_parameters :].copy_(push.own.buffers)
        self._publish(push, staleness)
        return USED

    def _publish(self, push: Push, staleness: int) -> None:
        board, old, new = self.board, self.version % 2, (self.version + 1) % 2
        board.totals_2[new] = board.totals_2[old]
        board.totals_2[new, :ENDED] += push.frames, push.loss_sum, push.correct
        board.totals_2[new, ENDED] = time.monotonic()
        board.staleness_2[new] = board.staleness_2[old]
        board.staleness_2[new, min(staleness, STALENESS_BINS - 1)] += 1
        board.journal_2J[new, 0] = len(push.numbers)
        board.journal_2J[new, 1 : 1 + len(push.numbers)] = push.numbers
        wait_for_gpus(push.own.vector_K, self.buffers[new].vector_K)
        board.version[0] += 1
        self.settle()
