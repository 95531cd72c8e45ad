"""The layers before the factored layers of a time-delay network: from frames to one row of units for each output.

Only the first convolution has a stride of `subsampling` frames. The taps of later kernels are `STEP` frames apart, so
at a subsampling of 1 these kernels are dilated: the network computes the same, but at every frame.

Axes: B chunks, T time steps (frames, or outputs of the first layer), F feature bins, K frequency (bins, or what
convolutions leave of them), C channels or maps, D units of a layer.
"""

import torch
from torch import Tensor, nn

from speech3.config import CnnTdnnConfig, TdnnConfig
from speech3.errors import Speech3Error
from speech3.models.cnn import Convolution
from speech3.models.layers import BatchNorm, gain_of, glorot
from speech3.models.linear import Linear
from speech3.models.rectified import rectified

STEP = 3  # frames
_WINDOW = 5  # frames in the input of the first layer of a network without convolutions


class AffineFront(nn.Module):
    """One affine layer over a window of frames, ReLU, batch normalisation.

    Attributes
    ----------
    before, after
        Frames of context before and after the frame that an output is centred on.
    """

    before, after = (_WINDOW - 1) // 2, _WINDOW // 2

    def __init__(self, config: TdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.affine = Convolution(feat_dim, config.width, (_WINDOW, 1), stride=(config.frames_per_output, 1))
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.width)

    def forward(self, x_BTF: Tensor) -> Tensor:
        """(B, T, F) frames to (B, T', width)."""
        y_BTD = self.affine(x_BTF.unsqueeze(2)).squeeze(2)  # a frame's values are the channels of a single bin
        return rectified(y_BTD, self.norm)


class ConvolutionalFront(nn.Module):
    """Convolutions, each with batch normalisation and ReLU, then an affine layer over all frequencies and maps.

    Attributes
    ----------
    before, after
        As for `AffineFront`.

    Raises
    ------
    Speech3Error
        A kernel is larger than its input.
    """

    def __init__(self, config: CnnTdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.before = self.after = 0
        convolutions, bins, channels, step = [], feat_dim, 1, config.frames_per_output
        for number, each in enumerate(config.convolutions):
            rows, times = each.kernel
            if rows > bins:
                raise Speech3Error(
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
        self.affine = Linear(bins * channels, config.width)
        glorot(self.affine, gain_of("relu"), generator)
        self.norm = BatchNorm(config.width)

    def forward(self, x_BTF: Tensor) -> Tensor:
        """(B, T, F) frames to (B, T', width)."""
        x_BTKC = self.convolutions(x_BTF.unsqueeze(3))
        return rectified(self.affine(x_BTKC.flatten(2)), self.norm)


class NormalizedConvolution(nn.Module):
    """A convolution, batch normalisation of each map, ReLU."""

    def __init__(self, convolution: Convolution, generator: torch.Generator) -> None:
        super().__init__()
        self.convolution = convolution
        glorot(convolution, gain_of("relu"), generator)
        self.norm = BatchNorm(convolution.out_channels)

    def forward(self, x_BTKC: Tensor) -> Tensor:
        """(B, T, K, channels) to (B, T', K', maps)."""
        y_BTKC = self.convolution(x_BTKC)
        return rectified(y_BTKC.flatten(1, 2), self.norm, norm_first=True).view(y_BTKC.shape)


def front_of(config: TdnnConfig, feat_dim: int, generator: torch.Generator) -> AffineFront | ConvolutionalFront:
    """The first layers for the family of `config`."""
    if isinstance(config, CnnTdnnConfig):
        return ConvolutionalFront(config, feat_dim, generator)
    return AffineFront(config, feat_dim, generator)
