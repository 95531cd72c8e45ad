"""Where a model has what decoding needs; known without loading PyTorch."""

from pathlib import Path

GRAPH, TUNING_GRAPH = "graph", "graph_tuning"  # of a model directory


def decode_directory(onnx: Path) -> Path:
    """Where OUT.onnx has what decoding needs beside the network: OUT.decode."""
    return onnx.with_suffix(".decode")
