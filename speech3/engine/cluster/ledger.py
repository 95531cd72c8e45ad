"""What became of each minibatch of an epoch, and what was published with it, by what the partitions report.

Partitions on several hosts share no memory in which a minibatch could be counted once. Each reports what it was
brought; who gathers the reports counts a minibatch with the first partition that published it, and drops it when all
have refused it.

Axes: M minibatches of an epoch, S partitions.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from speech3.engine.board import STALENESS_BINS
from speech3.engine.gradient import Step
from speech3.engine.world import REFUSED, STALE, USED, WAITING

_ROUNDS = 4096  # of the last are the stalenesses known, to be corrected by a partition that reports late


@dataclass(frozen=True)
class Event:
    """A push was brought to a partition.

    Attributes
    ----------
    life
        Of a shard, which brought it.
    round
        Its number: the same push to several partitions is one.
    steps
        By minibatch.
    ended
        USED, STALE or REFUSED.
    """

    life: int
    round: int
    steps: Mapping[int, Step]
    ended: int
    staleness: int


@dataclass
class Ledger:
    """The sums of an epoch since it was taken up.

    Attributes
    ----------
    states_M
        USED, STALE, REFUSED; WAITING: not ended.
    open_M
        How many partitions have not refused it.
    published_S
        Versions.
    """

    states_M: np.ndarray
    partitions: int
    frames: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    staleness: list[int] = field(default_factory=lambda: [0] * STALENESS_BINS)

    def __post_init__(self) -> None:
        self.states_M = np.minimum(self.states_M, WAITING, dtype=np.int32)
        self.before = self.counts()
        self.open_M = np.full(len(self.states_M), self.partitions, np.int32)
        self.published_S = [0] * self.partitions
        self.rounds: OrderedDict[tuple[int, int], int] = OrderedDict()

    def copy(self) -> "Ledger":
        """As it is now."""
        return deepcopy(self)

    def add(self, partition: int, events: Sequence[Event]) -> None:
        """What a partition reports, each event once."""
        for event in events:
            if event.ended == USED:
                self._publish(partition, event)
            for number, step in event.steps.items():
                self._end(number, step, event.ended)

    @property
    def missed(self) -> int:
        """How often a partition refused a minibatch that is used."""
        return int((self.partitions - self.open_M)[self.states_M == USED].sum())

    def waits_again(self, numbers: Sequence[int]) -> None:
        """They are computed again: what partitions refused of them before is not held against that."""
        self.open_M[list(numbers)] = self.partitions

    def counts(self) -> dict[int, int]:
        """How many are USED, STALE, REFUSED."""
        return {state: int(np.count_nonzero(self.states_M == state)) for state in (USED, STALE, REFUSED)}

    @property
    def ended(self) -> int:
        """Minibatches that are used or dropped."""
        return sum(self.counts().values())

    @property
    def finished(self) -> bool:
        """All of them."""
        return bool((self.states_M < 0).all())

    def _publish(self, partition: int, event: Event) -> None:
        self.published_S[partition] += 1
        key, before = (event.life, event.round), self.rounds.get((event.life, event.round), -1)
        self.rounds[key] = max(before, event.staleness)
        if before >= 0:  # another partition took the push: it counts once, with the largest of its stalenesses
            self.staleness[min(before, STALENESS_BINS - 1)] -= 1
        self.staleness[min(self.rounds[key], STALENESS_BINS - 1)] += 1
        if len(self.rounds) > _ROUNDS:
            self.rounds.popitem(last=False)

    def _end(self, number: int, step: Step, ended: int) -> None:
        if ended != USED:
            self.open_M[number] -= 1
        if self.states_M[number] != WAITING:
            return
        if ended == USED:
            self.states_M[number] = USED
            self.frames += step.frames
            self.loss_sum += step.loss * step.frames
            self.correct += step.correct
        elif not self.open_M[number]:
            self.states_M[number] = ended
