"""The formats of NIST's scoring tools: `.trn`, `.stm` and `.ctm`, as sclite's doc/infmts.htm (SCTK) describes them.

    trn    words ... (utterance)
    stm    file channel speaker begin end [<label>] words ...       a format of references
    ctm    file channel begin duration word [confidence]

Lines that begin with ``;;`` are comments. A word may have tags, ``word;tag;tag``. In references, ``{ um / uh / @ }``
are alternatives, ``@`` is no word, and a word in parentheses is optional (`speech3.evaluate.text`).
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from speech3.data import TRN_LINE, other_format
from speech3.errors import FormatError, Speech3Error

Sclite = Literal["trn", "stm", "ctm"]
IGNORED = ("IGNORE_TIME_SEGMENT_IN_SCORING", "IGNORETIMESEGMENTINSCORING")
COMMENT = ";;"
_CHANNELS = {"A": "1", "B": "2"}  # both ways of counting are used for one recording
_UNIQUE = 0.9  # least share of different ids: a file with a repeated id is still of its format, and faulty
_MIXED = 0.5  # share of lines from which a file is taken to be of a format, so that its other lines are errors
_CTM: Sclite = "ctm"
_STM: Sclite = "stm"
_TRN_KIND: Sclite = "trn"


class StmLine(NamedTuple):
    """A line of an STM: where it is, who speaks, and what is said (None: not scored)."""

    name: str
    file: str
    channel: str
    speaker: str
    begin_s: float
    end_s: float
    text: str | None
    where: str


class Word(NamedTuple):
    """A word of a CTM, or an alternative of words, ``{ a / b }``, at the time of its first word."""

    begin_s: float
    duration_s: float
    text: str
    where: str


class Line(NamedTuple):
    """An utterance as it is written, and its place, ``file:line``."""

    text: str
    where: str


def numbered(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The lines that are neither blank nor comments, with their numbers."""
    return [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith(COMMENT)]


def format_of(path: Path | str, lines: Sequence[str]) -> Sclite | None:
    """The format of a file by its name and content; None if it may be Kaldi text or plain text.

    A file of a format that cannot be scored, or of which only some lines are of a format, is an error.
    """
    _refuse_others(Path(path), lines)
    suffix = Path(path).suffix.lower()
    body = numbered(lines)
    named: dict[str, Sclite] = {".trn": "trn", ".stm": "stm", ".ctm": "ctm"}
    if suffix in named:
        return named[suffix]
    for kind, fits, sure in (
        (_CTM, _is_ctm, _times),
        (_STM, _is_stm, _times),
        (_TRN_KIND, TRN_LINE.fullmatch, _trn_ids),
    ):
        fitting = [(n, line) for n, line in body if fits(line)]
        if len(fitting) < max(1, _MIXED * len(body)) or not sure([line for _, line in fitting]):
            continue
        if len(fitting) < len(body):
            number, line = next(each for each in body if not fits(each[1]))
            raise FormatError(
                f"{path}:{number}: `{line.strip()[:60]}` is not a line of .{kind}, as most lines of this file are; all"
                " lines must be of one format: correct it, or set --format"
            )
        return kind
    return None


def _refuse_others(path: Path, lines: Sequence[str]) -> None:
    if what := other_format(path, lines):
        raise FormatError(
            f"{path}: is {what}, which cannot be scored; write it as Kaldi text (`utterance words ...`), .trn, .stm or"
            " .ctm, or as plain text with one sentence per line"
        )


def _is_ctm(line: str) -> bool:
    fields = line.split()
    if len(fields) == 5 and fields[2:4] == ["*", "*"]:
        return fields[4].upper().startswith("<ALT")
    return 5 <= len(fields) <= 6 and all(_number(each) is not None for each in (*fields[2:4], *fields[5:]))


def _is_stm(line: str) -> bool:
    fields = line.split()
    begin, end = (_number(each) for each in fields[3:5]) if len(fields) >= 5 else (None, None)
    return begin is not None and end is not None and 0 <= begin <= end


def _times(lines: Sequence[str]) -> bool:
    """Whether the numbers are times. In Kaldi text spelled in digits they have no point, and no id is repeated."""
    files = [line.split()[0] for line in lines]
    return any(re.search(r"\s\d*\.\d", line) for line in lines) or 2 * len(set(files)) < len(files)


def _trn_ids(lines: Sequence[str]) -> bool:
    """Whether the words in parentheses at the ends of the lines are utterance ids, not remarks such as (laughs)."""
    matches = [found for line in lines if (found := TRN_LINE.fullmatch(line))]
    ids = [found[2] for found in matches]
    firsts = [found[1].split()[0] for found in matches if found[1].split()]
    if len(set(ids)) < _UNIQUE * len(ids):
        return False
    like = sum(bool(re.search(r"[\d_-]", name)) for name in ids)
    return 2 * like >= len(ids) or (len(ids) > 1 and len(set(firsts)) < len(firsts))


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def parse_trn(path: Path | str, lines: Sequence[str]) -> dict[str, Line]:
    """Utterance to its text, in the order of the file."""
    found: dict[str, Line] = {}
    for number, line in numbered(lines):
        match = TRN_LINE.fullmatch(line)
        if not match:
            raise FormatError(
                f"{path}:{number}: `{line.strip()[:60]}` does not end in an utterance id in parentheses, as lines of"
                " .trn do; add it, or rename a file of another format"
            )
        if match[2] in found:
            raise _twice(path, number, match[2])
        found[match[2]] = Line(_untagged(match[1].strip()), f"{path}:{number}")
    return found


def parse_stm(path: Path | str, lines: Sequence[str]) -> list[StmLine]:
    """The segments, by recording, channel and time."""
    segments: dict[str, StmLine] = {}
    for number, line in numbered(lines):
        if not _is_stm(line):
            raise FormatError(
                f"{path}:{number}: `{line.strip()[:60]}` is not `file channel speaker begin end words`, as lines of"
                " .stm are, with times in seconds; correct it"
            )
        file, channel, speaker, begin, end, *rest = line.split(maxsplit=5)
        text = rest[0].strip() if rest else ""
        if re.match(r"<[^<>\s]*>(\s|$)", text):  # the label: subsets of the test set
            text = text.partition(">")[2].strip()
        name = f"{file}-{channel}-{begin}-{end}"
        name += f"-{speaker}" if name in segments else ""
        if name in segments:
            raise _twice(path, number, name)
        ignored = any(mark in text.upper() for mark in IGNORED)
        said, where = None if ignored else _untagged(text), f"{path}:{number}"
        segments[name] = StmLine(name, file, _channel(channel), speaker, float(begin), float(end), said, where)
    return sorted(segments.values(), key=lambda each: (each.file, each.channel, each.begin_s))


def parse_ctm(path: Path | str, lines: Sequence[str]) -> dict[tuple[str, str], list[Word]]:
    """The words of each recording and channel, in the order of their times."""
    found: dict[tuple[str, str], list[Word]] = {}
    opened: tuple[tuple[str, str], str, list[str], float | None] | None = None
    for number, line in numbered(lines):
        where = f"{path}:{number}"
        if not _is_ctm(line):
            raise FormatError(
                f"{where}: `{line.strip()[:60]}` is not `file channel begin duration word [confidence]`, as lines of"
                " .ctm are, with times in seconds; correct it"
            )
        file, channel, begin, duration, word = line.split()[:5]
        word = _untagged(word)
        key, tag = (file, _channel(channel)), word.upper()
        # Alternatives become one word, in the notation of .stm: { um / uh }, at the time of the first.
        if begin == "*":
            if tag == "<ALT_BEGIN>" and opened is None:
                opened = key, where, ["{"], None
            elif tag == "<ALT>" and opened and opened[0] == key:
                opened[2].append("/")
            elif tag == "<ALT_END>" and opened and opened[0] == key:
                found.setdefault(key, []).append(Word(opened[3] or 0.0, 0.0, " ".join([*opened[2], "}"]), opened[1]))
                opened = None
            else:
                raise FormatError(
                    f"{where}: {word} does not belong here; alternatives are <ALT_BEGIN>, <ALT>, <ALT_END>"
                )
        elif opened and opened[0] == key:
            opened[2].append(word)
            opened = (*opened[:3], float(begin) if opened[3] is None else opened[3])
        elif opened:
            break
        else:
            found.setdefault(key, []).append(Word(float(begin), float(duration), word, where))
    if opened:
        raise FormatError(f"{opened[1]}: <ALT_BEGIN> has no <ALT_END>; add it")
    return {key: sorted(words, key=lambda each: each.begin_s) for key, words in found.items()}


def by_segments(segments: Sequence[StmLine], words: dict[tuple[str, str], list[Word]]) -> dict[str, list[Word]]:
    """The words of a CTM for each segment that is scored, divided as sclite does (`segment_hyp_for_utt` in stm2ctm.c).

    A word belongs to the first segment whose end is after the middle of the word; words after the last segment belong
    to it. Words of segments that are not scored are left out.
    """
    left = {key: list(track) for key, track in words.items()}
    found: dict[str, list[Word]] = {}
    for place, segment in enumerate(segments):
        key = segment.file, segment.channel
        last = place + 1 == len(segments) or (segments[place + 1].file, segments[place + 1].channel) != key
        track, taken = left.get(key, []), 0
        while taken < len(track) and (last or track[taken].begin_s + track[taken].duration_s / 2 < segment.end_s):
            taken += 1
        if segment.text is not None:
            found[segment.name] = track[:taken]
        left[key] = track[taken:]
    return found


def overlapping(segments: Sequence[StmLine]) -> list[StmLine]:
    """Segments that begin before the one before them ends, on the same channel of the same recording."""
    return [
        b for a, b in pairwise(segments) if (a.file, a.channel) == (b.file, b.channel) and b.begin_s < a.end_s - 0.01
    ]


def _untagged(text: str) -> str:
    """Words without sclite's tags: ``yes;tag1;tag2`` is the word ``yes``."""
    return re.sub(r"(?<=[^\s;]);\S*", "", text)


def _channel(name: str) -> str:
    return _CHANNELS.get(name.upper(), name)


def _twice(path: Path | str, number: int, name: str) -> Speech3Error:
    return FormatError(f"{path}:{number}: utterance {name} occurs a second time; keep one of the two lines")
