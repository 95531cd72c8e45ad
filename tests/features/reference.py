"""Kaldi's own features for nine recordings, in ../shared/reference beside the checkout."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
RECORDINGS = [
    ("8k", "0_jackson_0"),
    ("8k", "3_george_12"),
    ("8k", "6_yweweler_3"),
    ("8k", "7_nicolas_25"),
    ("8k", "9_theo_16"),
    ("16k", "espeak_f"),
    ("16k", "espeak_m"),
    ("16k", "espeak_m_zeros"),
    ("16k", "fsdd_up"),
]
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"{REFERENCE} is absent")


@cache
def vectors(rate: str) -> dict[str, np.ndarray]:
    """All of Kaldi's features at a rate, by ``<utterance>.<feature>``."""
    with np.load(REFERENCE / f"kaldi_features_{rate}.npz") as archive:
        return dict(archive)


@cache
def wave(rate: str, name: str) -> np.ndarray:
    """Samples, float32 in [-1, 1)."""
    return soundfile.read(REFERENCE / f"wav{rate}" / f"{name}.wav", dtype="float32")[0]
