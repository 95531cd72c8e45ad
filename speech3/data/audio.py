"""Read audio from files and pipes, in any format of libsndfile (wav, flac, ogg, mp3, NIST sphere, ...).

Waveforms are float32 in [-1, 1). A file that cannot be used raises an `AudioError` that names the file, the problem and
the remedy. libsndfile believes the header of a file; `containers` compares it with the content. Where several channels
become one, `Listener` chooses among them: an average can cancel the speech.

Axes: S samples, C channels, W windows of 20 ms.
"""

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import soundfile

from speech3.data.containers import END_TOLERANCE_S, Corrected, examine
from speech3.data.datadir import DataDir
from speech3.data.paths import (
    CommandError,
    cached_output_of,
    is_command,
    output_of,
    pipe_directory,
    refused,
    resolve_path,
)
from speech3.data.resampling import LARGEST_FLOAT, can_resample, checked_rate, is_rate, resample as change_rate
from speech3.errors import DataError, MissingError, SettingError
from speech3.runtime import atomic_path, foreign_content, say

_WINDOW_S = 0.02
_SILENT_DB = 40.0  # a channel that is quieter than the loudest by more than this has no sound of its own
_ALIKE = 0.75  # the average's share of the channels' mean energy: 1 if equal, 0.5 if independent, 0 if opposite
_SAME_SOURCE = 0.6  # correlation of the levels, in dB, of two channels that hear the same speech
_SPEECH_DB = 12.0  # from the quietest to the loudest tenth: noise alone varies less
_EQUAL_DB = 1.0  # of two channels that differ by less, the first is taken
_FLOOR = 1e-12
# Segment times often have only two decimals: an end that rounding puts beyond the recording is clipped, not a fault.
SEGMENT_TOLERANCE_S = 0.01
# libsndfile's names of the formats that `examine` looks at.
_EXAMINED = {"WAV", "WAVEX", "RF64", "W64", "AIFF", "CAF", "AU", "NIST", "FLAC", "OGG", "MP3", "MPEG"}
_UNKNOWN_LENGTH = 1 << 40  # libsndfile returns this or more if the header has no length
_HEARD_AT_ONCE_S = 10.0
_SILENCE = 2.0**-16  # half a step of 16 bits
# From the lowest to the highest sample. With a quarter of it, rounding makes peaks of whole recordings look cut off;
# digits of 40 steps, rounded to 16 bits, had 26 % errors, for 7 as loud as they were recorded.
_QUIET = 2.0**-9  # 64 steps
_JUMP = 2.0**-12  # 8 steps; a tone whose top is flat for three samples rises by less than 4 before it
CLIPPED = 0.005  # share of the samples that are cut off; less is hardly heard
_MP3_SLACK = 528  # samples: encoders disagree on the decoder's delay; a lost frame makes a difference of 529 or more


@dataclass(frozen=True)
class AudioInfo:
    """What the header of a recording says."""

    sample_rate_hz: int
    channels: int
    samples: int  # per channel
    missing_s: float = 0.0  # promised by the header, but missing at the end; less than END_TOLERANCE_S
    claim: str = ""  # how the length in the header differs from `samples`, that of the sound; or empty

    @property
    def duration_s(self) -> float:
        return self.samples / self.sample_rate_hz


class AudioError(DataError):
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
    note: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, int]:
    """Read the waveform of one utterance; return its samples, float32 (S,) in [-1, 1), and their rate.

    Parameters
    ----------
    sample_rate_hz
        The rate required; None for the recording's own.
    resample, mix_channels
        Convert another rate, or make one channel of several, instead of raising an error: their average, or those that
        `Listener` chooses because others are silent or cancel them.
    note
        Called with the choice of channels, in words, if it is not the average of all.

    Raises
    ------
    Speech3Error
        The utterance is unknown; its audio is missing, unreadable, empty, truncated by `END_TOLERANCE_S` or more, or
        has another rate or several channels; its segment lies outside the recording. The message names the utterance,
        the file and the remedy.
    """
    if utterance_id not in data.utterances:
        raise MissingError(f"{data.path}: no utterance {utterance_id}")
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
            note=note,
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
    note: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, int]:
    """Read a file, or the output of a command; other arguments, result and errors as for `load`.

    `path_or_pipe` is a command if it is a string that ends in ``|`` (`paths`). A relative path is looked up in
    `directory`, then in the working directory. `start_s` and `end_s` bound the part to read; sample numbers are rounded
    to the nearest.
    """
    if sample_rate_hz:
        checked_rate(sample_rate_hz, "sample_rate_hz")
    _check_span(start_s, end_s)
    name, source = _source(path_or_pipe, directory, cached=start_s > 0 or end_s is not None)
    sound, missing_s, _ = _opened(name, source)
    with sound:
        if sound.channels > 1 and not mix_channels:
            remedy = (
                "set mix_channels: true in the feature configuration to make one of them, or convert it to one channel"
            )
            raise AudioError("several channels", name, f"has {sound.channels} channels", remedy)
        rate_hz = int(sound.samplerate)
        wanted_hz = sample_rate_hz or rate_hz
        if rate_hz != wanted_hz and not (resample and can_resample(rate_hz, wanted_hz)):
            way = "" if resample else "set resample: true in the feature configuration, or "
            problem = f"has {rate_hz} Hz where {wanted_hz} Hz are expected"
            raise AudioError("other sample rate", name, problem, f"{way}convert it with sox or ffmpeg")
        samples = _decode(name, sound, *_bounds(name, sound, missing_s, start_s, end_s))
    mix = mix_of(samples, rate_hz)
    if note and mix.why:
        note(mix.why)
    return change_rate(mix.mono(samples), rate_hz, wanted_hz), wanted_hz


def _check_span(start_s: float, end_s: float | None) -> None:
    if not 0 <= start_s < math.inf:
        raise SettingError(f"start_s={start_s!r}: must be seconds from the beginning of the recording, at least 0")
    if end_s is not None and not end_s > start_s:
        raise SettingError(f"end_s={end_s!r}: must be later than start_s, or None for the end")


def read_blocks(
    path_or_pipe: Path | str,
    block_s: float,
    *,
    directory: Path | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
) -> Iterator[np.ndarray]:
    """Yield blocks of `block_s` seconds, float32 (samples,); several channels become one as in `load`.

    Other arguments as for `read_file`.
    """
    _check_span(start_s, end_s)
    if not block_s > 0:
        raise SettingError(f"block_s={block_s!r}: must be the length of a block in seconds, above 0")
    name, source = _source(path_or_pipe, directory, cached=start_s > 0 or end_s is not None)
    sound, missing_s, _ = _opened(name, source)
    with sound:
        mix = Mix((0,))
        if sound.channels > 1:
            mix = channel_mix(path_or_pipe, directory=directory, start_s=start_s, end_s=end_s)
        size = max(1, round(block_s * sound.samplerate))
        first, last = _bounds(name, sound, missing_s, start_s, end_s)
        for start in range(first, last, size):
            decode = _decode if start == first else _read  # only the first block needs a seek
            samples = decode(name, sound, start, min(start + size, last))
            if len(samples):  # nothing may be left for the last block of an mp3 that ends early (`_MP3_SLACK`)
                yield mix.mono(samples)


def info(path_or_pipe: Path | str, *, directory: Path | None = None) -> AudioInfo:
    """Sample rate, channels and length, from the header alone (a pipe's command is run); errors as for `load`."""
    name, source = _source(path_or_pipe, directory, cached=False)
    sound, missing_s, claim = _opened(name, source)
    with sound:
        return AudioInfo(int(sound.samplerate), int(sound.channels), int(sound.frames), missing_s, claim)


@dataclass(frozen=True)
class Mix:
    """The channels to average, counted from 0, and why not all; empty if all and if nothing is remarkable."""

    channels: tuple[int, ...]
    why: str = ""

    def mono(self, samples_SC: np.ndarray) -> np.ndarray:
        """One channel, float32 (S,)."""
        if len(self.channels) == 1:
            return np.ascontiguousarray(samples_SC[:, self.channels[0]])
        chosen_SC = samples_SC if len(self.channels) == samples_SC.shape[1] else samples_SC[:, self.channels]
        return np.ascontiguousarray(chosen_SC.mean(axis=1, dtype=np.float32))


def channel_mix(
    path_or_pipe: Path | str,
    *,
    directory: Path | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    most_s: float = math.inf,
) -> Mix:
    """Which channels become one, judged by at most the first `most_s` seconds; other arguments as for `read_file`."""
    name, source = _source(path_or_pipe, directory, cached=True)
    sound, missing_s, _ = _opened(name, source)
    with sound:
        if sound.channels == 1:
            return Mix((0,))
        listener = Listener(int(sound.samplerate))
        first, last = _bounds(name, sound, missing_s, start_s, end_s)
        if most_s < math.inf:
            last = min(last, first + round(most_s * sound.samplerate))
        size = round(_HEARD_AT_ONCE_S * sound.samplerate)
        for start in range(first, last, size):
            decode = _decode if start == first else _read  # only the first block needs a seek
            listener.hear(decode(name, sound, start, min(start + size, last)))
        return listener.choose()


def is_silent(wave_S: np.ndarray) -> bool:
    """Whether all samples are equal, but for what lossy codecs make of zeros."""
    return bool(len(wave_S)) and float(np.ptp(wave_S)) < _SILENCE


def is_quiet(wave_S: np.ndarray) -> bool:
    """Whether all samples are within so few steps of 16 bits that rounding is heard."""
    return bool(len(wave_S)) and float(np.ptp(wave_S)) < _QUIET


def clipped_share(wave_S: np.ndarray) -> float:
    """The fraction of samples that are cut off: three or more in a row, equal, at the largest or smallest value.

    None are in a quiet recording, where that may be rounding. The tops of low tones are flat as well, but the wave
    arrives there slowly; where it is cut off, it jumps to the largest value, or away from it.
    """
    if len(wave_S) < 3 or is_quiet(wave_S):
        return 0.0
    step = 2 * _SILENCE
    at_S = (wave_S >= wave_S.max() - step).astype(np.int8) - (wave_S <= wave_S.min() + step).astype(np.int8)
    inner_S = (at_S[:-2] != 0) & (at_S[:-2] == at_S[1:-1]) & (at_S[1:-1] == at_S[2:])
    flat_S = np.zeros(len(wave_S), bool)
    for shift in range(3):
        flat_S[shift : shift + len(inner_S)] |= inner_S
    # Runs of such samples, at the top or at the bottom, and the jumps to their first sample and from their last.
    level_S = np.concatenate([[0], np.where(flat_S, at_S, 0), [0]])
    edge_E = np.flatnonzero(np.diff(level_S))  # from each edge to the next, the level is the same
    is_run = level_S[edge_E[:-1] + 1] != 0
    begin_R, end_R = edge_E[:-1][is_run], edge_E[1:][is_run]
    jump_S = np.abs(np.diff(wave_S, prepend=wave_S[:1], append=wave_S[-1:]))
    cut_R = np.maximum(jump_S[begin_R], jump_S[end_R]) > _JUMP
    return float((end_R - begin_R)[cut_R].sum() / len(wave_S))


class ClippingListener:
    """Says, once, that a recording is clipped: it is examined ten seconds at a time, as its samples are added."""

    def __init__(self, name: str, rate_hz: int) -> None:
        self._name, self._rate_hz = name, rate_hz
        self._waiting: list[np.ndarray] = []
        self._count = 0  # of the samples that wait
        self._begin_s = 0.0
        self._said = False

    def add(self, wave_S: np.ndarray) -> None:
        """Listen to the next samples, of any number."""
        if self._said:
            return
        self._waiting.append(wave_S)
        self._count += len(wave_S)
        if self._count >= _HEARD_AT_ONCE_S * self._rate_hz:
            self._judge()

    def end(self) -> None:
        """Listen to the rest, unless it is less than a second of a longer recording, too little to judge by."""
        if not self._said and (self._begin_s == 0 or self._count >= self._rate_hz):
            self._judge()

    def _judge(self) -> None:
        wave_S = np.concatenate([np.zeros(0, np.float32), *self._waiting])
        end_s = self._begin_s + len(wave_S) / self._rate_hz
        if (share := clipped_share(wave_S)) > CLIPPED:
            self._said = True
            where = f" from {self._begin_s:.0f} to {end_s:.0f} s" if self._begin_s else ""
            cut = f"clipped{where} ({share:.1%} of the samples are cut off)"
            say(f"{self._name}: {cut}; record at a lower level: expect more errors")
        self._waiting, self._count, self._begin_s = [], 0, end_s


def write_wav(path: Path, samples_S: np.ndarray, sample_rate_hz: int) -> None:
    """Write samples, int16 or float of full scale 1, as a 16-bit wav file, atomically."""
    samples_S, sample_rate_hz = np.asarray(samples_S), checked_rate(sample_rate_hz, "sample_rate_hz")
    if samples_S.ndim != 1 or samples_S.dtype not in (np.int16, np.float32, np.float64):
        raise SettingError(
            f"samples_S: {samples_S.dtype} of shape {samples_S.shape}; pass one channel (S,) of int16 or float"
        )
    write_pcm(path, samples_S, sample_rate_hz)


def write_pcm(path: Path, samples: np.ndarray, rate_hz: int) -> None:
    buffer = io.BytesIO()  # written by Python, since libsndfile does not say that the disk is full
    soundfile.write(buffer, samples, rate_hz, "PCM_16", format="WAV")
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def open_bytes(path_or_pipe: Path | str, directory: Path | None = None) -> IO[bytes]:
    """Open a file, or what a command writes, to read its bytes; errors as for `read_file`."""
    name, source = _source(path_or_pipe, directory, cached=True)
    try:
        return source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    except OSError as error:
        raise AudioError("unreadable audio", name, f"cannot be read ({error.strerror})", "make it readable") from error


def segment_fault(start_s: float, end_s: float | None, duration_s: float, missing_s: float = 0.0) -> str:
    """Describe how a segment lies outside a recording of `duration_s` that lacks `missing_s` at its end; or empty."""
    if start_s >= duration_s:
        return f"the segment starts at {start_s:g} s, the recording ends at {duration_s:.3f} s"
    if end_s is not None and end_s > duration_s + missing_s + SEGMENT_TOLERANCE_S:
        return f"the segment ends at {end_s:g} s, the recording at {duration_s:.3f} s"
    return ""


def _source(path_or_pipe: Path | str, directory: Path | None, cached: bool) -> tuple[str, Path | bytes]:
    if not isinstance(path_or_pipe, str | Path):
        raise SettingError(f"path_or_pipe={path_or_pipe!r}: pass the path of a recording (str or Path)")
    text = str(path_or_pipe).strip()
    if is_command(text) and not isinstance(path_or_pipe, Path):  # a file that a user names is never a command
        run = cached_output_of if cached and not refused() else output_of
        try:
            return text, run(text, pipe_directory(text, directory or Path.cwd()))
        except CommandError as error:
            raise AudioError("unreadable audio", text, error.problem, error.remedy) from error
    remedy = "correct its path in wav.scp, or remove the utterance" if directory else "pass the path of a recording"
    try:
        path = resolve_path(text, directory or Path.cwd())
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


def _opened(name: str, source: Path | bytes) -> tuple[soundfile.SoundFile, float, str]:
    """Return the open file, how many seconds are missing at its end, and how its header differs from its content."""
    remedy = "convert it to wav or flac, for instance: ffmpeg -i IN OUT.wav"
    try:
        stream: IO[bytes] = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        head, found = stream.read(1024), examine(stream)
    except OSError as error:
        raise AudioError("unreadable audio", name, f"cannot be read ({error.strerror})", "make it readable") from error
    # What is wrong with the file before any decoder reads it: empty, cut short, or no audio.
    if not head:
        raise AudioError("empty audio", name, "is empty (0 bytes)", "get the file again, or leave it out")
    if head.startswith((b"\0\5\x16\7", b"\0\5\x16\0")):
        problem = "is what macOS leaves beside a file (AppleDouble); it has no sound"
        raise AudioError("unreadable audio", name, problem, "pass the file itself, without ._ before its name")
    if found.missing_s >= END_TOLERANCE_S:
        raise AudioError("truncated audio", name, found.problem, "get the file again, or leave it out")
    if b"shorten" in head and head.startswith(b"NIST_1A"):
        remedy = "use sph2pipe in wav.scp: `utterance sph2pipe -f wav FILE |`"
    what, what_to_do = foreign_content(head)
    try:
        sound = _sound(Corrected(stream, found) if found.corrected else stream)
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:
        reason = str(error).rpartition(": ")[2].rstrip(".")
        if what:
            raise AudioError("unreadable audio", name, f"is {what}, not audio", what_to_do) from error
        raise AudioError("unreadable audio", name, f"is not audio that libsndfile reads ({reason})", remedy) from error
    # What libsndfile reads but no recording has.
    if not is_rate(sound.samplerate):
        sound.close()
        problem = f"has a sample rate of {sound.samplerate} Hz by its header, at which no speech is recorded"
        raise AudioError("other sample rate", name, problem, "correct it, for instance: sox -r 16000 IN OUT.wav")
    if sound.format == "XI":
        sound.close()
        raise AudioError("unreadable audio", name, "is an instrument (XI), which has no sample rate", remedy)
    # Usable: with how far its header may be trusted.
    if 0 < sound.frames < _UNKNOWN_LENGTH:
        unknown = f"is {sound.format}, whose end may be missing: its header is not compared with its content"
        return sound, found.missing_s, found.claim or ("" if sound.format in _EXAMINED else unknown)
    sound.close()
    if sound.frames == 0:
        raise AudioError("empty audio", name, "contains no samples", "get the file again, or leave it out")
    raise AudioError("unreadable audio", name, "has no length in its header", remedy)


def _sound(stream: IO[bytes] | Corrected) -> soundfile.SoundFile:
    if not isinstance(stream, io.BufferedReader):
        stream.seek(0)
        return soundfile.SoundFile(stream)
    # By its descriptor: given a name, libsndfile also reads `._NAME` beside it, which macOS writes, and prefers it.
    descriptor = os.dup(stream.fileno())
    os.lseek(descriptor, 0, os.SEEK_SET)
    stream.close()
    try:
        return soundfile.SoundFile(descriptor, closefd=True)
    except BaseException:
        with contextlib.suppress(OSError):  # libsndfile may have closed it
            os.close(descriptor)
        raise


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
    except MemoryError as error:
        problem = f"has {stop - start:,} samples by its header, which do not fit in memory"
        raise AudioError("unreadable audio", name, problem, "get the file again, or cut it into parts") from error
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise _undecodable(name, error) from error
    slack = _MP3_SLACK if sound.format == "MP3" else 0
    if len(samples) < stop - start - slack:
        raise _cut_short(name, f"ends after {start + len(samples)} samples, but its header says {sound.frames}")
    if not np.isfinite(samples).all():
        raise AudioError("unreadable audio", name, "contains values that are not finite numbers", "make the file again")
    if sound.subtype in ("FLOAT", "DOUBLE") and (largest := float(np.abs(samples).max(initial=0))) > LARGEST_FLOAT:
        problem, remedy = f"has floats up to {largest:g}, but full scale is 1", "divide samples of 16 bits by 32768"
        raise AudioError("other scale", name, problem, remedy)
    return samples


def _undecodable(name: str, error: Exception) -> AudioError:
    return _cut_short(name, f"cannot be decoded to its end ({str(error).rpartition(': ')[2].rstrip('.')})")


def _cut_short(name: str, problem: str) -> AudioError:
    return AudioError("truncated audio", name, problem, "get the file again, or leave it out")


@dataclass
class Listener:
    """Measures the channels of a recording block by block, and then chooses."""

    rate_hz: int
    _levels_WC: list[np.ndarray] = field(default_factory=list)
    _joint: np.ndarray | None = None  # (C, C): the sums of products, without the means
    _sums: np.ndarray | None = None
    _count: int = 0

    def hear(self, samples_SC: np.ndarray) -> None:
        """Take the next samples."""
        size = max(1, round(_WINDOW_S * self.rate_hz))
        whole = len(samples_SC) - len(samples_SC) % size
        if whole:
            windows_WSC = samples_SC[:whole].reshape(-1, size, samples_SC.shape[1])
            self._levels_WC.append(windows_WSC.var(axis=1, dtype=np.float64))
        exact_SC = samples_SC.astype(np.float64)
        joint, sums = exact_SC.T @ exact_SC, exact_SC.sum(0)
        self._joint = joint if self._joint is None else self._joint + joint
        self._sums = sums if self._sums is None else self._sums + sums
        self._count += len(samples_SC)

    def choose(self) -> Mix:
        if self._joint is None or self._sums is None:
            return Mix((0,))
        everything = tuple(range(len(self._sums)))
        mean = self._sums / self._count
        covariance_CC = self._joint / self._count - np.outer(mean, mean)
        energy_C = covariance_CC.diagonal().clip(0)
        if not energy_C.max() > _FLOOR:
            return Mix(everything)  # all are silent
        # Leave out silent channels.
        loud = tuple(np.flatnonzero(energy_C > energy_C.max() * 10 ** (-_SILENT_DB / 10)).tolist())
        silent = [channel for channel in everything if channel not in loud]
        are = "is silent" if len(silent) == 1 else "are silent"
        if len(loud) == 1:
            return Mix(loud, f"channel {loud[0] + 1} is used: {_named(silent)} {are}")
        among_CC = covariance_CC[np.ix_(loud, loud)]
        if among_CC.mean() >= _ALIKE * among_CC.diagonal().mean():
            if len(loud) == len(everything):
                return Mix(everything)
            return Mix(loud, f"channels {_counted(loud)} are averaged: {_named(silent)} {are}")
        return self._differing(loud, energy_C, among_CC)

    def _differing(self, loud: tuple[int, ...], energy_C: np.ndarray, among_CC: np.ndarray) -> Mix:
        levels_CW = 10 * np.log10(np.concatenate(self._levels_WC).T + _FLOOR) if self._levels_WC else np.zeros((0, 0))
        if levels_CW.shape[-1] < 2:
            best = max(loud, key=lambda channel: energy_C[channel])
            return Mix((best,), f"channel {best + 1} is used, the loudest: the channels cancel each other")
        # Several speakers: average those that have speech, if their levels rise and fall at different times.
        range_C = np.percentile(levels_CW, 90, axis=1) - np.percentile(levels_CW, 10, axis=1)
        spoken = [channel for channel in loud if range_C[channel] >= _SPEECH_DB] or list(loud)
        level = [levels_CW[channel] for channel in spoken]
        varies = all(each.std() > 0 for each in level)
        alike = np.corrcoef(level).min() if varies and len(spoken) > 1 else 1.0
        if len(spoken) > 1 and alike < _SAME_SOURCE:
            return Mix(
                tuple(spoken),
                f"channels {_counted(spoken)} are averaged although they differ, as those of several speakers do;"
                " recognise each by itself for better results",
            )
        # One speaker: the channel with the widest range, of equal ones the loudest, of equal ones the first.
        widest = max(range_C[channel] for channel in spoken)
        good = [channel for channel in spoken if range_C[channel] > widest - _EQUAL_DB]
        loudest = max(energy_C[channel] for channel in good)
        best = next(channel for channel in good if energy_C[channel] > loudest * 10 ** (-_EQUAL_DB / 10))
        correlation = among_CC / np.sqrt(np.outer(among_CC.diagonal(), among_CC.diagonal()))
        why = "have opposite polarity" if correlation.min() < -_ALIKE else "differ, so that their average loses a part"
        return Mix((best,), f"channel {best + 1} is used, the better one: the channels {why}")


def mix_of(samples_SC: np.ndarray, rate_hz: int) -> Mix:
    """The channels of samples (S, C) to average."""
    if samples_SC.shape[1] == 1:
        return Mix((0,))
    listener = Listener(rate_hz)
    listener.hear(samples_SC)
    return listener.choose()


def _named(channels: Iterable[int]) -> str:
    numbers = [str(channel + 1) for channel in channels]
    return f"channel {numbers[0]}" if len(numbers) == 1 else f"channels {', '.join(numbers)}"


def _counted(channels: Iterable[int]) -> str:
    return ", ".join(str(channel + 1) for channel in channels)
