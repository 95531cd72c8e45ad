"""Read audio from files and pipes, in any format of libsndfile (wav, flac, ogg, mp3, NIST sphere, ...).

Waveforms are float32 in [-1, 1). A file that cannot be used raises an `AudioError` that names the file, the problem and
the remedy. libsndfile reads a truncated wav or sphere file as if it were complete, so `_missing_end` compares the
header's length with the file's.
"""

import functools
import io
import math
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import soundfile

from speech3.corpus.datadir import DataDir
from speech3.corpus.paths import pipe_directory, resolve
from speech3.errors import Speech3Error
from speech3.io.atomic import atomic_path
from speech3.io.online_resample import can_resample
from speech3.io.torchaudio_ import resample as change_rate

# Segment times often have only two decimals: an end that rounding puts beyond the recording is clipped, not a fault.
SEGMENT_TOLERANCE_S = 0.01
# A recorder that is stopped loses its last buffer, which its header already counts; the speech is complete.
END_TOLERANCE_S = 0.1
_UNKNOWN_LENGTH = 1 << 40  # libsndfile returns this or more if the header has no length
_STREAMED_BYTES = 0x7FFFF000  # sox, ffmpeg and others write this or more into a header that they cannot rewrite
_MP3_SLACK = 528  # samples: encoders disagree on the decoder's delay; a lost frame makes a difference of 529 or more


@dataclass(frozen=True)
class AudioInfo:
    """What the header of a recording says.

    Attributes
    ----------
    samples
        Samples per channel.
    missing_s
        Seconds that the header promises but that are missing at the end; less than `END_TOLERANCE_S`.
    """

    sample_rate_hz: int
    channels: int
    samples: int
    missing_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.samples / self.sample_rate_hz


class AudioError(Speech3Error):
    """A recording that cannot be used as it is: the kind of fault, the file, the problem and the remedy."""

    def __init__(self, kind: str, file: str, problem: str, remedy: str) -> None:
        super().__init__(kind, file, problem, remedy)
        self.kind, self.file, self.problem, self.remedy = kind, file, problem, remedy

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}; {self.remedy}"


def load(
    data: DataDir,
    utterance_id: str,
    *,
    sample_rate_hz: int | None = None,
    resample: bool = False,
    mix_channels: bool = False,
) -> tuple[np.ndarray, int]:
    """Read the waveform of one utterance.

    Parameters
    ----------
    sample_rate_hz
        The rate required; None for the recording's own.
    resample, mix_channels
        Convert another rate, or average several channels, instead of raising an error.

    Returns
    -------
    samples
        float32 (samples,) in [-1, 1).
    sample_rate_hz
        Their sample rate.

    Raises
    ------
    Speech3Error
        The utterance is unknown; its audio is missing, unreadable, empty, truncated by `END_TOLERANCE_S` or more, or
        has another rate or several channels; its segment lies outside the recording. The message names the utterance,
        the file and the remedy.
    """
    if utterance_id not in data.utterances:
        raise Speech3Error(f"{data.path}: no utterance {utterance_id}")
    utterance = data.utterances[utterance_id]
    try:
        return read_file(
            data.recording(utterance),
            directory=data.path,
            start_s=utterance.start_s,
            end_s=utterance.end_s,
            sample_rate_hz=sample_rate_hz,
            resample=resample,
            mix_channels=mix_channels,
        )
    except AudioError as error:
        raise AudioError(error.kind, f"{utterance_id}: {error.file}", error.problem, error.remedy) from error


def read_file(
    path_or_pipe: Path | str,
    *,
    directory: Path | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    sample_rate_hz: int | None = None,
    resample: bool = False,
    mix_channels: bool = False,
) -> tuple[np.ndarray, int]:
    """Read a file, or the output of a command that ends in ``|``; other arguments, result and errors as for `load`.

    Parameters
    ----------
    directory
        Where relative paths are looked up first; the working directory is next.
    start_s, end_s
        The part to read, in seconds; sample numbers are rounded to the nearest.
    """
    name, source = _source(path_or_pipe, directory, cached=start_s > 0 or end_s is not None)
    sound, missing_s = _opened(name, source)
    with sound:
        if sound.channels > 1 and not mix_channels:
            raise AudioError(
                "several channels",
                name,
                f"has {sound.channels} channels",
                "set mix_channels: true in the feature configuration to average them, or convert it to one channel",
            )
        rate_hz = int(sound.samplerate)
        wanted_hz = sample_rate_hz or rate_hz
        if rate_hz != wanted_hz and not (resample and can_resample(rate_hz, wanted_hz)):
            way = "" if resample else "set resample: true in the feature configuration, or "
            problem = f"has {rate_hz} Hz where {wanted_hz} Hz are expected"
            raise AudioError("other sample rate", name, problem, f"{way}convert it with sox or ffmpeg")
        samples = _decode(name, sound, *_bounds(name, sound, missing_s, start_s, end_s))
    return change_rate(_mono(samples), rate_hz, wanted_hz), wanted_hz


def _mono(samples: np.ndarray) -> np.ndarray:
    mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
    return np.ascontiguousarray(mono)


def read_blocks(
    path_or_pipe: Path | str,
    block_s: float,
    *,
    directory: Path | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
) -> Iterator[np.ndarray]:
    """Yield blocks of `block_s` seconds, float32 (samples,), channels averaged; other arguments as for `read_file`."""
    name, source = _source(path_or_pipe, directory, cached=start_s > 0 or end_s is not None)
    sound, missing_s = _opened(name, source)
    with sound:
        size = max(1, round(block_s * sound.samplerate))
        first, last = _bounds(name, sound, missing_s, start_s, end_s)
        for start in range(first, last, size):
            decode = _decode if start == first else _read  # only the first block needs a seek
            samples = decode(name, sound, start, min(start + size, last))
            if len(samples):  # nothing may be left for the last block of an mp3 that ends early (`_MP3_SLACK`)
                yield _mono(samples)


def info(path_or_pipe: Path | str, *, directory: Path | None = None) -> AudioInfo:
    """Sample rate, channels and length, from the header alone (a pipe's command is run); errors as for `load`."""
    name, source = _source(path_or_pipe, directory, cached=False)
    sound, missing_s = _opened(name, source)
    with sound:
        return AudioInfo(int(sound.samplerate), int(sound.channels), int(sound.frames), missing_s)


def write_wav(path: Path, samples_S: np.ndarray, sample_rate_hz: int) -> None:
    """Write samples, int16 or float of full scale 1, as a 16-bit wav file, atomically.

    Raises
    ------
    Speech3Error
        The disk is full, or the directory is not writable.
    """
    buffer = io.BytesIO()  # written by Python, since libsndfile does not say that the disk is full
    soundfile.write(buffer, samples_S, sample_rate_hz, "PCM_16", format="WAV")
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def _source(path_or_pipe: Path | str, directory: Path | None, cached: bool) -> tuple[str, Path | bytes]:
    text = str(path_or_pipe).strip()
    if text.endswith("|"):
        run = _run_cached if cached else _run
        return text, run(text, pipe_directory(text, directory or Path.cwd()))
    remedy = "correct its path in wav.scp, or remove the utterance" if directory else "give the path of a recording"
    try:
        path = resolve(text, directory or Path.cwd())
        exists = path.exists()
    except OSError as error:  # no permission for its directory, or too long for a name
        raise AudioError("unreadable audio", text, f"cannot be read ({error.strerror})", remedy) from error
    if not exists:
        relative = directory is not None and not Path(text).is_absolute()
        places = f" in {directory} or {Path.cwd()}" if relative else ""
        raise AudioError("missing audio", text if places else str(path), f"no such file{places}", remedy)
    if not path.is_file():
        raise AudioError("missing audio", str(path), "is not a file", remedy)
    return str(path), path


def _run(command: str, directory: Path) -> bytes:
    done = subprocess.run(command.rstrip("| \t"), shell=True, cwd=directory, capture_output=True)
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        problem = f"the command ended with status {done.returncode}" if done.returncode else "the command wrote nothing"
        raise AudioError(
            "unreadable audio",
            command,
            f"{problem}{f' ({said[-1]})' if said else ''}",
            "run it in a shell and correct it in wav.scp",
        )
    return done.stdout


# The segments of one recording are mostly read one after another; the cache avoids running its command for each one.
_run_cached = functools.lru_cache(maxsize=1)(_run)


def _opened(name: str, source: Path | bytes) -> tuple[soundfile.SoundFile, float]:
    """Return the open file, and how many seconds are missing at its end."""
    remedy = "convert it to wav or flac, for instance: ffmpeg -i IN OUT.wav"
    try:
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
            head, (problem, missing_s) = stream.read(1024), _missing_end(stream)
    except OSError as error:
        raise AudioError("unreadable audio", name, f"cannot be read ({error.strerror})", "make it readable") from error
    if not head:
        raise AudioError("empty audio", name, "is empty (0 bytes)", "get the file again, or remove the utterance")
    if missing_s >= END_TOLERANCE_S:
        raise AudioError("truncated audio", name, problem, "get the file again, or remove the utterance")
    if b"shorten" in head and head.startswith(b"NIST_1A"):
        remedy = "use sph2pipe in wav.scp: `utterance sph2pipe -f wav FILE |`"
    try:
        sound = soundfile.SoundFile(str(source) if isinstance(source, Path) else io.BytesIO(source))
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:  # TypeError: the name ends in .raw
        reason = str(error).rpartition(": ")[2].rstrip(".")
        raise AudioError("unreadable audio", name, f"is not audio that libsndfile reads ({reason})", remedy) from error
    if 0 < sound.frames < _UNKNOWN_LENGTH:
        return sound, missing_s
    sound.close()
    if sound.frames == 0:
        raise AudioError("empty audio", name, "contains no samples", "get the file again, or remove the utterance")
    raise AudioError("unreadable audio", name, "has no length in its header", remedy)


def _bounds(
    name: str, sound: soundfile.SoundFile, missing_s: float, start_s: float, end_s: float | None
) -> tuple[int, int]:
    problem = segment_fault(start_s, end_s, sound.frames / sound.samplerate, missing_s)
    if problem:
        raise AudioError("segment", name, problem, "correct segments, or run `speech3 fix`")
    stop = sound.frames if end_s is None else min(round(end_s * sound.samplerate), sound.frames)
    start = round(start_s * sound.samplerate)
    if stop <= start:
        raise AudioError("segment", name, f"the segment at {start_s:g} s contains no sample", "correct segments")
    return start, stop


def segment_fault(start_s: float, end_s: float | None, duration_s: float, missing_s: float = 0.0) -> str:
    """Describe how a segment lies outside a recording of `duration_s` that lacks `missing_s` at its end; or empty."""
    if start_s >= duration_s:
        return f"the segment starts at {start_s:g} s, the recording ends at {duration_s:.3f} s"
    if end_s is not None and end_s > duration_s + missing_s + SEGMENT_TOLERANCE_S:
        return f"the segment ends at {end_s:g} s, the recording at {duration_s:.3f} s"
    return ""


def _decode(name: str, sound: soundfile.SoundFile, start: int, stop: int) -> np.ndarray:
    if start:
        try:
            sound.seek(start)
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise _undecodable(name, error) from error
    samples = _read(name, sound, start, stop)
    if not len(samples):
        raise _cut_short(name, f"has no sample after {start}, but its header says {sound.frames}")
    return samples


def _read(name: str, sound: soundfile.SoundFile, start: int, stop: int) -> np.ndarray:
    try:
        samples = np.asarray(sound.read(stop - start, dtype="float32", always_2d=True))
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _undecodable(name, error) from error
    slack = _MP3_SLACK if sound.format == "MP3" else 0
    if len(samples) < stop - start - slack:
        raise _cut_short(name, f"ends after {start + len(samples)} samples, but its header says {sound.frames}")
    if not np.isfinite(samples).all():
        raise AudioError("unreadable audio", name, "contains values that are not finite numbers", "make the file again")
    return samples


def _undecodable(name: str, error: Exception) -> AudioError:
    return _cut_short(name, f"cannot be decoded to its end ({str(error).rpartition(': ')[2].rstrip('.')})")


def _cut_short(name: str, problem: str) -> AudioError:
    return AudioError("truncated audio", name, problem, "get the file again, or remove the utterance")


def _missing_end(stream: IO[bytes]) -> tuple[str, float]:
    """Describe how much shorter a RIFF, NIST or Ogg file is than it should be, and return the missing seconds.

    A complete file gives the empty string and 0; the seconds are infinite if the header lacks the bytes per second.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    magic = stream.read(4)
    if magic == b"OggS":
        problem = _missing_ogg_end(stream, size)
        return problem, math.inf if problem else 0.0
    sound = {b"RIFF": _riff_sound, b"NIST": _nist_sound}.get(magic, _unknown_sound)(stream, size)
    if (
        sound.header_bytes <= sound.file_bytes + 1 or sound.header_bytes >= _STREAMED_BYTES
    ):  # + 1: the padding of an odd chunk
        return "", 0.0
    missing = sound.header_bytes - sound.file_bytes
    problem = f"is cut short: its header promises {sound.header_bytes} bytes of audio, but there are {sound.file_bytes}"
    return problem, missing / sound.bytes_per_second if sound.bytes_per_second else math.inf


class _Sound(NamedTuple):
    """Bytes of audio: according to the header, in the file, and per second."""

    header_bytes: int
    file_bytes: int
    bytes_per_second: int


def _unknown_sound(stream: IO[bytes], size: int) -> _Sound:
    return _Sound(0, 0, 0)


def _riff_sound(stream: IO[bytes], size: int) -> _Sound:
    position, bytes_per_second = 12, 0
    while position + 8 <= size:
        stream.seek(position)
        identifier, length = struct.unpack("<4sI", stream.read(8))
        position += 8
        if identifier == b"data":
            return _Sound(length, size - position, bytes_per_second)
        if identifier == b"fmt " and len(head := stream.read(12)) == 12:
            bytes_per_second = struct.unpack("<8xI", head)[0]
        position += length + length % 2
    return _Sound(0, 0, 0)


def _nist_sound(stream: IO[bytes], size: int) -> _Sound:
    stream.seek(0)
    lines = stream.read(1024).decode("latin-1").split("\n")
    fields = {parts[0]: parts[2] for line in lines if len(parts := line.split(None, 2)) == 3}
    if "," in fields.get("sample_coding", ""):  # compressed: sample_count does not give the bytes
        return _Sound(0, 0, 0)
    try:
        header = int(lines[1])
        count, rate_hz = int(fields.get("sample_count", "0")), int(fields.get("sample_rate", "0"))
        sample = int(fields.get("sample_n_bytes", "1")) * int(fields.get("channel_count", "1"))
    except (ValueError, IndexError):
        return _Sound(0, 0, 0)
    return _Sound(count * sample, size - header, rate_hz * sample)


def _missing_ogg_end(stream: IO[bytes], size: int) -> str:
    stream.seek(max(0, size - (1 << 17)))  # a page has at most 65,307 bytes
    tail = stream.read()
    page = tail.rfind(b"OggS")
    last = page >= 0 and len(tail) > page + 5 and bool(tail[page + 5] & 4)  # RFC 3533: flag 4 marks the last page
    return "" if last and _ogg_page_whole(tail[page:]) else "is cut short: its last page is missing"


def _ogg_page_whole(page: bytes) -> bool:
    if len(page) < 27 or len(page) < 27 + page[26]:
        return False
    return len(page) >= 27 + page[26] + sum(page[27 : 27 + page[26]])
