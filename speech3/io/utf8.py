"""Text is UTF-8 in every locale; a terminal gets what its encoding has, with replacements for the rest.

Python takes the encoding of file names, and of what it prints, from the locale. Under LC_ALL=en_US.ISO-8859-1 the name
of a file would be read as other letters than it is written in, and printing a Chinese word would be an error.
"""

import codecs
import io
import locale
import os
import sys
from typing import TextIO

_ERRORS = "speech3.replace"
_MODE = "PYTHONUTF8"  # also tells processes that are started from this one


def restart_in_utf8() -> None:
    """Begin again in Python's UTF-8 mode, if the locale is not UTF-8: a running interpreter cannot change its mode."""
    if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" or os.environ.get(_MODE) == "1":
        return
    os.environ[_MODE] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def suit_terminals() -> None:
    """Print in the encoding of the terminal, never with an error; elsewhere in UTF-8, or as PYTHONIOENCODING says.

    Files and pipes get UTF-8 also in locales that are not, since it is what every verb reads.
    """
    codecs.register_error(_ERRORS, _replaced)
    for stream, errors in ((sys.stdout, _ERRORS), (sys.stderr, "backslashreplace")):
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
