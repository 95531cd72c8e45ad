"""Negative utterances, in which nobody says a word of the domain: from them a model learns when to be silent.

They are silence, room noise, notes and chords, other speech cut into pieces, babble of it, and the corpus's own speech
in shuffled pieces, half of them reversed. In some ("two"), one of these sounds follows another, as in a stream.
Their words are symbols: `NOISE`, and `OTHER_SPEECH` for each 0.4 s of speech. A model has a phone for each of the two,
as Kaldi's recipes have NSN and SPN.

Axes: N samples.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from speech3.data import audio
from speech3.data.augment.augmenter import original_value
from speech3.data.augment.noises import Sound, babble, colored_noise, hum, read_sound, read_whole, utterance_sounds
from speech3.data.datadir import NOISE, OTHER_SPEECH, DataDir, Utterance, write_datadir
from speech3.errors import DataError, Speech3Error
from speech3.runtime import progress, say

# Drawn in turn, so that the shares are the same in every corpus.
_KINDS = ("other", "noise", "shuffled", "two", "tones", "other", "two", "babble", "silence", "two")
_SPEECH, _FOLLOWING = ("other", "shuffled", "babble"), ("other", "babble", "noise", "tones", "silence")
_FIRST_SHARE = 0.25, 0.75  # of the first of "two" sounds
_LENGTHS_S = (1.0, 6.0)
NEGATIVE_S = 3.5  # mean length
_WORD_S = 0.4  # of speech, for each word in the transcript
_PIECES_S = (0.06, 0.2)  # of shuffled speech: about a phone, shorter than most words
_FADE_S = 0.005  # at the ends of these pieces, and of each of two sounds: a click must not tell that one follows
_VOICES = 4
_SPEECH_DB = (-20.0, 0.0)  # by which other speech is made softer
_BABBLE_DB = (-45.0, -15.0)
_MOST_NOTES = 3  # of a chord
_HELD_OUT = 10  # one speaker of this many
_TRIES = 20  # attempts to draw a recording that can be read
_TASK = "negatives"


def write_negatives(
    data: DataDir, out: Path, count: int, others: Sequence[Sound], sample_rate_hz: int, seed: int, *, alone: bool
) -> DataDir:
    """Write a data directory with `count` negatives, whose 16-bit audio is in ``out/wav``.

    The utterances of `data` are in it, too, unless the negatives are to be `alone`. `others` are recordings of other
    speech; without any, that of `data` is shuffled. Ids begin with ``neg-``; each negative is a speaker of its own.

    Raises `Speech3Error`: `data` already has negatives; too many recordings in a row cannot be read.
    """
    if taken := next((key for key in data.utterances if key.startswith("neg-")), None):
        raise DataError(f"{data.path}: has an utterance {taken}, but ids of negatives begin with neg-; rename it")
    recordings = {} if alone else {key: original_value(value, data.path, out) for key, value in data.recordings.items()}
    utterances = {} if alone else dict(data.utterances)
    made = negatives(count, others, utterance_sounds(data), sample_rate_hz, seed, held_out=alone)
    for number, (kind, text, wave_N) in enumerate(progress(made, count, _TASK)):
        key = f"neg-{number:05d}-{kind}"
        audio.write_wav(out / "wav" / f"{key}.wav", wave_N, sample_rate_hz)
        recordings[key], utterances[key] = f"wav/{key}.wav", Utterance(key, key, key, text)
    result = DataDir(out, dict(sorted(recordings.items())), dict(sorted(utterances.items())))
    write_datadir(result, out)
    return result


def negatives(
    count: int, others: Sequence[Sound], own: Sequence[Sound], sample_rate_hz: int, seed: int, *, held_out: bool
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Kind, transcript and samples, float32 (N,), of each negative; the same for the same seed."""
    # In shuffled pieces some short words of the domain survive: no sounds to judge words by, if there are others.
    replaced = {"shuffled": "other"} if others and held_out else {} if others else {"other": "shuffled"}
    unreadable: set[str] = set()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        kind = _KINDS[number % len(_KINDS)]
        kind = replaced.get(kind, kind)
        for left in reversed(range(_TRIES)):
            try:
                parts = _sounds(kind, others, own, sample_rate_hz, rng)
                break
            except Speech3Error as error:
                if str(error) not in unreadable:
                    say(f"  left out: {error}")
                unreadable.add(str(error))
                if not left:
                    raise
        words = _words([(part, len(wave_N) / sample_rate_hz) for part, wave_N in parts])
        wave_N = np.concatenate([wave_N for _, wave_N in parts])
        yield kind, " ".join(words), wave_N.clip(-1, 1).astype(np.float32)


def _words(lengths_s: Sequence[tuple[str, float]]) -> list[str]:
    """The transcript of sounds of these kinds and lengths: a noise that changes is one noise."""
    words = [max(1, round(s / _WORD_S)) * [OTHER_SPEECH] if kind in _SPEECH else [NOISE] for kind, s in lengths_s]
    return words[0] if all(each == [NOISE] for each in words) else [word for each in words for word in each]


def separate_speakers(sounds: Sequence[Sound]) -> tuple[list[Sound], list[Sound]]:
    """Separate one speaker in ten (second), for choosing costs, from those that are trained on (first).

    If there is only one speaker, both have all sounds.
    """
    speakers = sorted({sound.speaker or sound.name for sound in sounds})
    held = set(speakers[::_HELD_OUT]) if len(speakers) > 1 else set(speakers)
    parts: tuple[list[Sound], list[Sound]] = ([], [])
    for sound in sounds:
        parts[(sound.speaker or sound.name) in held].append(sound)
    return parts[0] or list(sounds), parts[1]


def _sounds(
    kind: str, others: Sequence[Sound], own: Sequence[Sound], rate_hz: int, rng: np.random.Generator
) -> list[tuple[str, np.ndarray]]:
    """Kind and samples of the parts of a negative, of which "two" has two."""
    count = round(rng.uniform(*_LENGTHS_S) * rate_hz)
    if kind != "two":
        return [(kind, _sound(kind, count, others, own, rate_hz, rng))]
    first = round(count * rng.uniform(*_FIRST_SHARE))
    kinds = rng.choice(_FOLLOWING, 2, replace=False)
    parts = list(zip(map(str, kinds), (first, count - first), strict=True))
    return [(part, _faded(_sound(part, size, others, own, rate_hz, rng), rate_hz)) for part, size in parts]


def _sound(
    kind: str, count: int, others: Sequence[Sound], own: Sequence[Sound], rate_hz: int, rng: np.random.Generator
) -> np.ndarray:
    if kind == "silence":
        return rng.standard_normal(count) * 10 ** (rng.uniform(-110, -80) / 20)
    if kind == "noise":
        noise_N = colored_noise(count, rng.uniform(0, 6), rng) + hum(count, rate_hz, rng) * rng.uniform(0, 1)
        return _at(noise_N, rng.uniform(-75, -15))
    if kind == "tones":
        return _at(tones(count, rate_hz, rng), rng.uniform(-60, -15)) + rng.standard_normal(count) * 1e-4
    if kind == "babble":
        voices = [_speech(others, own, count, rate_hz, rng) for _ in range(_VOICES)]
        return _at(babble(voices, count, rng), rng.uniform(*_BABBLE_DB))
    speech_N = _speech(others if kind == "other" else (), own, count, rate_hz, rng)
    return speech_N * 10 ** (rng.uniform(*_SPEECH_DB) / 20)


def _speech(
    others: Sequence[Sound], own: Sequence[Sound], count: int, rate_hz: int, rng: np.random.Generator
) -> np.ndarray:
    """A piece of other speech or, if there is none, of our own, shuffled."""
    if others:
        return read_sound(others[int(rng.integers(len(others)))], rate_hz, count, rng)
    return shuffled(read_whole(own[int(rng.integers(len(own)))], rate_hz, count), rate_hz, rng)


def shuffled(speech_N: np.ndarray, sample_rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """The speech cut into pieces that are about as long as phones, in random order, half of them reversed."""
    ends = [0]
    while ends[-1] < len(speech_N):
        ends.append(ends[-1] + round(rng.uniform(*_PIECES_S) * sample_rate_hz))
    pieces = [_faded(speech_N[begin:end], sample_rate_hz) for begin, end in pairwise(ends)]
    return np.concatenate([pieces[place][:: 1 if rng.random() < 0.5 else -1] for place in rng.permutation(len(pieces))])


def _faded(sound_N: np.ndarray, sample_rate_hz: int) -> np.ndarray:
    """The sound, which swells and fades within `_FADE_S`."""
    size = min(round(_FADE_S * sample_rate_hz), len(sound_N) // 2)
    gain_N = np.ones(len(sound_N), sound_N.dtype)
    gain_N[:size] = np.linspace(0, 1, size)
    gain_N[len(sound_N) - size :] = gain_N[:size][::-1]
    return sound_N * gain_N


def tones(count: int, sample_rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """Notes and chords (N,) float64 of up to twelve harmonics that begin at random times and swell or decay."""
    sound_N, begin = np.zeros(count), 0
    while begin < count:
        length = min(round(rng.uniform(0.1, 1.0) * sample_rate_hz), count - begin)
        time_N = np.arange(length) / sample_rate_hz
        shape_N = np.hanning(length) if rng.random() < 0.5 else np.exp(-time_N * rng.uniform(1, 10))
        for _ in range(int(rng.integers(1, _MOST_NOTES + 1))):
            pitch_hz = 60 * 25 ** rng.uniform()
            for harmonic in range(1, int(rng.integers(2, 13))):
                if harmonic * pitch_hz < sample_rate_hz / 2:
                    strength, phase = rng.uniform(0.2, 1) / harmonic, rng.uniform(0, 2 * np.pi)
                    angle_N = 2 * np.pi * harmonic * pitch_hz * time_N + phase
                    sound_N[begin : begin + length] += strength * shape_N * np.sin(angle_N)
        begin += round(rng.uniform(0.1, 0.6) * sample_rate_hz)
    return sound_N


def _at(sound_N: np.ndarray, level_db: float) -> np.ndarray:
    return sound_N * (10 ** (level_db / 20) / max(float(sound_N.std()), 1e-12))
