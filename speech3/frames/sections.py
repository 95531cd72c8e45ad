"""A file of named sections: written once, read through a memory map, checksummed block by block.

Layout (little endian): a header of 4,096 bytes (magic, version, position and checksum of the footer), then the
sections, each at a multiple of 64 bytes, then one CRC-32 for each block of 1 MiB of the sections, then the footer:
JSON with the writer's description and the position of each section. Opening reads only footer and checksums.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from speech3.errors import Speech3Error
from speech3.io.progress import progress

_MAGIC = b"SP3FRAME"
_VERSION = 1
_HEAD = struct.Struct("<8sIQQI")
HEAD_BYTES = 4096
BLOCK_BYTES = 1 << 20
_ALIGN = 64
_SHOWN_BLOCKS = 256  # verifying more blocks takes long enough for a progress bar
_RELEASED_BLOCKS = 64
_SCATTERED_BYTES = 1 << 30  # smaller files are soon completely in memory


@dataclass(frozen=True, eq=False)
class Sections:
    """An open file of sections.

    Attributes
    ----------
    about
        The writer's description of the content.
    checksum
        Checksum of the table of checksums, which identifies the content.
    size, mtime_ns
        Size and time of modification of the mapped file, which may no longer be the one at `path`.
    """

    path: Path
    about: dict[str, Any]
    checksum: int
    size: int
    mtime_ns: int
    _places: dict[str, tuple[int, int]]
    _checksums: np.ndarray
    _map: mmap.mmap
    _raw: np.ndarray

    def array(self, name: str, dtype: str) -> np.ndarray:
        """A section as a view into the memory map.

        Raises
        ------
        Speech3Error
            The section does not hold a whole number of such values, or lies outside the file.
        """
        start, size = self._places[name]
        if size % np.dtype(dtype).itemsize or start + size > self.size:
            raise Speech3Error(f"{self.path}: section {name} does not match its description; pack the file again")
        return self._raw[start : start + size].view(dtype)

    def block_of(self, name: str, offset: int) -> int:
        """Number of the block that holds byte `offset` of a section."""
        return (self._places[name][0] + offset - HEAD_BYTES) // BLOCK_BYTES

    def verify(self) -> None:
        """Compare every block with its checksum, in constant memory.

        Raises
        ------
        Speech3Error
            The message names the file, the first block at fault and its bytes.
        """
        count = len(self._checksums)
        blocks = progress(range(count), count, f"verify {self.path.name}") if count > _SHOWN_BLOCKS else range(count)
        end = max(start + size for name, (start, size) in self._places.items() if name != "checksums")
        self._map.madvise(mmap.MADV_NORMAL)
        for block in blocks:
            start = HEAD_BYTES + block * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, end)
            if zlib.crc32(self._raw[start:stop].data) != self._checksums[block]:
                raise Speech3Error(
                    f"{self.path}: block {block} of {count} (bytes {start} to {stop - 1}) does not "
                    f"match its checksum: the file is damaged; pack it again"
                )
            if (block + 1) % _RELEASED_BLOCKS == 0:
                self.release()
        self.expect_scattered_reads()

    def release(self) -> None:
        """Release the memory of the pages read; they stay in the system's cache while there is room."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def expect_scattered_reads(self) -> None:
        """Turn off read-ahead for a large file: reading 128 kB around each frame was 100 times slower."""
        if self.size > _SCATTERED_BYTES:
            self._map.madvise(mmap.MADV_RANDOM)

    def read_ahead(self, name: str, start: int, stop: int) -> None:
        """Let the system read bytes `start` up to `stop` of a section in the background."""
        at = self._places[name][0]
        first = (at + start) // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, first, at + stop - first)


def open_sections(path: Path) -> Sections:
    """Memory-map a file of sections.

    Raises
    ------
    Speech3Error
        The file is missing, of another kind or version, truncated, or its footer or table of checksums is damaged.
    """
    if not path.is_file():
        raise Speech3Error(f"{path}: no such file; make it with speech3 pack, or with a recipe's stage train")
    with path.open("rb") as stream:
        status = os.fstat(stream.fileno())
        head = stream.read(_HEAD.size)
        if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
            raise Speech3Error(f"{path}: not a file of packed frames")
        _, version, start, length, crc = _HEAD.unpack(head)
        if version != _VERSION:
            raise Speech3Error(f"{path}: format {version}, but this speech3 reads {_VERSION}; pack it again")
        if status.st_size < start + length:
            block = max(0, status.st_size - HEAD_BYTES) // BLOCK_BYTES
            raise Speech3Error(
                f"{path}: truncated in block {block}: {status.st_size} bytes of {start + length}; pack it again"
            )
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    footer = mapped[start : start + length]
    if zlib.crc32(footer) != crc:
        raise Speech3Error(f"{path}: the footer does not match its checksum: the file is damaged; pack it again")
    about = json.loads(footer)
    raw = np.frombuffer(mapped, np.uint8)
    places = {name: (at, size) for name, (at, size) in about.pop("sections").items()}
    at, size = places["checksums"]
    table = raw[at : at + size]
    checksum = about.pop("checksums_crc")
    if zlib.crc32(table.data) != checksum:
        raise Speech3Error(f"{path}: the table of checksums is damaged; pack it again")
    sections = Sections(
        path=path, about=about, checksum=checksum, size=status.st_size, mtime_ns=status.st_mtime_ns,
        _places=places, _checksums=table.view("<u4"), _map=mapped, _raw=raw,
    )  # fmt: skip
    sections.expect_scattered_reads()
    return sections


class SectionWriter:
    """Writes sections one after the other, with a checksum for each block; `close` completes the file.

    Parameters
    ----------
    stream
        A new file, open for writing.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.position, self.crc = HEAD_BYTES, 0
        self.checksums: list[int] = []
        self.places: dict[str, tuple[int, int]] = {}
        stream.write(bytes(HEAD_BYTES))

    def section(self, name: str, parts: Iterable[bytes]) -> None:
        """Write one section, given in parts."""
        self.write(bytes(-self.position % _ALIGN))
        start = self.position
        for part in parts:
            self.write(part)
        self.places[name] = (start, self.position - start)

    def write(self, data: bytes) -> None:
        """Append to the current section."""
        self.stream.write(data)
        view = memoryview(data)
        while view:
            room = BLOCK_BYTES - (self.position - HEAD_BYTES) % BLOCK_BYTES
            self.crc = zlib.crc32(view[:room], self.crc)
            self.position += len(view[:room])
            if (self.position - HEAD_BYTES) % BLOCK_BYTES == 0:
                self.checksums.append(self.crc)
                self.crc = 0
            view = view[room:]

    def close(self, about: dict[str, Any]) -> None:
        """Write checksums and footer, then the header, without which the file cannot be opened."""
        if (self.position - HEAD_BYTES) % BLOCK_BYTES:
            self.checksums.append(self.crc)
        table = np.array(self.checksums, "<u4").tobytes()
        start = self.position + -self.position % _ALIGN
        self.stream.write(bytes(start - self.position) + table)
        sections = {**self.places, "checksums": (start, len(table))}
        footer = json.dumps({**about, "sections": sections, "checksums_crc": zlib.crc32(table)}).encode("utf-8")
        self.stream.write(footer)
        self.stream.seek(0)
        self.stream.write(_HEAD.pack(_MAGIC, _VERSION, start + len(table), len(footer), zlib.crc32(footer)))
        self.stream.flush()
        os.fsync(self.stream.fileno())
