"""Plots of training runs: accuracy over time or frames, staleness, the work of shards.

Everything is drawn on axes that the caller made, in the colours of its matplotlib style (`axes.prop_cycle`, and
`xtick.color` for secondary lines), so the same code draws for light pages, dark pages and PNG files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from speech3.engine import Point, ShardReport
from speech3.training.asynchrony import staleness_mean, staleness_p95
from speech3.training.curves import Curve

Against = Literal["seconds", "frames"]

_COLOURS = 6  # colours in a style's cycle; further lines differ in their line style
_STROKES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # with the colours, 42 combinations
_NAMES_INSIDE = 4  # most lines for which the legend fits inside the axes; otherwise it is beside them
_FAR = 10  # ratio of the longest and the shortest run above which the time axis is logarithmic
_MARGIN = 1.3  # factor by which a logarithmic axis extends beyond the data
_DOTS = 25  # most points of a line that are drawn with markers
_TIME_UNITS = (("seconds", 1.0, 600.0), ("minutes", 60.0, 7200.0), ("hours", 3600.0, float("inf")))
_FRAME_UNITS = (("frames", 1.0, 1e4), ("thousand frames", 1e3, 1e6), ("million frames", 1e6, float("inf")))
_WORK = ("compute", "sync", "wait for the server", "draw")


@dataclass(frozen=True)
class Line:
    """One line of a plot; `colour` is a number and selects colour and line style."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dashed: bool = False


def draw_lines(axes: Axes, lines: Sequence[Line], x_label: str, *, per_cent: bool = False) -> None:
    """Draw lines, with a marker for each measurement if there are few."""
    for line in lines:
        stroke = "--" if line.dashed else _STROKES[line.colour // _COLOURS % len(_STROKES)]
        marker = "o" if len(line.x) <= _DOTS else ""
        colour = f"C{line.colour % _COLOURS}"
        axes.plot(line.x, line.y, stroke, color=colour, marker=marker, markersize=3.5, linewidth=1.4, label=line.name)
    axes.set_xlabel(x_label)
    axes.set_xlim(left=0)
    if per_cent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    if len(lines) > _NAMES_INSIDE:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    elif len(lines) > 1:
        axes.legend()


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of a time axis that ends at `longest_s`: its name and its length in seconds."""
    return _unit(longest_s, _TIME_UNITS)


def _unit(longest: float, units: Sequence[tuple[str, float, float]]) -> tuple[str, float]:
    return next((name, size) for name, size, most in units if longest < most)


def draw_accuracy(
    axes: Axes, curves: Sequence[Curve], against: Against, *, marks: Sequence[float] = (), virtual: bool = False,
    systems: Sequence[str] = (),
) -> None:  # fmt: skip
    """Draw held-out frame accuracy against seconds of training or frames trained on.

    The time axis is logarithmic if some runs take many times as long as others.

    Parameters
    ----------
    marks
        Accuracies at which to draw a faint dashed line with its value: those of a table.
    virtual
        The seconds are simulated, and the label of the axis says so.
    systems
        The system of each curve: curves of the same system share a colour and differ in line style. By default every
        curve is a system of its own.
    """
    longest = max(getattr(curve, against)[-1] for curve in curves)
    unit, divisor = time_unit(longest) if against == "seconds" else _unit(longest, _FRAME_UNITS)
    lines = [
        Line(curve.name, [value / divisor for value in getattr(curve, against)], curve.accuracy, colour)
        for colour, curve in zip(_colours(systems or [curve.name for curve in curves]), curves, strict=True)
    ]
    what = f"{'virtual ' * virtual}{unit} of training" if against == "seconds" else f"{unit} trained on"
    draw_lines(axes, lines, what, per_cent=True)
    ends = [line.x[-1] for line in lines]
    if against == "seconds" and max(ends) > _FAR * min(ends) > 0:
        axes.set_xscale("log")
        axes.set_xlim(left=min(x for line in lines for x in line.x if x > 0))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for mark in marks:
        quiet = rcParams["xtick.color"]
        axes.axhline(mark, color=quiet, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        text = f"{'in the table: ' if mark == min(marks) else ''}{100 * mark:.1f} %"
        axes.annotate(
            text,
            (0, mark),
            (3, 1),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=7,
            color=quiet,
        )


def _colours(systems: Sequence[str]) -> list[int]:
    places = {system: place for place, system in enumerate(dict.fromkeys(systems))}
    before = (systems[:index].count(system) for index, system in enumerate(systems))
    return [places[system] + _COLOURS * count for system, count in zip(systems, before, strict=True)]


def draw_staleness(axes: Axes, counts: Sequence[int], *, colour: int = 0) -> None:
    """Draw the share of the minibatches at each staleness, with mean and 95th percentile.

    Parameters
    ----------
    counts
        Number of minibatches in pushes of staleness 0, 1, 2, ...
    """
    total = max(sum(counts), 1)
    axes.bar(range(len(counts)), [count / total for count in counts], width=0.85, color=f"C{colour % _COLOURS}")
    summary = f"{sum(counts):,} minibatches, mean {staleness_mean(counts):.2f}, 95 % at most {staleness_p95(counts)}"
    axes.set_xlabel(f"staleness in versions\n{summary}")
    axes.set_xlim(-0.6, max(len(counts), 4) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.grid(False, axis="x")


def draw_shards(axes: Axes, shards: Sequence[ShardReport]) -> None:
    """Draw how each shard spent its time, and its share of the minibatches."""
    total = max(sum(shard.minibatches for shard in shards), 1)
    for number, shard in enumerate(shards):
        left = 0.0
        for part, seconds in enumerate((shard.compute_s, shard.sync_s, shard.wait_s, shard.draw_s)):
            label = _WORK[part] if number == 0 else None
            axes.barh(number, seconds, left=left, height=0.7, color=f"C{part}", label=label)
            left += seconds
        axes.annotate(
            f"{100 * shard.minibatches / total:.1f} %", (left, number), (5, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(shards)), [f"shard {number}" for number in range(len(shards))])
    axes.set_ylim(max(len(shards), 3) - 0.5, -0.5)
    longest_s = max(shard.total_s for shard in shards)
    axes.set_xlim(0, 1.2 * longest_s or 1.0)  # room for the shares
    axes.set_xlabel("seconds; to the right of each bar: share of the minibatches")
    axes.grid(False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4)


def draw_throughput(
    axes: Axes, rows: Sequence[Sequence[Point]], gigabits: Sequence[float], *, span: tuple[float, float] | None = None
) -> None:
    """Draw frames per second against workers on logarithmic axes: float32 dashed, ternary solid.

    Each bandwidth has its own colour and marker.

    Parameters
    ----------
    rows
        For each bandwidth, the points by number of workers.
    span
        Minimum and maximum of the y axis, to give several panels the same scale; None: chosen for this panel.
    """
    for place, (row, bandwidth) in enumerate(zip(rows, gigabits, strict=True)):
        workers = [point.workers for point in row]
        marker = _MARKERS[place % len(_MARKERS)]
        style: dict[str, Any] = {"color": f"C{place % _COLOURS}", "marker": marker, "markersize": 4, "linewidth": 1.4}
        name = f"{bandwidth:g} Gbit/s"
        axes.plot(workers, [point.ternary for point in row], "-", label=f"{name}, ternary", **style)
        axes.plot(workers, [point.float32 for point in row], "--", label=f"{name}, float32", **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    if span:
        axes.set_ylim(span[0] / _MARGIN, span[1] * _MARGIN)
    axes.set_xticks(workers, [str(count) for count in workers], fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    axes.set_ylabel("frames per second")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=8)


def _short(value: float) -> str:
    """A number with k for thousands and M for millions."""
    size, letter = next((size, letter) for size, letter in ((1e6, " M"), (1e3, " k"), (0.0, "")) if value >= size)
    return f"{value / (size or 1):g}{letter}"
