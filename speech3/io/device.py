"""Copies from host memory to device memory."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; it is not copied if it is already there.

    A copy from the host to a GPU goes through pinned memory, which PyTorch caches and reuses when the copy is done.
    Thus the host does not wait for the copy, as it would with ordinary memory.
    """
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
