"""How the loops over integers and costs are compiled (numba)."""

import functools

import numba
from numba.core import event

from speech3.io.progress import say

# Cached on disk, run without the interpreter's lock, and with NumPy's division by zero instead of an exception.
# Functions that need other options (``fastmath``, ``inline``) call `numba.njit` themselves.
jit = numba.njit(cache=True, nogil=True, error_model="numpy")

_COMPILING = "numba:compile"


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
