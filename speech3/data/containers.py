"""What the header of a sound file claims, and what the file has: recorders crash, streams have no end, sizes wrap.

libsndfile believes headers, so a file whose header counts too little is read in part without a word. `examine` looks at
the structure of the file (chunks, pages, frames) without decoding it. Where the header is wrong but the sound is there,
the result has the bytes to replace (`Corrected` applies them); where sound is missing, it says how much.

Formats: RIFF, RF64, AIFF, CAF, Wave64, Sun au, NIST sphere; and those of `bitstreams`.
"""

import io
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from speech3.data.bitstreams import (
    FINE,
    SEVERAL,
    TAIL,
    Container,
    after_id3,
    examine_flac,
    examine_mp3,
    examine_ogg,
    lengths_differ,
)

STREAMED_BYTES = 0x7FFFF000  # sox, ffmpeg and others write this or more into a header that they cannot rewrite
# A recorder that is stopped loses its last buffer, which its header already counts; the speech is complete. Likewise,
# a tail of less than this that no header explains is no speech.
END_TOLERANCE_S = 0.1
_LONGEST_CHAIN = 1000  # chunks
_FIXED = (1, 3, 6, 7, 0xFFFE)  # PCM, float, A-law, mu-law, WAVE_FORMAT_EXTENSIBLE
_OTHER_CHUNKS = frozenset(
    b"LIST bext iXML axml chna fact PEAK cue smpl inst JUNK PAD FLLR DISP afsp _PMX acid levl umid".split()
) | {b"id3", b"ID3"}
_MOST_INSERTED = 4096


def examine(stream: IO[bytes]) -> Container:
    """Compare the header of a file with its content; `FINE` for formats that are not known here."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    head = stream.read(16)
    if head.startswith(b"ID3") and (after := after_id3(head)) < size:
        stream.seek(after)
        kind = stream.read(4)
        return examine_flac(stream, size, after) if kind == b"fLaC" else examine_mp3(stream, size, after)
    if head.startswith(b"OggS"):
        return examine_ogg(stream, size)
    if head.startswith(b"fLaC"):
        return examine_flac(stream, size, 0)
    if head.startswith(b"NIST"):
        return _nist(stream, size)
    if head.startswith(b".snd") or head.startswith(b"dns."):
        return _au(stream, size, ">" if head.startswith(b".snd") else "<")
    if len(head) > 1 and head[0] == 0xFF and head[1] >= 0xE0:
        return examine_mp3(stream, size, 0)
    layout = next((each for each in _LAYOUTS if head.startswith(each.magic)), None)
    return _chunked(stream, size, layout) if layout else FINE


class Corrected(io.RawIOBase):
    """A file as its header should have it, to be read by libsndfile."""

    def __init__(self, stream: IO[bytes], container: Container) -> None:
        super().__init__()
        self._stream, self._container = stream, container
        end = container.end or stream.seek(0, io.SEEK_END)
        self._size = end - container.skipped + len(container.prefix)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        prefix = self._container.prefix
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        begin = self._at + self._container.skipped - len(prefix)  # in the file
        content = bytearray(prefix[self._at : self._at + len(view)])
        if len(content) < len(view):
            self._stream.seek(begin + len(content))
            content += self._stream.read(len(view) - len(content))
        for offset, replacement in self._container.replaced:
            for place, value in enumerate(replacement, offset - begin):
                if 0 <= place < len(content) and place + self._at >= len(prefix):
                    content[place] = value
        view[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _sized(claimed: int, found: int, per_second: int, replaced: tuple[tuple[int, bytes], ...]) -> Container:
    """The result for a format whose header has the number of bytes; `replaced` corrects it."""
    if claimed >= STREAMED_BYTES and claimed > found:
        claim = f"its header lacks its length; it has {found} bytes of audio"
        return Container(claim=lengths_differ(None, found / per_second) if per_second else claim, replaced=replaced)
    if claimed > found + 1:  # + 1: the padding of an odd chunk
        problem = f"is cut short: its header promises {claimed} bytes of audio, but there are {found}"
        return Container((claimed - found) / per_second if per_second else math.inf, problem)
    if claimed >= found or (claimed and per_second and found - claimed < END_TOLERANCE_S * per_second):
        return FINE
    claim = f"its header says {claimed} bytes of audio, but there are {found}"
    return Container(
        claim=lengths_differ(claimed / per_second, found / per_second) if per_second else claim, replaced=replaced
    )


# Formats that are made of chunks.


@dataclass(frozen=True)
class _Layout:
    """How chunks are stored: where the first begins, the size of identifiers, the format of lengths, the alignment."""

    magic: bytes
    first: int
    identifier: int
    length: str
    alignment: int
    data: bytes
    counts_header: bool = False


_LAYOUTS = (
    _Layout(b"RIFF", 12, 4, "<I", 2, b"data"),
    _Layout(b"RIFX", 12, 4, ">I", 2, b"data"),
    _Layout(b"RF64", 12, 4, "<I", 2, b"data"),
    _Layout(b"FORM", 12, 4, ">I", 2, b"SSND"),
    _Layout(b"caff", 8, 4, ">q", 1, b"data"),
    _Layout(b"riff\x2e\x91\xcf\x11", 40, 16, "<Q", 8, b"data", counts_header=True),
)


@dataclass(frozen=True)
class _Chunk:
    identifier: bytes
    length_at: int
    begin: int
    length: int
    after: int


def _chunks(stream: IO[bytes], size: int, layout: _Layout, first: int) -> Iterator[_Chunk]:
    position, width = first, struct.calcsize(layout.length)
    for _ in range(_LONGEST_CHAIN):
        if position > size:  # perhaps too far for `seek`
            return
        stream.seek(position)
        head = stream.read(layout.identifier + width)
        if len(head) < layout.identifier + width:
            return
        (length,) = struct.unpack(layout.length, head[layout.identifier :])
        begin = position + len(head)
        length = size - begin if length < 0 else length - len(head) * layout.counts_header
        after = begin + length + -length % layout.alignment
        yield _Chunk(head[: layout.identifier], position + layout.identifier, begin, length, after)
        if after <= position:
            return
        position = after


def _chunked(stream: IO[bytes], size: int, layout: _Layout) -> Container:
    per_second, block, wide = 0, 1, None
    for chunk in _chunks(stream, size, layout, layout.first):
        stream.seek(chunk.begin)
        name = chunk.identifier[:4].strip().lower()
        if chunk.identifier.startswith(layout.data):
            return _data(stream, size, layout, chunk, wide, (per_second, block))
        head = stream.read(min(max(chunk.length, 0), 64))
        if name == b"ds64" and len(head) >= 16:
            wide = chunk.begin + 8, int.from_bytes(head[8:16], "little")
        elif name == b"fmt" and len(head) >= 14:
            order = ">" if layout.magic == b"RIFX" else "<"
            tag, rate_hz, per_second, block = struct.unpack(f"{order}H2xIIH", head[:14])
            if tag in _FIXED and block:  # their bytes per second are often wrong in the header
                per_second = rate_hz * block
        elif name == b"comm" and len(head) >= 18:
            per_second, block = _of_aiff(head)
        elif name == b"desc" and len(head) >= 32:
            per_second, block = _of_caf(head)
    return FINE


def _of_aiff(head: bytes) -> tuple[int, int]:
    channels, _, bits, exponent, mantissa = struct.unpack(">HIHHQ", head[:18])
    block, shift = channels * ((bits + 7) // 8), 16383 + 63 - (exponent & 0x7FFF)
    packed = head[18:22] not in (b"", b"NONE", b"sowt", b"twos", b"raw ")
    return (0, 1) if packed or not 0 <= shift < 64 else (block * (mantissa >> shift), max(block, 1))


def _of_caf(head: bytes) -> tuple[int, int]:
    rate_hz, _, _, packet, _, _, _ = struct.unpack(">d4sIIIII", head[:32])
    usable = packet and math.isfinite(rate_hz) and head[8:12] == b"lpcm"
    return (round(rate_hz * packet), packet) if usable else (0, 1)


def is_other_chunk(data: bytes) -> bool:
    """Whether these bytes begin a chunk of a wav file that does not hold its sound."""
    return data[:4].strip() in _OTHER_CHUNKS or not any(data[:1024])


def _data(
    stream: IO[bytes], size: int, layout: _Layout, chunk: _Chunk, wide: tuple[int, int] | None, rate: tuple[int, int]
) -> Container:
    begin, claimed, (per_second, block) = chunk.begin, chunk.length, rate
    replaceable, format_ = chunk.length_at, layout.length
    if wide and claimed >= 0xFFFFFFFF:  # RF64
        (replaceable, claimed), format_ = wide, "<Q"
    end = size
    if 0 < claimed <= size - begin:
        after = begin + claimed + -claimed % layout.alignment
        stream.seek(after)
        if stream.read(len(layout.magic)) == layout.magic:
            return Container(claim=SEVERAL.format("recordings"), end=after)
        if _explained(stream, size, layout, begin + claimed, after):
            return FINE
        end = _before_tags(stream, size)
    found = end - begin
    found -= found % max(block, 1)
    extra = 8 if layout.magic == b"FORM" else 0  # SSND begins with an offset and a block size
    correct = found + (struct.calcsize(layout.length) + layout.identifier) * layout.counts_header
    if format_.endswith("I"):
        correct = min(correct, 0xFFFFFFFF)
    at = ((replaceable, struct.pack(format_, correct)),)
    return _sized(max(claimed - extra, 0), max(found - extra, 0), per_second, at)


def _explained(stream: IO[bytes], size: int, layout: _Layout, end: int, after: int) -> bool:
    """Whether other chunks, text, zeros or nothing follow the claimed end of the sound."""
    if size - end <= layout.alignment:
        return True
    for first in {after, end}:  # some programs forget the padding
        last = None
        for last in _chunks(stream, size, layout, first):
            if not all(32 <= byte < 127 for byte in last.identifier[:4]) or last.length < 0:
                break
        else:
            if last and _ends_file(last, size):
                return True
    stream.seek(end)
    block = stream.read(1 << 12)
    if sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in block) > 0.95 * len(block):
        return True  # a text that some program appended
    while block and block.count(0) == len(block):
        block = stream.read(1 << 20)
    return not block


def _ends_file(last: _Chunk, size: int) -> bool:
    known = last.identifier[:4].strip() in _OTHER_CHUNKS
    return last.begin <= size <= last.after and (known or last.after - size <= 8)


def _before_tags(stream: IO[bytes], size: int) -> int:
    """Where the sound ends, in a file whose sizes wrapped at 4 GB: before a list of tags that ends with the file."""
    start = max(0, size - TAIL)
    stream.seek(start)
    tail, found = stream.read(), size
    for name in (b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML", b"_PMX", b"cue ", b"JUNK"):
        place = tail.rfind(name)
        if 0 <= place <= len(tail) - 8:
            (length,) = struct.unpack_from("<I", tail, place + 4)
            if start + place + 8 + length + length % 2 in (found, found + 1):
                found = start + place
    return found


def _au(stream: IO[bytes], size: int, order: str) -> Container:
    stream.seek(4)
    head = stream.read(20)
    if len(head) < 20:
        return FINE
    begin, claimed, encoding, rate_hz, channels = struct.unpack(f"{order}5I", head)
    per_second = rate_hz * channels * {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}.get(encoding, 0)
    found = max(size - begin, 0)
    return _sized(claimed, found, per_second, ((8, struct.pack(f"{order}I", min(found, 0xFFFFFFFF))),))


def _nist(stream: IO[bytes], size: int) -> Container:
    fields, header = _nist_fields(stream)
    if "," in fields.get("sample_coding", ""):  # compressed: sample_count does not say how many bytes
        return FINE
    try:
        count, rate_hz = int(fields.get("sample_count", "0")), int(fields.get("sample_rate", "0"))
        sample = int(fields.get("sample_n_bytes", "1")) * int(fields.get("channel_count", "1"))
    except ValueError:
        return FINE
    # libsndfile reads to the end of the file, whatever the header says, so that there is nothing to replace.
    return _sized(count * sample, max(size - header, 0), rate_hz * sample, ())


def _nist_fields(stream: IO[bytes]) -> tuple[dict[str, str], int]:
    stream.seek(0)
    lines = stream.read(1024).decode("latin-1").split("\n")
    fields = {parts[0]: parts[2] for line in lines if len(parts := line.split(None, 2)) == 3}
    return fields, int(lines[1]) if len(lines) > 1 and lines[1].strip().isdecimal() else 0


# The samples of uncompressed files.


@dataclass(frozen=True)
class Pcm16:
    """Where the 16-bit samples of a file are, and their byte order (``<`` or ``>``); `claimed`: bytes by its header."""

    begin: int
    end: int
    claimed: int | None
    channels: int
    order: str
    rate_hz: int


def pcm16(stream: IO[bytes]) -> Pcm16 | None:
    """The 16-bit samples of a wav or NIST sphere file; None for other formats."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    head = stream.read(16)
    if head.startswith(b"NIST"):
        return _pcm16_of_nist(stream, size)
    layout = next((each for each in _LAYOUTS[:3] if head.startswith(each.magic)), None)
    if layout is None:
        return None
    order, about = ">" if layout.magic == b"RIFX" else "<", None
    for chunk in _chunks(stream, size, layout, layout.first):
        if chunk.identifier == b"data" and about:
            known = 0 < chunk.length < STREAMED_BYTES
            # A few bytes more than the header says may have been put in; more are other chunks.
            inserted = 0 if _next_chunk(stream, chunk) else _MOST_INSERTED
            end = min(size, chunk.begin + chunk.length + inserted) if known else size
            return Pcm16(chunk.begin, end, chunk.length if known else None, about[0], order, about[1])
        if chunk.identifier == b"fmt ":
            stream.seek(chunk.begin)
            fields = stream.read(16)
            if len(fields) < 16:
                return None
            tag, channels, rate_hz, _, bits = struct.unpack(f"{order}HHIIxxH", fields)
            if tag not in (1, 0xFFFE) or bits != 16 or not channels or not rate_hz:
                return None
            about = channels, rate_hz
    return None


def _next_chunk(stream: IO[bytes], chunk: _Chunk) -> bool:
    stream.seek(chunk.after)
    return stream.read(4).strip() in _OTHER_CHUNKS


def _pcm16_of_nist(stream: IO[bytes], size: int) -> Pcm16 | None:
    fields, header = _nist_fields(stream)
    try:
        count, rate_hz = int(fields.get("sample_count", "0")), int(fields["sample_rate"])
        channels, width = int(fields.get("channel_count", "1")), int(fields.get("sample_n_bytes", "0"))
    except (KeyError, ValueError):
        return None
    order = {"01": "<", "10": ">"}.get(fields.get("sample_byte_format", "").strip())
    if width != 2 or not order or fields.get("sample_coding", "pcm").strip() != "pcm" or channels < 1 or rate_hz < 1:
        return None
    return Pcm16(header, size, 2 * count * channels or None, channels, order, rate_hz) if 0 < header < size else None
