"""A model as an ONNX graph, built by hand from its modules: what `speech3.models.onnx_runtime` and others run.

The graph takes ``feats`` (T, F) float32, the features as they are extracted, and gives ``loglikes`` (T, S) float32,
log posterior minus log prior: what a decoder adds up. T is free. Normalisation of the input, splicing and priors are
inside.

A model of windows repeats the first and last frame of ``feats`` beyond its ends, as PyTorch's `score` does. So a whole
utterance may be given at once, or a part of it with ``left_context`` and ``right_context`` frames around it, whose own
scores are thrown away.

What a batch normalisation layer does in evaluation is folded into the product before it; dropout is not there.

Axes: T frames, F feature bins, S senones.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from speech3.errors import Speech3Error
from speech3.models.base import AcousticModel
from speech3.models.dnn import Dnn
from speech3.models.onnx_graph import Graph, frame_numbers, hidden, length_of, normalized, product

if TYPE_CHECKING:
    from onnx import ModelProto

FORMAT = 1  # of inputs, outputs and metadata
_CHUNK_FRAMES = 1024  # given to a model of windows at a time: bounds the memory
_OPSET, _IR_VERSION = 17, 8  # the first with LayerNormalization; newer ones are refused by older runtimes


def to_onnx(model: AcousticModel, log_prior_S: np.ndarray, about: dict[str, Any]) -> "ModelProto":
    """The graph of a model, with `about` (JSON-able) and its own facts in its metadata under ``speech3``.

    Raises
    ------
    Speech3Error
        The package onnx is not installed.
    """
    try:
        from onnx import TensorProto, checker, helper
    except ImportError as error:
        raise Speech3Error("onnx is not installed, which writes the file: pip install speech3[onnx]") from error
    graph = Graph()
    posterior_TS = graph.op("LogSoftmax", _FAMILIES[type(model)](model, graph), axis=1)
    graph.op("Sub", posterior_TS, graph.constant("log_prior", log_prior_S.astype(np.float32)), output="loglikes")
    inputs = [helper.make_tensor_value_info("feats", TensorProto.FLOAT, ["T", model.feat_dim])]
    outputs = [helper.make_tensor_value_info("loglikes", TensorProto.FLOAT, ["T", model.num_senones])]
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "speech3", inputs, outputs, list(graph.constants.values())),
        opset_imports=[helper.make_opsetid("", _OPSET)], producer_name="speech3", ir_version=_IR_VERSION,
    )  # fmt: skip
    facts = {
        "format": FORMAT, "feat_dim": model.feat_dim, "num_senones": model.num_senones,
        "left_context": model.left_context, "right_context": model.right_context, "chunk_frames": _CHUNK_FRAMES,
    }  # fmt: skip
    helper.set_model_props(proto, {"speech3": json.dumps({**about, **facts})})
    checker.check_model(proto, full_check=True)
    return proto


def _windows(model: AcousticModel, graph: Graph) -> str:
    """(T, W, F) of the normalised input; frame numbers beyond its ends become those of its ends."""
    length = length_of(graph, "feats")
    indices_TW = frame_numbers(graph, length, np.arange(-model.left_context, model.right_context + 1))
    last = graph.op("Sub", length, graph.constant("one", 1))
    clamped_TW = graph.op("Clip", indices_TW, graph.constant("zero", 0), last)
    return graph.op("Gather", normalized(model, graph, "feats"), clamped_TW, axis=0)


def _dnn(model: Any, graph: Graph) -> str:
    flat_TD = graph.op("Flatten", _windows(model, graph), axis=1)
    hidden_TD = hidden(model.layers, graph, flat_TD, "layers")
    return product(graph, hidden_TD, "output", model.output.weight, model.output.bias)


_FAMILIES: dict[type[AcousticModel], Callable[[Any, Graph], str]] = {Dnn: _dnn}
