"""How a run computes: the device that its config names, PyTorch's threads, and the precision of matrix products.

PyTorch's own default on a GPU is mixed: convolutions round their inputs to tf32 (10 bits of mantissa), matrix products
do not. Here either both do or neither does, and no other module sets this. With the precisions ``float32`` and
``bf16``, tf32 is off, so operations that autocast does not cover are computed in full float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from speech3.config import TrainingConfig
from speech3.errors import Speech3Error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Context in which PyTorch uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Context in which float32 products and convolutions on GPUs have the precision ``training.precision``."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_precision(name)
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def use_precision(name: str) -> None:
    """Set the precision for the rest of this process, which is a worker."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"


def autocast_of(training: TrainingConfig) -> torch.dtype | None:
    """Type to which the inputs of products are rounded in forward and backward passes; None: they are not rounded."""
    return torch.bfloat16 if training.precision == "bf16" else None


def device_of(name: str) -> torch.device:
    """The device with this name; raises `Speech3Error` if this machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise Speech3Error(f"device {name!r}: no such kind of device; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise Speech3Error(f"device {name!r}: training runs only on cpu and cuda; use one of these")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        usable = f"use cuda:0 to cuda:{count - 1}" if count > 1 else "use cuda:0" if count else "use cpu"
        raise Speech3Error(f"device {name!r}: PyTorch finds {count or 'no'} GPU{'s' * (count != 1)} here; {usable}")
    return device


def use_device(name: str) -> None:
    """Make a GPU the current one of this process, a worker; otherwise libraries would use the first GPU as well."""
    if name.startswith("cuda"):
        torch.cuda.set_device(name)


def device_for(device: str, worker: int) -> str:
    """The device of a worker: ``cuda`` distributes workers over all GPUs; any other device is the same for all."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device
