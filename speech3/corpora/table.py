"""Tables that list recordings and what is said in them, beside the recordings.

    CSV, TSV     path and sentence (Common Voice), file_name and transcription (Hugging Face), any separator
    |            LJSpeech's metadata.csv (id|text|normalised text), file lists of speech synthesis (path|speaker|text)
    JSON         an object a line (NeMo: audio_filepath and text), a list of them, or texts by recording
    lines        a recording's name and its words (VoxForge's PROMPTS, .trans.txt), and Festival's ( name "words" )

A row names a recording by its path from the table's folder, or by the end of its path below that folder; if no
recording is below it, below the nearest folder around it that has some.

The column of recordings is the one whose values name the folder's recordings. That of words, and of speakers, is known
by the heading. Without one, words are in the only column with several words in most rows, and mostly different ones;
what else there is (speakers, emotions, remarks) is not read.

A heading such as `start` and `end` (or `offset` and `duration`) makes the rows parts of recordings, unless all start at
0 and have no end. Their unit is that of the heading (`start_s`, `start_ms`); without one, times are seconds if one of
them has a fraction, or is a clock (0:01.5), and in NeMo's manifests.
"""

import csv
import io
import json
import math
import os
import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from speech3.corpora.tiers import Annotation, Tier, clock_s
from speech3.data import Fault
from speech3.errors import FormatError, Speech3Error
from speech3.runtime import read_utf8

TABLES = (".csv", ".tsv", ".psv", ".json", ".jsonl", ".ndjson")
_PLAIN = (".txt", ".trans", ".lst", ".list", ".data", ".done", ".prompts", ".transcription")
_NAMES = {"text", "prompts", "transcript", "transcripts", "transcriptions"}  # of files without a suffix
_MARKS = {"|": "|", "\t": "tabs", ";": ";", ",": ","}
_EXCEL = re.compile(r'\A"?sep=.?"?[^\S\n]*\n')  # a first line that tells Excel the separator
# Headings, preferred first; `_key` removes capitals, accents and marks.
_WORDS = (
    *("normalizedtext", "normalizedtranscription", "normalizedtranscript", "normalizedsentence", "normtext"),
    *("text", "sentence", "transcription", "transcript", "transcriptiontext", "utterance", "words", "prompt"),
    *("orthographic", "orthography", "rawtext", "rawtranscription"),
)
_FOREIGN_WORDS = (  # only where none of `_WORDS` is: `phrase` may be its number
    *("satz", "transkript", "transkription", "texte", "phrase", "texto", "frase", "transcripcion", "transcricao"),
    *("testo", "trascrizione", "текст", "предложение", "文本", "句子"),
)
_VOICES = (
    *("speaker", "speakerid", "speakername", "spk", "spkid", "clientid", "voice", "userid", "reader", "participant"),
    *("participantid", "informant", "consultant", "sprecher", "sprecherin", "locuteur", "locutrice", "locutor"),
    *("hablante", "falante", "parlante", "spreker", "говорящии", "диктор", "说话人"),
)
_FOREIGN_STARTS = ("anfang", "beginn", "debut", "inicio", "inizio", "начало", "开始")
_FOREIGN_ENDS = ("ende", "fin", "fim", "fine", "конец", "结束")
_STARTS = (
    *("start", "starts", "starttime", "begin", "begins", "begintime", "onset", "offset", "tmin", "xmin", "from"),
    *_FOREIGN_STARTS,
)
_ENDS = (
    *("end", "ends", "endtime", "stop", "stoptime", "finish", "tmax", "xmax", "to"),
    *_FOREIGN_ENDS,
)
# Headings that may mean something else.
_NOT_ONLY_TIMES = ("from", "to", "stop", "finish", *_FOREIGN_STARTS, *_FOREIGN_ENDS)
_LENGTHS = ("duration", "dur", "dauer", "duree", "duracion", "duracao", "durata")
_NEMO = {"audiofilepath", "offset", "duration"}  # in NeMo's manifests, times are in seconds
_UNIT = re.compile(
    r"(?P<name>.+?)(?:[\W_]+(?P<s>s|secs?|seconds?|(?:hh:mm:)?ss(?:\.m+s(?:ec)?)?)"
    r"|[\W_]*(?P<ms>ms|msecs?|millis|milliseconds?)|[\W_]+(?P<other>samples?|frames?|min|minutes?|us|ns))?[\W_]*"
)
_CLOCK = re.compile(r"(?:\d+:)?\d{1,2}:\d{1,2}(?:[.,]\d+)?")
_FRACTION = re.compile(r":|[.,]\d*[1-9]")  # in a time that can only be in seconds
_OTHERS = (
    *("path", "file", "filename", "filepath", "audio", "audiofilepath", "audiofile", "audiopath", "wav", "wavfilename"),
    *("clip", "id", "utt", "uttid", "utteranceid", "name", "recording", "duration"),
)
_HEADS = {*_WORDS, *_FOREIGN_WORDS, *_VOICES, *_OTHERS}
_REFUSED = ("invalidated", "reported")  # of Common Voice: clips that listeners found wrong
_REMARKS = ("note", "notes", "remark", "remarks", "comment", "comments", "readme", "issues", "todo")
_FESTIVAL = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)')
# Least share of the rows that name recordings: of other files than `TABLES`, which are tables in any case; of lines.
_LISTED, _ALL_LISTED = 0.5, 0.9
_LIKE_WORDS = 0.5  # least share of a column's values that have several words, or that are different
_SAME_WORDS = 0.5  # least share of the words of one column that another one has, if both have the same texts
# Words, as far as a guess needs them: runs of letters, or letters of scripts without spaces (Thai, Han, ...).
_WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+(?:['’-][^\W\d_]+)*")
_EXAMPLE = 40  # characters
_HEADING = "add a heading with the columns `path` and `text`"


@dataclass(frozen=True)
class SpeechTable:
    """A table and, in words, which of its columns were read; `guessed`: no heading names the column of words."""

    path: Path
    columns: str
    guessed: bool = False


@dataclass(frozen=True)
class Row:
    """What a table says of a recording; without a column of speakers `speaker` is empty.

    `parts`: a tier for each speaker if the table lists parts of recordings; `speaker` is empty then, `text` all texts.
    """

    table: SpeechTable
    text: str
    speaker: str = ""
    parts: tuple[Tier, ...] = ()


@dataclass(frozen=True)
class _Grid:
    """Rows of one length. `heading` is empty where the first row may be one like the others."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: float = 0.0
    mark: str = ""


def may_be_table(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in (*TABLES, *_PLAIN) or (not suffix and path.name.lower() in _NAMES)


def rows_of(
    tables: Iterable[Path], recordings: Iterable[Path], wanted: Container[Path], source: Path, audio: Sequence[str]
) -> tuple[dict[Path, Row], dict[Path, str], list[Fault]]:
    """What tables say of `wanted` recordings; which have two texts, and in which tables; and what cannot be used.

    Parameters
    ----------
    recordings
        All recordings in the folder `source`. What is returned and what is `wanted` is named by path without suffix.
    tables
        Files in `source`, or in a folder around it. Those that name no recordings are passed over.
    audio
        The suffixes of recordings.
    """
    every = _Recordings(recordings, source, audio)
    read: list[tuple[Path, Row]] = []
    faults: list[Fault] = []
    for path in tables:
        if path.stem.lower() in _REFUSED:
            continue
        try:
            rows, absent = _read(path, _Places(every, path.parent)) or ([], [])
        except Speech3Error as error:
            problem = str(error).removeprefix(f"{path}: ").removesuffix(f"; {error.remedy}")
            faults.append(Fault("unreadable table", str(path), "", problem, error.remedy))
            continue
        if absent and source in path.parents:
            problem = f"names {len(absent):,} recordings that are not there, such as {absent[0][:_EXAMPLE]}"
            if len(absent) == 1:
                problem = f"names a recording that is not there, {absent[0][:_EXAMPLE]}"
            remedy = "add what is missing, or remove such rows"
            faults.append(Fault("row without recording", str(path), "", problem, remedy, warning=True))
        read += ((place, row) for place, row in rows if place in wanted)
    # Columns that a heading calls words are preferred to others, parts to whole recordings; parts of tables are joined.
    found: dict[Path, Row] = {}
    unclear: dict[Path, str] = {}
    for place, row in sorted(read, key=lambda pair: (pair[1].table.guessed, not pair[1].parts)):
        other = found.setdefault(place, row)
        if row.parts and other.parts and other is not row:
            found[place] = _whole(other.table, [*_spoken(other), *_spoken(row)])
        elif other.text.split() != row.text.split() and other.table.guessed == row.table.guessed:
            both = dict.fromkeys(os.path.relpath(each.table.path, source) for each in (other, row))
            unclear.setdefault(place, " and ".join(both))
    return {place: row for place, row in found.items() if place not in unclear}, unclear, faults


_Ends = Mapping[tuple[str, ...], set[Path]]


class _Recordings:
    """The recordings, by their paths, and those below each folder."""

    def __init__(self, recordings: Iterable[Path], source: Path, audio: Sequence[str]) -> None:
        self.audio, self.source = audio, source
        self.by_path: defaultdict[tuple[str, ...], set[Path]] = defaultdict(set)
        self._below: defaultdict[Path, list[Path]] = defaultdict(list)
        self._last: tuple[Path | None, _Ends] = (None, {})
        for path in recordings:
            place = path.with_suffix("")
            self.by_path[_parts(place.as_posix())].add(place)
            for folder in place.parents:
                self._below[folder].append(place)
                if folder == source:
                    break

    def near(self, folder: Path) -> _Ends:
        """Those below a folder, or below the nearest one around it that has some, by each end of their paths."""
        home = next((each for each in (folder, *folder.parents) if each in self._below), None)
        if home != self._last[0]:
            ends: defaultdict[tuple[str, ...], set[Path]] = defaultdict(set)
            for place in self._below[home] if home else ():
                parts = _parts(place.as_posix())
                for first in range(len(parts)):
                    ends[parts[first:]].add(place)
            self._last = home, ends
        return self._last[1]


class _Places:
    """Finds recordings by what a table in a folder calls them: a path or its end, with or without suffix."""

    def __init__(self, every: _Recordings, folder: Path) -> None:
        self._every, self._folder, self._near = every, folder, every.near(folder)
        around = [each for each in folder.parents if each == every.source or every.source in each.parents]
        self._folders = [_parts(each.as_posix()) for each in (folder, *around)]

    def find(self, name: str, least: int = 1) -> Path | None:
        """The recording, without suffix, if one alone has this name.

        At least `least` parts of its path must agree, if the name has so many. A recording that is elsewhere than
        the table must have the whole path, of several parts, from the table's folder or one around it.
        """
        name = name.strip().replace("\\", "/")
        if not name:
            return None
        names = [name]
        if PurePosixPath(name).suffix.lower() in self._every.audio:
            names = [name.removesuffix(PurePosixPath(name).suffix), name]
        by_path = self._every.by_path
        for each in names:
            found = by_path.get(_parts(posixpath.normpath(f"{self._folder.as_posix()}/{each}")))
            parts = _parts(each)
            for first in range(len(parts) - min(least, len(parts)) + 1):
                if end := parts[first:]:
                    found = found or self._near.get(end)
                    if len(end) > 1:
                        found = found or next(filter(None, (by_path.get(each + end) for each in self._folders)), None)
            if found:
                return next(iter(found)) if len(found) == 1 else None
        return None

    def all_of(self, names: Sequence[str]) -> list[Path | None]:
        """The recordings of a column.

        Their folders must agree as well where those of some row do, or where two rows end alike (a/1.wav, b/1.wav).
        """
        ends = Counter(_parts(name.strip().replace("\\", "/"))[-1:] for name in dict.fromkeys(names) if name.strip())
        alike = ends and max(ends.values()) > 1
        least = 2 if alike or any(self.find(name, 2) for name in names if re.search(r"[/\\]", name)) else 1
        return [self.find(name, least) for name in names]


def _parts(name: str) -> tuple[str, ...]:
    composed = unicodedata.normalize("NFC", name).casefold()
    return tuple(part for part in composed.split("/") if part not in ("", "."))


def _read(path: Path, places: _Places) -> tuple[list[tuple[Path, Row]], list[str]] | None:
    """The rows of recordings that are there, and the names of others; None if this is no table of recordings."""
    for grid in _grids(path, read_utf8(path), places):
        columns = list(zip(*grid.rows, strict=True))
        named = [sum(place is not None for place in places.all_of(column)) for column in columns]
        if not named or max(named) < max(grid.least * len(grid.rows) - 1, 1):  # but for the heading
            continue
        where, first = named.index(max(named)), grid.rows[0]
        if (
            not grid.heading
            and places.find(first[where]) is None
            and _is_heading(first, named[where] < len(grid.rows) - 1)
        ):
            grid = replace(grid, heading=first, rows=grid.rows[1:])
        return _found(path, grid, where, places)
    return None


def _is_heading(row: Sequence[str], others_are_absent: bool) -> bool:
    """Whether the first row, which names no recording, is a heading: of known words, or the only one without."""
    return bool(_HEADS.intersection(map(_key, row))) or not (others_are_absent or any("." in name for name in row))


def _found(path: Path, grid: _Grid, where: int, places: _Places) -> tuple[list[tuple[Path, Row]], list[str]] | None:
    columns = list(zip(*grid.rows, strict=True))
    voice = _known(grid, _VOICES, where)[:1]
    words = _named_words(path, grid, columns, where)
    guessed = words is None
    if words is None:
        words = _guessed_words(path, grid, columns, [where, *voice])
    if words is None:
        return None
    times, spans_s = _times(path, grid, columns, where, words)
    uses = {where: "recordings", words: "words", **dict.fromkeys(voice, "speakers"), **dict.fromkeys(times, "times")}
    table = SpeechTable(path, ", ".join(f"{what} in {_called(grid, place)}" for place, what in uses.items()), guessed)
    rows = [Row(table, row[words], "".join(row[place] for place in voice)) for row in grid.rows]
    found = list(zip(places.all_of(columns[where]), rows, strict=True))
    absent = list(
        dict.fromkeys(
            row[where].strip() or "one without a name"
            for row, (place, _) in zip(grid.rows, found, strict=True)
            if place is None and any(field.strip() for field in row)
        )
    )
    there = [(place, row) for place, row in found if place is not None]
    if not times:
        return there, absent
    parts = defaultdict[Path, list[tuple[str, Annotation]]](list)
    for (place, row), (start_s, end_s) in zip(found, spans_s, strict=True):
        if place is not None:
            parts[place].append((row.speaker.strip(), Annotation(start_s, end_s, row.text)))
    return [(place, _whole(table, said)) for place, said in parts.items()], absent


def _whole(table: SpeechTable, said: Iterable[tuple[str, Annotation]]) -> Row:
    """A row of all parts of a recording, each of which counts once, in the order of their times."""
    parts = sorted(dict.fromkeys(said), key=lambda pair: (math.isnan(pair[1].start_s), pair[1].start_s))
    speakers = dict.fromkeys(speaker for speaker, _ in parts)
    tiers = [Tier("rows", tuple(part for name, part in parts if name == speaker), speaker) for speaker in speakers]
    return Row(table, "\n".join(part.text for _, part in parts), parts=tuple(tiers))


def _spoken(row: Row) -> list[tuple[str, Annotation]]:
    return [(tier.participant, part) for tier in row.parts for part in tier.annotations]


def _times(
    path: Path, grid: _Grid, columns: Sequence[Sequence[str]], where: int, words: int
) -> tuple[list[int], list[tuple[float, float]]]:
    """The columns of times, and the span of each row in seconds, NaN where it has none; empty for whole recordings.

    Raises `FormatError`: parts have no ends, a column of times cannot be read, nothing says in what unit they are, or
    no heading says which columns they are.
    """
    if not grid.heading and (pair := _like_times(columns, (where, words))):
        raise FormatError(
            f"{path}: columns {pair[0] + 1} and {pair[1] + 1} may be the starts and ends of parts; add a heading with"
            " the columns `path` and `text`, and `start` and `end` if they are"
        )
    found, unread = dict[str, int](), dict[str, int]()  # `unread`: in samples and the like
    for place, name in enumerate(grid.heading):
        called, unit = _unit(name)
        readable = any(math.isfinite(_seconds(value)) for value in columns[place])
        if not readable and called in {*_STARTS, *_ENDS}.difference(_NOT_ONLY_TIMES) and any(columns[place]):
            raise FormatError(
                f"{path}: {_called(grid, place)} cannot be read as times; write seconds, such as 1.5, or 0:01.5"
            )
        if place != where and readable:
            (found if unit in ("", "s", "ms") else unread).setdefault(called, place)
    start = next((found[name] for name in _STARTS if name in found), None)
    ends = [*_ENDS, "offset"] if start is not None and start == found.get("onset") else _ENDS
    end = next((found[name] for name in ends if name in found), None)
    length = next((found[name] for name in _LENGTHS if name in found), None)
    # Times in other units are refused where no readable ones say the same, unless they are all 0.
    begins = start is not None and _not_only_zero(columns[start])
    lacking: list[str] = []
    if start is None and not unread.keys().isdisjoint(_STARTS):
        lacking = [*_STARTS, *_ENDS]
    elif start is not None and end is None and length is None:
        lacking = [*ends, *(_LENGTHS if begins else ())]
    for place in (unread[name] for name in lacking if name in unread):
        if _not_only_zero(columns[place]):
            unit = _unit(grid.heading[place])[1]
            raise FormatError(f"{path}: {_called(grid, place)} has times in {unit}; write seconds or milliseconds")
    if start is None or not (begins or (end is not None and _not_only_zero(columns[end]))):
        return [], []
    if end is None and length is None:
        raise FormatError(f"{path}: has the starts of parts ({_called(grid, start)}), but no ends; add a column `end`")
    used = [place for place in (start, end, length) if place is not None]
    unclear = [place for place in used if not _unit(grid.heading[place])[1]]
    if {_key(name) for name in grid.heading} >= _NEMO:
        unclear = []
    if unclear and not any(_FRACTION.search(value) for place in used for value in columns[place]):
        names = " and ".join(_called(grid, place) for place in unclear)
        in_s, in_ms = (
            " and ".join(f"`{grid.heading[place].strip()}_{unit}`" for place in unclear) for unit in ("s", "ms")
        )
        raise FormatError(
            f"{path}: {names}: whole numbers, of seconds or of milliseconds; put the unit into the heading: {in_s}, or"
            f" {in_ms}"
        )

    def seconds(place: int | None) -> list[float]:
        if place is None:
            return [math.nan] * len(grid.rows)
        if _unit(grid.heading[place])[1] != "ms":
            return [_seconds(value) for value in columns[place]]
        return [math.nan if set(value) & set(":,") else _seconds(value) / 1000 for value in columns[place]]

    times = zip(seconds(start), seconds(end), seconds(length), strict=True)
    return used, [(begin, begin + long if math.isnan(last) else last) for begin, last, long in times]


def _like_times(columns: Sequence[Sequence[str]], taken: Sequence[int]) -> tuple[int, int] | None:
    """Two columns side by side of numbers, both with fractions, of which the second is larger in each row."""
    for pair in pairwise(range(len(columns))):
        if set(pair) & set(taken):
            continue
        begins, ends = columns[pair[0]], columns[pair[1]]
        fractions = all(any(re.search("[.,:]", value) for value in column) for column in (begins, ends))
        if fractions and all(0 <= _seconds(begin) < _seconds(end) for begin, end in zip(begins, ends, strict=True)):
            return pair
    return None


def _not_only_zero(column: Sequence[str]) -> bool:
    return any(re.search("[1-9]", value) for value in column)


def _unit(heading: str) -> tuple[str, str]:
    """What a heading names, and the unit in it: ``s``, ``ms``, nothing, or one that is not read, such as samples."""
    match = _UNIT.fullmatch(heading.strip().lower())
    if match is None or (match["other"] and _key(heading) in {*_STARTS, *_ENDS}):  # x_min is no number of minutes
        return _key(heading), ""
    return _key(match["name"]), "ms" if match["ms"] else "s" if match["s"] else match["other"] or ""


def _seconds(value: str) -> float:
    """A number, or h:mm:ss; NaN if it is neither."""
    value = value.strip()
    try:
        return clock_s(value) if _CLOCK.fullmatch(value) else float(value.replace(",", "."))
    except ValueError:
        return math.nan


def _known(grid: _Grid, names: Sequence[str], where: int) -> list[int]:
    """The columns, other than that of recordings, whose headings are among the names, in the order of these."""
    keys = [_key(name) for name in grid.heading]
    return [keys.index(name) for name in names if name in keys and keys.index(name) != where]


def _named_words(path: Path, grid: _Grid, columns: Sequence[Sequence[str]], where: int) -> int | None:
    """The column that the heading calls words, or None."""
    named = [_known(grid, names, where) for names in (_WORDS, _FOREIGN_WORDS)]
    texts = [[place for place in each if any(map(_is_text, columns[place]))] for each in named]
    known = next(filter(None, (*texts, *named)), None)  # `words` may be their number
    if not known:
        return None
    first = known[0]
    others = [
        place
        for place in known[1:]
        if columns[place] != columns[first] and not _key(grid.heading[place]).startswith(("raw", "ortho"))
    ]
    if others and not _key(grid.heading[first]).startswith("norm"):
        both = " and ".join(grid.heading[each] for each in (first, *others))
        raise FormatError(f"{path}: {both} have different texts; leave one of these columns, or call it `text`, alone")
    return first


def _guessed_words(path: Path, grid: _Grid, columns: Sequence[Sequence[str]], taken: Sequence[int]) -> int | None:
    """The column that looks like words, where no heading says so; None if there are only numbers or labels."""
    texts = [place for place in range(len(columns)) if place not in taken and any(map(_is_text, columns[place]))]
    likely = [place for place in texts if _like_words(columns[place])]
    if _HEADS.intersection(map(_key, grid.heading)):
        if likely:
            shown = " or ".join(_called(grid, place) for place in likely)
            raise FormatError(f"{path}: the words may be in {shown}; call the column of words `text`")
        return None
    # Words of LJSpeech's third column are those of its second, with numbers and abbreviations written out.
    if grid.mark == "|" and not grid.heading and (len(columns), texts) == (3, [1, 2]) and _same_words(*columns[1:]):
        return 2
    if len(likely) > 1:
        shown = " or ".join(_called(grid, place) for place in likely)
        raise FormatError(f"{path}: the words are in {shown}; {_HEADING}")
    if texts and (not likely or path.stem.lower() in _REMARKS):
        shown = " or ".join(_called(grid, place) for place in likely or texts)
        raise FormatError(f"{path}: it is not clear that {shown} has the words of recordings; if so, {_HEADING}")
    return likely[0] if likely else None


def _like_words(column: Sequence[str]) -> bool:
    """Whether most values have several words and most are different, unlike names, labels and remarks."""
    filled = [value for value in column if value.strip()]
    several = sum(len(_WORD.findall(value)) > 1 for value in filled)
    return several >= _LIKE_WORDS * len(filled) and (len(set(filled)) > _LIKE_WORDS * len(filled) or len(filled) == 1)


def _same_words(one: Sequence[str], other: Sequence[str]) -> bool:
    pairs = [tuple(Counter(re.findall(r"\w+", text.lower())) for text in pair) for pair in zip(one, other, strict=True)]
    return sum((a & b).total() for a, b in pairs) >= _SAME_WORDS * sum(min(a.total(), b.total()) for a, b in pairs)


def _called(grid: _Grid, place: int) -> str:
    return f"column {grid.heading[place].strip() if grid.heading else place + 1}"


def _key(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name.lower())
    return re.sub(r"[\W_]", "", plain).replace("normalis", "normaliz")


def _is_text(value: str) -> bool:
    return any(letter.isalpha() for letter in value)


def _grids(path: Path, text: str, places: _Places) -> Iterable[_Grid]:
    """The table in a file as each format in which it can be read."""
    text = _EXCEL.sub("\n", text)
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return
    if lines[0].lstrip()[:1] in ("{", "["):
        if objects := _objects(path, text, lines):
            yield _of_objects(objects)
        return
    if all(matches := [_FESTIVAL.fullmatch(line.strip()) for line in lines]):
        yield _Grid((), [(match[1], match[2].replace('\\"', '"')) for match in matches if match])
        return
    for mark in _MARKS:
        if mark in lines[0] and (rows := _separated(path, text, lines, mark, places)):
            width = len(rows[0])
            if wrong := next((row for row in rows if len(row) != width), None):
                if any(map(places.find, wrong)):
                    raise FormatError(
                        f"{path}: its first line has {width} fields separated by {_MARKS[mark]}, that of"
                        f" {wrong[0][:_EXAMPLE]} {len(wrong)}; put texts that have {_MARKS[mark]} in quotes"
                    )
            elif width > 1:
                yield _Grid((), rows, 0 if path.suffix.lower() in TABLES else _LISTED, mark)
    if path.suffix.lower() not in TABLES and len(lines) > 1:
        yield _Grid((), [(*line.split(maxsplit=1), "")[:2] for line in lines], _ALL_LISTED)


def _separated(path: Path, text: str, lines: Sequence[str], mark: str, places: _Places) -> list[list[str]]:
    if mark in "|\t":  # where quotes are letters, except around a whole field
        rows = [[_unquoted(field) for field in line.rstrip("\r").split(mark)] for line in lines]
    else:
        rows = _quoted_rows(path, text, mark, places)
        if rows and _may_split_texts(rows, lines, mark, places):
            raise FormatError(
                f"{path}: has no heading, and each {mark} may separate fields or be in a text; {_HEADING}, and put"
                f" texts that have {mark} in quotes"
            )
    if not rows:
        return []
    width = len(rows[0])
    if width == 2:  # a sentence may have the separator
        return [[row[0], mark.join(row[1:])] for row in rows]
    return [[*row, *[""] * (width - len(row))] for row in rows]


def _quoted_rows(path: Path, text: str, mark: str, places: _Places) -> list[list[str]]:
    """Rows whose fields may be in quotes; none if the csv module cannot read them."""
    read = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)
    rows: list[list[str]] = []
    begin = 1  # number of the line
    try:
        for row in read:
            later = [line for field in row for line in field.splitlines()[1:]]
            if any(places.find(name) for line in later if mark in line for name in line.split(mark)):
                raise FormatError(f"{path}: line {begin}: a quote is not closed before the next row; close it")
            begin = read.line_num + 1
            rows += [row] if row else []
    except csv.Error as error:  # a field of 131,072 characters
        if any(places.find(line.split(mark)[0]) for line in text.split("\n")):
            raise FormatError(f"{path}: line {begin}: {error}; correct it, or close a quote in it") from error
        return []
    return rows


def _may_split_texts(rows: Sequence[Sequence[str]], lines: Sequence[str], mark: str, places: _Places) -> bool:
    """Whether a table without a heading has rows of several lengths, or a space after separators of many fields."""
    if _HEADS.intersection(map(_key, rows[0])) or not any(map(places.find, rows[0])):
        return False
    spaced = any(f"{mark} " in re.sub(r'"[^"]*"', "", line) for line in lines)
    return len({len(row) for row in rows}) > 1 or (spaced and len(rows[0]) > 2)


def _unquoted(field: str) -> str:
    field = field.strip()
    quoted = re.fullmatch(r'"((?:[^"]|"")*)"', field)
    return quoted[1].replace('""', '"') if quoted else field


def _objects(path: Path, text: str, lines: Sequence[str]) -> list[Mapping[str, object]]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise FormatError(f"{path}: is nested too deeply; write one object a line") from error
    except ValueError:
        value = []
        for number, line in enumerate(lines, 1):
            try:
                value.append(json.loads(line))
            except ValueError as error:
                raise FormatError(f"{path}: line {number} is not JSON ({error}); write one object a line") from error
    if isinstance(value, dict):
        if value and all(isinstance(each, str) for each in value.values()):
            return [{"key": name, "value": each} for name, each in value.items()]  # headings that say nothing
        if value and all(isinstance(each, dict) for each in value.values()):
            return [{"name": name, **each} for name, each in value.items()]
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [value]
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _of_objects(objects: Sequence[Mapping[str, object]]) -> _Grid:
    heading = list(dict.fromkeys(name for each in objects for name in each))
    rows = [["" if each.get(name) is None else str(each[name]) for name in heading] for each in objects]
    return _Grid(heading, rows)
