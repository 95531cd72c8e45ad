"""The Kaldi data directory: `wav.scp`, `text`, `utt2spk`, `spk2utt`, `segments`, `spk2gender`, `feats.scp`, `cmvn.scp`.

One tolerant parser (`parse`) reads what it can, line by line, and collects the faults; `read_datadir` raises them,
`validate` lists them with those of the audio, `fix_datadir` repairs them. The order of lines does not matter. Symbols
of language models, graphs and Kaldi's lexicons that nobody speaks are faults in transcripts.

Format: https://kaldi-asr.org/doc/data_prep.html
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from speech3.data import paths
from speech3.data.paths import moved_rspecifier, moved_value
from speech3.errors import DataError, FormatError, MissingError, listed
from speech3.runtime import NotTextError, composed, explained_disk_errors, to_utf8, write_text

Utterances = tuple[str, ...]
# The ends of a sentence, the empty word, the symbol of back-off in a grammar, Kaldi's word for silence.
SYMBOLS = frozenset({"<s>", "</s>", "<eps>", "#0", "!sil"})
Spans = dict[str, tuple[str, float, float | None]]  # utterance -> recording, start and end in seconds
DATADIR_FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "spk2gender", "feats.scp", "cmvn.scp")


def is_datadir(path: Path) -> bool:
    """Whether a directory has one of the files of a Kaldi data directory."""
    return any((path / name).is_file() for name in DATADIR_FILES)


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one speaker said in one segment of a recording."""

    id: str
    recording: str
    speaker: str
    text: str | None  # the words joined by one space; None if the directory has no `text` (enough for decoding)
    start_s: float = 0.0
    end_s: float | None = None  # None: to the end of the recording
    gender: str | None = None


@dataclass(frozen=True)
class DataDir:
    """A set of utterances with their recordings, their features, or both."""

    path: Path
    recordings: dict[str, str]  # recording -> its value in wav.scp: a path, or a command that ends in |
    utterances: dict[str, Utterance]  # sorted by id
    feats: dict[str, str] = field(default_factory=dict)  # utterance -> its value in feats.scp, such as a.ark:123[0:99]
    cmvn: dict[str, str] = field(default_factory=dict)  # speaker -> its value in cmvn.scp

    def recording(self, utterance: Utterance) -> str:
        """Path or pipe of the utterance's recording.

        Raises
        ------
        Speech3Error
            The directory has features only.
        """
        if utterance.recording in self.recordings:
            return self.recordings[utterance.recording]
        raise MissingError(
            f"{self.path}: {utterance.id}: no audio: the directory has features (feats.scp) but no wav.scp;"
            " add a wav.scp, or use a command that works on features"
        )

    def speakers(self) -> dict[str, list[str]]:
        """Utterance ids of each speaker, sorted (Kaldi's spk2utt)."""
        table: dict[str, list[str]] = {}
        for utterance in self.utterances.values():
            table.setdefault(utterance.speaker, []).append(utterance.id)
        return dict(sorted(table.items()))

    def subset(self, ids: Iterable[str]) -> "DataDir":
        """Keep these utterances with their recordings and features; `path` is the same, so relative paths stay valid.

        Raises
        ------
        Speech3Error
            Some ids are not in the directory; the message lists them.
        """
        wanted = set(ids)
        if unknown := sorted(wanted - set(self.utterances)):
            raise MissingError(f"{self.path}: no such utterance: {listed(unknown)}")
        utterances = {key: utt for key, utt in self.utterances.items() if key in wanted}
        used = {utt.recording for utt in utterances.values()}
        speakers = {utt.speaker for utt in utterances.values()}
        return replace(
            self,
            utterances=utterances,
            recordings={key: value for key, value in self.recordings.items() if key in used},
            feats={key: value for key, value in self.feats.items() if key in wanted},
            cmvn={key: value for key, value in self.cmvn.items() if key in speakers},
        )


@dataclass(frozen=True)
class Fault:
    """One fault of a data directory, described for the user, and what `speech3 fix` does about it."""

    kind: str  # a few words, the same for all faults of a kind; faults are counted by it
    where: str  # file, or file:line
    subject: str  # utterance, recording or speaker
    problem: str
    remedy: str
    drop: Utterances = ()  # utterances that `fix` leaves out
    repair: str = ""  # what `fix` does if it need not leave out an utterance
    end_s: float | None = None  # the end that `fix` gives the segment `subject`
    mend: str = ""  # the recording of which `fix` writes a mended copy
    warning: bool = False  # worth checking, but nothing will fail because of it

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        return f"{'warning: ' if self.warning else ''}{self.where}: {subject}{self.problem}; {self.remedy}"


def segment_name(recording: str, start_s: float, end_s: float) -> str:
    """Name a part of a recording as Kaldi's scripts do: with its start and end in hundredths of a second.

    >>> segment_name("talk", 27.35, 54.1)
    'talk-0002735-0005410'
    """
    return f"{recording}-{round(100 * start_s):07d}-{round(100 * end_s):07d}"


def read_datadir(path: Path | str) -> DataDir:
    """Read a Kaldi data directory.

    A missing `text` is allowed, since decoding needs none; so is a missing `wav.scp` if there is a `feats.scp`. Audio
    and features are not read; `speech3 validate` checks the audio.

    Raises
    ------
    Speech3Error
        Recordings come from commands, which are refused; or the text files have faults: the message lists all of them,
        each with its file, line, utterance and remedy.
    """
    data, found = parse(path)
    paths.check(data.path / "wav.scp", data.recordings)
    faults = [fault for fault in found if not fault.warning]
    if len(faults) == 1:
        raise FormatError(str(faults[0]))
    if faults:
        listing = "\n".join(f"  {fault}" for fault in faults)
        raise FormatError(
            f"{path}: {len(faults)} faults (`speech3 fix {path} OUT` writes a copy without them)\n{listing}"
        )
    return data


def parse(path: Path | str, *, need_text: bool = False) -> tuple[DataDir, list[Fault]]:
    """Read what can be read, and list every structural fault.

    Where something is wrong, the result has what `fix` keeps: the first of two lines with the same id, the utterance's
    id as its speaker if none is named, an empty text if there is none.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingError(f"{path}: {'not a' if path.exists() else 'no such'} directory; pass a Kaldi data directory")
    faults: list[Fault] = []
    tables = {name: read_table(path / name, faults) for name in DATADIR_FILES}
    # Features alone are enough only if there is no wav.scp: an empty wav.scp is a mistake.
    sources = tables["wav.scp"] or tables["feats.scp"]
    if not (sources and sources.entries):
        faults.append(no_recordings(path, tables))
        return DataDir(path, {}, {}), faults
    named = read_locations(sources, faults)
    recordings = named if tables["wav.scp"] else None
    spans = read_spans(tables["segments"], named, recordings, faults)
    known = Known({*spans, *(tables["segments"] or sources).entries}, sources.path.name)
    texts = read_texts(path, tables["text"], spans, known, need_text, faults)
    speakers = read_speakers(path, tables["utt2spk"], tables["spk2utt"], spans, known, faults)
    feats = read_feats(tables["feats.scp"], spans, known, faults)
    cmvn = read_cmvn(tables["cmvn.scp"], set(speakers.values()), faults)
    genders = read_genders(tables["spk2gender"], set(speakers.values()), faults)
    utterances = {}
    for key, (recording, start_s, end_s) in sorted(spans.items()):
        speaker, text = speakers[key], texts[key] if texts is not None else None
        utterances[key] = Utterance(key, recording, speaker, text, start_s, end_s, genders.get(speaker))
    return DataDir(path, dict(sorted((recordings or {}).items())), utterances, feats, cmvn), faults


def write_datadir(data: DataDir, path: Path | str) -> None:
    """Write `data` as a Kaldi data directory, every file sorted and replaced in one step, `wav.scp` last.

    `segments` is written only if an utterance is not a whole recording of the same name, `text` and `spk2gender` only
    if known; old files of these names are removed. Relative paths of audio and features become absolute, unless they
    name the same file from `path`.

    Raises
    ------
    Speech3Error
        There is no utterance to write, or `path` cannot be written.
    """
    path = Path(path)
    if not data.utterances:
        raise DataError(f"{path}: not written, since no utterance of {data.path} is left")
    utterances = list(data.utterances.values())
    genders = {utt.speaker: utt.gender for utt in utterances if utt.gender}
    whole = all(utt.id == utt.recording and utt.start_s == 0 and utt.end_s is None for utt in utterances)
    whole = whole and len(data.recordings) in (0, len(utterances))
    contents = {
        "segments": {} if whole else {u.id: f"{u.recording} {_time(u.start_s)} {_time(u.end_s)}" for u in utterances},
        "text": {utt.id: utt.text for utt in utterances if utt.text is not None},
        "utt2spk": {utt.id: utt.speaker for utt in utterances},
        "spk2utt": {speaker: " ".join(ids) for speaker, ids in data.speakers().items()},
        "spk2gender": genders,
        "cmvn.scp": {key: moved_rspecifier(value, data.path, path) for key, value in data.cmvn.items()},
        "feats.scp": {key: moved_rspecifier(value, data.path, path) for key, value in data.feats.items()},
        "wav.scp": {key: moved_value(value, data.path, path) for key, value in data.recordings.items()},
    }
    for name, lines in contents.items():
        if lines:
            write_text(path / name, "".join(f"{key} {value}\n" for key, value in sorted(lines.items())))
        else:
            with explained_disk_errors(path):
                (path / name).unlink(missing_ok=True)


def _time(seconds: float | None) -> str:
    return "-1" if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line ``key value``; the value may be empty."""

    line: int
    value: str


@dataclass(frozen=True)
class Table:
    """The lines of one file by key; of several lines with the same key, the first."""

    path: Path
    entries: dict[str, Entry]

    def where(self, key: str) -> str:
        """``file:line`` of a key."""
        return f"{self.path}:{self.entries[key].line}"


def read_table(path: Path, faults: list[Fault]) -> Table | None:
    """Read ``key value`` lines; None if there is no such file.

    LF, CRLF or CR ends a line, spaces and tabs separate fields, a byte order mark is ignored.
    Faults (bytes that are not UTF-8, duplicate keys) are appended to `faults`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        problem, remedy = f"cannot be read ({error.strerror})", "make it a readable file"
        faults.append(Fault("unreadable file", str(path), "", problem, remedy, repair="taken as missing"))
        return None
    if (text := _unicode(path, data, faults)) is None:
        return None
    entries: dict[str, Entry] = {}
    for number, raw in enumerate(re.split(rb"\r\n|\n|\r", text), 1):
        key, value = _split(_decode(raw, path, number, faults))
        if not key:
            continue
        if key in entries:
            faults.append(_duplicate(path, number, key, value, entries[key]))
        else:
            entries[key] = Entry(number, value)
    return Table(path, entries)


def _split(line: str) -> tuple[str, str]:
    fields = line.split(None, 1)
    return (fields[0] if fields else "", fields[1].rstrip() if len(fields) > 1 else "")


def _unicode(path: Path, data: bytes, faults: list[Fault]) -> bytes | None:
    """The content as UTF-8, where it is in a Unicode encoding; None if it is not text."""
    try:
        text, was = to_utf8(data, path)
    except NotTextError as error:
        faults.append(Fault("not text", error.where, "", error.problem, error.remedy, repair="taken as missing"))
        return None
    if was:
        remedy = "save it as plain UTF-8"
        faults.append(Fault("not UTF-8", str(path), "", f"is {was} text", remedy, repair="converted to UTF-8"))
    return text


def _decode(raw: bytes, path: Path, number: int, faults: list[Fault]) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        text = raw.decode("latin-1")  # never fails: every byte is a Latin-1 character
        key, byte = _split(text)[0], raw[error.start]
        problem = f"byte 0x{byte:02x} (number {error.start + 1} of the line) is not UTF-8"
        remedy = f"convert the file, for instance: iconv -f latin1 -t utf-8 {path}"
        faults.append(Fault("not UTF-8", f"{path}:{number}", key, problem, remedy, repair="line read as Latin-1"))
        return text


def _duplicate(path: Path, number: int, key: str, value: str, first: Entry) -> Fault:
    where = f"{path}:{number}"
    if value.split() == first.value.split():
        problem = f"occurs a second time, as in line {first.line}"
        return Fault("duplicate id", where, key, problem, "remove one of the lines", repair="second line dropped")
    problem = f"occurs a second time, with another value than in line {first.line}"
    return Fault(
        "duplicate id", where, key, problem, "remove the wrong one", repair=f"line {first.line} kept, this one dropped"
    )


def symbols_in(words: Iterable[str]) -> list[str]:
    """The symbols among `words`, each once; in capitals or small letters, since transcripts are often changed so."""
    return list(dict.fromkeys(word for word in words if word.lower() in SYMBOLS))


@dataclass(frozen=True)
class Known:
    """All utterances, including faulty ones, and the file that names their recordings or features."""

    ids: set[str]
    file: str  # wav.scp, or feats.scp if there are only features

    def unknown(self, where: str, key: str, remedy: str, repair: str) -> Fault:
        """The fault of a line about an unknown utterance."""
        return Fault("no audio", where, key, f"is neither in segments nor in {self.file}", remedy, repair=repair)


def no_recordings(path: Path, tables: Mapping[str, Table | None]) -> Fault:
    remedy = "write one line `utterance path-of-the-audio` for each recording"
    if tables["wav.scp"]:
        return Fault("no recordings", f"{path}/wav.scp", "", "is empty", remedy)
    if any(tables.values()):
        return Fault("no recordings", str(path), "", "has no wav.scp", remedy)
    remedy = "write them (https://kaldi-asr.org/doc/data_prep.html)"
    return Fault("no recordings", str(path), "", "the data directory has no wav.scp, text or utt2spk", remedy)


def read_locations(table: Table, faults: list[Fault]) -> dict[str, str]:
    """Key and path, pipe or rspecifier of each line of a ``wav.scp``, ``feats.scp`` or ``cmvn.scp``."""
    what = "audio" if table.path.name == "wav.scp" else "features" if table.path.name == "feats.scp" else "statistics"
    for key, entry in table.entries.items():
        if not entry.value:
            remedy = f"add the path of the {what}"
            faults.append(Fault(f"no {what}", table.where(key), key, "names no file", remedy, repair="line dropped"))
    return {key: entry.value for key, entry in table.entries.items() if entry.value}


def read_spans(
    table: Table | None, named: Mapping[str, str], recordings: Mapping[str, str] | None, faults: list[Fault]
) -> Spans:
    """The recording and the times of each utterance: from `segments`, or else the whole of each entry of `named`."""
    if table is None:
        return {key: (key, 0.0, None) for key in named}
    spans: Spans = {}
    for key, entry in table.entries.items():
        fields = entry.value.split()
        times = [_seconds(field) for field in fields[1:]]
        problem, remedy, kind = "", "write `utterance recording start end`, times in seconds", "segment"
        if len(fields) != 3 or None in times:
            problem = f"is not a segment: {entry.value!r}"
        elif recordings is not None and fields[0] not in recordings:
            kind, problem = "unknown recording", f"recording {fields[0]} is not in wav.scp"
            remedy = "add the recording or remove the segment"
        elif times[1] != -1 and float(times[1] or 0) <= float(times[0] or 0):
            problem, remedy = f"ends at {times[1]:g} s, not after its start at {times[0]:g} s", "correct the times"
        if problem:
            faults.append(Fault(kind, table.where(key), key, problem, remedy, repair="utterance removed"))
            continue
        start_s, end_s = float(times[0] or 0), None if times[1] == -1 else times[1]  # -1: Kaldi's "to the end"
        if start_s < 0:
            problem = f"starts at {start_s:g} s, before the recording"
            faults.append(Fault(kind, table.where(key), key, problem, "correct the times", repair="start set to 0"))
        spans[key] = (fields[0], max(start_s, 0.0), end_s)
    return spans


def _seconds(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_texts(
    path: Path, table: Table | None, spans: Spans, known: Known, need_text: bool, faults: list[Fault]
) -> dict[str, str] | None:
    """Words of each utterance, without symbols that are no words; None if there is no file `text`."""
    if table is None:
        if need_text:
            remedy = "write one line `utterance word word ...` for each, or add --no-text if you only decode"
            faults.append(Fault("no text", str(path), "", "has no file `text`", remedy, repair="left without text"))
        return None
    _unknown_keys(table, known, faults)
    for key in sorted(spans):
        remedy = "add its words, or remove the utterance"
        if key not in table.entries:
            faults.append(Fault("no text", str(table.path), key, "has no transcript", remedy, drop=(key,)))
        elif not table.entries[key].value:
            faults.append(Fault("empty text", table.where(key), key, "the transcript is empty", remedy, drop=(key,)))
    texts = {key: table.entries[key].value if key in table.entries else "" for key in spans}
    words = {key: composed(text, table.path).split() for key, text in texts.items()}
    return {key: " ".join(said) for key, said in _without_symbols(table, words, faults).items()}


def _without_symbols(table: Table, words: Mapping[str, list[str]], faults: list[Fault]) -> dict[str, list[str]]:
    kept, unknown = dict(words), list[str]()
    for key in sorted(words):
        if found := symbols_in(words[key]):
            kept[key] = [word for word in words[key] if word not in found]
            problem = f"has {' and '.join(found)} in its transcript, which nobody says: a symbol of language models"
            remedy = "remove it from the line"
            drop, repair = ((), "symbol removed") if kept[key] else ((key,), "")
            faults.append(Fault("symbol in text", table.where(key), key, problem, remedy, drop=drop, repair=repair))
        if any(word.lower() == "<unk>" for word in words[key]):
            unknown.append(key)
    if unknown:
        problem = f"has <unk> in its transcript, as {len(unknown) - 1:,} others: the symbol for words without a"
        problem += " pronunciation, which is trained and scored as a word"
        remedy = "write the word, or leave the utterance out"
        faults.append(Fault("unknown word in text", table.where(unknown[0]), unknown[0], problem, remedy, warning=True))
    return kept


def _unknown_keys(table: Table, known: Known, faults: list[Fault]) -> None:
    for key in table.entries:
        if key not in known.ids:
            faults.append(
                known.unknown(table.where(key), key, "add its recording, or remove the line", repair="line dropped")
            )


def read_speakers(
    path: Path, utt2spk: Table | None, spk2utt: Table | None, spans: Spans, known: Known, faults: list[Fault]
) -> dict[str, str]:
    listed = _inverted(spk2utt, known, faults) if spk2utt else {}
    speakers = {}
    if utt2spk:
        _unknown_keys(utt2spk, known, faults)
        for key, entry in utt2spk.entries.items():
            speaker, *more = entry.value.split() or [""]
            repair = f"taken as {speaker}"
            if more:
                problem, remedy = "names more than one speaker", "write `utterance speaker`"
                faults.append(Fault("malformed line", utt2spk.where(key), key, problem, remedy, repair=repair))
            if speaker and listed.get(key, speaker) != speaker:
                problem = f"the speaker is {speaker} here and {listed[key]} in spk2utt"
                remedy = "remove spk2utt if utt2spk is right: it has no other information"
                faults.append(Fault("speakers disagree", utt2spk.where(key), key, problem, remedy, repair=repair))
            speakers[key] = speaker
    else:
        speakers = listed
    _missing_speakers(path, speakers, spans, bool(utt2spk or spk2utt), faults)
    return {key: speakers.get(key) or key for key in spans}


def _missing_speakers(
    path: Path, speakers: Mapping[str, str], spans: Spans, any_file: bool, faults: list[Fault]
) -> None:
    missing = [key for key in sorted(spans) if not speakers.get(key)]
    remedy = "add a line `utterance speaker` to utt2spk"
    if not any_file:
        problem, repair = f"has no utt2spk: {len(spans)} utterances without a speaker", "each utterance its own speaker"
        faults.append(Fault("no speaker", str(path), "", problem, f"{remedy} for each of them", repair=repair))
        return
    for key in missing:
        faults.append(
            Fault("no speaker", str(path / "utt2spk"), key, "has no speaker", remedy, repair="taken as its own speaker")
        )


def _inverted(spk2utt: Table, known: Known, faults: list[Fault]) -> dict[str, str]:
    speakers: dict[str, str] = {}
    for speaker, entry in spk2utt.entries.items():
        for key in entry.value.split():
            if key not in known.ids:
                remedy = "add its recording, or remove it from the line"
                faults.append(known.unknown(spk2utt.where(speaker), key, remedy, repair="dropped"))
            elif speakers.setdefault(key, speaker) != speaker:
                problem, repair = f"already belongs to {speakers[key]}", f"taken as {speakers[key]}"
                remedy = "remove it from one of the speakers"
                faults.append(Fault("duplicate id", spk2utt.where(speaker), key, problem, remedy, repair=repair))
    return speakers


def read_genders(table: Table | None, speakers: set[str], faults: list[Fault]) -> dict[str, str]:
    genders = {}
    for speaker, entry in (table.entries if table else {}).items():
        if table and entry.value not in ("m", "f"):
            problem, remedy = f"gender {entry.value!r}", "write m or f, or remove the line"
            faults.append(
                Fault("malformed line", table.where(speaker), speaker, problem, remedy, repair="line dropped")
            )
        elif table and speaker not in speakers:
            faults.append(_unused_speaker(table, speaker))
        else:
            genders[speaker] = entry.value
    return genders


def _unused_speaker(table: Table, speaker: str) -> Fault:
    problem, remedy = "has no utterance in this directory", "remove the line"
    where = table.where(speaker)
    return Fault("unknown speaker", where, speaker, problem, remedy, repair="line dropped", warning=True)


def read_feats(table: Table | None, spans: Spans, known: Known, faults: list[Fault]) -> dict[str, str]:
    """Rspecifier of each utterance's features; without audio, an utterance that has none is a fault."""
    if table is None:
        return {}
    _unknown_keys(table, known, faults)
    only = known.file == table.path.name
    for key in sorted(set(spans) - set(table.entries)):
        remedy = "extract them, or remove the utterance"
        faults.append(
            Fault("no features", str(table.path), key, "has no features", remedy, drop=(key,), warning=not only)
        )
    # If there are only features, lines that name no file are already among the faults.
    return {key: value for key, value in read_locations(table, [] if only else faults).items() if key in spans}


def read_cmvn(table: Table | None, speakers: set[str], faults: list[Fault]) -> dict[str, str]:
    if table is None:
        return {}
    faults += [_unused_speaker(table, speaker) for speaker in table.entries if speaker not in speakers]
    for speaker in sorted(speakers - set(table.entries)):
        remedy = "compute them again"
        faults.append(Fault("no statistics", str(table.path), speaker, "has no statistics", remedy, warning=True))
    return {speaker: value for speaker, value in read_locations(table, faults).items() if speaker in speakers}
