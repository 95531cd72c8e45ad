"""One utterance as a PNG: waveform, features, pitch and senones, on one time axis.

Axes: S samples, T frames, F features.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec
from matplotlib.ticker import MaxNLocator

from speech3.io.atomic import atomic_path
from speech3.reports.statistics import FeatureStatistics

SIGNATURE = "speech3 inspect"  # stored in the PNG, to recognise our own pictures
_INK, _QUIET, _RULE, _BLUE = "#1d1f21", "#65696e", "#d9d9d2", "#1f63b5"
_SERIES = (_BLUE, "#c2570c", "#2c7a3f", "#8a3fa0")
_NO_NUMBER = "#35b779"  # for NaN; not a colour of the colour map, so that it stands out
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.parse_math": False,
    "axes.edgecolor": _QUIET,
    "axes.labelcolor": _INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "text.color": _INK,
}
_NARROWEST, _WIDEST = 9.0, 28.0  # inches
_INCHES_PER_S, _INCHES_PER_S_SENONES = 0.9, 2.5  # the latter is wide enough to print the senone of three frames
_BAR, _SIDE = 0.13, 1.7  # inches: the columns of the colour bars and of the statistics
_DPI = 110
_COLUMNS = 4000  # columns of the waveform, each of which shows the extremes of its samples


@dataclass(frozen=True)
class Pitch:
    """A pitch curve: hertz and the probability of voicing (T,) of frames centred at `times_s`."""

    times_s: np.ndarray
    hz: np.ndarray
    voicing: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The data to draw for an utterance; an attribute that is None has no panel.

    Attributes
    ----------
    offset_s
        Time at which the first frame begins; frames are `shift_s` wide.
    blocks
        Number of groups of equal size that the dimensions form, such as derivatives.
    centres_hz
        Centre frequency of each dimension, if these are mel bins.
    curves
        Name and number of the dimensions that are drawn as lines in a panel of their own.
    statistics
        Statistics of all utterances, drawn beside the features.
    """

    title: str
    feats_TF: np.ndarray
    shift_s: float
    offset_s: float = 0.0
    blocks: int = 1
    centres_hz: np.ndarray | None = None
    wave_S: np.ndarray | None = None
    sample_rate_hz: int = 0
    pitch: Pitch | None = None
    curves: Sequence[tuple[str, int]] = ()
    senones_T: np.ndarray | None = None
    statistics: FeatureStatistics | None = None

    @property
    def duration_s(self) -> float:
        """Duration of the longest panel."""
        sound_s = len(self.wave_S) / self.sample_rate_hz if self.wave_S is not None else 0.0
        return max(sound_s, self.offset_s + len(self.feats_TF) * self.shift_s)


def write_picture(picture: Picture, path: Path) -> None:
    """Draw all panels and write them atomically as a PNG."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the missing letter is drawn as a box
        figure = draw(picture)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": SIGNATURE})


def draw(picture: Picture) -> Figure:
    """Draw all panels, one below the other, with aligned time axes."""
    panels = [
        (1.2, _draw_wave) if picture.wave_S is not None else None,
        (3.0, _draw_feats),
        (0.6, _draw_senones) if picture.senones_T is not None else None,
        (1.7, _draw_pitch) if picture.pitch is not None else None,
        (1.5, _draw_curves) if picture.curves else None,
    ]
    drawn = [panel for panel in panels if panel]
    columns = (_width(picture), _BAR, _SIDE) if picture.statistics else (_width(picture), _BAR)
    height = sum(inches for inches, _ in drawn) + 0.35 * len(drawn) + 0.6
    figure = Figure(figsize=(sum(columns) + 1.2, height), layout="constrained", dpi=_DPI)
    grid = figure.add_gridspec(len(drawn), len(columns), width_ratios=columns, height_ratios=[h for h, _ in drawn])
    first: Axes | None = None
    for row, (_, draw_panel) in enumerate(drawn):
        axes = figure.add_subplot(grid[row, 0], sharex=first)
        first = first or axes
        draw_panel(figure, axes, picture, grid, row)
        axes.tick_params(labelbottom=row == len(drawn) - 1)
    axes.set_xlabel("seconds")
    axes.set_xlim(0, picture.duration_s)
    figure.align_ylabels()
    figure.suptitle(picture.title, x=0.01, ha="left", fontsize=12)
    return figure


def _width(picture: Picture) -> float:
    """Width of the panels, in inches."""
    scale = _INCHES_PER_S if picture.senones_T is None else _INCHES_PER_S_SENONES
    return min(max(scale * picture.duration_s, _NARROWEST), _WIDEST)


def _draw_wave(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    assert picture.wave_S is not None
    step = max(1, len(picture.wave_S) // _COLUMNS)
    blocks = np.pad(picture.wave_S, (0, -len(picture.wave_S) % step), mode="edge").reshape(-1, step)
    times_s = (np.arange(len(blocks)) + 0.5) * step / picture.sample_rate_hz
    axes.fill_between(times_s, blocks.min(1), blocks.max(1), color=_BLUE, linewidth=0.6)
    most = float(np.abs(blocks).max()) or 1.0
    axes.set_ylim(-1.08 * most, 1.08 * most)
    axes.set_ylabel("amplitude")
    axes.grid(True)


def _draw_feats(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    feats_TF = np.asarray(picture.feats_TF, np.float64)
    changed_T = np.append(True, (feats_TF[1:] != feats_TF[:-1]).any(1))  # digital silence would dominate the scale
    some = feats_TF[changed_T]
    some = some[np.isfinite(some)]
    low, high = np.percentile(some, (4, 99.7)) if len(some) else (0.0, 1.0)
    frames, dim = feats_TF.shape
    left = picture.offset_s
    colours = matplotlib.colormaps["magma"].with_extremes(bad=_NO_NUMBER)
    image = axes.imshow(
        np.where(np.isfinite(feats_TF), feats_TF, np.nan).T,
        origin="lower",
        aspect="auto",
        cmap=colours,
        vmin=low,
        vmax=max(high, low + 1e-6),
        interpolation="nearest",
        extent=(left, left + frames * picture.shift_s, -0.5, dim - 0.5),
    )
    for block in range(1, picture.blocks):
        axes.axhline(block * dim / picture.blocks - 0.5, color="white", linewidth=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("dimension" if picture.centres_hz is None else "mel bin")
    _bar(figure, grid[row, 1], image, "value")
    if picture.senones_T is not None:
        for boundary in np.flatnonzero(np.diff(picture.senones_T)) + 1:
            axes.axvline(left + boundary * picture.shift_s, color="white", linewidth=0.5, alpha=0.6)
    if picture.statistics is not None:
        _draw_statistics(figure.add_subplot(grid[row, 2], sharey=axes), picture.statistics, picture.centres_hz)


def _draw_statistics(axes: Axes, found: FeatureStatistics, centres_hz: np.ndarray | None) -> None:
    at_F, spread_F = np.arange(found.dim), found.deviation_F
    spans = ((found.lowest_F, found.highest_F, 0.15), (found.mean_F - spread_F, found.mean_F + spread_F, 0.45))
    for low_F, high_F, alpha in spans:
        axes.fill_betweenx(at_F, low_F, high_F, color=_BLUE, alpha=alpha, linewidth=0, step="mid")
    axes.plot(found.mean_F, at_F, color=_BLUE, linewidth=1.5)
    axes.grid(True)
    axes.tick_params(labelleft=False)
    one = found.utterances == 1
    axes.set_title(f"mean, ± deviation,\nextremes of {found.utterances:,}\nutterance{'' if one else 's'}", fontsize=9)
    if centres_hz is not None:  # on the right side of the panel, which shares its left axis with the features
        hertz = axes.secondary_yaxis("right")
        shown = np.linspace(0, found.dim - 1, 6).round().astype(int)
        hertz.set_yticks(shown, [f"{centres_hz[place]:,.0f}" for place in shown])
        hertz.set_ylabel("centre of the bin, Hz")
        hertz.spines["right"].set_visible(False)


def _bar(figure: Figure, place: SubplotSpec, shades: ScalarMappable, title: str) -> None:
    axes = figure.add_subplot(place)
    figure.colorbar(shades, cax=axes).outline.set_visible(False)
    axes.set_title(title, fontsize=9, loc="left")


def _draw_senones(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    assert picture.senones_T is not None
    senones_T = picture.senones_T
    boundaries = [0, *(np.flatnonzero(np.diff(senones_T)) + 1).tolist(), len(senones_T)]
    points_per_frame = 72 * _width(picture) * picture.shift_s / picture.duration_s
    for number, (start, end) in enumerate(pairwise(boundaries)):
        left, right = (picture.offset_s + boundary * picture.shift_s for boundary in (start, end))
        axes.axvspan(left, right, color="#e7ecf3" if number % 2 else "#f6f7f9", linewidth=0)
        size = min(9.0, points_per_frame * (end - start))
        if size >= 5:
            axes.text((left + right) / 2, 0.5, str(senones_T[start]), ha="center", va="center", fontsize=size,
                      rotation=90, clip_on=True)  # fmt: skip
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("senone")


def _draw_pitch(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    pitch = picture.pitch
    assert pitch is not None
    points = np.stack([pitch.times_s, pitch.hz], 1)
    segments = np.stack([points[:-1], points[1:]], 1)
    voicing = (pitch.voicing[:-1] + pitch.voicing[1:]) / 2
    lines = LineCollection(
        list(segments), array=voicing, cmap="viridis_r", clim=(0, 1), linewidths=0.6 + 2.4 * voicing,
        alpha=0.25 + 0.75 * voicing, capstyle="round",
    )  # fmt: skip
    axes.add_collection(lines)
    surely = pitch.hz[pitch.voicing > 0.5] if (pitch.voicing > 0.5).any() else pitch.hz
    low, high = np.percentile(surely, (1, 99)) if len(surely) else (50.0, 400.0)
    axes.set_ylim(max(0, low * 0.8), high * 1.2)
    axes.set_ylabel("pitch, Hz")
    axes.grid(True)
    shades = ScalarMappable(norm=lines.norm, cmap=lines.cmap)  # without the transparency of unvoiced parts
    _bar(figure, grid[row, 1], shades, "P(voiced)")


def _draw_curves(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    times_s = picture.offset_s + (np.arange(len(picture.feats_TF)) + 0.5) * picture.shift_s
    for (name, place), colour in zip(picture.curves, _SERIES, strict=False):
        axes.plot(times_s, picture.feats_TF[:, place], color=colour, linewidth=1.2, label=f"{name} (dimension {place})")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.97), ncols=len(picture.curves), fontsize=9, frameon=False)
    axes.set_ylabel("value")
    axes.grid(True)
