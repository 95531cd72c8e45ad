"""`speech3 align SOURCE OUT`: align everything in a source, and write one file for each recording.

OUT has the files of `aligner_files`, ``model``, the aligner that was trained, and the results of the run, so that the
next one aligns only what has changed.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from speech3 import __version__
from speech3.data import DataDir, Fault
from speech3.decode import FoundAlignment, Recognizer, find_alignment, load_recognizer
from speech3.errors import DataError, MachineError, OccupiedError, counted
from speech3.hmm import Limits, Segment
from speech3.io import MODEL_FILE
from speech3.recipe.aligner import (
    LITTLE_S,
    TextRules,
    Trained,
    as_written,
    english_for,
    in_user_spelling,
    in_vocabulary,
    map_aligner,
    model_path,
    model_rules,
    train_aligner,
    with_further_words,
)
from speech3.recipe.aligner_files import (
    ALIGNED,
    DOUBTFUL,
    FAILED,
    WRITTEN,
    Format,
    Source,
    Target,
    UtteranceResult,
    files_of_all,
    files_of_recordings,
    read_source,
    read_written,
    write_files,
    write_page,
)
from speech3.runtime import available_jobs, check_output, content_digest, read_json, say, write_json

_STATE = ".speech3_align_state.json"
_MOST_CHANGED = 0.25  # of the utterances; an aligner that was trained on the others is trained again
_SHOWN = 10


@dataclass(frozen=True)
class AlignRequest:
    """What the user asked for; see the help of `speech3 align`."""

    model: Path | None = None
    text: str | None = None
    tier: str | None = None
    lang: str | None = None
    lexicon: Path | None = None
    graphemes: bool = False
    train: bool = False
    corrected: Mapping[str, Sequence[Segment]] | None = None
    formats: tuple[Format, ...] = ("textgrid",)
    jobs: int = 0


@dataclass(frozen=True)
class Summary:
    """The results of all utterances, and what was said of the files: what was left out, and warnings."""

    results: list[UtteranceResult]
    faults: list[Fault]

    def lines(self, out: Path) -> list[str]:
        """What was done, for the end of the output."""
        status = Counter(result.status for result in self.results)
        widened = sum(result.widened for result in self.results)
        aligned = len(self.results) - status[FAILED]
        failed = [f"  not aligned: {result.id}: {result.reason}" for result in self.results if result.status == FAILED]
        more = [f"  not aligned: {len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
        recordings = counted(len({result.recording for result in self.results}), "recording")
        warnings = sum(fault.warning for fault in self.faults)
        return [
            *failed[:_SHOWN],
            *more,
            f"{aligned} of {counted(len(self.results), 'utterance')} of {recordings} aligned, {widened} of them at"
            f" a wider beam; {status[DOUBTFUL]} suspicious, {status[FAILED]} not aligned: {out / 'report.csv'}",
            f"files and annotations left out: {len(self.faults) - warnings}; {counted(warnings, 'warning')}"
            + (f": {out / 'left_out.txt'}" if self.faults else ""),
        ]


@dataclass(frozen=True)
class _State:
    """The results of a run, and what they depend on.

    `settings`: the options, and the model unless it was trained in the run. `model`: a digest of it. `marks`: for each
    utterance, its transcript, and where and when its recording was stored. `moved`: the boundaries were moved as in
    corrected recordings (``--corrected``).
    """

    settings: dict[str, Any]
    model: str
    marks: dict[str, str]
    moved: bool
    limits: Limits
    results: list[UtteranceResult]

    def save(self, out: Path) -> None:
        write_json(out / _STATE, asdict(self))


def _read_state(out: Path, settings: Mapping[str, Any]) -> _State | None:
    """The state of the last run in `out`; None if there was none, or with other options, or by another release."""
    if not (out / _STATE).exists():
        return None
    stored = read_json(out / _STATE)
    if stored.get("settings") != settings:
        return None
    results = [
        UtteranceResult(**{**each, **{name: tuple(Segment(**s) for s in each[name]) for name in ("words", "phones")}})
        for each in stored["results"]
    ]
    limits = Limits(**stored["limits"])
    return _State(stored["settings"], stored["model"], stored["marks"], stored["moved"], limits, results)


def _digest(path: Path) -> str:
    """A mark of a file's content; empty if there is no such file."""
    return content_digest(path) if path.is_file() else ""


def _marks(source: Source) -> dict[str, str]:
    """A mark of each utterance: another one if its transcript, its times, its speaker or its recording changed."""
    places: dict[str, str] = {}
    for key, audio in source.data.recordings.items():
        path = source.data.path / audio
        stat = path.stat() if path.is_file() else None  # else a command of a data directory
        places[key] = f"{audio} {stat.st_size} {stat.st_mtime_ns}" if stat else audio
    marks = {}
    for key, utterance in source.data.utterances.items():
        mark = repr((utterance, places.get(utterance.recording))) + source.written.get(key, "")
        marks[key] = hashlib.blake2b(mark.encode(), digest_size=16).hexdigest()
    return marks


def align_source(path: Path, out: Path, request: AlignRequest) -> Summary:
    """Align everything in a source, with a model that is trained on it unless one is given.

    Raises `Speech3Error`: the source or the model cannot be used, `out` is `path` or holds other files of the same
    names, or nothing could be aligned. All files are written before the last of these errors is raised.
    """
    # What to align, and with which model.
    _check_place(path, out)
    recognizer = load_recognizer(model_path(request.model)) if request.model else None
    rules = model_rules(recognizer) if recognizer else TextRules()
    lang = request.lang or (rules.lang if recognizer else None)
    source = read_source(path, text=request.text, tier=request.tier, lang=lang or "", apart=out.absolute())
    _check_files(source.targets, out, path, request.formats)
    lexicon = None if request.graphemes else request.lexicon or source.lexicon
    if recognizer is None and not (request.train or request.graphemes or lexicon):
        recognizer = english_for(source.data, source.speech_s, lang)
        if recognizer:
            request = replace(request, lang=None)
            say("the English aligner in speech3 is used (CMU's phones); --train: trains on these recordings")
    # What an earlier run has already done.
    settings = {
        "release": __version__,
        "model": str(recognizer.directory.absolute()) if recognizer else None,
        "lang": lang,
        "lexicon": lexicon and _digest(lexicon),
        "graphemes": request.graphemes,
        "rate_hz": None if recognizer else source.rate_hz,  # that of a model to be trained
    }
    marks = _marks(source)
    stored = (recognizer.directory if recognizer else out / "model") / MODEL_FILE
    earlier, changed = _changed(_read_state(out, settings), marks, stored, request, trained=recognizer is None)
    if recognizer is None and earlier:
        recognizer = load_recognizer(out / "model")
    limits, found = earlier.limits if earlier else None, dict[str, UtteranceResult]()
    # Train, if there is no model, and align what is new.
    if changed:
        data = source.data
        if earlier:  # the features of all utterances of a speaker are normalised together
            speakers = {data.utterances[key].speaker for key in changed}
            data = data.subset(key for key, utterance in data.utterances.items() if utterance.speaker in speakers)
        jobs = request.jobs or available_jobs()
        if recognizer is None:
            rules = TextRules(source.plain, lang or "", request.graphemes)
            model = None
            if not (request.train or request.graphemes) and source.speech_s < LITTLE_S:
                model = map_aligner(data, rules, lexicon, out / "model")
            if model is None:
                say(f"training on {counted(len(data.utterances), 'utterance')}: {out / 'model'}")
                model = train_aligner(data, rules, lexicon, out / "model", source.rate_hz, jobs)
            request = replace(request, lexicon=None, lang=None)  # all words have their pronunciations
        else:
            model = _prepared(recognizer, data, request.lexicon)
        alignment = find_alignment(
            model.recognizer,
            model.data,
            out,
            jobs,
            lexicon=request.lexicon,
            lang=request.lang,
            corrected=request.corrected,
            tolerant=True,
            only=changed if earlier else None,
            limits=limits,
        )
        shutil.rmtree(out / "feats", ignore_errors=True)
        limits = limits or alignment.limits
        found = {each.id: each for each in _results(alignment, source, changed)}
    # All files, from old and new results.
    assert limits is not None
    kept = {each.id: each for each in earlier.results} if earlier else {}
    results = [found.get(key) or kept[key] for key in source.data.utterances]
    write_files(out, path, source, results, request.formats)
    summary = Summary(results, source.faults)
    write_page(out, f"Alignment of {path.name}", summary.lines(out), source, results)
    _State(settings, _digest(stored), marks, request.corrected is not None, limits, results).save(out)
    if all(result.status == FAILED for result in results):
        reasons = "".join(f"\n  {result.id}: {result.reason}" for result in results[:_SHOWN])
        raise DataError(f"{path}: none of {counted(len(results), 'utterance')} could be aligned:{reasons}")
    return summary


def _changed(
    earlier: _State | None, marks: Mapping[str, str], stored: Path, request: AlignRequest, *, trained: bool
) -> tuple[_State | None, list[str]]:
    """The results of the last run, None if they are of no use, and the utterances to align.

    `stored`: the model's parameters. `trained`: the model was trained in that run, and not given by the user.
    """
    if earlier is None or not stored.is_file() or _digest(stored) != earlier.model:
        return None, list(marks)
    changed = [key for key in marks if earlier.marks.get(key) != marks[key]]
    how_many = f"  {len(changed):,} of {len(marks):,} utterances are new or changed"
    if trained and len(changed) > _MOST_CHANGED * len(marks):
        say(f"{how_many}: the aligner is trained again")
        return None, list(marks)
    say(f"{how_many} since the last run{f'; to train again, delete {stored.parent}' if trained else ''}")
    # Boundaries that are moved as in corrected recordings are moved in all.
    return earlier, list(marks) if earlier.moved or request.corrected else changed


def _prepared(recognizer: Recognizer, data: DataDir, lexicon: Path | None) -> Trained:
    """A model that was not trained on the data, with pronunciations of its words, and the data in its spelling."""
    rules = model_rules(recognizer)
    data = in_vocabulary(data, rules, recognizer.hmm.lexicon.by_word)
    if not (lexicon or rules.given):  # from a lexicon, `find_alignment` learns them
        words = (word for each in data.utterances.values() for word in (each.text or "").split())
        recognizer = with_further_words(recognizer, rules, set(words))
    return Trained(recognizer, data)


def _check_place(path: Path, out: Path) -> None:
    """Refuse an output directory whose TextGrids would be read as transcripts."""
    if out.resolve() == path.resolve() or path.resolve().is_relative_to(out.resolve()):
        raise OccupiedError(
            f"{out}: holds what is to be aligned, and its TextGrids would be taken for transcripts; choose another"
            " directory for the results, such as a new one in it"
        )
    check_output(out, [], ("model", "feats", "left_out.txt", "guessed.txt"), marks=[WRITTEN])
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / WRITTEN).exists():
            (out / WRITTEN).write_text("{}\n", encoding="utf-8")
        (out / WRITTEN).touch()
    except OSError as error:
        raise MachineError(f"{out}: cannot be written ({error.strerror}); choose another output directory") from error


def _check_files(targets: Mapping[str, Target], out: Path, path: Path, formats: Sequence[Format]) -> None:
    """Refuse to replace what was not written by an earlier run, and results of other recordings of the same name."""
    ours, here, one = read_written(out), str(path.absolute()), files_of_recordings(targets, formats)
    there = [file for file in (*one, *files_of_all(formats)) if (out / file).exists()]
    if others := [file for file in there if file not in ours]:
        raise OccupiedError(
            f"{out / others[0]}: exists and was not written by speech3 align; nothing is replaced: choose another"
            " directory"
        )
    if others := [file for file in there if file in one and ours[file].source != here]:
        raise OccupiedError(
            f"{out / others[0]}: is the result of {ours[others[0]].source}; nothing is replaced: choose another"
            " directory"
        )


def _results(found: FoundAlignment, source: Source, changed: Sequence[str]) -> list[UtteranceResult]:
    data, targets = source.data.subset(changed), source.targets
    words, phones = found.tracks()
    aligned, silent = found.aligned, set(found.recognizer.hmm.lexicon.silence_phones)
    whole = {key: key for key in data.utterances} | {name: part.utterance for name, part in found.parts.items()}
    # Long utterances were aligned in parts: what is said of a part holds for the whole.
    doubts: dict[str, list[str]] = {}
    marked: dict[str, list[str]] = {}
    for suspicion in found.suspicious:
        if suspicion.utterance in aligned.alignments:
            doubts.setdefault(whole[suspicion.utterance], []).append(suspicion.reason)
            marked.setdefault(whole[suspicion.utterance], []).append(suspicion.transcript)
    for name, reason in aligned.bad.items():
        if name in found.parts:
            doubts.setdefault(whole[name], []).append(f"a part was not aligned: {reason}")
    sure: dict[str, list[float]] = {}
    for name, confidence in aligned.confidences.items():
        sure.setdefault(whole[name], []).append(confidence.utterance)
    widened = {whole[name] for name in aligned.retried}
    results = []
    for key, utterance in data.utterances.items():
        target, text = targets.get(utterance.recording), utterance.text or ""
        end_s = utterance.end_s
        if end_s is None:
            end_s = target.duration_s if target else utterance.start_s + found.durations_s.get(key, 0.0)

        def moved(track: Sequence[Segment], by_s: float = utterance.start_s) -> tuple[Segment, ...]:
            return tuple(
                replace(s, start_s=s.start_s + by_s, end_s=s.end_s + by_s) for s in track if s.label not in silent
            )

        status = FAILED if key not in words else DOUBTFUL if key in doubts else ALIGNED
        reason = aligned.bad.get(key, "could not be aligned") if status == FAILED else "; ".join(doubts.get(key, []))
        results.append(
            UtteranceResult(
                id=key,
                recording=utterance.recording,
                speaker=utterance.speaker,
                start_s=utterance.start_s,
                end_s=end_s,
                text=source.written.get(key, text),
                words=moved(in_user_spelling(words.get(key, []), text, source.written.get(key, text))),
                phones=moved(phones.get(key, [])),
                status=status,
                widened=key in widened and status != FAILED,
                confidence=sum(sure[key]) / len(sure[key]) if key in sure else None,
                reason=reason,
                marked=" / ".join(_marked(each, text) for each in marked.get(key, [])) if status == DOUBTFUL else "",
            )
        )
    return results


def _marked(transcript: str, text: str) -> str:
    """A transcript with ``*`` around doubtful words, in the letter case of the text."""
    words = transcript.split()
    bare = [word.removeprefix("*").removesuffix("*") for word in words]
    spelled = zip(words, bare, as_written(bare, text), strict=True)
    return " ".join(word.replace(label, written) for word, label, written in spelled)
