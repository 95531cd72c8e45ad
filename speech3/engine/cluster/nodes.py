"""Connects to a Ray cluster that is running, or starts one, and reports the resources of its nodes.

Ray starts processes on other hosts, carries messages, and knows which processes are alive; `world` decides what to do
about a death. Given an address where nothing listens, Ray tries for a quarter of an hour, so the address is tested
first.
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
import ray.exceptions
from ray._private.services import canonicalize_bootstrap_address

from speech3.errors import Speech3Error

_PROBE_S = 5.0
_PORT = 6379  # Ray's own default
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # preface and empty SETTINGS


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
    """Resources of the cluster that this process is connected to."""
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

    Parameters
    ----------
    address
        ``host:port`` of the head node, or ``auto``: the cluster of this host. None: start a cluster, which ends with
        this process.

    Returns
    -------
    ours
        False if this process was connected before; that connection is kept.

    Raises
    ------
    Speech3Error
        No Ray cluster can be reached there, or it does not accept this process.
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
        raise Speech3Error(_why_not(address, " ".join([str(error), *because]))) from error
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
        raise Speech3Error(
            f"--address auto: no Ray was started on this host; run `ray start --head` on the first host, and `ray "
            f"start --address=HOST:{_PORT}` on the others"
        )
    return found


def _probe(address: str, found: str) -> None:
    """Raise an error unless a server speaks HTTP/2 there, as Ray does; `found` is what `address` stands for."""
    said = address if address == found else f"{address} ({found})"
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in found:
        raise Speech3Error(f"--address {said}: must be HOST:PORT of Ray's head node ({_PORT} is usual), or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as connection:
            if "RAY_USE_TLS" not in os.environ:
                connection.sendall(_HELLO)
                if connection.recv(4)[3:] != b"\x04":  # the other side's SETTINGS
                    raise OSError("what listens there is not Ray")
    except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: an impossible host name
        raise Speech3Error(
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
        raise Speech3Error(
            f"training.workers={workers}: a shard takes a CPU{' and a GPU' * gpus}, and the cluster has {there}; use "
            f"fewer workers, or start more nodes (`ray start --address=...`)"
        )
