"""Compiled loops (numba), the memory of this process, and copies to devices.

Training allocates and frees the same megabytes in every minibatch. glibc returns them to the kernel, which clears them
page by page when they are allocated again: 670 to 2,250 page faults and a tenth of the time of a minibatch of a 4 x 512
network. `keep_freed_memory` prevents that.
"""

import ctypes
import functools
from typing import TYPE_CHECKING

import numba
from numba.core import event

from speech3.runtime.reporting import say

if TYPE_CHECKING:  # PyTorch takes seconds, and language models and lexicons need compiled loops alone
    import torch
    from torch import Tensor

# Cached on disk, run without the interpreter's lock, and with NumPy's division by zero instead of an exception.
# Functions that need other options (``fastmath``, ``inline``) call `numba.njit` themselves.
jit = numba.njit(cache=True, nogil=True, error_model="numpy")

_COMPILING = "numba:compile"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class _Notice(event.Listener):
    def __init__(self, text: str) -> None:
        self.text = text

    def on_start(self, event: event.Event) -> None:
        if self.text:  # functions are also compiled within functions
            text, self.text = self.text, ""
            say(text)

    def on_end(self, event: event.Event) -> None:
        pass


@functools.cache
def announce_compiling(what: str) -> None:
    """Print a line, once per process, as soon as a function is compiled because the cache does not have it."""
    notice = f"compiling {what}, which is done once and may take half a minute"
    event.register(_COMPILING, _Notice(notice))


def keep_freed_memory() -> None:
    """Raise glibc's thresholds (mallopt(3)); do nothing with another C library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest value that glibc accepts
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def to_device(tensor: "Tensor", device: "torch.device") -> "Tensor":
    """A tensor on a device; it is not copied if it is already there.

    A copy from the host to a GPU goes through pinned memory, which PyTorch caches and reuses when the copy is done.
    Thus the host does not wait for the copy, as it would with ordinary memory.
    """
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
