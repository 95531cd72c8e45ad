"""Finds shards that hang: that have been busy with one thing for far longer than their own minibatches take.

A shard may be stopped, or stuck in a driver, and it may hold a lock for which all others wait. The kernel reports a
death, but not this. So each shard says what it is doing and since when, and the coordinator kills one that is overdue,
which is then replaced like any that died. A shard that waits for a lock has the longest deadline, and all deadlines
begin anew when a shard is killed, and when the coordinator itself was stopped or busy and did not look.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from speech3.engine.server_memory import COMPUTE_S, DOING, EPOCH, MINIBATCHES, READY, SINCE, SYNC_S

RESTS, COMPUTES, DRAWS, SYNCS, WAITS = range(5)  # what a shard is doing
_WORDS = ("before it began an epoch", "in a minibatch", "drawing a minibatch", "in a sync", "waiting for the server")

LEAST_S = 20.0  # at a minibatch, or resting though there is work
FIRST_S = 300.0  # at the first minibatch, whose usual time is not known and in which much is loaded
HELD_S = 5.0  # with a lock for which others wait
_TIMES = 20  # its usual time
_ASLEEP_S = 2.0  # without a look of the coordinator: it was stopped or busy


def patience_s(usual_s: float) -> float:
    """The deadline of a piece of work that usually takes `usual_s`; 0: its usual time is not known yet."""
    return max(LEAST_S, _TIMES * usual_s) if usual_s else FIRST_S


@dataclass(frozen=True)
class Hang:
    """A shard that hangs; as a string, what the user is told."""

    worker: int
    seconds: float
    doing: int

    def __str__(self) -> str:
        return f"shard {self.worker} hung {_WORDS[self.doing]} ({self.seconds:.0f} s without a sign of life)"


@dataclass
class Watchdog:
    """Learns how long each shard's minibatches take, and says which shard is overdue.

    Attributes
    ----------
    usual_N
        Seconds of a minibatch of each shard, as last known; 0: not known yet.
    """

    usual_N: np.ndarray
    looked: float = field(default_factory=time.monotonic)
    since: float = 0.0

    def look(self, shards_N: np.ndarray, work: bool) -> Hang | None:
        """The shard that hangs; of several the one that has hung longest, since the others may wait for it.

        Parameters
        ----------
        shards_N
            As of `ServerMemory`.
        work
            There is an epoch to work on, and minibatches wait.
        """
        now = time.monotonic()
        if now - self.looked > _ASLEEP_S:
            self.since = now
        self.looked = now
        done_N = shards_N[:, MINIBATCHES] > 0
        self.usual_N[done_N] = shards_N[done_N, COMPUTE_S] / shards_N[done_N, MINIBATCHES]
        late = [
            Hang(worker, seconds, int(row[DOING]))
            for worker, row in enumerate(shards_N)
            if (seconds := now - max(self.since, row[SINCE])) > self._limit(worker, row, work)
        ]
        worst = max(late, key=lambda hang: hang.seconds, default=None)
        if worst:
            self.since = now  # those that waited for it get time
        return worst

    def _limit(self, worker: int, row: np.ndarray, work: bool) -> float:
        usual_s, doing = float(self.usual_N[worker]), int(row[DOING])
        if not row[READY]:
            return math.inf  # it is still building its parts, which takes long for a large corpus
        if doing == COMPUTES:
            return patience_s(usual_s)
        usual_sync_s = float(row[SYNC_S]) / max(1.0, float(row[MINIBATCHES]))
        if doing in (DRAWS, SYNCS):
            return max(HELD_S, _TIMES * usual_sync_s)
        if doing == WAITS:
            return max(LEAST_S, _TIMES * usual_sync_s * len(self.usual_N))
        return LEAST_S if work and not row[EPOCH] else math.inf
