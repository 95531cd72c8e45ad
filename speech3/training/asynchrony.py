"""Statistics of an asynchronous run: staleness, drops and the work of each shard, summed over the epochs' records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from speech3.engine import ShardReport, shares

_FATES = ("used", "stale", "refused", "returned")


@dataclass(frozen=True)
class Asynchrony:
    """An asynchronous run, or a part of it.

    Attributes
    ----------
    staleness
        Number of used minibatches in pushes of staleness 0, 1, 2, ...
    minibatches
        Counts ``used``, ``stale`` and ``refused`` (these two are lost), ``returned`` (by dead shards, and then
        processed by others).
    """

    minibatches: Mapping[str, int] = field(default_factory=dict)
    versions: int = 0
    restarts: int = 0
    staleness: tuple[int, ...] = ()
    shards: tuple[ShardReport, ...] = ()

    @property
    def dropped(self) -> int:
        """Number of minibatches that are in no version of the model: too stale, or refused."""
        return self.minibatches.get("stale", 0) + self.minibatches.get("refused", 0)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the minibatches that each shard processed."""
        return shares(self.shards)


def asynchrony(records: Iterable[Mapping[str, Any]]) -> Asynchrony | None:
    """Sum over the epochs of a ``metrics.jsonl``, each counted once; None if no epoch had shards.

    The counts in a record are those of its epoch alone.
    """
    epochs = {record.get("epoch"): record for record in records if record.get("event") == "epoch"}
    found = [record for record in epochs.values() if record.get("shards") or record.get("staleness")]
    if not found:
        return None
    staleness = zip_longest(*(record.get("staleness") or () for record in found), fillvalue=0)
    shards = zip_longest(*(record.get("shards") or () for record in found), fillvalue={})
    return Asynchrony(
        {fate: sum(record.get("minibatches", {}).get(fate, 0) for record in found) for fate in _FATES},
        sum(record.get("versions", 0) for record in found),
        sum(record.get("restarts", 0) for record in found),
        tuple(sum(counts) for counts in staleness),
        tuple(_sum_shard(parts) for parts in shards),
    )


def _sum_shard(parts: Sequence[Mapping[str, Any]]) -> ShardReport:
    def total(key: str) -> float:
        return sum(part.get(key, 0) for part in parts)

    times = total("compute_s"), total("sync_s"), total("wait_s")
    return ShardReport(int(total("minibatches")), *times, int(total("busy")), total("draw_s"))


def staleness_mean(counts: Sequence[int]) -> float:
    """Mean staleness; 0 if nothing was pushed."""
    return sum(stale * count for stale, count in enumerate(counts)) / max(sum(counts), 1)


def staleness_p95(counts: Sequence[int]) -> int:
    """The lowest staleness that at least 95 % of the minibatches do not exceed; 0 if nothing was pushed."""
    pushes, seen = sum(counts), 0
    for stale, count in enumerate(counts):
        seen += count
        if 100 * seen >= 95 * pushes:
            return stale
    return 0
