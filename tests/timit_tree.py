"""A small TIMIT: all speakers of the core test set and of dev, and a few others; each phone has its own sound."""

from pathlib import Path

import numpy as np
import soundfile

from speech3.config import shipped
from speech3.data.phones import phones61

RATE_HZ = 16000
SPOKEN = ("iy", "sh", "ae", "kcl", "k", "q", "ux", "pau", "s")  # enough for 39 classes, 48 phones and 61 to differ


def speakers_of_test() -> dict[str, list[str]]:
    lines = (shipped("data") / "timit" / "speakers.txt").read_text().splitlines()
    table: dict[str, list[str]] = {}
    for part, *names in (line.split() for line in lines if not line.startswith("#")):
        table.setdefault(part, []).extend(names)
    return table


def sound_of(phone: str, samples: int, generator: np.random.Generator) -> np.ndarray:
    """Two tones, a pair for each phone, in noise; `h#` is nearly silent."""
    noise_N = generator.normal(0, 20, samples)
    if phone == "h#":
        return noise_N
    number = phones61().index(phone)
    low_hz, high_hz = 200 + 130 * (number % 8), 1500 + 650 * (number // 8)
    time_s = np.arange(samples) / RATE_HZ
    return noise_N + 4000 * np.sin(2 * np.pi * low_hz * time_s) + 3000 * np.sin(2 * np.pi * high_hz * time_s)


def make_timit(root: Path, train: int, sentences: int, phones: int, *, small_letters: bool = False) -> None:
    """Write TRAIN: `train` speakers with `sentences` sentences each; and TEST: one sentence of each listed speaker."""
    generator, case = np.random.default_rng(1), str.lower if small_letters else str
    halves = {
        "TRAIN": [f"{'FM'[n % 2]}{chr(65 + n // 26)}{chr(65 + n % 26)}X0" for n in range(train)],
        "TEST": [name for names in speakers_of_test().values() for name in names],
    }
    for half, speakers in halves.items():
        for number, speaker in enumerate(speakers):
            directory = root / case(half) / case(f"DR{1 + number % 8}") / case(speaker)
            directory.mkdir(parents=True)
            names = ["SA1", *(f"SI{n}" if n % 2 else f"SX{n}" for n in range(sentences if half == "TRAIN" else 1))]
            for name in names:
                _write(directory / case(name), case, phones, generator)


def _write(path: Path, case, phones: int, generator: np.random.Generator) -> None:  # type: ignore[no-untyped-def]
    said = ["h#", *generator.choice(SPOKEN, phones), "h#"]
    pieces = [sound_of(phone, int(generator.integers(960, 1920)), generator) for phone in said]
    ends = np.cumsum([len(piece) for piece in pieces])
    rows = zip([0, *ends[:-1]], ends, said, strict=True)
    path.with_suffix(case(".PHN")).write_text("".join(f"{begin} {end} {phone}\n" for begin, end, phone in rows))
    samples_N = np.concatenate(pieces).astype(np.int16)
    soundfile.write(path.with_suffix(case(".WAV")), samples_N, RATE_HZ, format="NIST", subtype="PCM_16")
    path.with_suffix(case(".TXT")).write_text(f"0 {len(samples_N)} What it says.\n")
