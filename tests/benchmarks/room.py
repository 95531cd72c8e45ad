"""Word error rates of utterances that a microphone hears in a room: noise before, between and after them.

    OMP_NUM_THREADS=1 python tests/benchmarks/room.py MODEL DATA [--max 100] [--run 1] [--only stream]

One JSON line for each row of `ROOMS`, as streams and as recordings: `room_NAME_stream`, `room_NAME_offline`; `value` is
the WER in %, beside it are the substitutions, deletions and insertions. The noise is all through the recording, white,
or, if it wanders, pink with a level of 3 dB standard deviation, new every eighth of a second.

`--run N`: N utterances of a speaker are one recording, with 1.5 s of the room between them.
"""

import argparse
import json
from pathlib import Path

import jiwer
import numpy as np
import torch

from speech3.data import audio
from speech3.data.datadir import DataDir, read_datadir
from speech3.decode.recognizer import Recognizer, load_recognizer
from speech3.language import is_word

# name: seconds before speech, level of the noise (dB of full scale), gain of the speech (dB), whether the noise wanders
ROOMS = {
    "none": (0.0, -90, 0, False),
    "2s": (2.0, -60, 0, False),
    "5s": (5.0, -60, 0, False),
    "2s_loud": (2.0, -45, 0, False),
    "2s_quiet_microphone": (2.0, -80, -20, False),
    "2s_wandering": (2.0, -60, 0, True),
}
_BETWEEN_S, _AFTER_S, _PIECE_S = 1.5, 1.0, 0.1


def noise(count: int, rate_hz: int, wanders: bool, rng: np.random.Generator) -> np.ndarray:
    """Noise with a standard deviation of about 1."""
    white_S = rng.normal(size=count)
    if not wanders:
        return white_S
    spectrum = np.fft.rfft(white_S) / np.sqrt(np.maximum(np.arange(count // 2 + 1), count * 20 / rate_hz))
    pink_S, step = np.fft.irfft(spectrum, count), rate_hz // 8
    decibels_S = np.interp(
        np.arange(count) / step, np.arange(count // step + 2), 3 * rng.normal(size=count // step + 2)
    )
    return pink_S / pink_S.std() * 10 ** (decibels_S / 20)


def in_room(waves: list[np.ndarray], rate_hz: int, room: str, rng: np.random.Generator) -> np.ndarray:
    before_s, noise_db, gain_db, wanders = ROOMS[room]
    parts = [np.zeros(round(before_s * rate_hz))]
    for wave_S in waves:
        parts += [wave_S * 10 ** (gain_db / 20), np.zeros(round(_BETWEEN_S * rate_hz))]
    parts[-1] = np.zeros(round(_AFTER_S * rate_hz))
    speech_S = np.concatenate(parts)
    return (speech_S + noise(len(speech_S), rate_hz, wanders, rng) * 10 ** (noise_db / 20)).astype(np.float32)


def recognised(recognizer: Recognizer, wave_S: np.ndarray, rate_hz: int, as_stream: bool) -> str:
    if not as_stream:
        return " ".join(filter(is_word, recognizer.transcribe(wave_S, rate_hz).text.split()))
    stream, words = recognizer.stream(rate_hz), []
    for start in range(0, len(wave_S), round(_PIECE_S * rate_hz)):
        stream.accept(wave_S[start : start + round(_PIECE_S * rate_hz)])
        words += [word.word for result in stream.ended() for word in result.words]
    return " ".join(filter(is_word, [*words, *(word.word for word in stream.finish().words)]))


def groups_of(data: DataDir, size: int, most: int) -> list[tuple[str, ...]]:
    """Utterances of one speaker, `size` together; at most `most` groups, evenly from all."""
    speakers = data.speakers().values()
    groups = [tuple(ids[at : at + size]) for ids in speakers for at in range(0, len(ids), size)]
    return groups[:: -(-len(groups) // most)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--max", type=int, default=100)
    parser.add_argument("--run", type=int, default=1)
    parser.add_argument("--only", choices=["stream", "offline"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    recognizer, data = load_recognizer(given.model), read_datadir(given.data)
    for room in ROOMS:
        for way in [given.only] if given.only else ["stream", "offline"]:
            rng, spoken, heard = np.random.default_rng(0), [], []
            for group in groups_of(data, given.run, given.max):
                loaded = [audio.load(data, utterance) for utterance in group]
                wave_S = in_room([wave_S for wave_S, _ in loaded], loaded[0][1], room, rng)
                spoken.append(" ".join(data.utterances[utterance].text or "" for utterance in group))
                heard.append(recognised(recognizer, wave_S, loaded[0][1], way == "stream"))
            found = jiwer.process_words(spoken, heard)
            errors = {
                "substitutions": found.substitutions,
                "deletions": found.deletions,
                "insertions": found.insertions,
            }
            figure = {"name": f"room_{room}_{way}", "value": round(100 * found.wer, 1), "unit": "%", "rival": None}
            print(json.dumps(figure | errors), flush=True)


if __name__ == "__main__":
    main()
