"""Transcripts and alignments of a large corpus: memory holds only a string, or a file offset, for each utterance.

Axes: P phone segments, T frames.
"""

import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import IO, cast

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.alignment import Alignment
from speech3.io.atomic import explained_disk_errors

_IN_MEMORY = 64 << 20  # bytes of alignments; beyond that, they go to a temporary file
_HEAD = struct.Struct("<iid")  # P, T, score


class WordLists(MutableMapping[str, list[str]]):
    """The words of each utterance. Lists of strings would take ten times the memory of the text."""

    def __init__(self, words: Iterable[tuple[str, list[str]]] = ()) -> None:
        self._texts = {utterance: " ".join(each) for utterance, each in words}

    def __getitem__(self, utterance: str) -> list[str]:
        return self._texts[utterance].split()

    def __setitem__(self, utterance: str, words: list[str]) -> None:
        self._texts[utterance] = " ".join(words)

    def __delitem__(self, utterance: str) -> None:
        del self._texts[utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class StoredAlignments(MutableMapping[str, Alignment]):
    """Alignments in a file; those of a small corpus stay in memory.

    Parameters
    ----------
    path
        The file. Without it, a temporary one is used, and the object can be pickled only while it is empty.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._places: dict[str, int] = {}
        self._stream: IO[bytes] | None = None

    def opened(self) -> IO[bytes]:
        """The file, which stays open even if it is deleted."""
        if self._stream is None:
            if self.path:
                self._stream = self.path.open("r+b" if self._places else "w+b")
            else:
                spooled = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="speech3-ali-")  # noqa: SIM115  # `clear`
                self._stream = cast(IO[bytes], spooled)
        return self._stream

    def __getitem__(self, utterance: str) -> Alignment:
        stream, place = self.opened(), self._places[utterance]
        stream.seek(place)
        segments, frames, score = _HEAD.unpack(stream.read(_HEAD.size))
        content = stream.read(4 * (3 * segments + 1) + frames)
        numbers = np.frombuffer(content, np.int32, 3 * segments + 1)
        phones, words, starts = np.split(numbers, [segments, 2 * segments])
        return Alignment(phones, words, starts, np.frombuffer(content, np.int8, frames, numbers.nbytes), score)

    def __setitem__(self, utterance: str, found: Alignment) -> None:
        stream = self.opened()
        numbers = np.concatenate([found.phones, found.words, found.starts]).astype(np.int32, copy=False)
        head = _HEAD.pack(len(found.phones), found.num_frames, found.score)
        try:
            with explained_disk_errors(self.path or tempfile.gettempdir()):
                self._places[utterance] = stream.seek(0, 2)
                stream.write(head + numbers.tobytes() + found.states.astype(np.int8, copy=False).tobytes())
        except Speech3Error as error:
            raise Speech3Error(f"{error}; or set TMPDIR to a directory with more space") from error

    def __delitem__(self, utterance: str) -> None:
        del self._places[utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """Remove all alignments and their file's content."""
        self._places = {}
        if self._stream is not None:
            self._stream.seek(0)
            self._stream.truncate()

    def __getstate__(self) -> dict[str, object]:
        if self._stream is not None:
            if self.path is None and self._places:
                raise TypeError("alignments in a temporary file cannot be sent to another process")
            self._stream.flush()
        return {**self.__dict__, "_stream": None}


class Merged(Mapping[str, Alignment]):
    """The alignments of several stores, sorted by utterance; their files may be deleted."""

    def __init__(self, stores: Iterable[StoredAlignments]) -> None:
        store_of = {}
        for store in stores:
            store.opened()
            store_of.update(dict.fromkeys(store, store))
        self._store_of = dict(sorted(store_of.items()))

    def __getitem__(self, utterance: str) -> Alignment:
        return self._store_of[utterance][utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store_of)

    def __len__(self) -> int:
        return len(self._store_of)
