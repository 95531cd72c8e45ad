"""The CNN: convolutions over the frequency and time of a window, then fully connected layers (Abdel-Hamid et al. 2014).

Axes: B minibatch, W frames of a window, F feature values of a frame (channels x bins), C channels or maps, K frequency
(bins, or what convolution and pooling leave of them), P values under a kernel, S senones. Maps are the last axis in
memory: a convolution is then one product of patches, and neither pooling nor normalisation copies anything.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import CnnConfig, ConvolutionConfig
from speech3.errors import SettingError
from speech3.models.dnn import Dropout, Hidden, WindowModel, add_outputs, gain_of, glorot, norm
from speech3.models.layers import autocasts, multiply

_IN_CACHE = 400_000  # patch values per part, 1.6 MB: the best of 0.8 to 24 MB with 1 MB of cache per core


class Cnn(WindowModel):
    """Convolutional layers, fully connected layers, logits.

    A frame's features are blocks of bins (static, first, second derivatives), which become the input's channels. The
    last ``adapted`` values of a frame bypass the convolutions: the first layer after these reads them of all frames. It
    is an error if the others do not divide into blocks, or if a kernel or the pooling is larger than its input.
    """

    def __init__(self, config: CnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        self.adapted = config.adapted
        values = feat_dim - self.adapted
        bins, rest = divmod(values, config.channels)
        if rest:
            raise SettingError(
                f"model.channels={config.channels}: features of {values} values per frame do not divide into "
                f"that many blocks of bins; set model.channels=1 for features without deltas, or extract others "
                f"(fbank40_d2 has 3 blocks of 40)"
            )
        self.bins, self.channels = bins, config.channels
        convolutions, shape_KWC = [], (bins, self.window, config.channels)
        for number, each in enumerate(config.convolutions):
            convolutions.append(ConvolutionalLayer(each, shape_KWC[2], config, generator))
            shape_KWC = _shape_after(each, shape_KWC, f"model.convolutions[{number}]")
        self.convolutions = nn.Sequential(*convolutions)
        beside = self.window * self.adapted
        widths = [shape_KWC[0] * shape_KWC[1] * shape_KWC[2] + beside, *config.hidden_widths]
        self.layers = Hidden(widths, config.activation, config.normalization, config.dropout, generator)
        add_outputs(self, widths[-1], generator)

    def hidden(self, feats_BWF: Tensor) -> Tensor:
        feats_BWF, beside_BWX = self.normalize(feats_BWF).tensor_split([self.channels * self.bins], 2)
        x_BKWC = feats_BWF.unflatten(2, (self.channels, self.bins)).permute(0, 3, 1, 2).contiguous()
        x_BD = self.convolutions(x_BKWC).flatten(1)
        if self.adapted:
            x_BD = torch.cat([x_BD, beside_BWX.flatten(1)], 1)
        hidden_BD: Tensor = self.layers(x_BD)
        return hidden_BD


class ConvolutionalLayer(nn.Module):
    """Convolution, pooling, normalisation, activation, dropout.

    Pooling comes first, as in Kaldi's nnet1 (``make_cnn_proto.py``): activations are monotonic, so pooling before them
    gives the same (though not before normalisation), and the later steps have fewer values. Batch normalisation is of
    each map over minibatch, frequency and time; layer normalisation is of the maps at one place.
    """

    def __init__(
        self, convolution: ConvolutionConfig, channels: int, config: CnnConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.convolution = Convolution(channels, convolution.maps, convolution.kernel, convolution.pool)
        glorot(self.convolution, gain_of(config.activation), generator)
        self.norm = norm(config.normalization, convolution.maps)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.Sigmoid()
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BKWC: Tensor) -> Tensor:
        y_BKWC = self.convolution(x_BKWC)
        y_BKWC = self.norm(y_BKWC.flatten(0, 2)).view(y_BKWC.shape)
        return self.dropout(self.activation(y_BKWC))


class Convolution(nn.Conv2d):
    """`nn.Conv2d` without padding and, in frequency, `nn.MaxPool2d`, for tensors whose channels are the last axis.

    The axis names stand for frequency and time; without pooling the two axes may be anything. On the CPU a training
    step of the preset ``cnn`` takes half the time that it takes with PyTorch's layers (tests/benchmarks/cnn.py), whose
    convolutions run at a quarter to a half of the speed of `speech3.models.layers`.
    """

    def __init__(
        self,
        channels: int,
        maps: int,
        kernel: tuple[int, int],
        pool: int = 1,
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
    ) -> None:
        super().__init__(channels, maps, kernel, stride=stride, dilation=dilation)
        self.pool = pool
        self.places_of = _Places(kernel, stride, dilation)

    def forward(self, x_BKWC: Tensor) -> Tensor:
        """(B, K, W, in_channels) to (B, (K - kernel + 1) // pool, W - kernel + 1, out_channels), if stride is 1."""
        if x_BKWC.device.type != "cpu" or autocasts(x_BKWC):
            return self.stock(x_BKWC)
        weight_CP = self.weight.permute(0, 2, 3, 1).flatten(1)
        windows = max(1, _IN_CACHE // (self.places(x_BKWC) * weight_CP.shape[1]))
        y_BKWC: Tensor = _Convolve.apply(x_BKWC, weight_CP, self.bias, self.places_of, self.pool, windows)
        return y_BKWC

    def stock(self, x_BKWC: Tensor) -> Tensor:
        """The same by PyTorch's own functions."""
        y_BCKW = super().forward(x_BKWC.permute(0, 3, 1, 2))
        if self.pool > 1:
            y_BCKW = nn.functional.max_pool2d(y_BCKW, (self.pool, 1))
        return y_BCKW.permute(0, 2, 3, 1)

    def places(self, x_BKWC: Tensor) -> int:
        """Number of places of a window at which the kernel is applied."""
        return self.places_of.count(0, x_BKWC.shape[1]) * self.places_of.count(1, x_BKWC.shape[2])


@dataclass(frozen=True)
class _Places:
    """Where a kernel is applied along its two axes."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def span(self, axis: int) -> int:
        """Number of values from the first to the last one under the kernel, both included."""
        return (self.kernel[axis] - 1) * self.dilation[axis] + 1

    def count(self, axis: int, size: int) -> int:
        return (size - self.span(axis)) // self.stride[axis] + 1

    def under(self, axis: int, tap: int, count: int) -> slice:
        """The values that one tap of the kernel is applied to at `count` places."""
        first = tap * self.dilation[axis]
        return slice(first, first + (count - 1) * self.stride[axis] + 1, self.stride[axis])


class _Convolve(torch.autograd.Function):
    """Convolution as a product of patches, and pooling, for few enough windows at a time that both stay in the cache.

    Neither the patches nor the values before pooling are kept: cutting the patches again costs less than reading them
    from memory.
    """

    @staticmethod
    def forward(
        ctx: Any, x_BKWC: Tensor, weight_CP: Tensor, bias_C: Tensor, places: _Places, pool: int, windows: int
    ) -> Tensor:
        ctx.places, ctx.pool, ctx.windows = places, pool, windows
        parts, winners = [], []
        for x in x_BKWC.split(windows):
            patches = _patches(x, places)
            y = multiply(patches.flatten(0, 2), weight_CP, bias_C).view(*patches.shape[:3], -1)
            if pool > 1:
                y, winner = torch.ops.aten.max_pool2d_with_indices(y.permute(0, 3, 1, 2), [pool, 1])
                y = y.permute(0, 2, 3, 1)
                winners.append(winner)
            parts.append(y)
        ctx.save_for_backward(x_BKWC, weight_CP, *winners)
        return torch.cat(parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BKWC: Tensor) -> tuple[Tensor | None, ...]:
        x_BKWC, weight_CP, *winners = ctx.saved_tensors
        maps, stride = len(weight_CP), [ctx.pool, 1]
        grad_x_BKWC = torch.zeros_like(x_BKWC) if ctx.needs_input_grad[0] else None
        grad_weight_CP = torch.zeros_like(weight_CP)
        for part, (x, g) in enumerate(zip(x_BKWC.split(ctx.windows), grad_BKWC.split(ctx.windows), strict=True)):
            patches = _patches(x, ctx.places)
            if winners:
                like = g.new_empty(*patches.shape[:3], maps).permute(0, 3, 1, 2)
                g = torch.ops.aten.max_pool2d_with_indices_backward(
                    g.permute(0, 3, 1, 2), like, stride, stride, [0, 0], [1, 1], False, winners[part]
                ).permute(0, 2, 3, 1)
            g = g.reshape(-1, maps)
            grad_weight_CP += multiply(g.t(), patches.flatten(0, 2).t())
            if grad_x_BKWC is not None:
                grad_patches = multiply(g, weight_CP.t()).view(patches.shape)
                _add_patches(grad_x_BKWC[part * ctx.windows :][: len(x)], grad_patches, ctx.places)
        grad_bias_C = grad_BKWC.new_ones(grad_BKWC.numel() // maps) @ grad_BKWC.reshape(-1, maps)
        return grad_x_BKWC, grad_weight_CP, grad_bias_C, None, None, None


def _patches(x_BKWC: Tensor, places: _Places) -> Tensor:
    """The values under the kernel at each of its places: (B, K, W, P)."""
    for axis in (0, 1):
        x_BKWC = x_BKWC.unfold(1 + axis, places.span(axis), places.stride[axis])[..., :: places.dilation[axis]]
    under_BKWP = x_BKWC.permute(0, 1, 2, 4, 5, 3)
    # Always a copy: a view could have overlapping rows, or strides that oneDNN does not support.
    return x_BKWC.new_empty(under_BKWP.shape).copy_(under_BKWP).flatten(3)


def _add_patches(x_BKWC: Tensor, patches_BKWP: Tensor, places: _Places) -> None:
    (height, width), parts = patches_BKWP.shape[1:3], patches_BKWP.unflatten(3, (*places.kernel, -1))
    for i in range(places.kernel[0]):
        for j in range(places.kernel[1]):
            x_BKWC[:, places.under(0, i, height), places.under(1, j, width)] += parts[:, :, :, i, j]


def _shape_after(each: ConvolutionConfig, shape_KWC: tuple[int, int, int], key: str) -> tuple[int, int, int]:
    bins, frames, _ = shape_KWC
    rows, columns = each.kernel
    if rows > bins or columns > frames:
        raise SettingError(
            f"{key}.kernel={rows} x {columns}: larger than its input, {bins} in frequency x {frames} frames; make it "
            f"smaller, pool less before it, or widen model.left_context and model.right_context"
        )
    if each.pool > bins - rows + 1:
        raise SettingError(
            f"{key}.pool={each.pool}: the convolution leaves {bins - rows + 1} bins in frequency; pool fewer, or make "
            f"the kernel smaller"
        )
    return (bins - rows + 1) // each.pool, frames - columns + 1, each.maps
