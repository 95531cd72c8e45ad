"""Training runs side by side: time to three accuracies, efficiency, error rates, drops, curves, throughput."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from speech3.config import FeatureConfig, parse, read_yaml
from speech3.engine import LEVEL, Conclusion, ThroughputPoint
from speech3.errors import SettingError, Speech3Error
from speech3.evaluate.tables import grid, per_cent
from speech3.io import FEATURES_FILE, METRICS_FILE, MODEL_FILE, RUN_FILE
from speech3.runtime import read_json, read_metrics, write_json
from speech3.train import (
    BYTES_PER_GIGABIT,
    Asynchrony,
    Curve,
    EfficiencyRow,
    EfficiencyTable,
    MeasuredNetwork,
    Throughput,
    asynchrony,
    make_table,
    read_curve,
    staleness_mean,
    staleness_p95,
)

_SHIFT_MS = 10.0  # frame shift assumed if there is no features.yaml
_NONE = "-"
_TIMES = "Minutes:seconds of training, warm start included, until held-out frame accuracy first reaches a percentage"
_BRACKETS = ";\nin brackets the scaling efficiency in per cent, T_1 / (N T_N), with T_1 of one worker with plain SGD"
_MINUTES = "min/10 h: minutes of training, over all epochs, per 10 hours of training speech"
_DROPS = ";\ndrops: minibatches that were too stale or refused"
_SENT = ";\nkB up, down: sent per minibatch, from the worker and to the worker"
_SHOWN = 3  # most exceptions to each conclusion that are printed


@dataclass(frozen=True)
class Run:
    """One training run."""

    curve: Curve
    world: str
    finished: bool
    epochs: int  # finished so far
    # of training, over all epochs, per 10 hours of speech; None before the end of epoch 1
    minutes_per_10h: float | None
    metric: str | None  # WER or CER as a recipe scored it; None if the run was not scored
    error_rate: float | None  # a fraction
    asynchrony: Asynchrony | None  # None if the run was not asynchronous
    # bytes sent per minibatch to the server and back in the last epoch; None: nothing is sent
    sent: tuple[float, float] | None
    heldout: str  # hash of the held-out frames; empty if unknown
    plain: bool  # one worker with plain SGD
    notes: tuple[str, ...]  # for the reader of its row


@dataclass(frozen=True)
class Comparison:
    """Several runs; `runs` and the rows of `table` are in the same order, the baseline first if there is one."""

    table: EfficiencyTable
    runs: tuple[Run, ...]
    baseline: bool
    notes: tuple[str, ...]


def read_run(path: Path, name: str) -> Run:
    """Read the directory of a run, finished or not; an error if it is none, or has no curve yet."""
    curve = read_curve(path)
    curve = Curve(name, curve.workers, curve.seconds, curve.frames, curve.accuracy)
    records = read_metrics(path / METRICS_FILE)
    identity = read_json(path / RUN_FILE) if (path / RUN_FILE).exists() else {}
    epochs = {record["epoch"]: record for record in records if record.get("event") == "epoch"}
    last = epochs[max(epochs)] if epochs else {}
    training = identity.get("training", {})
    world, simulated = last.get("world", training.get("world", "sgd")), training.get("simulation", {})
    # The steps of a server may differ from those of SGD, even with one shard.
    plain = world == "sgd" or (world == "simulated" and simulated.get("strategy") == "synchronous")
    finished = (path / MODEL_FILE).exists()
    notes = [] if finished else [f"{name}: not finished; shown as of epoch {len(epochs)}"]
    if identity.get("init"):
        notes.append(f"{name}: started from a trained model (--init), whose training time is not included")
    # What the reader should know of its figures.
    metric, rate, doubt = _error_rate(path)
    if doubt:
        notes.append(f"{name}: {doubt}")
    did, sent = asynchrony(records), last.get("bytes_per_minibatch")
    return Run(
        curve=curve,
        world=world,
        finished=finished,
        epochs=len(epochs),
        minutes_per_10h=_minutes_per_10h(path, last, did),
        metric=metric,
        error_rate=rate,
        asynchrony=did,
        sent=(sent["up"], sent["down"]) if sent else None,
        heldout=identity.get("frames", {}).get("heldout", ""),
        plain=plain and curve.workers == 1,
        notes=tuple(notes),
    )


def _minutes_per_10h(path: Path, last: dict[str, Any], did: Asynchrony | None) -> float | None:
    if not last.get("frames"):
        return None
    file = path / FEATURES_FILE
    shift_ms = parse(FeatureConfig, read_yaml(file), file).frame_shift if file.exists() else _SHIFT_MS
    # An epoch is one pass over train.frames, but `frames` does not count dropped minibatches.
    kept = did.minibatches["used"] / (did.minibatches["used"] + did.dropped) if did and did.minibatches["used"] else 1.0
    hours = last["frames"] / kept / last["epoch"] * shift_ms / 3.6e6
    return float(last["seconds"] / 60 / hours * 10)


def _error_rate(path: Path) -> tuple[str | None, float | None, str]:
    path = path.resolve()
    file = path.parent / "score" / path.name / "score.json"
    if not file.exists():
        return None, None, ""
    score, model = read_json(file), path / MODEL_FILE
    found = re.search(r" (WER|CER|PER) \S+ \[", score.get("line", ""))
    metric = found[1] if found else "WER"
    outdated = not model.exists() or file.stat().st_mtime < model.stat().st_mtime
    doubt = f"{file} is older than the model, which has been trained again since" if outdated else ""
    return metric, float(score[metric.lower()]), doubt


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Compare run directories; the baseline is the first run of one worker with plain SGD, real or simulated.

    Raises `Speech3Error`: none of `paths` is a run directory with a curve; the message gives the reason for each.
    """
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    runs: list[Run] = []
    left_out: dict[str, list[str]] = {}
    for path, name in zip(paths, names, strict=True):
        try:
            runs.append(read_run(path, name))
        except Speech3Error as error:
            left_out.setdefault(str(error).removeprefix(f"{path}: "), []).append(str(path))
    reasons = [f"{', '.join(those)}: {reason}" for reason, those in left_out.items()]
    if not runs:
        text = "".join(f"\n  {reason}" for reason in reasons)
        raise SettingError(f"no run to compare; pass directories that speech3 train wrote:{text}")
    first = next((run for run in runs if run.plain), None)
    runs = [*([first] if first else []), *(run for run in runs if run is not first)]
    table = make_table(first.curve if first else None, [run.curve for run in runs if run is not first])
    notes = [f"left out: {reason}" for reason in reasons] + [note for run in runs for note in run.notes]
    return Comparison(table, tuple(runs), first is not None, (*notes, *_cautions(runs, table, first)))


def _cautions(runs: Sequence[Run], table: EfficiencyTable, baseline: Run | None) -> Iterator[str]:
    """Reasons why some of the numbers are less meaningful than they look."""
    if baseline is None:
        fewest = min(runs, key=lambda run: run.curve.workers).curve.name
        yield (
            f"no run is plain SGD on one worker, so no efficiency is shown; the accuracies are relative to the best of"
            f" {fewest}"
        )
    for run in runs:
        if run.heldout != runs[0].heldout:
            yield (
                f"{run.curve.name}: other held-out frames than {runs[0].curve.name}, so accuracies are not comparable"
            )
        if run.curve.accuracy[0] >= table.accuracies[0]:
            yield (
                f"{run.curve.name}: above {100 * table.accuracies[0]:.2f} % when first evaluated, so the time shown "
                f"for it is too long; evaluate more often (training.evaluations)"
            )
    virtual = [run.curve.name for run in runs if run.world == "simulated"]
    if virtual:
        mixed = " and cannot be compared with measured times" if len(virtual) < len(runs) else ""
        yield f"{', '.join(virtual)}: times are virtual (simulated){mixed}"


def table_text(table: EfficiencyTable, columns: Sequence[tuple[str, Sequence[str]]] = ()) -> str:
    """A table as text, in the form of the SPEECH3 talk: ``3:36 (81.0)`` is a time and the efficiency in per cent.

    `columns` are additional ones: a heading and a cell for each row.
    """
    reached = [seconds for row in table.rows for seconds in row.seconds if seconds is not None]
    tenths = max(reached, default=0.0) < 600
    header = ["run", "workers", *(f"{100 * accuracy:.2f} %" for accuracy in table.accuracies), "best %", "last %"]
    rows = [_cells(row, tenths) for row in table.rows]
    for heading, cells in columns:
        header.append(heading)
        rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    return grid([header, *rows], 1)


def print_table(table: EfficiencyTable, columns: Sequence[tuple[str, Sequence[str]]] = ()) -> None:
    """Print `table_text` with a legend of its times and brackets."""
    print(f"{table_text(table, columns)}\n\n{_legend(table)}")


def _legend(table: EfficiencyTable) -> str:
    known = any(gain is not None for row in table.rows for gain in row.efficiency)
    return f"{_TIMES}{_BRACKETS if known else ''}."


def _cells(row: EfficiencyRow, tenths: bool) -> list[str]:
    times = [
        _NONE if seconds is None else f"{clock(seconds, tenths)}{'' if gain is None else f' ({100 * gain:.1f})'}"
        for seconds, gain in zip(row.seconds, row.efficiency, strict=True)
    ]
    return [row.name, str(row.workers), *times, per_cent(row.best_accuracy), per_cent(row.final_accuracy)]


def clock(seconds: float, tenths: bool = False) -> str:
    """Minutes and seconds, ``3:36`` or ``3:36.2``; from an hour on ``1:03:36``."""
    units = math.floor(seconds * 10 + 0.5) if tenths else 10 * math.floor(seconds + 0.5)
    whole, tenth = divmod(units, 10)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, f"{whole % 60:02}{f'.{tenth}' if tenths else ''}"
    return f"{hours}:{minutes:02}:{rest}" if hours else f"{minutes}:{rest}"


def comparison_text(comparison: Comparison) -> str:
    runs = comparison.runs
    did = [run.asynchrony for run in runs]
    columns = [
        ("world", [run.world if run.finished else f"{run.world}, epoch {run.epochs}" for run in runs]),
        ("min/10 h", [_NONE if run.minutes_per_10h is None else f"{run.minutes_per_10h:.1f}" for run in runs]),
    ]
    for metric in ("WER", "CER", "PER"):
        if any(run.metric == metric for run in runs):
            rates = [run.error_rate if run.metric == metric else None for run in runs]
            columns.append((f"{metric} %", [_NONE if rate is None else per_cent(rate) for rate in rates]))
    if any(did):
        columns.append(("staleness, p95", [_stale(one) for one in did]))
        columns.append(("drops", [f"{one.dropped:,}" if one else _NONE for one in did]))
    if any(run.sent for run in runs):
        columns.append(("kB up, down", [_sent(run.sent) for run in runs]))
    legend = _MINUTES + (_DROPS if any(did) else "") + (_SENT if any(run.sent for run in runs) else "")
    notes = "".join(f"\nnote: {note}" for note in comparison.notes)
    return f"{table_text(comparison.table, columns)}\n\n{_legend(comparison.table)}\n{legend}.{notes}"


def _sent(sent: tuple[float, float] | None) -> str:
    return ", ".join(f"{each / 1000:,.1f}" for each in sent) if sent else _NONE


def _stale(one: Asynchrony | None) -> str:
    return f"{staleness_mean(one.staleness):.2f}, {staleness_p95(one.staleness)}" if one and one.staleness else _NONE


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison for JSON; times in seconds, accuracies, efficiencies and error rates as fractions."""
    return {
        "accuracies": list(comparison.table.accuracies),
        "baseline": comparison.runs[0].curve.name if comparison.baseline else None,
        "runs": [_run_json(row, run) for row, run in zip(comparison.table.rows, comparison.runs, strict=True)],
        "notes": list(comparison.notes),
    }


def _run_json(row: EfficiencyRow, run: Run) -> dict[str, Any]:
    values = asdict(row) | {"seconds": list(row.seconds), "efficiency": list(row.efficiency)}
    values |= {name: getattr(run, name) for name in ("world", "finished", "epochs", "minutes_per_10h")}
    if run.sent:
        values["bytes_per_minibatch"] = dict(zip(("up", "down"), run.sent, strict=True))
    if run.metric:
        values[run.metric.lower()] = run.error_rate
    if one := run.asynchrony:
        values |= {"minibatches": dict(one.minibatches), "drops": one.dropped, "restarts": one.restarts}
        values["staleness_mean"] = staleness_mean(one.staleness)
        values |= {"staleness_p95": staleness_p95(one.staleness), "shares": list(one.shares)}
    return values


def write_curves(
    out: Path, table: EfficiencyTable, curves: Sequence[Curve], *, virtual: bool = False, systems: Sequence[str] = ()
) -> list[Path]:
    """Write ``accuracy_time.png`` and ``accuracy_frames.png``, with the accuracies of `table` marked.

    `systems` is as for `draw_accuracy`.
    """
    from speech3.evaluate.figures import draw_accuracy, write_png

    title, marks = "Held-out frame accuracy", table.accuracies
    by_time = partial(draw_accuracy, curves=curves, against="seconds", marks=marks, virtual=virtual, systems=systems)
    by_frames = partial(draw_accuracy, curves=curves, against="frames", marks=marks, systems=systems)
    written = {out / "accuracy_time.png": by_time, out / "accuracy_frames.png": by_frames}
    for path, draw in written.items():
        write_png(path, [(title, draw)])
    return list(written)


def write_figures(out: Path, comparison: Comparison) -> list[Path]:
    """Write the curves, and for asynchronous runs ``staleness.png`` and ``shards.png``, with a panel for each run."""
    from speech3.evaluate.figures import draw_shards, draw_staleness, write_png

    runs = comparison.runs
    virtual = all(run.world == "simulated" for run in runs)
    written = write_curves(out, comparison.table, [run.curve for run in runs], virtual=virtual)
    named = [(run.curve.name, colour, run.asynchrony) for colour, run in enumerate(runs) if run.asynchrony]
    staleness = [(n, partial(draw_staleness, counts=a.staleness, colour=c)) for n, c, a in named if any(a.staleness)]
    shards = [(n, partial(draw_shards, shards=a.shards)) for n, _, a in named if len(a.shards) > 1]
    for path, panels in ((out / "staleness.png", staleness), (out / "shards.png", shards)):
        if panels:
            write_png(path, panels)
            written.append(path)
    return written


def throughput_text(found: Throughput) -> str:
    """The measurements, the predicted frames per second, and the conclusions, as text."""
    header = ["network", "parameters", "fully connected %", "frames", "minibatch ms", "float32 MB"]
    header += ["coding ms", "up MB", "down MB"]
    measured = [header, *(_measured(network) for network in found.networks)]
    rates = [["network", "Gbit/s", "gradients", *map(str, found.workers)]]
    for row in _rows(found):
        where = [row[0].network, f"{row[0].bandwidth / BYTES_PER_GIGABIT:g}"]
        rates.append([*where, "float32", *(f"{point.float32:,.0f}" for point in row)])
        rates.append([*where, "ternary", *(f"{point.ternary:,.0f}" for point in row)])
        rates.append([*where, "gain", *(f"{point.gain:.2f}" for point in row)])
    coded = [count for count in found.workers if count > 1]
    ends = f"; two numbers are for {coded[0]} .. {coded[-1]} workers" if len(coded) > 1 else ""
    return (
        f"measured on this machine ({found.device}), for one worker's step{ends}:\n{grid(measured, 1)}\n\n"
        f"predicted frames per second by number of workers; gain: ternary over float32\n{grid(rates, 3)}\n\n"
        + "\n".join(_conclusion(each) for each in found.conclusions)
    )


def _measured(network: MeasuredNetwork) -> list[str]:
    costs, coded = network.costs, list(network.costs.ternary.values())
    ends = [coded[0], coded[-1]] if len(coded) > 1 else coded
    step = [f"{costs.frames:.0f}", f"{1e3 * costs.compute_s:.2f}", f"{costs.float32.up / 1e6:.3f}"]
    coding_ms = " .. ".join(f"{1e3 * sent.coding_s:.2f}" for sent in ends) or _NONE
    down_mb = " .. ".join(f"{sent.down / 1e6:.3f}" for sent in ends) or _NONE
    up_mb = f"{coded[0].up / 1e6:.3f}" if coded else _NONE
    network_is = [network.name, f"{network.parameters:,}", f"{100 * network.connected:.1f}"]
    return [*network_is, *step, coding_ms, up_mb, down_mb]


def _rows(found: Throughput) -> list[Sequence[ThroughputPoint]]:
    count = len(found.workers)
    return [found.points[start : start + count] for start in range(0, len(found.points), count)]


def _conclusion(found: Conclusion) -> str:
    alike = f"{found.level} level, within {100 * LEVEL:g} %"
    if not found.steps:
        return f"TernGrad: {found.claim}: nothing to compare{f' ({alike})' if found.level else ''}"
    held = found.steps - len(found.against)
    verdict = "holds" if not found.against else "does not hold" if not held else "does not always hold"
    beside = f"; {alike}" if found.level else ""
    text = f"TernGrad: {found.claim}: {verdict} ({held} of {found.steps} steps{beside})"
    for before, after in found.against[:_SHOWN]:
        text += f"\n  not: {_place(before)}: gain {before.gain:.3f}; {_place(after)}: {after.gain:.3f}"
    more = len(found.against) - _SHOWN
    return text + (f"\n  and {more} more, in throughput.json" if more > 0 else "")


def _place(point: ThroughputPoint) -> str:
    return f"{point.network}, {point.bandwidth / BYTES_PER_GIGABIT:g} Gbit/s, {point.workers} workers"


def _with_gains(points: Sequence[ThroughputPoint]) -> list[dict[str, Any]]:
    return [asdict(point) | {"gain": point.gain} for point in points]


def write_throughput(out: Path, found: Throughput) -> list[Path]:
    """Write ``throughput.json`` (everything, with the gains) and ``throughput.png`` (a panel for each network)."""
    from speech3.evaluate.figures import draw_throughput, write_png

    values = asdict(found) | {"level_within": LEVEL, "points": _with_gains(found.points)}
    for written_as, each in zip(values["conclusions"], found.conclusions, strict=True):
        written_as["against"] = [_with_gains(pair) for pair in each.against]
    written = [out / "throughput.json", out / "throughput.png"]
    write_json(written[0], values)
    rows = _rows(found)
    rates = [rate for point in found.points for rate in (point.float32, point.ternary)]
    span = (min(rates), max(rates))
    panels = []
    for network in found.networks:
        mine = [row for row in rows if row[0].network == network.name]
        title = f"{network.name}: {100 * network.connected:.0f} % fully connected"
        panels.append((title, partial(draw_throughput, rows=mine, gigabits=found.gigabits, span=span)))
    write_png(written[1], panels)
    return written
