"""The Kaldi data directory: `wav.scp`, `text`, `utt2spk`, `spk2utt`, `segments`, `spk2gender`, `feats.scp`, `cmvn.scp`.

One tolerant parser (`parse`) reads what it can and collects the faults; `read_datadir` raises them, `validate` lists
them with those of the audio, `fix` repairs them. The order of lines does not matter.
Format: https://kaldi-asr.org/doc/data_prep.html
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from speech3.corpus import commands
from speech3.corpus.parsing import (
    Known,
    no_recordings,
    read_cmvn,
    read_feats,
    read_genders,
    read_locations,
    read_spans,
    read_speakers,
    read_texts,
)
from speech3.corpus.paths import moved, moved_rspecifier
from speech3.corpus.tables import Fault, read_table
from speech3.errors import Speech3Error, listed
from speech3.io.atomic import explained_disk_errors, write_text

FILES = ("wav.scp", "segments", "text", "utt2spk", "spk2utt", "spk2gender", "feats.scp", "cmvn.scp")


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
        raise Speech3Error(
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
            raise Speech3Error(f"{self.path}: no such utterance: {listed(unknown)}")
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
    commands.check(data.path / "wav.scp", data.recordings)
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

    Where something is wrong, the result has what `fix` keeps: the first of two lines with the same id, the utterance's
    id as its speaker if none is named, an empty text if there is none.

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
        raise Speech3Error(f"{path}: not written, since no utterance of {data.path} is left")
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
        "wav.scp": {key: moved(value, data.path, path) for key, value in data.recordings.items()},
    }
    for name, lines in contents.items():
        if lines:
            write_text(path / name, "".join(f"{key} {value}\n" for key, value in sorted(lines.items())))
        else:
            with explained_disk_errors(path):
                (path / name).unlink(missing_ok=True)


def _time(seconds: float | None) -> str:
    return "-1" if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")
