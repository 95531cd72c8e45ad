"""Dropout (Srivastava et al. 2014) that draws one random byte per unit instead of a float.

On a CPU `nn.Dropout` draws its mask number by number, which takes as long as the products of the layer. Here 64 random
bits decide on eight units, so the probability is rounded to a multiple of 1/256, and the scale matches that.
"""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training, zero each value with (nearly) probability `p` and scale the others so that the mean is kept."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropped = min(round(256 * p), 255)  # of 256

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape."""
        if not self.training or not self.dropped:
            return x
        bits = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        keep = bits.view(torch.uint8)[: x.numel()].view(x.shape) >= self.dropped
        kept, scale = keep.to(x.dtype), 256 / (256 - self.dropped)
        if x.dtype in (torch.float32, torch.float64):
            return x * kept.mul_(scale)
        return x * kept * scale  # not x * (kept * scale): a rounded scale would make all values too large
