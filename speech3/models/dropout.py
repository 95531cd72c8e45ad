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

    @property
    def scale(self) -> float:
        """The factor of the values that are kept."""
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
