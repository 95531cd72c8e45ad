"""Where and how a run computes: the device that its config names, PyTorch's threads, the precision of products.

PyTorch's own default on a GPU is mixed: convolutions round their inputs to tf32 (10 bits of mantissa), matrix products
do not. Here both do, or neither; that is set nowhere else. Of the precisions, ``float32`` and ``bf16`` leave tf32 off:
what autocast does not cover is exact.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from speech3.config import TrainingConfig
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


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Products and convolutions of float32 values on GPUs, in this process, as ``training.precision`` has it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_precision(name)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def use_precision(name: str) -> None:
    """The same for the rest of a worker's process."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"


def autocast_of(training: TrainingConfig) -> torch.dtype | None:
    """To which type the inputs of products are rounded in forward and backward passes; None: to none."""
    return torch.bfloat16 if training.precision == "bf16" else None


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
