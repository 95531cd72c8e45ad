"""The section "Training" of the report: held-out results of each network over time, and effects of asynchrony.

The loss is the criterion of training: cross-entropy, or that of sequences (LF-MMI, MMI, sMBR).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from speech3.models.describe import parameters_of
from speech3.reports import figures, html
from speech3.reports.engine_figures import Line, draw_accuracy, draw_staleness, time_unit
from speech3.reports.html import escape
from speech3.scoring.tables import per_cent
from speech3.training.asynchrony import Asynchrony, asynchrony
from speech3.training.curves import curve_of

Records = Sequence[Mapping[str, Any]]
_PER = "Phone error rate, held-out, %"


def training_section(metrics: Mapping[str, Records], about: Mapping[str, dict[str, Any]]) -> str:
    """The section as HTML; empty if no system has a curve.

    Parameters
    ----------
    metrics
        The records of each system's ``metrics.jsonl``, by name of the system.
    about
        What the file of each network says about it; empty for GMMs.
    """
    trained = {name: curve for name, records in metrics.items() if (curve := curve_of(name, records))}
    if not trained:
        return ""
    virtual = all(any(record.get("world") == "simulated" for record in metrics[name]) for name in trained)
    accuracy = partial(draw_accuracy, curves=list(trained.values()), against="seconds", virtual=virtual)
    plots = [figures.svg("Held-out frame accuracy", accuracy)]
    epochs = {name: _epochs(metrics[name]) for name in trained}
    loss = _lines(epochs, "heldout_loss", ", held-out") + _lines(epochs, "train_loss", ", train", dashed=True)
    for title, lines in (("Loss per frame", loss), (_PER, _lines(epochs, "heldout_per", as_per_cent=True))):
        if lines:
            unit, divisor = time_unit(max(max(line.x) for line in lines))
            scaled = [replace(line, x=[t / divisor for t in line.x]) for line in lines]
            plots.append(figures.curves(title, scaled, f"{'virtual ' * virtual}{unit} of training"))
    grid = f'<div class="grid">{"".join(f"<figure>{plot}</figure>" for plot in plots)}</div>{_results(about)}'
    done = {name: one for name in trained if (one := asynchrony(metrics[name]))}
    shown = [_asynchronous(name, one, list(trained).index(name)) for name, one in done.items() if _was_shared(one)]
    return "\n".join([grid, *shown])


def _epochs(records: Records) -> Records:
    """The records of the epochs, in order."""
    # A run that was killed between an epoch's record and its checkpoint repeats the epoch and its record.
    epochs = {record["epoch"]: record for record in records if record.get("event") == "epoch"}
    return [record for _, record in sorted(epochs.items())]


def _lines(
    epochs: Mapping[str, Records], key: str, suffix: str = "", *, dashed: bool = False, as_per_cent: bool = False
) -> list[Line]:
    lines = []
    for colour, (name, records) in enumerate(epochs.items()):
        points = [(r["seconds"], r[key] * (100 if as_per_cent else 1)) for r in records if r.get(key) is not None]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(f"{name}{suffix}", x, y, colour, dashed=dashed))
    return lines


def _results(about: Mapping[str, dict[str, Any]]) -> str:
    """The held-out results of each network, with the parameters that it has."""
    rows = []
    for name, network in about.items():
        if network.get("heldout_loss") is not None:
            per = network.get("heldout_per")
            rows.append([escape(name), parameters_of(network), per_cent(network["heldout_accuracy"]),
                         f"{network['heldout_loss']:.4f}", "–" if per is None else per_cent(per)])  # fmt: skip
    header = ["held-out speech", "parameters of", "frame accuracy %", "loss", "phone error rate %"]
    key = (
        "Loss: cross-entropy per frame; for training on sequences (LF-MMI, MMI, sMBR) its own criterion, so losses of"
        " different kinds cannot be compared. Phone error rate: decoded with a phone loop, without a dictionary."
    )
    return f'{html.table(header, rows)}<p class="quiet">{key}</p>' if rows else ""


def _was_shared(one: Asynchrony) -> bool:
    return len(one.shards) > 1 or any(one.staleness)


def _asynchronous(name: str, one: Asynchrony, colour: int) -> str:
    n = one.minibatches
    text = (
        f"{len(one.shards)} shards, {one.versions:,} versions. Minibatches: {n['used']:,} used, {n['stale']:,} too "
        f"stale, {n['refused']:,} refused, {n['returned']:,} returned by shards that died and processed by others. "
        f"Restarted shards: {one.restarts:,}."
    )
    parts = []
    if any(one.staleness):
        histogram = partial(draw_staleness, counts=one.staleness, colour=colour)
        parts.append(f"<figure>{figures.svg('Staleness of the pushes', histogram, about=name)}</figure>")
    if one.shards:
        parts.append(f"<div>{_shards(one)}</div>")
    return f'<h3>{escape(name)}</h3>\n<p>{text}</p>\n<div class="grid">{"".join(parts)}</div>'


def _shards(one: Asynchrony) -> str:
    header = ["shard", "minibatches", "share", "compute", "sync", "wait", "busy"]
    rows = [
        [
            str(number), f"{shard.minibatches:,}", f"{100 * share:.1f} %", f"{shard.compute_s:,.1f}",
            f"{shard.sync_s:,.2f}", f"{shard.wait_s:,.2f}", f"{shard.busy:,}",
        ]
        for number, (shard, share) in enumerate(zip(one.shards, one.shares, strict=True))
    ]  # fmt: skip
    key = "Compute, sync and wait are in seconds; busy: how often the server was busy and the shard continued."
    return f'{html.table(header, rows)}<p class="quiet">{key}</p>'
