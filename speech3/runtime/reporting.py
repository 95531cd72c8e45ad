"""Progress for users (a bar on a terminal, plain lines elsewhere), and Ctrl-C.

Text is UTF-8 in every locale; a terminal gets what its encoding has, with replacements for the rest. Python takes the
encoding of file names, and of what it prints, from the locale: under LC_ALL=en_US.ISO-8859-1 the name of a file would
be read as other letters than it is written in, and printing a Chinese word would be an error.
"""

import codecs
import io
import locale
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")

_FIRST_SECONDS, _QUIET_SECONDS = 5.0, 10.0  # without a terminal: time until the first line, and between lines

_QUIET = "SPEECH3_QUIET"  # in the environment, so that processes that are started later are quiet, too

console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=bool(os.environ.get(_QUIET)))
_REPLACE = "speech3.replace"
_UTF8_MODE = "PYTHONUTF8"  # also tells processes that are started from this one


def be_quiet() -> None:
    """Print no progress and no notes from now on, in this process and in those that it starts."""
    os.environ[_QUIET] = "1"
    console.quiet = True


@contextmanager
def quietly() -> Iterator[None]:
    """Print nothing in the block: it says again what was said before."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before


def say(text: str) -> None:
    """Print one line of progress to standard error, leaving standard output to results."""
    console.print(text, markup=False)


def progress(
    items: Iterable[T], total: int, label: str, *, place: Callable[[T], tuple[int, str]] | None = None
) -> Iterator[T]:
    """Pass `items` through while showing how many of `total` are done, the rate and the time left.

    `place` returns, for an item, how many are done and further text to show; by default items are counted.
    """
    start = time.monotonic()
    if sys.stderr.isatty() and not console.quiet:
        label_column, rate_column = TextColumn("{task.description}"), TextColumn("{task.fields[rate]}")
        columns = (label_column, BarColumn(), MofNCompleteColumn(), rate_column, TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(label, total=total, rate="")
            for count, item in enumerate(items, 1):
                yield item
                done, words = place(item) if place else (count, "")
                bar.update(task, completed=done, rate=words or f"{done / max(time.monotonic() - start, 1e-9):.1f}/s")
        return
    # Without a terminal: a line now and then.
    following = start + min(_FIRST_SECONDS, _QUIET_SECONDS)
    since, before = start, 0
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now < following and count > 1:
            continue
        done, words = place(item) if place else (count, "")
        if now >= following:
            following = now + _QUIET_SECONDS
            if 0 < done < total:
                rate = (done - before) / max(now - since, 1e-9)
                left = f", {(total - done) / rate:.0f} s left" if count > 1 and rate else ""
                say(f"{label}: {done}/{total}, {rate:.1f}/s{words and f', {words}'}{left}")
        if count == 1:  # it may have taken as long as many others, since code is compiled and files are opened
            since, before = now, done


class Interrupt:
    pressed = False

    def __bool__(self) -> bool:
        return self.pressed


@contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Record the first Ctrl-C instead of raising; a second one raises KeyboardInterrupt as usual.

    For code that must not be interrupted: a minibatch before its checkpoint, a callback from C.
    """
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


def restart_in_utf8() -> None:
    """Begin again in Python's UTF-8 mode, if the locale is not UTF-8: a running interpreter cannot change its mode."""
    if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" or os.environ.get(_UTF8_MODE) == "1":
        return
    os.environ[_UTF8_MODE] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def suit_terminals() -> None:
    """Print in the encoding of the terminal, never with an error; elsewhere in UTF-8, or as PYTHONIOENCODING says.

    Files and pipes get UTF-8 also in locales that are not, since it is what every verb reads.
    """
    codecs.register_error(_REPLACE, _replaced)
    for stream, errors in ((sys.stdout, _REPLACE), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=_of_terminal(stream), errors=errors)


def _of_terminal(stream: TextIO) -> str | None:
    """The locale's encoding if the stream is a terminal; None keeps the stream's own."""
    if os.environ.get("PYTHONIOENCODING") or not stream.isatty() or locale.setlocale(locale.LC_CTYPE) in ("C", "POSIX"):
        return None  # a C locale says nothing about the terminal, which most likely shows UTF-8
    return locale.getencoding()


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    """Question marks; or the bytes themselves of a file's name that is not UTF-8, which Python keeps as surrogates."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    found = (bytes([ord(c) - 0xDC00]) if "\udc80" <= c <= "\udcff" else b"?" for c in letters)
    return b"".join(found), error.end
