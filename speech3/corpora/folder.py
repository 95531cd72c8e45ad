"""A data directory of a folder's recordings with their transcripts: what is said, by whom, and what cannot be used.

`speech3.corpora.pairs` finds the transcripts. Those with times make an utterance of each annotation; markup, times
among the words and annotations that do not fit their recording are noticed, and named.
"""

import contextlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from speech3.corpora.pairs import (
    TEXTS,
    Item,
    find_pairs,
    has_recordings,
    key_of,
    recordings_in,
    second_recording,
    stem,
    tier_reader,
)
from speech3.corpora.tiers import EVERY, Annotation, Tier, choose, clock_s, shifted
from speech3.data import (
    END_TOLERANCE_S,
    AudioError,
    AudioInfo,
    DataDir,
    Fault,
    Utterance,
    case_doubts,
    channel_mixes,
    info,
    is_datadir,
    marked_at_edge,
    other_format,
    plain_words,
    read_datadir,
    symbols_in,
    without_markup,
)
from speech3.errors import DataError, MissingError, SettingError, Speech3Error, listed
from speech3.runtime import progress, read_utf8, say

_MOST_OVERLAP = 0.1  # share of an annotation's length
_LONG_S, _SHORT_S = 60.0, 0.1  # longer utterances are hard to align, shorter ones have no words
_SHOWN, _SHOWN_LETTERS = 3, 40
_CLOCK = r"\d?\d:[0-5]\d(?::[0-5]\d)?(?:[.,]\d+)?"
_TIME = rf"(?:{_CLOCK}|\d+[.,]\d+)"
_APART = r"[ \t,;|–-]+"
_TIMES = re.compile(
    rf"(?<=\[){_TIME}|\d\s*-->\s*\d|\b\d\d:\d\d:\d\d[.,]\d+"  # [00:01.5], [0.5], 0:01 --> 0:02
    rf"|^\W*(?:{_TIME}{_APART}(?:{_TIME}|\d+)|\d+{_APART}{_TIME})\b"  # 0.5 1.5 hello; 0:01,0:02; 0.1 125 hello
)
# In each of several lines: 0:01 hello; 0 2 hello; what CTM and STM have, a 1 0.5 1.5 hello.
_LINE_TIMES = re.compile(rf"\W*{_CLOCK}\b|\s*\d+\s+\d+\s+[^\d\s]|(?:\S+\s+){{1,4}}\d+\.\d+\s+\d+\.\d+\s")
# Anna 0:05, and what she says in the lines below.
_TURN = re.compile(rf"\s*(?:\S{{1,40}}\s+){{1,3}}\(?({_CLOCK})\)?\s*\n\S")
_WORDS_ONLY = "write only what is said, or make a TextGrid of it"
# Praat's codes of letters, of phonetic symbols, and of diacritics and marks; others, as in either\or, may be words.
_PRAAT_CODE = re.compile(
    r"""\\(?:[A-Za-z][`'^~"<]|[AEae];|[OUou]:|[CSTcst],|[Oflnrdstz]\.|[LOlo]/|[Ddehijlou?9]-|[Zz]!|[ao]_|[AUau]o|[Tt]h"""
    r"|ss|[Aa]e|[Oo]e|dh|at|as|ay|ab|bc|ct|cc|sw|sr|ef|er|kb|gs|gc|gf|rh|ht|hj|hc|ic|jc|lz|lc|mt|ml|mj|ng|nj|nc|ff|rt|rl"
    r"|fh|rc|ri|sh|hs|vs|vt|wt|yt|yc|zc|zh|\?g|9e|hr|bf|tf|cf|be|te|ci|id|ir|ts|tS|dz|dZ|ap|bs|cn|li|LI|rf|fr"
    r"|[`'^~:0vN-]\^|T[\^v()]|[+:0v|NUDn~3cmw-]v|''|``|-['`/]|['`]-|~[/<]|//"
    r"""|\^[hHjwYy?9lsgMGxfnmN]|-[1-5-]|\|[12fud-]|[:.]f|\.c|'[12a]|[!?]d|"[lr]|<<|>>|[][]f|_u)"""
)
_NAMED_TIERS = (".textgrid", ".eaf")  # transcripts whose tiers people name
_HTK = re.compile(r"\s*\d+\s+\d+\s+\S")
_PAUSES = {"sil", "sp", "spn", "pau", "<sil>", "<sp>", "<pau>", "<p>", "<p:>", "<eps>", "[sil]", "#"}  # MFA, MAUS, HTK
_KEPT = {"long": "long utterance", "missing end": "utterance with a missing end"}  # kinds of warnings, in words
_ANY_RATE = 16000  # Hz, of what a folder's recordings are resampled to: their rates may differ


@dataclass
class _Found:
    """What was read so far, and what was left out.

    `spellings`: a speaker's first spelling by case-folded name. `marked`: words that lost a mark at an edge.
    `doubtful`: texts with letters whose lower case depends on the language, if that is not known.
    """

    utterances: dict[str, Utterance] = field(default_factory=dict)
    recordings: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    spellings: dict[str, str] = field(default_factory=dict)
    graphemes: Sequence[str] = ()
    language: str = ""
    doubtful: list[str] = field(default_factory=list)
    marked: Counter[str] = field(default_factory=Counter)

    def speaker(self, name: str) -> str:
        """The speaker as a field of ``utt2spk``; names that differ only in capitals are one speaker."""
        key = "_".join(unicodedata.normalize("NFC", name).split()).replace("/", "_") or "unknown"
        return self.spellings.setdefault(key.casefold(), key)

    def long(self, where: Path, seconds: float, subject: str = "") -> None:
        if seconds > _LONG_S:
            problem, remedy = f"is one utterance of {seconds:.0f} s", "mark its sentences in Praat or ELAN"
            self.faults.append(Fault("long", str(where), subject, problem, remedy, warning=True))

    def wrong_header(self, audio: Path, header: AudioInfo) -> None:
        """Warn about a recording that has another length than its header says; `lengths_s` need not read it."""
        if header.claim:
            remedy = "the audio in the file is read"
            self.faults.append(Fault("wrong header", str(audio), "", header.claim, remedy, warning=True))
        if header.missing_s:
            problem = f"ends {1000 * header.missing_s:.0f} ms before the end given in its header"
            self.faults.append(Fault("missing end", str(audio), "", problem, "the rest is used", warning=True))

    def timed(self, transcript: Path, tiers: Sequence[Tier], duration_s: float) -> list[Tier]:
        """The tiers with times from the beginning of the recording; a shift is mentioned (see `shifted`)."""
        timed, how = shifted(tiers, duration_s, END_TOLERANCE_S)
        if how:
            self.faults.append(Fault("shifted", str(transcript), "", how, "check one of them by ear", warning=True))
        return timed

    def words(self, text: str, where: Path, subject: str = "") -> str:
        """The words of a transcript, without markup and symbols of language models, which are reported.

        Without a list of graphemes, words that lose a mark at an edge are counted.
        """
        text, remarks = without_markup(text, self.graphemes)
        for kind, problem, fate in remarks:
            self.faults.append(Fault(kind, str(where), subject, problem, fate, warning=True))
        if not self.graphemes:
            self.marked.update(marked_at_edge(text))
        if not self.language and not text.isascii():
            self.doubtful.append(text)
        words = plain_words(text, self.graphemes, self.language).split()
        if symbols := symbols_in(words):
            problem, remedy = f"has {' and '.join(symbols)}, which nobody says", "the other words are used"
            self.faults.append(Fault("symbol in text", str(where), subject, problem, remedy, warning=True))
        return " ".join(word for word in words if word not in symbols)

    def skip(self, kind: str, where: Path, problem: str, remedy: str, subject: str = "") -> None:
        self.faults.append(Fault(kind, str(where), subject, problem, remedy))

    def unreadable(self, transcript: Path, error: Speech3Error) -> None:
        problem = str(error).removeprefix(f"{transcript}:").removesuffix(f"; {error.remedy}").strip()
        problem = re.sub(r"^(\d+):", r"line \1:", problem)
        self.skip("unreadable transcript", transcript, problem, error.remedy)


def read_folder(
    source: Path,
    tier: str | None = None,
    sample_rate: int | None = None,
    graphemes: Sequence[str] = (),
    language: str = "",
    *,
    pairs: tuple[list[Item], list[Fault]] | None = None,
) -> tuple[DataDir, list[Fault]]:
    """Read a folder of recordings with transcripts; what cannot be used is left out and reported, as are warnings.

    Parameters
    ----------
    tier
        As `wanted` of `choose`.
    sample_rate
        Hz, to which recordings will be resampled; None: all must have one rate and one channel.
    graphemes, language
        As for `plain_words`.
    pairs
        What `find_pairs` found; None: all in `source`.
    """
    items, faults = pairs or find_pairs(source)
    found = _Found(faults=faults, graphemes=graphemes, language=language)
    _say_tables(items)
    tiers = _chosen(items, tier, source, found)
    if tier and not tiers:
        raise DataError(
            f"{source}: tier={tier}: there is no transcript with tiers (.TextGrid, .eaf, .srt, .vtt) that could be read"
            f"{_first_faults(found.faults)}"
        )
    # Add the utterances of each recording, with the speakers that tiers or else file names name.
    speakers, how = _speakers(items, source)
    in_tables = {item.key: item.row.speaker for item in items if item.row and item.row.speaker.strip()}
    speakers |= in_tables
    voices = _voices(tiers.values(), every=tier == EVERY)
    infos: dict[str, AudioInfo] = {}
    named = {found.speaker(name) for name in in_tables.values()}
    for item in progress(items, len(items), f"headers of {source}"):
        try:
            infos[item.key] = info(item.audio)
            found.wrong_header(item.audio, infos[item.key])
            if own := item.row.parts if item.row else tiers.get(item.transcript):
                timed = found.timed(item.transcript, own, infos[item.key].duration_s)
                named |= _add_tiers(found, item, timed, infos[item.key], speakers[item.key], voices)
            elif item.row or item.transcript.suffix.lower() in TEXTS:
                _add_text(found, item, infos[item.key], speakers[item.key])
        except AudioError as error:
            found.skip(error.kind, Path(error.file), error.problem, error.remedy)
        except Speech3Error as error:
            found.unreadable(item.transcript, error)
    # Report.
    _say_skipped(source, found.faults)
    _say_marked(found.marked)
    if doubt := case_doubts(found.doubtful):
        say(f"  warning: {doubt}")
    data = DataDir(source, dict(sorted(found.recordings.items())), dict(sorted(found.utterances.items())))
    if not data.utterances:
        raise MissingError(f"{source}: no utterance is left of {len(items)} recordings{_first_faults(found.faults)}")
    _check_rates({key: infos[key] for key in data.recordings}, source, sample_rate)
    _say_channels({key: path for key, path in data.recordings.items() if infos[key].channels > 1}, source)
    tabled = in_tables or any(part.speaker for item in items if item.row for part in item.row.parts)
    where = "the tiers" if not tabled else "a table or the tiers" if tiers else "a table"
    _say_speakers(data, how, named, where)
    return data, found.faults


def _chosen(items: Sequence[Item], wanted: str | None, source: Path, found: _Found) -> dict[Path, list[Tier]]:
    read: dict[Path, list[Tier]] = {}
    for item in progress(items, len(items), f"transcripts of {source}"):
        try:
            if reader := tier_reader(item):
                read[item.transcript] = reader(item.transcript)
        except Speech3Error as error:
            found.unreadable(item.transcript, error)
    if not read:
        return {}
    by_name = choose({str(path): tiers for path, tiers in read.items()}, wanted, source)
    for path, tiers in by_name.items():
        if not tiers:
            problem, remedy = f"has no tier {wanted}", "rename its tier, or add it"
            if wanted in (None, EVERY):
                problem, remedy = "has no tier with text", "write in one what is said"
            found.skip("no such tier", Path(path), problem, remedy)
    return {Path(path): tiers for path, tiers in by_name.items()}


def _speakers(items: Sequence[Item], source: Path) -> tuple[dict[str, str], str]:
    parents = {item.audio.parent for item in items}
    if source not in parents and len(parents) > 1:
        by_folder = {item.key: "_".join(item.audio.parent.relative_to(source).parts) for item in items}
        return by_folder, "their folders"
    cut = {item.key: re.split(r"[\s_-]", stem(item.audio))[0] or stem(item.audio) for item in items}
    return cut, "the recordings' names up to the first space, _ or -"


def _say_tables(items: Sequence[Item]) -> None:
    for table, count in Counter(item.row.table for item in items if item.row).items():
        say(f"  {table.path}: the words of {count:,} recording{'s' * (count > 1)}: {table.columns}")


def _add_text(found: _Found, item: Item, header: AudioInfo, speaker: str) -> None:
    text, file, subject = item.row.text if item.row else read_utf8(item.transcript), item.transcript, ""
    if item.row:
        file, subject = Path(), item.audio.name  # no name of a file says what the text is
    elif file.suffix.lower() == ".lab" and _HTK.match(text):
        problem = "has times, as HTK's label files have"
        found.skip("times in text", file, problem, _WORDS_ONLY)
        return
    if what := other_format(file, text.split("\n")):
        found.skip("format not read", item.transcript, f"is {what}", _WORDS_ONLY, subject)
        return
    if line := _line_with_times(text):
        problem = f"has times, as in `{line[:_SHOWN_LETTERS]}`, which would count as words or noises"
        found.skip("times in text", item.transcript, problem, _WORDS_ONLY, subject)
        return
    if _has_columns(text):
        found.skip("format not read", item.transcript, "is a table (with tabs)", _WORDS_ONLY, subject)
        return
    name, *others = text.split(maxsplit=1) or [""]
    if name == stem(item.audio) and re.search(r"[\d_]", name):
        problem, remedy = "begins with the recording's name", "the other words are used"
        found.faults.append(Fault("name in text", str(item.transcript), subject, problem, remedy, warning=True))
        text = " ".join(others)
    words = found.words(text, item.transcript, subject)
    if not words:
        found.skip("empty", item.transcript, "has no words", "write what is said, or remove it", subject)
        return
    if header.duration_s < _SHORT_S:
        problem = f"lasts {header.duration_s:.3f} s, in which no word can be said"
        found.skip("too short", item.audio, problem, "get the whole recording")
        return
    found.long(item.transcript, header.duration_s, subject)
    speaker = found.speaker(speaker)
    key = _prefixed(speaker, item.key)
    found.recordings[item.key] = str(item.audio.absolute())
    found.utterances[key] = Utterance(key, item.key, speaker, words)


def _has_columns(text: str) -> bool:
    """Whether each of several lines has three fields or more, separated by tabs."""
    filled = [line.strip() for line in text.splitlines() if line.strip()]
    return len(filled) > 1 and all(line.count("\t") > 1 for line in filled)


def _line_with_times(text: str) -> str:
    """The first line that has times, or begins with them as all of several lines or turns do; empty if none does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    each = len(lines) > 1 and all(_LINE_TIMES.match(line) for line in lines)
    turns = [_TURN.match(turn) for turn in re.split(r"\n\s*\n", text.strip())]
    if len(turns) > 1 and all(turns):
        clocks = [clock_s(turn[1]) for turn in turns if turn]
        each = each or (clocks == sorted(clocks) and clocks[0] < clocks[-1])  # Matthew 5:10 is no time
    return next((line for line in lines if each or _TIMES.search(line)), "")


def _prefixed(speaker: str, recording: str) -> str:
    """Put the speaker before the recording's name: Kaldi requires that an utterance's id begin with its speaker."""
    return recording if recording.startswith(speaker) else f"{speaker}-{recording}"


def _voices(chosen: Iterable[Sequence[Tier]], *, every: bool) -> set[str]:
    """Names, in lower case, of tiers that are chosen along with others in some file: each is the name of a speaker.

    If only one of these speakers speaks in another file, its tier still has that speaker's name. `every`: also of
    files with a single tier.
    """
    names = [{tier.name.casefold() for tier in tiers} for tiers in chosen]
    return {name for of_file in names if every or len(of_file) > 1 for name in of_file}


def _add_tiers(
    found: _Found, item: Item, tiers: Sequence[Tier], header: AudioInfo, otherwise: str, voices: set[str]
) -> set[str]:
    spoken: list[tuple[str, Annotation]] = []
    named = set[str]()
    for tier in tiers:
        may_be_name = item.transcript.suffix.lower() in _NAMED_TIERS and tier.name.casefold() in voices
        speaker = tier.speaker or (tier.name if may_be_name else "")
        named |= {found.speaker(speaker)} if speaker and tier.annotations else set()
        for annotation in tier.annotations:
            if kept := _usable(found, item, annotation, header.duration_s):
                spoken.append((found.speaker(speaker or otherwise), kept))
    spoken = sorted(dict.fromkeys(spoken), key=lambda pair: (pair[1].start_s, pair[1].end_s))
    shared_s = _overlaps([annotation for _, annotation in spoken])
    of_span = Counter((speaker, annotation.start_s, annotation.end_s) for speaker, annotation in spoken)
    for (speaker, annotation), overlap_s in zip(spoken, shared_s, strict=True):
        if of_span[speaker, annotation.start_s, annotation.end_s] > 1:
            problem, remedy = "is not the only text of its speaker and times", "keep the right one"
            found.skip("two texts", item.transcript, problem, remedy, _place(annotation))
            continue
        if overlap_s > _MOST_OVERLAP * (annotation.end_s - annotation.start_s):
            problem = f"{overlap_s:.2f} of its {annotation.end_s - annotation.start_s:.2f} s overlap another one"
            found.skip("overlap", item.transcript, problem, "simultaneous speech is not used", _place(annotation))
            continue
        found.long(item.transcript, annotation.end_s - annotation.start_s, _place(annotation))
        begin, end = (round(1000 * seconds) for seconds in (annotation.start_s, annotation.end_s))
        key = f"{_prefixed(speaker, item.key)}-{begin:08d}-{end:08d}"
        found.recordings[item.key] = str(item.audio.absolute())
        found.utterances[key] = Utterance(key, item.key, speaker, annotation.text, annotation.start_s, annotation.end_s)
    return named


def _usable(found: _Found, item: Item, annotation: Annotation, duration_s: float) -> Annotation | None:
    place = _place(annotation)
    if item.transcript.suffix.lower() == ".textgrid" and (code := _PRAAT_CODE.search(annotation.text)):
        remedy = "choose Modify, Convert to Unicode in Praat, and save it"
        found.skip("code in text", item.transcript, f"has {code[0]}, Praat's code of a character", remedy, place)
        return None
    if annotation.text.strip().lower() in _PAUSES:
        found.skip("pause", item.transcript, "is a label of a pause, not words", "nothing", place)
        return None
    words = found.words(annotation.text, item.transcript, place)
    if not words:
        # A TextGrid stores silence as an interval without text.
        if annotation.text.strip() or item.row or item.transcript.suffix.lower() == ".eaf":
            found.skip("empty", item.transcript, "has no words", "write what is said", place)
    elif math.isnan(annotation.end_s - annotation.start_s):
        problem, remedy = "its times are not set", "set them in ELAN"
        if item.row:
            problem, remedy = "its times are missing, or cannot be read", "write seconds, such as 1.5"
        found.skip("no times", item.transcript, problem, remedy, words)
    elif annotation.end_s <= annotation.start_s:
        found.skip("no length", item.transcript, "does not end after its start", "correct its times", place)
    elif (
        not -END_TOLERANCE_S <= annotation.start_s < duration_s
        or not 0 < annotation.end_s <= duration_s + END_TOLERANCE_S
    ):
        problem = f"lies outside the recording, which lasts {duration_s:.2f} s"
        found.skip("outside", item.transcript, problem, "correct its times, or get the whole recording", place)
    else:
        start_s, end_s = max(annotation.start_s, 0.0), min(annotation.end_s, duration_s)
        if round(end_s - start_s, 3) >= _SHORT_S:
            return replace(annotation, start_s=start_s, end_s=end_s, text=words)
        problem = f"lasts {end_s - start_s:.3f} s, in which no word can be said"
        found.skip("too short", item.transcript, problem, "correct its times", place)
    return None


def _place(annotation: Annotation) -> str:
    return f"{annotation.text.strip()[:30]!r} at {annotation.start_s:.2f} s"


def _overlaps(annotations: Sequence[Annotation]) -> list[float]:
    shared_s = [0.0] * len(annotations)
    for first, one in enumerate(annotations):
        for second in range(first + 1, len(annotations)):
            other = annotations[second]
            if other.start_s >= one.end_s:
                break
            both_s = min(one.end_s, other.end_s) - other.start_s
            shared_s[first] += both_s
            shared_s[second] += both_s
    return shared_s


def check_rates(recordings: Iterable[Path], source: Path, sample_rate: int | None) -> None:
    """Raise an error if recordings of the folder have several rates or channels, and no `sample_rate` is wanted."""
    infos = {}
    for path in recordings:
        with contextlib.suppress(AudioError):
            infos[str(path)] = info(path)
    _check_rates(infos, source, sample_rate)


def _check_rates(infos: Mapping[str, AudioInfo], source: Path, sample_rate: int | None) -> None:
    rates = Counter(header.sample_rate_hz for header in infos.values())
    several = sum(header.channels > 1 for header in infos.values())
    if sample_rate or (len(rates) < 2 and not several):
        return
    shown = ", ".join(f"{count} of {rate} Hz" for rate, count in sorted(rates.items()))
    channels = f", {several} with several channels" if several else ""
    raise SettingError(
        f"{source}: all recordings must have the same rate, and one channel: {shown}{channels}; set"
        f" sample_rate={8000 if min(rates) < 16000 else 16000} to convert them (several channels become one)"
    )


def _say_channels(recordings: Mapping[str, str], source: Path) -> None:
    if mixes := channel_mixes(recordings, source):
        key, why = next(iter(mixes.items()))
        more = f"; {len(mixes) - 1:,} more such recordings" if len(mixes) > 1 else ""
        say(f"  {key}: as one channel, {why}{more}")


def _say_skipped(source: Path, faults: Sequence[Fault]) -> None:
    for kind, count in Counter(fault.kind for fault in faults).items():
        first = next(fault for fault in faults if fault.kind == kind)
        what = f"left out {count} ({kind})"
        if first.kind == "row without recording":
            what = "warning" if count == 1 else f"{count} warnings"
        elif first.warning:
            kept = _KEPT.get(kind, f"utterance ({kind})")
            what = f"{count} {kept if count == 1 else kept.replace('utterance', 'utterances')} kept"
        where = Path(first.where).relative_to(source) if Path(first.where).is_relative_to(source) else first.where
        subject = f"{first.subject}: " if first.subject else ""
        say(f"  {what}: {where}: {subject}{first.problem}; {first.remedy}")


def _say_marked(marked: Counter[str]) -> None:
    """Name words that lost a mark which may be a letter: ejectives (k'), long vowels (a:), glottal stops."""
    if marked:
        shown = listed([word for word, _ in marked.most_common()], _SHOWN)
        say(
            f"  {marked.total():,} words lost an apostrophe, a colon or a middle dot at an edge: {shown}; if it is a"
            " letter there, list it in a file, such as k' or a:, and add lexicon=graphemes graphemes=FILE"
        )


def _first_faults(faults: Sequence[Fault]) -> str:
    return "".join(f"\n  {fault}" for fault in faults[:_SHOWN])


def _say_speakers(data: DataDir, how: str, named: set[str], where: str) -> None:
    speakers = data.speakers()
    shown = listed(speakers, 6)
    others = [speaker for speaker in speakers if speaker not in named]
    how = where if not others else f"{where} or {how}" if named & set(speakers) else how
    say(
        f"  {len(data.utterances):,} utterance{'s' * (len(data.utterances) != 1)} of"
        f" {len(data.recordings):,} recording{'s' * (len(data.recordings) != 1)}; {len(speakers)}"
        f" {'speaker' if len(speakers) == 1 else 'speakers'}, from {how}: {shown}"
    )
    if len(speakers) == len(data.recordings) == len(data.utterances) > _SHOWN and others:
        say(
            "  each recording counts as a different speaker; if several have the same voice, put the recordings of each"
            " voice in a folder of its own, or the measured error rates will be too low"
        )


def is_folder(source: Path) -> bool:
    """Whether this is a folder of recordings rather than a Kaldi data directory, or neither."""
    return not is_datadir(source) and source.is_dir() and has_recordings(source)


def read_speech(source: Path, tier: str | None = None, *, transcribed: bool = True) -> tuple[DataDir, list[Fault]]:
    """Read a Kaldi data directory, or a folder of recordings with transcripts in plain words beside them.

    Unless `transcribed`, the recordings of a folder that have no transcript are utterances, too. What was left out of a
    folder is returned as well.
    """
    if not is_folder(source):
        if tier:
            raise SettingError(f"{source}: --tier {tier}: a Kaldi data directory has no tiers; remove the option")
        return read_datadir(source), []
    if transcribed:
        return read_folder(source, tier, _ANY_RATE)
    data, faults = DataDir(source, {}, {}), list[Fault]()
    try:
        items, faults = find_pairs(source)
        faults = [fault for fault in faults if fault.kind != "no transcript"]
        data, faults = read_folder(source, tier, _ANY_RATE, pairs=(items, faults))
    except (DataError, MissingError):  # no recording has a transcript that can be used
        if tier:
            raise
    used, recordings, utterances = set(data.recordings.values()), dict(data.recordings), dict(data.utterances)
    named, second = {fault.where for fault in faults}, list[Fault]()
    for path in recordings_in(source):
        key, place = key_of(path, source), str(path.absolute())
        if key not in recordings:
            recordings[key], utterances[key] = place, Utterance(key, key, key, None)
        elif place not in used and str(path) not in named:
            second.append(second_recording(path, Path(recordings[key])))
    _say_skipped(source, second)
    return DataDir(source, dict(sorted(recordings.items())), dict(sorted(utterances.items()))), [*faults, *second]
