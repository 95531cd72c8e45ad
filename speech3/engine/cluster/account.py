"""The account of an epoch whose partitions are on several hosts, by what they report.

They share no memory in which a minibatch could have one row. Each reports what it was brought, and who gathers the
reports writes the rows.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from speech3.engine.gradient import Step
from speech3.engine.ledger import Ledger
from speech3.engine.world import USED, WAITING, Progress


@dataclass(frozen=True)
class Event:
    """A push was brought to a partition.

    Attributes
    ----------
    incarnation
        Of a shard, which brought it.
    steps
        By minibatch.
    ended
        USED, STALE or REFUSED.
    """

    incarnation: int
    steps: Mapping[int, Step]
    ended: int
    staleness: int


@dataclass(eq=False)
class Account:
    """The rows of an epoch since it was taken up, and versions published by each partition."""

    ledger: Ledger
    before: dict[int, int]
    published: list[int]

    @classmethod
    def of(cls, states_M: np.ndarray, partitions: int) -> "Account":
        """An epoch, or the rest of one: what has not ended waits."""
        ledger = Ledger.of(len(states_M))
        ledger.begin(np.minimum(states_M, WAITING))
        return cls(ledger, ledger.counts(), [0] * partitions)

    def copy(self) -> "Account":
        """As it is now."""
        return deepcopy(self)

    def add(self, partition: int, events: Sequence[Event]) -> None:
        """What a partition reports, each event once."""
        for event in events:
            self.published[partition] += event.ended == USED
            for number, step in event.steps.items():
                if not self.ledger.frames_M[number]:
                    self.ledger.computed(number, step)
                if event.ended == USED:
                    self.ledger.publish([number], event.staleness)
                else:
                    self.ledger.refuse([number], event.ended, len(self.published))

    @property
    def ended(self) -> int:
        """Minibatches that are used or dropped."""
        return int((self.ledger.states_M < 0).sum())

    @property
    def progress(self) -> Progress:
        """What of that is counted by minibatch and version."""
        return replace(self.ledger.progress(self.before), versions=max(self.published))
