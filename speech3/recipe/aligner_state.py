"""What an earlier run of `speech3 align SOURCE OUT` found, so that a later one aligns only what has changed."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from speech3 import __version__
from speech3.hmm import Limits, Segment
from speech3.recipe.aligner_files import UtteranceResult
from speech3.recipe.aligner_source import Source
from speech3.runtime import read_json, write_json

_STATE = ".speech3_align_state.json"
MOST_CHANGED = 0.25  # of the utterances; an aligner that was trained on the others is trained again


@dataclass(frozen=True)
class State:
    """The results of a run, and what they depend on.

    Attributes
    ----------
    settings
        The options; the model, unless it was trained in the run.
    model
        A digest of the model.
    marks
        For each utterance, its transcript, and where and when its recording was stored.
    moved
        The boundaries were moved as in corrected recordings (``--corrected``).
    """

    settings: dict[str, Any]
    model: str
    marks: dict[str, str]
    moved: bool
    limits: Limits
    results: list[UtteranceResult]

    def save(self, out: Path) -> None:
        write_json(out / _STATE, asdict(self))


def read_state(out: Path, settings: Mapping[str, Any]) -> State | None:
    """The state of the last run in `out`; None if there was none, or with other options, or by another release."""
    if not (out / _STATE).exists():
        return None
    stored = read_json(out / _STATE)
    if stored.get("settings") != settings:
        return None
    results = [
        UtteranceResult(**{**each, **{name: tuple(Segment(**s) for s in each[name]) for name in ("words", "phones")}})
        for each in stored["results"]
    ]
    limits = Limits(**stored["limits"])
    return State(stored["settings"], stored["model"], stored["marks"], stored["moved"], limits, results)


def settings_of(
    *, model: Path | None, lang: str | None, lexicon: Path | None, graphemes: bool, rate_hz: int | None
) -> dict[str, Any]:
    """What all results depend on, as JSON; `rate_hz` is that of a model to be trained."""
    return {
        "release": __version__, "model": model and str(model.absolute()), "lang": lang,
        "lexicon": lexicon and digest(lexicon), "graphemes": graphemes, "rate_hz": rate_hz,
    }  # fmt: skip


def digest(path: Path) -> str:
    """A mark of a file's content; empty if there is no such file."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else ""


def marks_of(source: Source) -> dict[str, str]:
    """A mark of each utterance: another one if its transcript, its times, its speaker or its recording changed."""
    places: dict[str, str] = {}
    for key, audio in source.data.recordings.items():
        path = source.data.path / audio
        stat = path.stat() if path.is_file() else None  # else a command of a data directory
        places[key] = f"{audio} {stat.st_size} {stat.st_mtime_ns}" if stat else audio
    return {
        key: hashlib.blake2b(repr((u, places.get(u.recording))).encode(), digest_size=16).hexdigest()
        for key, u in source.data.utterances.items()
    }
