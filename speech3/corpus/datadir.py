"""The Kaldi data directory: `wav.scp`, `text`, `utt2spk`, `spk2utt`, `segments`, `spk2gender`.

One tolerant parser (`parse`) reads whatever is there and collects the faults; `read_datadir` raises them, `validate`
lists them beside those of the audio, `fix` mends them. The order of lines never matters.
Format: https://kaldi-asr.org/doc/data_prep.html
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from speech3.corpus.paths import moved
from speech3.corpus.tables import Fault, Table, read_table
from speech3.errors import Speech3Error
from speech3.io.atomic import write_text

FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "spk2gender")


@dataclass(frozen=True)
class Utterance:
    """What one speaker said in one stretch of a recording."""

    id: str
    recording: str
    speaker: str
    text: str | None  # the words joined by one space; None where the directory has no `text` (enough for decoding)
    start_s: float = 0.0
    end_s: float | None = None  # None: to the end of the recording
    gender: str | None = None


@dataclass(frozen=True)
class DataDir:
    """A set of utterances and the recordings they lie in."""

    path: Path
    recordings: dict[str, str]  # recording -> what wav.scp says: a path, or a command that ends in |
    utterances: dict[str, Utterance]  # sorted by id

    def speakers(self) -> dict[str, list[str]]:
        """Utterance ids of each speaker, sorted (Kaldi's spk2utt)."""
        table: dict[str, list[str]] = {}
        for utterance in self.utterances.values():
            table.setdefault(utterance.speaker, []).append(utterance.id)
        return dict(sorted(table.items()))

    def subset(self, ids: Iterable[str]) -> "DataDir":
        """Keep these utterances and their recordings; `path` stays, so relative audio is still found.

        Raises
        ------
        Speech3Error
            Naming ids that are not in the directory.
        """
        wanted = set(ids)
        if unknown := sorted(wanted - set(self.utterances)):
            raise Speech3Error(f"{self.path}: no such utterance: {', '.join(unknown[:10])}")
        utterances = {key: utt for key, utt in self.utterances.items() if key in wanted}
        used = {utt.recording for utt in utterances.values()}
        return DataDir(self.path, {key: value for key, value in self.recordings.items() if key in used}, utterances)


def read_datadir(path: Path | str) -> DataDir:
    """Read a Kaldi data directory.

    A missing `text` is allowed: decoding needs none. The audio is not looked at; `speech3 validate` does that.

    Raises
    ------
    Speech3Error
        Listing every fault of the text files, each with its file, line, utterance and remedy.
    """
    data, found = parse(path)
    faults = [fault for fault in found if not fault.warning]
    if len(faults) == 1:
        raise Speech3Error(str(faults[0]))
    if faults:
        listing = "\n".join(f"  {fault}" for fault in faults)
        raise Speech3Error(
            f"{path}: {len(faults)} faults (`speech3 fix {path} OUT` writes a copy without them)\n{listing}"
        )
    return data


def parse(path: Path | str, *, need_text: bool = False) -> tuple[DataDir, list[Fault]]:
    """Read what can be read, and list every structural fault.

    What the result holds where something is wrong is what `fix` keeps: the first of two lines with one id, an utterance
    as its own speaker where none is named, the empty text where there is none.

    Raises
    ------
    Speech3Error
        `path` is not a directory.
    """
    path = Path(path)
    if not path.is_dir():
        raise Speech3Error(f"{path}: {'not a' if path.exists() else 'no such'} directory; give a Kaldi data directory")
    faults: list[Fault] = []
    tables = {name: read_table(path / name, faults) for name in FILES}
    if not (tables["wav.scp"] and tables["wav.scp"].entries):
        faults.append(_no_recordings(path, tables))
        return DataDir(path, {}, {}), faults
    recordings = _recordings(tables["wav.scp"], faults)
    spans = _spans(tables["segments"], recordings, faults)
    known = set(spans) | set((tables["segments"] or tables["wav.scp"]).entries)
    texts = _texts(path, tables["text"], spans, known, need_text, faults)
    speakers = _speakers(path, tables["utt2spk"], tables["spk2utt"], spans, known, faults)
    genders = _genders(tables["spk2gender"], set(speakers.values()), faults)
    utterances = {
        key: Utterance(
            key,
            recording,
            speakers[key],
            texts[key] if texts is not None else None,
            start_s,
            end_s,
            genders.get(speakers[key]),
        )
        for key, (recording, start_s, end_s) in sorted(spans.items())
    }
    return DataDir(path, dict(sorted(recordings.items())), utterances), faults


Spans = dict[str, tuple[str, float, float | None]]  # utterance -> recording, start and end in seconds


def _no_recordings(path: Path, tables: Mapping[str, Table | None]) -> Fault:
    remedy = "write one line `utterance path-of-the-audio` for each recording"
    if tables["wav.scp"]:
        return Fault("no recordings", f"{path}/wav.scp", "", "is empty", remedy)
    if any(tables.values()):
        return Fault("no recordings", str(path), "", "has no wav.scp", remedy)
    return Fault(
        "no recordings",
        str(path),
        "",
        "the data directory is empty of wav.scp, text and utt2spk",
        "write them (https://kaldi-asr.org/doc/data_prep.html)",
    )


def _recordings(table: Table, faults: list[Fault]) -> dict[str, str]:
    for key, entry in table.entries.items():
        if not entry.value:
            faults.append(
                Fault(
                    "no audio", table.where(key), key, "names no file", "add the path of the audio", mend="line dropped"
                )
            )
    return {key: entry.value for key, entry in table.entries.items() if entry.value}


def _spans(table: Table | None, recordings: Mapping[str, str], faults: list[Fault]) -> Spans:
    if table is None:
        return {key: (key, 0.0, None) for key in recordings}
    spans: Spans = {}
    for key, entry in table.entries.items():
        fields = entry.value.split()
        times = [_seconds(field) for field in fields[1:]]
        problem, remedy, kind = "", "write `utterance recording start end`, times in seconds", "segment"
        if len(fields) != 3 or None in times:
            problem = f"is no segment: {entry.value!r}"
        elif fields[0] not in recordings:
            kind, problem = "unknown recording", f"recording {fields[0]} is not in wav.scp"
            remedy = "add the recording or remove the segment"
        elif times[1] != -1 and float(times[1] or 0) <= float(times[0] or 0):
            problem, remedy = f"ends at {times[1]:g} s, not after its start at {times[0]:g} s", "correct the times"
        if problem:
            faults.append(Fault(kind, table.where(key), key, problem, remedy, mend="utterance removed"))
            continue
        start_s, end_s = float(times[0] or 0), None if times[1] == -1 else times[1]  # -1: Kaldi's "to the end"
        if start_s < 0:
            faults.append(
                Fault(
                    kind,
                    table.where(key),
                    key,
                    f"starts at {start_s:g} s, before the recording",
                    "correct the times",
                    mend="start set to 0",
                )
            )
        spans[key] = (fields[0], max(start_s, 0.0), end_s)
    return spans


def _seconds(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _texts(
    path: Path, table: Table | None, spans: Spans, known: set[str], need_text: bool, faults: list[Fault]
) -> dict[str, str] | None:
    if table is None:
        if need_text:
            faults.append(
                Fault(
                    "no text",
                    str(path),
                    "",
                    "has no file `text`",
                    "write one line `utterance word word ...` for each; --no-text if you only decode",
                    mend="left without text",
                )
            )
        return None
    _strangers(table, known, faults)
    for key in sorted(spans):
        remedy = "add its words, or remove the utterance"
        if key not in table.entries:
            faults.append(Fault("no text", str(table.path), key, "has no transcript", remedy, drop=(key,)))
        elif not table.entries[key].value:
            faults.append(Fault("empty text", table.where(key), key, "the transcript is empty", remedy, drop=(key,)))
    return {key: " ".join(table.entries[key].value.split()) if key in table.entries else "" for key in spans}


def _strangers(table: Table, known: set[str], faults: list[Fault]) -> None:
    for key in table.entries:
        if key not in known:
            faults.append(
                Fault(
                    "no audio",
                    table.where(key),
                    key,
                    "is neither in segments nor in wav.scp",
                    "add its recording, or remove the line",
                    mend="line dropped",
                )
            )


def _speakers(
    path: Path, utt2spk: Table | None, spk2utt: Table | None, spans: Spans, known: set[str], faults: list[Fault]
) -> dict[str, str]:
    listed = _inverted(spk2utt, known, faults) if spk2utt else {}
    speakers = {}
    if utt2spk:
        _strangers(utt2spk, known, faults)
        for key, entry in utt2spk.entries.items():
            speaker, *more = entry.value.split() or [""]
            if more:
                faults.append(
                    Fault(
                        "malformed line",
                        utt2spk.where(key),
                        key,
                        "names more than one speaker",
                        "write `utterance speaker`",
                        mend=f"taken as {speaker}",
                    )
                )
            if speaker and listed.get(key, speaker) != speaker:
                faults.append(
                    Fault(
                        "speakers disagree",
                        utt2spk.where(key),
                        key,
                        f"the speaker is {speaker} here and {listed[key]} in spk2utt",
                        "remove spk2utt if utt2spk is right: it holds nothing else",
                        mend=f"taken as {speaker}",
                    )
                )
            speakers[key] = speaker
    else:
        speakers = listed
    _unspoken(path, speakers, spans, bool(utt2spk or spk2utt), faults)
    return {key: speakers.get(key) or key for key in spans}


def _unspoken(path: Path, speakers: Mapping[str, str], spans: Spans, any_file: bool, faults: list[Fault]) -> None:
    missing = [key for key in sorted(spans) if not speakers.get(key)]
    remedy = "add a line `utterance speaker` to utt2spk"
    if not any_file:
        faults.append(
            Fault(
                "no speaker",
                str(path),
                "",
                f"has no utt2spk: {len(spans)} utterances without a speaker",
                f"{remedy} for each of them",
                mend="each utterance its own speaker",
            )
        )
        return
    for key in missing:
        faults.append(
            Fault("no speaker", str(path / "utt2spk"), key, "has no speaker", remedy, mend="taken as its own speaker")
        )


def _inverted(spk2utt: Table, known: set[str], faults: list[Fault]) -> dict[str, str]:
    speakers: dict[str, str] = {}
    for speaker, entry in spk2utt.entries.items():
        for key in entry.value.split():
            if key not in known:
                faults.append(
                    Fault(
                        "no audio",
                        spk2utt.where(speaker),
                        key,
                        "is neither in segments nor in wav.scp",
                        "add its recording, or take it from the line",
                        mend="dropped",
                    )
                )
            elif speakers.setdefault(key, speaker) != speaker:
                faults.append(
                    Fault(
                        "duplicate id",
                        spk2utt.where(speaker),
                        key,
                        f"is already {speakers[key]}'s",
                        "take it from one of the speakers",
                        mend=f"taken as {speakers[key]}",
                    )
                )
    return speakers


def _genders(table: Table | None, speakers: set[str], faults: list[Fault]) -> dict[str, str]:
    genders = {}
    for speaker, entry in (table.entries if table else {}).items():
        if table and entry.value not in ("m", "f"):
            faults.append(
                Fault(
                    "malformed line",
                    table.where(speaker),
                    speaker,
                    f"gender {entry.value!r}",
                    "write m or f, or remove the line",
                    mend="line dropped",
                )
            )
        elif table and speaker not in speakers:
            faults.append(
                Fault(
                    "unknown speaker",
                    table.where(speaker),
                    speaker,
                    "says nothing in this directory",
                    "remove the line",
                    mend="line dropped",
                    warning=True,
                )
            )
        else:
            genders[speaker] = entry.value
    return genders


def write_datadir(data: DataDir, path: Path | str) -> None:
    """Write `data` as a Kaldi data directory, every file sorted and replaced in one step, `wav.scp` last.

    `segments` is written only if an utterance is not a whole recording of its own name, `text` and `spk2gender` only if
    known; files of these names that an earlier directory left are removed. Paths in `wav.scp` become absolute, unless
    they lead from `path` to the same file.

    Raises
    ------
    Speech3Error
        There is no utterance to write, or `path` cannot be written.
    """
    path = Path(path)
    if not data.utterances:
        raise Speech3Error(f"{path}: not written, since no utterance of {data.path} is left")
    utterances = list(data.utterances.values())
    genders = {utt.speaker: utt.gender for utt in utterances if utt.gender}
    whole = all(utt.id == utt.recording and utt.start_s == 0 and utt.end_s is None for utt in utterances)
    whole = whole and len(utterances) == len(data.recordings)
    contents = {
        "segments": {} if whole else {u.id: f"{u.recording} {_time(u.start_s)} {_time(u.end_s)}" for u in utterances},
        "text": {utt.id: utt.text for utt in utterances if utt.text is not None},
        "utt2spk": {utt.id: utt.speaker for utt in utterances},
        "spk2utt": {speaker: " ".join(ids) for speaker, ids in data.speakers().items()},
        "spk2gender": genders,
        "wav.scp": {key: moved(value, data.path, path) for key, value in data.recordings.items()},
    }
    for name, lines in contents.items():
        if lines:
            write_text(path / name, "".join(f"{key} {value}\n" for key, value in sorted(lines.items())))
        else:
            (path / name).unlink(missing_ok=True)


def _time(seconds: float | None) -> str:
    return "-1" if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")
