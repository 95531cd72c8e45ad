"""The DNN: a window of frames through fully connected layers to senone logits (Hinton et al. 2012).

Axes: B minibatch, W context window, F feature bins, S senones.
"""

import torch
from torch import Tensor

from speech3.config import DnnConfig
from speech3.models.layers import Hidden, WindowModel, glorot
from speech3.models.linear import Linear


class Dnn(WindowModel):
    """``layers`` hidden layers of ``width`` units, then the logits."""

    def __init__(self, config: DnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        widths = [self.window * feat_dim] + [config.width] * config.layers
        self.layers = Hidden(widths, config.activation, config.normalization, config.dropout, generator)
        self.output = Linear(widths[-1], num_senones)
        glorot(self.output, 1.0, generator)

    def forward(self, feats_BWF: Tensor) -> Tensor:
        """Logits (B, S) of windows (B, W, F) or (B, W * F), float32."""
        feats_BWF = feats_BWF.view(len(feats_BWF), self.window, self.feat_dim)
        return self.output(self.layers(self.normalize(feats_BWF).flatten(1)))
