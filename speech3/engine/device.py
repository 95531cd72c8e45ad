"""Where a run computes: the device that its config names, and PyTorch's threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from speech3.errors import Speech3Error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """PyTorch computes with so many threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_of(name: str) -> torch.device:
    """The device of that name, if this machine has it; else an error that says what it has."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Speech3Error(f"device {name!r}: no such kind of device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise Speech3Error(f"device {name!r}: training runs on cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Speech3Error(f"device {name!r}: this machine offers PyTorch {torch.cuda.device_count()} CUDA devices")
    return device


def place_of(device: str, worker: int) -> str:
    """Where a worker computes: with ``cuda`` workers take turns over all GPUs; any other device is everybody's."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device
