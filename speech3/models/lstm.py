"""LSTM acoustic models with cell clipping (Sak et al. 2014), unidirectional or bidirectional, trained on chunks.

Fully connected layers may come before the recurrent ones, on the window of each frame, and after them
(TC-DNN-BLSTM-DNN: Chan and Lane 2015). Backward layers start with zero state at the end of a chunk, or `lookahead`
frames beyond it, whose outputs are discarded (latency-controlled BLSTM, Zhang et al. 2016).

Axes: T steps, B streams, W context window, F feature bins, I inputs and D outputs of a layer, C cells, G gates (4 x C:
i, f, g, o), R recurrent outputs, A all steps, N those with a target, S senones.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from speech3.config import LstmConfig
from speech3.frames import RecurrentChunks, SequenceInputs
from speech3.models.base import AcousticModel, spans
from speech3.models.clipped import clipped_lstm
from speech3.models.dnn import Dropout, Hidden, add_outputs, norm, outputs_of, windows_of
from speech3.models.layers import Linear

State = tuple[Tensor, Tensor]  # h (B, R) and c (B, C) of a layer, forward in time

_SCORED_AT_A_TIME = 4096  # steps: 41 s, after which backward layers start again
_LOOKAHEAD = 100  # minimum number of later steps that backward layers then read first
_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015: cells keep their content until they learn to forget


class Cells(nn.Module):
    """The LSTM cells of one layer and direction; parameters as `speech3.models.clipped.clipped_lstm` names them."""

    def __init__(self, config: LstmConfig, inputs: int, cells: int, generator: torch.Generator) -> None:
        super().__init__()
        outputs = config.projection or cells
        self.clip, self.sizes = config.cell_clip, (outputs, cells)
        self.weight_ih = _parameter(4 * cells, inputs, generator)
        self.weight_hh = _parameter(4 * cells, outputs, generator)
        self.bias = nn.Parameter(torch.zeros(4 * cells))
        self.bias.data[cells : 2 * cells] = _FORGET_BIAS
        self.weight_peep = _parameter(3, cells, generator, scale=0.1) if config.peepholes else None
        self.weight_hr = _parameter(outputs, cells, generator) if config.projection else None

    def forward(self, x_TBI: Tensor, state: State) -> tuple[Tensor, State]:
        """Outputs (T, B, R), and the state after the last step."""
        weights = self.weight_ih, self.weight_hh, self.bias
        y_TBR, *after = clipped_lstm(
            x_TBI, *state, *weights, clip=self.clip, weight_peep_3C=self.weight_peep, weight_hr_RC=self.weight_hr
        )
        return y_TBR, (after[0], after[1])

    def zero_state(self, streams: int) -> State:
        h_BR, c_BC = (self.bias.new_zeros(streams, size) for size in self.sizes)
        return h_BR, c_BC


class RecurrentLayer(nn.Module):
    """A recurrent layer: cells that run forward in time and, if it is bidirectional, others that run backward."""

    def __init__(self, config: LstmConfig, inputs: int, cells: int, generator: torch.Generator) -> None:
        super().__init__()
        self.ahead = Cells(config, inputs, cells, generator)
        self.back = Cells(config, inputs, cells, generator) if config.bidirectional else None
        self.width = self.ahead.sizes[0] * (2 if config.bidirectional else 1)

    def forward(
        self, x_TBI: Tensor, state: State, own: int, reversed_TB: Tensor | None, begins_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Outputs (T, B, D), and the state after `own` steps.

        `reversed_TB`: the order of the steps for the backward cells, which reverses each stream up to its last step.
        `begins_B`: set the state to zero after `own` steps.
        """
        before_TBR, state = self.ahead(x_TBI[:own], state) if own else (x_TBI[:0], state)
        if begins_B is not None:
            state = _reset(state, begins_B)
        y_TBR = before_TBR
        if len(x_TBI) > own:
            y_TBR = self.ahead(x_TBI[own:], state)[0]
            y_TBR = torch.cat([before_TBR, y_TBR]) if own else y_TBR
        if self.back is None:
            return y_TBR, state
        assert reversed_TB is not None
        z_TBR, _ = self.back(_reorder(x_TBI, reversed_TB), self.back.zero_state(x_TBI.shape[1]))
        return torch.cat([y_TBR, _reorder(z_TBR, reversed_TB)], 2), state


class Lstm(AcousticModel):
    """``input_layers``, ``layers`` recurrent layers, ``output_layers``, then the logits.

    With `subsampling` a step is an output, which sees its frames and their context (Sak et al. 2015, "Fast and accurate
    recurrent neural network acoustic models for speech recognition", and Kaldi's chain models): a third of the steps
    take a third of the time, and a cell has to bridge a third as many. `delay` and `lookahead` are then counted in
    steps, rounded up.
    """

    recurrent = True
    output: Linear
    xent_output: Linear

    def __init__(self, config: LstmConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        self.delay, self.lookahead = (-(-frames // self.subsampling) for frames in (config.delay, config.lookahead))
        self.bidirectional = config.bidirectional
        self.before, width = self._make_before(config, feat_dim, generator)
        widths = [width]
        layers: list[RecurrentLayer] = []
        for cells in config.cells_of_layers:
            layers.append(RecurrentLayer(config, widths[-1], cells, generator))
            widths.append(layers[-1].width)
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(norm(config.cell_normalization, width) for width in widths[1:])
        self.dropout, self.dropout_per_chunk = Dropout(config.dropout), config.dropout_per_chunk
        self.after = _fully_connected(config, [widths[-1], *config.output_layers], generator)
        add_outputs(self, [widths[-1], *config.output_layers][-1], generator)
        self.carried = Carried()

    def _make_before(self, config: Any, feat_dim: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        """The layers before the cells, and the width of the last one."""
        widths = [self.window * feat_dim, *config.input_layers]
        return _fully_connected(config, widths, generator), widths[-1]

    def forward(self, inputs: SequenceInputs | RecurrentChunks) -> Any:
        """Logits (N, S) of a minibatch of chunks, for its steps with targets; its state is kept for the next one.

        Of single chunks, which carry no state, see `AcousticModel.forward`.
        """
        if isinstance(inputs, RecurrentChunks):
            return self._of_chunks(inputs)
        x_TBD = self._spliced(inputs.feats_TBWF, inputs.steps_A)
        before = self.carried.take(inputs.place) or self.states(len(inputs.begins_B))
        states = [_reset(state, inputs.begins_B) for state in before]
        x_TBD, states = self._run(x_TBD, states, inputs.own, inputs.lengths_B, steps_A=inputs.steps_A)
        self.carried.keep(inputs.place, states)
        x_ND = x_TBD.flatten(0, 1).index_select(0, inputs.scored_N)
        return self.output(self.after(x_ND))

    def _of_chunks(self, inputs: RecurrentChunks) -> Any:
        x_TBD = self._before(inputs.feats_BTF)
        steps, after = len(x_TBD), max(self.delay, self.lookahead)
        end = steps - after + self.delay
        # The backward layers begin at the end of the utterance, but never before that of the chunk.
        lengths_B = (inputs.warm_up + inputs.rest_B).clamp(end, steps)
        states = self.states(len(lengths_B))
        x_TBD, _ = self._run(x_TBD, states, inputs.warm_up, lengths_B, inputs.begins_B)
        x_TBD = x_TBD[inputs.warm_up + self.delay : end]
        return outputs_of(self, self.after(x_TBD.transpose(0, 1).flatten(0, 1)).unflatten(0, (-1, len(x_TBD))))

    def states(self, streams: int = 1) -> list[State]:
        """The states before the first step of an utterance, layer by layer."""
        return [cast(RecurrentLayer, layer).ahead.zero_state(streams) for layer in self.layers]

    def steps(self, feats_TWF: Tensor, states: list[State], own: int) -> tuple[Tensor, list[State]]:
        """Logits (own, S) of consecutive steps of one utterance, and the states after them; later steps serve as
        lookahead.
        """
        x_T1D, states = self._run(self._before_of_windows(feats_TWF), states, own, None)
        return self.output(self.after(x_T1D[:own, 0])), states

    @property
    def scored_at_a_time(self) -> tuple[int, int]:
        """Number of steps that are scored at a time, and of steps beyond them that backward layers read."""
        return _SCORED_AT_A_TIME, max(self.lookahead, _LOOKAHEAD) if self.bidirectional else 0

    def score(self, feats_TF: Tensor) -> Tensor:
        """See `AcousticModel.score`; in long utterances backward layers start again from span to span."""
        outputs, states = -(-len(feats_TF) // self.subsampling), self.states()
        at_a_time, beyond = self.scored_at_a_time
        logits_TS = feats_TF.new_empty((outputs, self.num_senones), dtype=torch.float32)
        for span in spans(outputs, delay=self.delay, at_a_time=at_a_time, beyond=beyond):
            step_T = torch.arange(span.start, span.stop, device=feats_TF.device)
            windows = windows_of(self, step_T, len(feats_TF))
            scored_TS, states = self.steps(feats_TF[windows].float(), states, span.own)
            logits_TS[span.begin : span.end] = scored_TS[span.own - (span.end - span.begin) :]
        return logits_TS

    def _before(self, feats_BTF: Tensor) -> Tensor:
        """The inputs of the cells (T', B, D), from consecutive frames with their context."""
        windows_TBWF = feats_BTF.unfold(1, self.window, self.subsampling).permute(1, 0, 3, 2)
        return self._spliced(windows_TBWF, None)

    def _before_of_windows(self, feats_TWF: Tensor) -> Tensor:
        """The same (T, 1, D), from the windows of consecutive steps."""
        return self._spliced(feats_TWF[:, None], None)

    def _spliced(self, feats_TBWF: Tensor, steps_A: Tensor | None) -> Tensor:
        assert isinstance(self.before, Hidden)
        return _at(steps_A if len(self.before.hidden) else None, self.before, self.normalize(feats_TBWF).flatten(2))

    def _run(
        self,
        x_TBD: Tensor,
        states: Sequence[State],
        own: int,
        lengths_B: Tensor | None,
        begins_B: Tensor | None = None,
        steps_A: Tensor | None = None,
    ) -> tuple[Tensor, list[State]]:
        reversed_TB = _reversed(x_TBD, lengths_B) if self.bidirectional else None
        after: list[State] = []
        for layer, normed, state in zip(self.layers, self.norms, states, strict=True):
            x_TBD, state = layer(x_TBD, state, own, reversed_TB, begins_B)
            if not isinstance(normed, nn.Identity):
                x_TBD = _at(steps_A, normed, x_TBD)
            # With one mask for all steps, as the next cells would average independent ones away over time.
            x_TBD = self.dropout(x_TBD, first_alone=self.dropout_per_chunk)
            after.append(state)
        return x_TBD, after


class Carried:
    """States after minibatches, for the minibatches that follow; without them a minibatch starts with zero states.

    Several are kept: where one model simulates several workers, each worker is in a different row of chunks.
    """

    most = 128

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[int, int], list[State]] = OrderedDict()

    def take(self, place: tuple[int, int]) -> list[State] | None:
        """The states after the previous minibatch, or None if it was not computed here."""
        epoch, number = place
        return self.kept.pop((epoch, number - 1), None)

    def keep(self, place: tuple[int, int], states: list[State]) -> None:
        """Keep states, detached: truncated backpropagation through time (Williams and Peng 1990).

        Values that are not finite become zero: the minibatch may be refused for them, but the next ones must not be.
        """
        self.kept[place] = [(_finite(h_BR.detach()), _finite(c_BC.detach())) for h_BR, c_BC in states]
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)


def _fully_connected(config: LstmConfig, widths: Sequence[int], generator: torch.Generator) -> Hidden:
    return Hidden(widths, config.activation, config.normalization, config.dropout, generator)


def _at(steps_A: Tensor | None, module: nn.Module, x_TBI: Tensor) -> Tensor:
    """Apply a module to the steps numbered t * B + b in `steps_A` (None: to all); the others become zero.

    Steps beyond a chunk's length are padding, which would distort the statistics of batch normalisation. The other
    steps are given as indices: finding them by a mask would make the host wait for the device.
    """
    steps, streams = x_TBI.shape[:2]
    if steps_A is None:
        every: Tensor = module(x_TBI.flatten(0, 1)).view(steps, streams, -1)
        return every
    x_AD: Tensor = module(x_TBI.flatten(0, 1).index_select(0, steps_A))
    return x_AD.new_zeros(steps * streams, x_AD.shape[1]).index_copy(0, steps_A, x_AD).view(steps, streams, -1)


def _reset(state: State, begins_B: Tensor) -> State:
    """The state, set to zero in the streams of `begins_B`."""
    h_BR, c_BC = (each.masked_fill(begins_B[:, None], 0.0) for each in state)
    return h_BR, c_BC


def _finite(state: Tensor) -> Tensor:
    return state.nan_to_num(0.0, 0.0, 0.0)


def _parameter(outputs: int, inputs: int, generator: torch.Generator, scale: float = 1.0) -> nn.Parameter:
    """Uniform with deviation 1 / sqrt(inputs), so that for inputs of variance one a gate's sum has variance one."""
    bound = scale * math.sqrt(3 / inputs)
    return nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator))


def _reversed(x_TBD: Tensor, lengths_B: Tensor | None) -> Tensor:
    step_T1 = torch.arange(len(x_TBD), device=x_TBD.device)[:, None]
    lengths_B = torch.full((x_TBD.shape[1],), len(x_TBD), device=x_TBD.device) if lengths_B is None else lengths_B
    return torch.where(step_T1 < lengths_B, lengths_B - 1 - step_T1, step_T1)


def _reorder(x_TBD: Tensor, order_TB: Tensor) -> Tensor:
    return x_TBD.gather(0, order_TB[:, :, None].expand_as(x_TBD))
