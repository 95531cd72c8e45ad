"""One queue of minibatches for all shards: a slow shard draws fewer.

Where a recurrent model carries its state from one minibatch to the next, a shard goes on with the row that it is in,
then begins another; when all are begun it takes over the second half of the longest stretch that is left, so that all
are busy to the end and no more than one state is lost by it. What a dead shard still had out returns to the queue.

Axes: M minibatches of an epoch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from speech3.engine.ledger import Ledger
from speech3.engine.world import WAITING


class Pool:
    """The minibatches of an epoch.

    Parameters
    ----------
    ledger
        Whose states say which minibatches wait.
    cursor
        int64 (1,): no minibatch before it is waiting.
    lock
        Held while one is drawn or given back, by processes that draw from the same memory.
    rows
        Minibatches that are best computed in order by one shard; none: no order matters.
    """

    def __init__(
        self, ledger: Ledger, cursor: np.ndarray, lock: AbstractContextManager[object],
        rows: Sequence[range] | None = None,
    ) -> None:  # fmt: skip
        self.ledger, self.states_M, self.cursor, self.lock = ledger, ledger.states_M, cursor, lock
        self.starts_R = None if rows is None else np.array([row.start for row in rows])
        self.begins_M = np.zeros(len(ledger) + 1, np.bool_)  # a row, or the end
        self.begins_M[-1] = True
        if self.starts_R is not None:
            self.begins_M[self.starts_R] = True

    def fill(self, states_M: np.ndarray) -> None:
        """Begin an epoch, or the rest of one."""
        self.ledger.begin(states_M)
        self.cursor[0] = 0

    def draw(self, shard: int, after: int | None = None) -> int | None:
        """A waiting minibatch, which is out with `shard` from now on; none if none is waiting.

        It is the first; with rows that which follows what the shard had (`after`), if it waits and is of the same row.
        Only who is at the end of a row looks further than that: all shards wait for who draws.
        """
        if self.cursor[0] >= len(self.states_M):
            return None
        with self.lock:
            if self.starts_R is not None and after is not None and self._follows(after + 1):
                self.states_M[after + 1] = shard + 1
                return after + 1
            first = self._skip(int(self.cursor[0]))
            number = first if self.starts_R is None or first is None else self._in_rows(self.starts_R)
            if number is not None:
                self.states_M[number] = shard + 1
            self.cursor[0] = len(self.states_M) if first is None else first + (number == first)
        return number

    def _follows(self, number: int) -> bool:
        """It waits, and is of the row of the one before it."""
        return not self.begins_M[number] and bool(self.states_M[number] == WAITING)

    def _skip(self, number: int) -> int | None:
        """The first waiting one from there on."""
        while number < len(self.states_M):
            if self.states_M[number] == WAITING:
                return number
            number += 1
        return None

    def _in_rows(self, starts_R: np.ndarray) -> int:
        """A row that nobody began; else the middle of the longest stretch."""
        if (whole_R := self.states_M[starts_R] == WAITING).any():
            return int(starts_R[whole_R.argmax()])
        waiting_M = self.states_M == WAITING
        edges = np.flatnonzero(np.diff(waiting_M, prepend=False, append=False))
        begins, ends = edges[::2], edges[1::2]
        longest = (ends - begins).argmax()
        return int(begins[longest] + ends[longest]) // 2

    def give_back(self, shard: int) -> int:
        """What a dead shard had out waits again; returns how many."""
        with self.lock:
            numbers = self.ledger.give_back(shard)
            self.reopen(numbers)
        return len(numbers)

    def reopen(self, numbers: np.ndarray) -> None:
        """These wait again, though others were drawn since; with the lock held."""
        if len(numbers):
            self.cursor[0] = min(int(self.cursor[0]), int(numbers[0]))

    @property
    def finished(self) -> bool:
        """Every minibatch is used or dropped."""
        return bool(self.cursor[0] >= len(self.states_M)) and self.ledger.finished
