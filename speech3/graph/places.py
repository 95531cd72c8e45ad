"""Where a model keeps its decoding files; a module of its own so that it can be imported without PyTorch."""

from pathlib import Path

GRAPH, TUNING_GRAPH = "graph", "graph_tuning"  # directories in a model directory
SETTINGS = "decode.json"  # acoustic scale and word penalty, in a model directory


def decode_directory(onnx: Path) -> Path:
    """The directory beside OUT.onnx with everything else that decoding needs: OUT.decode."""
    return onnx.with_suffix(".decode")
