"""The watchdog: it finds shards that hang, by comparing their heartbeats with deadlines.

A shard may be stopped or stuck in a driver, and it may hold a lock that all others wait for. The kernel reports a
death, but not a hang. So each shard writes its current activity and the time when it began (its heartbeat) into shared
memory. The coordinator kills a shard whose activity takes far longer than usual; the shard is then replaced like any
shard that died. A shard that waits for a lock has a later deadline than the holder of the lock, so the holder is killed
first. All deadlines start anew when a shard is killed, and when the coordinator itself was stopped or too busy to
check.

Axes: N shards.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from speech3.engine.server_memory import COMPUTE_S, DOING, EPOCH, MINIBATCHES, READY, SINCE, SYNC_S

IDLE, COMPUTES, DRAWS, SYNCS, WAITS = range(5)  # activities of a shard
_WORDS = ("before it began an epoch", "in a minibatch", "drawing a minibatch", "in a sync", "waiting for the server")

LEAST_S = 20.0  # shortest deadline for a minibatch, for waiting for a lock, and for being idle while there is work
FIRST_S = 300.0  # deadline for the first minibatch, which loads code and data, and whose usual time is unknown
HELD_S = 5.0  # shortest deadline while holding a lock, for which others may wait
_TIMES = 20  # a deadline is this multiple of the usual time
_ASLEEP_S = 2.0  # if the coordinator has not checked for this long, it was stopped or busy


def patience_s(usual_s: float) -> float:
    """The deadline in seconds for work that usually takes `usual_s`; 0: the usual time is not known yet."""
    return max(LEAST_S, _TIMES * usual_s) if usual_s else FIRST_S


@dataclass(frozen=True)
class Hang:
    """A shard that hangs; its string is the message to the user."""

    worker: int
    seconds: float
    doing: int

    def __str__(self) -> str:
        return f"shard {self.worker} hung {_WORDS[self.doing]} ({self.seconds:.0f} s without a heartbeat)"


@dataclass(kw_only=True)
class Clock:
    """Measures how long ago a heartbeat was; time in which the coordinator was stopped or busy does not count.

    Attributes
    ----------
    looked
        When the coordinator last checked, on the clock `time.monotonic`.
    since
        Time before this moment does not count.
    """

    looked: float = field(default_factory=time.monotonic)
    since: float = 0.0

    def look(self, now: float) -> None:
        """Record a check; if the coordinator was stopped or busy before it, deadlines start anew."""
        if now - self.looked > _ASLEEP_S:
            self.since = now
        self.looked = now

    def quiet_s(self, heartbeat: float) -> float:
        """Seconds that count between a heartbeat and the last check."""
        return self.looked - max(self.since, heartbeat)


@dataclass
class Watchdog(Clock):
    """Learns how long each shard's minibatches take, and reports a shard that is past its deadline.

    Attributes
    ----------
    usual_N
        Each shard's usual seconds per minibatch, as last measured; 0: not known yet for this process.
    before_N
        Minibatches of the epoch that were computed in the shard's place before its process was started.
    """

    usual_N: np.ndarray
    before_N: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.before_N = np.zeros_like(self.usual_N)

    def started(self, worker: int, minibatches: float) -> None:
        """Record that a process was started in the place of a shard that had computed `minibatches` minibatches."""
        self.usual_N[worker], self.before_N[worker] = 0.0, minibatches

    def find(self, shards_N: np.ndarray, work: bool) -> Hang | None:
        """Return the shard that hangs, if any; of several, the one that has hung longest: others may wait for it.

        Parameters
        ----------
        shards_N
            See `ServerMemory`.
        work
            Whether there is an epoch to work on in which minibatches are waiting.
        """
        self.look(time.monotonic())
        done_N = shards_N[:, MINIBATCHES] > self.before_N
        self.usual_N[done_N] = shards_N[done_N, COMPUTE_S] / shards_N[done_N, MINIBATCHES]
        late = [
            Hang(worker, seconds, int(row[DOING]))
            for worker, row in enumerate(shards_N)
            if (seconds := self.quiet_s(row[SINCE])) > self._limit(worker, row, work)
        ]
        worst = max(late, key=lambda hang: hang.seconds, default=None)
        if worst:
            self.since = self.looked  # shards that waited for it get a new deadline
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
        if row[EPOCH]:  # it has ended the epoch and waits for the other members of its replica
            return max(LEAST_S, _TIMES * usual_sync_s * len(self.usual_N))
        return LEAST_S if work else math.inf
