"""Reads a file of JSON records, one per line, while another process appends to it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from speech3.errors import Speech3Error


@dataclass(frozen=True)
class Appended:
    """The result of one `Tail.read`.

    Attributes
    ----------
    afresh
        The file was replaced or truncated since the last reading, so records read earlier are no longer valid.
    records
        New records, in the order of the file.
    damaged
        Numbers (from 1) of new lines that are not JSON objects.
    """

    afresh: bool
    records: tuple[dict[str, Any], ...] = ()
    damaged: tuple[int, ...] = ()


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._stream:
            self._stream.close()
        self._stream = None

    def read(self) -> Appended:
        """Read from where the last reading ended, or from the beginning of a file that was replaced or truncated.

        Raises
        ------
        Speech3Error
            The file cannot be read.
        """
        try:
            afresh = self._reopen()
            new = self._stream.read() if self._stream else b""
        except OSError as error:
            raise Speech3Error(f"{self.path}: cannot be read ({error.strerror})") from error
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


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:  # invalid JSON or UTF-8
        return None
    return record if isinstance(record, dict) else None
