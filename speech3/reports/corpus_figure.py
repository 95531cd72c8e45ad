"""The figure of `speech3 stats`: the lengths of utterances, and the amount of speech of each speaker."""

import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from speech3.corpus.stats import Stats
from speech3.io.atomic import atomic_path

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#8a8a8a",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
}
_FILL, _MARK = "#3b6ea8", "#c2551e"
_NAMED = 30  # most speakers that get a bar each
_LETTERS = 55  # most letters of speakers' names that fit side by side
_UNEVEN = 20  # the axis is logarithmic if the largest value is more than this times the median


def write_histograms(stats: Stats, path: Path) -> None:
    """Write a PNG: a histogram of utterance lengths, and the minutes of each speaker (if many, their histogram)."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained", dpi=150)
        left, right = figure.subplots(1, 2)
        name = Path(stats.path).name
        figure.suptitle(
            f"{name}: {stats.hours:.2f} hours, {stats.utterances:,} utterances, {stats.speakers:,} speakers",
            fontsize=12,
        )
        _histogram(left, np.array(stats.lengths_s), "utterance length (seconds)", "utterances", "s")
        minutes = {speaker: seconds / 60 for speaker, seconds in stats.speaker_s.items()}
        if len(minutes) > _NAMED:
            _histogram(right, np.array(list(minutes.values())), "speech per speaker (minutes)", "speakers", "min")
        else:
            _bars(right, minutes)
        with atomic_path(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # the missing letter is drawn as a box
            figure.savefig(temporary, format="png", metadata={"Software": None})


def _histogram(axes: Axes, values: np.ndarray, x_label: str, y_label: str, unit: str) -> None:
    bins = int(np.clip(2 * np.sqrt(len(values)), 5, 60))
    low, median, high = (float(value) for value in np.quantile(values, (0.0, 0.5, 1.0)))
    uneven = low > 0 and high > _UNEVEN * median
    edges = np.geomspace(low, high, bins + 1) if uneven else np.linspace(0.0, max(high, 1e-9), bins + 1)
    axes.hist(values, bins=edges.tolist(), color=_FILL, edgecolor="white", linewidth=0.4)
    axes.axvline(median, color=_MARK, linewidth=1.2)
    axes.set_title(f"median {median:.3g} {unit}", color=_MARK)
    if uneven:  # otherwise a few outliers would put all other values into one bar
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _bars(axes: Axes, minutes: dict[str, float]) -> None:
    names = sorted(minutes, key=lambda name: -minutes[name])
    axes.bar(range(len(names)), [minutes[name] for name in names], color=_FILL)
    crowded = max(map(len, names)) * len(names) > _LETTERS
    axes.set_xticks(range(len(names)), [_short(name) for name in names], rotation=90 if crowded else 0, fontsize=8)
    axes.set_title(f"median {np.median(list(minutes.values())):.3g} min", color=_MARK)
    axes.set_xlabel("speaker")
    axes.set_ylabel("speech (minutes)")


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
