"""What the header of a sound file claims, and what the file has: recorders crash, streams have no end, sizes wrap.

libsndfile believes headers, so a file whose header counts too little is read in part without a word. `examine` looks at
the structure of the file (chunks, pages, frames) without decoding it. Where the header is wrong but the sound is there,
the result has the bytes to replace (`Corrected` applies them); where sound is missing, it says how much.

Formats: RIFF, RF64, AIFF, CAF, Wave64, Sun au, NIST sphere, Ogg (RFC 3533), FLAC (RFC 9639), MP3 (with the first frame
of Xing and LAME, http://gabriel.mp3-tech.org/mp3infotag.html).
"""

import functools
import io
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

STREAMED_BYTES = 0x7FFFF000  # sox, ffmpeg and others write this or more into a header that they cannot rewrite
# A recorder that is stopped loses its last buffer, which its header already counts; the speech is complete. Likewise,
# a tail of less than this that no header explains is no speech.
END_TOLERANCE_S = 0.1
_TAIL = 1 << 17  # bytes; a page of Ogg has at most 65,307
_LONGEST_CHAIN = 1000  # chunks
_XING_FRAMES, _XING_BYTES = 1, 2
_SEVERAL = "it is several {} in a row, of which only the first is read: split it, or convert it"
_FIXED = (1, 3, 6, 7, 0xFFFE)  # PCM, float, A-law, mu-law, WAVE_FORMAT_EXTENSIBLE
_OTHER_CHUNKS = frozenset(
    b"LIST bext iXML axml chna fact PEAK cue smpl inst JUNK PAD FLLR DISP afsp _PMX acid levl umid".split()
) | {b"id3", b"ID3"}
_MOST_INSERTED = 4096


@dataclass(frozen=True)
class Container:
    """What `examine` found."""

    # Seconds that were promised but are missing at the end; infinite if it is not known how many.
    missing_s: float = 0.0
    problem: str = ""  # what is missing, if something is
    claim: str = ""  # how the header's length differs from what there is; empty if it does not
    # prefix, skipped, replaced: bytes to put in place of the first `skipped` ones, then those to replace, with
    # their offsets in the file.
    prefix: bytes = b""
    skipped: int = 0
    replaced: tuple[tuple[int, bytes], ...] = ()
    end: int | None = None  # where the sound ends, if libsndfile must not see what follows it

    @property
    def corrected(self) -> bool:
        """Whether libsndfile has to read the file through `Corrected`."""
        return bool(self.prefix or self.replaced or self.end)


FINE = Container()


def examine(stream: IO[bytes]) -> Container:
    """Compare the header of a file with its content; `FINE` for formats that are not known here."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    head = stream.read(16)
    if head.startswith(b"ID3") and (after := _after_id3(head)) < size:
        stream.seek(after)
        kind = stream.read(4)
        return _flac(stream, size, after) if kind == b"fLaC" else _mp3(stream, size, after)
    if head.startswith(b"OggS"):
        return _ogg(stream, size)
    if head.startswith(b"fLaC"):
        return _flac(stream, size, 0)
    if head.startswith(b"NIST"):
        return _nist(stream, size)
    if head.startswith(b".snd") or head.startswith(b"dns."):
        return _au(stream, size, ">" if head.startswith(b".snd") else "<")
    if len(head) > 1 and head[0] == 0xFF and head[1] >= 0xE0:
        return _mp3(stream, size, 0)
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


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _claim(claimed_s: float | None, found_s: float) -> str:
    if claimed_s is None:
        return f"its header lacks its length; it has {_seconds(found_s)}"
    return f"its header says {_seconds(claimed_s)}, but it has {_seconds(found_s)}"


def _sized(claimed: int, found: int, per_second: int, replaced: tuple[tuple[int, bytes], ...]) -> Container:
    """The result for a format whose header has the number of bytes; `replaced` corrects it."""
    if claimed >= STREAMED_BYTES and claimed > found:
        claim = f"its header lacks its length; it has {found} bytes of audio"
        return Container(claim=_claim(None, found / per_second) if per_second else claim, replaced=replaced)
    if claimed > found + 1:  # + 1: the padding of an odd chunk
        problem = f"is cut short: its header promises {claimed} bytes of audio, but there are {found}"
        return Container((claimed - found) / per_second if per_second else math.inf, problem)
    if claimed >= found or (claimed and per_second and found - claimed < END_TOLERANCE_S * per_second):
        return FINE
    claim = f"its header says {claimed} bytes of audio, but there are {found}"
    return Container(claim=_claim(claimed / per_second, found / per_second) if per_second else claim, replaced=replaced)


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
            return Container(claim=_SEVERAL.format("recordings"), end=after)
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
    start = max(0, size - _TAIL)
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


# Ogg.


def _ogg(stream: IO[bytes], size: int) -> Container:
    stream.seek(max(0, size - _TAIL))
    tail = stream.read()
    page = tail.rfind(b"OggS")
    if page < 0 or _ogg_page_size(tail[page:]) > len(tail) - page:
        return Container(math.inf, "is cut short: its last page is missing")
    if _second_stream(stream, size):
        return Container(claim=_SEVERAL.format("Ogg files"))
    if not tail[page + 5] & 4:  # RFC 3533: flag 4 marks the last page
        # libsndfile refuses Opus whose last page is shorter than its packets without the mark, so it is set.
        content = bytearray(tail[page : page + _ogg_page_size(tail[page:])])
        content[5] |= 4
        content[22:26] = bytes(4)
        content[22:26] = _crc(content, 32, 0x04C11DB7).to_bytes(4, "little")
        claim = "its last page is not marked as the last one: it was streamed, or lost its end"
        return Container(claim=claim, replaced=((size - len(tail) + page, bytes(content[:27])),))
    return FINE


def _ogg_page_size(page: bytes) -> int:
    if len(page) < 27 or len(page) < 27 + page[26]:
        return len(page) + 1
    return 27 + page[26] + sum(page[27 : 27 + page[26]])


def _second_stream(stream: IO[bytes], size: int) -> bool:
    """Whether a second logical stream begins after pages of the first. Streams that are interleaved begin together."""
    position, begun = 0, False
    while position < size:
        stream.seek(position)
        head = stream.read(27 + 255)
        if len(head) < 27 or not head.startswith(b"OggS"):
            return False
        if not head[5] & 2:
            begun = True
        elif begun:
            return True
        position += 27 + head[26] + sum(head[27 : 27 + head[26]])
    return False


# FLAC.


def _flac(stream: IO[bytes], size: int, begin: int) -> Container:
    stream.seek(begin)
    head = stream.read(42)
    if len(head) < 42 or head[4] & 0x7F:
        return FINE
    most = int.from_bytes(head[10:12], "big")
    packed = int.from_bytes(head[18:26], "big")
    rate_hz, claimed = packed >> 44, packed & ((1 << 36) - 1)
    stream.seek(max(begin + 42, size - _TAIL - 8 * most))
    tail = stream.read()
    last = _last_flac_frame(tail, most)
    if not last or not rate_hz:
        return FINE
    place, start, samples = last
    plain = claimed * ((packed >> 41 & 7) + 1) * ((packed >> 36 & 31) + 1) // 8  # bytes, not compressed
    if (claimed != start + samples or size > plain + _TAIL) and _holds(stream, b"fLaC\0\0\0\x22", begin + 42):
        return Container(claim=_SEVERAL.format("FLAC files"))
    if claimed == start + samples:
        return FINE
    whole = _flac_frame_whole(tail[place:])
    if claimed > start + samples and not (whole and samples < most):
        # It lost its end: the last frame of a whole file is shorter than the others.
        problem = f"is cut short: its header promises {claimed} samples, but there are about {start}"
        return Container((claimed - start - samples) / rate_hz, problem)
    if not (found := start + samples if whole else start):
        return FINE
    claim = _claim(claimed / rate_hz if claimed else None, found / rate_hz)
    if not whole:
        claim += "; its last frame is incomplete: its end is missing"
    corrected = (packed >> 36 << 36 | found).to_bytes(8, "big")
    return Container(claim=claim, replaced=((begin + 18, corrected),))


def _last_flac_frame(tail: bytes, block: int) -> tuple[int, int, int] | None:
    """The place of the last frame in `tail`, its first sample, and its number of samples."""
    end = len(tail)
    while (place := max(tail.rfind(b"\xff\xf8", 0, end), tail.rfind(b"\xff\xf9", 0, end))) >= 0:
        if found := _flac_frame(tail[place : place + 16], block):
            return place, *found
        end = place + 1
    return None


def _flac_frame(head: bytes, block: int) -> tuple[int, int] | None:
    """The first sample of a frame and its number of samples; None if this is no frame (RFC 9639, section 9.1)."""
    if len(head) < 6:
        return None
    size, rate, channels, depth = head[2] >> 4, head[2] & 15, head[3] >> 4, head[3] >> 1 & 7
    if not size or rate == 15 or channels > 10 or depth == 3 or head[3] & 1:
        return None
    ones = next((n for n in range(8) if not head[4] & 0x80 >> n), 8)
    length = max(ones, 1)
    if ones in (1, 8) or any(byte & 0xC0 != 0x80 for byte in head[5 : 4 + length]):
        return None
    number = head[4] & (0x7F if not ones else 0x3F >> ones - 1 if ones < 7 else 0)
    for byte in head[5 : 4 + length]:
        number = number << 6 | byte & 0x3F
    at = 4 + length
    extra = {6: 1, 7: 2}.get(size, 0)
    samples = int.from_bytes(head[at : at + extra], "big") + 1
    at += extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if len(head) <= at or _crc(head[:at], 8, 0x07) != head[at]:
        return None
    if not extra:
        samples = 192 if size == 1 else 576 << size - 2 if size <= 5 else 256 << size - 8
    return (number if head[1] & 1 else number * block), samples


def _flac_frame_whole(frame: bytes) -> bool:
    for tag in (b"TAG", b"APETAGEX"):
        place = frame.rfind(tag)
        if place > 0 and _crc(frame[:place], 16, 0x8005) == 0:
            return True
    return _crc(frame.rstrip(b"\0"), 16, 0x8005) == 0 or _crc(frame, 16, 0x8005) == 0


@functools.cache
def _crc_table(bits: int, polynomial: int) -> tuple[int, ...]:
    table, top, mask = [], 1 << bits - 1, (1 << bits) - 1
    for value in range(256):
        value <<= bits - 8
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value & top else 0)) & mask
        table.append(value)
    return tuple(table)


def _crc(data: bytes | bytearray, bits: int, polynomial: int) -> int:
    table, crc, mask, shift = _crc_table(bits, polynomial), 0, (1 << bits) - 1, bits - 8
    for byte in data:
        crc = (crc << 8 & mask) ^ table[crc >> shift ^ byte]
    return crc


def _holds(stream: IO[bytes], wanted: bytes, begin: int) -> bool:
    stream.seek(begin)
    kept = b""
    while block := stream.read(1 << 20):
        if wanted in kept + block:
            return True
        kept = block[-len(wanted) + 1 :]
    return False


# MP3.


def _after_id3(head: bytes) -> int:
    """The end of an ID3v2 tag, whose size has seven bits in each byte, from its ten bytes of header."""
    if len(head) < 10:
        return 0
    length = functools.reduce(lambda total, byte: total << 7 | byte & 0x7F, head[6:10], 0)
    return 10 + length + 10 * bool(head[5] & 16)


@dataclass(frozen=True)
class _Frames:
    """The frames of an MP3 file: where the first begins, how many there are, whether the last is whole, all equal."""

    first: int
    length: int  # of the first, in bytes
    count: int
    end: int
    whole: bool
    constant: bool
    samples: int  # of each frame
    rate_hz: int


@functools.lru_cache(maxsize=4096)
def _mp3_header(head: bytes) -> tuple[int, int, int] | None:
    """Bytes and samples of a frame of layer III, and its rate; None if `head` is no header."""
    if len(head) < 3 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer, bitrate, rate = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or layer != 1 or bitrate in (0, 15) or rate == 3:
        return None
    mpeg1 = version == 3
    table = (
        (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
        if mpeg1
        else (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    )
    rate_hz = (44100, 48000, 32000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    samples = 1152 if mpeg1 else 576
    return samples // 8 * 1000 * table[bitrate - 1] // rate_hz + (head[2] >> 1 & 1), samples, rate_hz


def _mp3_frames(data: bytes | mmap.mmap, begin: int) -> _Frames | None:
    place = begin
    while True:  # the first frame has another one behind it
        place = data.find(b"\xff", place)
        if place < 0 or place > begin + (1 << 16):
            return None
        header = _mp3_header(data[place : place + 3])
        following = place + header[0] if header else 0
        if header and (following >= len(data) or _like(data, following, header)):
            break
        place += 1
    first, count, end, whole, constant = place, 0, place, True, True
    while place < len(data):
        found = _mp3_header(data[place : place + 3])
        if found and found[1:] == header[1:]:
            count, end, constant = count + 1, place + found[0], constant and abs(found[0] - header[0]) <= 1
            place = end
            continue
        place += 1  # damaged, or a tag: look for the next frame that has another one behind it
        while 0 <= (place := data.find(b"\xff", place)) < len(data) - 4:
            found = _mp3_header(data[place : place + 3])
            if found and found[1:] == header[1:] and _like(data, place + found[0], header):
                break
            place += 1
        else:
            break
    if end > len(data):
        count, whole = count - 1, False
    return _Frames(first, header[0], count, end, whole, constant, *header[1:])


def _like(data: bytes | mmap.mmap, place: int, header: tuple[int, int, int]) -> bool:
    found = _mp3_header(data[place : place + 3])
    return found is not None and found[1:] == header[1:]


def _mp3(stream: IO[bytes], size: int, begin: int) -> Container:
    stream.seek(0)
    try:
        data: bytes | mmap.mmap = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # not a file of the disk
        data = stream.read()
    frames = _mp3_frames(data, begin)
    if not frames or not frames.count:
        return FINE
    head = data[frames.first : frames.first + frames.length]
    mark = max(head.find(b"Xing", 4, 60), head.find(b"Info", 4, 60))
    seconds = frames.samples / frames.rate_hz  # of a frame
    if mark < 0:
        # Without a count, libsndfile takes the bit rate of the first frame for that of all.
        lost = "" if frames.whole else "its last frame is incomplete: its end may be missing"
        header = bytes([head[0], head[1] | 1, *head[2:4]])  # | 1: without a checksum
        counted = header.ljust(4 + _side_bytes(header), b"\0") + b"Xing"
        counted += struct.pack(">II", _XING_FRAMES, frames.count)
        if frames.constant or len(counted) > frames.length:
            return Container(claim=lost)
        claim = _claim(None, frames.count * seconds) + (f"; {lost}" if lost else "")
        return Container(claim=claim, prefix=counted.ljust(frames.length, b"\0"), skipped=frames.first)
    flags = int.from_bytes(head[mark + 4 : mark + 8], "big")
    if not flags & _XING_FRAMES:
        return FINE
    claimed, found = int.from_bytes(head[mark + 8 : mark + 12], "big"), frames.count - 1
    if claimed == found:
        return FINE
    promised = int.from_bytes(head[mark + 12 : mark + 16], "big") if flags & _XING_BYTES else 0
    if claimed > found and (not frames.whole or promised > frames.end - frames.first + frames.length):
        missing_s = (claimed - found) * seconds
        return Container(missing_s, f"is cut short: its header promises {claimed} frames, but there are {found}")
    return Container(
        claim=_claim(claimed * seconds if claimed else None, found * seconds),
        replaced=((frames.first + mark + 8, struct.pack(">I", found)),),
    )


def _side_bytes(header: bytes) -> int:
    one = header[3] >> 6 == 3
    return (17 if one else 32) if header[1] >> 3 & 1 else (9 if one else 17)


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
