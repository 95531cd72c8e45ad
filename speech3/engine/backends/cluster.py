"""Backend cluster: shards and server partitions as Ray actors on any node, beyond one host.

Shards, partitions, pushes and fetches are those of backend shared, but are really sent (`cluster_actors.py`). This
module is the coordinator, with its connection to Ray and its view of the server. Ray starts processes on other hosts,
carries messages, and knows which processes are alive; the coordinator sets shards to work, gathers the partitions'
minibatch states into those of the server, and handles deaths.

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
do then. Only what runs this backend may import this module, since Ray is an optional dependency.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
import torch
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.cluster_actors import (
    Facts,
    Order,
    OrderResult,
    PartitionActor,
    PartitionPlan,
    PartitionReport,
    ShardActor,
    ShardWork,
    facts_of,
    plans_of,
)
from speech3.engine.backends.processes import DEATHS, LOOK_S, Clock, patience_s
from speech3.engine.flat import flatten, partition_bounds
from speech3.engine.interface import WAITING, BuildOn, Progress, Rate, Snapshot, WorkerParts
from speech3.engine.pool import MinibatchStates, combined
from speech3.errors import DataError, MachineError, SettingError, Speech3Error

COPY_S = 5.0  # least time between two copies of the server
COPY_SHARE = 0.05  # share of the time that copies may take
JOIN_S = 20.0  # how long shards that are ready wait for the others before they begin
ROOM_S = 60.0  # timeout for a node with room for a shard
TIMEOUT_S = 60.0  # timeout for a node with room for a partition, and for a reply
# Before another attempt: Ray takes a while to know that a node is gone, and starts actors there until then.
_REST_S = 0.2
_PROBE_S = 5.0
_PORT = 6379  # Ray's own default
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface and empty SETTINGS


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
        elif time.monotonic() - self.placed_at > ROOM_S:
            raise MachineError(f"no Ray node had room for a shard for {ROOM_S:.0f} s: {advice()}")

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


class Lost(Exception):
    """A partition is dead or cannot be reached."""


def failure(who: str, error: RayTaskError) -> Speech3Error:
    """The error of an actor; only its message if that is meant for the user, else its traceback."""
    while isinstance(error.cause, RayTaskError):
        error = error.cause
    return DataError(f"{who}: {error.cause if isinstance(error.cause, Speech3Error) else error.traceback_str}")


def check(who: str, facts: Facts, ours: Facts) -> None:
    """Check that a process has the same code, model and minibatches; the error names the node and what differs."""
    if differs := facts.differs(ours):
        raise MachineError(
            f"{who} on node {facts.node} differs from the others: {differs}; install the same speech3 on all nodes, "
            f"and put the same files at the same paths"
        )


class RemoteServer:
    """The partitions of the server; `receive` is called with a partition's number and its report."""

    def __init__(
        self,
        plans: Sequence[PartitionPlan],
        bounds: Sequence[slice],
        ours: Facts,
        receive: Callable[[int, PartitionReport], None],
    ) -> None:
        self.plans, self.bounds, self.ours, self.receive = plans, bounds, ours, receive
        self.kind: Any = ray.remote(num_cpus=0)(PartitionActor)
        self.actors: list[Any] = [None] * len(plans)
        self.facts = [ours] * len(plans)
        self.polls: list[Any] = [None] * len(plans)
        self.polled = 0.0

    def begin(self, tensors: dict[str, Tensor], states_M: np.ndarray) -> None:
        """Begin from a state, restarting dead partitions; raises `Speech3Error` if they keep dying or find no room."""
        arrays = [
            {name: tensor[stretch].numpy() for name, tensor in tensors.items()}  # slots do not include the buffers
            for stretch in self.bounds
        ]
        end = time.monotonic() + TIMEOUT_S
        while True:
            self.polls = [None] * len(self.actors)
            try:
                self._revive()
                self._get([a.begin.remote(each, states_M) for a, each in zip(self.actors, arrays, strict=True)])
                return
            except Lost as lost:
                if time.monotonic() > end:
                    raise MachineError(
                        f"for {TIMEOUT_S:.0f} s no Ray node was found on which the server's partitions stay alive: "
                        f"{advice()}; the last error: {lost}"
                    ) from lost
            time.sleep(_REST_S)

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all partitions; earlier reports are processed first. Raises `Lost` if one is dead."""
        polls = [(number, poll) for number, poll in enumerate(self.polls) if poll is not None]
        self.polls = [None] * len(self.actors)
        for (number, _), report in zip(polls, self._get([poll for _, poll in polls]), strict=True):
            self.receive(number, report)
        return self._get([getattr(actor, method).remote(*args) for actor in self.actors])

    def ask_queue(self, method: str, *args: Any) -> Any:
        return self._get([getattr(self.actors[0], method).remote(*args)])[0]

    def poll(self) -> None:
        """Process the partitions' reports without waiting for them; raises `Lost` if one is lost or does not reply."""
        if not any(poll is not None for poll in self.polls):
            self.polls, self.polled = [actor.report.remote() for actor in self.actors], time.monotonic()
        waiting = [poll for poll in self.polls if poll is not None]
        came = ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        if len(came) < len(waiting) and time.monotonic() - self.polled > TIMEOUT_S:
            raise Lost(f"a partition did not reply for {TIMEOUT_S:.0f} s")
        for number, poll in enumerate(self.polls):
            if poll is not None and poll in came:
                self.polls[number] = None
                self.receive(number, self._get([poll])[0])

    def copy(self) -> dict[str, Tensor]:
        """Copy the published state; afterwards, exactly the reports that belong to it have been processed."""
        states = self.ask("snapshot")
        for number, (_, report) in enumerate(states):
            self.receive(number, report)
        names = states[0][0]
        return {name: torch.cat([torch.from_numpy(np.array(tensors[name])) for tensors, _ in states]) for name in names}

    def close(self) -> None:
        for actor in self.actors:
            if actor is not None:
                ray.kill(actor)

    def _get(self, refs: list[Any]) -> list[Any]:
        try:
            return ray.get(refs, timeout=TIMEOUT_S)
        except RayTaskError as error:
            raise failure("a partition of the server", error) from error
        except RayError as error:
            raise Lost(str(error)) from error

    def _revive(self) -> None:
        for number, actor in enumerate(self.actors):
            try:
                self._get([] if actor is None else [actor.ping.remote()])
            except Lost:
                ray.kill(actor)
                self.actors[number] = None
        missing = [number for number, actor in enumerate(self.actors) if actor is None]
        for number in missing:
            self.actors[number] = self.kind.options(scheduling_strategy="SPREAD").remote()
        placed = [self.actors[number].ping.remote() for number in missing]
        while placed:  # a node starts several of them one after the other
            came, placed = ray.wait(placed, timeout=TIMEOUT_S)
            if not came:
                raise MachineError(
                    f"no Ray node had room for a partition of the server for {TIMEOUT_S:.0f} s: {advice()}"
                )
        prepared = self._get([self.actors[number].prepare.remote(self.plans[number]) for number in missing])
        for number, facts in zip(missing, prepared, strict=True):
            check(f"partition {number} of the server", facts, self.ours)
            self.facts[number] = facts


def _total(kind: str) -> float:
    """How much of a resource the nodes have that are alive, in use or not."""
    return sum(node["Resources"].get(kind, 0.0) for node in ray.nodes() if node["Alive"])


def resources() -> str:
    """What the cluster has, in words."""
    nodes, cpus, gpus = sum(node["Alive"] for node in ray.nodes()), _total("CPU"), _total("GPU")
    return f"{nodes} Ray node{'s' * (nodes != 1)} with {cpus:g} CPUs" + f" and {gpus:g} GPUs" * (gpus > 0)


def advice() -> str:
    """The end of an error message about missing resources: what there is, and what to do."""
    return (
        f"the cluster has {resources()}; start nodes (`ray start --address=...`) or stop other jobs there, and run the "
        f"same command again: training resumes from its checkpoint"
    )


def connect(address: str | None, workers: int) -> bool:
    """Connect this process to the Ray cluster at an address, or start one on this host for `workers` workers.

    `address` is ``host:port`` of the head node, or ``auto``: the cluster of this host. None: start a cluster, which
    ends with this process. Returns False if this process was connected before; that connection is kept.

    Raises `Speech3Error` if no Ray cluster can be reached there, or it does not accept this process.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": workers, "include_dashboard": False}
    else:
        _probe(address, _auto() if address == "auto" else address)
    try:
        with _quiet():
            ray.init(address or "local", **options)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        because = str(error.__cause__ or "").strip().splitlines()[-1:]  # the cause has Ray's explanation
        raise MachineError(_why_not(address, " ".join([str(error), *because]))) from error
    return True


def _why_not(address: str | None, said: str) -> str:
    if address is None:
        return f"Ray cannot be started on this host: {said}"
    return (
        f"--address {address}: {said}\nThis host must be a node of that Ray cluster (`ray start --address={address}`), "
        f"with the same versions of Python and Ray and, if the cluster has one, its token (~/.ray/auth_token, and "
        f"RAY_AUTH_MODE=token)"
    )


def _auto() -> str:
    """The address of this host's Ray cluster, which may no longer be running."""
    found = None
    with suppress(ConnectionError, ValueError):
        found = canonicalize_bootstrap_address("auto")
    if found is None:
        raise MachineError(
            f"--address auto: no Ray was started on this host; run `ray start --head` on the first host, and `ray "
            f"start --address=HOST:{_PORT}` on the others"
        )
    return found


def _probe(address: str, found: str) -> None:
    """Raise an error unless a server speaks HTTP/2 there, as Ray does; `found` is what `address` stands for.

    Given an address where nothing listens, Ray itself tries for a quarter of an hour.
    """
    said = address if address == found else f"{address} ({found})"
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in found:
        raise SettingError(f"--address {said}: must be HOST:PORT of Ray's head node ({_PORT} is usual), or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as connection:
            if "RAY_USE_TLS" not in os.environ:
                connection.sendall(_HELLO)
                if connection.recv(4)[3:] != b"\x04":  # the other side's SETTINGS
                    raise OSError("what listens there is not Ray")
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: an impossible host name
        raise MachineError(
            f"--address {said}: no Ray answers there ({error}); start it with `ray start --head --port={port}` on "
            f"that host, or omit --address to have it started here"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray from printing and from replacing signal handlers: `world` reports deaths itself."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray._private.worker._worker_logs_enabled = False  # else Ray prints 20 lines per node on stdout
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray does not touch them
            for number, handler in handlers.items():
                signal.signal(number, handler)


def check_room(workers: int, gpus: int) -> None:
    """Raise an error if the cluster has fewer CPUs than shards, or fewer GPUs than they take."""
    if workers > _total("CPU") or workers * gpus > _total("GPU"):
        raise MachineError(
            f"training.workers={workers}: a shard takes a CPU{' and a GPU' * gpus}, and the cluster has {resources()}; "
            f"use fewer workers, or start more nodes (`ray start --address=...`)"
        )
