"""The workers of Sandblaster on a virtual clock: real gradients in one process, so that 64 workers run on a laptop.

Time is charged for a minibatch of a portion (`compute_s` of its worker), for an operation on the partitions (`sync_s`
divided by their number, as for the sync of a server of that size), and for messages: two latencies for every portion
and for every operation. With its first portion of an evaluation a worker also fetches the point (`4 K / bandwidth` and
two latencies), and at the end all workers send their sums to the partitions at the same time (`4 K / bandwidth` and one
latency). Partitions are machines of their own, as in the paper (in `processes`, any free worker serves them), and there
are as many as workers, so no partition's link is busier than a worker's.

The gradient of a portion is computed when the first worker that was assigned it finishes; its backup task costs only
virtual time. As in `processes`, a worker finishes a portion even when it is no longer needed.

Axes: K values of the model, N workers.
"""

import copy
import heapq
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from speech3.engine.sandblaster.partition import Gather, Layout, Operation, Vectors
from speech3.engine.sandblaster.portions import Portions
from speech3.engine.sandblaster.worker_group import Compute, Computed, Evaluation, Workspace, together, with_waits
from speech3.engine.simulate import Times
from speech3.engine.world import Parts, ShardReport


class Virtual:
    """The worker group on a virtual clock; `layout` and ``times.compute_s`` have the same number of workers.

    Parameters
    ----------
    parts
        Parts of one worker; each worker gets a copy of its model.
    """

    note = ""

    def __init__(self, parts: Parts, times: Times, layout: Layout) -> None:
        self.times, self.layout, self.seed = times, layout, parts.seed
        self._vector = 4 * layout.values  # bytes
        self.vectors = Vectors.over(layout, bytearray(layout.bytes))
        self.workspaces = [
            Workspace(replace(parts, model=copy.deepcopy(parts.model)), self.vectors, layout, worker)
            for worker in range(layout.workers)
        ]  # fmt: skip
        self.epoch = self.evaluation = 0
        self._from_zero(0.0)

    def _from_zero(self, seconds: float) -> None:
        workers = range(self.layout.workers)
        self.now, self.up, self.down, self.returned, self.restarts = 0.0, 0, 0, 0, 0
        self.free_N = [0.0 for _ in workers]  # when each worker is free
        self.done_N = [ShardReport() for _ in workers]
        self.random = [np.random.default_rng((self.seed, self.epoch, worker)) for worker in workers]
        later = [(time - seconds, worker) for worker, time in self.times.failures if time >= seconds]
        self.failures = sorted(later)

    def begin(self, epoch: int, seconds: float) -> Generator[None, None, None]:
        """Begin an epoch with its clock at zero; failures are given on the clock of the whole run."""
        self.epoch = epoch
        self._from_zero(seconds)
        yield

    def seconds(self) -> float:
        """Seconds since the epoch began, on the virtual clock."""
        return self.now

    def reports(self) -> tuple[ShardReport, ...]:
        """Each worker's report; a portion with a backup task counts for both workers, and fetching counts as sync."""
        return with_waits(self.done_N, self.now)

    def evaluate(self, at: int, numbers: Sequence[tuple[int, ...]]) -> Generator[None, None, Evaluation]:
        """Compute loss and gradient at point `at`; yields after every portion."""
        self.evaluation += 1
        portions, kept = Portions(len(numbers)), dict[int, Computed]()
        for worker, portion in self._first_to_finish(portions, numbers):
            done = self.workspaces[worker].compute(Compute(self.evaluation, at, self.epoch, portion, numbers[portion]))
            if done.bad is not None:
                return Evaluation(bad=done.bad)
            self.workspaces[worker].keep(self.evaluation)
            kept[portion] = done
            yield
        return together(kept.values(), portions.keepers)

    @torch.no_grad()
    def operate(self, operation: Operation) -> Generator[None, None, np.ndarray]:
        """Apply an operation to all partitions at the same time; returns the sum of the results."""
        while self.failures and self.failures[0][0] <= self.now:
            self._die()
        if isinstance(operation, Gather):
            self.now += self.times.latency_s + self._vector / self.times.bandwidth
            self.up += self._vector * len(operation.workers)
        partitions = range(self.layout.workers)
        self.now += 2 * self.times.latency_s + self.times.sync_s / len(partitions)
        yield
        answers = [operation(self.vectors, self.layout.partition(part)) for part in partitions]
        return sum(answers[1:], start=answers[0])

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""

    def _first_to_finish(self, portions: Portions, numbers: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
        """Yield (worker, portion) for the first worker to finish each portion, in order of time; advances the clock."""
        order, idle, fetched = itertools.count(), set[int](), set[int]()
        queue = [(max(self.now, time), next(order), worker, -1) for worker, time in enumerate(self.free_N)]
        heapq.heapify(queue)
        while not portions.finished:
            if self.failures and self.failures[0][0] <= queue[0][0]:
                time, dead = self._die()
                self.returned += portions.lost(dead)
                fetched.discard(dead)
                queue = [event for event in queue if event[2] != dead]
                queue.append((self.free_N[dead], next(order), dead, -1))
                queue += [(max(self.now, time), next(order), worker, -1) for worker in sorted(idle - {dead})]
                heapq.heapify(queue)
                idle.clear()
                continue
            time, _, worker, portion = heapq.heappop(queue)
            self.free_N[worker] = time
            if portion >= 0 and portions.computed(worker, portion):
                self.now = time
                yield worker, portion
            if portions.finished or (found := portions.assign(worker)) is None:
                idle.add(worker)
                continue
            self.free_N[worker] += self._seconds(worker, numbers[found], fetch=worker not in fetched)
            fetched.add(worker)
            heapq.heappush(queue, (self.free_N[worker], next(order), worker, found))

    def _seconds(self, worker: int, numbers: tuple[int, ...], *, fetch: bool) -> float:
        """Seconds from when a worker is free until the coordinator knows that it computed a portion."""
        times = self.times
        spread = np.exp(times.jitter * self.random[worker].standard_normal(len(numbers)))
        compute_s, sync_s = times.compute_s[worker] * float(spread.sum()), 2 * times.latency_s
        if fetch:
            sync_s += 2 * times.latency_s + self._vector / times.bandwidth
            self.down += self._vector
        self.done_N[worker] += ShardReport(len(numbers), compute_s=compute_s, sync_s=sync_s)
        return compute_s + sync_s

    def _die(self) -> tuple[float, int]:
        """Take the next failure and replace its worker by an empty one; returns its time and the worker."""
        time, worker = self.failures.pop(0)
        self.restarts += 1
        self.free_N[worker] = time + self.times.restart_s
        self.workspaces[worker].loaded = self.workspaces[worker].summed = -1
        return time, worker
