"""What a killed extraction leaves for the next run: the bytes of the finished units, and a journal of them.

Both are hidden files beside the output. ``.NAME.parts`` grows unit by unit. ``.NAME.journal`` has a line of JSON with
the fingerprint of the work, then one for each unit: its record, where its bytes end, and their CRC-32. A unit that was
cut short or does not match its CRC is computed again, as are all units after it. A run that succeeds renames the parts
and removes the journal.
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
from speech3.augment.augmenter import Augmenter
from speech3.config import FeatureConfig
from speech3.corpus.datadir import DataDir
from speech3.corpus.paths import resolve
from speech3.errors import Speech3Error
from speech3.io.atomic import explained_disk_errors
from speech3.io.progress import say

_FORMAT = 2


class Parts:
    """The parts of `target`, open and locked. Made by `open_parts`.

    Attributes
    ----------
    units, position
        Number of finished units, and of their bytes.
    """

    def __init__(self, target: Path, journal: IO[bytes], data: IO[bytes]) -> None:
        self.target, self.units, self.position = target, 0, 0
        self._journal, self._data = journal, data

    def taken_over(self, fingerprint: str) -> Iterator[dict[str, Any]]:
        """Yield the record of each unit that a killed run of the same work finished; truncate anything after them."""
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
            say(f"{self.target}: not resuming an interrupted run, which had another config or other data")
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
        """Add a unit; once this returns, it survives a kill of the process.

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
        """Rename the parts to the target."""
        with explained_disk_errors(self.target):
            _parts(self.target).replace(self.target)

    def remove(self) -> None:
        """Delete the parts, unless renamed, and the journal."""
        _parts(self.target).unlink(missing_ok=True)
        _journal(self.target).unlink(missing_ok=True)


@contextlib.contextmanager
def open_parts(target: Path) -> Iterator[Parts]:
    """Open the parts of `target`, creating them if there are none.

    Raises
    ------
    Speech3Error
        Another process has them open; the directory cannot be written to.
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
    """Hash that identifies an extraction: config, augmentation, utterances, size and modification time of all files.

    Of a pipe only the command counts.
    """
    digest = hashlib.blake2b(digest_size=16)

    def add(value: object) -> None:
        digest.update(json.dumps(value).encode() + b"\n")

    add([_FORMAT, __version__, config.model_dump(mode="json"), compress])
    files: dict[str, Path] = {}
    if augmenter:
        sounds = (*augmenter.noises, *augmenter.babblers, *augmenter.responses)  # the voices are utterances of `data`
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
        except OSError:  # reported when the file is read
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
    except ValueError:  # the power failed while the line was being written
        return None
    return record if isinstance(record, dict) else None


def _lock(journal: IO[bytes], target: Path) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = os.fstat(journal.fileno()).st_ino == _journal(target).stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        mine = False
    if not mine:  # locked by another run, or removed by one that has just finished
        raise Speech3Error(
            f"{target}: another run is writing it; wait for that to finish, or choose another output directory"
        )


def _close(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # a full disk, which a write has already reported
        stream.close()
