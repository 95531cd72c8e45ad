"""What `speech3 transcribe --json` prints."""

import json
from typing import Any

from speech3.corpus import audio
from speech3.decoding.apply import Transcription
from speech3.hmm.times import Stretch


def json_of(result: Transcription) -> str:
    """A line: file, duration and text of a recording, and its words with start, end and confidence.

    Times are seconds, confidences probabilities; a word has none where the recording is too long for a lattice.
    """
    duration_s = audio.info(result.name).duration_s
    words = [_word(word) for word in result.words]
    about = {"file": result.name, "duration": round(duration_s, 3), "text": result.text, "words": words}
    return json.dumps(about, ensure_ascii=False)


def _word(word: Stretch) -> dict[str, Any]:
    said = {"word": word.label, "start": round(word.start_s, 3), "end": round(word.end_s, 3)}
    return said if word.confidence is None else {**said, "confidence": round(word.confidence, 4)}
