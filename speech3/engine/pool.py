"""The pool: one queue of minibatches for all shards, so that a slow shard draws fewer.

Where a recurrent model carries its state from one minibatch to the next, minibatches form rows. A shard computes its
row to the end, then begins another; when all rows have been begun, it takes over the second half of the longest stretch
that is still waiting. So all shards are busy to the end, and each such split loses only one state. The minibatches that
were assigned to a shard when it died return to the queue.

While one shard draws, the others cannot, so a draw does not search the epoch: two cursors say where to begin, and move
back only when a shard dies.

Axes: M minibatches of an epoch, R rows of them, G members of a replica.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from speech3.engine.ledger import Ledger
from speech3.engine.world import USED, WAITING


class Pool:
    """The minibatches of an epoch.

    Parameters
    ----------
    ledger
        Says which minibatches are waiting.
    cursor
        int64 (2,): the number of a minibatch, and that of a row; no minibatch before the first is waiting, and no row
        before the second has its first minibatch waiting.
    lock
        Held while minibatches are drawn or returned, by processes that draw from the same memory.
    rows
        Minibatches that one shard should compute in order; None: the order does not matter.
    """

    def __init__(
        self, ledger: Ledger, cursor: np.ndarray, lock: AbstractContextManager[object],
        rows: Sequence[range] | None = None,
    ) -> None:  # fmt: skip
        self.ledger, self.states_M, self.cursor, self.lock = ledger, ledger.states_M, cursor, lock
        self.starts_R = None if rows is None else np.array([row.start for row in rows])
        self.begins_M = np.zeros(len(ledger) + 1, np.bool_)  # where a row begins, or the epoch ends
        self.begins_M[-1] = True
        if self.starts_R is not None:
            self.begins_M[self.starts_R] = True

    def fill(self, states_M: np.ndarray) -> None:
        """Begin an epoch, or the rest of one; `states_M` is the state of each minibatch."""
        self.ledger.begin(states_M)
        self.cursor[:] = 0

    def draw(self, shard: int, after: int | None = None) -> int | None:
        """Draw a waiting minibatch, which is assigned to `shard` from now on; None if none is waiting.

        It is the first that is waiting; with rows, the one following the shard's previous minibatch (`after`), if that
        is waiting and in the same row.
        """
        if self.cursor[0] >= len(self.states_M):
            return None
        with self.lock:
            if self.starts_R is not None and after is not None and self._follows(after + 1):
                self.states_M[after + 1] = shard + 1
                return after + 1
            first = self._skip(int(self.cursor[0]))
            number = first if self.starts_R is None or first is None else self._in_rows(self.starts_R, first)
            if number is not None:
                self.states_M[number] = shard + 1
            self.cursor[0] = len(self.states_M) if first is None else first + (number == first)
        return number

    def _follows(self, number: int) -> bool:
        """Whether this minibatch is waiting, and in the same row as the one before it."""
        return not self.begins_M[number] and bool(self.states_M[number] == WAITING)

    def _skip(self, number: int) -> int | None:
        """The first waiting minibatch from `number` on; without rows it is one of the next, except after a death."""
        size = 1
        while number < len(self.states_M):
            waiting = self.states_M[number : number + size] == WAITING
            if waiting.any():
                return number + int(waiting.argmax())
            number, size = number + size, 2 * size
        return None

    def _in_rows(self, starts_R: np.ndarray, first: int) -> int:
        """The start of a row that no shard has begun; else the middle of the longest waiting stretch.

        `first` is the first waiting minibatch. When all rows are begun, only those begun last have any
        waiting, so the search is short.
        """
        row = int(self.cursor[1])
        while row < len(starts_R) and self.states_M[starts_R[row]] != WAITING:
            row += 1
        self.cursor[1] = row
        if row < len(starts_R):
            return int(starts_R[row])
        waiting = self.states_M[first:] == WAITING
        edges = first + np.flatnonzero(np.diff(waiting, prepend=False, append=False))
        begins, ends = edges[::2], edges[1::2]
        longest = (ends - begins).argmax()
        return int(begins[longest] + ends[longest]) // 2

    def give_back(self, shard: int) -> int:
        """Return a dead shard's minibatches to the queue; returns their number."""
        return give_back([self], shard)

    def reopen(self, numbers: np.ndarray) -> None:
        """Move the cursors back to minibatches (their numbers, ascending) that wait again; call with the lock held."""
        if len(numbers):
            row = 0 if self.starts_R is None else int(np.searchsorted(self.starts_R, numbers[0]))
            self.cursor[:] = np.minimum(self.cursor, (numbers[0], row))

    @property
    def finished(self) -> bool:
        """Every minibatch is used or dropped."""
        return bool(self.cursor[0] >= len(self.states_M)) and self.ledger.finished


def give_back(pools: Sequence[Pool], shard: int) -> int:
    """Return a dead shard's minibatches to the first pool; returns their number.

    The other pools are those of the other members of a replica, all of which must have exited. A minibatch that one of
    them has used, for its slice of the model, is used.
    """
    with pools[0].lock:
        states_GM = np.stack([pool.states_M for pool in pools])
        out_M, used_M = (states_GM == shard + 1).any(0), (states_GM == USED).any(0)
        for pool in pools:
            pool.states_M[out_M & used_M] = USED
            pool.states_M[out_M & ~used_M] = WAITING
        waiting = np.flatnonzero(out_M & ~used_M)
        pools[0].reopen(waiting)
    return len(waiting)
