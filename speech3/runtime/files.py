"""What is written to disk: files replaced whole, records appended and read while they grow, directories of one writer.

A file is written to a temporary name, which is then renamed, so a reader sees the old file or the new one. All verbs
check by `check_output` that an output replaces neither an input nor files of another kind.
"""

import errno
import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from speech3.errors import FormatError, MachineError, OccupiedError, SettingError
from speech3.runtime.text import read_utf8

_LONGEST = 200  # bytes of a name to which something is added: names have at most 255
# The place is a user's mistake: no permission, another kind of file, a name that is too long, links in a circle.
_UNUSABLE = {errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR}
_UNUSABLE |= {errno.ENAMETOOLONG, errno.ELOOP}


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it to `path` if the block succeeds, else remove it.

    If the disk is full or the directory is not writable, that is a `Speech3Error`, and a file at `path` is unchanged.
    """
    path = Path(path)
    if not path.name:
        raise SettingError(f"{path}: is a directory; pass the name of a file")
    name = path.name if len(os.fsencode(path.name)) <= _LONGEST else f"{zlib.crc32(os.fsencode(path.name)):08x}"
    temporary = path.with_name(f".{name}.{os.getpid()}.tmp")
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def explained_disk_errors(path: Path | str) -> Iterator[None]:
    """Turn a full disk or a lack of permission while `path` is being written into a `Speech3Error`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise MachineError(
                f"{path}: no space left on the disk; free some space and run the same command again"
            ) from error
        if error.errno in _UNUSABLE:
            raise MachineError(
                f"{path}: cannot be written ({error.strerror}); choose another output directory"
            ) from error
        raise


def write_text(path: Path | str, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write lines, each with its newline, as UTF-8 text, atomically and without holding them all in memory."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def content_digest(path: Path) -> str:
    """A digest of a file's content, by which a later run knows whether somebody has changed the file."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def read_json(path: Path | str) -> Any:
    """Read JSON; a missing or invalid file raises a `Speech3Error` that names it."""
    try:
        return json.loads(read_utf8(path))
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}: not valid JSON ({error}); make it again") from error


class Metrics:
    """Appends JSON objects to `path`, one per line, each with the time in seconds since 1970."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with explained_disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._end_cut_line()

    def write(self, **values: Any) -> None:
        """Append one record, in a single write, so that a killed run leaves complete lines."""
        line = json.dumps({"time": round(time.time(), 3), **values}) + "\n"
        with explained_disk_errors(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(line)

    def _end_cut_line(self) -> None:
        # A full disk may leave an incomplete line, to which the next record must not be appended.
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with self.path.open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


@dataclass(frozen=True)
class Appended:
    """The result of one `Tail.read`."""

    # The file was replaced or truncated since the last reading, so records read earlier are no longer valid.
    afresh: bool
    records: tuple[dict[str, Any], ...] = ()  # new records, in the order of the file
    damaged: tuple[int, ...] = ()  # numbers (from 1) of new lines that are not JSON objects


class Tail:
    """Reads the records appended to `path` since the last reading; a file that does not exist yet counts as empty.

    An incomplete last line is read when it is complete.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._stream: BinaryIO | None = None
        self._rest, self._lines = b"", 0  # the text after the last complete line, and the number of lines so far

    def __enter__(self) -> "Tail":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream:
            self._stream.close()
        self._stream = None

    def read(self) -> Appended:
        """Read from where the last reading ended, or from the beginning of a file that was replaced or truncated."""
        try:
            afresh = self._reopen()
            new = self._stream.read() if self._stream else b""
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be read ({error.strerror})") from error
        *lines, self._rest = (self._rest + new).split(b"\n")
        records, damaged = [], []
        for number, line in enumerate(lines, self._lines + 1):
            record = _parsed(line)
            if record is not None:
                records.append(record)
            elif line.strip():
                damaged.append(number)
        self._lines += len(lines)
        # The beginning of a JSON object is never itself valid, so this line lacks only its newline.
        whole = _parsed(self._rest)
        if whole is not None:
            records.append(whole)
            self._rest = b""
        return Appended(afresh, tuple(records), tuple(damaged))

    def _reopen(self) -> bool:
        """Open the file that is now at the path; return whether it is another one than before, or was truncated."""
        try:
            there = self.path.stat()
        except FileNotFoundError:
            had = self._stream is not None
            self.close()
            self._forget()
            return had
        if self._stream is None:
            self._stream = self.path.open("rb")
            return False
        # While the file is open, its inode number cannot be reused by another one.
        if not os.path.samestat(os.fstat(self._stream.fileno()), there):
            self.close()
            self._stream = self.path.open("rb")
        elif there.st_size < self._stream.tell():
            self._stream.seek(0)
        else:
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        self._rest, self._lines = b"", 0


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """The records of a ``metrics.jsonl``, none if there is no such file; incomplete lines are skipped."""
    with Tail(path) as tail:
        return list(tail.read().records)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:  # invalid JSON or UTF-8
        return None
    return record if isinstance(record, dict) else None


@contextmanager
def locked_directory(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a directory, which is made if there is none; the lock is released if this process is killed.

    If another process holds it, the error is `busy`. On a file system without locks, nothing is locked.
    """
    with explained_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY)  # not inherited by workers, which may briefly survive this process
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OccupiedError(busy) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def check_output(
    out: Path,
    inputs: Iterable[Path | None] = (),
    written: Sequence[str] = (),
    *,
    marks: Collection[str] = (),
    not_in: Iterable[tuple[str, Sequence[str]]] = (),
    kind: tuple[str, Callable[[Path], bool]] | None = None,
    option: str = "",
) -> None:
    """Refuse an output that would replace an input, or files that belong to something else; nothing is written.

    Parameters
    ----------
    out
        The file that will be written, or with `written` the directory.
    inputs
        Files and directories that are read and must stay as they are; None, and files that do not exist, are skipped.
    written
        The files and directories that will be written, or removed, in `out`; patterns such as ``*.json`` are expanded.
    marks
        Names in `out`, of which any earlier output has at least one: without them, files that exist are the user's.
    not_in
        What `out` may not hold, and the files by which that is known, such as `speech3.io.A_MODEL`.
    kind
        What the file is, such as ``an ARPA file``, and whether a file is one: another file is not replaced.
    option
        What comes before the path in messages, such as ``--out ``.
    """
    given = [path for path in inputs if path is not None]
    if any(_same(out, path) for path in given):
        raise OccupiedError(f"{option}{out}: is one of the inputs; choose another place")
    if not written:
        if out.exists() and not out.is_file():  # a device would be replaced by a file, too
            what = "is a directory" if out.is_dir() else "is not an ordinary file"
            raise OccupiedError(f"{option}{out}: {what}; pass the name of a file")
        if kind and out.exists() and out.stat().st_size and not kind[1](out):
            raise OccupiedError(f"{option}{out}: exists and is not {kind[0]}; move it away, or choose another name")
        return
    if out.exists() and not out.is_dir():
        raise OccupiedError(f"{option}{out}: is a file; expected a directory: choose another name")
    for what, files in not_in:
        if any((out / name).exists() for name in files):
            raise OccupiedError(f"{option}{out}: holds {what}; choose another directory")
    places = [place for name in written for place in sorted(out.glob(name))]
    for place in places:
        if any(_same(place, path) or _inside(path, place) for path in given):
            raise OccupiedError(
                f"{option}{place}: is one of the inputs, or holds one, and would be replaced; choose another directory"
            )
    if places and marks and not any((out / mark).exists() for mark in marks):
        raise OccupiedError(
            f"{option}{places[0]}: exists, and is not from an earlier run of this command; move it away, or choose"
            " another directory"
        )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)  # also by links, and in another letter case where that does not matter
    except OSError:  # one of them does not exist
        return False


def _inside(path: Path, directory: Path) -> bool:
    return path.exists() and any(_same(parent, directory) for parent in path.resolve().parents)
