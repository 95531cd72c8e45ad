"""What the headers of Ogg, FLAC and MP3 claim, and what these files have; `Container` says it for any format.

Formats: Ogg (RFC 3533), FLAC (RFC 9639), MP3 (with the first frame of Xing and LAME,
http://gabriel.mp3-tech.org/mp3infotag.html).
"""

import functools
import math
import mmap
import struct
from dataclasses import dataclass
from typing import IO

TAIL = 1 << 17  # bytes; a page of Ogg has at most 65,307
_XING_FRAMES, _XING_BYTES = 1, 2
SEVERAL = "it is several {} in a row, of which only the first is read: split it, or convert it"


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
        """Whether libsndfile has to read the file through `containers.Corrected`."""
        return bool(self.prefix or self.replaced or self.end)


FINE = Container()


def lengths_differ(claimed_s: float | None, found_s: float) -> str:
    """How the length in a header differs from that of the sound."""
    if claimed_s is None:
        return f"its header lacks its length; it has {found_s:.2f} s"
    return f"its header says {claimed_s:.2f} s, but it has {found_s:.2f} s"


# Ogg.


def examine_ogg(stream: IO[bytes], size: int) -> Container:
    stream.seek(max(0, size - TAIL))
    tail = stream.read()
    page = tail.rfind(b"OggS")
    if page < 0 or _ogg_page_size(tail[page:]) > len(tail) - page:
        return Container(math.inf, "is cut short: its last page is missing")
    if _second_stream(stream, size):
        return Container(claim=SEVERAL.format("Ogg files"))
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


def examine_flac(stream: IO[bytes], size: int, begin: int) -> Container:
    stream.seek(begin)
    head = stream.read(42)
    if len(head) < 42 or head[4] & 0x7F:
        return FINE
    most = int.from_bytes(head[10:12], "big")
    packed = int.from_bytes(head[18:26], "big")
    rate_hz, claimed = packed >> 44, packed & ((1 << 36) - 1)
    stream.seek(max(begin + 42, size - TAIL - 8 * most))
    tail = stream.read()
    last = _last_flac_frame(tail, most)
    if not last or not rate_hz:
        return FINE
    place, start, samples = last
    plain = claimed * ((packed >> 41 & 7) + 1) * ((packed >> 36 & 31) + 1) // 8  # bytes, not compressed
    if (claimed != start + samples or size > plain + TAIL) and _holds(stream, b"fLaC\0\0\0\x22", begin + 42):
        return Container(claim=SEVERAL.format("FLAC files"))
    if claimed == start + samples:
        return FINE
    whole = _flac_frame_whole(tail[place:])
    if claimed > start + samples and not (whole and samples < most):
        # It lost its end: the last frame of a whole file is shorter than the others.
        problem = f"is cut short: its header promises {claimed} samples, but there are about {start}"
        return Container((claimed - start - samples) / rate_hz, problem)
    if not (found := start + samples if whole else start):
        return FINE
    claim = lengths_differ(claimed / rate_hz if claimed else None, found / rate_hz)
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


def after_id3(head: bytes) -> int:
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
def mp3_header(head: bytes) -> tuple[int, int, int] | None:
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
        header = mp3_header(data[place : place + 3])
        following = place + header[0] if header else 0
        if header and (following >= len(data) or _like(data, following, header)):
            break
        place += 1
    first, count, end, whole, constant = place, 0, place, True, True
    while place < len(data):
        if found := _like(data, place, header):
            count, end, constant = count + 1, place + found[0], constant and abs(found[0] - header[0]) <= 1
            place = end
            continue
        place += 1  # damaged, or a tag: look for the next frame that has another one behind it
        while 0 <= (place := data.find(b"\xff", place)) < len(data) - 4:
            if (found := _like(data, place, header)) and _like(data, place + found[0], header):
                break
            place += 1
        else:
            break
    if end > len(data):
        count, whole = count - 1, False
    return _Frames(first, header[0], count, end, whole, constant, *header[1:])


def _like(data: bytes | mmap.mmap, place: int, header: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """The header at a place; None if there is none, or one of another sample rate or number of samples."""
    found = mp3_header(data[place : place + 3])
    return found if found and found[1:] == header[1:] else None


def examine_mp3(stream: IO[bytes], size: int, begin: int) -> Container:
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
        claim = lengths_differ(None, frames.count * seconds) + (f"; {lost}" if lost else "")
        return Container(claim=claim, prefix=counted.ljust(frames.length, b"\0"), skipped=frames.first)
    # The first frame is a Xing or Info header: compare its count with what there is.
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
        claim=lengths_differ(claimed * seconds if claimed else None, found * seconds),
        replaced=((frames.first + mark + 8, struct.pack(">I", found)),),
    )


def _side_bytes(header: bytes) -> int:
    one = header[3] >> 6 == 3
    return (17 if one else 32) if header[1] >> 3 & 1 else (9 if one else 17)
