"""Tokens, numbers and vectors of Kaldi's object files (`final.mdl`, `tree`), binary or text (Kaldi base/io-funcs)."""

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from speech3.errors import FormatError

_WORD = re.compile(rb"\s*(\S+)\s?")
_VECTORS = {b"FV": "<f4", b"DV": "<f8"}
_NAME_LENGTH = 40


class KaldiObject:
    """A cursor in such a file. Unexpected content raises a ValueError; `opened_object` adds the file name."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self.binary = data[:2] == b"\0B"
        self._at = 2 if self.binary else 0

    def token(self) -> str:
        match = _WORD.match(self._data, self._at)
        if not match:
            raise ValueError("it ends where a token was expected")
        self._at = match.end()
        return match[1][:_NAME_LENGTH].decode("utf-8", errors="replace")

    def expect(self, *tokens: str) -> str:
        """The next word, which must be one of these."""
        found = self.token()
        if found not in tokens:
            raise ValueError(f"{found!r} where {' or '.join(tokens)} was expected")
        return found

    def integer(self) -> int:
        if not self.binary:
            return _int32(self.token())
        if self._byte() not in (4, 252):  # the size, negative for unsigned
            raise ValueError("no integer where one was expected")
        return int(np.frombuffer(self._take(4), "<i4")[0])

    def real(self) -> float:
        if not self.binary:
            return float(self.token())
        size = self._byte()
        if size not in (4, 8):
            raise ValueError("no number where one was expected")
        return float(np.frombuffer(self._take(size), f"<f{size}")[0])

    def integers(self) -> list[int]:
        if not self.binary:
            return [_int32(word) for word in self._bracketed()]
        if self._byte() != 4:
            raise ValueError("no vector of integers where one was expected")
        return np.frombuffer(self._take(4 * self._size()), "<i4").tolist()

    def vector(self) -> np.ndarray:
        if not self.binary:
            return np.array(self._bracketed(), dtype=np.float64)
        kind = _VECTORS.get(self.token().encode())
        if kind is None or self._byte() != 4:
            raise ValueError("no vector where one was expected")
        return np.frombuffer(self._take(np.dtype(kind).itemsize * self._size()), kind).astype(np.float64)

    def _bracketed(self) -> list[str]:
        self.expect("[")
        words = []
        while (word := self.token()) != "]":
            words.append(word)
        return words

    def _size(self) -> int:
        size = int(np.frombuffer(self._take(4), "<i4")[0])
        if size < 0:
            raise ValueError("a vector of negative length")
        return size

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) != size:
            raise ValueError("it is truncated")
        self._at += size
        return data


def _int32(word: str) -> int:
    """An integer of a text file, which has to fit into those of a binary one."""
    value = int(word)
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{word} is not an integer of 32 bits")
    return value


@contextmanager
def opened_object(path: Path | str, what: str, remedy: str) -> Iterator[KaldiObject]:
    """Open a file without reading all of it (in a `final.mdl` the acoustic model follows the transitions).

    If it is missing, or the block finds it invalid, the error is ``PATH: not WHAT, or damaged (why); REMEDY``.
    """
    try:
        with Path(path).open("rb") as stream:
            empty = not stream.seek(0, 2)
            if empty:
                raise ValueError("it is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield KaldiObject(data)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not {what}, or damaged ({error}); {remedy}") from error
