"""LSTM cells on top of time-delay layers (TDNN-LSTM): the layers see what is near, the cells remember what was before.

Peddinti et al. 2018, "Low latency acoustic modeling using temporal convolution and LSTMs". Here the first layers are
those of a TDNN-F (`speech3.models.tdnn`), and all the cells come after them. The network is trained on single chunks,
as a TDNN-F is: the steps of a chunk share what the time-delay layers compute.

Axes: B chunks, T time steps (frames, or steps of the cells), W frames of a step's context, F feature bins, D units.
"""

from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import TdnnConfig
from speech3.models.lstm import Lstm
from speech3.models.tdnn import FactoredLayer
from speech3.models.tdnn_front import STEP, front_of


class TimeDelay(nn.Module):
    """The first layers and the factored layers of a time-delay network; (B, T, F) frames to (B, T', width).

    Attributes
    ----------
    before, after
        Frames of context before and after the frame that an output is centred on.

    Raises
    ------
    Speech3Error
        A kernel is larger than its input.
    """

    def __init__(self, config: TdnnConfig, feat_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.front = front_of(config, feat_dim, generator)
        self.layers = nn.ModuleList(FactoredLayer(config, each, generator) for each in config.layer_bottlenecks)
        reach = config.layers * config.context * STEP
        self.before, self.after = self.front.before + reach, self.front.after + reach

    def forward(self, x_BTF: Tensor) -> Tensor:
        """(B, T, F) normalised frames to (B, T', width)."""
        x_BTD: Tensor = self.front(x_BTF)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD


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
