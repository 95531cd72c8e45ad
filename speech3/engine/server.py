"""The passive server: memory, a version, and what a shard does to them while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is nobody to send a message to: the shard that
holds the lock steps the parameters itself, and takes the new ones with it. When it comes is in `shard.py`, what it
brings in `push.py`, how the parameters move in `rule.py`.

The state has two buffers. A push is written into the one that is not published, together with the numbers of the
minibatches in it, then a single store of the version publishes both. So a shard killed at any instruction leaves the
last published version whole; if it died just after publishing, the next to hold the lock finds in the journal which
minibatches are used.

The parameters may be divided over partitions (DistBelief, Dean et al. 2012), each a server of its own: a shard goes
from one to the next and leaves out those that are busy. A minibatch is used as soon as one partition has published it,
and dropped if all refuse it. Or shards do not lock each other out (Hogwild, Niu et al. 2011): both buffers are one and
steps are in place, so whoever dies in a step leaves half of it. What is counted stays exact: each shard has a record of
its own, and holds a lock of its own, for which only who takes a snapshot waits.

Axes: K values of a partition, P of them parameters, J minibatches of a push.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from speech3.engine.board import STALENESS_BINS, TOTALS, Record
from speech3.engine.flat import wait_for_gpus
from speech3.engine.pool import Pool
from speech3.engine.push import Push
from speech3.engine.rule import Own, Rule, State
from speech3.engine.world import REFUSED, STALE, USED

FRAMES, LOSS_SUM, CORRECT, ENDED = range(len(TOTALS))


@dataclass(frozen=True, eq=False)
class Buffer:
    """One of the two buffers: a partition's values with its buffers, and as the rule sees it."""

    vector_K: Tensor
    state: State


class Partition:
    """One view of a partition of the server; every process that has the memory open has its own.

    Parameters
    ----------
    record
        Its version and counts; without a lock those of the shard whose view this is.
    versions
        Of which the sum is the version: the record's own, or without a lock those of all shards.
    buffers
        Two, in memory of the CPU or of a GPU; without a lock twice the same.
    max_staleness
        An older push is dropped; None: none is.
    max_push
        How far a push may move the parameters, as a share of their norm; one that would move them further is refused.
    """

    def __init__(
        self, record: Record, versions: np.ndarray, pool: Pool, buffers: Sequence[Buffer], rule: Rule, *,
        max_staleness: int | None, max_push: float,
    ) -> None:  # fmt: skip
        self.record, self.versions, self.pool, self.buffers, self.rule = record, versions, pool, buffers, rule
        self.max_staleness, self.max_push = max_staleness, max_push

    @property
    def version(self) -> int:
        """Published updates so far."""
        return int(self.versions.sum())

    @property
    def published(self) -> Buffer:
        """The state."""
        return self.buffers[self.record.index]

    def sync(self, push: Push) -> int:
        """Apply a push that is due, take the newest parameters if they are; with the lock held, if there is one.

        Returns what became of the push's minibatches here: USED, STALE or REFUSED; USED if none was brought.
        """
        self.settle()
        ended, stepped = USED, False
        if push.brings and push.numbers:
            numbers, push.numbers = push.numbers, []
            ended = self._judge(push, numbers)
            stepped = ended == USED
        if stepped and not push.takes:
            push.brought()
        else:  # a step has left the newest with the shard
            push.take(self.version, None if stepped else self.published.vector_K, used=ended == USED)
        return ended

    def settle(self) -> None:
        """Mark the minibatches of the published version as used: who published it may have died before."""
        count, *numbers = self.record.journal_2J[self.record.index].tolist()
        self.pool.mark(numbers[:count], USED)

    def _judge(self, push: Push, numbers: list[int]) -> int:
        """Publish the push, unless it is stale, not finite or moves the parameters further than it may."""
        ended, staleness = USED, self.version - push.version
        own = push.as_own() if push.finite else None
        if own is None:
            ended = REFUSED
        elif self.max_staleness is not None and staleness > self.max_staleness:
            ended = STALE
        elif not self._step(push, own, staleness, len(numbers)):
            ended = REFUSED
        if ended == USED:
            self._publish(push, staleness, numbers)
        else:
            self.pool.mark(push.hand.refused(numbers), ended)
        return ended

    def _step(self, push: Push, own: Own, staleness: int, minibatches: int) -> bool:
        """Write the state after the push into the other buffer; False if it is not to be published."""
        old, new = self.published, self.buffers[1 - self.record.index]
        if not bool(push.own.buffers.isfinite().all()):
            return False
        in_place, rate = old is new, push.rate
        if in_place and not self._bearable(
            self.rule.length(old.state, own, staleness=staleness, minibatches=minibatches, rate=rate)
        ):
            return False
        length = self.rule.step(old.state, new.state, own, staleness=staleness, minibatches=minibatches, rate=rate)
        new.vector_K[push.own.num_parameters :].copy_(push.own.buffers)
        return in_place or self._bearable(length)  # done is done, though others have moved the parameters meanwhile

    def _bearable(self, length: float) -> bool:
        return math.isfinite(length) and length <= self.max_push

    def _publish(self, push: Push, staleness: int, numbers: list[int]) -> None:
        record, hand, old = self.record, push.hand, self.record.index
        new = 1 - old
        steps, before = hand.counted(numbers), hand.staleness  # not those that another partition has counted
        record.totals_2[new] = record.totals_2[old]
        record.totals_2[new, FRAMES] += sum(step.frames for step in steps)
        record.totals_2[new, LOSS_SUM] += sum(step.loss * step.frames for step in steps)
        record.totals_2[new, CORRECT] += sum(step.correct for step in steps)
        record.totals_2[new, ENDED] = time.monotonic()
        hand.staleness = max(before, staleness)
        record.staleness_2[new] = record.staleness_2[old]
        record.staleness_2[new, min(hand.staleness, STALENESS_BINS - 1)] += 1
        if before >= 0:  # another partition took the push: it counts once, with the largest of its stalenesses
            record.staleness_2[new, min(before, STALENESS_BINS - 1)] -= 1
        record.journal_2J[new, 0] = len(numbers)
        record.journal_2J[new, 1 : 1 + len(numbers)] = numbers
        wait_for_gpus(push.own.vector_K, self.buffers[new].vector_K)
        record.version[0] += 1  # the single store
        self.settle()
