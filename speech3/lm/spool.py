"""Arrays stored by key, in memory up to a limit and then in a temporary directory, for sorting on disk."""

import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors

_ROOM = 1 << 28  # bytes
Key = tuple[str | int, ...]


class Spool:
    """Stores pieces of arrays under keys and returns those of a key as one array; a context manager.

    Parameters
    ----------
    room
        Bytes to keep in memory. When there are more, the pieces go to files in a directory that Python's `tempfile`
        chooses (`TMPDIR`).
    """

    def __init__(self, room: int = _ROOM) -> None:
        self._room, self._held = room, 0
        self._pieces: dict[Key, list[np.ndarray]] = defaultdict(list)
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._directory:
            self._directory.cleanup()

    def add(self, key: Key, piece: np.ndarray) -> None:
        """Append a piece to those under the key.

        Raises
        ------
        Speech3Error
            The disk is full.
        """
        self._pieces[key].append(piece)
        self._held += piece.nbytes
        if self._held > self._room:
            self._write()

    def add_split(self, name: Key, part_R: np.ndarray, rows_R: np.ndarray) -> None:
        """Append each row under the key of `name` and the row's part; the order within a part is kept."""
        sorted_R = np.argsort(part_R, kind="stable")
        rows_R, part_R = rows_R[sorted_R], part_R[sorted_R]
        bounds = [*np.flatnonzero(np.diff(part_R, prepend=-1)), len(part_R)]
        for begin, end in pairwise(bounds):
            self.add((*name, int(part_R[begin])), rows_R[begin:end].copy())

    def take(self, key: Key, dtype: np.dtype | type) -> np.ndarray:
        """Remove and return all pieces under the key as one array; empty if there are none."""
        pieces = self._pieces.pop(key, [])
        self._held -= sum(piece.nbytes for piece in pieces)
        if self._directory and (path := self._path(key)).exists():
            pieces.insert(0, np.fromfile(path, dtype))
            path.unlink()
        return np.concatenate([np.zeros(0, dtype), *pieces])

    def _path(self, key: Key) -> Path:
        assert self._directory
        return Path(self._directory.name) / "-".join(map(str, key))

    def _write(self) -> None:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="speech3-lm-")
        try:
            with explained_disk_errors(self._directory.name):
                for key, pieces in self._pieces.items():
                    with self._path(key).open("ab") as stream:
                        for piece in pieces:
                            stream.write(np.ascontiguousarray(piece).view(np.uint8).data)
        except Speech3Error as error:
            raise Speech3Error(f"{error}; or set TMPDIR to a directory with more space") from error
        self._pieces.clear()
        self._held = 0
