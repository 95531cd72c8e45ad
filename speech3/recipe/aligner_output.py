"""`speech3 align SOURCE OUT`: align everything in a source, and write one file for each recording.

OUT/PLACE.TextGrid            tiers of words and phones, in the recording's own time; PLACE is its path in SOURCE
OUT/PLACE.json, PLACE.csv     the same, with confidences, if these formats were requested
OUT/words.ctm, phones.ctm     all recordings, likewise
OUT/report.csv                a line for each utterance: what became of it, its confidence, and why
OUT/left_out.txt              files and annotations that were not used
OUT/model                     the model that was trained (`speech3.recipe.aligner`)
"""

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from speech3.corpora import read_elan, read_textgrid
from speech3.data import DataDir
from speech3.decode import FoundAlignment, find_alignment, load_recognizer
from speech3.errors import DataError, MachineError, OccupiedError, Speech3Error
from speech3.hmm import Segment, write_ctm, write_textgrid
from speech3.recipe.aligner import TextRules, in_vocabulary, model_rules, train_aligner, with_further_words
from speech3.recipe.aligner_source import Source, Target, read_source
from speech3.runtime import available_jobs, progress, read_json, say, write_json, write_text

Format = Literal["textgrid", "ctm", "json", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
WRITTEN = ".speech3_align.json"  # the files in OUT that we have written, which may be replaced
_SUFFIX = {"textgrid": ".TextGrid", "json": ".json", "csv": ".csv"}
_TOUCH_S = 1e-4  # times in TextGrids have four decimals


@dataclass(frozen=True)
class AlignRequest:
    """What the user asked for; see the help of `speech3 align`."""

    model: Path | None = None
    text: str | None = None
    tier: str | None = None
    lang: str | None = None
    lexicon: Path | None = None
    graphemes: bool = False
    corrected: Mapping[str, Sequence[Segment]] | None = None
    formats: tuple[Format, ...] = ("textgrid",)
    jobs: int = 0


@dataclass(frozen=True)
class UtteranceResult:
    """One utterance: words and phones in seconds of the recording, none if it could not be aligned.

    Attributes
    ----------
    end_s
        Of the utterance.
    status
        ``aligned``, ``suspicious`` or ``not aligned``.
    widened
        The first beam found no path.
    reason
        Why it is suspicious, or was not aligned.
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


@dataclass(frozen=True)
class Summary:
    """The results of all utterances, and the number of files and annotations that were left out before."""

    results: list[UtteranceResult]
    recordings: int
    left_out: int

    def lines(self, out: Path) -> list[str]:
        """What was done, for the end of the output."""
        status = Counter(result.status for result in self.results)
        widened = sum(result.widened for result in self.results)
        aligned = len(self.results) - status[_FAILED]
        lines = [f"  not aligned: {result.id}: {result.reason}" for result in self.results if result.status == _FAILED][
            :_SHOWN
        ]
        more = status[_FAILED] - len(lines)
        return [
            *lines,
            *([f"  not aligned: {more} more"] if more else []),
            f"{aligned} of {len(self.results)} utterances of {self.recordings} recordings aligned, {widened} of them at"
            f" a wider beam; {status[_DOUBTFUL]} suspicious, {status[_FAILED]} not aligned: {out / 'report.csv'}",
            f"{self.left_out} files and annotations left out" + (f": {out / 'left_out.txt'}" if self.left_out else ""),
        ]


_ALIGNED, _DOUBTFUL, _FAILED = "aligned", "suspicious", "not aligned"
_SHOWN = 10


def align_source(path: Path, out: Path, request: AlignRequest) -> Summary:
    """Align everything in a source, with a model that is trained on it unless one is given.

    Raises
    ------
    Speech3Error
        The source or the model cannot be used, `out` is `path` or holds other files of the same names, or nothing could
        be aligned. All files are written before the last of these errors is raised.
    """
    _check_place(path, out)
    jobs = request.jobs or available_jobs()
    recognizer = load_recognizer(request.model) if request.model else None
    rules = model_rules(recognizer) if recognizer else TextRules()
    lang = request.lang or (rules.lang if recognizer else None)
    source = read_source(path, text=request.text, tier=request.tier, lang=lang or "", apart=out.absolute())
    _check_files(source.targets, out, request.formats)
    if recognizer is None:
        rules = TextRules(source.plain, lang or "", request.graphemes)
        lexicon = None if request.graphemes else request.lexicon or source.lexicon
        say(f"training on {_counted(len(source.data.utterances), 'utterance')}: {out / 'model'}")
        trained = train_aligner(source.data, rules, lexicon, out / "model", source.rate_hz, jobs)
        found = find_alignment(
            trained.recognizer, trained.data, out, jobs, corrected=request.corrected, tolerant=True
        )  # fmt: skip
        data = trained.data
    else:
        data = in_vocabulary(source.data, rules, recognizer.hmm.lexicon.by_word)
        if not request.lexicon:
            words = (word for each in data.utterances.values() for word in (each.text or "").split())
            recognizer = with_further_words(recognizer, rules, set(words))
        found = find_alignment(
            recognizer, data, out, jobs, lexicon=request.lexicon, lang=request.lang, corrected=request.corrected,
            tolerant=True,
        )  # fmt: skip
    shutil.rmtree(out / "feats", ignore_errors=True)
    results = _results(found, data, source.targets)
    _write(out, source, results, request.formats)
    left_out = [fault for fault in source.faults if not fault.warning]
    summary = Summary(results, len(source.targets), len(left_out))
    if all(result.status == _FAILED for result in results):
        reasons = "".join(f"\n  {result.id}: {result.reason}" for result in results[:_SHOWN])
        raise DataError(f"{path}: none of {_counted(len(results), 'utterance')} could be aligned:{reasons}")
    return summary


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _check_place(path: Path, out: Path) -> None:
    """Refuse an output directory whose TextGrids would be read as transcripts."""
    if out.resolve() == path.resolve() or path.resolve().is_relative_to(out.resolve()):
        raise OccupiedError(
            f"{out}: holds what is to be aligned, and its TextGrids would be taken for transcripts; choose another"
            " directory for the results, such as a new one in it"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / WRITTEN).exists():
            (out / WRITTEN).write_text("[]\n", encoding="utf-8")
        (out / WRITTEN).touch()
    except OSError as error:
        raise MachineError(f"{out}: cannot be written ({error.strerror}); choose another output directory") from error


def _files_of(targets: Mapping[str, Target], formats: Sequence[Format]) -> list[str]:
    """The files of results, relative to the output directory."""
    suffixes = [_SUFFIX[each] for each in formats if each in _SUFFIX]
    files = [f"{target.place}{suffix}" for target in targets.values() for suffix in suffixes]
    return [*files, *(["words.ctm", "phones.ctm"] if "ctm" in formats else []), "report.csv"]


def _check_files(targets: Mapping[str, Target], out: Path, formats: Sequence[Format]) -> None:
    """Refuse to replace what was not written by an earlier run."""
    ours = set(read_json(out / WRITTEN))
    if others := [file for file in _files_of(targets, formats) if (out / file).exists() and file not in ours]:
        raise OccupiedError(
            f"{out / others[0]}: exists and was not written by speech3 align; nothing is replaced: choose another"
            " directory"
        )


def _results(found: FoundAlignment, data: DataDir, targets: Mapping[str, Target]) -> list[UtteranceResult]:
    words, phones = found.tracks()
    aligned, silent = found.outcome.aligned, set(found.recognizer.hmm.lexicon.silence_phones)
    whole = {key: key for key in data.utterances} | {name: part.utterance for name, part in found.parts.items()}
    doubts: dict[str, list[str]] = {}
    for suspicion in found.outcome.suspicious:
        if suspicion.utterance in aligned.alignments:
            marked = f"{suspicion.reason}: {suspicion.transcript}"
            doubts.setdefault(whole[suspicion.utterance], []).append(marked)
    for name, reason in aligned.bad.items():
        if name in found.parts:
            doubts.setdefault(whole[name], []).append(f"a part was not aligned: {reason}")
    sure: dict[str, list[float]] = {}
    for name, confidence in aligned.confidences.items():
        sure.setdefault(whole[name], []).append(confidence.utterance)
    widened = {whole[name] for name in aligned.retried}
    results = []
    for key, utterance in data.utterances.items():
        target = targets.get(utterance.recording)
        end_s = utterance.end_s
        if end_s is None:
            end_s = target.duration_s if target else utterance.start_s + found.durations_s.get(key, 0.0)

        def moved(track: Sequence[Segment], by_s: float = utterance.start_s) -> tuple[Segment, ...]:
            return tuple(
                replace(s, start_s=s.start_s + by_s, end_s=s.end_s + by_s) for s in track if s.label not in silent
            )

        status = _FAILED if key not in words else _DOUBTFUL if key in doubts else _ALIGNED
        reason = aligned.bad.get(key, "could not be aligned") if status == _FAILED else "; ".join(doubts.get(key, []))
        results.append(
            UtteranceResult(
                key, utterance.recording, utterance.speaker, utterance.start_s, end_s, utterance.text or "",
                moved(words.get(key, [])), moved(phones.get(key, [])), status, key in widened and status != _FAILED,
                sum(sure[key]) / len(sure[key]) if key in sure else None, reason,
            )
        )  # fmt: skip
    return results


def _write(out: Path, source: Source, results: Sequence[UtteranceResult], formats: Sequence[Format]) -> None:
    """Write all files; those of an earlier run that are no longer made are removed."""
    files = _files_of(source.targets, formats)
    before: set[str] = set(read_json(out / WRITTEN))
    write_json(out / WRITTEN, sorted(before | set(files)))
    of_recording: dict[str, list[UtteranceResult]] = {key: [] for key in source.targets}
    for result in results:
        of_recording.setdefault(result.recording, []).append(result)
    for key, target in progress(source.targets.items(), len(source.targets), str(out)):
        here = sorted(of_recording[key], key=lambda result: (result.start_s, result.end_s))
        if "textgrid" in formats:
            write_textgrid(out / f"{target.place}.TextGrid", _tiers(here, target), target.duration_s)
        if "json" in formats:
            text = json.dumps(_as_json(here, target), indent=1, ensure_ascii=False)
            write_text(out / f"{target.place}.json", f"{text}\n")
        if "csv" in formats:
            write_text(out / f"{target.place}.csv", _as_csv(here))
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
    for file in before - set(files):
        (out / file).unlink(missing_ok=True)
    write_json(out / WRITTEN, sorted(files))


def _start(segment: Segment) -> float:
    return segment.start_s


def _tiers(results: Sequence[UtteranceResult], target: Target) -> dict[str, list[Segment]]:
    """Words and phones of each speaker, then the tiers that the transcript has."""
    speakers = list(dict.fromkeys(result.speaker for result in results))
    named = len(speakers) > 1 or (target.tiered and bool(speakers))
    tiers: dict[str, list[Segment]] = {}
    for speaker in speakers or [""]:
        mine = [result for result in results if result.speaker == speaker]
        for name in ("words", "phones"):
            track: list[Segment] = []
            for result in mine:
                found = getattr(result, name)
                track += found or [Segment(result.start_s, result.end_s, "")]
            tiers[_quoted(f"{speaker} - {name}" if named else name)] = _trimmed(track, target.duration_s)
    for name, track in _given_tiers(target).items():
        tiers.setdefault(name, track)
    return tiers


def _given_tiers(target: Target) -> dict[str, list[Segment]]:
    """The interval tiers of the transcript, unless their times are shifted or cannot be read."""
    if target.transcript is None or not target.tiered:
        return {}
    try:
        tiers = (read_elan if target.transcript.suffix.lower() == ".eaf" else read_textgrid)(target.transcript)
    except Speech3Error:
        return {}  # it was reported
    return {
        _quoted(tier.name): _trimmed([Segment(a.start_s, a.end_s, a.text) for a in tier.annotations], target.duration_s)
        for tier in tiers
        if not (tier.span_s and tier.span_s[0])
    }


def _quoted(name: str) -> str:
    return name.replace('"', '""')


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
    return {
        "recording": target.audio,
        "duration": round(target.duration_s, 4),
        "utterances": [
            {
                "id": result.id, "speaker": result.speaker, "start": round(result.start_s, 4),
                "end": round(result.end_s, 4), "text": result.text, "status": result.status,
                "confidence": _rounded(result.confidence), "reason": result.reason,
                "words": [_segment_json("word", s) for s in result.words],
                "phones": [_segment_json("phone", s) for s in result.phones],
            }
            for result in results
        ],
    }  # fmt: skip


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


def _report(results: Sequence[UtteranceResult]) -> str:
    """All utterances, the doubtful ones first."""
    rank = {_FAILED: 0, _DOUBTFUL: 1, _ALIGNED: 2}
    rows: list[Sequence[object]] = [
        ("utterance", "recording", "speaker", "start", "end", "status", "widened", "confidence", "reason")
    ]
    for r in sorted(results, key=lambda r: (rank[r.status], r.confidence or 0.0, r.id)):
        wide = "yes" if r.widened else "no"
        times = (f"{r.start_s:.3f}", f"{r.end_s:.3f}")
        rows.append((r.id, r.recording, r.speaker, *times, r.status, wide, _rounded(r.confidence), r.reason))
    return _csv(rows)


def _csv(rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
