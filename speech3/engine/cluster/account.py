"""The ledger of an epoch whose server partitions are on several hosts, kept from their reports.

The partitions share no memory in which a minibatch could have one row. Each reports the pushes that it received, and
the coordinator, which gathers the reports, writes the rows.
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
    """A push that a partition received.

    Attributes
    ----------
    incarnation
        Incarnation of the shard that sent it.
    steps
        Results of its minibatches, by number.
    ended
        What became of it: USED, STALE or REFUSED.
    """

    incarnation: int
    steps: Mapping[int, Step]
    ended: int
    staleness: int


@dataclass(eq=False)
class Account:
    """The ledger of an epoch since it was begun or resumed, and the versions that each partition published."""

    ledger: Ledger
    before: dict[int, int]
    published: list[int]

    @classmethod
    def of(cls, states_M: np.ndarray, partitions: int) -> "Account":
        """An account of an epoch, or of the rest of one: minibatches that are neither used nor dropped wait."""
        ledger = Ledger.of(len(states_M))
        ledger.begin(np.minimum(states_M, WAITING))
        return cls(ledger, ledger.counts(), [0] * partitions)

    def copy(self) -> "Account":
        """A copy of the present account."""
        return deepcopy(self)

    def add(self, partition: int, events: Sequence[Event]) -> None:
        """Enter the events that a partition reports; each must be given once."""
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
        """Progress counted in minibatches and versions."""
        return replace(self.ledger.progress(self.before), versions=max(self.published))
