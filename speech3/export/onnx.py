"""Exports a model as an ONNX graph, built by hand from its modules, for `speech3.export.onnx_runtime` and others.

The graph takes ``feats`` (T, F) float32, the features as they are extracted, and returns ``loglikes`` (T, S) float32:
log posteriors minus log priors, as a decoder needs them. If ``objective`` in the metadata is lfmmi, they are the
outputs themselves, clipped, which serve the same purpose at an acoustic scale of about 1. T is free. If ``subsampling``
in the metadata is above 1, there is one row for that many frames. The graph includes normalisation of the input,
splicing and priors. For the further inputs and outputs of recurrent models see `speech3.export.onnx_lstm`.

A model of windows repeats the first and last frame of ``feats`` beyond its ends, as PyTorch's `score` does. So the
input may be a whole utterance, or a part of it with ``left_context`` and ``right_context`` frames around it, whose
scores are discarded.

Batch normalisation is folded into the fully connected layer before it; dropout is left out.

Axes: T frames, K frames with their context, F feature bins, B bins of a channel, C channels or maps, D units of a
layer, S senones.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from speech3.errors import Speech3Error
from speech3.export.onnx_graph import Graph, activation, edged, hidden, layer_norm, product, spliced
from speech3.export.onnx_lstm import lstm
from speech3.export.onnx_tdnn import tdnn
from speech3.hmm.passes import LARGEST_PSEUDO
from speech3.models.base import AcousticModel
from speech3.models.cnn import Cnn
from speech3.models.dnn import Dnn
from speech3.models.lstm import Lstm
from speech3.models.tdnn import Tdnn
from speech3.models.tdnn_lstm import TdnnLstm

if TYPE_CHECKING:
    from onnx import ModelProto

FORMAT = 1  # of inputs, outputs and metadata
_WINDOWS = {"recurrent": False, "chunk_frames": 1024}  # frames per run of the graph: bounds the memory
_OPSET, _IR_VERSION = 17, 8  # the first with LayerNormalization; newer ones are refused by older runtimes


def to_onnx(model: AcousticModel, log_prior_S: np.ndarray, about: dict[str, Any]) -> "ModelProto":
    """The graph of a model; its metadata has `about` (JSON-serialisable) and facts about the graph under ``speech3``.

    Raises
    ------
    Speech3Error
        The package onnx is not installed.
    """
    try:
        from onnx import checker, helper
    except ImportError as error:
        raise Speech3Error("onnx, which writes the file, is not installed: pip install speech3[onnx]") from error
    graph = Graph()
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
    facts = {
        "format": FORMAT, "feat_dim": model.feat_dim, "num_senones": model.num_senones,
        "left_context": model.left_context, "right_context": model.right_context,
        "subsampling": model.subsampling, **facts,
    }  # fmt: skip
    helper.set_model_props(proto, {"speech3": json.dumps({**about, **facts})})
    checker.check_model(proto, full_check=True)
    return proto


def _dnn(model: Any, graph: Graph) -> tuple[str, dict[str, Any]]:
    flat_TD = graph.op("Flatten", spliced(graph, edged(model, graph), model.window, model.subsampling), axis=1)
    hidden_TD = hidden(model.layers, graph, flat_TD, "layers")
    return product(graph, hidden_TD, "output", model.output.weight, model.output.bias), _WINDOWS


def _cnn(model: Any, graph: Graph) -> tuple[str, dict[str, Any]]:
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


def _convolution(layer: Any, graph: Graph, x_1CBK: str, name: str) -> str:
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


_FAMILIES: dict[type[AcousticModel], Callable[[Any, Graph], tuple[str, dict[str, Any]]]] = {
    Dnn: _dnn,
    Cnn: _cnn,
    Lstm: lstm,
    Tdnn: tdnn,
    TdnnLstm: lstm,
}
