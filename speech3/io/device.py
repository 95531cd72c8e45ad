"""Copies from the memory of the host to that of a device."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; it is not copied if it is there.

    From the host to a GPU it goes through pinned memory, of which PyTorch keeps some at hand, to be used again when the
    copy is done. So the host does not wait for it, as it would if the copy were from ordinary memory.
    """
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
