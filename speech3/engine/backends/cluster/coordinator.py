"""Backend cluster: shards and server partitions as Ray actors on any node, beyond one host.

Shards, partitions, pushes and fetches are those of backend shared, but are really sent (`actors.py`). This module is
the coordinator: it sets shards to work, gathers the partitions' minibatch states into that of the server, and handles
deaths.

- A shard dies, alone or with its node: partitions ignore its messages from then on, its minibatches return to the
  queue, and another actor is started wherever there is room. Until there is room, the other shards continue.
- A shard hangs: it is killed, and then replaced like one that died, if it pushes nothing for far longer than its
  minibatches take (`processes.py`). A partition that does not reply for a minute counts as dead.
- A partition dies, and its parameters are lost: the whole server is restored from its last copy, which is taken every
  few seconds, and the minibatches since then are computed again. No minibatch counts as used that is not in the
  parameters.
- This process dies: Ray stops the actors, and the run resumes from its checkpoint, as in every backend.

A copy is taken partition by partition while pushes continue. A push in flight may then be in some partitions of the
copy and not in others, like the push of a shard that dies in a round of syncs; its minibatches count as used, as they
do then.
"""

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.cluster.actors import (
    Facts,
    Order,
    OrderResult,
    PartitionReport,
    ShardActor,
    ShardWork,
    facts_of,
    plans_of,
)
from speech3.engine.backends.cluster.remote import (
    TIMEOUT_S,
    Lost,
    RemoteServer,
    advice,
    check,
    check_room,
    connect,
    failure,
    resources,
)
from speech3.engine.backends.processes import DEATHS, LOOK_S, Clock, patience_s
from speech3.engine.flat import flatten, partition_bounds
from speech3.engine.interface import WAITING, BuildOn, Progress, Rate, Snapshot, WorkerParts
from speech3.engine.pool import MinibatchStates, combined
from speech3.errors import MachineError

COPY_S = 5.0  # least time between two copies of the server
COPY_SHARE = 0.05  # share of the time that copies may take
JOIN_S = 20.0  # how long shards that are ready wait for the others before they begin


@dataclass(eq=False)
class ShardHandle:
    actor: Any
    # The pending reply: to `ping`, then to `prepare`, then the `OrderResult` of each order; None: it is idle.
    pending: Any
    placed: Facts | None = None  # its facts, once it has replied to `ping`, so a node has room for it
    prepared: bool = False
    incarnation: int = -1  # the incarnation under which it was last set to work; -1: none yet
    go: bool = True  # whether it must be set to work when it is idle
    deaths: int = 0  # deaths of its predecessors in succession
    started: float = field(default_factory=time.monotonic)  # when its actor was created
    heard: float = 0.0  # when the last news of its work came

    @property
    def idle(self) -> bool:
        return self.pending is None

    @property
    def busy(self) -> bool:
        return self.prepared and not self.idle


@dataclass(frozen=True, eq=False)
class ServerCopy:
    """A copy of the server's state, with the minibatch states and the number of published versions at that time."""

    tensors: dict[str, Tensor]
    states: MinibatchStates
    versions: int = 0


class Cluster:
    """The backend of Ray actors.

    Parameters
    ----------
    build
        Makes the parts of a shard on its node; the files that it reads must have the same paths on all nodes.
    parts
        Parts of this process, with which those on other nodes are compared.
    device
        ``cpu``: a shard takes a CPU of a node; ``cuda``: also a GPU. The server is on CPUs.

    Raises
    ------
    Speech3Error
        There is no Ray cluster at the address (see `connect`), or it has no room; a shard differs from the others,
        fails, or dies repeatedly.
    """

    def __init__(
        self,
        build: BuildOn,
        parts: WorkerParts,
        config: AsgdConfig,
        *,
        workers: int,
        device: str = "cpu",
        codec: CodecConfig | None = None,
        address: str | None = None,
    ) -> None:
        own, codec = flatten(parts.model), codec or CodecConfig()
        self.facts, self.gpus = facts_of(parts, own), int(device == "cuda")
        self.to_prepare = (build, device, config, codec, workers)
        self.kind: Any = ray.remote(num_cpus=1, num_gpus=self.gpus)(ShardActor)
        self.clock, self.most_pushed = Clock(), config.max_distance
        plans = plans_of(parts, own, config, workers, codec)
        self.server = RemoteServer(plans, partition_bounds(own, config.partitions), self.facts, self._receive_report)
        self.copied = ServerCopy({"parameters": own.vector_K.cpu().clone()}, MinibatchStates.of(len(parts.source)))
        self.before = self.copied.states.counts()
        self.order, self.next_incarnation = Order(-1, 0, Rate(0.0, 1, 1), ()), 0
        self._count_from_zero()
        self.workers: list[ShardHandle] = []
        self.ours = connect(address, workers)
        try:
            check_room(workers, self.gpus)
            self.workers = [self._start_worker(0) for _ in range(workers)]
            self._begin_again()
            self._wait_for_shards(JOIN_S)
            # Replacements of dead actors are not compared by source files, which may be edited during the run.
            self.facts = self.server.ours = replace(self.facts, engine="")
        except BaseException:
            self.close()
            raise

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end."""
        self._count_from_zero()
        self._wait_for_shards(0.0)
        states = MinibatchStates.of(len(states_M))
        states.begin(np.minimum(states_M, WAITING))
        self.copied, self.before = ServerCopy(self.copied.tensors, states), states.counts()
        self.order, self.at_work = Order(-1, epoch, rate, ()), True
        self._begin_again()
        self.began = self.last_used = self.copied_at = time.monotonic()
        while not self._done():
            self._look()
            yield self._progress(self.states, max(self.versions))
        yield self._progress(self.states, max(self.versions))

    def snapshot(self) -> Snapshot:
        """A copy of the server now or, if a partition has just died, the last copy; shards are not stopped."""
        if self.at_work:
            self._guarded(self._copy)
        copied = self.copied
        progress = self._progress(copied.states, copied.versions)
        return Snapshot(dict(copied.tensors), copied.states.states_M.copy(), progress)

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        self.at_work = False
        there = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        self.copied = replace(self.copied, tensors=there)

    def close(self) -> None:
        """Stop the actors, and the Ray cluster if it was started by this process."""
        self.at_work = False
        if ray.is_initialized():
            for worker in self.workers:
                ray.kill(worker.actor)
            self.server.close()
        self.workers = []
        if self.ours:
            ray.shutdown()

    def _count_from_zero(self) -> None:
        self.at_work = False
        self.began = self.last_used = self.copied_at = time.monotonic()
        self.placed_at, self.copy_took = time.monotonic(), 0.0
        self.hang = ""
        self.returned = self.restarts = self.undone = self.server_deaths = self.deaths_since_copy = 0
        self.incarnations: dict[int, int] = {}  # incarnation of this epoch -> worker
        self.work: dict[int, ShardWork] = {}

    def _look(self) -> None:
        awaited = [worker.pending for worker in self.workers if not worker.idle]
        came = ray.wait(awaited, timeout=LOOK_S)[0] if awaited else []
        if not awaited:
            time.sleep(LOOK_S)
        self._guarded(self.server.poll)
        for number, worker in enumerate(self.workers):
            self._guarded(self._check, number, worker, came)
        self._guarded(self._replace_hung)
        if self.at_work and time.monotonic() - self.copied_at > max(COPY_S, self.copy_took / COPY_SHARE):
            self._guarded(self._copy)
        if any(worker.placed for worker in self.workers):
            self.placed_at = time.monotonic()
        elif time.monotonic() - self.placed_at > TIMEOUT_S:
            raise MachineError(f"no Ray node had room for a shard for {TIMEOUT_S:.0f} s: {advice()}")

    def _wait_for_shards(self, seconds: float) -> None:
        """Wait until all shards are prepared; after `seconds`, begin without those that found no room, if any can."""
        begun = time.monotonic()
        while not all(worker.prepared for worker in self.workers):
            late = time.monotonic() - begun > seconds
            nobody_near = all(worker.prepared or not worker.placed for worker in self.workers)
            if late and nobody_near and any(worker.prepared for worker in self.workers):
                return
            self._look()

    def _done(self) -> bool:
        """Whether every minibatch is used or dropped, in all partitions, and a copy of that state was taken."""
        if any(worker.busy for worker in self.workers):
            return False
        if self.states.finished or not any(worker.go and worker.prepared for worker in self.workers):
            self._guarded(self._copy)
            self.at_work = not self.copied.states.finished
            if self.at_work:
                for incarnation in self.incarnations:
                    self._guarded(self._give_back, incarnation)
        return not self.at_work

    # The server

    def _receive_report(self, partition: int, report: PartitionReport) -> None:
        numbers = report.numbers
        self.of_partitions[partition].write(numbers, report.rows)
        self.states.write(numbers, combined([states.rows(numbers) for states in self.of_partitions]))
        self.versions[partition] += report.versions
        for incarnation, work in report.work.items():
            self._worked(incarnation, work)
        if report.versions:
            self.last_used = time.monotonic()

    def _worked(self, incarnation: int, work: ShardWork) -> None:
        """Record a shard's work if it is newer: a partition's report may arrive after the shard's own outcome."""
        if incarnation in self.incarnations and work.newer(self.work.get(incarnation, work)):
            self.work[incarnation] = work
            self.workers[self.incarnations[incarnation]].heard = time.monotonic()

    def _copy(self) -> None:
        begun = time.monotonic()
        tensors = self.server.copy()
        if self.states.ended > self.copied.states.ended:
            self.deaths_since_copy = 0
        self.copied, self.copied_at = (ServerCopy(tensors, deepcopy(self.states), max(self.versions)), time.monotonic())
        self.copy_took = self.copied_at - begun

    def _guarded(self, action: Callable[..., object], *args: Any) -> None:
        """Perform an action; if a partition turns out to be lost, restore the last copy."""
        try:
            action(*args)
        except Lost as lost:
            self.server_deaths += 1
            self.deaths_since_copy += 1
            if self.deaths_since_copy >= DEATHS:
                raise MachineError(
                    f"partitions of the server died {DEATHS} times and nothing was trained in between; the last "
                    f"error: {lost}\nUse more partitions (training.asgd.partitions) or nodes with more memory"
                ) from lost
            self.undone += self.states.ended - self.copied.states.ended
            self._begin_again()

    def _begin_again(self) -> None:
        """Restore the server from the last copy, and set the shards to work again."""
        self.states = deepcopy(self.copied.states)
        states_M = self.states.states_M
        self.states.forget(np.flatnonzero(states_M == WAITING))
        partitions = len(self.server.plans)
        self.versions = [self.copied.versions] * partitions
        self.of_partitions = [MinibatchStates.of(len(states_M)) for _ in range(partitions)]
        for states in self.of_partitions:
            states.begin(states_M)
        self.server.begin(self.copied.tensors, states_M)
        for worker in self.workers:
            worker.go = True

    # The shards

    def _start_worker(self, deaths: int) -> ShardHandle:
        actor: Any = self.kind.options(scheduling_strategy="SPREAD").remote()
        return ShardHandle(actor, actor.ping.remote(), deaths=deaths)

    def _check(self, number: int, worker: ShardHandle, came: list[Any]) -> None:
        """Process a shard's reply, and set the shard to work if it is due."""
        if not worker.idle and worker.pending in came:
            pending, worker.pending = worker.pending, None
            try:
                self._received(number, worker, ray.get(pending))
            except RayTaskError as error:
                where = f" on node {worker.placed.node}" if worker.placed else ""
                raise failure(f"shard {number}{where}", error) from error
            except RayError:
                self._replace(number, worker)
                return
        if self.at_work and worker.prepared and worker.idle and worker.go and not self.states.finished:
            incarnation, self.next_incarnation = self.next_incarnation, self.next_incarnation + 1
            self.server.ask("admit", incarnation)
            self.incarnations[incarnation], worker.incarnation, worker.go = number, incarnation, False
            order = replace(self.order, incarnation=incarnation, partitions=tuple(self.server.actors))
            worker.pending, worker.heard = worker.actor.run.remote(order), time.monotonic()

    def _received(self, number: int, worker: ShardHandle, what: Facts | OrderResult) -> None:
        if isinstance(what, OrderResult):
            self._worked(worker.incarnation, what.work)
            if what.lost and not worker.go:
                self.server.ask("ping")  # raises `Lost` if the coordinator cannot reach them either
                self._replace(number, worker)
            return
        check(f"shard {number}", what, self.facts)
        if worker.placed:
            worker.prepared = True
        else:
            worker.placed, worker.pending = what, worker.actor.prepare.remote(number, *self.to_prepare)

    def _replace_hung(self) -> None:
        """Replace shards that have sent nothing for far longer than the minibatches of the longest push take."""
        self.clock.look(time.monotonic())
        for number, worker in enumerate(self.workers):
            done = self.work.get(worker.incarnation, ShardWork()).report
            usual_s = self.most_pushed * done.compute_s / done.minibatches if done.minibatches else 0.0
            if worker.busy and (quiet_s := self.clock.quiet_s(worker.heard)) > patience_s(usual_s):
                self.hang = f"shard {number} hung ({quiet_s:.0f} s without a push) and was killed"
                self._replace(number, worker)

    def _replace(self, number: int, worker: ShardHandle) -> None:
        """Replace a dead shard, and return its minibatches to the queue."""
        ray.kill(worker.actor)
        did = worker.incarnation in self.work and self.work[worker.incarnation].report.minibatches
        deaths = worker.deaths
        if worker.placed:  # else its node died before it was placed
            deaths, self.restarts = 1 if did else deaths + 1, self.restarts + 1
        if deaths >= DEATHS:
            raise MachineError(
                f"shard {number} died {DEATHS} times without a minibatch in between (often the kernel kills it for "
                f"lack of memory): use fewer workers or a smaller model; Ray's logs are under /tmp/ray on its node"
            )
        self.workers[number] = self._start_worker(deaths)
        if worker.incarnation in self.incarnations:
            self._give_back(worker.incarnation)

    def _give_back(self, incarnation: int) -> None:
        for partition, report in enumerate(self.server.ask("expel", incarnation)):
            self._receive_report(partition, report)
        numbers = self.server.ask_queue("give_back", incarnation, self.states.states_M)
        for states in (self.states, *self.of_partitions):
            states.forget(numbers)
            states.states_M[numbers] = WAITING
        self.returned += len(numbers)
        if numbers:
            for worker in self.workers:
                worker.go = True

    def _progress(self, states: MinibatchStates, versions: int) -> Progress:
        each = [ShardWork() for _ in self.workers]
        for incarnation, work in self.work.items():
            each[self.incarnations[incarnation]] += work
        total = sum(each, start=ShardWork())
        seconds, shards = max(0.0, self.last_used - self.began), tuple(work.report for work in each)
        done = replace(states.progress(self.before), versions=versions, seconds=seconds, up=total.up, down=total.down)
        return replace(done, returned=self.returned, restarts=self.restarts, shards=shards, note=self._note())

    def _note(self) -> str:
        said = [self.hang] if self.hang else []
        if self.server_deaths:
            said.append(
                f"a partition of the server died ({self.server_deaths} times): the server was restored from its "
                f"last copy, and {self.undone} minibatches were computed again"
            )
        now = time.monotonic()
        missing = sum(not worker.placed and now - worker.started > JOIN_S for worker in self.workers)
        if missing:
            said.append(f"{missing} of {len(self.workers)} shards found no room: the cluster has {resources()}")
        return "; ".join(said)
