"""What becomes of the minibatches of an epoch: their states, and the one queue from which all shards draw them.

A minibatch is waiting, assigned to a shard, used (in a published version) or dropped (stale or refused). Only the shard
to which it is assigned writes its results, and each change of state is a single store, so a shard that is killed at any
instruction leaves it in one state or the other. Progress is a sum over the rows of the used minibatches, so none is
counted twice, or counted without being in the parameters.

With several partitions of the server, a minibatch is used as soon as one of them has published it, and dropped if none
has applied it. On one host all partitions write the same states; where each has its own (backend cluster, and the
slices of a model that replicas share), `combined` makes those of the whole server.

Where a recurrent model carries its state from one minibatch to the next, minibatches form rows. A shard computes its
row to the end, then begins another; when all are begun, it takes over the second half of the longest stretch that still
waits. So all shards are busy to the end, and each such split loses only one state.

Axes: M minibatches of an epoch, R rows of them, L states of different parts, G members of a replica.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

import numba
import numpy as np

from speech3.engine.gradient import Step
from speech3.engine.interface import REFUSED, STALE, USED, WAITING, Progress, Rows

STALENESS_BINS = 64  # staleness of 63 and more counts as 63
Lock = AbstractContextManager[object]


@dataclass(frozen=True, eq=False)
class MinibatchStates:
    """The state and results of every minibatch, in memory that the processes of a host share, or in that of one.

    `frames_M`, `loss_M`, `correct_M`: number of frames, mean loss and number classified correctly, all before the
    update; zero until computed.
    """

    states_M: np.ndarray  # int32: WAITING, USED, STALE, REFUSED, or s + 1 while the minibatch is assigned to shard s
    frames_M: np.ndarray
    loss_M: np.ndarray
    correct_M: np.ndarray
    refusals_M: np.ndarray  # number of server partitions that did not apply it
    staleness_M: np.ndarray  # staleness of its push, once that is published
    left_out_M: np.ndarray  # number of its frames that the loss could not use; like all but loss_M (float64) int32

    @classmethod
    def of(cls, minibatches: int) -> "MinibatchStates":
        return cls(**{name: np.zeros(minibatches, dtype) for name, dtype in STATE_ARRAYS.items()})

    def __len__(self) -> int:
        return len(self.states_M)

    def begin(self, states_M: np.ndarray) -> None:
        """Begin an epoch, or the rest of one: minibatches that were used or dropped before are not counted again."""
        for field in fields(self):
            getattr(self, field.name)[:] = 0
        self.states_M[:] = states_M

    def computed(self, number: int, step: Step) -> None:
        """Write a minibatch's results; only the shard that computed it may."""
        self.frames_M[number], self.loss_M[number], self.correct_M[number] = step.frames, step.loss, step.correct
        self.left_out_M[number] = step.left_out
        self.refusals_M[number] = self.staleness_M[number] = 0

    def forget(self, numbers: Sequence[int] | np.ndarray) -> None:
        """Clear the results of minibatches that will be computed again, including earlier refusals."""
        for rows in (self.frames_M, self.refusals_M, self.staleness_M, self.left_out_M):
            rows[numbers] = 0

    def rows(self, numbers: np.ndarray) -> "MinibatchStates":
        return MinibatchStates(**{field.name: getattr(self, field.name)[numbers] for field in fields(self)})

    def write(self, numbers: np.ndarray, rows: "MinibatchStates") -> None:
        for field in fields(self):
            getattr(self, field.name)[numbers] = getattr(rows, field.name)

    def publish(self, numbers: Sequence[int], staleness: int) -> None:
        """Mark minibatches of a published version as used; a second call with the same numbers changes nothing."""
        for number in numbers:
            self.staleness_M[number] = max(staleness, self.staleness_M[number])
            self.states_M[number] = USED

    def refuse(self, numbers: Sequence[int], ended: int, partitions: int) -> None:
        """Count that one of `partitions` partitions did not apply these minibatches; drop those that none applied.

        `ended` is STALE or REFUSED, the state of those that are dropped.
        """
        for number in numbers:
            self.refusals_M[number] += 1
            if self.refusals_M[number] == partitions:
                self.states_M[number] = ended

    @property
    def ended(self) -> int:
        return int(np.count_nonzero(self.states_M < 0))

    @property
    def finished(self) -> bool:
        return self.ended == len(self)

    def counts(self) -> dict[int, int]:
        return {state: int(np.count_nonzero(self.states_M == state)) for state in (USED, STALE, REFUSED)}

    def progress(self, before: dict[int, int]) -> Progress:
        """Minibatches used and dropped since `counts` returned `before`, and the results of those used."""
        used, stale, refused = (count - before[state] for state, count in self.counts().items())
        bins = np.zeros(STALENESS_BINS, np.int64)
        arrays = [*(getattr(self, name) for name in STATE_ARRAYS), bins]
        frames, loss_sum, correct, missed, left_out = _sums(*arrays)
        staleness = tuple(bins[: int(np.flatnonzero(bins).max(initial=-1)) + 1].tolist())
        counts = used, stale, refused, frames, loss_sum, correct
        return Progress(*counts, missed=missed, left_out=left_out, staleness=staleness)


STATE_ARRAYS: dict[str, type] = {
    field.name: np.float64 if field.name == "loss_M" else np.int32 for field in fields(MinibatchStates)
}


def combined(states_of_parts: Sequence[MinibatchStates]) -> MinibatchStates:
    """The states of a whole server, from those of its parts, each of which wrote about its own part of the parameters.

    A minibatch is used if any part has published it, dropped if all have dropped it, and else assigned or waiting.
    """

    def rows(name: str) -> np.ndarray:
        return np.stack([getattr(states, name) for states in states_of_parts])

    states_LM = rows("states_M")
    states_M = np.where((states_LM == USED).any(0), USED, states_LM.max(0))
    refusals_M = np.isin(states_LM, (STALE, REFUSED)).sum(0)
    wrote_1M = rows("frames_M").argmax(0)[None]  # all parts that have written results wrote the same
    frames_M, loss_M, correct_M = (
        np.take_along_axis(rows(name), wrote_1M, 0)[0] for name in ("frames_M", "loss_M", "correct_M")
    )
    staleness_M, left_out_M = rows("staleness_M").max(0), rows("left_out_M").max(0)
    return MinibatchStates(states_M, frames_M, loss_M, correct_M, refusals_M, staleness_M, left_out_M)


@numba.njit(cache=True, nogil=True)
def _sums(states, frames, loss, correct, refusals, staleness, left_out, bins):  # type: ignore[no-untyped-def]
    # One pass: the coordinator calls this ten times a second, and for a snapshot with all locks held. An epoch of 1,000
    # hours has 1.4 million rows; NumPy takes 30 ms to sum over a mask of that length.
    total, loss_sum, right, missed, lost = 0, 0.0, 0, 0, 0
    for number in range(len(states)):
        if states[number] == USED:
            lost += left_out[number]
        if states[number] == USED and frames[number] > 0:  # those used in an earlier part of the epoch have no results
            total += frames[number]
            loss_sum += loss[number] * frames[number]
            right += correct[number]
            missed += refusals[number]
            bins[min(staleness[number], len(bins) - 1)] += 1
    return total, loss_sum, right, missed, lost


class MinibatchQueue:
    """The minibatches of an epoch; two cursors say where to search, so that a draw does not search the epoch.

    Parameters
    ----------
    cursor
        int64 (2,): the number of a minibatch, and that of a row; no minibatch before the first is waiting, and no row
        before the second has its first minibatch waiting.
    lock
        Held while minibatches are drawn or returned, by processes that draw from the same memory.
    """

    def __init__(self, states: MinibatchStates, cursor: np.ndarray, lock: Lock, rows: Rows = None) -> None:
        self.states, self.states_M, self.cursor, self.lock = states, states.states_M, cursor, lock
        self.starts_R = None if rows is None else np.array([row.start for row in rows])
        self.begins_M = np.zeros(len(states) + 1, np.bool_)  # where a row begins, or the epoch ends
        self.begins_M[-1] = True
        if self.starts_R is not None:
            self.begins_M[self.starts_R] = True

    def fill(self, states_M: np.ndarray) -> None:
        self.states.begin(states_M)
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
        """The start of a row that no shard has begun; else a place in the longest waiting stretch.

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
        begin, end = int(begins[longest]), int(ends[longest])
        # The first half is left to the shard that works just before it; after a resume or a death there is none.
        return (begin + end) // 2 if self.states_M[begin - 1] > 0 else begin

    def give_back(self, shard: int) -> int:
        return give_back([self], shard)

    def reopen(self, numbers: np.ndarray) -> None:
        """Move the cursors back to minibatches (their numbers, ascending) that wait again; call with the lock held."""
        if len(numbers):
            row = 0 if self.starts_R is None else int(np.searchsorted(self.starts_R, numbers[0]))
            self.cursor[:] = np.minimum(self.cursor, (numbers[0], row))

    @property
    def finished(self) -> bool:
        return bool(self.cursor[0] >= len(self.states_M)) and self.states.finished


def give_back(queues: Sequence[MinibatchQueue], shard: int) -> int:
    """Return a dead shard's minibatches to the first queue; returns their number.

    The other queues are those of the other members of a replica, all of which must have exited. A minibatch that one of
    them has used, for its slice of the model, is used.
    """
    with queues[0].lock:
        states_GM = np.stack([queue.states_M for queue in queues])
        out_M, used_M = (states_GM == shard + 1).any(0), (states_GM == USED).any(0)
        for queue in queues:
            queue.states_M[out_M & used_M] = USED
            queue.states_M[out_M & ~used_M] = WAITING
        waiting = np.flatnonzero(out_M & ~used_M)
        queues[0].reopen(waiting)
    return len(waiting)
