"""Time-delay networks of factored layers (TDNN-F), optionally with convolutions before them and LSTM cells after them.

Povey et al. 2018, "Semi-orthogonal low-rank matrix factorization for deep neural networks": each layer's matrix is the
product of two with a bottleneck between them, the first kept semi-orthogonal; layers and bypass are those of Kaldi's
``tdnnf-layer``. No layer pads: a chunk of T frames comes with its context, and has T / `subsampling` outputs, each
centred on the middle one of its frames. Only the first convolution has a stride; the taps of later kernels are `STEP`
frames apart. In a TDNN-LSTM (Peddinti et al. 2018) all cells come after the layers.

Axes: B chunks, T time steps (frames, outputs of the first layer, or steps of the cells), W frames of a step's context,
F feature bins, K frequency (bins, or what convolutions leave of them), C channels or maps, D units of a layer, O units
of a bottleneck, S senones.
"""

from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import CnnTdnnConfig, TdnnConfig
from speech3.errors import SettingError
from speech3.frames import ChunkInputs
from speech3.models.base import AcousticModel
from speech3.models.cnn import Convolution
from speech3.models.dnn import Dropout, gain_of, glorot
from speech3.models.layers import BatchNorm, Linear, exactly, linear, multiply, rectified
from speech3.models.lstm import Lstm

STEP = 3  # frames
_WINDOW = 5  # frames in the input of the first layer of a network without convolutions


class AffineFront(nn.Module):
    """One affine layer over a window of frames, ReLU, batch normalisation.

    `before`, `after`: frames of context before and after the frame that an output is centred on.
    """

    before, after = (_WINDOW - 1) // 2, _WINDOW // 2

    def __init__(self, config: TdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.affine = Convolution(feat_dim, config.width, (_WINDOW, 1), stride=(config.frames_per_output, 1))
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.width)

    def forward(self, x_BTF: Tensor) -> Tensor:
        y_BTD = self.affine(x_BTF.unsqueeze(2)).squeeze(2)  # a frame's values are the channels of a single bin
        return rectified(y_BTD, self.norm)


class ConvolutionalFront(nn.Module):
    """Convolutions, each with batch normalisation and ReLU, then an affine layer over all frequencies and maps.

    The last ``adapted`` values of a frame bypass the convolutions: the affine layer reads them of the frame that an
    output is centred on and of its two neighbours. It is an error if a kernel is larger than its input.
    """

    def __init__(self, config: CnnTdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.before = self.after = 0
        self.adapted, self.step = config.adapted, config.frames_per_output
        self.bins = feat_dim - self.adapted
        convolutions, bins, channels, step = [], self.bins, 1, self.step
        for number, each in enumerate(config.convolutions):
            rows, times = each.kernel
            if rows > bins:
                raise SettingError(
                    f"model.convolutions[{number}].kernel={rows} x {times}: larger than its input, {bins} in frequency;"
                    f" make it smaller, or choose features with more bins (fbank40)"
                )
            stride, dilation, frames = (1, STEP // step, STEP) if number else (step, 1, 1)
            self.before += (times - 1) // 2 * frames
            self.after += times // 2 * frames
            convolution = Convolution(
                channels, each.maps, (times, rows), stride=(stride, each.stride), dilation=(dilation, 1)
            )
            convolutions.append(NormalizedConvolution(convolution, generator))
            bins, channels = (bins - rows) // each.stride + 1, each.maps
        self.convolutions = nn.Sequential(*convolutions)
        self.affine = Linear(bins * channels + STEP * config.adapted, config.width)
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.width)

    def forward(self, x_BTF: Tensor) -> Tensor:
        x_BTD = self.convolutions(x_BTF[:, :, : self.bins, None]).flatten(2)
        if self.adapted:
            near_BTFX = x_BTF[:, self.before - 1 :, self.bins :].unfold(1, STEP, self.step)[:, : x_BTD.shape[1]]
            x_BTD = torch.cat([x_BTD, near_BTFX.flatten(2)], 2)
        return rectified(self.affine(x_BTD), self.norm)


class NormalizedConvolution(nn.Module):
    """A convolution, batch normalisation of each map, ReLU."""

    def __init__(self, convolution: Convolution, generator: torch.Generator) -> None:
        super().__init__()
        self.convolution = convolution
        glorot(convolution, gain_of("relu"), generator)
        self.norm = BatchNorm(convolution.out_channels)

    def forward(self, x_BTKC: Tensor) -> Tensor:
        y_BTKC = self.convolution(x_BTKC)
        return rectified(y_BTKC.flatten(1, 2), self.norm, norm_first=True).view(y_BTKC.shape)


class TimeDelay(nn.Module):
    """The first layers and the factored layers of a time-delay network; (B, T, F) frames to (B, T', width).

    `before`, `after`: frames of context before and after the frame that an output is centred on.
    """

    def __init__(self, config: TdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.front: AffineFront | ConvolutionalFront
        if isinstance(config, CnnTdnnConfig):
            self.front = ConvolutionalFront(config, feat_dim, generator)
        else:
            self.front = AffineFront(config, feat_dim, generator)
        self.layers = nn.ModuleList(FactoredLayer(config, each, generator) for each in config.layer_bottlenecks)
        reach = config.layers * config.context * STEP
        self.before, self.after = self.front.before + reach, self.front.after + reach

    def forward(self, x_BTF: Tensor) -> Tensor:
        x_BTD: Tensor = self.front(x_BTF)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD


class Tdnn(AcousticModel):
    """First layers, factored layers, a narrower layer, outputs with zero initial weights."""

    outputs_at_a_time = 1000

    def __init__(self, config: TdnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        before = TimeDelay(config, feat_dim, generator)
        self.front, self.layers = before.front, before.layers
        self.left_context, self.right_context = before.before - self.center, before.after - self.center
        self.prefinal = Prefinal(config, generator)
        self.output = Linear(config.prefinal, num_senones)
        outputs = [self.output]
        if config.two_outputs:
            self.xent_prefinal = Prefinal(config, generator)
            self.xent_output = Linear(config.prefinal, num_senones)
            outputs.append(self.xent_output)
        for output in outputs:
            nn.init.zeros_(output.weight)
            nn.init.zeros_(output.bias)

    def forward(self, inputs: Tensor | ChunkInputs) -> Any:
        """Outputs (B, T / subsampling, S) of chunks (B, left_context + T + right_context, F), with `two_outputs` a
        pair.
        """
        x_BTD = self._hidden(inputs if isinstance(inputs, Tensor) else inputs.feats_BTF)
        outputs_BTS = self.output(self.prefinal(x_BTD))
        return (outputs_BTS, self.xent_output(self.xent_prefinal(x_BTD))) if self.two_outputs else outputs_BTS

    def score_inside(self, feats_TF: Tensor) -> Tensor:
        logits_TS: Tensor = self.output(self.prefinal(self._hidden(feats_TF.float()[None])))[0]
        return logits_TS

    def _hidden(self, feats_BTF: Tensor) -> Tensor:
        x_BTD = self.front(self.normalize(feats_BTF))
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD


class FactoredLayer(nn.Module):
    """Two products, each over two time steps, then ReLU, batch normalisation, dropout, and a bypass of the input.

    The first product sees the steps -offset and 0, the second 0 and +offset. Dropout zeroes a unit for a whole chunk.
    """

    def __init__(self, config: TdnnConfig, bottleneck: int, generator: torch.Generator) -> None:
        super().__init__()
        self.offset = config.context * STEP // config.frames_per_output
        self.bypass = config.bypass
        self.linear = SemiOrthogonal(config.width, bottleneck, generator)
        self.affine = Linear(2 * bottleneck, config.width)
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, width) to (B, T - 2 offset, width)."""
        y_BTD = self.affine(joined(self.linear(x_BTD), self.offset))
        keep_BD = self.dropout.keep(y_BTD[:, 0]) if self.training and self.dropout.dropped else None
        return rectified(
            y_BTD, self.norm, keep_BD=keep_BD, scale=self.dropout.scale, bypassed_BTD=x_BTD, share=self.bypass
        )


class SemiOrthogonal(nn.Module):
    """A product over two time steps; its matrix, (outputs, 2 x inputs), has orthogonal rows of equal, arbitrary length.

    In training each forward pass first moves the matrix a step towards that. The step is not random, so workers with
    equal parameters change them equally; asynchronous workers, whose pushes are added up, take `constraint_share` of it
    each. `weight` (2, outputs, inputs) has the halves for the earlier and the later time step.
    """

    constraint_share = 1.0
    rows_axis = 1  # of the weight: `speech3.engine.optimizers`

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, outputs, inputs))
        nn.init.normal_(self.weight, std=(2 * inputs) ** -0.5, generator=generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, inputs) to the products of both halves with every step, (B, T, 2 x outputs); `joined` adds them."""
        if self.training:
            with exactly(self.weight):
                constrain(self.weight, self.constraint_share)
        return linear(x_BTD, self.weight.flatten(0, 1), None)


def joined(halves_BTO: Tensor, offset: int) -> Tensor:
    """Add up a product's halves (B, T, 2 O) at steps `offset` apart, and put beside each sum the one `offset` later.

    The result is (B, T - 2 offset, 2 O). So only the outputs of the bottleneck are copied to bring steps together,
    never its inputs, which are several times as wide.
    """
    joined_BTO: Tensor = _Joined.apply(halves_BTO, offset)
    return joined_BTO


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, halves_BTO: Tensor, offset: int) -> Tensor:
        ctx.offset, times = offset, halves_BTO.shape[1] - 2 * offset
        early_BTO, late_BTO = halves_BTO.chunk(2, 2)
        out_BTO = halves_BTO.new_empty(len(halves_BTO), times, halves_BTO.shape[2])
        for half, first in zip(out_BTO.chunk(2, 2), (0, offset), strict=True):
            half.copy_(early_BTO[:, first : first + times])
            half += late_BTO[:, first + offset : first + offset + times]
        return out_BTO

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BTO: Tensor) -> tuple[Tensor, None]:
        offset, times = ctx.offset, grad_BTO.shape[1]
        first_BTO, second_BTO = grad_BTO.chunk(2, 2)
        halves_BTO = grad_BTO.new_empty(len(grad_BTO), times + 2 * offset, grad_BTO.shape[2])
        early_BTO, late_BTO = halves_BTO.chunk(2, 2)
        early_BTO[:, :times] = first_BTO
        early_BTO[:, times:] = 0
        early_BTO[:, offset : offset + times] += second_BTO
        late_BTO[:, offset:] = early_BTO[:, :-offset]
        late_BTO[:, :offset] = 0
        return halves_BTO, None


@torch.no_grad()
def constrain(weight_2OD: Tensor, share: float = 1.0) -> None:
    """Move M = (first half, second half), (O, 2 D), in place, a share of one step towards M M^T = alpha^2 I.

    Povey et al. 2018, section 2: M -= 4 nu / alpha^2 (P - alpha^2 I) M with P = M M^T, nu = 1/8 and alpha^2 =
    tr(P P^T) / tr(P), which does not change the length of M. As in Kaldi (nnet-utils.cc,
    ``ConstrainOrthonormalInternal``) the step is halved or quartered as long as P's eigenvalues differ much, when it
    could diverge. For a semi-orthogonal M it is zero.
    """
    m_OD = weight_2OD.transpose(0, 1).flatten(1)
    p_OO = multiply(m_OD, m_OD)
    trace, trace_of_square = p_OO.trace(), p_OO.square().sum()
    alpha_squared = trace_of_square / trace
    spread = trace_of_square * len(p_OO) / trace.square()  # 1 where all eigenvalues are the same
    nu = 0.125 / (1.0 + (spread > 1.02) + 2.0 * (spread > 1.1))
    p_OO.diagonal().sub_(alpha_squared)
    step_OD = multiply(p_OO.mul_(share * 4 * nu / alpha_squared), m_OD.t())
    weight_2OD.sub_(step_OD.unflatten(1, (2, -1)).transpose(0, 1))


class Prefinal(nn.Module):
    """The last hidden layer before an output layer: affine, ReLU, batch normalisation."""

    def __init__(self, config: TdnnConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.affine = Linear(config.width, config.prefinal)
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.prefinal)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return rectified(self.affine(x_BTD), self.norm)


class TdnnLstm(Lstm):
    """`TimeDelay`, ``layers`` recurrent layers, ``output_layers``, then the logits; trained on single chunks only."""

    def _make_before(self, config: Any, feat_dim: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        before = TimeDelay(config.before_cells, feat_dim, generator)
        self.window = before.before + 1 + before.after
        self.left_context, self.right_context = before.before - self.center, before.after - self.center
        return before, config.width

    def _before(self, feats_BTF: Tensor) -> Tensor:
        x_BTD: Tensor = self.before(self.normalize(feats_BTF))
        return x_BTD.transpose(0, 1).contiguous()

    def _before_of_windows(self, feats_TWF: Tensor) -> Tensor:
        # Windows of consecutive steps overlap: each one adds as many frames as it is further on.
        added_TF = feats_TWF[1:, -self.subsampling :].flatten(0, 1)
        return self._before(torch.cat([feats_TWF[0], added_TF])[None])
