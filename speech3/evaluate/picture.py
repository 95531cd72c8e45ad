"""One utterance as a PNG (waveform, features, pitch and senones on one time axis), and statistics of many.

The statistics are moments, extremes and faults of features, gathered without storing them.

Axes: S samples, T frames, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec, SubplotSpec
from matplotlib.ticker import MaxNLocator

from speech3.evaluate.figures import draw_shades, save_png

SIGNATURE = "speech3 inspect"  # stored in the PNG, to recognise our own pictures
_NARROWEST, _WIDEST = 9.0, 28.0  # inches
_INCHES_PER_S, _INCHES_PER_S_SENONES = 0.9, 2.5  # the latter is wide enough to print the senone of three frames
_BAR, _SIDE = 0.13, 1.7  # inches: the columns of the colour bars and of the statistics
_DPI = 110
_COLUMNS = 4000  # columns of the waveform, each of which shows the extremes of its samples


@dataclass
class FeatureStatistics:
    """Statistics of the utterances that were added; values that are not finite are counted and otherwise ignored.

    ``counts_F`` are the numbers of finite values of each dimension; ``lowest_F`` and ``highest_F`` are plus and minus
    infinity for a dimension without finite values.
    """

    dim: int
    utterances: int = 0
    frames: int = 0
    nan: int = 0
    infinite: int = 0
    not_finite: dict[str, int] = field(default_factory=dict)  # number of such values of each utterance that has any
    # number of frames that equal the one before, as in digital silence, likewise
    repeated: dict[str, int] = field(default_factory=dict)
    shortest: tuple[int, str] | None = None  # number of frames, and the utterance
    longest: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.counts_F = np.zeros(self.dim, np.int64)
        self.lowest_F, self.highest_F = np.full(self.dim, np.inf), np.full(self.dim, -np.inf)
        self._mean_F, self._squares_F = np.zeros(self.dim), np.zeros(self.dim)

    def add(self, utterance: str, feats_TF: np.ndarray) -> None:
        frames = len(feats_TF)
        self.utterances += 1
        self.frames += frames
        self.shortest = min(self.shortest or (frames, utterance), (frames, utterance))
        if self.longest is None or frames > self.longest[0]:
            self.longest = frames, utterance
        if same := int((feats_TF[1:] == feats_TF[:-1]).all(1).sum()):
            self.repeated[utterance] = same
        finite_TF = np.isfinite(feats_TF)
        if bad := finite_TF.size - int(finite_TF.sum()):
            nan = int(np.isnan(feats_TF).sum())
            self.nan, self.infinite = self.nan + nan, self.infinite + bad - nan
            self.not_finite[utterance] = bad
        self._add_moments(np.asarray(feats_TF, np.float64), finite_TF)

    def _add_moments(self, feats_TF: np.ndarray, finite_TF: np.ndarray) -> None:
        # Chan, Golub, LeVeque 1979: combine the moments of two sets without differences of large sums.
        there_TF = np.where(finite_TF, feats_TF, 0.0)
        counts_F = finite_TF.sum(0)
        mean_F = there_TF.sum(0) / np.maximum(counts_F, 1)
        squares_F = np.square(np.where(finite_TF, feats_TF - mean_F, 0.0)).sum(0)
        total_F = np.maximum(self.counts_F + counts_F, 1)
        step_F = mean_F - self._mean_F
        self._squares_F += squares_F + np.square(step_F) * self.counts_F * counts_F / total_F
        self._mean_F += step_F * counts_F / total_F
        self.counts_F += counts_F
        self.lowest_F = np.minimum(self.lowest_F, np.where(finite_TF, feats_TF, np.inf).min(0))
        self.highest_F = np.maximum(self.highest_F, np.where(finite_TF, feats_TF, -np.inf).max(0))

    @property
    def mean_F(self) -> np.ndarray:
        return self._mean_F

    @property
    def deviation_F(self) -> np.ndarray:
        return np.sqrt(self._squares_F / np.maximum(self.counts_F, 1))

    @property
    def constant(self) -> list[int]:
        """Dimensions in which all values are equal."""
        return np.flatnonzero(self.lowest_F >= self.highest_F).tolist()

    def lines(self, shift_ms: float) -> list[tuple[str, str]]:
        seconds = self.frames * shift_ms / 1000
        length = f"{seconds / 3600:.2f} h" if seconds > 360 else f"{seconds:.2f} s"
        found = [("frames", f"{self.frames:,} ({length} at {shift_ms:g} ms per frame) of {self.dim} dimensions")]
        if self.shortest and self.longest and self.utterances > 1:
            shortest, longest = (f"{frames:,} frames ({name})" for frames, name in (self.shortest, self.longest))
            found.append(("lengths", f"{shortest} to {longest}"))
        found += [("mean", _span(self.mean_F)), ("deviation", _span(self.deviation_F))]
        found += [("minimum", _span(self.lowest_F)), ("maximum", _span(self.highest_F))]
        constant = ", ".join(map(str, self.constant[:20])) + (" ..." if len(self.constant) > 20 else "")
        found.append(("constant", f"dimension {constant}" if constant else "no dimension"))
        bad = f"{self.nan:,} NaN, {self.infinite:,} infinite values in {_named(self.not_finite)}"
        found.append(("not finite", bad if self.not_finite else "no value"))
        same = f"{sum(self.repeated.values()):,} frames equal the preceding frame, in {_named(self.repeated)}"
        found.append(("silence", f"digital: {same}" if self.repeated else "no frame equals the preceding frame"))
        return found


def _span(values_F: np.ndarray) -> str:
    finite = np.flatnonzero(np.isfinite(values_F))
    if not len(finite):
        return "none"
    values_F = np.round(values_F, 5) + 0.0  # print the mean of normalised features as 0, not -3e-8
    low, high = finite[np.argmin(values_F[finite])], finite[np.argmax(values_F[finite])]
    if values_F[low] == values_F[high]:
        return f"{values_F[low]:.4g}"
    return f"{values_F[low]:.4g} (dimension {low}) to {values_F[high]:.4g} (dimension {high})"


def _named(counts: dict[str, int]) -> str:
    worst = sorted(counts, key=lambda name: (-counts[name], name))[:3]
    more = f" and {len(counts) - len(worst):,} more" if len(counts) > len(worst) else ""
    return f"{', '.join(worst)}{more}"


@dataclass(frozen=True)
class Pitch:
    """A pitch curve: hertz and the probability of voicing (T,) of frames centred at `times_s`."""

    times_s: np.ndarray
    hz: np.ndarray
    voicing: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The data to draw for an utterance; an attribute that is None has no panel."""

    title: str
    feats_TF: np.ndarray
    shift_s: float
    offset_s: float = 0.0  # where the first frame begins; frames are `shift_s` wide
    blocks: int = 1  # groups of equal size that the dimensions form, such as derivatives
    centres_hz: np.ndarray | None = None  # of the dimensions, if these are mel bins
    wave_S: np.ndarray | None = None
    sample_rate_hz: int = 0
    pitch: Pitch | None = None
    curves: Sequence[tuple[str, int]] = ()  # name and number of the dimensions that are drawn as lines
    senones_T: np.ndarray | None = None
    statistics: FeatureStatistics | None = None  # of all utterances, drawn beside the features

    @property
    def duration_s(self) -> float:
        sound_s = len(self.wave_S) / self.sample_rate_hz if self.wave_S is not None else 0.0
        return max(sound_s, self.offset_s + len(self.feats_TF) * self.shift_s)


def write_picture(picture: Picture, path: Path) -> None:
    """Draw all panels and write them atomically as a PNG."""
    save_png(path, lambda: draw(picture), {"axes.grid": False, "figure.dpi": _DPI}, SIGNATURE)


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
    figure = Figure(figsize=(sum(columns) + 1.2, height), layout="constrained")
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
    scale = _INCHES_PER_S if picture.senones_T is None else _INCHES_PER_S_SENONES
    return min(max(scale * picture.duration_s, _NARROWEST), _WIDEST)


def _draw_wave(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    assert picture.wave_S is not None
    step = max(1, len(picture.wave_S) // _COLUMNS)
    blocks = np.pad(picture.wave_S, (0, -len(picture.wave_S) % step), mode="edge").reshape(-1, step)
    times_s = (np.arange(len(blocks)) + 0.5) * step / picture.sample_rate_hz
    axes.fill_between(times_s, blocks.min(1), blocks.max(1), color="C0", linewidth=0.6)
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
    extent = (left, left + frames * picture.shift_s, -0.5, dim - 0.5)
    image = draw_shades(axes, np.where(np.isfinite(feats_TF), feats_TF, np.nan), (low, high), extent)
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
        axes.fill_betweenx(at_F, low_F, high_F, color="C0", alpha=alpha, linewidth=0, step="mid")
    axes.plot(found.mean_F, at_F, color="C0", linewidth=1.5)
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
            style: dict[str, Any] = {"ha": "center", "va": "center", "rotation": 90, "clip_on": True}
            axes.text((left + right) / 2, 0.5, str(senones_T[start]), fontsize=size, **style)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("senone")


def _draw_pitch(figure: Figure, axes: Axes, picture: Picture, grid: GridSpec, row: int) -> None:
    pitch = picture.pitch
    assert pitch is not None
    points = np.stack([pitch.times_s, pitch.hz], 1)
    segments = np.stack([points[:-1], points[1:]], 1)
    voicing = (pitch.voicing[:-1] + pitch.voicing[1:]) / 2
    style: dict[str, Any] = {"cmap": "viridis_r", "clim": (0, 1), "capstyle": "round"}
    widths, opacity = 0.6 + 2.4 * voicing, 0.25 + 0.75 * voicing
    lines = LineCollection(list(segments), array=voicing, linewidths=widths, alpha=opacity, **style)
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
    for name, place in picture.curves:
        axes.plot(times_s, picture.feats_TF[:, place], linewidth=1.2, label=f"{name} (dimension {place})")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 0.97), ncols=len(picture.curves), fontsize=9, frameon=False)
    axes.set_ylabel("value")
    axes.grid(True)
