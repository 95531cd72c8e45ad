"""The JSON output of `speech3 transcribe --json`."""

import json
from typing import Any

from speech3.decoding.apply import Transcription


def json_of(result: Transcription) -> str:
    """A JSON line: file, duration and text of a recording, and its words with start, end and confidence.

    Times are in seconds; confidences are probabilities, left out where they are unknown.
    """
    words = [word_of(word.label, word.start_s, word.end_s, word.confidence) for word in result.words]
    about = {"file": result.name, "duration": round(result.duration_s, 3), "text": result.text, "words": words}
    return json.dumps(about, ensure_ascii=False)


def word_of(word: str, start_s: float | None, end_s: float | None, confidence: float | None) -> dict[str, Any]:
    """A word as a JSON object; unknown values are left out."""
    about = {"start": start_s, "end": end_s, "confidence": confidence}
    return {"word": word, **{key: round(value, 4) for key, value in about.items() if value is not None}}
