"""Kaldi archives: matrices of features and integer vectors of alignments.

They are read and written with the kaldi-io library, except for compressed matrices (`io.compressed`), which its version
0.9.8 cannot read with NumPy 2.4.
"""

import gzip
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path, write_text
from speech3.io.compressed import TOKENS, read_compressed, write_compressed
from speech3.io.text import read_utf8


def _import_kaldi_io():  # type: ignore[no-untyped-def]
    # When imported, kaldi_io warns about a missing KALDI_ROOT and adds guessed directories of Kaldi programs to PATH.
    saved = {name: os.environ.get(name) for name in ("KALDI_ROOT", "PATH")}
    os.environ["KALDI_ROOT"] = "/"
    try:
        import kaldi_io
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    return kaldi_io


_kaldi_io = _import_kaldi_io()
_BINARY = b"\0B"
_LONGEST_KEY = 512  # bytes
_INTEGER = np.dtype([("size", "i1"), ("value", "<i4")])  # Kaldi writes the size in bytes before each value
_RANGE = re.compile(r"\[(\d+):(\d+)(?:,(\d+):(\d+))?\]$")  # rows, then columns; both ends are inclusive


def write_ark(
    ark: Path | str,
    items: Iterable[tuple[str, np.ndarray]],
    scp: Path | str | None = None,
    *,
    compress: bool = False,
) -> int:
    """Write ``(utterance, array)`` pairs as a binary archive, optionally with its index; return their number.

    Both files appear only when everything has been written.

    Parameters
    ----------
    items
        float32 or float64 matrices (T, F), or int32 vectors (T,).
    scp
        Index file to write: lines ``utterance /absolute/path.ark:offset``, sorted, whatever the order of `items`.
    compress
        Lossy compression of matrices to about one byte per value (Kaldi's ``--compress``).

    Raises
    ------
    Speech3Error
        A value to be compressed is not a finite number, the disk is full, or the directory is not writable.
    """
    index: list[str] = []
    with atomic_path(ark) as temporary, temporary.open("wb") as stream:
        for utterance, array in items:
            offset = write_entry(stream, utterance, array, compress=compress, name=ark)
            index.append(index_line(utterance, ark, offset))
    if scp is not None:
        write_text(scp, "".join(sorted(index)))
    return len(index)


def write_entry(stream: IO[bytes], utterance: str, array: np.ndarray, *, compress: bool, name: Path | str) -> int:
    """Append one array of the archive `name` as in `write_ark`; return the offset of its value in `stream`."""
    stream.write(utterance.encode("utf-8") + b" ")
    offset = stream.tell()
    if array.ndim == 2 and compress:
        stream.write(_BINARY)
        try:
            write_compressed(stream, array)
        except ValueError as error:
            raise Speech3Error(f"{name}: {utterance}: {error}") from error
    elif array.ndim == 2:
        _kaldi_io.write_mat(stream, np.ascontiguousarray(array))
    else:
        rows_T = np.empty(len(array), _INTEGER)  # kaldi_io writes value by value, which takes a millisecond for 1,000
        rows_T["size"], rows_T["value"] = 4, array
        stream.write(_BINARY + b"\4" + len(array).to_bytes(4, "little") + rows_T.tobytes())
    return offset


def index_line(utterance: str, ark: Path | str, offset: int, *, relative: bool = False) -> str:
    """The line of an scp for an array in `ark`, with the path or, if `relative`, its name: both can then be moved."""
    ark = Path(ark)
    return f"{utterance} {ark.name if relative else ark.resolve()}:{offset}\n"


def read_scp(path: Path | str) -> dict[str, str]:
    """Read ``key value`` lines (values may hold spaces); duplicates and empty values are errors."""
    entries: dict[str, str] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        if not line.strip():
            continue
        key, *rest = line.split(maxsplit=1)
        if not rest:
            raise Speech3Error(f"{path}:{number}: {key} has no value")
        if key in entries:
            raise Speech3Error(f"{path}:{number}: {key} occurs a second time; remove one of the two lines")
        entries[key] = rest[0].strip()
    return entries


def read_matrix(location: str, directory: Path) -> np.ndarray:
    """Read one matrix (float32 or float64) at a location from an scp: ``file``, ``file:offset``, ``file:offset[0:99]``.

    A relative path is relative to `directory`, that of the scp, or else to the working directory, as for audio.

    Raises
    ------
    Speech3Error
        The message does not name the scp and the utterance; the caller adds them.
    """
    if location.endswith("|"):
        raise Speech3Error("reading features through a pipe is not supported; write them to an ark")
    match = _RANGE.search(location)
    try:
        with _open(location[: match.start()] if match else location, directory) as stream:
            matrix = _matrix(stream)
    except OSError as error:
        raise Speech3Error(f"{location}: {error.strerror}") from error
    except Exception as error:
        raise Speech3Error(f"{location} is truncated or not a Kaldi matrix; extract it again") from error
    return _part(matrix, match, location) if match else matrix


def _open(location: str, directory: Path) -> IO[bytes]:
    path, _, offset = location.rpartition(":")
    name, start = (path, int(offset)) if path and offset.isdigit() else (location, 0)
    file = Path(name)
    if (directory / file).exists() or not file.exists():
        file = directory / file
    stream = file.open("rb")
    stream.seek(start)
    return stream


def key_at(location: str, directory: Path) -> str | None:
    """The key of the archive entry at ``file:offset``; None if there is no offset or no key stands before it."""
    match = _RANGE.search(location)
    location = location[: match.start()] if match else location
    path, _, offset = location.rpartition(":")
    if not (path and offset.isdigit() and int(offset)):
        return None
    try:
        with _open(f"{path}:{max(0, int(offset) - _LONGEST_KEY)}", directory) as stream:
            before = stream.read(min(int(offset), _LONGEST_KEY))
    except OSError:
        return None
    key = re.search(rb"([^\s\0]+) $", before)
    return key[1].decode("utf-8", errors="replace") if key else None


def _matrix(stream: IO[bytes]) -> np.ndarray:
    start = stream.tell()
    if stream.read(len(_BINARY)) == _BINARY and (token := _key(stream).encode() + b" ") in TOKENS:
        return read_compressed(token, stream)
    stream.seek(start)
    return np.array(_kaldi_io.read_mat(stream))


def _part(matrix: np.ndarray, match: re.Match[str], location: str) -> np.ndarray:
    first, last = int(match[1]), int(match[2])
    left, right = (int(match[3]), int(match[4])) if match[3] else (0, matrix.shape[1] - 1)
    # Like Kaldi, allow a range up to three rows beyond the end: features and segments are rounded differently.
    if not (first <= last < len(matrix) + 3 and first < len(matrix) and left <= right < matrix.shape[1]):
        raise Speech3Error(f"{location}: the matrix has {len(matrix)} rows and {matrix.shape[1]} columns")
    return matrix[first : last + 1, left : right + 1]


class ArkReader(Mapping[str, np.ndarray]):
    """The matrices of a ``feats.scp``, read on access; the object is small and can be pickled."""

    def __init__(self, scp: Path | str) -> None:
        self.path = Path(scp)
        self._entries = read_scp(scp)

    def __getitem__(self, utterance: str) -> np.ndarray:
        """Matrix (T, F) float32 of one utterance; KeyError if the scp lacks it."""
        location = self._entries[utterance]
        try:
            return np.array(read_matrix(location, self.path.parent), dtype=np.float32)
        except Speech3Error as error:
            raise Speech3Error(f"{self.path}: {utterance}: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def not_finite(feats_TF: np.ndarray) -> str:
    """What in a matrix is not a finite number, for a message; empty if everything is."""
    bad_TF = ~np.isfinite(feats_TF)
    if not bad_TF.any():
        return ""
    frame, value = np.argwhere(bad_TF)[0].tolist()
    many = f"{int(bad_TF.any(1).sum())} of {len(feats_TF)} frames have such values"
    return f"value {value} of frame {frame} is {feats_TF[frame, value]} ({many})"


def read_int_ark(ark: Path | str) -> dict[str, np.ndarray]:
    """Read all int32 vectors of an archive, such as ``ali.ark`` (gzipped if the name ends in .gz)."""
    vectors = {}
    try:
        # Not kaldi_io's open_or_fd, which takes names that end in | for commands.
        with Path(ark).open("rb") as raw:
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if str(ark).endswith(".gz") else raw
            while key := _key(stream):
                if key in vectors:
                    raise Speech3Error(f"{ark}: {key} occurs a second time; make the archive again")
                start = stream.tell()
                vectors[key] = np.array(_kaldi_io.read_vec_int(stream), dtype=np.int32)
                if stream.tell() == start:  # kaldi_io takes the end of the file for an empty vector
                    raise EOFError(key)
    except Speech3Error:
        raise
    except OSError as error:
        raise Speech3Error(f"{ark}: {error.strerror or f'{error}; make it again'}") from error
    except Exception as error:
        raise Speech3Error(f"{ark}: truncated or not an archive of integer vectors; make it again") from error
    return vectors


class IntArkReader(Mapping[str, np.ndarray]):
    """The int32 vectors of an uncompressed archive, such as ``ali.ark``, read on access; memory has only their offsets.

    Raises
    ------
    Speech3Error
        As `read_int_ark`.
    """

    def __init__(self, ark: Path | str) -> None:
        self.path = Path(ark)
        self._places: dict[str, int] = {}
        self._stream: IO[bytes] | None = None
        try:
            with self.path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                while key := _key(stream):
                    if key in self._places:
                        raise Speech3Error(f"{ark}: {key} occurs a second time; make the archive again")
                    self._places[key] = stream.tell()
                    stream.seek(_INTEGER.itemsize * self._length(stream), os.SEEK_CUR)
                    if stream.tell() > size:
                        raise self._damaged()
        except OSError as error:
            raise Speech3Error(f"{ark}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise self._damaged() from error

    def __getitem__(self, utterance: str) -> np.ndarray:
        """Vector (T,) int32 of one utterance; KeyError if the archive lacks it."""
        place = self._places[utterance]
        if self._stream is None:
            self._stream = self.path.open("rb")  # closed when the reader is dropped
        self._stream.seek(place)
        length = self._length(self._stream)
        rows_T = np.frombuffer(self._stream.read(_INTEGER.itemsize * length), _INTEGER)
        if len(rows_T) != length or (rows_T["size"] != _INTEGER["value"].itemsize).any():
            raise self._damaged()
        return rows_T["value"].astype(np.int32)

    def _length(self, stream: IO[bytes]) -> int:
        head = stream.read(len(_BINARY) + _INTEGER.itemsize)
        if len(head) < len(_BINARY) + _INTEGER.itemsize or not head.startswith(_BINARY + b"\4"):
            raise self._damaged()
        return int.from_bytes(head[-4:], "little")

    def _damaged(self) -> Speech3Error:
        return Speech3Error(f"{self.path}: truncated or not an archive of integer vectors; make it again")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_stream": None}


def _key(stream: IO[bytes]) -> str:
    letters = bytearray()
    while (byte := stream.read(1)) not in (b"", b" "):
        letters += byte
    return letters.strip().decode("utf-8")
