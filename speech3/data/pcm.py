"""Decode audio while it arrives: the bytes of a pipe, or of a file that is still being written, become samples.

Axes: S samples, C channels.
"""

import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from speech3.data.audio import Listener, Mix
from speech3.data.bitstreams import mp3_header
from speech3.data.containers import is_other_chunk
from speech3.errors import DataError, FormatError, MissingError, SettingError, counted
from speech3.runtime import check_standard_input

PATIENCE_S = 5.0  # a file that has not grown for this long is finished
_READ = 8192  # bytes per read: a quarter of a second at 16 kHz
_POLL_S = 0.1
_HEARD_S, _STEP_S = 10.0, 0.2  # for the choice among channels
_LONGEST_HEADER = 1 << 20  # bytes of a WAV header, with all chunks before the samples
_ENDLESS = 0x7FFFF000  # a header gives this or more, or 0, if the length is unknown
_PCM, _EXTENSIBLE = 1, 0xFFFE  # format tags
_OTHER_FORMATS = {
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"ID3": "MP3",
    b"NIST_1A": "NIST sphere",
    b"RF64": "RF64",
    b"riff": "Wave64",
    b"FORM": "AIFF",
    b".snd": "au",
    b"\x1aE\xdf\xa3": "WebM",
    b"caff": "CAF",
    b"#!AMR": "AMR",
    b"0&\xb2u": "WMA",
}
_CONVERT = "ffmpeg -i IN -f s16le -ac 1 -ar {} - | speech3 transcribe --stream MODEL - --rate {}"


def sound_format(head: bytes) -> str:
    """The format of a sound file other than WAV, by its first bytes; empty if they may be raw samples."""
    if head[4:8] == b"ftyp":
        return "MP4"
    length = _frame_length(head)
    if length and head[:2].startswith(head[length : length + 2]):  # two bytes alone may be a sample
        return "AAC" if head[1] & 6 == 0 else "MP3"
    return next((what for magic, what in _OTHER_FORMATS.items() if head.startswith(magic)), "")


def _frame_length(head: bytes) -> int:
    """Bytes of the frame of MP3 or AAC (ADTS) that begins with `head`; 0 if none does."""
    if frame := mp3_header(head[:3]):
        return frame[0]
    if len(head) > 5 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return 0


class PcmDecoder:
    """Raw 16-bit little-endian samples of one channel, or a WAV stream of 16-bit samples, to float32 in [-1, 1).

    Parameters
    ----------
    name
        Name of the source in messages.
    rate_hz
        Sample rate of raw samples, None if unknown; if given, a WAV stream must have it, too. The attribute is 0 until
        the rate is known.
    usual_hz
        Sample rate that raw samples are assumed to have if `rate_hz` is None.
    """

    def __init__(self, name: str, rate_hz: int | None, usual_hz: int) -> None:
        self._name, self._said_hz, self._usual_hz = name, rate_hz, usual_hz
        self._waiting = b""
        self._channels, self._left = 1, sys.maxsize  # bytes of the sound that are still to come
        self._listener: Listener | None = None
        self._mix, self._heard = Mix(()), 0  # samples of each channel
        self._step: list[np.ndarray] = []
        self._wav = self._endless = self._beyond = False
        self._position = 12  # in the header of a WAV stream
        self._format: tuple[int, int, int, int] | None = None  # tag, channels, rate, bits
        self.rate_hz, self._bytes = 0, 0
        # The WAV stream had as many samples as its header promised; what follows is ignored, if it is another chunk.
        self.ended = False
        self._lowest, self._highest = 32767, -32768  # of the samples

    def feed(self, data: bytes) -> np.ndarray:
        """Take the next bytes; return the samples that they complete, float32 (S,).

        Of several channels, those are averaged that `speech3.data.audio` chooses from what was heard before, at
        most 10 s; at first all are. A stream of another format or sample rate is an error.
        """
        self._bytes += len(data)
        self._waiting += data
        if not self.rate_hz:
            self._begin()
        if not self.rate_hz:
            return np.zeros(0, np.float32)
        if self._left + 8 <= len(self._waiting) and not is_other_chunk(self._waiting[self._left + self._left % 2 :]):
            self._left, self._beyond = sys.maxsize, True  # more sound than the header gives
        size = min(len(self._waiting), self._left)
        size -= size % (2 * self._channels)
        samples_SC = np.frombuffer(self._waiting[:size], "<i2").reshape(-1, self._channels)
        self._waiting, self._left = self._waiting[size:], self._left - size
        self._lowest = min(self._lowest, int(samples_SC.min(initial=32767)))
        self._highest = max(self._highest, int(samples_SC.max(initial=-32768)))
        self.ended = self._left < 2 * self._channels
        if self._channels == 1:
            return (samples_SC[:, 0] / 32768).astype(np.float32)
        return self._mono((samples_SC / 32768).astype(np.float32))

    def _mono(self, wave_SC: np.ndarray) -> np.ndarray:
        """One channel, chosen anew after each step of `_STEP_S`, so that it does not matter how the bytes arrive."""
        step, parts = max(1, round(_STEP_S * self.rate_hz)), []
        while len(wave_SC):
            if self._heard >= _HEARD_S * self.rate_hz:
                parts.append(self._mix.mono(wave_SC))
                break
            now_SC, wave_SC = np.split(wave_SC, [step - self._heard % step])
            parts.append(self._mix.mono(now_SC))
            self._step.append(now_SC)
            self._heard += len(now_SC)
            if self._heard % step == 0:
                self._listener = self._listener or Listener(self.rate_hz)
                self._listener.hear(np.concatenate(self._step))
                self._step, self._mix = [], self._listener.choose()
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def fault(self) -> str:
        """Describe what is wrong with a stream whose samples can be used, or remarkable; empty if nothing is.

        A stream that was empty or ended within its header is an error.
        """
        if not self._bytes:
            raise DataError(f"{self._name}: is empty (0 bytes); is the program that should write to it running?")
        if not self.rate_hz:
            raise DataError(f"{self._name}: ends after {counted(self._bytes, 'byte')}, before any audio")
        if self._lowest == self._highest:
            return f"{self._name}: is silent (all its samples are equal); is the microphone muted, or another one?"
        if self.ended:
            return f"{self._name}: has {self._channels} channels: {self._mix.why}" if self._mix.why else ""
        if self._beyond:
            return f"{self._name}: has more audio than its header gives; all of it is used"
        if self._waiting:
            verb = "was" if len(self._waiting) == 1 else "were"
            return (
                f"{self._name}: ends in the middle of a sample; {counted(len(self._waiting), 'byte')} {verb}"
                " left out (raw audio"
                " must have 16 bits per sample and one channel)"
            )
        if self._wav and not self._endless:
            return f"{self._name}: is cut short: its header promises {counted(self._left, 'byte')} more"
        return f"{self._name}: has {self._channels} channels: {self._mix.why}" if self._mix.why else ""

    def _begin(self) -> None:
        head = self._waiting
        if len(head) < 4:
            return
        if what := sound_format(head):
            convert = _CONVERT.format(self._usual_hz, self._usual_hz)
            raise FormatError(
                f"{self._name}: is {what}; a stream must be raw 16-bit PCM or WAV: {convert}. Whole files of other"
                " formats are transcribed without --stream"
            )
        if not head.startswith(b"RIFF"):
            self.rate_hz = self._said_hz or self._usual_hz
            return
        begin = self._wav_begin(head)
        if begin:
            self._waiting = head[begin:]
        elif len(head) > _LONGEST_HEADER:
            raise FormatError(f"{self._name}: a WAV stream with no audio in its first {counted(len(head), 'byte')}")

    def _wav_begin(self, head: bytes) -> int:
        """Offset of the samples in bytes; 0 if more bytes are needed. Each call resumes where the last one stopped."""
        while self._position + 8 <= len(head):
            identifier, length = struct.unpack_from("<4sI", head, self._position)
            begin = self._position + 8
            if identifier == b"data":
                if self._format is None:
                    raise FormatError(f"{self._name}: a WAV stream whose header does not say its format; convert it")
                self._take_format(*self._format)
                self._endless = length == 0 or length >= _ENDLESS
                self._left = sys.maxsize if self._endless else length
                self._wav = True
                return begin
            if identifier == b"fmt " and length >= 16:
                if begin + length > len(head):
                    return 0
                tag, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", head, begin)
                if tag == _EXTENSIBLE and length >= 26:
                    (tag,) = struct.unpack_from("<H", head, begin + 24)
                self._format = tag, channels, rate_hz, bits
            self._position = begin + length + length % 2
        return 0

    def _take_format(self, tag: int, channels: int, rate_hz: int, bits: int) -> None:
        if tag != _PCM or bits != 16 or not channels or not rate_hz:
            raise FormatError(
                f"{self._name}: a WAV stream of format {tag} with {bits} bits,"
                f" {counted(channels, 'channel')}, {rate_hz} Hz; it"
                f" must be 16-bit PCM: {_CONVERT.format(self._usual_hz, self._usual_hz)}"
            )
        if self._said_hz and self._said_hz != rate_hz:
            raise FormatError(
                f"{self._name}: --rate {self._said_hz}, but its header says {rate_hz} Hz; leave --rate out for WAV"
            )
        self._channels, self.rate_hz = channels, rate_hz
        self._mix = Mix(tuple(range(channels)))


def arriving_bytes(source: str, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the bytes of standard input (``-``) or of a file as they arrive, until `stopped` returns True.

    A pipe ends when its writer closes it, a file when it has not grown for `PATIENCE_S`. It is an error if there is no
    such file, or if standard input is a terminal or closed.
    """
    if source == "-":
        remedy = (
            "pipe audio into it, for instance: arecord -t raw -f S16_LE -c 1 -r 16000 | speech3 transcribe --stream"
            " MODEL - --rate 16000"
        )
        check_standard_input(remedy)
        if sys.stdin.isatty():
            raise SettingError(f"-: standard input is a terminal; {remedy}")
        yield from _read(sys.stdin.fileno(), stopped, patience_s=0.0)
        return
    path = Path(source)
    if path.is_dir() or not path.exists():
        raise MissingError(
            f"{path}: {'is a directory' if path.is_dir() else 'no such file'}; pass a file, or - for standard input"
        )
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); make it readable") from error
    try:
        yield from _read(file, stopped, PATIENCE_S if stat.S_ISREG(os.fstat(file).st_mode) else 0.0)
    finally:
        os.close(file)


def _read(file: int, stopped: Callable[[], bool], patience_s: float) -> Iterator[bytes]:
    grown = time.monotonic()
    while not stopped():
        if not select.select([file], [], [], _POLL_S)[0]:
            continue
        data = os.read(file, _READ)
        if data:
            grown = time.monotonic()
            yield data
        elif time.monotonic() - grown >= patience_s:
            return
        else:
            time.sleep(_POLL_S)
