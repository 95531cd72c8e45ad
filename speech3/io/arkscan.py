"""Finds the matrices of an archive without its scp, by seeking from header to header.

Layout: Kaldi util/kaldi-holder-inl.h, matrix/kaldi-matrix.cc, matrix/compressed-matrix.cc.
"""

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from speech3.errors import Speech3Error

_PLAIN = {b"FM ": 4, b"DM ": 8}  # bytes per value
_COMPRESSED = {b"CM ": 1, b"CM2": 2, b"CM3": 1}
_TYPES = "|".join(token.decode().strip() for token in (*_PLAIN, *_COMPRESSED))
_BEGINS = re.compile(rb"\S+ (\0B(%s) |\s*\[)" % _TYPES.encode())
_INTEGERS = re.compile(rb"\S+ \0B\x04")


def is_ark(head: bytes) -> bool:
    """Whether a file that begins with `head` is an archive of matrices, binary or text."""
    return _BEGINS.match(head) is not None


def is_integer_ark(head: bytes) -> bool:
    """Whether a file that begins with `head` is an archive of integer vectors, such as an alignment."""
    return _INTEGERS.match(head) is not None


def ark_entries(ark: Path) -> Iterator[tuple[str, str]]:
    """Yield each utterance and the location of its matrix (``ark:offset``); binary matrices are not read.

    Raises
    ------
    Speech3Error
        The archive is truncated or holds something other than matrices.
    """
    last = "its beginning"
    try:
        with ark.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            while (key := _key(stream)) is not None:
                start = stream.tell()
                _hop(stream)
                if stream.tell() > size:
                    raise EOFError
                last = key
                yield key, f"{ark.resolve()}:{start}"
    except OSError as error:
        raise Speech3Error(f"{ark}: {error.strerror}") from error
    except (EOFError, ValueError, struct.error) as error:
        raise Speech3Error(f"{ark}: after {last}: truncated or not an archive of matrices; make it again") from error


def _key(stream: IO[bytes]) -> str | None:
    letters = bytearray()
    while (byte := stream.read(1)) != b" ":
        if not byte:
            if letters.strip():
                raise EOFError
            return None
        letters += byte
    return letters.strip().decode("utf-8")


def _hop(stream: IO[bytes]) -> None:
    """Seek from the beginning of a value to its end."""
    start = stream.tell()
    if stream.read(2) != b"\0B":
        stream.seek(start)
        _hop_text(stream)
        return
    token = stream.read(3)
    if token in _PLAIN:
        sizes = struct.unpack("<BiBi", stream.read(10))
        if min(sizes) < 0:
            raise ValueError(sizes)
        stream.seek(_PLAIN[token] * sizes[1] * sizes[3], os.SEEK_CUR)
    elif token in _COMPRESSED:
        if token != b"CM ":
            stream.read(1)
        _, _, rows, columns = struct.unpack("<ffii", stream.read(16))
        if min(rows, columns) < 0:
            raise ValueError(rows, columns)
        heads = 8 * columns if token == b"CM " else 0
        stream.seek(heads + _COMPRESSED[token] * rows * columns, os.SEEK_CUR)
    else:
        raise ValueError(token)


def _hop_text(stream: IO[bytes]) -> None:
    line = stream.readline()
    if b"[" not in line:
        raise ValueError(line)
    while b"]" not in line:
        line = stream.readline()
        if not line:
            raise EOFError
