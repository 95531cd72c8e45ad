"""Sounds for augmentation: recorded noise and room responses, and synthesised ones.

Directories of noise are in MUSAN's layout, those of room impulse responses in Kaldi's. Synthesis: pure functions of
waveforms and a random generator; waveforms are float, full scale 1, and no function shifts speech in time.

Axes: S or N samples, R taps of an impulse response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import soundfile

from speech3.data import audio
from speech3.data.datadir import DataDir, read_datadir
from speech3.data.paths import files_below, resolve_path
from speech3.errors import DataError, MissingError
from speech3.runtime import read_utf8

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph", ".aif", ".aiff", ".au"})
_LONGEST_RESPONSE_S = 10.0
T = TypeVar("T")
SPEED_OF_SOUND_M_S = 343.0


@dataclass(frozen=True)
class Sound:
    """A recording or a part of it."""

    name: str  # for messages: an utterance, or a file's path relative to its directory
    # location, directory: as for `audio.read_file`.
    location: str
    directory: Path
    start_s: float = 0.0
    end_s: float | None = None
    speaker: str = ""  # speaker of an utterance; empty for a file


def utterance_sounds(data: DataDir) -> list[Sound]:
    return [
        Sound(key, data.recording(utt), data.path, utt.start_s, utt.end_s, utt.speaker)
        for key, utt in data.utterances.items()
    ]


def find_sounds(directory: Path) -> list[Sound]:
    """The utterances of a Kaldi data directory (`wav.scp`), or else the audio files of a tree, sorted by name."""
    if (directory / "wav.scp").exists():
        return utterance_sounds(read_datadir(directory))
    found = [path for path in _files(directory) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise MissingError(
            f"{directory}: no audio file ({', '.join(sorted(SUFFIXES))}) and no wav.scp; pass a directory of recordings"
        )
    return [Sound(str(path.relative_to(directory)), str(path), directory) for path in found]


def split_speech(sounds: Sequence[Sound]) -> tuple[list[Sound], list[Sound]]:
    """Separate MUSAN's `noise` and `music` (first) from its `speech` (second), which is for babble only."""
    parts: tuple[list[Sound], list[Sound]] = ([], [])
    for sound in sounds:
        parts["speech" in Path(sound.name).parts[:-1]].append(sound)
    return parts


def find_responses(directory: Path) -> list[Sound]:
    """Room impulse responses: those in Kaldi's `rir_list` files, if there are any, or else those of `find_sounds`.

    A line of `rir_list` (wav-reverberate's ``--rir-set-parameters``) ends in the path, relative to where the corpus was
    unpacked: ``--rir-id small-00001 --room-id Room001 RIRS_NOISES/simulated_rirs/smallroom/Room001-00001.wav``.
    """
    lists = [path for path in _files(directory) if path.name == "rir_list"]
    if not lists:
        return find_sounds(directory)
    texts = [(listed, read_utf8(listed)) for listed in lists]
    lines = [(listed, line.split()[-1]) for listed, text in texts for line in text.splitlines() if line.strip()]
    return [Sound(name, str(_listed(listed, name)), directory) for listed, name in lines]


def _listed(listed: Path, name: str) -> Path:
    for directory in (Path.cwd(), *listed.resolve().parents):
        if (directory / name).is_file():
            return directory / name
    raise MissingError(
        f"{listed}: {name}: no such file in the current directory or in any above the list; correct the path"
    )


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise MissingError(
            f"{directory}: {'not a' if directory.exists() else 'no such'} directory; pass one with audio"
        )
    return sorted(path for path in files_below(directory) if not path.name.startswith("."))


def some(items: Sequence[T], most: int, rng: np.random.Generator) -> tuple[T, ...]:
    """At most `most` of the items, drawn at random if there are more: they are sent with each task to its process."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[index] for index in sorted(rng.choice(len(items), most, replace=False)))


def read_sound(sound: Sound, sample_rate_hz: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Read `count` samples, float32 (S,), from a random place; a shorter sound is repeated."""
    end_s = audio.info(sound.location, directory=sound.directory).duration_s if sound.end_s is None else sound.end_s
    spare_s = end_s - sound.start_s - count / sample_rate_hz
    start_s = sound.start_s + (rng.uniform(0, spare_s) if spare_s > 0 else 0.0)
    end_s = min(end_s, start_s + (count + 1) / sample_rate_hz) if spare_s > 0 else end_s
    wave_S = _samples(sound, sample_rate_hz, start_s, end_s)
    if spare_s <= 0:
        wave_S = np.roll(wave_S, -int(rng.integers(len(wave_S))))
    return np.resize(wave_S, count)


def read_whole(sound: Sound, sample_rate_hz: int, most: int) -> np.ndarray:
    """The first `most` samples, float32 (S,), or all if there are fewer; errors as for `read_sound`."""
    return _samples(sound, sample_rate_hz, sound.start_s, sound.end_s)[:most]


def _samples(sound: Sound, sample_rate_hz: int, start_s: float, end_s: float | None) -> np.ndarray:
    return audio.read_file(
        sound.location,
        directory=sound.directory,
        start_s=start_s,
        end_s=end_s,
        sample_rate_hz=sample_rate_hz,
        resample=True,
        mix_channels=True,
    )[0]


def read_response(sound: Sound, sample_rate_hz: int) -> np.ndarray:
    """Read an impulse response, float32 (R,): the first channel, since the mean of several is not a room's response."""
    about = audio.info(sound.location, directory=sound.directory)
    if about.duration_s > _LONGEST_RESPONSE_S:
        raise DataError(
            f"{sound.location}: {about.duration_s:.1f} s is too long for an impulse response"
            f" (at most {_LONGEST_RESPONSE_S:g} s); keep noise out of rir_dir"
        )
    if about.channels > 1 and not sound.location.endswith("|"):
        path = resolve_path(sound.location, sound.directory)
        samples_RC, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
        response_R = audio.change_rate(np.ascontiguousarray(samples_RC[:, 0]), rate_hz, sample_rate_hz)
    else:
        response_R = _samples(sound, sample_rate_hz, sound.start_s, sound.end_s)
    if not np.any(response_R):
        raise DataError(f"{sound.location}: every sample is zero, so this is not an impulse response; remove it")
    return response_R


def colored_noise(count: int, slope_db_per_octave: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise (N,) float64 of standard deviation 1 whose power falls by `slope_db_per_octave` (3: pink).

    It is flat below 1/512 of the sampling rate, so that the lowest frequencies do not have all the power.
    """
    size = 1 << (count - 1).bit_length()
    spectrum_F = np.fft.rfft(rng.standard_normal(size))
    frequency_F = np.maximum(np.fft.rfftfreq(size), 1 / 512)
    spectrum_F *= frequency_F ** (-slope_db_per_octave / (20 * np.log10(2)))
    noise_N = np.fft.irfft(spectrum_F, size)[:count]
    return noise_N / max(noise_N.std(), 1e-12)


def hum(count: int, sample_rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """Mains hum (N,) float64 of standard deviation 1: 50 or 60 Hz, twelve harmonics of falling, random strength."""
    mains_hz = rng.choice([50.0, 60.0]) * rng.uniform(0.998, 1.002)
    harmonic_H = np.arange(1, 13)
    strength_H = rng.uniform(0.2, 1.0, 12) / harmonic_H
    phase_H = rng.uniform(0, 2 * np.pi, 12)
    time_N1 = np.arange(count)[:, None] / sample_rate_hz
    noise_N = np.sin(2 * np.pi * mains_hz * harmonic_H * time_N1 + phase_H) @ strength_H
    return noise_N / max(noise_N.std(), 1e-12)


def babble(voices: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """Mix of recordings (N,) float64 of standard deviation 1, at equal power, each repeated from a random start."""
    mixed_N = np.zeros(count)
    for voice in voices:
        start = int(rng.integers(len(voice)))
        mixed_N += np.resize(np.roll(voice, -start), count) / max(float(voice.std()), 1e-12)
    return mixed_N / max(mixed_N.std(), 1e-12)


def active_rms(speech_N: np.ndarray) -> float:
    """Root mean square over the samples that are speech: 10 ms blocks (at 16 kHz) within 35 dB of the loudest block."""
    blocks_KB = speech_N[: len(speech_N) // 160 * 160].reshape(-1, 160)
    if not blocks_KB.size:
        return float(np.sqrt(np.mean(np.square(speech_N))))
    power_K = np.mean(np.square(blocks_KB), axis=1)
    return float(np.sqrt(power_K[power_K >= power_K.max() * 10**-3.5].mean()))


def add_noise(speech_N: np.ndarray, noise_N: np.ndarray, snr_db: float) -> np.ndarray:
    """Add `noise_N` (standard deviation 1, same length) so that active speech is `snr_db` above it."""
    return speech_N + noise_N * (active_rms(speech_N) * 10 ** (-snr_db / 20))


def room_response(
    sample_rate_hz: int, rt60_s: float, distance_m: float, direct_to_reverberant_db: float, rng: np.random.Generator
) -> np.ndarray:
    """Impulse response (N,) of a room after Polack's model: direct sound, then noise that falls by 60 dB in `rt60_s`.

    The direct sound is sample 0 with amplitude 1 (the delay from source to microphone is left out), so convolution
    keeps the timing of speech. `distance_m` is the path from the source to the nearest wall and back; before its echo
    there is only the direct sound. J.-D. Polack, La transmission de l'energie sonore dans les salles (1988).
    """
    count = int(rt60_s * sample_rate_hz)
    first = min(int(distance_m / SPEED_OF_SOUND_M_S * sample_rate_hz) + 1, count - 1)
    time_s_N = np.arange(count) / sample_rate_hz
    tail_N = rng.standard_normal(count) * 10 ** (-3 * time_s_N / rt60_s)
    tail_N[:first] = 0
    tail_N *= 10 ** (-direct_to_reverberant_db / 20) / np.sqrt(np.sum(np.square(tail_N)))
    tail_N[0] = 1.0
    return tail_N


def reverberate(speech_N: np.ndarray, response_M: np.ndarray) -> np.ndarray:
    """Convolve with an impulse response; the result is as long as the input, without the rest of the tail."""
    size = 1 << (len(speech_N) + len(response_M) - 1).bit_length()
    product_F = np.fft.rfft(speech_N, size) * np.fft.rfft(response_M, size)
    return np.fft.irfft(product_F, size)[: len(speech_N)]


def resample(samples_N: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Change the sampling rate by cutting (or zero-padding) the spectrum of the whole recording; timing is kept.

    It uses numpy instead of torchaudio, whose sums of products depend on the number of threads, while the corpus must
    not. Both ends of the recording should be silent, since the discrete spectrum is that of a periodic signal.
    """
    divisor = np.gcd(from_hz, to_hz)
    up, down = to_hz // divisor, from_hz // divisor
    blocks = -(-len(samples_N) // (16 * down)) * 16  # small prime factors make a fast transform
    padded_N = np.pad(samples_N, (0, blocks * down - len(samples_N)))
    resampled_M = np.fft.irfft(np.fft.rfft(padded_N), blocks * up) * (up / down)
    return resampled_M[: -(-len(samples_N) * up // down)]
