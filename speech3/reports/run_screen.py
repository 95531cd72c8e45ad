"""A training run in the terminal: `watch` draws the views of `speech3.reports.run_view` until the run ends."""

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from speech3.errors import Speech3Error
from speech3.reports.run_view import Counts, EpochView, RunView, follow
from speech3.training.asynchrony import Asynchrony, staleness_mean, staleness_p95

_POLL_S = 1.0
_QUIET_S = 300.0  # time without a record after which the training may no longer be running
_STALENESS = 9  # from this staleness on, counts are combined
_BAR, _CURVE = 24, 40  # columns
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_NONE = "-"


class Size(NamedTuple):
    """Size of a drawing: how many of the last epochs and first shards it lists, and whether it has blank lines."""

    epochs: int
    shards: int
    spaced: bool = True


_SIZES = (Size(10, 16), Size(5, 8), Size(4, 4, False), Size(2, 2, False))  # from tall to short terminals


def watch(run_dir: Path) -> None:
    """Show a run until it finishes or Ctrl-C is pressed; without a terminal, once and in plain text.

    Raises
    ------
    Speech3Error
        There is no run in `run_dir`, one of its files cannot be read, or, without a terminal, nothing was recorded yet.
    """
    console = Console(highlight=False)
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        view = _live(run_dir, console)
    else:
        view = next(follow(run_dir, lambda: None))
        if not view.epochs and not view.finished:
            raise Speech3Error(
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
    """Draw a run.

    Parameters
    ----------
    now
        Seconds since 1970.
    ascii_only
        The terminal cannot show block characters.
    """
    sections: list[RenderableType] = [Group(_title(view), _place(view), *_lines(view, now))]
    if len(view.accuracies) > 1 or len(view.losses) > 1:
        sections.append(_curves(view, ascii_only))
    if view.epochs:
        sections += [_epochs(view, size.epochs), _minibatches(view)]
    if view.shards and sum(view.shards.staleness):
        sections.append(Group(*_staleness(view.shards, view.shards_epoch, ascii_only)))
    if view.shards and view.shards.shards:
        sections.append(_shards(view.shards, view.shards_epoch, size.shards))
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
    said = (
        view.family or "", f"world {view.world}" if view.world else "", workers,
        f"minibatches of {view.minibatch_frames} frames" if view.minibatch_frames else "",
    )  # fmt: skip
    words = ", ".join(each for each in said if each)
    return Text.assemble((view.name, "bold"), f": {words}" if words else "")


def _place(view: RunView) -> RenderableType:
    """The progress of the run."""
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
    for label, values, style, form in (
        ("held-out accuracy", view.accuracies, "green", "{:.2%}"), ("held-out loss", view.losses, "magenta", "{:.4f}"),
    ):  # fmt: skip
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


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return _NONE if value is None else format(scale * value, form)


def _epochs(view: RunView, most: int) -> Table:
    phones = any(epoch.heldout_per is not None for epoch in view.epochs)
    table = _table(
        "\nepoch", "train\n%", "train\nloss", "held-out\n%", "held-out\nloss", *["\nPER %"] * phones,
        "learning\nrate", "\nframes/s", "\ntime",
    )  # fmt: skip
    shown = list(view.epochs[-most:])
    if not any(epoch.number == view.best_epoch for epoch in shown):  # always show the best epoch, for comparison
        shown[:1] = [epoch for epoch in view.epochs if epoch.number == view.best_epoch] or shown[:1]
    for epoch in shown:
        best = epoch.number == view.best_epoch
        cells = [
            f"{epoch.number}{_remark(epoch, best)}",
            _number(epoch.train_accuracy, ".2f", 100), _number(epoch.train_loss, ".4f"),
            _number(epoch.heldout_accuracy, ".2f", 100), _number(epoch.heldout_loss, ".4f"),
            *[_number(epoch.heldout_per, ".2f", 100)] * phones,
            _number(epoch.learning_rate, ".3g"), _number(epoch.frames_per_s, ",.0f"),
            _NONE if epoch.seconds is None else duration(epoch.seconds),
        ]  # fmt: skip
        table.add_row(*cells, style="green" if best else None)
    return table


def _remark(epoch: EpochView, best: bool) -> str:
    if epoch.done is not None:
        return f" ({epoch.done:.0%})"
    return " best" if best else ""


def _minibatches(view: RunView) -> Table:
    table = _table("minibatches", "used", "stale", "refused", "returned", "shards restarted")
    epochs = [epoch.number for epoch in view.epochs if epoch.number]
    rows: list[tuple[str, Counts]] = [(f"epoch {epochs[-1]}", view.latest)] if epochs else []
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


def _shards(did: Asynchrony, epoch: int | None, most: int) -> Table:
    table = _table(f"shards in epoch {epoch}", "minibatches", "share %", "compute %", "sync %", "wait %", "busy")
    for number, (shard, share) in enumerate(zip(did.shards[:most], did.shares, strict=False)):
        times_s = (shard.compute_s, shard.sync_s, shard.wait_s)
        parts = (f"{100 * time_s / sum(times_s):.1f}" if sum(times_s) else _NONE for time_s in times_s)
        table.add_row(f"{number}", f"{shard.minibatches:,}", f"{100 * share:.1f}", *parts, f"{shard.busy:,}")
    if len(did.shards) > most:
        table.add_row(f"and {len(did.shards) - most} more", style="dim")
    return table
