"""The figures of reports, comparisons and `speech3 stats`: inline SVG in the page's colours, light or dark, or PNG.

Everything is drawn on axes that the caller made, in the colours of its matplotlib style (`axes.prop_cycle`, and
`xtick.color` for secondary lines), so the same code draws for light pages, dark pages and PNG files.

Axes: T frames, F feature bins, N samples.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from speech3.data import Stats
from speech3.engine import ShardReport, ThroughputPoint
from speech3.evaluate.html import STYLE, escape
from speech3.evaluate.tables import columns_wide
from speech3.runtime import atomic_path
from speech3.train import Curve, staleness_mean, staleness_p95

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
_NAMED = 30  # most speakers that get a bar each
_LETTERS = 55  # most letters of speakers' names that fit side by side
_UNEVEN = 20  # the axis is logarithmic if the largest value is more than this times the median
Segment = tuple[float, float, str]
# Placeholder colours, which matplotlib writes unchanged and `_svg` replaces by variables of the style sheet.
_VARIABLES = {"#0a0b01": "--ink", "#0a0b02": "--quiet", "#0a0b03": "--rule"}
_VARIABLES |= {f"#0a0c0{number}": f"--c{number}" for number in range(_COLOURS)}
_PLACEHOLDERS = {variable: colour for colour, variable in _VARIABLES.items()}
_LIGHT = dict(reversed(re.findall(r"(--\w+): (#\w+)", STYLE)))  # the first value of each name is the light one
_NO_NUMBER = "#35b779"  # not a colour of the colour map, so that it stands out
_INCHES_PER_SECOND = 3.6  # makes a phone of 60 ms as wide as its name
_SMALL_INCHES_PER_SECOND = 2.4
_MAX_INCHES = 60.0


def _style(colours: Mapping[str, str]) -> dict[Any, Any]:
    """matplotlib's settings for figures in the colours of the style sheet's variables."""
    ink, quiet, rule = (colours[name] for name in ("--ink", "--quiet", "--rule"))
    return {
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 10,
        "axes.edgecolor": rule,
        "axes.labelcolor": quiet,
        "axes.titlecolor": ink,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "xtick.color": quiet,
        "ytick.color": quiet,
        "text.color": ink,
        "legend.frameon": False,
        "axes.prop_cycle": cycler(color=[colours[f"--c{number}"] for number in range(_COLOURS)]),
    }


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
    axes: Axes,
    curves: Sequence[Curve],
    against: Against,
    *,
    marks: Sequence[float] = (),
    virtual: bool = False,
    systems: Sequence[str] = (),
) -> None:
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
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(text, (0, mark), (3, 1), fontsize=7, color=quiet, **place)


def _colours(systems: Sequence[str]) -> list[int]:
    places = {system: place for place, system in enumerate(dict.fromkeys(systems))}
    before = (systems[:index].count(system) for index, system in enumerate(systems))
    return [places[system] + _COLOURS * count for system, count in zip(systems, before, strict=True)]


def draw_staleness(axes: Axes, counts: Sequence[int], *, colour: int = 0) -> None:
    """Draw the share of the minibatches at each staleness 0, 1, 2, ..., with mean and 95th percentile."""
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
    axes: Axes,
    rows: Sequence[Sequence[ThroughputPoint]],
    gigabits: Sequence[float],
    *,
    span: tuple[float, float] | None = None,
) -> None:
    """Draw frames per second against workers on logarithmic axes: float32 dashed, ternary solid.

    `rows` has the points of each bandwidth by number of workers. `span`, the minimum and maximum of the y axis, has
    several panels on the same scale.
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
    size, letter = next((size, letter) for size, letter in ((1e6, " M"), (1e3, " k"), (0.0, "")) if value >= size)
    return f"{value / (size or 1):g}{letter}"


def write_histograms(stats: Stats, path: Path) -> None:
    """Write a PNG: a histogram of utterance lengths, and the minutes of each speaker (if many, their histogram)."""
    title = f"{Path(stats.path).name}: {stats.hours:.2f} hours, {stats.utterances:,} utterances"
    minutes = {speaker: seconds / 60 for speaker, seconds in stats.speaker_s.items()}
    if len(minutes) > _NAMED:
        draw = partial(_histogram, values=list(minutes.values()), labels=("speech per speaker (minutes)", "speakers"))
    else:
        draw = partial(_bars, minutes=minutes)
    lengths = partial(_histogram, values=stats.lengths_s, labels=("utterance length (seconds)", "utterances"))
    panels = [
        (f"median {np.median(stats.lengths_s):.3g} s", lengths),
        (f"median {np.median(list(minutes.values())):.3g} min", draw),
    ]
    write_png(path, panels, f"{title}, {stats.speakers:,} speakers")


def _histogram(axes: Axes, values: Sequence[float], labels: tuple[str, str]) -> None:
    bins = int(np.clip(2 * np.sqrt(len(values)), 5, 60))
    low, median, high = (float(value) for value in np.quantile(values, (0.0, 0.5, 1.0)))
    uneven = low > 0 and high > _UNEVEN * median
    edges = np.geomspace(low, high, bins + 1) if uneven else np.linspace(0.0, max(high, 1e-9), bins + 1)
    axes.hist(values, bins=edges.tolist(), color="C0", edgecolor="white", linewidth=0.4)
    axes.axvline(median, color="C1", linewidth=1.2)
    if uneven:  # otherwise a few outliers would put all other values into one bar
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(left=0)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(False, axis="x")


def _bars(axes: Axes, minutes: Mapping[str, float]) -> None:
    names = sorted(minutes, key=lambda name: -minutes[name])
    shown = [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
    crowded = max(map(len, names)) * len(names) > _LETTERS
    axes.bar(range(len(names)), [minutes[name] for name in names], color="C0")
    axes.set_xticks(range(len(names)), shown, rotation=90 if crowded else 0, fontsize=8)
    axes.set(xlabel="speaker", ylabel="speech (minutes)")
    axes.grid(False, axis="x")


@dataclass(frozen=True)
class AlignedUtterance:
    """An utterance to draw: its samples, features and alignment. Segments are ``(start_s, end_s, label)``."""

    name: str
    wave_N: np.ndarray  # samples in [-1, 1)
    sample_rate_hz: int
    feats_TF: np.ndarray  # log-mel or log-magnitude spectrogram, lowest frequency first
    shift_ms: float
    phones: Sequence[Segment]  # with or without silence
    words: Sequence[Segment]
    hypothesis: Sequence[Segment] = ()  # what was recognised; empty: not drawn


def _svg(figure: Figure, label: str) -> str:
    stream = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser's font is used instead
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # figures on the same page would have the same ids
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def svg(title: str, draw: Callable[[Axes], None], *, about: str = "") -> str:
    """Draw on new axes and return SVG in the page's colours; `about` distinguishes figures with the same title."""
    with matplotlib.rc_context({**_style(_PLACEHOLDERS), "svg.hashsalt": f"{title} {about}"}):
        figure = Figure(figsize=(4.8, 3.3), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title)
        return _svg(figure, f"{title} {about}".strip())


def write_png(path: Path, panels: Sequence[tuple[str, Callable[[Axes], None]]], title: str = "") -> None:
    """Write panels (title, function that draws it) as a PNG in the page's light colours, three in a row."""
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)

    def draw() -> Figure:
        figure = Figure(figsize=(7.2, 4.6) if columns == 1 else (4.6 * columns, 3.4 * rows), layout="constrained")
        for place, (name, draw_panel) in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place)
            draw_panel(axes)
            axes.set_title(name)
        if title:
            figure.suptitle(title, fontsize=12)
        return figure

    save_png(path, draw, {"figure.dpi": 150})


def save_png(path: Path, draw: Callable[[], Figure], style: dict[Any, Any], made_by: str | None = None) -> None:
    """Draw in the page's light colours, changed by `style`, and write the PNG atomically."""
    paper: dict[Any, Any] = {"figure.facecolor": _LIGHT["--paper"], "axes.facecolor": _LIGHT["--paper"]}
    with matplotlib.rc_context({**_style(_LIGHT), **paper, **style}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the missing letter is drawn as a box
        figure = draw()
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": made_by})


def alignment(utterance: AlignedUtterance, *, small: bool = False) -> str:
    """Waveform and spectrogram with phone boundaries, and phones and words below them, as SVG."""
    duration_s = max(
        len(utterance.wave_N) / utterance.sample_rate_hz, len(utterance.feats_TF) * utterance.shift_ms / 1000
    )
    width = min(max(7.0, (_SMALL_INCHES_PER_SECOND if small else _INCHES_PER_SECOND) * duration_s), _MAX_INCHES)
    lanes = {"phones": utterance.phones, "words": utterance.words, "recognised": utterance.hypothesis}
    lanes = {name: segments for name, segments in lanes.items() if segments or name != "recognised"}
    heights = (0.6 if small else 1.0, 1.8 if small else 3.2, *(0.38 for _ in lanes))
    with matplotlib.rc_context(
        {**_style(_PLACEHOLDERS), "axes.grid": False, "svg.hashsalt": f"alignment {utterance.name}"}
    ):
        height = 0.8 * sum(heights) + 0.15
        figure = Figure(figsize=(width, height))
        # The margins in inches are those of the labels: to find them, matplotlib would have to draw everything twice.
        margins = {"left": 0.92 / width, "right": 1 - 0.1 / width, "bottom": 0.45 / height, "top": 1 - 0.05 / height}
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0.1, **margins)
        wave, spectrum, *rows = (figure.add_subplot(grid[row]) for row in range(len(heights)))
        _draw_wave(wave, utterance, width)
        _draw_spectrogram(spectrum, utterance)
        for axes, (name, segments) in zip(rows, lanes.items(), strict=True):
            _draw_lane(axes, segments, name, width / duration_s)
        for axes in (wave, spectrum, *rows):
            axes.set_xlim(0, duration_s)
            if axes is not rows[-1]:
                axes.set_xticks([])
        rows[-1].set_xlabel("seconds")
        return _svg(figure, f"waveform, spectrogram and alignment of {utterance.name}")


def _draw_wave(axes: Axes, utterance: AlignedUtterance, inches: float) -> None:
    # Draw the extremes of each pixel's samples: all samples would make megabytes of SVG.
    wave = np.asarray(utterance.wave_N, dtype=np.float64)
    step = max(1, round(len(wave) / (72 * inches)))
    blocks = np.pad(wave, (0, -len(wave) % step), mode="edge").reshape(-1, step)
    times = (np.arange(len(blocks)) + 0.5) * step / utterance.sample_rate_hz
    axes.fill_between(times, blocks.min(axis=1), blocks.max(axis=1), color="C0", linewidth=0.4)
    axes.set_yticks([])
    axes.set_ylabel("wave", rotation=0, ha="right", va="center")
    axes.spines[["left", "bottom"]].set_visible(False)


def _draw_spectrogram(axes: Axes, utterance: AlignedUtterance) -> None:
    feats_TF = np.asarray(utterance.feats_TF, dtype=np.float64)
    finite_TF = np.isfinite(feats_TF)
    # The logarithm of digital silence is not finite; draw it as the lowest finite value.
    feats_TF = np.where(finite_TF, feats_TF, feats_TF[finite_TF].min() if finite_TF.any() else 0.0)
    frames, bins = feats_TF.shape
    low, high = np.percentile(feats_TF, (2, 99.8))
    draw_shades(axes, feats_TF, (low, high), (0.0, frames * utterance.shift_ms / 1000, 0.0, float(bins)))
    _draw_edges(axes, utterance.phones, color="white", alpha=0.75)
    axes.set_yticks([])
    axes.set_ylabel(f"{bins} bins", rotation=0, ha="right", va="center")


def _draw_edges(axes: Axes, segments: Sequence[Segment], **style: Any) -> None:
    # All as one collection: drawing hundreds of lines one by one takes most of a report's time.
    edges = sorted({edge for start, end, _ in segments for edge in (start, end)})
    axes.vlines(edges, 0, 1, transform=axes.get_xaxis_transform(), linewidth=0.7, **style)


def draw_shades(
    axes: Axes, feats_TF: np.ndarray, span: tuple[float, float], extent: tuple[float, float, float, float]
) -> AxesImage:
    """Draw features as shades; values of `span` have the darkest and the lightest, NaN has a colour of its own."""
    colours = matplotlib.colormaps["magma"].with_extremes(bad=_NO_NUMBER)
    return axes.imshow(
        feats_TF.T,
        cmap=colours,
        vmin=span[0],
        vmax=max(span[1], span[0] + 1e-6),
        extent=extent,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )


def _draw_lane(axes: Axes, segments: Sequence[Segment], label: str, inches_per_s: float) -> None:
    axes.set_ylim(0, 1)
    _draw_edges(axes, segments, color=rcParams["xtick.color"])
    for start, end, text in segments:
        points_per_letter = (end - start) * inches_per_s * 72 / max(columns_wide(text), 1)
        size = min(10.0, max(5.0, points_per_letter / 0.7))  # letters are 0.7 times as wide as high
        axes.text((start + end) / 2, 0.5, text, ha="center", va="center", fontsize=size, clip_on=True)
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    axes.spines[["left"]].set_visible(False)
