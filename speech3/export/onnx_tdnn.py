"""Time-delay networks (`speech3.models.tdnn`) as an ONNX graph; of two output layers only the main one.

``loglikes`` has a row for every ``subsampling`` frames of ``feats``, the last one for the remaining frames.

Axes: T frames, K time steps with their context, F feature bins, B bins of a channel, C channels or maps, D units of a
layer.
"""

from typing import Any

from speech3.export.onnx_graph import Graph, edged, folded, gain_and_shift, part, product
from speech3.models.cnn import Convolution
from speech3.models.layers import BatchNorm
from speech3.models.tdnn import FactoredLayer, Tdnn
from speech3.models.tdnn_front import AffineFront
from speech3.models.tdnn_lstm import TimeDelay


def tdnn(model: Tdnn, graph: Graph) -> tuple[str, dict[str, Any]]:
    """Logits, and the metadata that is needed to run the graph."""
    x_KD = time_delay(model, graph, edged(model, graph))
    affine = model.prefinal.affine
    x_KD = _rectified(
        graph, product(graph, x_KD, "prefinal", affine.weight, affine.bias), model.prefinal.norm, "prefinal"
    )
    facts = {"recurrent": False, "chunk_frames": model.scored_at_a_time * model.subsampling}
    return product(graph, x_KD, "output", model.output.weight, model.output.bias), facts


def time_delay(model: Tdnn | TimeDelay, graph: Graph, x_KF: str, name: str = "") -> str:
    """The first layers and the factored layers; `name`: what comes before the names of the latter's constants."""
    if isinstance(model.front, AffineFront):
        x_KD = _affine_front(model.front, graph, x_KF)
    else:
        x_KD = _convolutions(model.front, graph, x_KF)
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, FactoredLayer)
        x_KD = _layer(layer, graph, x_KD, f"{name}layers.{number}")
    return x_KD


def _affine_front(front: AffineFront, graph: Graph, x_KF: str) -> str:
    x_1FK1 = graph.op("Unsqueeze", graph.op("Transpose", x_KF), graph.constant("outer axes", [0, 3]))
    y_1DK1 = _convolution(graph, x_1FK1, front.affine, front.affine.weight, front.affine.bias, "front.affine")
    y_DK = graph.op("Squeeze", y_1DK1, graph.constant("outer axes", [0, 3]))
    return _rectified(graph, graph.op("Transpose", y_DK), front.norm, "front")


def _convolutions(front: Any, graph: Graph, x_KF: str) -> str:
    x_1CKB = graph.op("Unsqueeze", x_KF, graph.constant("first axes", [0, 1]))
    for number, each in enumerate(front.convolutions):
        weights = folded(each.norm, each.convolution.weight, each.convolution.bias)
        x_1CKB = graph.op("Relu", _convolution(graph, x_1CKB, each.convolution, *weights, f"front.{number}"))
    x_KBC = graph.op("Squeeze", graph.op("Transpose", x_1CKB, perm=[0, 2, 3, 1]), graph.constant("streams", [0]))
    flat_KD = graph.op("Flatten", x_KBC, axis=1)
    y_KD = product(graph, flat_KD, "front.affine", front.affine.weight, front.affine.bias)
    return _rectified(graph, y_KD, front.norm, "front")


def _convolution(graph: Graph, x: str, layer: Convolution, weight: Any, bias: Any, name: str) -> str:
    constants = graph.constant(f"{name}.weight", weight), graph.constant(f"{name}.bias", bias)
    return graph.op("Conv", x, *constants, strides=list(layer.stride), dilations=list(layer.dilation))


def _layer(layer: FactoredLayer, graph: Graph, x_KD: str, name: str) -> str:
    offset, bottleneck = layer.offset, layer.linear.weight.shape[1]
    halves = graph.op("MatMul", x_KD, graph.constant(f"{name}.linear", layer.linear.weight.flatten(0, 1).t()))
    early = part(graph, part(graph, halves, 0, bottleneck, 1), 0, -offset, 0)
    late = part(graph, part(graph, halves, bottleneck, None, 1), offset, None, 0)
    y_KO = graph.op("Add", early, late)
    both = graph.op("Concat", part(graph, y_KO, 0, -offset, 0), part(graph, y_KO, offset, None, 0), axis=1)
    y_KD = product(graph, both, f"{name}.affine", layer.affine.weight, layer.affine.bias)
    share = graph.constant("bypass", layer.affine.weight.new_tensor(layer.bypass))
    bypassed = graph.op("Mul", part(graph, x_KD, offset, -offset, 0), share)
    return graph.op("Add", _rectified(graph, y_KD, layer.norm, name), bypassed)


def _rectified(graph: Graph, y_KD: str, norm: BatchNorm, name: str) -> str:
    gain_D, shift_D = (each.float() for each in gain_and_shift(norm))
    gained = graph.op("Mul", graph.op("Relu", y_KD), graph.constant(f"{name}.gain", gain_D))
    return graph.op("Add", gained, graph.constant(f"{name}.shift", shift_D))
