"""Copies from the memory of the host to that of a device."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; where that is the CPU it is not copied.

    The host does not wait for the copy, as it would if the GPU had to be given ordinary memory piece by piece: it goes
    through pinned memory, of which PyTorch keeps some at hand, and which it uses again when the copy is done.
    """
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
