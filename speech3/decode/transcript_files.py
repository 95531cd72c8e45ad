"""What `speech3 transcribe` reads and writes beside sound files and text: standard input; JSON, TextGrids, lattices."""

import json
import shutil
import sys
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from speech3.data import checked_rate
from speech3.decode.apply import Transcription
from speech3.decode.lattice_archive import write_lattices
from speech3.decode.lattice_directory import (
    ARCHIVE,
    INDEX,
    forget_lattices,
    lattices_about,
    ranked_paths,
    save_about,
)
from speech3.decode.trained_model import TrainedModel
from speech3.decode.word_lattice import WordLattice
from speech3.errors import DataError, SettingError
from speech3.hmm import Segment, file_name, write_textgrid

_BLOCK = 1 << 20
_SOUND_FILES = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM", b"NIST_1A")
STANDARD_INPUT = "standard_input"  # the name of its files


def save_standard_input(path: Path, rate_hz: int | None = None) -> None:
    """Write standard input to a file: as it is, or as WAV if it is raw samples (16 bits, little endian, one channel).

    Parameters
    ----------
    rate_hz
        Of raw samples; None if the input is a sound file.

    Raises
    ------
    Speech3Error
        There is no input.
    """
    data = sys.stdin.buffer
    if rate_hz is None:
        with path.open("wb") as out:
            shutil.copyfileobj(data, out)
    else:
        with wave.open(str(path), "wb") as out:
            out.setparams((1, 2, checked_rate(rate_hz), 0, "NONE", ""))
            block = data.read(_BLOCK)
            if block.startswith(_SOUND_FILES):
                raise SettingError(
                    f"--rate {rate_hz}: standard input is a sound file, which has its sample rate; omit --rate"
                )
            while block:
                out.writeframesraw(block)
                block = data.read(_BLOCK)
    if path.stat().st_size <= (0 if rate_hz is None else 44):
        raise DataError("standard input: is empty; pipe a sound file into it, or raw samples with --rate HZ")


def check_names(files: Sequence[Path]) -> None:
    """Refuse two recordings whose TextGrids or lattices would have the same name."""
    named: dict[str, Path] = {}
    for path in files:
        if (other := named.setdefault(_key(path), path)) != path:
            raise SettingError(
                f"{other}, {path}: have the same name, so their results would have, too; transcribe them in two runs"
            )


def write_results(
    results: Iterable[Transcription],
    show: Callable[[Transcription], None],
    recognizer: TrainedModel,
    textgrids: Path | None = None,
    lattices: Path | None = None,
) -> None:
    """Show each result; write its TextGrid to the directory `textgrids`, and all lattices to `lattices`.

    A TextGrid has the name of its recording, the times of the recording, and tiers ``words`` and ``phones``.
    """

    def each() -> Iterator[tuple[str, WordLattice]]:
        for result in results:
            show(result)
            if textgrids:
                silent = recognizer.hmm.lexicon.silence_phones
                tiers = {"words": result.words, "phones": [s for s in result.phones if s.label not in silent]}
                within = {name: [_until(s, result.duration_s) for s in tier] for name, tier in tiers.items()}
                write_textgrid(textgrids / f"{_key(result.name)}.TextGrid", within, result.duration_s)
            for name, lattice in result.lattices.items():
                yield _key(result.name) + name.removeprefix(result.name), lattice

    if not lattices:
        for _ in each():
            pass
        return
    forget_lattices(lattices)
    write_lattices(lattices / ARCHIVE, each(), lattices / INDEX)
    save_about(lattices, recognizer.graph.words, lattices_about(recognizer, recognizer.graph))


def _key(name: Path | str) -> str:
    """The name of a recording's results: that of its file, without blanks, which Kaldi's keys must not have."""
    return file_name("_".join(Path(name).stem.split()))


def _until(segment: Segment, end_s: float) -> Segment:
    return replace(segment, start_s=min(segment.start_s, end_s), end_s=min(segment.end_s, end_s))


def transcription_json(result: Transcription) -> str:
    """A JSON line: file, duration and text of a recording, its words with start, end and confidence, and its N best.

    Times are in seconds; confidences are probabilities, left out where they are unknown.
    """
    words = [word_of(word.label, word.start_s, word.end_s, word.confidence) for word in result.words]
    about = {"file": result.name, "duration": round(result.duration_s, 3), "text": result.text, "words": words}
    if result.nbest:
        about["nbest"] = list(ranked_paths(result.nbest))
    return json.dumps(about, ensure_ascii=False)


def word_of(word: str, start_s: float | None, end_s: float | None, confidence: float | None) -> dict[str, Any]:
    """A word as a JSON object; unknown values are left out."""
    about = {"start": start_s, "end": end_s, "confidence": confidence}
    return {"word": word, **{key: round(value, 4) for key, value in about.items() if value is not None}}
