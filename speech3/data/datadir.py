"""The Kaldi data directory: `wav.scp`, `text`, `utt2spk`, `spk2utt`, `segments`, `spk2gender`, `feats.scp`, `cmvn.scp`.

One tolerant parser (`parse`) reads what it can, line by line, and collects the faults; `read_datadir` raises them,
`validate` lists them with those of the audio, `fix_datadir` repairs them. The order of lines does not matter. Symbols
of language models, graphs and Kaldi's lexicons that nobody speaks are faults in transcripts.

Format: https://kaldi-asr.org/doc/data_prep.html
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from speech3.data import paths
from speech3.data.paths import moved_rspecifier, moved_value
from speech3.errors import DataError, FormatError, MissingError, OccupiedError, counted, listed
from speech3.runtime import NotTextError, check_output, composed, explained_disk_errors, to_utf8, write_text

Utterances = tuple[str, ...]
# The ends of a sentence, the empty word, the symbol of back-off in a grammar, Kaldi's word for silence.
SYMBOLS = frozenset({"<s>", "</s>", "<eps>", "#0", "!sil"})
NOISE = "<noise>"  # the word of what is not speech
OTHER_SPEECH = "<unk>"  # the word of speech outside of the domain
Spans = dict[str, tuple[str, float, float | None]]  # utterance -> recording, start and end in seconds
DATADIR_FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "spk2gender", "feats.scp", "cmvn.scp")
IN_FOLDERS = "set sample_rate=HZ in `speech3 recipe any`, which converts it (`align` and `decode` do so by themselves)"
_SOUND = (".wav", ".flac", ".mp3", ".ogg")


def is_datadir(path: Path) -> bool:
    """Whether a directory has one of the files of a Kaldi data directory."""
    return any((path / name).is_file() for name in DATADIR_FILES)


def without_faulty_audio(path: Path) -> str:
    """How to leave out the utterances of a data directory, or of a folder, whose audio is faulty."""
    if is_datadir(path):
        return f"`speech3 fix {path} OUT` writes a copy without the utterances whose audio is faulty"
    return f"repair these recordings, or move them out of {path}"


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
        """Path or pipe of the utterance's recording; an error if the directory has features only."""
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

        Ids that are not in the directory are an error that lists them.
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
    """Name a part of a recording as Kaldi's scripts do: talk-0002735-0005410, in hundredths of a second."""
    return f"{recording}-{round(100 * start_s):07d}-{round(100 * end_s):07d}"


def read_datadir(path: Path | str) -> DataDir:
    """Read a Kaldi data directory.

    A missing `text` is allowed, since decoding needs none; so is a missing `wav.scp` if there is a `feats.scp`. Audio
    and features are not read; `speech3 validate` checks the audio.

    Raises `Speech3Error`: recordings come from commands, which are refused; or the text files have faults: the message
    lists all of them, each with its file, line, utterance and remedy.
    """
    data, found = parse(path)
    paths.check(data.path / "wav.scp", data.recordings)
    faults = [fault for fault in found if not fault.warning]
    if len(faults) == 1:
        raise FormatError(str(faults[0]))
    if faults:
        listing = "\n".join(f"  {fault}" for fault in faults)
        raise FormatError(
            f"{path}: {counted(len(faults), 'fault')} (`speech3 fix {path} OUT` writes a copy without them)\n{listing}"
        )
    return data


def parse(path: Path | str, *, need_text: bool = False) -> tuple[DataDir, list[Fault]]:
    """Read what can be read, and list every structural fault.

    Where something is wrong, the result has what `fix` keeps: the first of two lines with the same id, the utterance's
    id as its speaker if none is named, an empty text if there is none.
    """
    path = Path(path)
    if not path.is_dir():
        problem = "not a directory" if path.exists() else "no such directory"
        raise MissingError(f"{path}: {problem}; pass a folder of recordings or a Kaldi data directory")
    reader = _Reader(path, need_text)
    return reader.data(), reader.faults


def check_new_datadir(out: Path, sources: Sequence[DataDir], prefix: str = "") -> None:
    """Refuse a place for a data directory that would replace one of its sources, or a data directory of other speech.

    An earlier result may be replaced, since it has only utterances of `sources`. `prefix`: a regular expression for
    what precedes their ids in it.
    """
    check_output(out, [data.path for data in sources], DATADIR_FILES, marks=["utt2spk"])
    known = {key for data in sources for key in data.utterances}
    there = read_table(out / "utt2spk", [])
    if others := [key for key in (there.entries if there else ()) if re.sub(f"^(?:{prefix})", "", key) not in known]:
        given = ", ".join(str(data.path) for data in sources)
        raise OccupiedError(
            f"{out}: is a data directory with utterances that are not in {given}, such as {listed(others, 3)}; move it"
            " away, or choose another directory"
        )


def write_datadir(data: DataDir, path: Path | str) -> None:
    """Write `data` as a Kaldi data directory, every file sorted and replaced in one step, `wav.scp` last.

    `segments` is written only if an utterance is not a whole recording of the same name, `text` and `spk2gender` only
    if known; old files of these names are removed. Relative paths of audio and features become absolute, unless they
    name the same file from `path`. It is an error if there is no utterance to write.
    """
    path = Path(path)
    if not data.utterances:
        raise DataError(f"{path}: not written, since no utterance of {data.path} is left")
    utterances = list(data.utterances.values())
    genders = {utt.speaker: utt.gender for utt in utterances if utt.gender}
    whole = all(utt.id == utt.recording and utt.start_s == 0 and utt.end_s is None for utt in utterances)
    whole = whole and len(data.recordings) in (0, len(utterances))
    contents = {
        "utt2spk": {utt.id: utt.speaker for utt in utterances},  # first: it marks a directory as ours if this is killed
        "segments": {} if whole else {u.id: f"{u.recording} {_time(u.start_s)} {_time(u.end_s)}" for u in utterances},
        "text": {utt.id: utt.text for utt in utterances if utt.text is not None},
        "spk2utt": {speaker: " ".join(ids) for speaker, ids in data.speakers().items()},
        "spk2gender": genders,
        "cmvn.scp": {key: moved_rspecifier(value, data.path, path) for key, value in data.cmvn.items()},
        "feats.scp": {key: moved_rspecifier(value, data.path, path) for key, value in data.feats.items()},
        "wav.scp": {key: moved_value(value, data.path, path) for key, value in data.recordings.items()},
    }
    for name, lines in contents.items():
        if broken := next((value for value in lines.values() if value and re.search(r"[\n\r]", value)), ""):
            raise DataError(f"{broken!r}: a line break cannot be written into {path / name}; rename the file or folder")
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
class DirectoryTable:
    """The lines of one file by key; of several lines with the same key, the first."""

    path: Path
    entries: dict[str, Entry]

    def where(self, key: str) -> str:
        return f"{self.path}:{self.entries[key].line}"


def read_table(path: Path, faults: list[Fault]) -> DirectoryTable | None:
    """Read ``key value`` lines; None if there is no such file.

    LF, CRLF or CR ends a line, spaces and tabs separate fields, a byte order mark is ignored.
    Bytes that are not UTF-8 and duplicate keys are appended to `faults`.
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
    return DirectoryTable(path, entries)


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


class _Reader:
    """Reads the tables of a directory, one after the other, and collects their faults.

    `known` are the ids of all utterances, including faulty ones, and `spans` the recording and the times of those that
    can be used. `named` has the values of `sources`: wav.scp, or feats.scp if there are only features.
    """

    def __init__(self, path: Path, need_text: bool) -> None:
        self.path, self.need_text = path, need_text
        self.faults: list[Fault] = []
        self.tables = {name: read_table(path / name, self.faults) for name in DATADIR_FILES}
        # Features alone are enough only if there is no wav.scp: an empty wav.scp is a mistake.
        self.sources = self.tables["wav.scp"] or self.tables["feats.scp"]

    def data(self) -> DataDir:
        if not (self.sources and self.sources.entries):
            self._no_recordings()
            return DataDir(self.path, {}, {})
        self.named = self._locations(self.sources, "audio" if self.tables["wav.scp"] else "features")
        recordings = self.named if self.tables["wav.scp"] else {}
        self.spans = self._spans(self.tables["segments"])
        self.known = {*self.spans, *(self.tables["segments"] or self.sources).entries}
        texts = self._texts(self.tables["text"])
        speakers = self._speakers(self.tables["utt2spk"], self.tables["spk2utt"])
        feats = self._feats(self.tables["feats.scp"])
        cmvn = self._cmvn(self.tables["cmvn.scp"], set(speakers.values()))
        genders = self._genders(self.tables["spk2gender"], set(speakers.values()))
        utterances = {}
        for key, (recording, start_s, end_s) in sorted(self.spans.items()):
            speaker, text = speakers[key], texts[key] if texts is not None else None
            utterances[key] = Utterance(key, recording, speaker, text, start_s, end_s, genders.get(speaker))
        return DataDir(self.path, dict(sorted(recordings.items())), utterances, feats, cmvn)

    def _at(self, table: DirectoryTable, key: str, kind: str, problem: str, remedy: str, **more: Any) -> None:
        """Add the fault of a line, or of a key that the table lacks."""
        where = table.where(key) if key in table.entries else str(table.path)
        self.faults.append(Fault(kind, where, key, problem, remedy, **more))

    def _no_recordings(self) -> None:
        where, problem = str(self.path), "has no wav.scp"
        remedy = "write one line `utterance path-of-the-audio` for each recording"
        if self.tables["wav.scp"]:
            where, problem = f"{self.path}/wav.scp", "is empty"
        elif not any(self.tables.values()):
            problem = "has neither recordings (wav, flac, mp3, ...) nor wav.scp, text and utt2spk"
            remedy = (
                "pass a folder of recordings with transcripts of their names beside them, or a Kaldi data directory"
                " (https://kaldi-asr.org/doc/data_prep.html)"
            )
            if any(file.suffix.lower() in _SOUND for file in paths.files_below(self.path)):
                problem = "is a folder of recordings, but this command reads Kaldi data directories"
                remedy = (
                    f"`speech3 recipe any --source {self.path} --to data lexicon=graphemes` (or lang=CODE) makes such"
                    f" directories of those with transcripts, exp/{self.path.name}/data/train, dev and test"
                )
        self.faults.append(Fault("no recordings", where, "", problem, remedy))

    def _locations(self, table: DirectoryTable, what: str) -> dict[str, str]:
        """Key and path, pipe or rspecifier of each line of a ``wav.scp``, ``feats.scp`` or ``cmvn.scp``."""
        for key, entry in table.entries.items():
            if not entry.value:
                remedy = f"add the path of the {what}"
                self._at(table, key, f"no {what}", "names no file", remedy, repair="line dropped")
        return {key: entry.value for key, entry in table.entries.items() if entry.value}

    def _spans(self, table: DirectoryTable | None) -> Spans:
        """The recording and the times of each utterance: from `segments`, or else all of each entry of `sources`."""
        if table is None:
            return {key: (key, 0.0, None) for key in self.named}
        spans: Spans = {}
        for key, entry in table.entries.items():
            fields = entry.value.split()
            times = [_seconds(field) for field in fields[1:]]
            problem, remedy, kind = "", "write `utterance recording start end`, times in seconds", "segment"
            if len(fields) != 3 or None in times:
                problem = f"is not a segment: {entry.value!r}"
            elif self.tables["wav.scp"] and fields[0] not in self.named:
                kind, problem = "unknown recording", f"recording {fields[0]} is not in wav.scp"
                remedy = "add the recording or remove the segment"
            elif times[1] != -1 and float(times[1] or 0) <= float(times[0] or 0):
                problem, remedy = f"ends at {times[1]:g} s, not after its start at {times[0]:g} s", "correct the times"
            if problem:
                self._at(table, key, kind, problem, remedy, repair="utterance removed")
                continue
            start_s, end_s = float(times[0] or 0), None if times[1] == -1 else times[1]  # -1: Kaldi's "to the end"
            if start_s < 0:
                problem = f"starts at {start_s:g} s, before the recording"
                self._at(table, key, kind, problem, "correct the times", repair="start set to 0")
            spans[key] = (fields[0], max(start_s, 0.0), end_s)
        return spans

    def _texts(self, table: DirectoryTable | None) -> dict[str, str] | None:
        """Words of each utterance, without symbols that are no words; None if there is no file `text`."""
        if table is None:
            if self.need_text:
                where, remedy = str(self.path), "write one line `utterance word word ...` for each"
                remedy += ", or add --no-text if you only decode"
                repair = "left without text"
                self.faults.append(Fault("no text", where, "", "has no file `text`", remedy, repair=repair))
            return None
        self._unknown_keys(table)
        for key in sorted(self.spans):
            remedy = "add its words, or remove the utterance"
            if key not in table.entries:
                self._at(table, key, "no text", "has no transcript", remedy, drop=(key,))
            elif not table.entries[key].value:
                self._at(table, key, "empty text", "the transcript is empty", remedy, drop=(key,))
        texts = {key: table.entries[key].value if key in table.entries else "" for key in self.spans}
        words = {key: composed(text, table.path).split() for key, text in texts.items()}
        return {key: " ".join(said) for key, said in self._without_symbols(table, words).items()}

    def _without_symbols(self, table: DirectoryTable, words: Mapping[str, list[str]]) -> dict[str, list[str]]:
        kept, unknown = dict(words), list[str]()
        for key in sorted(words):
            if found := symbols_in(words[key]):
                kept[key] = [word for word in words[key] if word not in found]
                problem = f"has {' and '.join(found)} in its transcript, which nobody says: a symbol of language models"
                drop, repair = ((), "symbol removed") if kept[key] else ((key,), "")
                self._at(table, key, "symbol in text", problem, "remove it from the line", drop=drop, repair=repair)
            if any(word.lower() == "<unk>" for word in words[key]):
                unknown.append(key)
        if unknown:
            problem = f"has <unk> in its transcript, as {len(unknown) - 1:,} others: the symbol for words without a"
            problem += " pronunciation, which is trained as a word and left out of error rates"
            remedy = "write the word, or leave the utterance out"
            self._at(table, unknown[0], "unknown word in text", problem, remedy, warning=True)
        return kept

    def _unknown_keys(self, table: DirectoryTable) -> None:
        for key in table.entries:
            if key not in self.known:
                self._unknown(table.where(key), key, "add its recording, or remove the line", "line dropped")

    def _unknown(self, where: str, key: str, remedy: str, repair: str) -> None:
        """Add the fault of a line about an unknown utterance."""
        assert self.sources
        problem = f"is neither in segments nor in {self.sources.path.name}"
        self.faults.append(Fault("no audio", where, key, problem, remedy, repair=repair))

    def _speakers(self, utt2spk: DirectoryTable | None, spk2utt: DirectoryTable | None) -> dict[str, str]:
        listed = self._inverted(spk2utt) if spk2utt else {}
        speakers = {}
        if utt2spk:
            self._unknown_keys(utt2spk)
            for key, entry in utt2spk.entries.items():
                speaker, *more = entry.value.split() or [""]
                repair = f"taken as {speaker}"
                if more:
                    problem, remedy = "names more than one speaker", "write `utterance speaker`"
                    self._at(utt2spk, key, "malformed line", problem, remedy, repair=repair)
                if speaker and listed.get(key, speaker) != speaker:
                    problem = f"the speaker is {speaker} here and {listed[key]} in spk2utt"
                    remedy = "remove spk2utt if utt2spk is right: it has no other information"
                    self._at(utt2spk, key, "speakers disagree", problem, remedy, repair=repair)
                speakers[key] = speaker
        else:
            speakers = listed
        missing = [key for key in sorted(self.spans) if not speakers.get(key)]
        where, remedy = str(self.path), "add a line `utterance speaker` to utt2spk"
        if utt2spk or spk2utt:
            where, repair = f"{where}/utt2spk", "taken as its own speaker"
            for key in missing:
                self.faults.append(Fault("no speaker", where, key, "has no speaker", remedy, repair=repair))
        else:
            problem = f"has no utt2spk: {counted(len(missing), 'utterance')} without a speaker"
            repair = "each utterance its own"
            remedy, repair = f"{remedy} for each of them", f"{repair} speaker"
            self.faults.append(Fault("no speaker", where, "", problem, remedy, repair=repair))
        return {key: speakers.get(key) or key for key in self.spans}

    def _inverted(self, spk2utt: DirectoryTable) -> dict[str, str]:
        speakers: dict[str, str] = {}
        for speaker, entry in spk2utt.entries.items():
            where = spk2utt.where(speaker)
            for key in entry.value.split():
                if key not in self.known:
                    self._unknown(where, key, "add its recording, or remove it from the line", "dropped")
                elif speakers.setdefault(key, speaker) != speaker:
                    problem, repair = f"already belongs to {speakers[key]}", f"taken as {speakers[key]}"
                    remedy = "remove it from one of the speakers"
                    self.faults.append(Fault("duplicate id", where, key, problem, remedy, repair=repair))
        return speakers

    def _genders(self, table: DirectoryTable | None, speakers: set[str]) -> dict[str, str]:
        if table is None:
            return {}
        genders = {}
        for speaker, entry in table.entries.items():
            if entry.value not in ("m", "f"):
                problem, remedy = f"gender {entry.value!r}", "write m or f, or remove the line"
                self._at(table, speaker, "malformed line", problem, remedy, repair="line dropped")
            elif speaker not in speakers:
                self._unused_speaker(table, speaker)
            else:
                genders[speaker] = entry.value
        return genders

    def _unused_speaker(self, table: DirectoryTable, speaker: str) -> None:
        problem, remedy = "has no utterance in this directory", "remove the line"
        self._at(table, speaker, "unknown speaker", problem, remedy, repair="line dropped", warning=True)

    def _feats(self, table: DirectoryTable | None) -> dict[str, str]:
        """Rspecifier of each utterance's features; without audio, an utterance that has none is a fault."""
        if table is None:
            return {}
        self._unknown_keys(table)
        only = table is self.sources
        for key in sorted(set(self.spans) - set(table.entries)):
            remedy = "extract them, or remove the utterance"
            self._at(table, key, "no features", "has no features", remedy, drop=(key,), warning=not only)
        located = self.named if only else self._locations(table, "features")
        return {key: value for key, value in located.items() if key in self.spans}

    def _cmvn(self, table: DirectoryTable | None, speakers: set[str]) -> dict[str, str]:
        if table is None:
            return {}
        for speaker in table.entries:
            if speaker not in speakers:
                self._unused_speaker(table, speaker)
        for speaker in sorted(speakers - set(table.entries)):
            self._at(table, speaker, "no statistics", "has no statistics", "compute them again", warning=True)
        located = self._locations(table, "statistics")
        return {speaker: value for speaker, value in located.items() if speaker in speakers}


def _seconds(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
