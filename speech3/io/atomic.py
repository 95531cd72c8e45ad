"""Atomic writes: to a temporary name, which is then renamed, so that a reader sees the old file or the new one."""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speech3.errors import Speech3Error
from speech3.io.text import read_utf8


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it to `path` if the block succeeds, else remove it.

    Raises
    ------
    Speech3Error
        The disk is full or the directory is not writable; an existing file at `path` is unchanged.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
            raise Speech3Error(
                f"{path}: no space left on the disk; free some space and run the same command again"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            raise Speech3Error(
                f"{path}: cannot be written ({error.strerror}); choose another output directory"
            ) from error
        raise


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: Path | str, lines: Iterable[str]) -> None:
    """Write lines, each with its newline, as UTF-8 text, atomically and without holding them all in memory."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        stream.writelines(lines)


def write_json(path: Path | str, value: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read JSON; a missing or invalid file raises a `Speech3Error` that names it."""
    try:
        return json.loads(read_utf8(path))
    except json.JSONDecodeError as error:
        raise Speech3Error(f"{path}: not valid JSON ({error}); make it again") from error
