"""What `speech3 model-info` and the model card say of a model directory, as facts, in words and as a table.

FLOPs count two (a multiplication and an addition) for each weight and each place to which it is applied in the forward
pass of one frame: products, convolutions, gates, projections, peepholes. Biases, normalisation, activations, pooling
and the softmax are not counted: they are a thousandth of the total. For GMMs the products with x and x * x count.

Axes: T frames, F feature bins.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from speech3.config import FeatureConfig, ModelConfig, load_preset, parse, presets, read_yaml
from speech3.errors import MissingError
from speech3.hmm import Gmm, load_gmm
from speech3.io import FEATURES_FILE, MODEL_FILE, read_about
from speech3.models.base import AcousticModel, logits
from speech3.models.cnn import Convolution
from speech3.models.registry import Network, load_networks
from speech3.models.tdnn import SemiOrthogonal

_PROBE_FRAMES = 48  # a multiple of every model's subsampling
_KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "fully connected",
    nn.Conv2d: "convolution",
    nn.BatchNorm1d: "batch normalisation",
    nn.LayerNorm: "layer normalisation",
    SemiOrthogonal: "semi-orthogonal",
}
_NUMBERS = (2, 5)  # right-aligned columns of the table


@dataclass(frozen=True)
class LayerInfo:
    """A module with parameters of its own; `shapes` are those of its parameters, `output` and `flops` are for one
    frame.
    """

    name: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    output: tuple[int, ...]
    parameters: int
    flops: int


@dataclass(frozen=True)
class ModelInfo:
    """The facts that `speech3 model-info` prints.

    `parameters`: trained values, without the statistics of the input and the priors.
    `subsampling`: input frames per output.
    `left_context`, `right_context`: frames around its own on which an output of the model depends, without the context
    of the features; None: the whole utterance.
    `latency_frames`: future frames that a frame's scores wait for, including those that its features need (deltas,
    splicing, pitch with `max_frames_latency`); None as before; `latency_ms` None also if the frame shift is unknown.
    `features`: preset, or the kind if none matches; "" without ``features.yaml``.
    `trained`: the record of the training in ``model.safetensors``.
    """

    path: str
    system: str
    layers: tuple[LayerInfo, ...]
    parameters: int
    flops: int
    senones: int
    feat_dim: int
    subsampling: int
    left_context: int | None
    right_context: int | None
    latency_frames: int | None
    latency_ms: float | None
    features: str
    normalization: str
    gaussians: int | None
    file_bytes: int
    trained: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """The records of several networks whose scores are averaged, by name; that of the only one as ``""``."""
        return self.trained.get("members", {"": self.trained})


def model_info(model: Path | str) -> ModelInfo:
    """The facts about a model directory, or about the one that contains the file `model`."""
    directory = Path(model).parent if Path(model).is_file() else Path(model)
    path = directory / MODEL_FILE
    if not path.is_file():
        raise MissingError(f"{directory}: no model directory: it has no model.safetensors; pass one, such as exp/dnn")
    about, features = read_about(path), features_of_model(directory)
    facts = _of_gmm(load_gmm(path)) if about.get("kind") == "gmm" else _of_networks(directory)
    layers, right = facts["layers"], facts["right_context"]
    # An output waits for its own frames, for those of its context, and for those that their features need; features
    # adapted to speakers need the whole utterance.
    whole = right is None or (features is not None and features.adapted > 0)
    latency = None if whole else right + facts["subsampling"] - 1 + _feature_context(features)
    return ModelInfo(
        path=str(path),
        parameters=sum(layer.parameters for layer in layers),
        flops=sum(layer.flops for layer in layers),
        latency_frames=latency,
        latency_ms=latency * features.frame_shift if features and latency is not None else None,
        features=name_of_features(features),
        normalization=features.cmvn if features else "",
        file_bytes=path.stat().st_size,
        trained={key: value for key, value in about.items() if key != "kind"},
        **facts,
    )


def _of_networks(directory: Path) -> dict[str, Any]:
    parts = {name: _of_network(directory, each) for name, each in load_networks(directory).items()}
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first

    def most(key: str) -> int | None:
        found = [part[key] for part in parts.values()]
        return None if None in found else max(found)

    layers = (replace(layer, name=f"{name}.{layer.name}") for name, part in parts.items() for layer in part["layers"])
    systems = " and ".join(f"{name} ({part['system']})" for name, part in parts.items())
    widest = {key: most(key) for key in ("feat_dim", "left_context", "right_context")}
    return {**first, **widest, "system": f"mean of {systems}", "layers": tuple(layers)}


def _of_network(directory: Path, found: Network) -> dict[str, Any]:
    network, _, about = found
    return {
        "system": parse(ModelConfig, about["model"], directory / MODEL_FILE).system,
        "layers": layers_of(network),
        "senones": network.num_senones,
        "feat_dim": network.feat_dim,
        "subsampling": network.subsampling,
        "left_context": None if network.recurrent else network.left_context,
        "right_context": None if network.bidirectional else network.right_context + network.delay * network.subsampling,
        "gaussians": None,
    }


def _of_gmm(gmm: Gmm) -> dict[str, Any]:
    gaussians, dim = gmm.mean.shape
    shapes = {name: tuple(getattr(gmm, name).shape) for name in ("weight", "mean", "var")}
    sizes = gaussians * (2 * dim + 1), 2 * gaussians * 2 * dim
    layers = (LayerInfo("mixtures", "diagonal Gaussians", shapes, (gmm.num_pdfs,), *sizes),)
    facts = {"system": "gmm", "layers": layers, "senones": gmm.num_pdfs, "feat_dim": dim, "gaussians": gaussians}
    return facts | {"subsampling": 1, "left_context": 0, "right_context": 0}


def layers_of(model: AcousticModel) -> tuple[LayerInfo, ...]:
    """All modules of the model with parameters of their own, in the order of computation.

    They are found by scoring two short utterances. The last axis of a module's output is its units, so the other axes
    are places to which the same weights are applied: frames and, for convolutions, frequencies and times. The longer
    utterance's additional places belong to its additional frames; the others belong to the context. Modules that are
    not computed in scoring, such as an output layer used in training only, come last.
    """
    short, long = _called(model, _PROBE_FRAMES), _called(model, 2 * _PROBE_FRAMES)
    names = {module: name for name, module in model.named_modules()}
    layers = []
    for module in [*short, *(module for module in _own(model) if module not in short)]:
        shapes = {name: tuple(each.shape) for name, each in module.named_parameters(recurse=False)}
        weights = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)  # others are biases and gains
        if module in short:
            (places, before), (more_places, after) = short[module], long[module]
            frames_axis = next(axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
            kind, output = _kind(module), tuple(n for n in before[frames_axis + 1 :] if n > 1) or (1,)
            flops = 2 * weights * (more_places - places) // _PROBE_FRAMES
        else:
            kind, output, flops = f"{_kind(module)}, in training only", (len(next(module.parameters())),), 0
        layers.append(LayerInfo(names[module], kind, shapes, output, sum(map(math.prod, shapes.values())), flops))
    return tuple(layers)


def _own(model: AcousticModel) -> list[nn.Module]:
    return [module for module in model.modules() if list(module.parameters(recurse=False))]


def _called(model: AcousticModel, frames: int) -> dict[nn.Module, tuple[int, tuple[int, ...]]]:
    """The modules that score an utterance, in order, each with its number of places and the shape of its output."""
    found: dict[nn.Module, tuple[int, tuple[int, ...]]] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output  # cells also return their state
        places = output.numel() // output.shape[-1]
        if isinstance(module, Convolution):  # its output is pooled: one value for several places
            places = len(inputs[0]) * module.places(*inputs)
        if isinstance(module, SemiOrthogonal):  # its output holds two halves
            output = output[..., : output.shape[-1] // 2]
        found[module] = places, tuple(output.shape)

    hooks = [module.register_forward_hook(note) for module in _own(model)]
    try:
        logits(model, torch.zeros(frames, model.feat_dim))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _kind(module: nn.Module) -> str:
    known = [name for kind, name in _KINDS.items() if isinstance(module, kind)]
    return known[0] if known else f"LSTM {type(module).__name__.lower()}"


def features_of_model(directory: Path) -> FeatureConfig | None:
    """The config in ``features.yaml``, if there is one."""
    path = directory / FEATURES_FILE
    return parse(FeatureConfig, read_yaml(path), path) if path.exists() else None


def name_of_features(features: FeatureConfig | None) -> str:
    """The matching preset of ``conf/features``, whatever the sample rate and the statistics; else the kind."""
    if features is None:
        return ""
    if features.adapted:
        own = name_of_features(features.model_copy(update={"adapted": 0}))
        adapted = f"{features.adapted} values adapted to speakers"
        return adapted if features.kind == "given" else f"{own} and {adapted}"
    found = {"sample_frequency": features.sample_frequency, "global_stats": features.global_stats}
    for name in presets("features"):
        if load_preset(FeatureConfig, "features", name).model_copy(update=found) == features:
            return name
    return f"{features.kind}, no preset"


def _feature_context(features: FeatureConfig | None) -> int:
    if features is None:
        return 0
    pitch = features.pitch.max_frames_latency + features.pitch.right_context if features.pitch else 0
    return pitch + features.deltas * features.delta_window + features.right_context


def describe_model(info: ModelInfo) -> str:
    table = layer_table(info)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    rows = [
        "  ".join(f"{cell:{'>' if column in _NUMBERS else '<'}{widths[column]}}" for column, cell in enumerate(row))
        for row in table
    ]
    lines = [f"{name:<10} {value}" for name, value in {**model_facts(info), **training_facts(info.trained)}.items()]
    return "\n".join([f"{'file':<10} {info.path}, {info.file_bytes:,} bytes", *lines, "", *map(str.rstrip, rows)])


def model_facts(info: ModelInfo) -> dict[str, str]:
    kinds = {"sliding": "sliding window", "global": "global statistics"}
    over = kinds.get(info.normalization, info.normalization)
    how = f", normalised by {over}" if over not in ("", "none") else ""
    size = f"{info.senones:,} senones" if info.gaussians is None else f"{info.senones:,} pdfs"
    gaussians = "" if info.gaussians is None else f", {info.gaussians:,} Gaussians of {info.feat_dim} dimensions"
    return {
        "model": f"{info.system}, {size}{gaussians}, {info.parameters:,} parameters",
        "features": f"{info.features or 'unknown'}, {info.feat_dim} values per frame{how}",
        "context": _context(info),
        "latency": _latency(info),
        "FLOPs": f"{info.flops:,} a frame (forward pass; each use of a weight counts as two)",
    }


def training_facts(about: dict[str, Any]) -> dict[str, str]:
    """Facts about the training data and the accuracy, by name; empty if the model has no record of its training."""
    if "heldout_accuracy" not in about:
        return {}
    found = about.get("data", {})
    parts = [
        f"{name} {part['utterances']:,} utterances, {part['frames']:,} frames" for name, part in found.items() if part
    ]
    corpus = about.get("info", {}).get("corpus")
    data = "; ".join([*([str(corpus)] if corpus else []), *parts]) or f"frames {about['frames']['train']}"
    training = about["training"]
    accuracy = f"{per_cent(about['heldout_accuracy'])} of held-out frames ({parameters_of(about)})"
    if about.get("train_accuracy") is not None:
        accuracy += f", {per_cent(about['train_accuracy'])} of training frames"
    return {
        "data": data,
        "alignment": str(about["hmm"]),
        "training": f"{len(about.get('history', []))} epochs, {training['world']}, {workers_in_words(training)}, "
        f"{about['seconds']:,.0f} s",
        "accuracy": accuracy,
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    }


def parameters_of(about: dict[str, Any]) -> str:
    """The epoch, or the epochs averaged, whose parameters the model has; in words."""
    averaged = about.get("averaged_epochs", [])
    return f"mean of epochs {', '.join(map(str, averaged))}" if averaged else f"epoch {about['best_epoch']}"


def layer_table(info: ModelInfo) -> list[tuple[str, ...]]:
    """A header, a row for each layer, and a row of totals."""
    rows: list[tuple[str, ...]] = [("layer", "kind", "parameters", "shapes", "output", "FLOPs a frame")]
    for layer in info.layers:
        shapes = ", ".join(f"{name} {_times(shape)}" for name, shape in layer.shapes.items())
        output, flops = _times(layer.output), f"{layer.flops:,}"
        rows.append((layer.name, layer.kind, f"{layer.parameters:,}", shapes, output, flops))
    return [*rows, ("all", "", f"{info.parameters:,}", "", "", f"{info.flops:,}")]


def workers_in_words(training: dict[str, Any]) -> str:
    count, processes = training["workers"], training.get("model_partitions", 1)
    each = f" of {processes} processes" + (" each" if count > 1 else "") if processes > 1 else ""
    return ("1 worker" if count == 1 else f"{count} workers") + each


def per_cent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _context(info: ModelInfo) -> str:
    if info.gaussians is not None:
        return "the frame itself"
    left = "all" if info.left_context is None else str(info.left_context)
    right = "all" if info.right_context is None else str(info.right_context)
    of = "the frame itself" if info.subsampling == 1 else f"the {info.subsampling} frames that an output is for"
    return f"{left} frames before and {right} after {of}"


def _latency(info: ModelInfo) -> str:
    if info.latency_frames is None:
        return "the whole utterance"
    own = (info.right_context or 0) + info.subsampling - 1
    features = info.latency_frames - own
    sum_of = f": {own} of the model, {features} of the features" if features else ""
    in_ms = "" if info.latency_ms is None else f" ({info.latency_ms:g} ms)"
    normal = "" if info.normalization in ("", "none", "global") else "; not counting normalisation of the features"
    return f"{info.latency_frames} frames{in_ms}{sum_of}{normal}"
