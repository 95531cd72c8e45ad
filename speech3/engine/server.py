"""The passive server: memory, a version, and what a shard does to them while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is nobody to send a message to: the shard that
holds the lock steps the parameters itself, and takes the new ones with it. When it comes is in `shard.py`, what it
brings in `push.py`, how the parameters move in `rule.py`.

The state has two buffers. A push is written into the one that is not published, together with the numbers of the
minibatches in it, then a single store of the version publishes both. So a shard killed at any instruction leaves the
last published version whole; if it died just after publishing, the next to hold the lock finds in the journal which
minibatches are used (`ledger.py`).

The parameters may be divided over partitions (DistBelief, Dean et al. 2012), each a server of its own: a shard goes
from one to the next and leaves out those that are busy.

Axes: K values of a partition, P of them parameters, J minibatches of a push.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from speech3.engine.flat import wait_for_gpus
from speech3.engine.ledger import Ledger
from speech3.engine.push import Push
from speech3.engine.rule import Rule, State
from speech3.engine.server_memory import Record
from speech3.engine.world import REFUSED, STALE, USED


@dataclass(frozen=True, eq=False)
class Buffer:
    """One of the two buffers: a partition's values with the model's buffers, and as the rule sees it."""

    vector_K: Tensor
    state: State


@dataclass(frozen=True, eq=False)
class Partition:
    """A view of a partition of the server; every process that has the memory open has its own.

    Attributes
    ----------
    record
        Its version and journal.
    buffers
        Two, in memory of the CPU or of a GPU.
    max_staleness
        An older push is dropped; None: none is.
    max_push
        How far a push may move the parameters, as a share of their norm; one that would move them further is refused.
    """

    record: Record
    ledger: Ledger
    buffers: Sequence[Buffer]
    rule: Rule
    partitions: int
    max_staleness: int | None
    max_push: float

    @property
    def version(self) -> int:
        """Published updates so far."""
        return int(self.record.version[0])

    @property
    def published(self) -> Buffer:
        """The state."""
        return self.buffers[self.record.index]

    def sync(self, push: Push) -> int:
        """Apply a push that is due and packed, take the newest parameters if they are; with the lock held.

        Returns what became of the push's minibatches here: USED, STALE or REFUSED; USED if none was brought.
        """
        self.settle()
        if not (push.brings and push.numbers):
            push.take(self.version, self.published.vector_K, used=False)
            return USED
        numbers, push.numbers = push.numbers, []
        ended = self._step(push, numbers)
        if ended != USED:
            self.ledger.refuse(numbers, ended, self.partitions)
            push.take(self.version, self.published.vector_K, used=False)
        elif push.takes:
            push.take(self.version, None, used=True)  # the step has left the newest with the shard
        else:
            push.brought()
        return ended

    def settle(self) -> None:
        """Mark the minibatches of the published version as used: who published it may have died before."""
        count, staleness, *numbers = self.record.journal_2J[self.record.index].tolist()
        self.ledger.publish(numbers[:count], staleness)

    def _step(self, push: Push, numbers: list[int]) -> int:
        """Publish the state after the push, unless that is stale, not finite or moves the parameters too far."""
        staleness = self.version - push.version
        if push.packed is None:
            return REFUSED
        if self.max_staleness is not None and staleness > self.max_staleness:
            return STALE
        old, new = self.published, self.buffers[1 - self.record.index]
        finite = new.vector_K[push.own.num_parameters :].copy_(push.own.buffers).isfinite().all()
        length = self.rule.step(  # waits for the GPU, if there is one, when all is written
            old.state, new.state, push.packed, staleness=staleness, minibatches=len(numbers), rate=push.rate
        )  # fmt: skip
        if not (math.isfinite(length) and length <= self.max_push and bool(finite)):
            return REFUSED
        self._publish(push, staleness, numbers)
        return USED

    def _publish(self, push: Push, staleness: int, numbers: list[int]) -> None:
        record, new = self.record, 1 - self.record.index
        record.journal_2J[new, :2] = len(numbers), staleness
        record.journal_2J[new, 2 : 2 + len(numbers)] = numbers
        record.ended[0] = time.monotonic()
        if push.own.vector_K.device != self.buffers[new].vector_K.device:
            wait_for_gpus(push.own.vector_K, self.buffers[new].vector_K)
        record.version[0] += 1  # the single store
        self.settle()
