"""Sounds for augmentation: directories of noise, in MUSAN's layout, and of room impulse responses, in Kaldi's.

Legend: S samples, R taps of an impulse response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import soundfile

from speech3.corpus import audio
from speech3.corpus.datadir import DataDir, read_datadir
from speech3.corpus.paths import files_below, resolve
from speech3.errors import Speech3Error
from speech3.io.text import read_utf8

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph", ".aif", ".aiff", ".au"})
_LONGEST_RESPONSE_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True)
class Sound:
    """A recording or a part of it.

    Attributes
    ----------
    name
        For messages: an utterance, or a file's path relative to its directory.
    location, directory
        As for `audio.read_file`.
    speaker
        Speaker of an utterance; empty for a file.
    """

    name: str
    location: str
    directory: Path
    start_s: float = 0.0
    end_s: float | None = None
    speaker: str = ""


def utterance_sounds(data: DataDir) -> list[Sound]:
    """The utterances of a data directory."""
    return [
        Sound(key, data.recording(utt), data.path, utt.start_s, utt.end_s, utt.speaker)
        for key, utt in data.utterances.items()
    ]


def find_sounds(directory: Path) -> list[Sound]:
    """The utterances of a Kaldi data directory (`wav.scp`), or else the audio files of a tree, sorted by name.

    Raises
    ------
    Speech3Error
        There is no such directory, or no audio in it.
    """
    if (directory / "wav.scp").exists():
        return utterance_sounds(read_datadir(directory))
    found = [path for path in _files(directory) if path.suffix.lower() in SUFFIXES]
    if not found:
        raise Speech3Error(
            f"{directory}: no audio file ({', '.join(sorted(SUFFIXES))}) and no wav.scp; give a directory of recordings"
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

    Raises
    ------
    Speech3Error
        There is no response, or a listed one is missing.
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
    raise Speech3Error(
        f"{listed}: {name}: no such file in the current directory or in any above the list; correct the path"
    )


def _files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise Speech3Error(
            f"{directory}: {'not a' if directory.exists() else 'no such'} directory; give one with audio"
        )
    return sorted(path for path in files_below(directory) if not path.name.startswith("."))


def some(items: Sequence[T], most: int, rng: np.random.Generator) -> tuple[T, ...]:
    """At most `most` of the items, drawn at random if there are more: they are sent with each task to its process."""
    if len(items) <= most:
        return tuple(items)
    return tuple(items[index] for index in sorted(rng.choice(len(items), most, replace=False)))


def read_sound(sound: Sound, sample_rate_hz: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Read `count` samples, float32 (S,), from a random place; a shorter sound is repeated.

    Raises
    ------
    Speech3Error
        The file cannot be read.
    """
    end_s = audio.info(sound.location, directory=sound.directory).duration_s if sound.end_s is None else sound.end_s
    spare_s = end_s - sound.start_s - count / sample_rate_hz
    start_s = sound.start_s + (rng.uniform(0, spare_s) if spare_s > 0 else 0.0)
    end_s = min(end_s, start_s + (count + 1) / sample_rate_hz) if spare_s > 0 else end_s
    wave_S, _ = audio.read_file(
        sound.location, directory=sound.directory, start_s=start_s, end_s=end_s, sample_rate_hz=sample_rate_hz,
        resample=True, mix_channels=True,
    )  # fmt: skip
    if spare_s <= 0:
        wave_S = np.roll(wave_S, -int(rng.integers(len(wave_S))))
    return np.resize(wave_S, count)


def read_whole(sound: Sound, sample_rate_hz: int, most: int) -> np.ndarray:
    """The first `most` samples, float32 (S,), or all if there are fewer; errors as for `read_sound`."""
    wave_S, _ = audio.read_file(
        sound.location, directory=sound.directory, start_s=sound.start_s, end_s=sound.end_s,
        sample_rate_hz=sample_rate_hz, resample=True, mix_channels=True,
    )  # fmt: skip
    return wave_S[:most]


def read_response(sound: Sound, sample_rate_hz: int) -> np.ndarray:
    """Read an impulse response, float32 (R,): the first channel, since the mean of several is not a room's response.

    Raises
    ------
    Speech3Error
        The file cannot be read, is silent, or is too long to be an impulse response.
    """
    about = audio.info(sound.location, directory=sound.directory)
    if about.duration_s > _LONGEST_RESPONSE_S:
        raise Speech3Error(
            f"{sound.location}: {about.duration_s:.1f} s is too long for an impulse response"
            f" (at most {_LONGEST_RESPONSE_S:g} s); keep noise out of rir_dir"
        )
    if about.channels > 1 and not sound.location.endswith("|"):
        path = resolve(sound.location, sound.directory)
        samples_RC, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
        response_R = audio.change_rate(np.ascontiguousarray(samples_RC[:, 0]), rate_hz, sample_rate_hz)
    else:
        response_R, _ = audio.read_file(
            sound.location, directory=sound.directory, sample_rate_hz=sample_rate_hz, resample=True, mix_channels=True
        )
    if not np.any(response_R):
        raise Speech3Error(f"{sound.location}: every sample is zero, so this is not an impulse response; remove it")
    return response_R
