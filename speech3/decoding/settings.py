"""The settings with which a model is decoded: ``decode.json`` in its directory."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from speech3.decoding.calibration import Calibration, calibration_of
from speech3.errors import Speech3Error
from speech3.graph.places import SETTINGS
from speech3.io.atomic import read_json, write_json


@dataclass(frozen=True)
class DecodeSettings:
    """Decoding settings of a model, tuned on the dev set and never on test.

    Attributes
    ----------
    confidence
        Maps posteriors to confidences; if None, the confidences are the posteriors.
    """

    acoustic_scale: float
    word_penalty: float
    beam: float
    max_active: int
    confidence: Calibration | None = None

    def __post_init__(self) -> None:
        finite = math.isfinite(self.acoustic_scale) and math.isfinite(self.word_penalty)
        if not (finite and self.acoustic_scale > 0 and self.beam > 0 and self.max_active == int(self.max_active) >= 1):
            raise TypeError("acoustic_scale, beam and max_active must be above 0")

    def calibrated(self, posterior: float) -> float:
        """The confidence of a word with this posterior; the posterior itself if no calibration was fitted."""
        return self.confidence(posterior) if self.confidence else posterior

    def save(self, directory: Path | str) -> None:
        """Write decode.json."""
        write_json(Path(directory) / SETTINGS, asdict(self))


def load_settings(directory: Path | str, model: Path | str | None = None) -> DecodeSettings:
    """Read decode.json; if it is missing, the error says to tune `model`, by default the directory itself."""
    path, model = Path(directory) / SETTINGS, model or directory
    if not path.exists():
        raise Speech3Error(
            f"{path}: no such file; the model is not tuned yet: run speech3 tune {model} DIR, with a data"
            " directory that it was not trained on"
        )
    try:
        values = read_json(path)
        return DecodeSettings(**{**values, "confidence": calibration_of(values.get("confidence"))})
    except TypeError as error:
        raise Speech3Error(
            f"{path}: has keys of another version of speech3, or impossible values; write it again with speech3 tune"
            f" {model} DIR"
        ) from error
