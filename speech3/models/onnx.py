"""Exports a model as an ONNX graph, built by hand from its modules, and scores features with such a file.

`OnnxNetwork` runs it by onnxruntime, in one thread, in the memory of one chunk; other runtimes can, too.

The graph takes ``feats`` (T, F) float32, the features as they are extracted, and returns ``loglikes`` (T, S) float32:
log posteriors minus log priors or, if ``objective`` in the metadata is lfmmi, the clipped outputs, for an acoustic
scale of about 1. With ``subsampling`` above 1 there is one row for that many frames. Normalisation of the input,
splicing and priors are included; dropout and the second of two output layers are not. A model of windows repeats the
first and last frame beyond the ends, so the input is a whole utterance, or a part whose context has scores to discard.

LSTMs take a chunk and the state before it (ONNX's own LSTM cannot clip cells, so the recurrence is a Scan):

- ``feats`` (K, F): T steps and their context, K = ``subsampling`` T + left_context + right_context, with the first and
  last frame repeated beyond the utterance's ends. ``delay`` more steps follow the last frame; the first ``delay``
  scores of an utterance belong to no frame.
- ``h0``, ``c0``, ``h1``, ... (1, outputs), (1, cells): the state of each layer, zeros at the beginning of an utterance;
  the outputs ``h0_after``, ``c0_after``, ... are the inputs for the next chunk.
- ``own`` (int64, scalar), of bidirectional networks: the number of the chunk's own steps. Later ones are lookahead for
  the backward layers; they have no scores and do not change the state.

Axes: T frames or steps, K frames with their context, W context window, F feature bins, B bins of a channel, C channels,
maps or cells, D units or outputs of a layer, I its inputs, R recurrent outputs, G gates (4 x C), O outputs, S senones.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from speech3.errors import FormatError, MachineError, MismatchError, MissingError
from speech3.hmm import LARGEST_PSEUDO
from speech3.models.base import AcousticModel, check_features, spans
from speech3.models.cnn import Cnn, Convolution
from speech3.models.dnn import Dnn, Hidden
from speech3.models.layers import BatchNorm
from speech3.models.lstm import Cells, Lstm
from speech3.models.tdnn import AffineFront, FactoredLayer, Tdnn, TdnnLstm, TimeDelay

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

FORMAT = 1  # of inputs, outputs and metadata
_WINDOWS = {"recurrent": False, "chunk_frames": 1024}  # frames per run of the graph: bounds the memory
_OPSET, _IR_VERSION = 17, 8  # the first with LayerNormalization; newer ones are refused by older runtimes
OnnxStates = dict[str, np.ndarray]  # h and c of each layer, by the names of the graph's inputs


class OnnxGraph:
    """Nodes, constants, inputs and outputs; values are referred to by name."""

    def __init__(self, name: str = "speech3") -> None:
        import onnx

        self._onnx, self.name = onnx, name
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: type = np.float32) -> str:
        """Declare an input and return its name; a free size in `shape` is a string."""
        self.inputs.append(self._value(name, shape, dtype))
        return name

    def output(self, name: str, shape: Sequence[int | str]) -> None:
        self.outputs.append(self._value(name, shape, np.float32))

    def _value(self, name: str, shape: Sequence[int | str], dtype: type) -> "ValueInfoProto":
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def proto(self) -> "GraphProto":
        constants = list(self.constants.values())
        return self._onnx.helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, constants)

    def constant(self, name: str, value: np.ndarray | Tensor | int | list[int]) -> str:
        """Add a constant, unless there is one of that name; integers become int64, as shapes and indices must be."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        proto = self._onnx.numpy_helper.from_array(array.copy(order="C"), name)
        if self.constants.setdefault(name, proto) != proto:
            raise ValueError(f"two constants called {name}")
        return name

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node with one output; return the output's name."""
        return self.ops(kind, *inputs, outputs=(output or f"{self.name}.{kind}_{len(self.nodes)}",), **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs; return their names."""
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))
        return outputs


def normalized(model: AcousticModel, graph: OnnxGraph, feats: str) -> str:
    shifted = graph.op("Add", feats, graph.constant("shift", model.shift_F))
    return graph.op("Mul", shifted, graph.constant("scale", model.scale_F))


def edged(model: AcousticModel, graph: OnnxGraph) -> str:
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


def spliced(graph: OnnxGraph, x_KD: str, window: int, step: int = 1) -> str:
    """Windows (T, W, ...), `step` apart, of frames (K, ...), K at least (T - 1) step + W."""
    frames = graph.op("Squeeze", graph.op("Shape", x_KD, start=0, end=1))
    end = graph.op("Sub", frames, graph.constant("context", window - 1))
    steps_T = graph.op("Range", graph.constant("zero", 0), end, graph.constant("step", step))
    steps_T1 = graph.op("Unsqueeze", steps_T, graph.constant("last_axis", [-1]))
    indices_TW = graph.op("Add", steps_T1, graph.constant("offsets", np.arange(window)))
    return graph.op("Gather", x_KD, indices_TW, axis=0)


def part(graph: OnnxGraph, x: str, start: int, end: int | None, axis: int) -> str:
    """x[..., start:end, ...] along `axis`; a negative end counts from the end."""
    bounds = (start, np.iinfo(np.int64).max if end is None else end, axis)
    return graph.op("Slice", x, *(graph.constant(f"at {bound}", [bound]) for bound in bounds))


def product(graph: OnnxGraph, x: str, name: str, weight_OI: Tensor, bias_O: Tensor) -> str:
    """x w^T + b. MatMul rather than Gemm: it takes any number of axes, and onnxruntime fuses it with the Add anyway."""
    y = graph.op("MatMul", x, graph.constant(f"{name}.weight", weight_OI.t()))
    return graph.op("Add", y, graph.constant(f"{name}.bias", bias_O))


def hidden(layers: Hidden, graph: OnnxGraph, x: str, name: str) -> str:
    """Fully connected layers; batch normalisation is folded into the product before it."""
    for number, (layer, norm) in enumerate(zip(layers.hidden, layers.norms, strict=True)):
        assert isinstance(layer, nn.Linear)
        x = product(graph, x, f"{name}.{number}", *folded(norm, layer.weight, layer.bias))
        x = activation(layers.activation, graph, layer_norm(norm, graph, x, f"{name}.{number}.norm"))
    return x


def activation(module: nn.Module, graph: OnnxGraph, x: str) -> str:
    return graph.op({nn.ReLU: "Relu", nn.Sigmoid: "Sigmoid"}[type(module)], x)


def layer_norm(norm: nn.Module, graph: OnnxGraph, x: str, name: str) -> str:
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


def tdnn(model: Tdnn, graph: OnnxGraph) -> tuple[str, dict[str, Any]]:
    """Logits, and the metadata that is needed to run the graph."""
    x_KD = time_delay(model, graph, edged(model, graph))
    affine = model.prefinal.affine
    x_KD = _rectified(
        graph, product(graph, x_KD, "prefinal", affine.weight, affine.bias), model.prefinal.norm, "prefinal"
    )
    facts = {"recurrent": False, "chunk_frames": model.outputs_at_a_time * model.subsampling}
    return product(graph, x_KD, "output", model.output.weight, model.output.bias), facts


def time_delay(model: Tdnn | TimeDelay, graph: OnnxGraph, x_KF: str, name: str = "") -> str:
    """The first layers and the factored layers; `name`: what comes before the names of the latter's constants."""
    if isinstance(model.front, AffineFront):
        x_KD = _affine_front(model.front, graph, x_KF)
    else:
        x_KD = _convolutions(model.front, graph, x_KF)
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, FactoredLayer)
        x_KD = _layer(layer, graph, x_KD, f"{name}layers.{number}")
    return x_KD


def _affine_front(front: AffineFront, graph: OnnxGraph, x_KF: str) -> str:
    x_1FK1 = graph.op("Unsqueeze", graph.op("Transpose", x_KF), graph.constant("outer axes", [0, 3]))
    y_1DK1 = _time_convolution(graph, x_1FK1, front.affine, front.affine.weight, front.affine.bias, "front.affine")
    y_DK = graph.op("Squeeze", y_1DK1, graph.constant("outer axes", [0, 3]))
    return _rectified(graph, graph.op("Transpose", y_DK), front.norm, "front")


def _convolutions(front: Any, graph: OnnxGraph, x_KF: str) -> str:
    x_1CKB = graph.op("Unsqueeze", x_KF, graph.constant("first axes", [0, 1]))
    for number, each in enumerate(front.convolutions):
        weights = folded(each.norm, each.convolution.weight, each.convolution.bias)
        x_1CKB = graph.op("Relu", _time_convolution(graph, x_1CKB, each.convolution, *weights, f"front.{number}"))
    x_KBC = graph.op("Squeeze", graph.op("Transpose", x_1CKB, perm=[0, 2, 3, 1]), graph.constant("streams", [0]))
    flat_KD = graph.op("Flatten", x_KBC, axis=1)
    y_KD = product(graph, flat_KD, "front.affine", front.affine.weight, front.affine.bias)
    return _rectified(graph, y_KD, front.norm, "front")


def _time_convolution(graph: OnnxGraph, x: str, layer: Convolution, weight: Any, bias: Any, name: str) -> str:
    constants = graph.constant(f"{name}.weight", weight), graph.constant(f"{name}.bias", bias)
    return graph.op("Conv", x, *constants, strides=list(layer.stride), dilations=list(layer.dilation))


def _layer(layer: FactoredLayer, graph: OnnxGraph, x_KD: str, name: str) -> str:
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


def _rectified(graph: OnnxGraph, y_KD: str, norm: BatchNorm, name: str) -> str:
    return _normed(norm, graph, graph.op("Relu", y_KD), name)


def lstm(model: Lstm, graph: OnnxGraph) -> tuple[str, dict[str, Any]]:
    """Logits of the chunk's own steps, and the metadata that is needed to run the graph."""
    graph.input("feats", ["K", model.feat_dim])
    own = graph.input("own", [], np.int64) if model.bidirectional else None
    x_KF = normalized(model, graph, "feats")
    if isinstance(model.before, TimeDelay):
        x_TD = time_delay(model.before, graph, x_KF, "before.")
    else:
        assert isinstance(model.before, Hidden)
        windows_TWF = spliced(graph, x_KF, model.window, model.subsampling)
        x_TD = hidden(model.before, graph, graph.op("Flatten", windows_TWF, axis=1), "before")
    for number, layer in enumerate(model.layers):
        x_TD = _normed(model.norms[number], graph, _lstm_layer(layer, graph, x_TD, number, own), f"norms.{number}")
    if own:
        x_TD = _first(graph, x_TD, own)
    x_TD = hidden(model.after, graph, x_TD, "after")
    at_a_time, beyond = model.scored_at_a_time
    facts = {"recurrent": True, "chunk_frames": at_a_time, "beyond": beyond, "delay": model.delay}
    return product(graph, x_TD, "output", model.output.weight, model.output.bias), facts


def _normed(norm: nn.Module, graph: OnnxGraph, x_TD: str, name: str) -> str:
    if not isinstance(norm, nn.BatchNorm1d):
        return layer_norm(norm, graph, x_TD, name)
    gain_D, shift_D = gain_and_shift(norm)
    gained = graph.op("Mul", x_TD, graph.constant(f"{name}.gain", gain_D.float()))
    return graph.op("Add", gained, graph.constant(f"{name}.shift", shift_D.float()))


def _lstm_layer(layer: Any, graph: OnnxGraph, x_TI: str, number: int, own: str | None) -> str:
    outputs, cells = layer.ahead.sizes
    name = f"layers.{number}"
    state = graph.input(f"h{number}", [1, outputs]), graph.input(f"c{number}", [1, cells])
    y_TR, *after = _cells(layer.ahead, graph, x_TI, state, f"{name}.ahead", every_state=own is not None)
    if own:
        last = graph.op("Sub", own, graph.constant("one", 1))
        after = [graph.op("Gather", each, last, axis=0) for each in after]
    for kind, each, size in zip("hc", after, layer.ahead.sizes, strict=True):
        graph.output(graph.op("Identity", each, output=f"{kind}{number}_after"), [1, size])
    if layer.back is None:
        return y_TR
    nothing = [
        graph.constant(f"{name}.back.{kind}", np.zeros((1, size), np.float32))
        for kind, size in zip("hc", layer.back.sizes, strict=True)
    ]
    z_TR, *_ = _cells(layer.back, graph, x_TI, (nothing[0], nothing[1]), f"{name}.back", backward=True)
    return graph.op("Concat", y_TR, z_TR, axis=1)


def _cells(
    cells: Cells,
    graph: OnnxGraph,
    x_TI: str,
    state: tuple[str, str],
    name: str,
    *,
    every_state: bool = False,
    backward: bool = False,
) -> tuple[str, str, str]:
    """Outputs (T, R); h and c after the last step, or with `every_state` after every step, (T, 1, R) and (T, 1, C)."""
    gates_TG = product(graph, x_TI, f"{name}.weight_ih", cells.weight_ih, cells.bias)
    body = _step(cells, graph, name, every_state)
    scanned = ("hs_T1R", "cs_T1C")[: 1 + every_state]
    outputs = tuple(f"{name}.{kind}" for kind in ("h_1R", "c_1C", *scanned))
    directions = {"scan_input_directions": [int(backward)], "scan_output_directions": [int(backward)] * len(scanned)}
    h_1R, c_1C, hs_T1R, *cs_T1C = graph.ops(
        "Scan", *state, gates_TG, outputs=outputs, body=body, num_scan_inputs=1, **directions
    )
    y_TR = graph.op("Squeeze", hs_T1R, graph.constant("streams of a step", [1]))
    return (y_TR, hs_T1R, cs_T1C[0]) if every_state else (y_TR, h_1R, c_1C)


def _step(cells: Cells, graph: OnnxGraph, name: str, every_state: bool) -> Any:
    """One step as the body of a Scan; formulas in `speech3.models.clipped`."""
    outputs, size = cells.sizes
    step = OnnxGraph(f"{name}.step")
    h_1R, c_1C = step.input("h", [1, outputs]), step.input("c", [1, size])
    gates_G = step.input("gates", [4 * size])
    recurrent_1G = step.op("MatMul", h_1R, graph.constant(f"{name}.weight_hh", cells.weight_hh.t()))
    names = tuple(f"{name}.{gate}" for gate in "ifgo")
    i, f, g, o = step.ops("Split", step.op("Add", recurrent_1G, gates_G), outputs=names, axis=1)

    def peep(gate: str, row: int, cell: str) -> str:
        if cells.weight_peep is None:
            return gate
        weight_C = graph.constant(f"{name}.weight_peep.{row}", cells.weight_peep[row])
        return step.op("Add", gate, step.op("Mul", weight_C, cell))

    i, f = (step.op("Sigmoid", peep(gate, row, c_1C)) for row, gate in enumerate((i, f)))
    c_1C = step.op("Add", step.op("Mul", f, c_1C), step.op("Mul", i, step.op("Tanh", g)))
    if math.isfinite(cells.clip):
        limits = (graph.constant(f"{name}.clip.{sign}", np.array(sign * cells.clip, np.float32)) for sign in (-1, 1))
        c_1C = step.op("Clip", c_1C, *limits)
    h_1R = step.op("Mul", step.op("Sigmoid", peep(o, 2, c_1C)), step.op("Tanh", c_1C))
    if cells.weight_hr is not None:
        h_1R = step.op("MatMul", h_1R, graph.constant(f"{name}.weight_hr", cells.weight_hr.t()))
    for kind, value, width in (("h", h_1R, outputs), ("c", c_1C, size)):
        step.output(step.op("Identity", value, output=f"{name}.{kind}_after"), [1, width])
    for kind, value, width in (("h", h_1R, outputs), ("c", c_1C, size))[: 1 + every_state]:
        step.output(step.op("Identity", value, output=f"{name}.{kind}_kept"), [1, width])
    return step.proto()


def _first(graph: OnnxGraph, x_TD: str, count: str) -> str:
    zero, end = graph.constant("axis", [0]), graph.op("Unsqueeze", count, graph.constant("axis", [0]))
    return graph.op("Slice", x_TD, zero, end, zero)


def to_onnx(model: AcousticModel, log_prior_S: np.ndarray, about: dict[str, Any]) -> "ModelProto":
    """The graph of a model; its metadata has `about` (JSON-serialisable) and facts about the graph, as ``speech3``."""
    try:
        from onnx import checker, helper
    except ImportError as error:
        raise MachineError("onnx, which writes the file, is not installed: pip install speech3[onnx]") from error
    graph = OnnxGraph()
    logits_TS, facts = _FAMILIES[type(model)](model, graph)
    if about.get("objective") == "lfmmi":
        most = np.float32(LARGEST_PSEUDO)
        ends = (graph.constant(name, np.array(end)) for name, end in (("least", -most), ("most", most)))
        graph.op("Clip", logits_TS, *ends, output="loglikes")
    else:
        log_prior = graph.constant("log_prior", log_prior_S.astype(np.float32))
        graph.op("Sub", graph.op("LogSoftmax", logits_TS, axis=1), log_prior, output="loglikes")
    graph.output("loglikes", ["T" if model.subsampling == 1 else "outputs", model.num_senones])
    proto = helper.make_model(
        graph.proto(), opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="speech3", ir_version=_IR_VERSION
    )
    keys = ("feat_dim", "num_senones", "left_context", "right_context", "subsampling")
    facts = {"format": FORMAT, **{key: getattr(model, key) for key in keys}, **facts}
    helper.set_model_props(proto, {"speech3": json.dumps({**about, **facts})})
    checker.check_model(proto, full_check=True)
    return proto


def _dnn(model: Any, graph: OnnxGraph) -> tuple[str, dict[str, Any]]:
    flat_TD = graph.op("Flatten", spliced(graph, edged(model, graph), model.window, model.subsampling), axis=1)
    hidden_TD = hidden(model.layers, graph, flat_TD, "layers")
    return product(graph, hidden_TD, "output", model.output.weight, model.output.bias), _WINDOWS


def _cnn(model: Any, graph: OnnxGraph) -> tuple[str, dict[str, Any]]:
    """The convolutions cover all frames at once: what overlapping windows share is computed only once."""
    shape = graph.constant("bins", [1, -1, model.channels, model.bins])
    x_1CBK = graph.op("Transpose", graph.op("Reshape", edged(model, graph), shape), perm=[0, 2, 3, 1])
    window = model.window
    for number, layer in enumerate(model.convolutions):
        x_1CBK = _convolution(layer, graph, x_1CBK, f"convolutions.{number}")
        window -= layer.convolution.kernel_size[1] - 1
    x_KBC = graph.op("Squeeze", graph.op("Transpose", x_1CBK, perm=[0, 3, 2, 1]), graph.constant("streams", [0]))
    x_TBWC = graph.op("Transpose", spliced(graph, x_KBC, window, model.subsampling), perm=[0, 2, 1, 3])
    hidden_TD = hidden(model.layers, graph, graph.op("Flatten", x_TBWC, axis=1), "layers")
    return product(graph, hidden_TD, "output", model.output.weight, model.output.bias), _WINDOWS


def _convolution(layer: Any, graph: OnnxGraph, x_1CBK: str, name: str) -> str:
    weight, bias = (graph.constant(f"{name}.{kind}", getattr(layer.convolution, kind)) for kind in ("weight", "bias"))
    x_1CBK = graph.op("Conv", x_1CBK, weight, bias)
    if layer.convolution.pool > 1:
        x_1CBK = graph.op(
            "MaxPool", x_1CBK, kernel_shape=[layer.convolution.pool, 1], strides=[layer.convolution.pool, 1]
        )
    if isinstance(layer.norm, nn.BatchNorm1d):
        kinds = ("weight", "bias", "running_mean", "running_var")
        values = (graph.constant(f"{name}.norm.{kind}", getattr(layer.norm, kind)) for kind in kinds)
        x_1CBK = graph.op("BatchNormalization", x_1CBK, *values, epsilon=layer.norm.eps)
    elif isinstance(layer.norm, nn.LayerNorm):
        x_1BKC = graph.op("Transpose", x_1CBK, perm=[0, 2, 3, 1])
        normed_1BKC = layer_norm(layer.norm, graph, x_1BKC, f"{name}.norm")
        x_1CBK = graph.op("Transpose", normed_1BKC, perm=[0, 3, 1, 2])
    return activation(layer.activation, graph, x_1CBK)


_FAMILIES: dict[type[AcousticModel], Callable[[Any, OnnxGraph], tuple[str, dict[str, Any]]]] = {
    Dnn: _dnn,
    Cnn: _cnn,
    Lstm: lstm,
    Tdnn: tdnn,
    TdnnLstm: lstm,
}


class OnnxNetwork:
    """A network in a file of `speech3 export`, with the interface of `speech3.decode.trained_model.NetworkScorer`.

    `about` is the metadata of the file: ``model`` and ``features`` (configs), ``num_senones``, ``int8``, ``training``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._session = _session(path)
        self.about = _about(self._session, path)

    def __reduce__(self) -> tuple[type["OnnxNetwork"], tuple[Path]]:
        return OnnxNetwork, (self.path,)  # a session cannot be pickled; the other process reads the file again

    @property
    def num_senones(self) -> int:
        return int(self.about["num_senones"])

    @property
    def subsampling(self) -> int:
        return int(self.about["subsampling"])

    @property
    def pseudo_likelihoods(self) -> bool:
        """As in `speech3.decode.trained_model.NetworkScorer`."""
        return self.about.get("objective") == "lfmmi"

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """Log posteriors minus log priors, or LF-MMI outputs, (T, S) float32 of one utterance; or only columns `pdfs`.

        With `subsampling` there are ceil(T / subsampling) rows.
        """
        check_features(feats_TD.shape, self.about["feat_dim"])
        feats_TF = np.ascontiguousarray(feats_TD, np.float32)
        loglikes_TS = self._recurrent(feats_TF) if self.about["recurrent"] else self._windows(feats_TF)
        return loglikes_TS if pdfs is None else loglikes_TS[:, pdfs]

    def _windows(self, feats_TF: np.ndarray) -> np.ndarray:
        step = self.subsampling
        outputs = -(-len(feats_TF) // step)
        loglikes_TS = np.empty((outputs, self.num_senones), np.float32)
        chunk, left, right = (self.about[key] for key in ("chunk_frames", "left_context", "right_context"))
        at_a_time = max(1, chunk // step)
        for start in range(0, outputs, at_a_time):
            stop = min(start + at_a_time, outputs)
            first = max(0, start - -(-left // step))
            found_TS = self.windows(feats_TF[first * step : stop * step + right])
            loglikes_TS[start:stop] = found_TS[start - first :][: stop - start]
        return loglikes_TS

    def windows(self, feats_TF: np.ndarray) -> np.ndarray:
        """Scores of some frames of a network that is not recurrent, edge frames repeated beyond their ends."""
        found_TS: np.ndarray = self._session.run(None, {"feats": feats_TF})[0]
        return found_TS

    def states(self) -> OnnxStates:
        """The zero states of a recurrent network before the first step of an utterance."""
        inputs = self._session.get_inputs()
        return {each.name: np.zeros(each.shape, np.float32) for each in inputs if each.name[0] in "hc"}

    def steps(self, feats_KF: np.ndarray, states: OnnxStates, own: int) -> tuple[np.ndarray, OnnxStates]:
        """Scores of consecutive steps of a recurrent network from frames with their context, and the states after `own`
        of them.
        """
        more = {"own": np.array(own)} if "own" in {each.name for each in self._session.get_inputs()} else {}
        names = ["loglikes", *(f"{name}_after" for name in states)]
        found_TS, *after = self._session.run(names, {"feats": feats_KF, **states, **more})
        return found_TS, dict(zip(states, after, strict=True))

    def _recurrent(self, feats_TF: np.ndarray) -> np.ndarray:
        """Like `speech3.models.lstm.Lstm.score`, with the graph."""
        outputs = -(-len(feats_TF) // self.subsampling)
        loglikes_TS = np.empty((outputs, self.num_senones), np.float32)
        chunk, left, right = (self.about[key] for key in ("chunk_frames", "left_context", "right_context"))
        delay, beyond = self.about["delay"], self.about["beyond"]
        states = self.states()
        for span in spans(outputs, delay=delay, at_a_time=chunk, beyond=beyond):
            first, end = span.start * self.subsampling - left, span.stop * self.subsampling + right
            frames_K = np.arange(first, end).clip(0, len(feats_TF) - 1)
            found_TS, states = self.steps(feats_TF[frames_K], states, span.own)
            loglikes_TS[span.begin : span.end] = found_TS[span.own - (span.end - span.begin) :]
        return loglikes_TS


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MachineError(f"{path}: to run ONNX files, pip install speech3[onnx]") from error
    if not path.is_file():
        raise MissingError(f"{path}: no such file; check the path")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal errors only: errors are raised, too
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its classes are private and have no common base
        reason = str(error).strip().partition("\n")[0]
        raise FormatError(
            f"{path}: not an ONNX file, or damaged; write it again with speech3 export ({reason})"
        ) from error


def _about(session: Any, path: Path) -> dict[str, Any]:
    try:
        about = json.loads(session.get_modelmeta().custom_metadata_map["speech3"])
        version = about["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: not written by speech3 export; pass a file that is") from error
    if version != FORMAT:
        raise MismatchError(f"{path}: of another version of speech3 (format {version}, not {FORMAT}); export it again")
    return dict(about)
