"""Describes a model in words and a table, for `speech3 model-info` and the model card."""

from typing import Any

from speech3.models.info import Layer, ModelInfo

_NUMBERS = (2, 5)  # right-aligned columns of the table


def words(info: ModelInfo) -> str:
    """The full description, for a terminal."""
    table = layer_table(info)
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    rows = [
        "  ".join(f"{cell:{'>' if column in _NUMBERS else '<'}{widths[column]}}" for column, cell in enumerate(row))
        for row in table
    ]
    lines = [f"{name:<10} {value}" for name, value in {**facts(info), **training_facts(info.trained)}.items()]
    return "\n".join([f"{'file':<10} {info.path}, {info.file_bytes:,} bytes", *lines, "", *map(str.rstrip, rows)])


def facts(info: ModelInfo) -> dict[str, str]:
    """Facts about the model itself, by name."""
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
    corpus = [str(about.get("info", {})[key]) for key in ("corpus",) if about.get("info", {}).get(key)]
    data = "; ".join([*corpus, *parts]) or f"frames {about['frames']['train']}"
    training = about["training"]
    accuracy = f"{per_cent(about['heldout_accuracy'])} of held-out frames ({parameters_of(about)})"
    if about.get("train_accuracy") is not None:
        accuracy += f", {per_cent(about['train_accuracy'])} of training frames"
    return {
        "data": data,
        "alignment": str(about["hmm"]),
        "training": f"{len(about.get('history', []))} epochs, {training['world']}, {workers(training)}, "
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
    header = ("layer", "kind", "parameters", "shapes", "output", "FLOPs a frame")
    return [header, *map(_row, info.layers), ("all", "", f"{info.parameters:,}", "", "", f"{info.flops:,}")]


def workers(training: dict[str, Any]) -> str:
    """The number of workers, in words."""
    count, processes = training["workers"], training.get("model_partitions", 1)
    each = f" of {processes} processes" + (" each" if count > 1 else "") if processes > 1 else ""
    return ("1 worker" if count == 1 else f"{count} workers") + each


def per_cent(share: float) -> str:
    """A fraction as a percentage with two decimals."""
    return f"{100 * share:.2f} %"


def _row(layer: Layer) -> tuple[str, ...]:
    shapes = ", ".join(f"{name} {_times(shape)}" for name, shape in layer.shapes.items())
    return layer.name, layer.kind, f"{layer.parameters:,}", shapes, _times(layer.output), f"{layer.flops:,}"


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
