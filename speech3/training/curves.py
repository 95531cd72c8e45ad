"""Learning curves: held-out frame accuracy over time, and the scaling efficiency of N workers.

The definitions are those of the tables in the SPEECH3 talk: T(a) is the time from random parameters,
warm start included, until held-out frame accuracy first reaches a; the scaling efficiency of N workers at a is
T_1(a) / (N T_N(a)), where T_1 is that of plain SGD; a table shows it at 0.90, 0.95 and 0.98 of the best accuracy of
one worker.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speech3.errors import Speech3Error
from speech3.io.atomic import read_json
from speech3.io.progress import read_metrics

SHARES = (0.90, 0.95, 0.98)  # the accuracies of a table, as shares of the best accuracy of one worker
_MEASURED = ("before", "heldout", "epoch")


@dataclass(frozen=True)
class Curve:
    """Held-out frame accuracy of one run in chronological order; there is at least one point.

    Attributes
    ----------
    seconds
        Training time from random parameters until each point, with the warm start and without evaluation. Virtual if
        the run was simulated.
    frames
        Number of frames trained on until each point.
    accuracy
        Share of the held-out frames that are classified correctly, 0 to 1.
    """

    name: str
    workers: int
    seconds: tuple[float, ...]
    frames: tuple[int, ...]
    accuracy: tuple[float, ...]

    @property
    def best(self) -> float:
        """The highest accuracy of all points."""
        return max(self.accuracy)


@dataclass(frozen=True)
class Row:
    """One run of a table.

    Attributes
    ----------
    seconds
        Time until each of the table's accuracies; None: not reached.
    efficiency
        1 is linear scaling; None: the run or the baseline does not reach the accuracy, or there is no baseline.
    """

    name: str
    workers: int
    seconds: tuple[float | None, ...]
    efficiency: tuple[float | None, ...]
    best_accuracy: float
    final_accuracy: float


@dataclass(frozen=True)
class Table:
    """Times and efficiencies at some accuracies."""

    accuracies: tuple[float, ...]
    rows: tuple[Row, ...]


def curve_of(name: str, records: Iterable[Mapping[str, Any]], workers: int = 1) -> Curve | None:
    """The curve in the records of a ``metrics.jsonl``; None if no accuracy was measured yet.

    Parameters
    ----------
    records
        Only those with ``event`` "before", "heldout" or "epoch" and a ``heldout_accuracy`` are used. ``before`` is at
        time 0.
    workers
        Number of workers, if the records do not contain it.
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
    """The curve of a run directory, with the name of the directory.

    Raises
    ------
    Speech3Error
        It is not the directory of a training run, or the run has not measured an accuracy yet.
    """
    path = Path(run_dir)
    run = path / "run.json"
    training = read_json(run).get("training", {}) if run.exists() else {}
    curve = curve_of(path.resolve().name, read_metrics(path / "metrics.jsonl"), training.get("workers", 1))
    if curve is None and run.exists():
        raise Speech3Error(f"{path}: no held-out accuracy in metrics.jsonl yet; wait for the run's first epoch")
    if curve is None:
        raise Speech3Error(f"{path}: not the directory of a training run")
    return curve


def time_to(curve: Curve, accuracy: float) -> float | None:
    """Seconds until `curve` first reaches `accuracy`; None if it does not.

    Accuracy is interpolated linearly between two measurements. Nothing is known before the first one, so a curve that
    begins above `accuracy` gets the time of its first point.
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
    """T_1 / (N T_N): the share of linear scaling that is reached; above 1: more than N times as fast.

    Parameters
    ----------
    t_1, t_n
        Seconds until the same accuracy, of one worker with plain SGD and of `workers`.
    """
    return t_1 / (workers * t_n)


def make_table(baseline: Curve | None, others: Sequence[Curve], accuracies: Sequence[float] | None = None) -> Table:
    """Times and efficiencies of `baseline` (plain SGD on one worker) and of `others`, in this order.

    Parameters
    ----------
    baseline
        None: efficiencies are left out, and the accuracies are taken from the curve with the fewest workers.
    accuracies
        Accuracies of the table; None: `accuracies_of` the baseline.

    Raises
    ------
    ValueError
        There is no curve at all.
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
        rows.append(Row(curve.name, curve.workers, seconds, gains, curve.best, curve.accuracy[-1]))
    return Table(tuple(accuracies), tuple(rows))
