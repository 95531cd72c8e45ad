"""Learning curves of runs, scaling efficiency, statistics of asynchrony, and TensorBoard event files.

As in the SPEECH3 talk, T(a) is the time from random parameters, warm start included, until held-out frame accuracy
first reaches a; the scaling efficiency of N workers at a is T_1(a) / (N T_N(a)), where T_1 is that of plain SGD; a
table shows it at 0.90, 0.95 and 0.98 of the best accuracy of one worker. TensorBoard is an optional extra, whose event
files nothing reads back. The step of every scalar is the number of frames trained on.
"""

import importlib.util
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speech3.engine import ShardReport, shares
from speech3.errors import FormatError, MissingError
from speech3.io import METRICS_FILE, RUN_FILE
from speech3.runtime import explained_disk_errors, read_json, read_metrics, say

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SHARES = (0.90, 0.95, 0.98)  # the accuracies of a table, as shares of the best accuracy of one worker
_MEASURED = ("before", "heldout", "epoch")
_FATES = ("used", "stale", "refused", "returned")
_SCALARS = {
    "train_loss": "loss/train",
    "heldout_loss": "loss/heldout",
    "train_accuracy": "accuracy/train",
    "heldout_accuracy": "accuracy/heldout",
    "heldout_per": "phone_errors/heldout",
    "learning_rate": "training/learning_rate",
}


@dataclass(frozen=True)
class Curve:
    """Held-out frame accuracy (0 to 1) of one run in chronological order; there is at least one point.

    `seconds` and `frames` count from random parameters, with the warm start and without evaluation; in a simulation the
    seconds are virtual.
    """

    name: str
    workers: int
    seconds: tuple[float, ...]
    frames: tuple[int, ...]
    accuracy: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.accuracy)


@dataclass(frozen=True)
class EfficiencyRow:
    """One run of a table, with the `seconds` until each of its accuracies (None: not reached).

    `efficiency`: 1 is linear scaling; None: the run or the baseline does not reach the accuracy, or there is no
    baseline.
    """

    name: str
    workers: int
    seconds: tuple[float | None, ...]
    efficiency: tuple[float | None, ...]
    best_accuracy: float
    final_accuracy: float


@dataclass(frozen=True)
class EfficiencyTable:
    accuracies: tuple[float, ...]
    rows: tuple[EfficiencyRow, ...]


def curve_of(name: str, records: Iterable[Mapping[str, Any]], workers: int = 1) -> Curve | None:
    """The curve in the records of a ``metrics.jsonl``; None if no accuracy was measured yet.

    `workers`: their number, if the records do not contain it.
    """
    points: list[tuple[float, int, float]] = []
    last_workers = workers
    for record in records:
        accuracy = record.get("heldout_accuracy")
        if record.get("event") not in _MEASURED or accuracy is None or not math.isfinite(accuracy):
            continue
        last_workers = record.get("workers", last_workers)
        frames = record.get("frames", 0)
        point = (float(record.get("seconds", 0.0)), int(frames), float(accuracy))
        # A killed run resumes from a checkpoint that is older than some of its records: the repeated part replaces
        # them. The last evaluation within an epoch and the evaluation at its end may coincide.
        while points and (points[-1][1] >= frames if frames else points[-1][0] >= point[0]):
            points.pop()
        points.append(point)
    if not points:
        return None
    seconds, counts, accuracies = zip(*points, strict=True)
    return Curve(name, last_workers, seconds, counts, accuracies)


def read_curve(run_dir: Path | str) -> Curve:
    """The curve of a run directory, with the name of the directory; an error if the run has not measured an accuracy
    yet.
    """
    path = Path(run_dir)
    run = path / RUN_FILE
    training = read_json(run).get("training", {}) if run.exists() else {}
    curve = curve_of(path.resolve().name, read_metrics(path / METRICS_FILE), training.get("workers", 1))
    if curve is None and run.exists():
        raise MissingError(f"{path}: no held-out accuracy in metrics.jsonl yet; wait for the run's first epoch")
    if curve is None:
        raise FormatError(f"{path}: not the directory of a training run")
    return curve


def time_to(curve: Curve, accuracy: float) -> float | None:
    """Seconds until `curve` first reaches `accuracy`, interpolated linearly; None if it does not.

    Nothing is known before the first point, so a curve that begins above `accuracy` gets the time of that.
    """
    at = next((index for index, reached in enumerate(curve.accuracy) if reached >= accuracy), None)
    if at is None:
        return None
    if at == 0:
        return curve.seconds[0]
    (t0, t1), (a0, a1) = curve.seconds[at - 1 : at + 1], curve.accuracy[at - 1 : at + 1]
    return t0 + (t1 - t0) * (accuracy - a0) / (a1 - a0)


def accuracies_of(one_worker: Curve) -> tuple[float, ...]:
    """The accuracies of a table: 0.90, 0.95 and 0.98 of the best accuracy of one worker."""
    return tuple(share * one_worker.best for share in SHARES)


def efficiency(t_1: float, t_n: float, workers: int) -> float:
    """T_1 / (N T_N): the share of linear scaling that is reached; above 1: more than N times as fast."""
    return t_1 / (workers * t_n)


def make_table(
    baseline: Curve | None, others: Sequence[Curve], accuracies: Sequence[float] | None = None
) -> EfficiencyTable:
    """Times and efficiencies of `baseline` (plain SGD on one worker) and of `others`, in this order.

    Without a baseline there are no efficiencies, and the accuracies are those of the curve with the fewest workers.
    """
    curves = [*([baseline] if baseline else []), *others]
    if accuracies is None:
        accuracies = accuracies_of(baseline or min(curves, key=lambda curve: curve.workers))
    alone = [time_to(baseline, accuracy) if baseline else None for accuracy in accuracies]
    rows = []
    for curve in curves:
        seconds = tuple(time_to(curve, accuracy) for accuracy in accuracies)
        gains = tuple(
            efficiency(t_1, t_n, curve.workers) if t_1 is not None and t_n else None
            for t_1, t_n in zip(alone, seconds, strict=True)
        )
        rows.append(EfficiencyRow(curve.name, curve.workers, seconds, gains, curve.best, curve.accuracy[-1]))
    return EfficiencyTable(tuple(accuracies), tuple(rows))


@dataclass(frozen=True)
class Asynchrony:
    """An asynchronous run, or a part of it.

    `staleness`: number of used minibatches in pushes of staleness 0, 1, 2, ... `minibatches`: counts ``used``,
    ``stale`` and ``refused`` (these two are lost), ``returned`` (by dead shards, and then processed by others).
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
        return shares(self.shards)


def asynchrony(records: Iterable[Mapping[str, Any]]) -> Asynchrony | None:
    """Sum over the epochs of a ``metrics.jsonl``, each counted once; None if no epoch had shards."""
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
    return sum(stale * count for stale, count in enumerate(counts)) / max(sum(counts), 1)


def staleness_p95(counts: Sequence[int]) -> int:
    """The lowest staleness that at least 95 % of the minibatches do not exceed; 0 if nothing was pushed."""
    pushes, seen = sum(counts), 0
    for stale, count in enumerate(counts):
        seen += count
        if 100 * seen >= 95 * pushes:
            return stale
    return 0


class Writer:
    """Writes the records of one run; made by `open_writer`."""

    def __init__(self, writer: "SummaryWriter", frames: int, seconds: float) -> None:
        self._writer = writer
        self._last = frames, seconds

    def write(self, record: Mapping[str, Any]) -> None:
        """Write the values in a record of `metrics.jsonl`, and flush them at once."""
        step = int(record.get("frames", 0))
        with explained_disk_errors(self._writer.log_dir):
            for tag, value in (*_scalars(record), *self._rate(record)):
                self._writer.add_scalar(tag, value, step, walltime=record.get("time"))
            self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _rate(self, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        frames, seconds = self._last
        self._last = int(record.get("frames", frames)), float(record.get("seconds", seconds))
        if self._last[0] > frames and self._last[1] > seconds:
            yield "training/frames_per_s", (self._last[0] - frames) / (self._last[1] - seconds)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, tag in _SCALARS.items():
        if record.get(key) is not None:
            yield tag, record[key]
    did = asynchrony([record])
    if did is None:
        return
    yield "staleness/mean", staleness_mean(did.staleness)
    yield "staleness/p95", staleness_p95(did.staleness)
    for fate in ("stale", "refused", "returned"):
        yield f"minibatches/{fate}", did.minibatches[fate]
    for number, (shard, share) in enumerate(zip(did.shards, did.shares, strict=True)):
        yield f"shard_share/{number}", share
        yield f"shard_sync_share/{number}", shard.sync_share


def open_writer(directory: Path | str, frames: int = 0, seconds: float = 0.0) -> Writer | None:
    """Open ``tensorboard/`` of a run directory; return None if TensorBoard is not installed.

    For a new run (0 frames) event files of an earlier run are removed; for a resumed run, values that the killed run
    wrote for later frames are hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        if importlib.util.find_spec("tensorboard") is not None:  # no warning if it is not installed at all
            say(f"TensorBoard cannot be imported ({error}), so no event files are written")
        return None
    path = Path(directory) / "tensorboard"
    with explained_disk_errors(path):
        if not frames:
            for old in path.glob("events.out.tfevents.*"):
                old.unlink()
        writer = SummaryWriter(str(path), purge_step=frames + 1 if frames else None)
    return Writer(writer, frames, seconds)
