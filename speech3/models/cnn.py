"""The CNN: convolutions over frequency and time of a window, then fully connected layers (Abdel-Hamid et al. 2014).

Axes: B minibatch, W frames of a window, F feature values of a frame (channels x bins), C channels or maps, K frequency
(bins, or what convolution and pooling leave of them), P values under a kernel, S senones. Maps lie last in memory:
a convolution is then one product of patches, and neither pooling nor normalisation copies anything.
"""

from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import CnnConfig
from speech3.config.models import ConvolutionConfig
from speech3.errors import Speech3Error
from speech3.models.dropout import Dropout
from speech3.models.layers import Hidden, WindowModel, gain_of, glorot, norm
from speech3.models.linear import Linear, linear


class Cnn(WindowModel):
    """Convolutional layers, fully connected layers, logits.

    A frame's features are blocks of bins (static, first, second derivatives), which become the input's channels.

    Raises
    ------
    Speech3Error
        The features do not divide into the channels, or a kernel or the pooling is larger than what it works on.
    """

    def __init__(self, config: CnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        bins, rest = divmod(feat_dim, config.channels)
        if rest:
            raise Speech3Error(
                f"model.channels={config.channels}: features of {feat_dim} values a frame do not divide into that many "
                f"blocks of bins; set model.channels=1 for features without derivatives, or extract others (fbank40_d2 "
                f"has 3 blocks of 40)"
            )
        self.bins, self.channels = bins, config.channels
        convolutions, shape_KWC = [], (bins, self.window, config.channels)
        for number, each in enumerate(config.convolutions):
            convolutions.append(ConvolutionalLayer(each, shape_KWC[2], config, generator))
            shape_KWC = _shape_after(each, shape_KWC, f"model.convolutions[{number}]")
        self.convolutions = nn.Sequential(*convolutions)
        widths = [shape_KWC[0] * shape_KWC[1] * shape_KWC[2]] + [config.width] * config.layers
        self.layers = Hidden(widths, config.activation, config.normalization, config.dropout, generator)
        self.output = Linear(widths[-1], num_senones)
        glorot(self.output, 1.0, generator)

    def forward(self, feats_BWF: Tensor) -> Tensor:
        """(B, W, F) or (B, W * F) float32 to logits (B, S)."""
        feats_BWF = self.normalize(feats_BWF.view(len(feats_BWF), self.window, self.feat_dim))
        x_BKWC = feats_BWF.unflatten(2, (self.channels, self.bins)).permute(0, 3, 1, 2).contiguous()
        return self.output(self.layers(self.convolutions(x_BKWC).flatten(1)))


class ConvolutionalLayer(nn.Module):
    """Convolution, pooling, normalisation, activation, dropout.

    Pooling comes first, as in Kaldi's nnet1 (``make_cnn_proto.py``): activations rise with their input, so the result
    is the same, and all that follows has fewer values. Batch normalisation is of each map over minibatch, frequency
    and time, layer normalisation of the maps at one place.
    """

    def __init__(
        self, convolution: ConvolutionConfig, channels: int, config: CnnConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.convolution = Convolution(channels, convolution.maps, convolution.kernel)
        glorot(self.convolution, gain_of(config.activation), generator)
        self.pool = convolution.pool
        self.norm = norm(config.normalization, convolution.maps)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.Sigmoid()
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BKWC: Tensor) -> Tensor:
        """(B, K, W, channels) to (B, K', W', maps)."""
        y_BKWC = self.convolution(x_BKWC)
        if self.pool > 1:
            y_BCKW = nn.functional.max_pool2d(y_BKWC.permute(0, 3, 1, 2), (self.pool, 1))
            y_BKWC = y_BCKW.permute(0, 2, 3, 1)
        y_BKWC = self.norm(y_BKWC.flatten(0, 2)).view(y_BKWC.shape)
        return self.dropout(self.activation(y_BKWC))


class Convolution(nn.Conv2d):
    """`nn.Conv2d` without padding for tensors whose channels are the last axis.

    On the CPU it is a product of patches, at the speed of `speech3.models.linear`: for the two convolutions of the
    preset ``cnn`` 2 to 5 times that of oneDNN's own convolution in PyTorch 2.13 (tests/benchmarks/cnn.py).
    """

    def forward(self, x_BKWC: Tensor) -> Tensor:
        """(B, K, W, in_channels) to (B, K - kernel + 1, W - kernel + 1, out_channels)."""
        if x_BKWC.device.type != "cpu" or torch.jit.is_tracing() or torch.compiler.is_compiling():
            return super().forward(x_BKWC.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        assert self.bias is not None
        rows, columns = self.kernel_size
        weight_CP = self.weight.permute(0, 2, 3, 1).flatten(1)
        return linear(_Patches.apply(x_BKWC, rows, columns), weight_CP, self.bias)


class _Patches(torch.autograd.Function):
    """What lies under the kernel at each of its places; autograd's own backward pass of `unfold` is 10 times slower."""

    @staticmethod
    def forward(ctx: Any, x_BKWC: Tensor, rows: int, columns: int) -> Tensor:
        ctx.rows, ctx.columns, ctx.shape = rows, columns, x_BKWC.shape
        patches = x_BKWC.unfold(1, rows, 1).unfold(2, columns, 1)
        return patches.permute(0, 1, 2, 4, 5, 3).flatten(3)

    @staticmethod
    def backward(ctx: Any, grad_BKWP: Tensor) -> tuple[Tensor, None, None]:
        grads = grad_BKWP.unflatten(3, (ctx.rows, ctx.columns, -1))
        height, width = grads.shape[1:3]
        grad_BKWC = grads.new_zeros(ctx.shape)
        for i in range(ctx.rows):
            for j in range(ctx.columns):
                grad_BKWC[:, i : i + height, j : j + width] += grads[:, :, :, i, j]
        return grad_BKWC, None, None


def _shape_after(each: ConvolutionConfig, shape_KWC: tuple[int, int, int], key: str) -> tuple[int, int, int]:
    bins, frames, _ = shape_KWC
    rows, columns = each.kernel
    if rows > bins or columns > frames:
        raise Speech3Error(
            f"{key}.kernel={rows} x {columns}: larger than its input, {bins} in frequency x {frames} frames; make it "
            f"smaller, pool less before it, or widen model.left_context and model.right_context"
        )
    if each.pool > bins - rows + 1:
        raise Speech3Error(
            f"{key}.pool={each.pool}: the convolution leaves {bins - rows + 1} in frequency; pool fewer, or make the "
            f"kernel smaller"
        )
    return (bins - rows + 1) // each.pool, frames - columns + 1, each.maps
