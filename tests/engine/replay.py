"""A shared run again, in one process, from what its shards recorded: the same parameters to the last bit.

That the two worlds run the same algorithm is so put to the test, and a run whose timing was to blame can be looked at
again at leisure. Between two published versions shards see nothing of each other, so their events need no clock: a
shard goes on until it meets a version that is not there yet, or one that others have to meet before it may publish.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
from torch import Tensor

from speech3.config import AsgdConfig, CodecConfig
from speech3.engine.backends.one_process import Simulated, Times
from speech3.engine.interface import Rate, WorkerParts
from speech3.engine.server import Partition, Server
from speech3.engine.shard import Compute, Draw, Request, Shard, Sync
from speech3.errors import Speech3Error

_REQUESTS: dict[str, type[Draw] | type[Sync]] = {"draw": Draw, "busy": Sync, "sync": Sync, "publish": Sync}


def replay(
    parts: WorkerParts,
    config: AsgdConfig,
    tensors: dict[str, Tensor],
    rates: Callable[[int], Rate],
    record: Path,
    *,
    weight_decay: float = 0.0,
    codec: CodecConfig | None = None,
) -> dict[str, Tensor]:
    """Do again what ``Shared(..., record=record)`` did.

    Parameters
    ----------
    parts
        Of one worker, as that run's processes built them (also with as many threads); their model is used up.
    tensors
        The state that the run began with; it may have gone on to later epochs with no other.
    rates
        From an epoch to its learning rates.

    Returns
    -------
    tensors
        The state published last.

    Raises
    ------
    Speech3Error
        The record is not whole, as where a shard died, or it is of another config.
    """
    paths = sorted(record.glob("shard*.jsonl"), key=lambda path: int(path.stem[len("shard") :]))
    if not paths:
        raise Speech3Error(f"{record}: holds no record of a shard; record a run of world shared first")
    parts = replace(parts, weight_decay=weight_decay)
    world = Simulated(parts, config, Times((1.0,) * len(paths), 0.0), codec=codec)
    world.load(tensors)
    again = [_Again(shard, path, rates) for shard, path in zip(world.shards, paths, strict=True)]
    fetches = Counter(event[1:] for each in again for event in each.events if event[0] == "sync")
    while any(each.events for each in again):
        if not any([each.go_on(world.server, fetches) for each in again]):
            raise Speech3Error(
                f"{record}: nobody wrote that it published version {world.server.version + 1}; a shard died, or the "
                f"run was stopped: only a whole run can be replayed"
            )
    return world.snapshot().tensors


class _Again:
    """One shard and what is left of its record."""

    def __init__(self, shard: Shard, path: Path, rates: Callable[[int], Rate]) -> None:
        self.shard, self.path, self.rates = shard, path, rates
        lines = path.read_text().splitlines()
        self.events: deque[tuple[str, Any, int]] = deque(tuple(json.loads(line)) for line in lines)
        self.loop: Generator[Request, Any, None] | None = None
        self.request: Request | None = None
        self.rate: Rate

    def go_on(self, server: Server, fetches: Counter[tuple[Any, int]]) -> bool:
        """Until it meets a version that is not there yet, or would end one that another is still to fetch.

        Parameters
        ----------
        fetches
            That are still to come, by version and partition.

        Returns whether it came any further.
        """
        events = len(self.events)
        while self.events:
            kind, value, partition = self.events[0]
            if kind in ("sync", "publish") and value != server.partitions[partition].version:
                break
            if kind == "publish" and fetches[value, partition]:
                break
            self.events.popleft()
            fetches[value, partition] -= kind == "sync"
            self._do(server.partitions[partition], kind, value, partition)
        return len(self.events) < events

    def _do(self, server: Partition, kind: str, value: int | None, partition: int) -> None:
        if kind == "epoch" and value is not None:
            self.rate, self.loop = self.rates(value), self.shard.run()
            return self._answer(None)
        if not isinstance(self.request, _REQUESTS[kind]) or getattr(self.request, "partition", 0) != partition:
            raise Speech3Error(
                f"{self.path}: has {kind!r} where the shard wants {self.request}; is it of another config?"
            )
        if kind in ("sync", "publish"):
            tiny.visit(server, self.shard.pushes[partition])
            if (server.version != value) != (kind == "publish"):
                raise Speech3Error(f"{self.path}: {kind!r} at version {value} comes out otherwise; another config?")
        self._answer({"draw": value, "busy": False}.get(kind, True))

    def _answer(self, answer: Any) -> None:
        assert self.loop is not None
        self.request = None
        try:
            request = self.loop.send(answer)
            while isinstance(request, Compute):
                self.shard.compute(self.rate.epoch, request.number, self.rate)
                request = self.loop.send(None)
            self.request = request
        except StopIteration:
            pass
