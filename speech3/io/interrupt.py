"""Defers Ctrl-C while code runs that must not be interrupted: a minibatch before its checkpoint, a callback from C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """True once Ctrl-C has been pressed."""

    pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Record the first Ctrl-C instead of raising; a second one raises KeyboardInterrupt as usual."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
