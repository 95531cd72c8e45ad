"""The recordings in a folder, each with the transcript that has its name.

A transcript is beside its recording, or anywhere in the folder if its name is unique. ``lang/`` and hidden files are
not searched.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from speech3.corpus.paths import files_below, is_conflict
from speech3.corpus.tables import Fault
from speech3.errors import Speech3Error

TRANSCRIPTS = (".eaf", ".textgrid", ".txt")  # preferred first
AUDIO = tuple(f".{name.lower()}" for name in soundfile.available_formats() if name != "RAW")
AUDIO += (".aif", ".aifc", ".oga", ".opus", ".sph")
_LOSSY = (".mp3", ".ogg", ".oga", ".opus")
_NOT_READ = (".m4a", ".mp4", ".aac", ".wma", ".amr", ".mov", ".avi", ".mts")


@dataclass(frozen=True)
class Item:
    """A recording, its transcript, and its key in the data directory."""

    key: str
    audio: Path
    transcript: Path


def has_recordings(source: Path) -> bool:
    """Does the folder, or a folder in it, contain recordings?"""
    return bool(recordings_in(source))


def recordings_in(source: Path) -> list[Path]:
    """The recordings in the folder and in folders in it, sorted; none of ``lang/`` and hidden folders.

    Those whose name is not UTF-8 are left out: neither libsndfile nor a file of the data directory can name them.
    """
    return [path for path in _files(source) if path.suffix.lower() in AUDIO and _is_utf8(path)]


def stem(path: Path) -> str:
    """The name without its suffix, composed (NFC): macOS decomposes names."""
    return unicodedata.normalize("NFC", path.stem)


def find_pairs(source: Path) -> tuple[list[Item], list[Fault]]:
    """Find the recordings with a transcript, and what cannot be used.

    Of several recordings that have the same name, those of a lossless format are preferred.

    Raises
    ------
    Speech3Error
        No recording has a transcript.
    """
    everything = _files(source)
    files = [path for path in everything if _is_utf8(path)]
    audio = [path for path in files if path.suffix.lower() in AUDIO]
    audio.sort(key=lambda path: path.suffix.lower() in _LOSSY)
    texts = [path for path in files if path.suffix.lower() in TRANSCRIPTS]
    texts.sort(key=lambda path: TRANSCRIPTS.index(path.suffix.lower()))
    beside: dict[tuple[Path, str], Path] = {}
    anywhere: dict[str, list[Path]] = {}
    for path in texts:
        beside.setdefault((path.parent, stem(path)), path)
        anywhere.setdefault(stem(path).casefold(), []).append(path)
    alone = Counter(stem(path).casefold() for path in audio)
    faults = [_misnamed(path) for path in everything if not _is_utf8(path)]
    items: dict[str, Item] = {}
    for path in audio:
        name = stem(path).casefold()  # in another folder, or in another case, if it is unique
        available = [text for text in anywhere.get(name, []) if text.suffix == anywhere[name][0].suffix]
        transcript = beside.get((path.parent, stem(path)))
        if not transcript and alone[name] == 1 and len(available) == 1:
            transcript = available[0]
        key = "_".join("_".join((*path.relative_to(source).parts[:-1], stem(path))).split())
        if transcript and key not in items:
            items[key] = Item(key, path, transcript)
        elif transcript:
            problem, remedy = f"has the same name as {items[key].audio.name}", "rename or remove one of them"
            faults.append(Fault("second recording", str(path), "", problem, remedy))
        elif available:
            problem = f"{alone[name]} recordings and {len(available)} transcripts in other places have this name"
            faults.append(Fault("unclear transcript", str(path), "", problem, "keep one, or put both side by side"))
        else:
            remedy = "add one with the recording's name (.eaf, .TextGrid or .txt)"
            faults.append(Fault("no transcript", str(path), "", "has no transcript", remedy))
    faults += [_copy(path) for path in _conflicts(source)]
    faults += _others(files, texts, {item.transcript for item in items.values()}, alone.keys())
    if not items:
        raise Speech3Error(f"{source}: {_why_none(audio, texts, faults)}")
    return list(items.values()), faults


def _why_none(audio: Sequence[Path], texts: Sequence[Path], faults: Iterable[Fault]) -> str:
    if unclear := [fault for fault in faults if fault.kind == "unclear transcript"]:
        return f"no recording has a transcript of its own, for instance: {unclear[0]}"
    example = f", such as {audio[0].stem}.TextGrid beside {audio[0].name}" if audio else ""
    return (
        f"recordings: {len(audio)}, transcripts: {len(texts)}, but no names match; each recording needs a"
        f" transcript (.eaf, .TextGrid or .txt) of its name{example}"
    )


def _files(source: Path) -> list[Path]:
    lang = source / "lang"
    return [
        path for path in sorted(files_below(source))
        if lang not in path.parents
        and not any(part.startswith(".") for part in path.relative_to(source).parts)
    ]  # fmt: skip


def _conflicts(source: Path) -> list[Path]:
    """Copies that synchronisation made of recordings and transcripts; their originals are used."""
    paths = (path for path in files_below(source, conflicts=True) if is_conflict(path))
    return [path for path in paths if path.suffix.lower() in (*AUDIO, *TRANSCRIPTS) and _is_utf8(path)]


def _copy(path: Path) -> Fault:
    problem, remedy = (
        "is a copy that synchronisation made of another file",
        "keep the right one of both, by its own name",
    )
    return Fault("conflicted copy", str(path), "", problem, remedy)


def _is_utf8(path: Path) -> bool:
    """Python represents bytes of a name that are not UTF-8 by surrogates, which cannot be encoded again."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _misnamed(path: Path) -> Fault:
    where = os.fsencode(path).decode("utf-8", "backslashreplace")
    return Fault("name", where, "", "its name is not UTF-8", "rename it (convmv converts the names of many files)")


def _others(files: Sequence[Path], texts: Iterable[Path], used: set[Path], recorded: Container[str]) -> list[Fault]:
    """Faults of files that are not used; `recorded`: the names of recordings, case-folded."""
    faults: list[Fault] = []

    def skip(kind: str, path: Path, problem: str, remedy: str) -> None:
        faults.append(Fault(kind, str(path), "", problem, remedy))

    taken = {(path.parent, stem(path)) for path in used}
    for path in files:
        if path.suffix.lower() in _NOT_READ:
            skip("format not read", path, "is not read", "convert it, for instance: ffmpeg -i IN -ac 1 OUT.wav")
    for path in texts:
        if path in used:
            continue
        if (path.parent, stem(path)) in taken:
            problem = "is not used, since .eaf is preferred to .TextGrid and both to .txt"
            skip("second transcript", path, problem, "remove the one that is wrong")
        elif stem(path).casefold() in recorded:
            problem = "is not beside the recording of its name, and it is not clear that it belongs to it"
            skip("unclear recording", path, problem, "put both side by side")
        else:
            skip("no recording", path, "has no recording", "name it like the recording, in the same folder")
    return faults
