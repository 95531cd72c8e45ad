"""Words that a model recognises where nobody says any of its words: one JSON line for each kind of sound.

    OMP_NUM_THREADS=1 python tests/benchmarks/false_words.py MODEL --speech DATA [--min-confidence X] [--seconds 60]

The sounds: digital silence, room noise (pink noise and hum, quiet), white noise, music (synthesised: chords of decaying
harmonics), babble of four voices, and sentences, the last two from the recordings of DATA. Sentences with a word of the
model's vocabulary are left out; where fewer than ten are left, babble and sentences are. Levels vary from piece to
piece, as do the lengths of the pieces. `mixture` is all sounds, one after another in random order.

name
    ``false_words_KIND_offline`` (each piece is a recording) or ``false_words_KIND_stream`` (all pieces of the kind are
    one stream, fed in pieces of 0.1 s). ``flashes_KIND_stream``: how often the words shown so far went from none to
    some. `value` is per minute; `unknown` is the number of `<unk>` per minute, which are not counted as words;
    `confidence` is the mean confidence of the false words.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from speech3.data import audio
from speech3.data.augment.noises import babble, colored_noise, hum
from speech3.data.datadir import read_datadir
from speech3.decode.recognizer import Recognizer, load_recognizer
from speech3.decode.streaming import Stream
from speech3.decode.trained_model import Word
from speech3.language import is_word

_PIECE_S = 0.1
_VOICES = 4


def music(count: int, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """Notes and chords of eight decaying harmonics, four notes or chords a second; standard deviation 1."""
    sound_S, step = np.zeros(count), rate_hz // 4
    for start in range(0, count, step):
        time_N = np.arange(min(2 * step, count - start)) / rate_hz
        for _ in range(int(rng.integers(1, 4))):
            pitch_hz = 440 * 2 ** (int(rng.integers(-24, 13)) / 12)
            for harmonic in range(1, 9):
                if harmonic * pitch_hz < rate_hz / 2:
                    decayed_N = np.exp(-time_N * rng.uniform(2, 8)) / harmonic
                    sound_S[start : start + len(time_N)] += decayed_N * np.sin(2 * np.pi * harmonic * pitch_hz * time_N)
    return sound_S / sound_S.std()


def noises(kind: str, seconds: float, rate_hz: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Pieces of 1 to 10 s of a kind of noise, float32, rounded to 16 bits as a sound card does."""
    left = round(seconds * rate_hz)
    while left > 0:
        count = min(left, round(rng.uniform(1, 10) * rate_hz))
        left -= count
        if kind == "silence":
            sound_S = np.zeros(count)
        elif kind == "room":
            sound_S = (colored_noise(count, 3.0, rng) + hum(count, rate_hz, rng)) * 10 ** (rng.uniform(-70, -45) / 20)
        elif kind == "white":
            sound_S = rng.standard_normal(count) * 10 ** (rng.uniform(-70, -20) / 20)
        else:
            sound_S = music(count, rate_hz, rng) * 10 ** (rng.uniform(-40, -20) / 20)
        yield as_16_bits(sound_S)


def as_16_bits(sound_S: np.ndarray) -> np.ndarray:
    return (np.round(sound_S.clip(-1, 1) * 32767) / 32768).astype(np.float32)


def voices(directory: Path, known: set[str], rate_hz: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The recordings of a data directory without a word of the model, in random order."""
    data = read_datadir(directory)
    foreign = [key for key, utterance in data.utterances.items() if known.isdisjoint((utterance.text or "").split())]
    return [
        audio.load(data, key, sample_rate_hz=rate_hz, resample=True, mix_channels=True)[0]
        for key in rng.permutation(foreign)
    ]


def until(seconds: float, rate_hz: int, sounds: list[np.ndarray]) -> list[np.ndarray]:
    """The first sounds that together last `seconds`."""
    ends_S = np.cumsum([len(sound_S) for sound_S in sounds])
    return sounds[: 1 + int(np.searchsorted(ends_S, seconds * rate_hz))]


def corpus(
    seconds: float, speech: Path | None, known: set[str], rate_hz: int, rng: np.random.Generator
) -> dict[str, list[np.ndarray]]:
    kinds = {kind: list(noises(kind, seconds, rate_hz, rng)) for kind in ("silence", "room", "white", "music")}
    said = voices(speech, known, rate_hz, rng) if speech else []
    if len(said) >= 10:
        mixed = [
            as_16_bits(babble([said[i] for i in rng.choice(len(said), _VOICES, replace=False)], count, rng) * level)
            for count, level in [(8 * rate_hz, 10 ** (rng.uniform(-40, -20) / 20)) for _ in range(1 + int(seconds / 8))]
        ]
        kinds |= {"babble": until(seconds, rate_hz, mixed), "sentences": until(seconds, rate_hz, said)}
    every = [sound_S for sounds in kinds.values() for sound_S in sounds]
    return kinds | {"mixture": [every[place] for place in rng.permutation(len(every))]}


def streamed(recognizer: Recognizer, wave_S: np.ndarray, rate_hz: int) -> tuple[list[Word], int]:
    """The words of a stream, and how often the words shown so far went from none to some."""
    stream, size, words, shown, flashes = Stream(recognizer, rate_hz), round(_PIECE_S * rate_hz), list[Word](), "", 0
    for start in range(0, len(wave_S), size):
        partial = stream.accept(wave_S[start : start + size])
        flashes += bool(partial) and not shown
        shown = partial
        words += [word for result in stream.ended() for word in result.words]
    return [*words, *stream.finish().words], flashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=["offline", "stream"])
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--min-confidence", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recognizer = load_recognizer(options.model).with_min_confidence(options.min_confidence)
    rate_hz = recognizer.features.sample_frequency or 16000
    kinds = corpus(options.seconds, options.speech, set(recognizer.graph.words), rate_hz, np.random.default_rng(1))
    for kind in options.kinds or kinds:
        minutes = sum(map(len, kinds[kind])) / rate_hz / 60
        if "offline" in options.only:
            said = [word for sound_S in kinds[kind] for word in recognizer.transcribe(sound_S, rate_hz).words]
            report(f"false_words_{kind}_offline", said, minutes)
        if "stream" in options.only:
            said, flashes = streamed(recognizer, np.concatenate(kinds[kind]), rate_hz)
            report(f"false_words_{kind}_stream", said, minutes)
            print(json.dumps({"name": f"flashes_{kind}_stream", "value": round(flashes / minutes, 2), "unit": "1/min"}))


def report(name: str, said: list[Word], minutes: float) -> None:
    words = [word for word in said if is_word(word.word)]
    sure = float(np.mean([word.confidence or 0.0 for word in words])) if words else None
    print(
        json.dumps(
            {
                "name": name,
                "value": round(len(words) / minutes, 2),
                "unit": "1/min",
                "unknown": round((len(said) - len(words)) / minutes, 2),
                "confidence": sure and round(sure, 2),
                "minutes": round(minutes, 2),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
