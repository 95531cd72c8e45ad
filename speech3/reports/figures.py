"""Figures of the report: inline SVG in the colours of the page, light or dark; also PNG files, always light.

Axes: T frames, F feature bins, N samples.
"""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from speech3.io.atomic import atomic_path
from speech3.reports.engine_figures import Line, draw_lines
from speech3.reports.html import STYLE, escape
from speech3.scoring.tables import columns_wide

Segment = tuple[float, float, str]

# Placeholder colours, which matplotlib writes unchanged and `_svg` replaces by variables of the style sheet.
_INK, _QUIET, _RULE = "#0a0b01", "#0a0b02", "#0a0b03"
_SERIES = tuple(f"#0a0c0{number}" for number in range(6))
_VARIABLES = {_INK: "--ink", _QUIET: "--quiet", _RULE: "--rule"} | {c: f"--c{n}" for n, c in enumerate(_SERIES)}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _QUIET,
    "axes.titlecolor": _INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "text.color": _INK,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=_SERIES),
    "axes.axisbelow": True,
}
_INCHES_PER_SECOND = 3.6  # makes a phone of 60 ms as wide as its name
_SMALL_INCHES_PER_SECOND = 2.4
_MAX_INCHES = 60.0


@dataclass(frozen=True)
class AlignedUtterance:
    """An utterance to draw: its samples, features and alignment.

    Attributes
    ----------
    wave_N
        Samples in [-1, 1).
    feats_TF
        Log-mel or log-magnitude spectrogram, lowest frequency first.
    phones, words
        ``(start_s, end_s, label)``; silence may be among the phones.
    hypothesis
        What was recognised; empty: not drawn.
    """

    name: str
    wave_N: np.ndarray
    sample_rate_hz: int
    feats_TF: np.ndarray
    shift_ms: float
    phones: Sequence[Segment]
    words: Sequence[Segment]
    hypothesis: Sequence[Segment] = ()


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
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"{title} {about}"}):
        figure = Figure(figsize=(4.8, 3.3), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_title(title)
        return _svg(figure, f"{title} {about}".strip())


def curves(title: str, lines: Sequence[Line], x_label: str) -> str:
    """Lines with a marker for each measurement, as SVG."""
    return svg(title, lambda axes: draw_lines(axes, lines, x_label))


def write_png(path: Path, panels: Sequence[tuple[str, Callable[[Axes], None]]]) -> None:
    """Write panels (title, function that draws it) as a PNG in the page's light colours, three in a row."""
    light = dict(reversed(re.findall(r"(--\w+): (#\w+)", STYLE)))  # the first value of each name is the light one
    style = {key: _light(value, light) for key, value in _STYLE.items()}
    style["axes.prop_cycle"] = cycler(color=[light[_VARIABLES[colour]] for colour in _SERIES])
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    size = (7.2, 4.6) if columns == 1 else (4.6 * columns, 3.4 * rows)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained", dpi=150, facecolor=light["--paper"])
        for place, (title, draw) in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place, facecolor=light["--paper"])
            draw(axes)
            axes.set_title(title)
        with atomic_path(path) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # the missing letter is drawn as a box
            figure.savefig(temporary, format="png", metadata={"Software": None})


def _light(value: Any, light: dict[str, str]) -> Any:
    return light[_VARIABLES[value]] if isinstance(value, str) and value in _VARIABLES else value


def alignment(utterance: AlignedUtterance, *, small: bool = False) -> str:
    """Waveform and spectrogram with phone boundaries, and phones and words below them, as SVG."""
    duration_s = max(
        len(utterance.wave_N) / utterance.sample_rate_hz, len(utterance.feats_TF) * utterance.shift_ms / 1000
    )
    width = min(max(7.0, (_SMALL_INCHES_PER_SECOND if small else _INCHES_PER_SECOND) * duration_s), _MAX_INCHES)
    lanes = {"phones": utterance.phones, "words": utterance.words, "recognised": utterance.hypothesis}
    lanes = {name: segments for name, segments in lanes.items() if segments or name != "recognised"}
    heights = (0.6 if small else 1.0, 1.8 if small else 3.2, *(0.38 for _ in lanes))
    with matplotlib.rc_context({**_STYLE, "axes.grid": False, "svg.hashsalt": f"alignment {utterance.name}"}):
        figure = Figure(figsize=(width, 0.8 * sum(heights) + 0.15), layout="constrained")
        grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0)
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
    axes.fill_between(times, blocks.min(axis=1), blocks.max(axis=1), color=_SERIES[0], linewidth=0.4)
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
    extent = (0.0, frames * utterance.shift_ms / 1000, 0.0, float(bins))
    axes.imshow(
        feats_TF.T, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=low, vmax=high,
        interpolation="nearest",
    )  # fmt: skip
    for start, end, _ in utterance.phones:
        for edge in (start, end):
            axes.axvline(edge, color="white", linewidth=0.7, alpha=0.75)
    axes.set_yticks([])
    axes.set_ylabel(f"{bins} bins", rotation=0, ha="right", va="center")


def _draw_lane(axes: Axes, segments: Sequence[Segment], label: str, inches_per_s: float) -> None:
    axes.set_ylim(0, 1)
    for start, end, text in segments:
        axes.plot([start, start], [0, 1], color=_QUIET, linewidth=0.7)
        axes.plot([end, end], [0, 1], color=_QUIET, linewidth=0.7)
        points_per_letter = (end - start) * inches_per_s * 72 / max(columns_wide(text), 1)
        size = min(10.0, max(5.0, points_per_letter / 0.7))  # letters are 0.7 times as wide as high
        axes.text((start + end) / 2, 0.5, text, ha="center", va="center", fontsize=size, clip_on=True)
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    axes.spines[["left"]].set_visible(False)
