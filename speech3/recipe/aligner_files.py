"""What `speech3 align SOURCE OUT` reads and writes.

SOURCE is a folder of recordings, a Kaldi data directory, or one recording (`read_source`). From the results of all
utterances come

OUT/PLACE.TextGrid            tiers of words and phones, in the recording's own time; PLACE is its path in SOURCE
OUT/PLACE.eaf                 the same for ELAN, if requested
OUT/PLACE.words.txt, PLACE.phones.txt   label tracks for Audacity, likewise
OUT/PLACE.json, PLACE.csv     the same, with confidences, likewise
OUT/words.ctm, phones.ctm     all recordings, likewise
OUT/report.csv                a line for each utterance: what became of it, its confidence, and why
OUT/left_out.txt              files and annotations that were not used
OUT/index.html                the utterances that should be checked
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from speech3.corpora import AUDIO, Annotation, Tier, find_pairs, is_folder, read_folder, tier_reader, write_elan
from speech3.data import (
    DataDir,
    Fault,
    Utterance,
    audio,
    is_datadir,
    plain_words,
    read_datadir,
    read_headers,
    without_markup,
)
from speech3.errors import DataError, MissingError, SettingError, Speech3Error, listed
from speech3.evaluate import Checked, drawn, write_alignment_page
from speech3.hmm import Segment, file_name, write_ctm, write_textgrid
from speech3.language import find_lang
from speech3.runtime import content_digest, progress, read_json, say, write_json, write_text

WIDE_HZ, NARROW_HZ = 16000, 8000  # rates of models of recordings whose rates differ, or are higher
Format = Literal["textgrid", "elan", "audacity", "ctm", "json", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
WRITTEN = ".speech3_align.json"  # the files in OUT that we have written (`Written`)
PAGE = "index.html"
ALIGNED, DOUBTFUL, FAILED = "aligned", "suspicious", "not aligned"
_SUFFIXES: Mapping[Format, tuple[str, ...]] = {
    "textgrid": (".TextGrid",),
    "elan": (".eaf",),
    "audacity": (".words.txt", ".phones.txt"),
    "json": (".json",),
    "csv": (".csv",),
}
_TOUCH_S = 1e-4  # times in TextGrids have four decimals
# Utterances on the page, others for comparison, pictures.
_SHOWN, _OTHERS, _PICTURES = 200, 3, 30
_LONGEST_PICTURE_S = 30.0
_PLAYED = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus")  # by browsers
_RANK = {FAILED: 0, DOUBTFUL: 1, ALIGNED: 2}


@dataclass(frozen=True)
class Target:
    """A recording to be aligned.

    `place`: path of its result in the output directory, without a suffix. `audio`: a path, or a command of a data
    directory. `transcript`: its file; None in a data directory, and with ``--text``. `reader`: that of its tiers;
    None if it has none.
    """

    place: str
    audio: str
    duration_s: float
    transcript: Path | None = None
    reader: Callable[[Path], list[Tier]] | None = None


@dataclass(frozen=True)
class Source:
    """What was read."""

    data: DataDir  # the utterances; transcripts of a folder are in plain words
    # Each recording that has a transcript and can be read, by its name in `data`, even without usable utterances.
    targets: Mapping[str, Target]
    plain: bool
    lexicon: Path | None = None  # ``lang/lexicon.txt`` in the source, if there is one
    faults: list[Fault] = field(default_factory=list)  # what is left out, and warnings
    written: Mapping[str, str] = field(default_factory=dict)  # transcripts as the user wrote them, where they are known

    @cached_property
    def rate_hz(self) -> int:
        """The rate for a model that is trained on it: that of all recordings, or 16 or 8 kHz.

        What is resampled is said in one line.
        """
        rates = Counter(about.sample_rate_hz for about in read_headers(self.data).infos.values())
        if not rates:
            return WIDE_HZ
        if len(rates) == 1 and max(rates) <= WIDE_HZ:
            return max(rates)
        rate_hz = WIDE_HZ if min(rates) >= WIDE_HZ else NARROW_HZ
        shown = ", ".join(f"{count} of {rate} Hz" for rate, count in sorted(rates.items()))
        say(f"  recordings are resampled to {rate_hz} Hz: {shown}")
        return rate_hz

    @property
    def speech_s(self) -> float:
        """Seconds of the utterances whose recordings can be read."""
        total_s = 0.0
        for utterance in self.data.utterances.values():
            if target := self.targets.get(utterance.recording):
                total_s += (target.duration_s if utterance.end_s is None else utterance.end_s) - utterance.start_s
        return total_s


def read_source(
    source: Path, *, text: str | None = None, tier: str | None = None, lang: str = "", apart: Path | None = None
) -> Source:
    """Read a folder, a Kaldi data directory or one recording.

    Parameters
    ----------
    tier
        The tier with the transcript, if TextGrids or ELAN files have several kinds.
    lang
        The language of the transcripts, for their lower case.
    apart
        A folder in `source` that is not searched.

    Raises
    ------
    Speech3Error
        There is nothing to align, or `text` is passed with more than one recording.
    """
    if not source.exists():
        raise MissingError(f"{source}: no such recording, folder or data directory")
    source = source.absolute()
    if source.is_file():
        return _one(source, text, tier, lang)
    if text is not None:
        raise SettingError(f"--text is the transcript of one recording, but {source} is a directory; pass a file")
    if is_datadir(source):
        if tier:
            raise DataError(f"{source}: --tier {tier}: a Kaldi data directory has no tiers; remove the option")
        return _kaldi(source)
    if not is_folder(source):
        raise MissingError(
            f"{source}: no recordings (wav, flac, mp3, ...) and no wav.scp are in it; pass a folder of recordings with"
            " transcripts of their names (.txt, .lab, .TextGrid, .eaf, .srt), a Kaldi data directory, or one recording"
        )
    pairs = find_pairs(source, apart)
    data, faults = read_folder(source, tier, WIDE_HZ, (), lang, pairs=pairs)
    places = {item.key: str(item.audio.relative_to(source).with_suffix("")) for item in pairs[0]}
    targets = {}
    for item in pairs[0]:
        try:
            about = audio.info(item.audio)
        except Speech3Error:
            continue  # in `faults`
        reader = tier_reader(item)
        targets[item.key] = Target(places[item.key], str(item.audio), about.duration_s, item.transcript, reader)
    return Source(data, targets, True, find_lang(source / "lang").lexicon, faults)


def _one(path: Path, text: str | None, tier: str | None, lang: str) -> Source:
    if path.suffix.lower() not in AUDIO:
        raise DataError(f"{path}: is not a recording (wav, flac, ogg, mp3, ...); pass one, or a directory")
    duration_s, key = audio.info(path).duration_s, "_".join(path.stem.split())
    if text is None:
        pairs = find_pairs(path.parent, only=path)
        data, faults = read_folder(path.parent, tier, WIDE_HZ, (), lang, pairs=pairs)
        (key,), (item,) = data.recordings, pairs[0]
        targets = {key: Target(path.stem, str(path), duration_s, item.transcript, tier_reader(item))}
        return Source(data, targets, True, None, faults)
    cleaned, remarks = without_markup(text)
    for remark in remarks:
        say(f"  --text {remark.problem}; {remark.handling}")
    words = plain_words(cleaned, (), lang)
    if not words:
        raise SettingError(f"--text {text!r}: has no words; write what is said in {path.name}")
    data = DataDir(path.parent, {key: str(path)}, {key: Utterance(key, key, key, words)})
    targets = {key: Target(path.stem, str(path), duration_s)}
    return Source(data, targets, True, written={key: " ".join(cleaned.split())})


def _kaldi(source: Path) -> Source:
    data = read_datadir(source)
    if not data.recordings:
        raise DataError(f"{source}: has features, but no recordings (wav.scp): use speech3 align MODEL DIR OUT")
    headers = read_headers(data)
    targets = {
        key: Target(file_name(key), data.recordings[key], about.duration_s) for key, about in headers.infos.items()
    }
    lang = source / "lang"
    lexicon = find_lang(lang).lexicon if lang.is_dir() else None
    faults = [Fault("unreadable", key, "", why, "repair it") for key, why in headers.bad.items()]
    return Source(data, targets, False, lexicon, faults)


@dataclass(frozen=True)
class UtteranceResult:
    """One utterance: words and phones in seconds of the recording, none if it could not be aligned.

    `reason`: why it is suspicious, or was not aligned. `widened`: the first beam found no path. `marked`: the
    suspicious part of the transcript, with ``*`` around doubtful words.
    """

    id: str
    recording: str
    speaker: str
    start_s: float
    end_s: float
    text: str
    words: tuple[Segment, ...]
    phones: tuple[Segment, ...]
    status: str
    widened: bool
    confidence: float | None
    reason: str
    marked: str = ""

    @property
    def why(self) -> str:
        return f"{self.reason}: {self.marked}" if self.marked else self.reason


@dataclass(frozen=True)
class Written:
    """A file that was written for recordings from `source`; `digest` is that of its content, empty during a run."""

    digest: str
    source: str

    def changed(self, path: Path) -> bool:
        """Whether somebody has changed the file since."""
        return bool(self.digest) and path.is_file() and content_digest(path) != self.digest


def read_written(out: Path) -> dict[str, Written]:
    """What has been written in an output directory, relative to it."""
    stored = read_json(out / WRITTEN)
    return {file: Written(*each) for file, each in stored.items()} if isinstance(stored, dict) else {}


def files_of_recordings(targets: Mapping[str, Target], formats: Sequence[Format]) -> list[str]:
    """The files with the result of one recording, relative to the output directory."""
    suffixes = [suffix for each in formats for suffix in _SUFFIXES.get(each, ())]
    return [f"{target.place}{suffix}" for target in targets.values() for suffix in suffixes]


def files_of_all(formats: Sequence[Format]) -> list[str]:
    """The files with the results of all recordings."""
    return [*(["words.ctm", "phones.ctm"] if "ctm" in formats else []), "report.csv", PAGE]


def write_files(
    out: Path, path: Path, source: Source, results: Sequence[UtteranceResult], formats: Sequence[Format]
) -> None:
    """Write all files but the page.

    Results of recordings from elsewhere than `path` stay, and so do files of one recording that somebody has changed.
    Other files of an earlier run with `path` that are no longer made are removed.
    """
    before, this = read_written(out), str(path.absolute())
    plan = _planned(out, before, this, source, formats)
    if plan.kept:
        kept = listed(sorted(plan.kept))
        say(f"  kept, as somebody has changed them: {kept}; delete those that are to be written again")
    if others := sorted({each.source for each in before.values()} - {this}):
        alone = ", ".join(files_of_all(formats))
        say(f"  {out}: results of {listed(others)} stay; {alone} are of {path} alone")
    # An interrupted run leaves its files without a digest, so that the next one may replace them.
    unfinished = {file: Written("", this) for file in plan.due}
    _write_written(out, {**before, **unfinished})
    # The files of each recording.
    of_recording: dict[str, list[UtteranceResult]] = {key: [] for key in source.targets}
    for result in results:
        of_recording.setdefault(result.recording, []).append(result)
    for key, target in progress(source.targets.items(), len(source.targets), str(out)):
        here = sorted(of_recording[key], key=lambda result: (result.start_s, result.end_s))
        _write_recording(out, here, target, plan.due)
    # The files of all recordings.
    if "ctm" in formats:
        for name in ("words", "phones"):
            tracks = {
                key: sorted((s for result in of_recording[key] for s in getattr(result, name)), key=_start)
                for key in source.targets
            }
            write_ctm(out / f"{name}.ctm", tracks)
    write_text(out / "report.csv", _report(results))
    if source.faults:
        write_text(out / "left_out.txt", "".join(f"{fault}\n" for fault in source.faults))
    else:
        (out / "left_out.txt").unlink(missing_ok=True)
    for file in plan.removed:
        (out / file).unlink(missing_ok=True)
    written = {file: Written(content_digest(out / file), this) for file in plan.due if file != PAGE}
    stay = {file: each for file, each in {**before, **unfinished}.items() if file not in plan.removed}
    _write_written(out, {**stay, **written})


@dataclass(frozen=True)
class _Plan:
    """Files to write, files of an earlier run to remove, and files that would be either but were changed by hand."""

    due: frozenset[str]
    removed: frozenset[str]
    kept: frozenset[str]


def _planned(out: Path, before: Mapping[str, Written], this: str, source: Source, formats: Sequence[Format]) -> _Plan:
    one, files = {*files_of_recordings(source.targets, formats)}, {*files_of_all(formats)}
    left = {file for file, each in before.items() if each.source == this and file not in one | files}
    single = (one | left) - {*files_of_all(("ctm",))}  # those of all recordings are nobody's to correct
    kept = frozenset(file for file in single if file in before and before[file].changed(out / file))
    return _Plan(frozenset(one | files) - kept, frozenset(left) - kept, kept)


def _write_written(out: Path, files: Mapping[str, Written]) -> None:
    write_json(out / WRITTEN, {file: astuple(each) for file, each in sorted(files.items())})


def _write_recording(out: Path, results: Sequence[UtteranceResult], target: Target, due: Container[str]) -> None:
    """Write the files of one recording, those of them that are due."""
    if f"{target.place}.TextGrid" in due:
        tiers = {name.replace('"', '""'): track for name, track in _tiers(results, target).items()}
        write_textgrid(out / f"{target.place}.TextGrid", tiers, target.duration_s)
    if f"{target.place}.eaf" in due:
        _write_eaf(out / f"{target.place}.eaf", _tiers(results, target), target)
    for name in ("words", "phones"):
        if f"{target.place}.{name}.txt" in due:
            write_text(out / f"{target.place}.{name}.txt", _labels(results, name))
    if f"{target.place}.json" in due:
        text = json.dumps(_as_json(results, target), indent=1, ensure_ascii=False)
        write_text(out / f"{target.place}.json", f"{text}\n")
    if f"{target.place}.csv" in due:
        write_text(out / f"{target.place}.csv", _as_csv(results))


def _write_eaf(path: Path, tiers: Mapping[str, Sequence[Segment]], target: Target) -> None:
    audio = Path(target.audio)
    media = os.path.relpath(audio, path.parent) if audio.is_file() else ""  # else a command of a data directory
    rows = {
        name: tuple(Annotation(s.start_s, s.end_s, s.label) for s in track if s.label) for name, track in tiers.items()
    }
    write_elan(path, [Tier(name, annotations) for name, annotations in rows.items()], media)


def _labels(results: Sequence[UtteranceResult], name: str) -> str:
    """A label track of Audacity: begin, end and text, separated by tabs."""
    track = sorted((s for result in results for s in getattr(result, name)), key=_start)
    return "".join(f"{s.start_s:.6f}\t{s.end_s:.6f}\t{s.label}\n" for s in track)


def _start(segment: Segment) -> float:
    return segment.start_s


def _tiers(results: Sequence[UtteranceResult], target: Target) -> dict[str, list[Segment]]:
    """Words and phones of each speaker, then the tiers that the transcript has."""
    speakers = list(dict.fromkeys(result.speaker for result in results))
    named = len(speakers) > 1 or (target.reader is not None and bool(speakers))
    tiers: dict[str, list[Segment]] = {}
    for speaker in speakers or [""]:
        mine = [result for result in results if result.speaker == speaker]
        for name in ("words", "phones"):
            track: list[Segment] = []
            for result in mine:
                found = getattr(result, name)
                track += found or [Segment(result.start_s, result.end_s, "")]
            tiers[f"{speaker} - {name}" if named else name] = _trimmed(track, target.duration_s)
    for name, track in _given_tiers(target).items():
        tiers.setdefault(name, track)
    return tiers


def _given_tiers(target: Target) -> dict[str, list[Segment]]:
    """The interval tiers of the transcript, unless their times are shifted or cannot be read."""
    if target.transcript is None or target.reader is None:
        return {}
    try:
        tiers = target.reader(target.transcript)
    except Speech3Error:
        return {}  # it was reported
    return {
        tier.name: _trimmed([Segment(a.start_s, a.end_s, a.text) for a in tier.annotations], target.duration_s)
        for tier in tiers
        if not (tier.span_s and tier.span_s[0])
    }


def _trimmed(track: Sequence[Segment], duration_s: float) -> list[Segment]:
    """The segments in order, without overlaps and what lies outside the recording: a tier cannot have either."""
    kept: list[Segment] = []
    now_s = 0.0
    for segment in sorted(track, key=_start):
        start_s, end_s = max(segment.start_s, now_s), min(segment.end_s, duration_s)
        if end_s - start_s > _TOUCH_S:
            kept.append(replace(segment, start_s=start_s, end_s=end_s))
            now_s = end_s
    return kept


def _as_json(results: Sequence[UtteranceResult], target: Target) -> dict[str, Any]:
    utterances = []
    for result in results:
        values = {key: getattr(result, key) for key in ("id", "speaker", "text", "status")}
        times = {"start": round(result.start_s, 4), "end": round(result.end_s, 4)}
        doubt = {"confidence": _rounded(result.confidence), "reason": result.why}
        tracks = {name: [_segment_json(name[:-1], s) for s in getattr(result, name)] for name in ("words", "phones")}
        utterances.append({"id": result.id, "speaker": result.speaker, **times, **values, **doubt, **tracks})
    return {"recording": target.audio, "duration": round(target.duration_s, 4), "utterances": utterances}


def _segment_json(name: str, s: Segment) -> dict[str, Any]:
    times = {"start": round(s.start_s, 4), "end": round(s.end_s, 4)}
    return {name: s.label, **times, "confidence": _rounded(s.confidence)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _as_csv(results: Sequence[UtteranceResult]) -> str:
    """A line for each word and each phone; the columns that the Montreal Forced Aligner has, and the confidence."""
    rows: list[Sequence[object]] = [("Begin", "End", "Label", "Type", "Speaker", "Confidence")]
    for kind in ("words", "phones"):
        for result in results:
            rows += [
                (f"{s.start_s:.4f}", f"{s.end_s:.4f}", s.label, kind, result.speaker, _rounded(s.confidence))
                for s in getattr(result, kind)
            ]
    return _csv(rows)


def worst_first(results: Sequence[UtteranceResult]) -> list[UtteranceResult]:
    """Those that were not aligned, then the suspicious ones, then the others, each by their confidences."""
    return sorted(results, key=lambda result: (_RANK[result.status], result.confidence or 0.0, result.id))


def _report(results: Sequence[UtteranceResult]) -> str:
    """All utterances, the doubtful ones first."""
    rows: list[Sequence[object]] = [
        ("utterance", "recording", "speaker", "start", "end", "status", "widened", "confidence", "reason")
    ]
    for r in worst_first(results):
        wide = "yes" if r.widened else "no"
        times = (f"{r.start_s:.3f}", f"{r.end_s:.3f}")
        rows.append((r.id, r.recording, r.speaker, *times, r.status, wide, _rounded(r.confidence), r.why))
    return _csv(rows)


def _csv(rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def write_page(
    out: Path, title: str, summary: Sequence[str], source: Source, results: Sequence[UtteranceResult]
) -> None:
    """Write the page of the suspicious utterances and of those that were not aligned, the worst first."""
    ranked = worst_first(results)
    doubtful = [each for each in ranked if each.status != ALIGNED][:_SHOWN]
    others = [each for each in ranked if each.status == ALIGNED][:_OTHERS]
    shown = [*doubtful, *others]
    pictured = {each.id for each in shown[: _PICTURES - len(others)] if each.words} | {each.id for each in others}
    blocks = {each.id: _checked(out, source.data, source.targets[each.recording], each, pictured) for each in shown}
    first, then = ([blocks[each.id] for each in group] for group in (doubtful, others))
    write_alignment_page(out / PAGE, title, summary, first, then)


def _checked(out: Path, data: DataDir, target: Target, each: UtteranceResult, pictured: set[str]) -> Checked:
    file, picture = Path(target.audio), None
    if each.id in pictured and each.end_s - each.start_s <= _LONGEST_PICTURE_S:
        try:
            wave_N, rate_hz = audio.load(data, each.id, mix_channels=True)
            picture = drawn(each.id, wave_N, rate_hz, each.phones, each.words, start_s=each.start_s)
        except (Speech3Error, OSError):
            pass  # it was aligned from earlier results, and is gone
    played = file.is_file() and file.suffix.lower() in _PLAYED
    link, text = os.path.relpath(file, out) if played else "", each.marked or each.text
    times = each.start_s, each.end_s
    return Checked(each.id, each.speaker, each.reason, link, *times, each.words, text, each.confidence, picture)
