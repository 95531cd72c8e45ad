"""Sounds that tests of `speech3.data` write to files."""

import numpy as np

RATE_HZ = 8000


def tone(seconds: float = 0.5, rate_hz: int = RATE_HZ, frequency_hz: float = 440.0) -> np.ndarray:
    """A sine at half scale, float32 (samples,)."""
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)
