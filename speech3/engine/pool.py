"""One queue of minibatches for all shards: a slow shard draws fewer. Which is waiting, out, used, dropped.

The state of a minibatch is one integer in memory that all processes see, changed by single stores: whoever is killed
between two of them leaves each minibatch in one state or the other, and `give_back` returns to the queue what the dead
shard still had out.

Axes: M minibatches of an epoch.
"""

from contextlib import AbstractContextManager

import numpy as np

from speech3.engine.world import REFUSED, STALE, USED, WAITING


class Pool:
    """The minibatches of an epoch.

    Parameters
    ----------
    states_M
        int32: WAITING, USED, STALE, REFUSED, or s + 1 while shard s has it.
    cursor
        int64 (1,): no minibatch before it is waiting.
    lock
        Held while one is drawn or given back, by processes that draw from the same memory.
    """

    def __init__(self, states_M: np.ndarray, cursor: np.ndarray, lock: AbstractContextManager[object]) -> None:
        self.states_M, self.cursor, self.lock = states_M, cursor, lock

    def fill(self, states_M: np.ndarray) -> None:
        """Begin an epoch, or the rest of one."""
        self.states_M[:] = states_M
        self.cursor[0] = 0

    def draw(self, shard: int) -> int | None:
        """The next waiting minibatch, which is out with `shard` from now on; none if none is waiting."""
        if self.cursor[0] >= len(self.states_M):
            return None
        with self.lock:
            number = int(self.cursor[0])
            while number < len(self.states_M) and self.states_M[number] != WAITING:
                number += 1
            if number < len(self.states_M):
                self.states_M[number] = shard + 1
            self.cursor[0] = number + 1
        return number if number < len(self.states_M) else None

    def mark(self, numbers: list[int], state: int) -> None:
        """They ended: used or dropped."""
        for number in numbers:
            self.states_M[number] = state

    def give_back(self, shard: int) -> int:
        """What a dead shard had out waits again; returns how many."""
        with self.lock:
            out = np.flatnonzero(self.states_M == shard + 1)
            self.states_M[out] = WAITING
            if len(out):
                self.cursor[0] = min(int(self.cursor[0]), int(out[0]))
        return len(out)

    @property
    def finished(self) -> bool:
        """Every minibatch is used or dropped."""
        return bool(self.cursor[0] >= len(self.states_M)) and bool((self.states_M < 0).all())

    def counts(self) -> dict[int, int]:
        """How many are USED, STALE, REFUSED."""
        return {state: int(np.count_nonzero(self.states_M == state)) for state in (USED, STALE, REFUSED)}
