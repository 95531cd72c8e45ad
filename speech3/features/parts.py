"""What a killed extraction leaves for the next one: the bytes of finished units, and a journal of them.

Hidden beside the file in the making, ``.NAME.parts`` grows unit by unit, and ``.NAME.journal`` has a line of JSON for
the work's fingerprint, then one for each unit: what is known of it, where its bytes end, their CRC-32. What was cut
short or does not match is done again, with all that follows it. A run that ends well renames the parts, and removes
the journal.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from speech3 import __version__
from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.corpus.paths import resolve
from speech3.errors import Speech3Error
from speech3.features.augmenter import Augmenter
from speech3.io.atomic import explained_disk_errors
from speech3.io.progress import say

_FORMAT = 1


class Parts:
    """The parts of `target`, open and locked; `open_parts` makes one.

    Attributes
    ----------
    units, position
        Finished units, and the bytes of all of them.
    """

    def __init__(self, target: Path, journal: IO[bytes], data: IO[bytes]) -> None:
        self.target, self.units, self.position = target, 0, 0
        self._journal, self._data = journal, data

    def taken_over(self, fingerprint: str) -> Iterator[dict[str, Any]]:
        """What is known of each unit that a killed run of the same work finished; what comes after them is cut off."""
        self._journal.seek(0)
        head = {"fingerprint": fingerprint}
        whole, first = 0, _line(self._journal)
        if first == head:
            whole = self._journal.tell()
            while (record := _line(self._journal)) is not None and self._matches(record):
                whole, self.position = self._journal.tell(), record["end"]
                self.units += 1
                yield record
        elif self._journal.seek(0, os.SEEK_END):
            say(f"{self.target}: what an interrupted run of another config or of other data left is not used")
        with explained_disk_errors(self.target):
            for stream, end in ((self._data, self.position), (self._journal, whole)):
                stream.truncate(end)
                stream.seek(end)
            if not whole:
                self._write_line(head)

    def _matches(self, record: dict[str, Any]) -> bool:
        size = record["end"] - self.position
        data = self._data.read(size)
        return len(data) == size and zlib.crc32(data) == record["crc"]

    def append(self, data: bytes, record: dict[str, Any]) -> None:
        """Add a unit; once this returns, a kill does not lose it.

        Raises
        ------
        Speech3Error
            The disk is full.
        """
        with explained_disk_errors(self.target):
            self._data.write(data)
            self._data.flush()
            self.position += len(data)
            self.units += 1
            self._write_line({**record, "end": self.position, "crc": zlib.crc32(data)})

    def _write_line(self, record: dict[str, Any]) -> None:
        self._journal.write(json.dumps(record).encode() + b"\n")
        self._journal.flush()

    def finish(self) -> None:
        """Give the units their name."""
        with explained_disk_errors(self.target):
            _parts(self.target).replace(self.target)

    def remove(self) -> None:
        """Leave nothing behind."""
        _parts(self.target).unlink(missing_ok=True)
        _journal(self.target).unlink(missing_ok=True)


@contextlib.contextmanager
def open_parts(target: Path) -> Iterator[Parts]:
    """Open the parts of `target`, which are made if there are none.

    Raises
    ------
    Speech3Error
        Another process has them open; the directory cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with explained_disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            journal = _journal(target).open("a+b")
            stack.callback(_close, journal)
            _lock(journal, target)
            data = _parts(target).open("a+b")
            stack.callback(_close, data)
            data.seek(0)
        yield Parts(target, journal, data)


def fingerprint(
    data: DataDir, units: Iterable[list[str]], config: FeatureConfig, compress: bool, augmenter: Augmenter | None = None
) -> str:
    """Tells one extraction from another: config, augmentation, utterances, size and time of all files.

    Of a pipe only the command is known.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(value: object) -> None:
        digest.update(json.dumps(value).encode() + b"\n")

    add([_FORMAT, __version__, config.model_dump(mode="json"), compress])
    files: dict[str, Path] = {}
    if augmenter:
        sounds = (*augmenter.noises, *augmenter.babblers, *augmenter.responses)  # voices are of `data`
        add([augmenter.config.model_dump(mode="json"), augmenter.seed, *(sound.location for sound in sounds)])
        for sound in sounds:
            if not sound.location.endswith("|"):
                files[f"{sound.directory}: {sound.location}"] = resolve(sound.location, sound.directory)
    for ids in units:
        for key in ids:
            utt = data.utterances[key]
            archives = data.feats.get(key, ""), data.cmvn.get(utt.speaker, "")
            places = [data.recordings.get(utt.recording, ""), *archives]
            add([key, utt.start_s, utt.end_s, *places])
            for name in (places[0], *(re.sub(r"(:\d+)?(\[[^\]]*\])?$", "", place) for place in archives)):
                if name and not name.endswith("|") and name not in files:
                    files[name] = resolve(name, data.path)
        add(len(ids))
    for path in files.values():
        try:
            status = path.stat()
        except OSError:  # whoever wants to read it will say so
            continue
        add([str(path), status.st_size, status.st_mtime_ns])
    return digest.hexdigest()


def _journal(target: Path) -> Path:
    return target.with_name(f".{target.name}.journal")


def _parts(target: Path) -> Path:
    return target.with_name(f".{target.name}.parts")


def _line(stream: IO[bytes]) -> dict[str, Any] | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:  # power failed while the line was on its way to the disk
        return None
    return record if isinstance(record, dict) else None


def _lock(journal: IO[bytes], target: Path) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.fstat(journal.fileno()).st_ino == _journal(target).stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        mine = False
    if not mine:  # or it was removed by one that has just finished
        raise Speech3Error(f"{target}: another run is at work on it; wait for it, or choose another output directory")


def _close(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # a full disk, which a write has told of
        stream.close()
