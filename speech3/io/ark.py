"""Kaldi archives: matrices of features and integer vectors of alignments.

They are read and written with the kaldi-io library, except for compressed matrices, which its version 0.9.8 cannot read
with NumPy 2.4. `CM`, for features: one byte per value, with four percentiles for each column, between which the 256
levels are spaced evenly (64 steps below the first quartile, 128 between the quartiles, 63 above). `CM2` and `CM3`: two
bytes or one byte per value, spaced evenly from the smallest value of the matrix to the largest.

Layout: Kaldi util/kaldi-holder-inl.h, matrix/kaldi-matrix.cc, matrix/compressed-matrix.{h,cc}.

Axes: T frames, F feature bins, L levels, 4 percentiles (0, 25, 75, 100).
"""

import gzip
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar, cast

import numpy as np

from speech3.errors import DataError, FormatError, Speech3Error
from speech3.runtime import atomic_path, numbered_lines, write_text

TOKENS = (b"CM ", b"CM2 ", b"CM3 ")
_HEADER = struct.Struct("<ffii")  # smallest value, range, rows, columns
_FEW_ROWS = 8  # up to this number Kaldi writes CM2: the headers of the columns would cost more than they save
_LEVELS_16 = np.float32(1 / 65535)
_PLAIN = {b"FM ": 4, b"DM ": 8}  # bytes per value
_COMPRESSED = {b"CM ": 1, b"CM2": 2, b"CM3": 1}
_TYPES = "|".join(token.decode().strip() for token in (*_PLAIN, *_COMPRESSED))
_BEGINS = re.compile(rb"\S+ (\0B(%s) |\s*\[)" % _TYPES.encode())
_INTEGERS = re.compile(rb"\S+ \0B\x04")
V = TypeVar("V")
_BINARY = b"\0B"
_LONGEST_KEY = 512  # bytes
_INTEGER = np.dtype([("size", "i1"), ("value", "<i4")])  # Kaldi writes the size in bytes before each value
_RANGE = re.compile(r"\[(\d+):(\d+)(?:,(\d+):(\d+))?\]$")  # rows, then columns; both ends are inclusive


def write_ark(
    ark: Path | str, items: Iterable[tuple[str, np.ndarray]], scp: Path | str | None = None, *, compress: bool = False
) -> int:
    """Write ``(utterance, array)`` pairs as a binary archive, optionally with its index; return their number.

    Both files appear only when everything has been written.

    Parameters
    ----------
    items
        Each with a name of its own, without spaces: float32 or float64 matrices (T, F), or vectors (T,) of integers
        of 32 bits.
    scp
        Index file to write: lines ``utterance /absolute/path.ark:offset``, sorted, whatever the order of `items`.
    compress
        Lossy compression of matrices to about one byte per value (Kaldi's ``--compress``); values that are not finite
        are errors then.

    Raises
    ------
    Speech3Error
        An array is of another kind, or a name is empty, has spaces, or occurs twice.
    """
    index: dict[str, str] = {}
    with atomic_path(ark) as temporary, temporary.open("wb") as stream:
        for utterance, array in items:
            if utterance in index:
                raise DataError(f"{ark}: {utterance} occurs a second time; give each array a name of its own")
            offset = write_entry(stream, utterance, array, compress=compress, name=ark)
            index[utterance] = index_line(utterance, ark, offset)
    if scp is not None:
        write_text(scp, "".join(sorted(index.values())))
    return len(index)


def write_entry(stream: IO[bytes], utterance: str, array: np.ndarray, *, compress: bool, name: Path | str) -> int:
    """Append one array of the archive `name` as in `write_ark`; return the offset of its value in `stream`."""
    _check_entry(utterance, array, name)
    stream.write(utterance.encode("utf-8") + b" ")
    offset = stream.tell()
    if array.ndim == 2 and compress:
        stream.write(_BINARY)
        try:
            write_compressed(stream, array)
        except ValueError as error:
            raise FormatError(f"{name}: {utterance}: {error}") from error
    elif array.ndim == 2:
        _kaldi_io.write_mat(stream, np.ascontiguousarray(array))
    else:
        rows_T = np.empty(len(array), _INTEGER)  # kaldi_io writes value by value, which takes a millisecond for 1,000
        rows_T["size"], rows_T["value"] = 4, array
        stream.write(_BINARY + b"\4" + len(array).to_bytes(4, "little") + rows_T.tobytes())
    return offset


def _check_entry(utterance: str, array: np.ndarray, name: Path | str) -> None:
    """Raise an error for what a Kaldi archive cannot hold: it would be read as something else, or not at all."""
    if utterance.split() != [utterance]:
        raise DataError(f"{name}: {utterance!r}: the name of an array must be one word without spaces")
    matrix = array.ndim == 2 and array.dtype in (np.float32, np.float64)
    vector = array.ndim == 1 and array.dtype.kind in "iu" and np.array_equal(array, array.astype(np.int32))
    if not matrix and not vector:
        raise DataError(
            f"{name}: {utterance}: an array of shape {array.shape} and type {array.dtype} cannot be written;"
            " convert it to a matrix of float32, or a vector of integers of 32 bits"
        )


def index_line(utterance: str, ark: Path | str, offset: int, *, relative: bool = False) -> str:
    """The line of an scp for an array in `ark`, with the path or, if `relative`, its name: both can then be moved."""
    place = str(Path(ark).name if relative else Path(ark).resolve())
    if "\n" in place or "\r" in place:
        raise DataError(f"{place!r}: a path with a line break cannot be written into an scp; choose another directory")
    return f"{utterance} {place}:{offset}\n"


def read_scp(path: Path | str) -> dict[str, str]:
    """Read ``key value`` lines (values may hold spaces); duplicates and empty values are errors."""
    entries: dict[str, str] = {}
    for where, line in numbered_lines(path):
        key, *rest = line.split(maxsplit=1)
        if not rest:
            raise FormatError(f"{where}: {key} has no value")
        if key in entries:
            raise FormatError(f"{where}: {key} occurs a second time; remove one of the two lines")
        entries[key] = rest[0].strip()
    return entries


def read_matrix(location: str, directory: Path) -> np.ndarray:
    """Read one matrix (float32 or float64) at a location from an scp: ``file``, ``file:offset``, ``file:offset[0:99]``.

    A relative path is relative to `directory`, that of the scp, or else to the working directory, as for audio. An
    archive that is not where its absolute path says is read beside the scp, if it is there: both were moved together.
    Messages do not name the scp and the utterance; the caller adds them.
    """
    if location.endswith("|"):
        raise DataError("reading features through a pipe is not supported; write them to an ark")
    match = _RANGE.search(location)
    try:
        with _open(location[: match.start()] if match else location, directory) as stream:
            matrix = _matrix(stream)
    except OSError as error:
        raise FormatError(f"{location}: {error.strerror}") from error
    except Exception as error:
        raise FormatError(f"{location} is truncated or not a Kaldi matrix; extract it again") from error
    return _part(matrix, match, location) if match else matrix


def _open(location: str, directory: Path) -> IO[bytes]:
    path, _, offset = location.rpartition(":")
    name, start = (path, int(offset)) if path and offset.isdigit() else (location, 0)
    file = Path(name)
    if (directory / file).exists() or not file.exists():
        moved = directory / file.name if file.is_absolute() else directory / file
        file = moved if moved.exists() else directory / file
    stream = file.open("rb")
    stream.seek(start)
    return stream


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
        raise FormatError(f"{location}: the matrix has {len(matrix)} rows and {matrix.shape[1]} columns")
    return matrix[first : last + 1, left : right + 1]


def ark_key_at(location: str, directory: Path) -> str | None:
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


def read_mat(path: Path | str) -> np.ndarray:
    """Read a file of one matrix without a key, binary or text, such as ``final.mat``."""
    try:
        return read_matrix(str(Path(path).resolve()), Path("/"))
    except Speech3Error as error:
        raise error.restated(f"{path}: {str(error).removeprefix(f'{Path(path).resolve()}: ')}") from error


def write_mat(path: Path | str, matrix: np.ndarray) -> None:
    """Write a binary file of one matrix without a key."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        _kaldi_io.write_mat(stream, np.ascontiguousarray(matrix))


def read_mat_ark(ark: Path | str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the keys and matrices of an archive, binary or text, in its order."""
    with _opened(ark, "matrices") as stream:
        while key := _key(stream):
            yield key, _matrix(stream)


@contextmanager
def _opened(ark: Path | str, what: str) -> Iterator[IO[bytes]]:
    """Open an archive; what reading it raises becomes an error that names it and says what it should hold."""
    try:
        with Path(ark).open("rb") as stream:
            yield stream
    except Speech3Error:
        raise
    except OSError as error:
        raise FormatError(f"{ark}: {error.strerror or f'{error}; make it again'}") from error
    except Exception as error:
        raise FormatError(f"{ark}: truncated or not an archive of {what}; make it again") from error


class ArkReader(Mapping[str, np.ndarray]):
    """The matrices of a ``feats.scp``, read on access; the object is small and can be pickled."""

    def __init__(self, scp: Path | str) -> None:
        self.path = Path(scp)
        self._entries = read_scp(scp)

    def __getitem__(self, utterance: str) -> np.ndarray:
        location = self._entries[utterance]
        try:
            return np.array(read_matrix(location, self.path.parent), dtype=np.float32)
        except Speech3Error as error:
            raise error.restated(f"{self.path}: {utterance}: {error}") from error

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
    vectors: dict[str, np.ndarray] = {}
    # Not kaldi_io's open_or_fd, which takes names that end in | for commands.
    with _opened(ark, "integer vectors") as raw:
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if str(ark).endswith(".gz") else raw
        while key := _key(stream):
            if key in vectors:
                raise FormatError(f"{ark}: {key} occurs a second time; make the archive again")
            start = stream.tell()
            vectors[key] = np.array(_kaldi_io.read_vec_int(stream), dtype=np.int32)
            if stream.tell() == start:  # kaldi_io takes the end of the file for an empty vector
                raise EOFError(key)
    return vectors


class IntArkReader(Mapping[str, np.ndarray]):
    """The int32 vectors of an uncompressed archive, such as ``ali.ark``, read on access."""

    def __init__(self, ark: Path | str) -> None:
        self.path = Path(ark)
        self._places: dict[str, int] = {}
        self._stream: IO[bytes] | None = None
        with _opened(ark, "integer vectors") as stream:
            size = os.fstat(stream.fileno()).st_size
            while key := _key(stream):
                if key in self._places:
                    raise FormatError(f"{ark}: {key} occurs a second time; make the archive again")
                self._places[key] = stream.tell()
                stream.seek(_INTEGER.itemsize * self._length(stream), os.SEEK_CUR)
                if stream.tell() > size:
                    raise self._damaged()

    def __getitem__(self, utterance: str) -> np.ndarray:
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
        return FormatError(f"{self.path}: truncated or not an archive of integer vectors; make it again")

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


def is_ark(head: bytes) -> bool:
    """Whether a file that begins with `head` is an archive of matrices, binary or text."""
    return _BEGINS.match(head) is not None


def is_integer_ark(head: bytes) -> bool:
    """Whether a file that begins with `head` is an archive of integer vectors, such as an alignment."""
    return _INTEGERS.match(head) is not None


def ark_entries(ark: Path) -> Iterator[tuple[str, str]]:
    """Yield each utterance and the location of its matrix (``ark:offset``); binary matrices are not read."""
    last = "its beginning"
    with _opened(ark, "matrices") as stream:
        size = os.fstat(stream.fileno()).st_size
        while key := _key(stream):
            start = stream.tell()
            try:
                _skip_value(stream)
                if stream.tell() > size:
                    raise EOFError
            except (EOFError, ValueError, struct.error) as error:
                reason = f"after {last}: truncated or not an archive of matrices"
                raise FormatError(f"{ark}: {reason}; make it again") from error
            last = key
            yield key, f"{ark.resolve()}:{start}"


def _skip_value(stream: IO[bytes]) -> None:
    start = stream.tell()
    if stream.read(len(_BINARY)) != _BINARY:
        stream.seek(start)
        _skip_text(stream)
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


def _skip_text(stream: IO[bytes]) -> None:
    line = stream.readline()
    if b"[" not in line:
        raise ValueError(line)
    while b"]" not in line:
        line = stream.readline()
        if not line:
            raise EOFError


class ComputedMapping(Mapping[str, V]):
    """Values that `function` makes of the keys whenever they are accessed, so that memory never holds them all."""

    def __init__(self, keys: Collection[str], function: Callable[[str], V]) -> None:
        self._keys, self._function = keys, function

    def __getitem__(self, key: str) -> V:
        if key not in self._keys:
            raise KeyError(key)
        return self._function(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


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


def read_compressed(token: bytes, stream: IO[bytes]) -> np.ndarray:
    """Read the matrix after its token (one of `TOKENS`), float32 (T, F).

    Raises EOFError if the stream ends within the matrix, ValueError if the header is not valid.
    """
    smallest, width, rows, columns = _HEADER.unpack(_take(stream, _HEADER.size))
    if rows < 0 or columns < 0 or not np.isfinite([smallest, width]).all():
        raise ValueError(f"a compressed matrix of {rows} by {columns} values")
    smallest, width = np.float32(smallest), np.float32(width)
    if token == b"CM2 ":
        levels_TF = np.frombuffer(_take(stream, 2 * rows * columns), "<u2").reshape(rows, columns)
        return smallest + levels_TF.astype(np.float32) * np.float32(width / 65535)
    if token == b"CM3 ":
        levels_TF = np.frombuffer(_take(stream, rows * columns), np.uint8).reshape(rows, columns)
        return smallest + levels_TF.astype(np.float32) * np.float32(width / 255)
    heads_F4 = np.frombuffer(_take(stream, 8 * columns), "<u2").reshape(columns, 4)
    levels_FT = np.frombuffer(_take(stream, rows * columns), np.uint8).reshape(columns, rows)
    table_FL = _table(_to_float(heads_F4, smallest, width))
    return np.ascontiguousarray(np.take_along_axis(table_FL, levels_FT.astype(np.intp), axis=1).T)


def write_compressed(stream: IO[bytes], feats_TF: np.ndarray) -> None:
    """Write a matrix as Kaldi's ``copy-feats --compress=true`` does: `CM`, or `CM2` if it has at most 8 rows.

    Raises ValueError if a value is not a finite number.
    """
    feats_TF = np.asarray(feats_TF, np.float32)
    rows, columns = feats_TF.shape
    if feats_TF.size == 0:
        stream.write(TOKENS[0] + _HEADER.pack(0, 0, 0, 0))
        return
    smallest, largest = feats_TF.min(), feats_TF.max()
    if not np.isfinite([smallest, largest]).all():
        raise ValueError("values that are not finite numbers cannot be compressed")
    if largest == smallest:
        largest = np.float32(smallest + 1 + abs(smallest))
    width = np.float32(largest - smallest)
    header = _HEADER.pack(smallest, width, rows, columns)
    if rows <= _FEW_ROWS:
        stream.write(TOKENS[1] + header + _to_levels(feats_TF, smallest, width).tobytes())
        return
    heads_F4 = _heads(feats_TF, smallest, width)
    levels_TF = _nearest(feats_TF, _to_float(heads_F4, smallest, width))
    stream.write(TOKENS[0] + header + heads_F4.tobytes() + np.ascontiguousarray(levels_TF.T).tobytes())


def _take(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data


def _to_float(levels: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    return smallest + width * _LEVELS_16 * levels.astype(np.float32)


def _to_levels(values: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    share = np.clip((values - smallest) / width, 0, 1)
    return ((share * np.float32(65535)).astype(np.float64) + 0.499).astype("<u2")  # 0.499 is Kaldi's


def _table(percentiles_F4: np.ndarray) -> np.ndarray:
    """(F, 256) float32: the value of each byte in each column."""
    p0, p25, p75, p100 = percentiles_F4.T[..., None]
    byte_L = np.arange(256, dtype=np.float32)

    def between(low: np.ndarray, high: np.ndarray, first: int, steps: float) -> np.ndarray:
        return low + ((high - low) * (byte_L - first)).astype(np.float64) * (1 / steps)  # rounded where Kaldi rounds

    upper = np.where(byte_L <= 192, between(p25, p75, 64, 128), between(p75, p100, 192, 63))
    return np.where(byte_L <= 64, between(p0, p25, 0, 64), upper).astype(np.float32)


def _heads(feats_TF: np.ndarray, smallest: np.float32, width: np.float32) -> np.ndarray:
    """Levels (F, 4) of the percentiles, each at least one above the previous one; needs at least nine rows."""
    rows = len(feats_TF)
    places = [0, rows // 4, 3 * (rows // 4), rows - 1]
    found_4F = _to_levels(np.partition(feats_TF, places, axis=0)[places], smallest, width).astype(np.int32)
    found_4F[0] = np.minimum(found_4F[0], 65532)
    for place, most in ((1, 65533), (2, 65534), (3, 65535)):
        found_4F[place] = np.minimum(np.maximum(found_4F[place], found_4F[place - 1] + 1), most)
    return np.ascontiguousarray(found_4F.T.astype("<u2"))


def _nearest(feats_TF: np.ndarray, percentiles_F4: np.ndarray) -> np.ndarray:
    p0, p25, p75, p100 = percentiles_F4.T

    def level(low: np.ndarray, high: np.ndarray, steps: int) -> np.ndarray:
        share = ((feats_TF - low) / (high - low) * np.float32(steps)).astype(np.float64)
        return np.clip(np.trunc(share + 0.5), 0, steps)

    upper = np.where(feats_TF < p75, 64 + level(p25, p75, 128), 192 + level(p75, p100, 63))
    return np.where(feats_TF < p25, level(p0, p25, 64), upper).astype(np.uint8)
