"""World shared with model partitions: each shard is a replica, a group of processes that share a large model.

Dean et al. 2012, "Large scale distributed deep networks", section 4.1 and figure 2: a replica is spread over machines,
the parameters over server partitions, and a machine communicates only with the partitions that hold its part of the
model. Here member r of every replica holds slice r of the model (`slices.py`), and the server of that slice is a world
of its own (`shared.py`) with its own memory, locks and versions, and the same protection against crashes. The members
of a replica compute each minibatch together (`group.py`); then each pushes its slice of the result by itself when its
server is free, without waiting for the others. As in the paper, the slices of the parameters need not be of the same
moment.

We depart from the paper in that servers are memory, and that the members of a replica die together. A member that loses
another one gets an error from its next collective; the coordinator stops the rest of the group, returns its minibatches
to the pool, and starts another group.
"""

import multiprocessing.connection
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.assembly import begin_epoch, load_tensors, published_tensors
from speech3.engine.device import device_for
from speech3.engine.ledger import Ledger, combined
from speech3.engine.replicas.group import Group, give_back
from speech3.engine.replicas.slices import Slices
from speech3.engine.server_memory import EPOCH, READY
from speech3.engine.shared import LOOK_S, Shared
from speech3.engine.workers import Failed
from speech3.engine.world import BuildOn, Parts, Progress, Rate, Snapshot
from speech3.errors import Speech3Error
from speech3.io.parallel import end_processes, end_with_parent

_HEAR_S = 2.0  # time for members to report that they lost another; then they are stopped


@dataclass(frozen=True)
class Join:
    """Joins the other members of a replica, then makes the parts of one member."""

    build: BuildOn
    group: Group
    store: Path

    def __call__(self, device: str) -> Parts:
        """Make the parts on the member's device."""
        end_with_parent()  # while it waits for the other members it cannot check for the coordinator
        self.group.meet(self.store, torch.device(device))
        return replace(self.build(device), group=self.group)


class Member(Shared):
    """The r-th members of all replicas, and the server of their slice of the model."""

    def __init__(self, group: Group, meeting: Path, *args: Any, **kwargs: Any) -> None:
        self.group, self.meeting = group, meeting
        self.started = count()
        super().__init__(*args, **kwargs)

    def _build(self, worker: int) -> tuple[BuildOn, str]:
        # Every `Member` starts the replicas in the same order, so this number is the same in the whole group.
        store, device = self.meeting / f"{worker}-{next(self.started)}", self.device
        if device.startswith("cuda"):
            device = device_for("cuda", worker * self.group.size + self.group.rank)
        return Join(self.build, self.group, store), device


class Replicas:
    """The world of replicas.

    Parameters
    ----------
    build
        Makes the parts of a member in its process, whose default group of `torch.distributed` is the replica.
    parts
        Parts of this process, with the whole model.
    slices
        The slice of the model that `build` makes for each member of a replica, on that member's device; for its sizes.
    workers
        Number of replicas.
    device
        ``cpu``, or ``cuda``: members are distributed over all GPUs.

    Raises
    ------
    Speech3Error
        There is no memory for the server; a member fails, or a replica dies repeatedly.
    """

    def __init__(
        self, build: BuildOn, parts: Parts, slices: Sequence[nn.Module], config: AsgdConfig, *,
        workers: int, device: str = "cpu", weight_decay: float = 0.0, codec: CodecConfig | None = None,
    ) -> None:  # fmt: skip
        self.slices, self.workers = Slices(parts.model, slices), workers
        self.stack = ExitStack()
        self.members: list[Member] = []
        try:
            meeting = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="speech3-replicas-")))
            for rank, model in enumerate(slices):
                member = Member(
                    Group(rank, len(slices)), meeting, build, replace(parts, model=model), config, workers=workers,
                    device=device, weight_decay=weight_decay, codec=codec,
                )  # fmt: skip
                self.members.append(member)
                self.stack.callback(member.close)
        except BaseException:
            self.stack.close()
            raise

    def epoch(self, epoch: int, states_M: np.ndarray, rate: Rate) -> Iterator[Progress]:
        """Run an epoch; yields progress ten times a second, and at the end."""
        first, *others = self.members
        first.returned = first.restarts = 0
        while not self._say(READY).all():
            self._replace_dead()
        for member in self.members:
            member.before, member.began = begin_epoch(member.server, states_M), time.monotonic()
            member.computed = [0.0] * self.workers
        for member in others:
            member.server.memory.cursor[0] = len(states_M)  # only the first member's pool is drawn from
        order = first.server.memory.order
        order[:] = 0, rate.base, rate.warmup, rate.decay, rate.last
        order[0] = epoch
        try:
            while not all(member.server.pool.finished for member in self.members):
                self._replace_dead()
                yield self._progress()
        finally:
            order[0] = 0
        while self._say(EPOCH).any():
            self._replace_dead()
        yield self._progress()

    def snapshot(self) -> Snapshot:
        """The published state of one moment, in which a minibatch need not be in all slices yet."""
        with self._settled():
            states_M, progress = self._ledger().states_M, self._progress()
            found = [published_tensors(member.server) for member in self.members]
        return Snapshot(
            {name: self.slices.together([tensors[name] for tensors in found]) for name in found[0]}, states_M, progress
        )  # fmt: skip

    def load(self, tensors: dict[str, Tensor], seconds: float = 0.0) -> None:
        """Set the published state, while replicas rest."""
        known = ("parameters", "server.velocity", "server.squares")
        taken = {name: self.slices.take(tensors[name]) for name in known if name in tensors}
        for rank, member in enumerate(self.members):
            load_tensors(member.server, {name: parts[rank] for name, parts in taken.items()})

    def close(self) -> None:
        """Stop the processes; the memory is freed with the last of them."""
        self.stack.close()

    def _say(self, field: int) -> np.ndarray:
        return np.stack([member.server.memory.shards_N[:, field] for member in self.members])

    def _ledger(self) -> Ledger:
        return combined([member.server.ledger for member in self.members])

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Hold all locks of all servers, with all published minibatches marked as used."""
        with ExitStack() as locks:
            for member in self.members:
                locks.enter_context(member._all_locks())
                member.server.settle()
            yield

    def _progress(self) -> Progress:
        """Minibatches combined over all slices; the shards' reports are the first member's, since all are alike."""
        reports, first = [member._progress() for member in self.members], self.members[0]
        return replace(
            self._ledger().progress(first.before.counts), shards=reports[0].shards,
            versions=max(report.versions for report in reports), up=sum(report.up for report in reports),
            down=sum(report.down for report in reports), returned=first.returned, restarts=first.restarts,
            seconds=max(report.seconds for report in reports), note=reports[0].note,
        )  # fmt: skip

    def _replace_dead(self) -> None:
        """Wait a little; if a member died, stop its group, return its minibatches to the pool and start another."""
        first = self.members[0]
        sentinels = [process.sentinel for member in self.members for process in member.processes]
        multiprocessing.connection.wait(sentinels, timeout=LOOK_S)
        for worker in range(self.workers):
            if all(member.processes[worker].is_alive() for member in self.members):
                continue
            status = self._end(worker)
            with self._settled():
                first.returned += give_back([member.server.pool for member in self.members], worker)
            first._replace(worker, status)
            for member in self.members[1:]:
                member._start(worker)

    def _end(self, worker: int) -> int:
        """Stop a group of which a member has exited; one that exited without a report was killed.

        Returns the exit status of the killed member.

        Raises
        ------
        Speech3Error
            No member was killed: the error of the first that failed.
        """
        limit = time.monotonic() + _HEAR_S
        killed, said = list[int](), list[Failed]()
        for member in self.members:
            process, pipe = member.processes[worker], member.workers.pipes[worker]
            try:
                if pipe.poll(max(0.0, limit - time.monotonic())):
                    said.append(pipe.recv())
                    continue
            except EOFError:  # it has exited or is about to
                process.join(max(0.0, limit - time.monotonic()))
            if process.exitcode is not None:  # else it is still waiting for the others
                killed.append(process.exitcode)
        end_processes([member.processes[worker] for member in self.members])
        if not killed:
            raise Speech3Error(f"shard {worker}: {min(said, key=lambda words: words.at).why}")
        return killed[0]
