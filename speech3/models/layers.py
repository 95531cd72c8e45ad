"""Parts shared by the families: the model of single windows, and fully connected layers.

Axes: B minibatch, W context window, F feature bins, T frames of an utterance, D units of a layer, S senones.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speech3.config.models import Activation, Normalization
from speech3.frames.resident import window_indices
from speech3.models.base import AcousticModel
from speech3.models.dropout import Dropout
from speech3.models.linear import Linear

_SCORED_AT_A_TIME = 1024  # frames: bounds the memory of the spliced windows, and gives oneDNN's cache a single shape


class WindowModel(AcousticModel):
    """A model that scores one window of frames at a time."""

    def score(self, feats_TF: Tensor) -> Tensor:
        """See `AcousticModel.score`."""
        length = len(feats_TF)
        logits_TS = feats_TF.new_empty((length, self.num_senones), dtype=torch.float32)
        first, last = (torch.tensor([frame], device=feats_TF.device) for frame in (0, length - 1))
        for start in range(0, length, _SCORED_AT_A_TIME):
            stop = min(start + _SCORED_AT_A_TIME, length)
            centers_B = torch.arange(start, stop, device=feats_TF.device)
            windows = window_indices(centers_B, first, last, self.left_context, self.right_context)
            logits_TS[start:stop] = self(feats_TF[windows].float())
        return logits_TS

    def score_inside(self, feats_TF: Tensor) -> Tensor:
        """See `AcousticModel.score_inside`."""
        logits_TS: Tensor = self(feats_TF.float().unfold(0, self.window, 1).transpose(1, 2).contiguous())
        return logits_TS


class Hidden(nn.Module):
    """Fully connected layers: product, normalisation, activation, dropout.

    Parameters
    ----------
    widths
        Width of the input and of each layer's output.
    """

    def __init__(
        self, widths: Sequence[int], activation: Activation, normalization: Normalization, dropout: float,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        super().__init__()
        layers = [Linear(i, o) for i, o in itertools.pairwise(widths)]
        for layer in layers:
            glorot(layer, gain_of(activation), generator)
        self.hidden = nn.ModuleList(layers)
        self.norms = nn.ModuleList(norm(normalization, width) for width in widths[1:])
        self.activation = nn.ReLU() if activation == "relu" else nn.Sigmoid()
        self.dropout = Dropout(dropout)
        self.fuse_relu = activation == "relu" and normalization == "none"

    def forward(self, x_BD: Tensor) -> Tensor:
        """(B, widths[0]) to (B, widths[-1])."""
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x_BD = layer(x_BD, relu=True) if self.fuse_relu else self.activation(norm(layer(x_BD)))
            x_BD = self.dropout(x_BD)
        return x_BD


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the rows of a minibatch; a single row is normalised by the running statistics.

    The last minibatch of an epoch of a recurrent model may have a single row.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, D) to (B, D)."""
        if self.training and len(input) == 1:
            return nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(input)


def glorot(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
    """Initialise as Glorot and Bengio 2010, `gain` being that of He et al. 2015 for ReLU; the bias is zero."""
    nn.init.xavier_normal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def gain_of(activation: Activation) -> float:
    """Initial gain of the weights before this activation."""
    return math.sqrt(2) if activation == "relu" else 1.0


def norm(kind: Normalization, width: int) -> nn.Module:
    """The normalisation of a layer's units."""
    return {"none": nn.Identity, "batch": BatchNorm, "layer": nn.LayerNorm}[kind](width)
