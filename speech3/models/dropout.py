"""Dropout (Srivastava et al. 2014) whose random numbers cost a byte a unit, not a float.

`nn.Dropout` draws its mask number by number on a CPU, which takes as long as the products of the layer. Here 64 random
bits decide over eight units, so the probability is a multiple of 1/256, and the scale is that of the rounded one.
"""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Zero each value with (nearly) probability `p` in training and scale the others so that the mean stays."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * p), 255)  # of 256

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if not self.training or not self.dropped:
            return x
        bits = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        keep = bits.view(torch.uint8)[: x.numel()].view(x.shape) >= self.dropped
        kept, scale = keep.to(x.dtype), 256 / (256 - self.dropped)
        if x.dtype in (torch.float32, torch.float64):
            return x * kept.mul_(scale)
        return x * kept * scale  # each value is rounded, not the scale, by which all of them would be too large
