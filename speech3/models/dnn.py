"""The DNN: a window of frames through fully connected layers to senone logits (Hinton et al. 2012).

Axes: B minibatch, W context window, F feature bins, S senones.
"""

import torch
from torch import Tensor

from speech3.config import DnnConfig
from speech3.models.layers import Hidden, WindowModel, add_outputs


class Dnn(WindowModel):
    """``layers`` hidden layers of ``width`` units, then the logits."""

    def __init__(self, config: DnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        widths = [self.window * feat_dim, *config.hidden_widths]
        self.layers = Hidden(widths, config.activation, config.normalization, config.dropout, generator)
        add_outputs(self, widths[-1], generator)

    def hidden(self, feats_BWF: Tensor) -> Tensor:
        """See `WindowModel.hidden`."""
        x_BD: Tensor = self.layers(self.normalize(feats_BWF).flatten(1))
        return x_BD
