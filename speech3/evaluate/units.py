"""The windows of frames that excite a hidden unit most, as spectrograms, as Le et al. 2012 show faces and cats.

Axes: N frames, B minibatch, W context window, F feature bins, H units of a layer, K windows shown.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from speech3.errors import MismatchError, MissingError, SettingError
from speech3.evaluate.figures import draw_shades, save_png
from speech3.evaluate.inspection import Lines, config_beside, parts_of_frames
from speech3.evaluate.picture import SIGNATURE
from speech3.frames import Minibatches, PackedFrames, open_packed
from speech3.hmm import frame_clock
from speech3.models import AcousticModel, load_network
from speech3.runtime import progress

_READ = 360_000  # frames: an hour
_AT_A_TIME = 2400
_MEAN_OF, _ROWS, _COLUMNS = 100, 3, 6  # windows in the mean, which is the first panel; panels


@dataclass(frozen=True)
class Excitement:
    """How a unit responds to speech."""

    # float32: output for each frame, before a sigmoid, or behind normalisation before the activation
    values_N: np.ndarray
    strongest: list[int]  # frames with the largest outputs, largest first; of frames within a window of each other one


def excitement(
    model: AcousticModel, frames: PackedFrames, layer: int, unit: int, *, most: int = _MEAN_OF
) -> Excitement:
    """The responses of a unit (from 0) of a fully connected hidden layer (from 1) to the first hour of packed frames.

    Raises `Speech3Error`: the network has no such unit, is not of the family dnn or cnn, or reads other features.
    """
    module = _module_of(model, layer, unit)
    if frames.dim != model.feat_dim:
        raise MismatchError(
            f"{frames.path}: {frames.dim} feature bins per frame, but the network reads {model.feat_dim}; pass --frames"
            " packed with the network's features"
        )
    found: list[Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output_BH: found.append(output_BH[:, unit].clone()))
    left, right, cpu = model.left_context, model.right_context, torch.device("cpu")
    windows = Minibatches(frames, left=left, right=right, minibatch=_AT_A_TIME, seed=0, device=cpu)
    steps = -(-min(len(frames), _READ) // _AT_A_TIME)
    with torch.no_grad():
        for feats_BWF, _ in progress(islice(windows.sequential(_AT_A_TIME), steps), steps, "activity"):
            model(feats_BWF)
    hook.remove()
    values_N = torch.cat(found).numpy()
    return Excitement(values_N, _apart(values_N, model.window, most))


def _apart(values_N: np.ndarray, window: int, most: int) -> list[int]:
    strongest: list[int] = []
    near_N = np.zeros(len(values_N), np.bool_)
    for frame in np.argsort(-values_N, kind="stable").tolist():
        if not near_N[frame]:
            strongest.append(frame)
            near_N[max(0, frame - window + 1) : frame + window] = True
        if len(strongest) == most:
            break
    return strongest


def _module_of(model: AcousticModel, layer: int, unit: int) -> nn.Module:
    layers: Any = getattr(model, "layers", None)
    if model.family not in ("dnn", "cnn"):
        raise SettingError(f"--unit {layer}:{unit}: is for the families dnn and cnn, but this is a {model.family}")
    if not 1 <= layer <= len(layers.hidden):
        raise SettingError(f"--unit {layer}:{unit}: the fully connected hidden layers are 1 to {len(layers.hidden)}")
    if not 0 <= unit < (width := layers.hidden[layer - 1].out_features):
        raise SettingError(f"--unit {layer}:{unit}: layer {layer} has the units 0 to {width - 1}")
    module: nn.Module = layers.hidden[layer - 1] if layers.fuse_relu else layers.norms[layer - 1]
    return module


def draw_unit(run: Path, unit: str, frames: Path | None, path: Path) -> Lines:
    """Write the picture of a unit, ``LAYER:UNIT`` as of `excitement`; return a description of what it shows.

    `frames` are packed frames; by default those on which the run was pretrained. Errors are those of `excitement`.
    """
    layer, colon, number = unit.partition(":")
    if not (colon and layer.isdecimal() and number.isdecimal()):
        raise SettingError(f"--unit {unit}: expected LAYER:UNIT, as in 3:17 (layers from 1, units from 0)")
    model, _, _ = load_network(run)
    place = frames or run / "frames" / "train.frames"
    if frames is None and not place.exists():
        raise MissingError(f"{run}: has no frames of its own; pass --frames FILE, the packed frames of its training")
    packed = open_packed(place)
    found = excitement(model, packed, int(layer), int(number))
    title = f"{run.name}: unit {number} of layer {layer}"
    save_png(path, lambda: _draw(found, packed, model, title), {"axes.grid": False, "figure.dpi": 110}, SIGNATURE)
    values_N = found.values_N
    counts = np.unique(packed.senones_N[found.strongest], return_counts=True)
    often = sorted(zip(*(each.tolist() for each in counts), strict=True), key=lambda pair: -pair[1])[:3]
    output = f"mean {values_N.mean():.3g}, deviation {values_N.std():.3g}, largest {values_N.max():.3g}"
    labels = ", ".join(f"{label} ({count})" for label, count in often)
    return [
        ("unit", f"{number} of layer {layer} of {run}"),
        ("frames", f"{len(values_N):,} of {place}"),
        ("output", f"{output}; above 0 in {(values_N > 0).mean():.0%} of the frames"),
        ("labels", f"of the {len(found.strongest)} strongest: {labels}"),
    ]


def _draw(found: Excitement, packed: PackedFrames, model: AcousticModel, title: str) -> Figure:
    config = config_beside(packed.path)
    shift_s = frame_clock(config).shift_s if config else 0.01
    blocks, _ = parts_of_frames(config, packed.dim)
    bins = packed.dim // blocks  # static features
    windows_KWF = np.stack([_window(packed, frame, model)[:, :bins] for frame in found.strongest])
    low, high = np.percentile(windows_KWF, (2, 98))
    figure = Figure(figsize=(1.9 * _COLUMNS, 2.1 * _ROWS), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.subplots(_ROWS, _COLUMNS, sharex=True, sharey=True).ravel()
    offsets_U1 = packed.offsets_U1
    panels = [(f"mean of {len(windows_KWF)}", windows_KWF.mean(0))]
    for frame, window_WF in zip(found.strongest, windows_KWF, strict=True):
        utterance = int(np.searchsorted(offsets_U1, frame, side="right")) - 1
        at_s = shift_s * (frame - int(offsets_U1[utterance]))
        panels.append((f"{packed.utterances[utterance]}\n{at_s:.2f} s: {found.values_N[frame]:.3g}", window_WF))
    left_ms, right_ms = (1e3 * shift_s * (context + 0.5) for context in (model.left_context, model.right_context))
    for panel, (name, window_WF) in zip(axes, panels, strict=False):
        draw_shades(panel, window_WF, (low, high), (-left_ms, right_ms, -0.5, bins - 0.5))
        panel.set_title(name, fontsize=7)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    figure.supxlabel("ms from the middle frame", fontsize=9)
    figure.supylabel("bin", fontsize=9)
    return figure


def _window(packed: PackedFrames, frame: int, model: AcousticModel) -> np.ndarray:
    """The features (W, F) around a frame; edge frames are repeated beyond the ends of its utterance."""
    after = int(np.searchsorted(packed.offsets_U1, frame, side="right"))
    place_W = np.arange(frame - model.left_context, frame + model.right_context + 1)
    window_WF: np.ndarray = packed.frames_NF[
        place_W.clip(packed.offsets_U1[after - 1], packed.offsets_U1[after] - 1)
    ].astype(np.float64)
    return window_WF
