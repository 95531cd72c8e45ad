"""The DNN: a window of frames through fully connected layers to senone logits (Hinton et al. 2012).

`WindowModel`, `Hidden` and the parts after them also serve the other families.

Axes: B minibatch, W context window, F feature bins, T frames of an utterance, D units of a layer, S senones.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from speech3.config import Activation, DnnConfig, Normalization
from speech3.frames import ChunkInputs, window_indices
from speech3.models.base import AcousticModel
from speech3.models.layers import BatchNorm, Linear


class Dropout(nn.Module):
    """In training, zero each value with (nearly) probability `p` and scale the others so that the mean is kept."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * p), 255)  # of 256

    @property
    def scale(self) -> float:
        return 256 / (256 - self.dropped)

    def keep(self, like: Tensor) -> Tensor:
        """Draw which values are kept: 1 or 0, in shape and type of `like`."""
        bits = torch.empty((like.numel() + 7) // 8, dtype=torch.int64, device=like.device).random_(-(2**63), None)
        return (bits.view(torch.uint8)[: like.numel()].view(like.shape) >= self.dropped).to(like.dtype)

    def forward(self, x: Tensor, *, first_alone: bool = False) -> Tensor:
        """Apply dropout to a tensor of any shape; `first_alone`: one mask for all along the first axis."""
        if not self.training or not self.dropped:
            return x
        kept = self.keep(x[:1] if first_alone else x)
        if x.dtype in (torch.float32, torch.float64):
            return x * kept.mul_(self.scale)
        return x * kept * self.scale  # not x * (kept * scale): a rounded scale would make all values too large


class WindowModel(AcousticModel):
    """A model that scores one window of frames at a time; a chunk is scored as the windows of its outputs."""

    output: Linear
    xent_output: Linear

    def hidden(self, feats_BWF: Tensor) -> Tensor:
        """The last hidden layer (B, D) of windows."""
        raise NotImplementedError

    def forward(self, inputs: Tensor | ChunkInputs) -> Any:
        """Logits (B, S) float32 of windows (B, W, F) or (B, W * F); of chunks see `AcousticModel.forward`."""
        if isinstance(inputs, Tensor):
            hidden_BD = self.hidden(inputs.view(len(inputs), self.window, self.feat_dim))
            return (self.output(hidden_BD), hidden_BD) if self.with_hidden else self.output(hidden_BD)
        windows_BTWF = inputs.feats_BTF.unfold(1, self.window, self.subsampling).transpose(2, 3)
        x_BD = self.hidden(windows_BTWF.flatten(0, 1))
        return outputs_of(self, x_BD.unflatten(0, windows_BTWF.shape[:2]))

    def score_inside(self, feats_TF: Tensor) -> Tensor:
        windows_TWF = feats_TF.float().unfold(0, self.window, self.subsampling).transpose(1, 2)
        logits_TS: Tensor = self(windows_TWF.contiguous())
        return logits_TS


def windows_of(model: AcousticModel, outputs_N: Tensor, frames: int) -> Tensor:
    """Frames (N, W) of the windows of some outputs of an utterance; edge frames are repeated beyond its ends."""
    first, last = (torch.tensor([frame], device=outputs_N.device) for frame in (0, frames - 1))
    center_N = outputs_N * model.subsampling + model.center
    before, after = model.left_context + model.center, model.right_context + model.center
    return window_indices(center_N, first, last, torch.arange(-before, after + 1, device=outputs_N.device))


def add_outputs(model: AcousticModel, width: int, generator: torch.Generator) -> None:
    """Make the output layer ``output`` and, with `two_outputs`, a second one, ``xent_output``."""
    for name in model.logit_layers[: 1 + model.two_outputs]:
        layer = Linear(width, model.num_senones)
        glorot(layer, 1.0, generator)
        model.add_module(name, layer)


def outputs_of(model: Any, x_BTD: Tensor) -> Any:
    """Logits (B, T, S) of chunks from their last hidden layer; with `two_outputs` a pair."""
    outputs_BTS = model.output(x_BTD)
    return (outputs_BTS, model.xent_output(x_BTD)) if model.two_outputs else outputs_BTS


class Hidden(nn.Module):
    """Fully connected layers of some widths, the first of which is the input's: product, normalisation, activation,
    dropout.
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: Activation,
        normalization: Normalization,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
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
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x_BD = layer(x_BD, relu=True) if self.fuse_relu else self.activation(norm(layer(x_BD)))
            x_BD = self.dropout(x_BD)
        return x_BD


def glorot(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> None:
    """Initialise as Glorot and Bengio 2010, `gain` being that of He et al. 2015 for ReLU; the bias is zero."""
    nn.init.xavier_normal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def gain_of(activation: Activation) -> float:
    return math.sqrt(2) if activation == "relu" else 1.0


def norm(kind: Normalization, width: int) -> nn.Module:
    return {"none": nn.Identity, "batch": BatchNorm, "layer": nn.LayerNorm}[kind](width)


class Dnn(WindowModel):
    """``layers`` hidden layers of ``width`` units, then the logits."""

    def __init__(self, config: DnnConfig, feat_dim: int, num_senones: int, generator: torch.Generator) -> None:
        super().__init__(config, feat_dim, num_senones)
        widths = [self.window * feat_dim, *config.hidden_widths]
        self.layers = Hidden(widths, config.activation, config.normalization, config.dropout, generator)
        add_outputs(self, widths[-1], generator)

    def hidden(self, feats_BWF: Tensor) -> Tensor:
        x_BD: Tensor = self.layers(self.normalize(feats_BWF).flatten(1))
        return x_BD
