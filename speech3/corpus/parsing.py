"""Parsers for the tables of a data directory, which collect faults; `datadir.parse` combines their results."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from speech3.corpus.symbols import symbols_in
from speech3.corpus.tables import Fault, Table
from speech3.io.unicode_form import composed

Spans = dict[str, tuple[str, float, float | None]]  # utterance -> recording, start and end in seconds


@dataclass(frozen=True)
class Known:
    """All utterances, including faulty ones, and the file that names their recordings or features."""

    ids: set[str]
    file: str  # wav.scp, or feats.scp if there are only features

    def unknown(self, where: str, key: str, remedy: str, repair: str) -> Fault:
        """The fault of a line about an unknown utterance."""
        return Fault("no audio", where, key, f"is neither in segments nor in {self.file}", remedy, repair=repair)


def no_recordings(path: Path, tables: Mapping[str, Table | None]) -> Fault:
    """The fault of a directory with neither audio nor features."""
    remedy = "write one line `utterance path-of-the-audio` for each recording"
    if tables["wav.scp"]:
        return Fault("no recordings", f"{path}/wav.scp", "", "is empty", remedy)
    if any(tables.values()):
        return Fault("no recordings", str(path), "", "has no wav.scp", remedy)
    return Fault(
        "no recordings",
        str(path),
        "",
        "the data directory has no wav.scp, text or utt2spk",
        "write them (https://kaldi-asr.org/doc/data_prep.html)",
    )


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
            faults.append(
                Fault(
                    kind,
                    table.where(key),
                    key,
                    f"starts at {start_s:g} s, before the recording",
                    "correct the times",
                    repair="start set to 0",
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


def read_texts(
    path: Path, table: Table | None, spans: Spans, known: Known, need_text: bool, faults: list[Fault]
) -> dict[str, str] | None:
    """Words of each utterance, without symbols that are no words; None if there is no file `text`."""
    if table is None:
        if need_text:
            faults.append(
                Fault(
                    "no text",
                    str(path),
                    "",
                    "has no file `text`",
                    "write one line `utterance word word ...` for each, or give --no-text if you only decode",
                    repair="left without text",
                )
            )
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
    """The words without those that are symbols of language models and graphs, which are faults."""
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
            if more:
                faults.append(
                    Fault(
                        "malformed line",
                        utt2spk.where(key),
                        key,
                        "names more than one speaker",
                        "write `utterance speaker`",
                        repair=f"taken as {speaker}",
                    )
                )
            if speaker and listed.get(key, speaker) != speaker:
                faults.append(
                    Fault(
                        "speakers disagree",
                        utt2spk.where(key),
                        key,
                        f"the speaker is {speaker} here and {listed[key]} in spk2utt",
                        "remove spk2utt if utt2spk is right: it has no other information",
                        repair=f"taken as {speaker}",
                    )
                )
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
        faults.append(
            Fault(
                "no speaker",
                str(path),
                "",
                f"has no utt2spk: {len(spans)} utterances without a speaker",
                f"{remedy} for each of them",
                repair="each utterance its own speaker",
            )
        )
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
                faults.append(
                    Fault(
                        "duplicate id",
                        spk2utt.where(speaker),
                        key,
                        f"already belongs to {speakers[key]}",
                        "remove it from one of the speakers",
                        repair=f"taken as {speakers[key]}",
                    )
                )
    return speakers


def read_genders(table: Table | None, speakers: set[str], faults: list[Fault]) -> dict[str, str]:
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
                    repair="line dropped",
                )
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
    """Rspecifier of each speaker's statistics."""
    if table is None:
        return {}
    faults += [_unused_speaker(table, speaker) for speaker in table.entries if speaker not in speakers]
    for speaker in sorted(speakers - set(table.entries)):
        remedy = "compute them again"
        faults.append(Fault("no statistics", str(table.path), speaker, "has no statistics", remedy, warning=True))
    return {speaker: value for speaker, value in read_locations(table, faults).items() if speaker in speakers}
