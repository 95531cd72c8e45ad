"""`speech3 watch`: a training run in the terminal, redrawn from its ``metrics.jsonl`` and ``run.json`` until it ends.

Any key of a record may be missing: backends differ in what they record.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from speech3.config import TrainingConfig
from speech3.errors import DataError, FormatError, MissingError
from speech3.io import METRICS_FILE, MODEL_FILE, RUN_FILE
from speech3.runtime import Tail, read_json
from speech3.train import Asynchrony, asynchrony, curve_of, staleness_mean, staleness_p95

Record = Mapping[str, Any]

_SHOWN = ("before", "heldout", "progress", "epoch", "average")
_FATES = ("used", "stale", "refused", "returned")
_POLL_S = 1.0
_QUIET_S = 300.0  # time without a record after which the training may no longer be running
_STALENESS = 9  # from this staleness on, counts are combined
_BAR, _CURVE = 24, 40  # columns
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_NONE = "-"


@dataclass(frozen=True)
class EpochView:
    """One epoch; 0 is the initial model. Unknown values are None."""

    number: int
    seconds: float | None = None  # of this epoch alone; virtual in a simulation
    frames_per_s: float | None = None
    train_accuracy: float | None = None
    train_loss: float | None = None
    heldout_accuracy: float | None = None
    heldout_loss: float | None = None
    heldout_per: float | None = None  # phone error rate
    learning_rate: float | None = None
    done: float | None = None  # share of the minibatches that are used or dropped; None: the epoch has ended


@dataclass(frozen=True)
class MinibatchCounts:
    """Minibatches by outcome, and restarted shards."""

    used: int = 0
    stale: int = 0
    refused: int = 0
    returned: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class RunView:
    """The current state of a run; unknown values are None. Times are of training, virtual in a simulation."""

    name: str
    finished: bool = False
    family: str | None = None  # of the network, such as dnn
    minibatch_frames: int | None = None
    world: str | None = None
    workers: int | None = None
    max_epochs: int | None = None
    may_stop_early: bool = False
    minibatches: tuple[int, int] | None = None  # of the current epoch: used or dropped, and their total
    frames_per_s: float | None = None  # between the last two records
    seconds: float | None = None
    seconds_left: float | None = None  # in the current epoch
    run_seconds_left: float | None = None  # in the run, if it does not stop early
    epochs: tuple[EpochView, ...] = ()  # in order; the last may be unfinished
    best_epoch: int | None = None  # whose parameters are the best so far, or the result
    averaged: tuple[int, ...] = ()  # the epochs whose mean is the result, if it is
    accuracies: tuple[float, ...] = ()  # all held-out measurements, in the order of training
    losses: tuple[float, ...] = ()
    latest: MinibatchCounts = MinibatchCounts()  # of the newest epoch
    whole: MinibatchCounts = MinibatchCounts()
    shards: Asynchrony | None = None  # of the newest epoch that had any
    shards_epoch: int | None = None
    recorded: float | None = None  # when the newest record was written, in seconds since 1970
    damaged: tuple[int, ...] = ()  # numbers of lines of metrics.jsonl that could not be read

    @property
    def virtual(self) -> bool:
        return self.world == "simulated"


def follow(run_dir: Path, pause: Callable[[], object]) -> Iterator[RunView]:
    """Yield views of a run, one after each call of `pause`; the last is that of the finished run.

    Each view reads only the new records. It is an error if `run_dir` is not the directory of a training run.
    """
    if not run_dir.is_dir():
        raise MissingError(f"{run_dir}: no such directory; pass one that `speech3 train` writes, such as exp/dnn")
    records: list[Record] = []
    damaged: tuple[int, ...] = ()
    with Tail(run_dir / METRICS_FILE) as tail:
        while True:
            finished = (run_dir / MODEL_FILE).exists()  # it is written after the last record, so check first
            appended = tail.read()
            if appended.afresh:
                records, damaged = [], ()
            for record in appended.records:
                if record.get("event") == "progress":  # there may be thousands, and only the last two are needed
                    older = [each for each in records if each["event"] == "progress"][:-1]
                    records = [each for each in records if each not in older]
                if record.get("event") in _SHOWN and isinstance(record.get("epoch"), int):
                    records.append(record)
            damaged += appended.damaged
            is_run = (run_dir / RUN_FILE).exists()
            if not records and not is_run and not appended.afresh:
                raise FormatError(
                    f"{run_dir}: not the directory of a training run; pass one that `speech3 train` writes, such as "
                    f"exp/dnn"
                )
            identity = read_json(run_dir / RUN_FILE) if is_run else {}
            yield run_view(run_dir.resolve().name, records, identity, finished=finished, damaged=damaged)
            if finished:
                return
            pause()


def run_view(
    name: str, records: Sequence[Record], identity: Record, *, finished: bool, damaged: Sequence[int] = ()
) -> RunView:
    """The view of a run from the records of its ``metrics.jsonl`` and its ``run.json`` (`identity`; empty: none)."""
    training: Record = identity.get("training") or {}
    # A killed run repeats the epoch after its last checkpoint, and records it again.
    ended = {record["epoch"]: record for record in records if record.get("event") in ("before", "epoch")}
    last = max(ended, default=0)
    progress = [record for record in records if record.get("event") == "progress" and record["epoch"] > last]
    current = progress[-1] if progress and not finished else None
    by_epoch = [record for _, record in sorted(ended.items())] + ([current] if current else [])
    epochs = tuple(_epoch(record, before) for before, record in zip([{}, *by_epoch], by_epoch, strict=False))
    whole = [record for record in by_epoch if record.get("event") != "before"]
    latest = whole[-1] if whole else {}
    average: Record = next((record for record in reversed(records) if record.get("event") == "average"), {})
    # How long it will take; a virtual clock says nothing about that.
    max_epochs = _whole(training, "max_epochs")
    world, left, run_left = latest.get("world", training.get("world")), None, None
    if current and world != "simulated" and (done := epochs[-1].done) and (seconds := epochs[-1].seconds) is not None:
        left = seconds / done * (1 - done)
        run_left = left + (max_epochs - epochs[-1].number) * seconds / done if max_epochs is not None else None
    # What was measured, and what asynchrony did.
    curve = curve_of(name, records)
    losses = (_number(record, "heldout_loss") for record in records)
    did, did_epoch = _shards(whole)
    return RunView(
        name=name,
        finished=finished,
        family=(identity.get("model") or {}).get("family"),
        minibatch_frames=_whole(training, "minibatch"),
        world=world,
        workers=latest.get("workers", training.get("workers")),
        max_epochs=max_epochs,
        may_stop_early=training.get("schedule") == "halving",
        minibatches=_minibatches(current) if current else None,
        frames_per_s=_frames_per_s(epochs, progress) if current else _frames_per_s(epochs),
        seconds=_number(latest, "seconds"),
        seconds_left=left,
        run_seconds_left=run_left,
        epochs=epochs,
        best_epoch=_best_epoch(epochs, last=TrainingConfig.model_construct(**training).last_is_best),
        averaged=tuple(average["epochs"]) if average.get("taken") else (),
        accuracies=curve.accuracy if curve else (),
        losses=tuple(loss for loss in losses if loss is not None and math.isfinite(loss)),
        latest=_counts([latest]),
        whole=_counts(whole),
        shards=did,
        shards_epoch=did_epoch,
        recorded=_number(records[-1], "time") if records else None,
        damaged=tuple(damaged),
    )


def _epoch(record: Record, before: Record) -> EpochView:
    """A view of the epoch in `record`; seconds and frames are counted from the end of the record `before`."""
    seconds, frames = _gain(record, before, "seconds"), _gain(record, before, "frames")
    untold = record["epoch"] > before.get("epoch", 0) + 1  # the seconds would include epochs without a record
    per_s = frames / seconds if frames and seconds and seconds > 0 else None
    trained = frames is None or frames > 0  # else loss and accuracy have no meaning
    done = None
    if record.get("event") == "progress":
        ended, total = _minibatches(record)
        done = ended / total if total else 0.0
    keys = ["heldout_accuracy", "heldout_loss", "heldout_per", "learning_rate"]
    keys += ["train_accuracy", "train_loss"] * trained
    known = {key: _number(record, key) for key in keys}
    return EpochView(record["epoch"], None if untold else seconds, per_s, done=done, **known)


def _frames_per_s(epochs: Sequence[EpochView], progress: Sequence[Record] = ()) -> float | None:
    """The newest known speed: between the last two progress records, or of an epoch."""
    if len(progress) > 1 and progress[-2]["epoch"] == progress[-1]["epoch"]:
        frames, seconds = (_gain(progress[-1], progress[-2], key) for key in ("frames", "seconds"))
        if frames and seconds and frames > 0 and seconds > 0:
            return frames / seconds
    return next((each.frames_per_s for each in reversed(epochs) if each.frames_per_s is not None), None)


def _gain(record: Record, before: Record, key: str) -> float | None:
    there, base = _number(record, key), _number(before, key) if before.get("epoch") else 0.0
    return None if there is None or base is None else there - base


def _minibatches(progress: Record) -> tuple[int, int]:
    counts = _counts([progress])
    return counts.used + counts.stale + counts.refused, _whole(progress, "epoch_minibatches") or 0


def _counts(records: Sequence[Record]) -> MinibatchCounts:
    minibatches = [record.get("minibatches") or {} for record in records]
    fates = {fate: sum(counts.get(fate, 0) for counts in minibatches) for fate in _FATES}
    return MinibatchCounts(**fates, restarts=sum(record.get("restarts", 0) for record in records))


def _shards(records: Sequence[Record]) -> tuple[Asynchrony | None, int | None]:
    for record in reversed(records):
        did = asynchrony([{**record, "event": "epoch"}])
        if did:
            return did, record["epoch"]
    return None, None


def _best_epoch(epochs: Sequence[EpochView], *, last: bool) -> int | None:
    measured = [(each.heldout_loss, each.number) for each in epochs if each.heldout_loss is not None]
    if last and measured:
        return measured[-1][1]
    return min(measured, key=lambda pair: pair[0], default=(0.0, None))[1]


def _number(record: Record, key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) else None


def _whole(record: Record, key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) else None


class Size(NamedTuple):
    """Size of a drawing: how many of the last epochs and first shards it lists, and whether it has blank lines."""

    epochs: int
    shards: int
    spaced: bool = True


_SIZES = (Size(10, 16), Size(5, 8), Size(4, 4, False), Size(2, 2, False))  # from tall to short terminals


def watch(run_dir: Path) -> None:
    """Show a run until it finishes or Ctrl-C is pressed; without a terminal, once and in plain text."""
    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        view = _live(run_dir, console)
    else:
        view = next(follow(run_dir, lambda: None))
        if not view.epochs and not view.finished:
            raise DataError(
                f"{run_dir}/metrics.jsonl: nothing was recorded yet; wait for the end of the first epoch, or for ten "
                f"seconds if it is long"
            )
    if view:
        console.print(draw(view, time.time(), ascii_only=console.options.ascii_only))


def _live(run_dir: Path, console: Console) -> RunView | None:
    """Redraw the whole terminal once a second; restore its former content afterwards."""
    view = None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for view in follow(run_dir, partial(time.sleep, _POLL_S)):
                live.update(fitting(view, console, time.time()), refresh=True)
    except KeyboardInterrupt:  # the usual way to end `speech3 watch`
        pass
    return view


def fitting(view: RunView, console: Console, now: float) -> RenderableType:
    """Draw as much of a view as fits into the terminal."""
    for size in _SIZES:
        drawn = draw(view, now, size, ascii_only=console.options.ascii_only)
        if len(console.render_lines(drawn, pad=False)) <= console.height:
            break
    return drawn


def draw(view: RunView, now: float, size: Size = _SIZES[0], *, ascii_only: bool = False) -> RenderableType:
    """Draw a run; `now` is in seconds since 1970. With `ascii_only` the terminal cannot show block characters."""
    sections: list[RenderableType] = [Group(_title(view), _place(view), *_lines(view, now))]
    if len(view.accuracies) > 1 or len(view.losses) > 1:
        sections.append(_curves(view, ascii_only))
    if view.epochs:
        sections += [_epochs(view, size.epochs), _minibatch_table(view)]
    if view.shards and sum(view.shards.staleness):
        sections.append(Group(*_staleness(view.shards, view.shards_epoch, ascii_only)))
    if view.shards and view.shards.shards:
        sections.append(_shard_table(view.shards, view.shards_epoch, size.shards))
    blank = [""] * size.spaced
    return Group(sections[0], *(part for section in sections[1:] for part in (*blank, section)))


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """A curve in one line of text, scaled from the lowest to the highest of `values`.

    If there are more values than columns, a column shows the last of its values.
    """
    if len(values) > width:
        values = [values[(column + 1) * len(values) // width - 1] for column in range(width)]
    lowest, highest = min(values), max(values)
    marks = _ASCII if ascii_only else _BLOCKS
    scale = (len(marks) - 1) / (highest - lowest) if highest > lowest else 0.0
    return "".join(marks[round((value - lowest) * scale)] for value in values)


def duration(seconds: float) -> str:
    """``h:mm:ss``, or ``m:ss`` below an hour, or seconds with one decimal below a minute."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _title(view: RunView) -> Text:
    workers = f"{view.workers} worker{'s' * (view.workers != 1)}" if view.workers else ""
    world = f"world {view.world}" if view.world else ""
    minibatches = f"minibatches of {view.minibatch_frames} frames" if view.minibatch_frames else ""
    words = ", ".join(filter(None, (view.family, world, workers, minibatches)))
    return Text.assemble((view.name, "bold"), f": {words}" if words else "")


def _place(view: RunView) -> RenderableType:
    number = view.epochs[-1].number if view.epochs else 0
    of = f" of {'at most ' * view.may_stop_early}{view.max_epochs}" if view.max_epochs else ""
    if view.finished:
        result = f"; the result is from epoch {view.best_epoch}" if view.best_epoch is not None else ""
        if view.averaged:
            result = f"; the result is the mean of epochs {', '.join(map(str, view.averaged))}"
        return Text(f"finished after {number}{of} epochs{result}", style="green")
    if not view.epochs:
        return Text("nothing recorded yet; waiting for the first record (Ctrl-C to quit)", style="yellow")
    if not view.minibatches:
        return Text(f"{number}{of} epochs done")
    ended, total = view.minibatches
    row = Table.grid(padding=(0, 2))
    row.add_row(
        f"epoch {number}{of}", ProgressBar(total or None, ended, width=_BAR), f"{ended:,} of {total:,} minibatches"
    )
    return row


def _lines(view: RunView, now: float) -> Iterator[Text]:
    done = [] if view.frames_per_s is None else [f"{view.frames_per_s:,.0f} frames/s"]
    if view.seconds is not None:
        done.append(f"{duration(view.seconds)} of training{' by the virtual clock' * view.virtual}")
    left = [] if view.seconds_left is None else [f"{duration(view.seconds_left)} left in this epoch"]
    if view.run_seconds_left is not None:
        left.append(f"{'at most ' * view.may_stop_early}{duration(view.run_seconds_left)} in the run")
    yield from (Text(", ".join(said)) for said in (done, left) if said)
    if view.recorded is not None and not view.finished:
        age_s = max(0, round(now - view.recorded))
        age = duration(age_s) if age_s >= 60 else f"{age_s} s"
        doubt = "; is the training still running?" if age_s > _QUIET_S else ""
        yield Text(f"last record {age} ago{doubt}", style="yellow" if doubt else "dim")
    if view.damaged:
        lines = ", ".join(map(str, view.damaged[:5])) + ", ..." * (len(view.damaged) > 5)
        yield Text(f"metrics.jsonl: ignoring unreadable line {lines}", style="yellow")


def _curves(view: RunView, ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 2))
    accuracy = ("held-out accuracy", view.accuracies, "green", "{:.2%}")
    for label, values, style, form in (accuracy, ("held-out loss", view.losses, "magenta", "{:.4f}")):
        if len(values) > 1:
            ends = f"{form.format(values[0])} to {form.format(values[-1])}"
            grid.add_row(label, Text(sparkline(values, _CURVE, ascii_only=ascii_only), style=style), ends)
    return grid


def _table(*headings: str, title: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title=title or None, title_justify="left")
    table.title_style = "none"
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _formatted(value: float | None, form: str, scale: float = 1.0) -> str:
    return _NONE if value is None else format(scale * value, form)


def _epochs(view: RunView, most: int) -> Table:
    phones = any(epoch.heldout_per is not None for epoch in view.epochs)
    measured = ["train\n%", "train\nloss", "held-out\n%", "held-out\nloss", *["\nPER %"] * phones]
    table = _table("\nepoch", *measured, "learning\nrate", "\nframes/s", "\ntime")
    shown = list(view.epochs[-most:])
    if not any(epoch.number == view.best_epoch for epoch in shown):  # always show the best epoch, for comparison
        shown[:1] = [epoch for epoch in view.epochs if epoch.number == view.best_epoch] or shown[:1]
    for epoch in shown:
        best = epoch.number == view.best_epoch
        remark = f" ({epoch.done:.0%})" if epoch.done is not None else " best" if best else ""
        cells = [_formatted(epoch.train_accuracy, ".2f", 100), _formatted(epoch.train_loss, ".4f")]
        cells += [_formatted(epoch.heldout_accuracy, ".2f", 100), _formatted(epoch.heldout_loss, ".4f")]
        cells += [_formatted(epoch.heldout_per, ".2f", 100)] * phones
        cells += [_formatted(epoch.learning_rate, ".3g"), _formatted(epoch.frames_per_s, ",.0f")]
        time_s = _NONE if epoch.seconds is None else duration(epoch.seconds)
        table.add_row(f"{epoch.number}{remark}", *cells, time_s, style="green" if best else None)
    return table


def _minibatch_table(view: RunView) -> Table:
    table = _table("minibatches", "used", "stale", "refused", "returned", "shards restarted")
    epochs = [epoch.number for epoch in view.epochs if epoch.number]
    rows: list[tuple[str, MinibatchCounts]] = [(f"epoch {epochs[-1]}", view.latest)] if epochs else []
    for name, counts in [*rows, ("whole run", view.whole)]:
        cells = (counts.used, counts.stale, counts.refused, counts.returned, counts.restarts)
        table.add_row(name, *(f"{count:,}" for count in cells))
    return table


def _staleness(did: Asynchrony, epoch: int | None, ascii_only: bool) -> Iterator[RenderableType]:
    counts = did.staleness
    yield Text(
        f"staleness of {sum(counts):,} minibatches in epoch {epoch}: mean {staleness_mean(counts):.2f}, "
        f"95 % up to {staleness_p95(counts)}"
    )
    shown = [*counts[:_STALENESS], sum(counts[_STALENESS:])][: len(counts)]
    table = _table("versions", *(f"{stale}{'+' * (stale == _STALENESS)}" for stale in range(len(shown))))
    table.add_row("% of minibatches", *(f"{100 * count / sum(counts):.1f}" for count in shown))
    blocks = sparkline([0, *shown], len(shown) + 1, ascii_only=ascii_only)[1:]
    table.add_row("", *(3 * block if count else "" for block, count in zip(blocks, shown, strict=True)), style="cyan")
    yield table


def _shard_table(did: Asynchrony, epoch: int | None, most: int) -> Table:
    table = _table(f"shards in epoch {epoch}", "minibatches", "share %", "compute %", "sync %", "wait %", "busy")
    for number, (shard, share) in enumerate(zip(did.shards[:most], did.shares, strict=False)):
        times_s = (shard.compute_s, shard.sync_s, shard.wait_s)
        parts = (f"{100 * time_s / sum(times_s):.1f}" if sum(times_s) else _NONE for time_s in times_s)
        table.add_row(f"{number}", f"{shard.minibatches:,}", f"{100 * share:.1f}", *parts, f"{shard.busy:,}")
    if len(did.shards) > most:
        table.add_row(f"and {len(did.shards) - most} more", style="dim")
    return table
