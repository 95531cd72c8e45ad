"""The coordinator's view of the server in world cluster: partitions on other nodes, which may die."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from speech3.engine.cluster.actors import PartitionActor
from speech3.engine.cluster.messages import Facts, Plan, Report
from speech3.engine.cluster.nodes import advice
from speech3.errors import Speech3Error

TIMEOUT_S = 60.0  # timeout for a node with room, and for a reply
_REST_S = (
    0.2  # before another attempt: Ray takes a while to know that a node is gone, and starts actors there until then
)


class Lost(Exception):
    """A partition is dead or cannot be reached."""


def failure(who: str, error: RayTaskError) -> Speech3Error:
    """The error of an actor; only its message if that is meant for the user, else its traceback."""
    while isinstance(error.cause, RayTaskError):
        error = error.cause
    return Speech3Error(f"{who}: {error.cause if isinstance(error.cause, Speech3Error) else error.traceback_str}")


def check(who: str, facts: Facts, ours: Facts) -> None:
    """Check that a process has the same code, model and minibatches.

    Raises
    ------
    Speech3Error
        The message names the node and what differs.
    """
    if differs := facts.differs(ours):
        raise Speech3Error(
            f"{who} on node {facts.node} differs from the others: {differs}; install the same speech3 on all nodes, "
            f"and put the same files at the same paths"
        )


class RemoteServer:
    """The partitions of the server.

    Parameters
    ----------
    bounds
        Each partition's slice of the values.
    ours
        The coordinator's facts, with which the partitions' are compared.
    receive
        Called with a partition's number and its report.
    """

    def __init__(
        self, plans: Sequence[Plan], bounds: Sequence[slice], ours: Facts, receive: Callable[[int, Report], None]
    ) -> None:
        self.plans, self.bounds, self.ours, self.receive = plans, bounds, ours, receive
        self.kind: Any = ray.remote(num_cpus=0)(PartitionActor)
        self.actors: list[Any] = [None] * len(plans)
        self.facts = [ours] * len(plans)
        self.polls: list[Any] = [None] * len(plans)
        self.polled = 0.0

    def begin(self, tensors: dict[str, Tensor], states_M: np.ndarray) -> None:
        """Begin from a state, restarting dead partitions; no incarnation is admitted.

        Raises
        ------
        Speech3Error
            There is no node with room for the partitions, or they keep dying.
        """
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
                    raise Speech3Error(
                        f"for {TIMEOUT_S:.0f} s no Ray node was found on which the server's partitions stay alive: "
                        f"{advice()}; the last error: {lost}"
                    ) from lost
            time.sleep(_REST_S)

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all partitions and return the results; earlier reports are processed first.

        Raises
        ------
        Lost
            A partition is dead or cannot be reached.
        """
        polls = [(number, poll) for number, poll in enumerate(self.polls) if poll is not None]
        self.polls = [None] * len(self.actors)
        for (number, _), report in zip(polls, self._get([poll for _, poll in polls]), strict=True):
            self.receive(number, report)
        return self._get([getattr(actor, method).remote(*args) for actor in self.actors])

    def ask_pool(self, method: str, *args: Any) -> Any:
        """Call a method of the partition that has the pool."""
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
        """Stop the partitions."""
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
        """Start partitions that are missing or do not reply."""
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
                raise Speech3Error(
                    f"no Ray node had room for a partition of the server for {TIMEOUT_S:.0f} s: {advice()}"
                )
        prepared = self._get([self.actors[number].prepare.remote(self.plans[number]) for number in missing])
        for number, facts in zip(missing, prepared, strict=True):
            check(f"partition {number} of the server", facts, self.ours)
            self.facts[number] = facts
