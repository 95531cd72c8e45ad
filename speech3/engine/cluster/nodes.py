"""Ray: the one that runs, or one of our own; what its nodes offer.

Ray is left to do what it is good at: processes on other hosts, messages, who is alive. What is done about a death is in
`world`. Asked for an address where nobody answers, Ray tries for a quarter of an hour, so we knock first.
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

_KNOCK_S = 5.0
_PORT = 6379  # Ray's own default
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2 with an empty SETTINGS


@dataclass(frozen=True)
class Room:
    """What the nodes that are alive have, in use or not."""

    nodes: int
    cpus: float
    gpus: float

    def __str__(self) -> str:
        gpus = f" and {self.gpus:g} GPUs" if self.gpus else ""
        return f"{self.nodes} Ray node{'s' * (self.nodes != 1)} with {self.cpus:g} CPUs{gpus}"


def room() -> Room:
    """Of the cluster that this process is connected to."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = (sum(resources.get(kind, 0.0) for resources in alive) for kind in ("CPU", "GPU"))
    return Room(len(alive), cpus, gpus)


def what_there_is() -> str:
    """The end of a sentence that says that there is no room."""
    return (
        f"there are {room()}; start nodes (`ray start --address=...`) or end what else runs there, and give the same "
        f"command again: training goes on from its checkpoint"
    )


def connect(address: str | None, workers: int) -> bool:
    """Connect this process to the Ray at an address, or to one that is started here for so many workers.

    Parameters
    ----------
    address
        ``host:port`` of the head node, or ``auto``: that of this host. None: a Ray of our own, which ends with us.

    Returns
    -------
    ours
        False where this process was connected before: then it stays so.

    Raises
    ------
    Speech3Error
        Nobody answers there, or not to us.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": workers, "include_dashboard": False}
    else:
        _knock(address, _auto() if address == "auto" else address)
    try:
        with _quiet():
            ray.init(address or "local", **options)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        because = str(error.__cause__ or "").strip().splitlines()[-1:]  # Ray's own words are in what its words are of
        raise Speech3Error(_why_not(address, " ".join([str(error), *because]))) from error
    return True


def _why_not(address: str | None, said: str) -> str:
    if address is None:
        return f"Ray cannot be started on this host: {said}"
    return (
        f"--address {address}: {said}\nThis host must be one of the Ray's nodes (`ray start --address={address}`), "
        f"with the same versions of Python and Ray and, if the Ray has one, its token (~/.ray/auth_token, and "
        f"RAY_AUTH_MODE=token)"
    )


def _auto() -> str:
    """The address of this host's Ray, which may have ended without a word."""
    found = None
    with suppress(ConnectionError, ValueError):
        found = canonicalize_bootstrap_address("auto")
    if found is None:
        raise Speech3Error(
            f"--address auto: no Ray was started on this host; `ray start --head` starts one on the first host, `ray "
            f"start --address=HOST:{_PORT}` adds the others"
        )
    return found


def _knock(address: str, found: str) -> None:
    """Does anybody speak HTTP/2 there, as Ray does? `found` is what `address` stands for."""
    said = address if address == found else f"{address} ({found})"
    host, _, port = found.rpartition(":")
    if not host or not port.isdigit() or "/" in found:
        raise Speech3Error(f"--address {said}: must be HOST:PORT of Ray's head node ({_PORT} is usual), or auto")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S) as door:
            if "RAY_USE_TLS" not in os.environ:
                door.sendall(_HELLO)
                if door.recv(4)[3:] != b"\x04":  # the other side's SETTINGS
                    raise OSError("what listens there is no Ray")
    except (OSError, OverflowError, UnicodeError) as error:  # the last: a name that can be no host's
        raise Speech3Error(
            f"--address {said}: no Ray answers there ({error}); start it with `ray start --head --port={port}` on "
            f"that host, or let it be started here: leave --address out"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray as a guest: what it says of deaths is said by `world`, and signals stay with who has them."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray._private.worker._worker_logs_enabled = False  # its way to silence; else 20 lines for a node, on our stdout
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread: then Ray has not touched them
            for number, handler in handlers.items():
                signal.signal(number, handler)
