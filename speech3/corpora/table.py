"""Tables that list recordings and what is said in them, beside the recordings.

    CSV, TSV     path and sentence (Common Voice), file_name and transcription (Hugging Face), any separator
    |            LJSpeech's metadata.csv (id|text|normalised text), file lists of speech synthesis (path|speaker|text)
    JSON         an object a line (NeMo: audio_filepath and text), a list of them, or texts by recording
    lines        a recording's name and its words (VoxForge's PROMPTS, .trans.txt), and Festival's ( name "words" )

The column of recordings is the one whose values name the folder's recordings. That of words, and of speakers, is known
by the heading; without one, words are in the only other column, or the only one that has texts of several words.
"""

import csv
import io
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from speech3.data import Fault
from speech3.errors import FormatError, Speech3Error
from speech3.runtime import read_utf8

TABLES = (".csv", ".tsv", ".psv", ".json", ".jsonl", ".ndjson")
_PLAIN = (".txt", ".trans", ".lst", ".list", ".data", ".done", ".prompts", ".transcription")
_NAMES = {"text", "prompts", "transcript", "transcripts", "transcriptions"}  # of files without a suffix
_MARKS = {"|": "|", "\t": "tabs", ";": ";", ",": ","}
# Headings, preferred first; `_key` removes capitals and marks.
_WORDS = (
    *("normalizedtext", "normalizedtranscription", "normalizedtranscript", "normalizedsentence", "normtext"),
    *("text", "sentence", "transcription", "transcript", "transcriptiontext", "utterance", "words", "prompt"),
    *("orthographic", "orthography", "rawtext", "rawtranscription"),
)
_VOICES = ("speaker", "speakerid", "speakername", "spk", "spkid", "clientid", "voice", "userid", "reader")
_STARTS = ("offset", "start", "starttime", "begin", "begintime", "startms", "starts")
_OTHERS = (
    *("path", "file", "filename", "filepath", "audio", "audiofilepath", "audiofile", "audiopath", "wav", "wavfilename"),
    *("clip", "id", "utt", "uttid", "utteranceid", "name", "recording", "duration"),
)
_HEADS = {*_WORDS, *_VOICES, *_OTHERS}
_REFUSED = ("invalidated", "reported")  # of Common Voice: clips that listeners found wrong
_FESTIVAL = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)')
# Least share of the rows that name recordings: of other files than `TABLES`, which are tables in any case; of lines.
_LISTED, _ALL_LISTED = 0.5, 0.9
_EXAMPLE = 40  # characters


@dataclass(frozen=True)
class Table:
    """A table and, in words, which of its columns were read."""

    path: Path
    columns: str


@dataclass(frozen=True)
class Row:
    """What a table says of a recording; without a column of speakers `speaker` is empty."""

    table: Table
    text: str
    speaker: str = ""


@dataclass(frozen=True)
class _Grid:
    """Rows of one length. `heading` is empty where the first row may be one like the others."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    least: float = 0.0


def may_be_table(path: Path) -> bool:
    suffix = path.suffix.lower()
    return suffix in (*TABLES, *_PLAIN) or (not suffix and path.name.lower() in _NAMES)


def rows_of(
    tables: Iterable[Path], recordings: Iterable[Path], audio: Sequence[str]
) -> tuple[dict[Path, Row], list[Fault]]:
    """What tables say of recordings, by their paths without suffix; and what cannot be used.

    `audio` are the suffixes of recordings. Files that name no recordings are not tables of them, and are passed over.
    """
    places = _Places(recordings, audio)
    found: dict[Path, Row] = {}
    unclear: dict[Path, str] = {}
    faults: list[Fault] = []
    for path in tables:
        if path.stem.lower() in _REFUSED:
            continue
        try:
            read = _read(path, places)
        except Speech3Error as error:
            problem, _, remedy = str(error).removeprefix(f"{path}: ").rpartition("; ")
            faults.append(Fault("unreadable table", str(path), "", problem, remedy))
            continue
        if not read:
            continue
        rows, absent = read
        if absent:
            problem = f"names {len(absent):,} recordings that are not there, such as {absent[0][:_EXAMPLE]}"
            faults.append(
                Fault("row without recording", str(path), "", problem, "add them, or remove the rows", warning=True)
            )
        for place, row in rows:
            other = found.setdefault(place, row)
            if other.text.split() != row.text.split():
                where = path.name if other.table.path == path else f"{other.table.path.name} and {path.name}"
                unclear.setdefault(place, where)
    for place, where in unclear.items():
        problem = f"has two different texts in {where}"
        faults.append(Fault("unclear transcript", str(place), "", problem, "keep the right one"))
        del found[place]
    return found, faults


class _Places:
    """Finds recordings by what tables call them: a path or its end, with or without suffix."""

    def __init__(self, recordings: Iterable[Path], audio: Sequence[str]) -> None:
        self._audio = audio
        self._by_end: defaultdict[tuple[str, ...], set[Path]] = defaultdict(set)
        for path in recordings:
            place = path.with_suffix("")
            parts = _parts(place.as_posix())
            for first in range(len(parts)):
                self._by_end[parts[first:]].add(place)

    def find(self, name: str, least: int = 1) -> Path | None:
        """The recording, without suffix, if one alone has this name; at least `least` parts of its path must agree."""
        name = name.strip().replace("\\", "/")
        names = [name]
        if PurePosixPath(name).suffix.lower() in self._audio:
            names = [name.removesuffix(PurePosixPath(name).suffix), name]
        for each in names:
            parts = _parts(each)
            for first in range(max(len(parts) - least + 1, 0)):
                if found := self._by_end.get(parts[first:]):
                    return next(iter(found)) if len(found) == 1 else None
        return None

    def all_of(self, names: Sequence[str]) -> list[Path | None]:
        """The recordings of a column. Where two rows end alike (a/1.wav, b/1.wav), their folders must agree as well."""
        ends = Counter(_parts(name.strip().replace("\\", "/"))[-1:] for name in dict.fromkeys(names))
        least = 2 if ends and max(ends.values()) > 1 else 1
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
            grid = _Grid(first, grid.rows[1:])
        return _found(path, grid, where, places)
    return None


def _is_heading(row: Sequence[str], others_are_absent: bool) -> bool:
    """Whether the first row, which names no recording, is a heading: of known words, or the only one without."""
    return bool(_HEADS.intersection(map(_key, row))) or not (others_are_absent or any("." in name for name in row))


def _found(path: Path, grid: _Grid, where: int, places: _Places) -> tuple[list[tuple[Path, Row]], list[str]] | None:
    columns = list(zip(*grid.rows, strict=True))
    words, voice = _columns(path, grid, columns, where)
    if words is None:
        return None
    for place, name in enumerate(grid.heading):
        if _key(name) in _STARTS and any(re.search("[1-9]", value) for value in columns[place]):
            raise FormatError(
                f"{path}: lists parts of recordings ({_called(grid, place)}), which are not read from tables; write a"
                " Kaldi data directory with segments, or a TextGrid of each recording"
            )
    uses = {where: "recordings", words: "words", **({voice: "speakers"} if voice is not None else {})}
    table = Table(path, ", ".join(f"{what} in {_called(grid, place)}" for place, what in uses.items()))
    rows = [Row(table, row[words], row[voice] if voice is not None else "") for row in grid.rows]
    found = list(zip(places.all_of(columns[where]), rows, strict=True))
    absent = [name for name, (place, _) in zip(columns[where], found, strict=True) if place is None]
    return [(place, row) for place, row in found if place is not None], absent


def _columns(path: Path, grid: _Grid, columns: Sequence[Sequence[str]], where: int) -> tuple[int | None, int | None]:
    """The columns of words and of speakers; None where there is none."""
    keys = [_key(name) for name in grid.heading]
    voice = next((keys.index(name) for name in _VOICES if name in keys and keys.index(name) != where), None)
    known = [keys.index(name) for name in _WORDS if name in keys and keys.index(name) != where]
    if known:
        first = known[0]
        others = [each for each in known[1:] if columns[each] != columns[first]]
        if others and not keys[first].startswith("norm"):
            both = " and ".join(grid.heading[each] for each in (first, *others))
            raise FormatError(
                f"{path}: {both} have different texts; leave one of these columns, or call it `text`, alone"
            )
        return first, voice
    others = [place for place in range(len(columns)) if place not in (where, voice)]
    texts = [place for place in others if any(_is_text(value) for value in columns[place])]
    several = [place for place in texts if any(len(value.split()) > 1 for value in columns[place])]
    # Words of LJSpeech's third column are those of its second, with numbers and abbreviations written out.
    same = several == [1, 2] or columns[1:2] == columns[2:]
    if not grid.heading and len(columns) == 3 and texts == [1, 2] and same and where == 0:
        return 2, voice
    texts = several if len(several) == 1 else texts
    if len(texts) > 1:
        shown = " or ".join(_called(grid, place) for place in texts)
        raise FormatError(f"{path}: the words are in {shown}; add a heading with the columns `path` and `text`")
    return (texts[0] if texts else None), voice


def _called(grid: _Grid, place: int) -> str:
    return f"column {grid.heading[place].strip() if grid.heading else place + 1}"


def _key(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower()).replace("normalis", "normaliz")


def _is_text(value: str) -> bool:
    return any(letter.isalpha() for letter in value)


def _grids(path: Path, text: str, places: _Places) -> Iterable[_Grid]:
    """The table in a file as each format in which it can be read."""
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
        if mark in lines[0] and (rows := _separated(text, lines, mark)):
            width = len(rows[0])
            if wrong := next((row for row in rows if len(row) != width), None):
                if any(map(places.find, wrong)):
                    raise FormatError(
                        f"{path}: its first line has {width} fields separated by {_MARKS[mark]}, that of"
                        f" {wrong[0][:_EXAMPLE]} {len(wrong)}; put texts that have {_MARKS[mark]} in quotes"
                    )
            elif width > 1:
                yield _Grid((), rows, 0 if path.suffix.lower() in TABLES else _LISTED)
    if path.suffix.lower() not in TABLES and len(lines) > 1:
        yield _Grid((), [(*line.split(maxsplit=1), "")[:2] for line in lines], _ALL_LISTED)


def _separated(text: str, lines: Sequence[str], mark: str) -> list[list[str]]:
    if mark in "|\t":  # where quotes are letters, except around a whole field
        rows = [[_unquoted(field) for field in line.rstrip("\r").split(mark)] for line in lines]
    else:
        try:
            read = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)
            rows = [row for row in read if row]
        except csv.Error:
            return []
    width = len(rows[0])
    if width == 2:  # a sentence may have the separator
        return [[row[0], mark.join(row[1:])] for row in rows]
    return [[*row, *[""] * (width - len(row))] for row in rows]


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
            return [{"name": name, "text": each} for name, each in value.items()]
        if value and all(isinstance(each, dict) for each in value.values()):
            return [{"name": name, **each} for name, each in value.items()]
        lists = [each for each in value.values() if isinstance(each, list)]
        value = lists[0] if len(lists) == 1 else [value]
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _of_objects(objects: Sequence[Mapping[str, object]]) -> _Grid:
    heading = list(dict.fromkeys(name for each in objects for name in each))
    rows = [["" if each.get(name) is None else str(each[name]) for name in heading] for each in objects]
    return _Grid(heading, rows)
