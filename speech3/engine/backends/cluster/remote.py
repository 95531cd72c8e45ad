"""The coordinator's connection to Ray, and its view of the server: partitions on other nodes, which may die.

Ray starts processes on other hosts, carries messages, and knows which processes are alive; `coordinator.py` decides
what to do about a death.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.exceptions
import torch
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from speech3.engine.backends.cluster.actors import Facts, PartitionActor, PartitionPlan, PartitionReport
from speech3.errors import DataError, MachineError, SettingError, Speech3Error

_PROBE_S = 5.0
_PORT = 6379  # Ray's own default
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface and empty SETTINGS
TIMEOUT_S = 60.0  # timeout for a node with room, and for a reply
# Before another attempt: Ray takes a while to know that a node is gone, and starts actors there until then.
_REST_S = 0.2


@dataclass(frozen=True)
class Resources:
    """Total resources of the nodes that are alive, in use or not."""

    nodes: int
    cpus: float
    gpus: float

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPUs" if self.gpus else ""
        return f"{self.nodes} Ray node{'s' * (self.nodes != 1)} with {self.cpus:g} CPUs{gpus}"


def resources() -> Resources:
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = (sum(node.get(kind, 0.0) for node in alive) for kind in ("CPU", "GPU"))
    return Resources(len(alive), cpus, gpus)


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
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
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
    there = resources()
    if workers > there.cpus or workers * gpus > there.gpus:
        raise MachineError(
            f"training.workers={workers}: a shard takes a CPU{' and a GPU' * gpus}, and the cluster has {there}; use "
            f"fewer workers, or start more nodes (`ray start --address=...`)"
        )


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
            {name: tensor[self._cut(stretch, tensor)].numpy() for name, tensor in tensors.items()}
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

    def _cut(self, stretch: slice, tensor: Tensor) -> slice:
        """A partition's slice of a tensor; optimizer slots do not include the model's buffers."""
        return slice(stretch.start, min(stretch.stop, len(tensor)))

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
