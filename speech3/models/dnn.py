"""The DNN: a window of frames through fully connected layers to senone logits (Hinton et al. 2012).

Axes: B minibatch, W context window, F feature bins, D units of a layer, S senones.
"""

import itertools
import math

import torch
from torch import Tensor, nn

from speech3.config import ModelConfig
from speech3.models.dropout import Dropout
from speech3.models.linear import Linear


class Dnn(nn.Module):
    """``layers`` hidden layers of ``width`` units: product, normalisation, activation, dropout; then the logits.

    The input is shifted and scaled by the mean and deviation of the training frames (buffers, as nnet1's
    ``<AddShift>`` and ``<Rescale>``), zero and one until `set_input_statistics`.
    """

    shift_F: Tensor
    scale_F: Tensor

    def __init__(self, config: ModelConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__()
        self.left_context, self.right_context = config.left_context, config.right_context
        self.feat_dim, self.num_senones = feat_dim, num_senones
        self.register_buffer("shift_F", torch.zeros(feat_dim))
        self.register_buffer("scale_F", torch.ones(feat_dim))
        widths = [self.window * feat_dim] + [config.width] * config.layers
        self.hidden = nn.ModuleList(Linear(i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(_norm(config.normalization, width) for width in widths[1:])
        self.activation = nn.ReLU() if config.activation == "relu" else nn.Sigmoid()
        self.dropout = Dropout(config.dropout)
        self.output = Linear(widths[-1], num_senones)
        self.fuse_relu = config.activation == "relu" and config.normalization == "none"
        self._initialize(gain=math.sqrt(2) if config.activation == "relu" else 1.0, generator=generator)

    @property
    def window(self) -> int:
        """W."""
        return self.left_context + 1 + self.right_context

    def set_input_statistics(self, mean_F: Tensor, variance_F: Tensor) -> None:
        """Shift and scale the input to zero mean and unit variance; a bin that never changes is only shifted."""
        self.shift_F.copy_(-mean_F)
        self.scale_F.copy_(torch.where(variance_F > 1e-10, variance_F, torch.ones_like(variance_F)).rsqrt())

    def forward(self, feats_BWF: Tensor) -> Tensor:
        """(B, W, F) or (B, W * F) float32 to logits (B, S)."""
        feats_BWF = feats_BWF.view(len(feats_BWF), self.window, self.feat_dim)
        x_BD = ((feats_BWF + self.shift_F) * self.scale_F).flatten(1)
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x_BD = layer(x_BD, relu=True) if self.fuse_relu else self.activation(norm(layer(x_BD)))
            x_BD = self.dropout(x_BD)
        return self.output(x_BD)

    def _initialize(self, gain: float, generator: torch.Generator) -> None:
        # Glorot and Bengio 2010, with He et al. 2015's gain behind rectifiers; the output layer without it.
        for layer in [*self.hidden, self.output]:
            nn.init.xavier_normal_(layer.weight, 1.0 if layer is self.output else gain, generator=generator)
            nn.init.zeros_(layer.bias)


def _norm(kind: str, width: int) -> nn.Module:
    return {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[kind](width)
