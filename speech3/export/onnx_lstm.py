"""LSTMs as an ONNX graph: takes a chunk and the state before it, returns scores and the state after it.

ONNX's own LSTM operator clips the inputs of the gates, whereas these networks clip the cells. So the recurrence is
written out as a Scan over the frames; the products of the inputs with their weights are computed before it for all
frames at once.

Inputs and outputs that differ from those of the other families:

- ``feats`` (K, F) holds a chunk of T steps and its context, K = ``subsampling`` T + left_context + right_context. A
  step is ``subsampling`` frames; ``delay`` more steps follow the last frame. The first and the last frame are repeated
  beyond the utterance's ends.
- ``h0``, ``c0``, ``h1``, ... (1, outputs), (1, cells): the state of each layer, zeros at the beginning of an utterance;
  ``h0_after``, ``c0_after``, ... are the inputs for the next chunk.
- ``own`` (int64, scalar), of bidirectional networks only: the number of steps that are the chunk's own. The steps after
  them are lookahead for the backward layers; they have no scores and do not change the state.

The first ``delay`` scores of an utterance belong to no frame.

Axes: T steps, K frames with their context, F feature bins, I inputs and D outputs of a layer, C cells, R recurrent
outputs, G gates of all cells (4 x C: i, f, g, o).
"""

import math
from typing import Any

import numpy as np
from torch import nn

from speech3.export.onnx_graph import Graph, gain_and_shift, hidden, layer_norm, normalized, product, spliced
from speech3.export.onnx_tdnn import time_delay
from speech3.models.layers import Hidden
from speech3.models.lstm import Cells, Lstm
from speech3.models.tdnn_lstm import TimeDelay


def lstm(model: Lstm, graph: Graph) -> tuple[str, dict[str, Any]]:
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
        x_TD = _normed(model.norms[number], graph, _layer(layer, graph, x_TD, number, own), f"norms.{number}")
    if own:
        x_TD = _first(graph, x_TD, own)
    x_TD = hidden(model.after, graph, x_TD, "after")
    at_a_time, beyond = model.scored_at_a_time
    facts = {"recurrent": True, "chunk_frames": at_a_time, "beyond": beyond, "delay": model.delay}
    return product(graph, x_TD, "output", model.output.weight, model.output.bias), facts


def _normed(norm: nn.Module, graph: Graph, x_TD: str, name: str) -> str:
    if not isinstance(norm, nn.BatchNorm1d):
        return layer_norm(norm, graph, x_TD, name)
    gain_D, shift_D = (graph.constant(f"{name}.{kind}", each.float()) for kind, each in
                       zip(("gain", "shift"), gain_and_shift(norm), strict=True))  # fmt: skip
    return graph.op("Add", graph.op("Mul", x_TD, gain_D), shift_D)


def _layer(layer: Any, graph: Graph, x_TI: str, number: int, own: str | None) -> str:
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
    cells: Cells, graph: Graph, x_TI: str, state: tuple[str, str], name: str, *,
    every_state: bool = False, backward: bool = False,
) -> tuple[str, str, str]:  # fmt: skip
    """Outputs (T, R); h and c after the last step, or with `every_state` after every step, (T, 1, R) and (T, 1, C)."""
    gates_TG = product(graph, x_TI, f"{name}.weight_ih", cells.weight_ih, cells.bias)
    body = _step(cells, graph, name, every_state)
    scanned = ("hs_T1R", "cs_T1C")[: 1 + every_state]
    outputs = tuple(f"{name}.{kind}" for kind in ("h_1R", "c_1C", *scanned))
    h_1R, c_1C, hs_T1R, *cs_T1C = graph.ops(
        "Scan", *state, gates_TG, outputs=outputs, body=body, num_scan_inputs=1,
        scan_input_directions=[int(backward)], scan_output_directions=[int(backward)] * len(scanned),
    )  # fmt: skip
    y_TR = graph.op("Squeeze", hs_T1R, graph.constant("streams of a step", [1]))
    return (y_TR, hs_T1R, cs_T1C[0]) if every_state else (y_TR, h_1R, c_1C)


def _step(cells: Cells, graph: Graph, name: str, every_state: bool) -> Any:
    """One step as the body of a Scan; formulas in `speech3.models.clipped`."""
    outputs, size = cells.sizes
    step = Graph(f"{name}.step")
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


def _first(graph: Graph, x_TD: str, count: str) -> str:
    zero, end = graph.constant("axis", [0]), graph.op("Unsqueeze", count, graph.constant("axis", [0]))
    return graph.op("Slice", x_TD, zero, end, zero)
