"""Recordings as clips inside a page: short ones only, so that the page stays small."""

import base64
import io
from dataclasses import dataclass

import numpy as np
import soundfile

MOST_BYTES = 100_000  # of a clip, as text in the page
_LEVELS = (0.0, 0.9)  # of MP3's compression: about 4.0 and 2.8 kB a second at 16 kHz
_MP3_RATES_HZ = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)


@dataclass(frozen=True)
class Clip:
    """An encoded recording."""

    kind: str  # such as "audio/mpeg"
    data: bytes

    @property
    def address(self) -> str:
        """A ``data:`` address."""
        return f"data:{self.kind};base64,{base64.b64encode(self.data).decode()}"


def clip(wave_N: np.ndarray, sample_rate_hz: int) -> Clip | None:
    """Encode samples in [-1, 1) as MP3, or as FLAC at rates that MP3 lacks; None if that takes over `MOST_BYTES`."""
    mp3 = sample_rate_hz in _MP3_RATES_HZ and "MP3" in soundfile.available_formats()
    for level in _LEVELS if mp3 else (None,):
        stream = io.BytesIO()
        if level is None:
            soundfile.write(stream, wave_N, sample_rate_hz, format="FLAC", subtype="PCM_16")
        else:
            soundfile.write(stream, wave_N, sample_rate_hz, format="MP3", compression_level=level)
        found = Clip("audio/flac" if level is None else "audio/mpeg", stream.getvalue())
        if len(found.address) <= MOST_BYTES:
            return found
    return None
