"""The passive parameter server: parameters in memory, a version, and what a shard does to both while it holds the lock.

Follows CMU's SPEECH3 (an update happens whenever a shard finds the server free) and Zhang et al. 2013, "Asynchronous
stochastic gradient descent for DNN training" (version stamps). There is no server process: the shard that holds the
lock applies its own push to the parameters and fetches the new ones. `shard.py` decides when a shard syncs, `push.py`
defines what it sends, and `rule.py` how the push changes the parameters.

The state has two buffers. A push is written into the buffer that is not published, together with the numbers of its
minibatches (the journal); then a single store of the version publishes both. So a shard that is killed at any
instruction leaves the last published version intact. If it died just after publishing, the next shard to hold the lock
reads from the journal which minibatches are used, and marks them (`ledger.py`).

The parameters may be divided into partitions (DistBelief, Dean et al. 2012), each a server of its own: a shard syncs
with one after the other and skips those that are busy.

Axes: K values of a partition, of which P are parameters; J minibatches of a push.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speech3.engine.flat import wait_for_gpus
from speech3.engine.ledger import Ledger
from speech3.engine.push import Push
from speech3.engine.rule import Rule, State
from speech3.engine.server_memory import Record
from speech3.engine.world import REFUSED, STALE, USED


@dataclass(frozen=True, eq=False)
class Buffer:
    """One of the two buffers: a partition's values, including the model's buffers, and the rule's view of them."""

    vector_K: Tensor
    state: State


@dataclass(frozen=True, eq=False)
class Partition:
    """A view of one partition of the server; every process that opens the memory has its own view.

    Attributes
    ----------
    record
        The partition's version and journal.
    buffers
        The two buffers, in the memory of the CPU or of a GPU.
    max_staleness
        Pushes with a greater staleness are dropped; None: no push is too stale.
    max_push
        How far a push may move the parameters, relative to their norm; a push that moves them further is refused.
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
        """Number of updates published so far."""
        return int(self.record.version[0])

    @property
    def published(self) -> Buffer:
        """The published buffer."""
        return self.buffers[self.record.index]

    def sync(self, push: Push) -> int:
        """Apply the push if it is due, and fetch the newest parameters if a fetch is due; call with the lock held.

        `push.pack` must have been called. Returns what became of the push's minibatches in this partition: USED, STALE
        or REFUSED; USED also if nothing was pushed.
        """
        self.settle()
        if not (push.push_due and push.numbers):
            push.fetch(self.version, self.published.vector_K, used=False)
            return USED
        numbers, push.numbers = push.numbers, []
        ended = self._step(push, numbers)
        if ended != USED:
            self.ledger.refuse(numbers, ended, self.partitions)
            push.fetch(self.version, self.published.vector_K, used=False)
        elif push.fetch_due:
            push.fetch(self.version, None, used=True)  # the step has written the parameters into the shard's copy
        else:
            push.pushed()
        return ended

    def settle(self) -> None:
        """Mark the minibatches of the published version as used: the shard that published it may have died first."""
        count, staleness, *numbers = self.record.journal_2J[self.record.index].tolist()
        self.ledger.publish(numbers[:count], staleness)

    def _step(self, push: Push, numbers: list[int]) -> int:
        """Publish the state after the push, unless the push is stale, not finite or moves the parameters too far."""
        staleness = self.version - push.version
        if push.packed is None:
            return REFUSED
        if self.max_staleness is not None and staleness > self.max_staleness:
            return STALE
        old, new = self.published, self.buffers[1 - self.record.index]
        buffers = new.vector_K[push.own.num_parameters :]
        # Their sum is finite if all are; the host reads it after the step, when it is there.
        buffers_sum = buffers.copy_(push.own.buffers).sum(dtype=torch.float64) if buffers.numel() else None
        length = self.rule.step(  # on a GPU, returns only when everything is written
            old.state, new.state, push.packed, staleness=staleness, minibatches=len(numbers)
        )  # fmt: skip
        finite = math.isfinite(length) and (buffers_sum is None or math.isfinite(buffers_sum))
        if not (finite and length <= self.max_push):
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
