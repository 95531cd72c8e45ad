"""The lock of a directory that only one process at a time may write."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors


@contextmanager
def locked_directory(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a directory, which is made if there is none; the lock is released if this process is killed.

    On a file system without locks, nothing is locked.

    Raises
    ------
    Speech3Error
        Another process holds the lock (the message is `busy`), or the directory cannot be made.
    """
    with explained_disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY)  # not inherited by workers, which may briefly survive this process
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Speech3Error(busy) from error
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
