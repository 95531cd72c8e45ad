"""Builder of an ONNX graph, and the parts of graphs that the families share.

Axes: T frames, W context window, K frames with their context (T + W - 1), F feature bins, D units of a layer,
O outputs of a product.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from speech3.models.base import AcousticModel
from speech3.models.layers import Hidden

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto


class Graph:
    """Nodes, constants, inputs and outputs; values are referred to by name."""

    def __init__(self, name: str = "speech3") -> None:
        self.name = name
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: type = np.float32) -> str:
        """Declare an input and return its name; a free size in `shape` is a string."""
        self.inputs.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        """Declare a value to be an output."""
        self.outputs.append(self._value(name, shape, np.float32))

    def _value(self, name: str, shape: Sequence[int | str], dtype: type) -> "ValueInfoProto":
        from onnx import helper

        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def proto(self) -> "GraphProto":
        """The finished graph."""
        from onnx import helper

        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, list(self.constants.values()))

    def constant(self, name: str, value: np.ndarray | Tensor | int | list[int]) -> str:
        """Add a constant, unless there is one of that name; integers become int64, as shapes and indices must be."""
        from onnx import numpy_helper

        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        proto = numpy_helper.from_array(array.copy(order="C"), name)
        if self.constants.setdefault(name, proto) != proto:
            raise ValueError(f"two constants called {name}")
        return name

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node with one output; return the output's name."""
        return self.ops(kind, *inputs, outputs=(output or f"{self.name}.{kind}_{len(self.nodes)}",), **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs; return their names."""
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))
        return outputs


def normalized(model: AcousticModel, graph: Graph, feats: str) -> str:
    """Normalise the input to zero mean and unit variance."""
    shifted = graph.op("Add", feats, graph.constant("shift", model.shift_F))
    return graph.op("Mul", shifted, graph.constant("scale", model.scale_F))


def edged(model: AcousticModel, graph: Graph) -> str:
    """``feats``, normalised, with the first and last frame repeated for the context beyond its ends: (K, F).

    K is T + W - 1; with subsampling the last output needs as many frames as the others, so T is rounded up.
    """
    feats_TF = graph.input("feats", ["T", model.feat_dim])
    frames = graph.op("Squeeze", graph.op("Shape", feats_TF, start=0, end=1))
    zero, one = graph.constant("zero", 0), graph.constant("one", 1)
    own = frames
    if model.subsampling > 1:
        step = graph.constant("subsampling", model.subsampling)
        missing = graph.op("Mod", graph.op("Neg", frames), step)  # has the sign of the divisor
        own = graph.op("Add", frames, missing)
    end = graph.op("Add", own, graph.constant("right_context", model.right_context))
    indices_K = graph.op("Range", graph.constant("first", -model.left_context), end, one)
    clamped_K = graph.op("Clip", indices_K, zero, graph.op("Sub", frames, one))
    return normalized(model, graph, graph.op("Gather", feats_TF, clamped_K, axis=0))


def spliced(graph: Graph, x_KD: str, window: int, step: int = 1) -> str:
    """Windows (T, W, ...), `step` apart, of frames (K, ...), K at least (T - 1) step + W."""
    frames = graph.op("Squeeze", graph.op("Shape", x_KD, start=0, end=1))
    end = graph.op("Sub", frames, graph.constant("context", window - 1))
    steps_T = graph.op("Range", graph.constant("zero", 0), end, graph.constant("step", step))
    steps_T1 = graph.op("Unsqueeze", steps_T, graph.constant("last_axis", [-1]))
    indices_TW = graph.op("Add", steps_T1, graph.constant("offsets", np.arange(window)))
    return graph.op("Gather", x_KD, indices_TW, axis=0)


def part(graph: Graph, x: str, start: int, end: int | None, axis: int) -> str:
    """x[..., start:end, ...] along `axis`; a negative end counts from the end."""
    bounds = (start, np.iinfo(np.int64).max if end is None else end, axis)
    return graph.op("Slice", x, *(graph.constant(f"at {bound}", [bound]) for bound in bounds))


def product(graph: Graph, x: str, name: str, weight_OI: Tensor, bias_O: Tensor) -> str:
    """x w^T + b. MatMul rather than Gemm: it takes any number of axes, and onnxruntime fuses it with the Add anyway."""
    y = graph.op("MatMul", x, graph.constant(f"{name}.weight", weight_OI.t()))
    return graph.op("Add", y, graph.constant(f"{name}.bias", bias_O))


def hidden(layers: Hidden, graph: Graph, x: str, name: str) -> str:
    """Fully connected layers; batch normalisation is folded into the product before it."""
    for number, (layer, norm) in enumerate(zip(layers.hidden, layers.norms, strict=True)):
        assert isinstance(layer, nn.Linear)
        x = product(graph, x, f"{name}.{number}", *folded(norm, layer.weight, layer.bias))
        x = activation(layers.activation, graph, layer_norm(norm, graph, x, f"{name}.{number}.norm"))
    return x


def activation(module: nn.Module, graph: Graph, x: str) -> str:
    """Apply a layer's activation."""
    return graph.op({nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}[type(module)], x)


def layer_norm(norm: nn.Module, graph: Graph, x: str, name: str) -> str:
    """Apply `norm` to the last axis if it is layer normalisation; else return `x`."""
    if not isinstance(norm, nn.LayerNorm):
        return x
    gain, bias = graph.constant(f"{name}.weight", norm.weight), graph.constant(f"{name}.bias", norm.bias)
    return graph.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=norm.eps)


def folded(norm: nn.Module, weight: Tensor, bias_O: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (O, ...) and bias of a product, with `norm` after it folded in if that is batch normalisation."""
    if not isinstance(norm, nn.BatchNorm1d):
        return weight, bias_O
    gain_O, shift_O = gain_and_shift(norm)
    return (weight.double() * gain_O.view(-1, *(1,) * (weight.ndim - 1))).float(), (bias_O * gain_O + shift_O).float()


def gain_and_shift(norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    """Factor and offset of batch normalisation in evaluation, (O,) float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    gain_O = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
    return gain_O, norm.bias.double() - norm.running_mean.double() * gain_O
