"""The recordings in a folder as linguists keep it: which file has the words of which recording, and which have none.

A transcript is a ``.txt`` or ``.lab`` (what is said in the whole recording, or a label track), a Praat ``.TextGrid``,
an ELAN ``.eaf`` or subtitles (``.srt``, ``.vtt``). It is beside its recording, or anywhere in the folder if its name is
unique. Recordings without one have the words that a table gives them (`speech3.corpora.table`). ``lang/`` and hidden
files are not read. `read_untranscribed` finds recordings without transcripts, and the parts of others that no utterance
covers.
"""

import filecmp
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from speech3.corpora.table import TABLES, Row, may_be_table, rows_of
from speech3.corpora.tiers import Tier, is_labels, read_elan, read_labels, read_subtitles, read_textgrid
from speech3.data import (
    AudioError,
    DataDir,
    Fault,
    Utterance,
    files_below,
    info,
    is_sync_conflict,
    moved_value,
    read_datadir,
    resolve_path,
    segment_name,
)
from speech3.errors import DataError, MissingError, Speech3Error, counted, listed
from speech3.runtime import progress, read_utf8, say

TEXTS = (".txt", ".lab")  # what is said, mostly without times; .lab is what the Montreal Forced Aligner reads
# Transcripts with times, and their readers.
TIERED: dict[str, Callable[[Path], list[Tier]]] = {
    ".eaf": read_elan,
    ".textgrid": read_textgrid,
    ".srt": read_subtitles,
    ".vtt": read_subtitles,
}
TRANSCRIPTS = (*TIERED, *TEXTS)  # preferred first
AUDIO = tuple(f".{name.lower()}" for name in soundfile.available_formats() if name != "RAW")
AUDIO += (".aif", ".aifc", ".oga", ".opus", ".sph")
_LOSSY = (".mp3", ".ogg", ".oga", ".opus")
_NOT_READ = (".m4a", ".mp4", ".aac", ".wma", ".amr", ".mov", ".avi", ".mts")
_SHOWN = 3
_TABLES = {*TABLES, ".xlsx", ".ods"}  # what else people keep transcripts in
_NO_TRANSCRIPT = "put one of its name beside it (.eaf, .TextGrid, .srt, .txt or .lab)"
_TO_READ_IT = "call its columns `path` and `text`, or write the texts into such files"
_LANGUAGE = re.compile(r"\.[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")  # .en, .zh-Hans
UNTRANSCRIBED = "untranscribed=DIR"
_MIN_S = 0.5  # a shorter stretch between two utterances is a pause
_MARGIN_S = 0.05  # around utterances, whose borders are drawn by hand


@dataclass(frozen=True)
class Item:
    """A recording, its transcript (a table if `row` is its row there), and its key in the data directory."""

    key: str
    audio: Path
    transcript: Path
    row: Row | None = None


def tier_reader(item: Item) -> Callable[[Path], list[Tier]] | None:
    """The reader of the recording's transcript if that has times; None if it has none, or cannot be read."""
    suffix = item.transcript.suffix.lower()
    if item.row or suffix not in TEXTS:
        return None if item.row else TIERED.get(suffix)
    try:
        return read_labels if is_labels(read_utf8(item.transcript)) else None
    except Speech3Error:
        return None


def has_recordings(source: Path) -> bool:
    return bool(recordings_in(source))


def recordings_in(source: Path) -> list[Path]:
    """The recordings in the folder and in folders in it, lossless ones first; none of ``lang/`` and hidden folders.

    Those whose name is not UTF-8 are left out: neither libsndfile nor a file of the data directory can name them.
    """
    return _lossless_first(path for path in _files(source) if path.suffix.lower() in AUDIO and _is_utf8(path))


def _lossless_first(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.suffix.lower() in _LOSSY)


def key_of(recording: Path, source: Path) -> str:
    """The name of a recording in a data directory: its path in the folder, with _ for what a name must not contain."""
    return "_".join("_".join((*recording.relative_to(source).parts[:-1], stem(recording))).split())


def second_recording(path: Path, first: Path) -> Fault:
    """The fault of a recording that has the same `key_of` as another one."""
    problem, remedy = f"has the same name as {first.name}", "rename or remove one of them"
    return Fault("second recording", str(path), "", problem, remedy)


def stem(path: Path) -> str:
    """The name without its suffix, composed (NFC): macOS decomposes names."""
    return unicodedata.normalize("NFC", path.stem)


def _recording_of(transcript: Path, recorded: Container[str]) -> str:
    """The name of the recording that a transcript belongs to: ``a.wav`` has ``a.txt`` or ``a.wav.txt``.

    `recorded`: the names of the recordings, folded; ``a.mp3.txt`` belongs to ``a.mp3.wav`` if that is one. Names of
    subtitles may end in a language: ``a.en.vtt``.
    """
    name = stem(transcript)
    subtitles = TIERED.get(transcript.suffix.lower()) is read_subtitles and _LANGUAGE.fullmatch(Path(name).suffix)
    whole = name.casefold() in recorded or not (subtitles or Path(name).suffix.lower() in AUDIO)
    return name if whole else Path(name).stem


def find_pairs(
    source: Path, apart: Path | None = None, *, only: Path | None = None, above: Path | None = None
) -> tuple[list[Item], list[Fault]]:
    """Find the recordings with a transcript, and what cannot be used.

    Of several recordings that have the same name, those of a lossless format are preferred. Tables are read if some
    recording has no transcript of its own.

    Parameters
    ----------
    apart
        A folder in `source` that is not searched, such as that of earlier results.
    only
        The only recording to find, and to name in what cannot be used.
    above
        A folder around `source` whose tables may name recordings in it.
    """
    # Recordings, transcripts, and the transcripts by place and by name.
    everything = _files(source, apart)
    files = [path for path in everything if _is_utf8(path)]
    audio = _lossless_first(path for path in files if path.suffix.lower() in AUDIO)
    texts = [path for path in files if path.suffix.lower() in TRANSCRIPTS]
    texts.sort(key=lambda path: TRANSCRIPTS.index(path.suffix.lower()))
    beside: dict[tuple[Path, str], Path] = {}
    anywhere: dict[str, list[Path]] = {}
    alone = Counter(stem(path).casefold() for path in audio)
    for path in texts:
        name = _recording_of(path, alone)
        beside.setdefault((path.parent, name), path)
        anywhere.setdefault(name.casefold(), []).append(path)
    # The transcript of each recording: beside it, or else the only one of its name, in another folder or another case.
    own: dict[Path, Path] = {}
    for path in audio:
        available = _available(path, anywhere)
        if (path.parent, stem(path)) in beside:
            own[path] = beside[path.parent, stem(path)]
        elif alone[stem(path).casefold()] == 1 and len(available) == 1:
            own[path] = available[0]
    # What tables say of the others; a recording's own transcript is never read as a table.
    wanted = {path.with_suffix("") for path in ([only] if only else audio) if path not in own}
    around = _files_in(above) if above else []
    tables = [path for path in (*files, *around) if may_be_table(path)]
    tables = [
        path
        for path in (tables if wanted else ())
        if path.suffix.lower() not in TRANSCRIPTS or _recording_of(path, alone).casefold() not in alone
    ]
    rows, two_texts, unread = rows_of(tables, audio, wanted, source, AUDIO)
    listing = {*(row.table.path for row in rows.values()), *(Path(fault.where) for fault in unread)}
    faults = [*unread, *(_misnamed(path) for path in everything if not _is_utf8(path))]
    others = {
        (path.parent, stem(path)): path.name for path in files if path.suffix.lower() not in (*AUDIO, *TRANSCRIPTS)
    }
    items: dict[str, Item] = {}
    for path in audio:
        row, available = None if path in own else rows.get(path.with_suffix("")), _available(path, anywhere)
        transcript = row.table.path if row else own.get(path)
        key = key_of(path, source)
        if transcript and key not in items:
            items[key] = Item(key, path, transcript, row)
        elif transcript:
            faults.append(second_recording(path, items[key].audio))
        elif available:
            count = alone[stem(path).casefold()]
            problem = (
                f"{counted(count, 'recording')} and {counted(len(available), 'transcript')} in other"
                " places have this name"
            )
            faults.append(Fault("unclear transcript", str(path), "", problem, "keep one, or put both side by side"))
        elif tables_of := two_texts.get(path.with_suffix("")):
            problem = f"has two different texts in {tables_of}"
            faults.append(Fault("unclear transcript", str(path), "", problem, "keep the right one"))
        else:
            remedy = "add one with the recording's name (.eaf, .TextGrid, .srt, .txt or .lab)"
            unread_file = others.get((path.parent, stem(path)))
            problem = f"has no transcript{f' ({unread_file} is not read as one)' if unread_file else ''}"
            faults.append(Fault("no transcript", str(path), "", problem, remedy))
    if only:
        faults = [fault for fault in faults if fault.where == str(only)]
        chosen = [item for item in items.values() if item.audio == only]
        if not chosen:
            raise DataError(f"{only}: {faults[0].problem if faults else 'has no transcript'}; {_NO_TRANSCRIPT}")
        return chosen, faults
    faults += [_conflicted_copy(path) for path in _conflicts(source) if not (apart and apart in path.parents)]
    texts = [path for path in texts if path not in listing]
    faults += _unused(files, texts, {item.transcript for item in items.values()}, alone.keys())
    if not items:
        maybe = [os.path.relpath(path, source) for path in (*files, *around) if path.suffix.lower() in _TABLES]
        near = [others[place] for path in audio if (place := (path.parent, stem(path))) in others]
        raise DataError(f"{source}: {_why_none(audio, texts, faults, maybe, near)}")
    return list(items.values()), faults


def _why_none(
    audio: Sequence[Path], texts: Sequence[Path], faults: Iterable[Fault], tables: Sequence[str], unread: Sequence[str]
) -> str:
    """`tables` and `unread`: files that may have the words, but are not read: tables, and files beside recordings."""
    if unclear := [fault for fault in faults if fault.kind in ("unclear transcript", "unreadable table")]:
        return f"no recording has a transcript of its own, for instance: {unclear[0]}"
    example = f", such as {audio[0].stem}.TextGrid beside {audio[0].name}" if audio else ""
    return (
        f"recordings: {len(audio)}, transcripts: {len(texts)}, but no names match; each recording needs a"
        f" transcript (.eaf, .TextGrid, .srt, .txt or .lab) of its name{example}"
        + (f"; {unread[0]} is not read as one" if unread else "")
        + (f"; no words of recordings were found in {listed(tables, _SHOWN)}: {_TO_READ_IT}" if tables else "")
    )


def _available(audio: Path, anywhere: Mapping[str, Sequence[Path]]) -> list[Path]:
    """The transcripts of the preferred kind that have the recording's name, in any folder and any case."""
    named = anywhere.get(stem(audio).casefold(), [])
    return [text for text in named if text.suffix == named[0].suffix]


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]


def _files(source: Path, apart: Path | None = None) -> list[Path]:
    lang = source / "lang"
    paths = (path for path in sorted(files_below(source)) if not {lang, apart} & {*path.parents})
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(source).parts)]


def _conflicts(source: Path) -> list[Path]:
    """Copies that synchronisation made of recordings and transcripts; their originals are used."""
    paths = (path for path in files_below(source, conflicts=True) if is_sync_conflict(path))
    return [path for path in paths if path.suffix.lower() in (*AUDIO, *TRANSCRIPTS) and _is_utf8(path)]


def _conflicted_copy(path: Path) -> Fault:
    problem = "is a copy that synchronisation made of another file"
    remedy = "keep the right one of both, by its own name"
    return Fault("conflicted copy", str(path), "", problem, remedy)


def _is_utf8(path: Path) -> bool:
    """Python represents bytes of a name that are not UTF-8 by surrogates, which cannot be encoded again.

    A name with a line break is no better: it would take two lines of a list.
    """
    if "\n" in str(path) or "\r" in str(path):
        return False
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _misnamed(path: Path) -> Fault:
    where = os.fsencode(path).decode("utf-8", "backslashreplace")
    return Fault("name", where, "", "its name is not UTF-8, or has a line break", "rename it (convmv converts many)")


def _unused(files: Sequence[Path], texts: Iterable[Path], used: set[Path], recorded: Container[str]) -> list[Fault]:
    faults: list[Fault] = []

    def skip(kind: str, path: Path, problem: str, remedy: str) -> None:
        faults.append(Fault(kind, str(path), "", problem, remedy))

    taken = {(path.parent, _recording_of(path, recorded)) for path in used}
    for path in files:
        if path.suffix.lower() in _NOT_READ:
            skip("format not read", path, "is not read", "convert it, for instance: ffmpeg -i IN -ac 1 OUT.wav")
    for path in texts:
        if path in used:
            continue
        name = _recording_of(path, recorded)
        if (path.parent, name) in taken:
            problem = f"is not used: of several, the first of {', '.join(TRANSCRIPTS)} is"
            skip("second transcript", path, problem, "remove the one that is wrong")
        elif name.casefold() in recorded:
            problem = "is not beside the recording of its name, and it is not clear that it belongs to it"
            skip("unclear recording", path, problem, "put both side by side")
        else:
            skip("no recording", path, "has no recording", "name it like the recording, in the same folder")
    return faults


def read_untranscribed(source: Path, known: Sequence[DataDir], key: str = UNTRANSCRIBED) -> DataDir:
    """Read a folder of recordings, or a Kaldi data directory, without its text.

    What `known` has utterances of is left out, so that no utterance of dev and test gets into training: also copies of
    its recordings, and, in a folder, a recording beside a known one that differs from it only in its format. `key` is
    what passes `source`, for messages.
    """
    # The recordings, and the parts of each that count.
    if not source.is_dir():
        raise MissingError(f"{source}: no such directory; pass a folder of recordings as {key}")
    spans: dict[str, list[tuple[float, float | None]]] = {}
    if (source / "wav.scp").is_file():
        data = read_datadir(source)
        for utterance in data.utterances.values():
            spans.setdefault(utterance.recording, []).append((utterance.start_s, utterance.end_s))
        paths = {key: _absolute(value, source) for key, value in data.recordings.items()}
    else:
        paths = _named(source)
        spans = {key: [(0.0, None)] for key in paths}
    if not paths:
        raise MissingError(f"{source}: no recordings (wav, flac, mp3, ...); pass a folder that has some")
    # What is left of them, beside the utterances of `known`.
    covered = _covered(known)
    copies = _copies_of_known(paths, covered)
    for recording, original in copies.items():
        say(f"  left out: {paths[recording]}: is the same recording as {original}")
    spans = {key: each for key, each in spans.items() if key not in copies}
    utterances: dict[str, Utterance] = {}
    for recording in progress(spans, len(spans), f"headers of {source}"):
        try:
            length_s = info(paths[recording], directory=source).duration_s
        except AudioError as error:
            say(f"  left out: {error}")
            continue
        for start_s, end_s in spans[recording]:
            for begin_s, stop_s in _free(start_s, end_s or length_s, covered.get(paths[recording], ())):
                name = segment_name(recording, begin_s, stop_s)
                utterances[name] = Utterance(name, recording, recording, None, begin_s, stop_s)
    if not utterances:
        raise DataError(
            f"{source}: nothing is left without a transcript: {', '.join(each.path.name for each in known)} have"
            f" utterances of all of it; pass other recordings as {key}"
        )
    used = {utterance.recording for utterance in utterances.values()}
    return DataDir(source, {key: paths[key] for key in sorted(used)}, dict(sorted(utterances.items())))


def _named(source: Path) -> dict[str, str]:
    """The recordings of a folder by name: the path in it, with _ for what a name must not contain."""
    paths: dict[str, str] = {}
    for path in recordings_in(source):
        name = "_".join("_".join(path.relative_to(source).parts).split())
        if name in paths:
            raise DataError(f"{source}: {path} and {paths[name]} would both have the name {name}; rename one of them")
        paths[name] = str(path.resolve())
    return paths


def _copies_of_known(paths: Mapping[str, str], covered: Mapping[str, object]) -> dict[str, str]:
    """The recordings that are copies of known ones, or the same in another format, and the original of each."""
    known = [Path(path) for path in covered if not path.endswith("|")]
    stems = {(path.parent, stem(path).casefold()): path for path in known}
    sizes: dict[int, list[Path]] = {}
    for path in known:
        if path.is_file():
            sizes.setdefault(path.stat().st_size, []).append(path)
    found: dict[str, str] = {}
    for name, location in paths.items():
        path = Path(location)
        if location in covered or location.endswith("|") or not path.is_file():
            continue
        twin = stems.get((path.parent, stem(path).casefold()))
        same = (each for each in sizes.get(path.stat().st_size, ()) if filecmp.cmp(path, each, shallow=False))
        if original := twin or next(same, None):
            found[name] = str(original)
    return found


def _absolute(location: str, directory: Path) -> str:
    if location.endswith("|"):
        return moved_value(location, directory, Path.cwd())
    return str(resolve_path(location, directory).resolve())


def _covered(known: Iterable[DataDir]) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for data in known:
        for utterance in data.utterances.values():
            path = _absolute(data.recordings[utterance.recording], data.path)
            end_s = float("inf") if utterance.end_s is None else utterance.end_s
            spans.setdefault(path, []).append((utterance.start_s, end_s))
    return {path: sorted(each) for path, each in spans.items()}


def _free(start_s: float, end_s: float, covered: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The stretches from `start_s` to `end_s` that lie outside the sorted spans, without pauses between these."""
    if not covered:
        return [(start_s, end_s)]
    free, at_s = [], start_s
    for begin_s, stop_s in covered:
        free.append((at_s, min(begin_s - _MARGIN_S, end_s)))
        at_s = max(at_s, stop_s + _MARGIN_S)
    free.append((at_s, end_s))
    return [(begin_s, stop_s) for begin_s, stop_s in free if stop_s - begin_s >= _MIN_S]
