"""Copies of a data directory with zeros in front of, behind or inside each recording, to measure what they do to WER.

    python tests/benchmarks/pad_with_zeros.py DATA OUT MS

writes OUT/front, OUT/behind and OUT/inside, without features.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import soundfile

from speech3.data import audio
from speech3.data.datadir import read_datadir


def padded(source: str, target: str, place: str, ms: int) -> None:
    """Write a copy of the directory `source` with `ms` of zeros in each recording."""
    data, out = read_datadir(Path(source)), Path(target)
    (out / "wav").mkdir(parents=True, exist_ok=True)
    lines = []
    for utterance in sorted(data.utterances):
        wave_S, rate = audio.load(data, utterance, mix_channels=True)
        # Inside: where the middle half is quietest, so that no word is cut in two.
        quarter, window = len(wave_S) // 4, rate // 25
        power = np.convolve(np.square(wave_S[quarter:-quarter], dtype=np.float64), np.ones(window), "same")
        at = {"front": 0, "inside": quarter + int(np.argmin(power)), "behind": len(wave_S)}[place]
        wave_S = np.insert(wave_S, at, np.zeros(rate * ms // 1000, np.float32))
        path = (out / "wav" / f"{utterance}.wav").resolve()
        soundfile.write(path, np.round(wave_S * 32768).astype(np.int16), rate, subtype="PCM_16")
        lines.append(f"{utterance} {path}\n")
    (out / "wav.scp").write_text("".join(lines))
    for name in ("text", "utt2spk", "spk2utt", "spk2gender"):
        if (Path(source) / name).exists():
            shutil.copy(Path(source) / name, out / name)


if __name__ == "__main__":
    source, out, ms = sys.argv[1:]
    for place in ("front", "behind", "inside"):
        padded(source, f"{out}/{place}", place, int(ms))
