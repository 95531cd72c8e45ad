"""Subtitles and label tracks as transcripts: each subtitle or label is an utterance with its times.

SubRip (.srt) has no specification; a subtitle is its number, its times and its lines of text, up to an empty line.
WebVTT (.vtt): https://www.w3.org/TR/webvtt1/ (hours may be missing; an identifier is optional; blocks NOTE, STYLE and
REGION hold no text; ``<v NAME>`` in a text names the speaker). What else is marked in the text,
`speech3.data.markup` knows.

Label tracks, of Audacity (https://manual.audacityteam.org/man/importing_and_exporting_labels.html) and others: lines of
begin, end and text, in seconds; lines that begin with a backslash hold the frequencies of the label before.
"""

import re
from pathlib import Path

from speech3.corpora.tiers import Annotation, Tier, clock_s
from speech3.errors import FormatError
from speech3.runtime import read_utf8

_CLOCK = r"((?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3})"
_TIMES = re.compile(rf"\s*{_CLOCK}\s*-->\s*{_CLOCK}(?:\s.*)?")
_NO_TEXT = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)\b|X-TIMESTAMP-MAP=")
_VOICE = re.compile(r"<v(?:\.[\w.]+)?\s+([^>]+)>")
_POSITION = re.compile(r"\{\\[^}]*\}")  # {\an8}, of SubStation Alpha
_SCROLLING = 0.5  # least share of subtitles that repeat a line of the one before where they scroll
_NAME = "subtitles"
_LABEL = re.compile(r"\s*(\d+[.,]\d+)\s+(\d+[.,]\d+)(?:\s+(.*))?")


def read_subtitles(path: Path) -> list[Tier]:
    """Read a tier of the subtitles, or one for each speaker if ``<v NAME>`` names them.

    Raises
    ------
    FormatError
        A block has no times or times that cannot be read, there is no subtitle, or most subtitles repeat the line
        before, as automatic ones that scroll do: their words would count twice.
    """
    found: list[tuple[str, Annotation]] = []
    lines_before, repeated = list[str](), 0
    for number, block in _blocks(read_utf8(path)):
        times = next((place for place, line in enumerate(block[:2]) if "-->" in line), None)
        if times is None:
            if _NO_TEXT.match(block[0]):
                continue
            raise FormatError(
                f"{path}: line {number}: {block[0][:40]!r} is not part of a subtitle; remove the empty line before it,"
                " or the text"
            )
        match = _TIMES.fullmatch(block[times])
        if match is None:
            raise FormatError(
                f"{path}: line {number + times}: {block[times].strip()[:40]!r} cannot be read as times; write them as"
                " in 00:00:01,000 --> 00:00:02,500"
            )
        if lost := next((place for place in range(times + 1, len(block)) if "-->" in block[place]), None):
            raise FormatError(
                f"{path}: line {number + lost}: there is no empty line before this subtitle; add one, or its times"
                " would count as text"
            )
        start_s, end_s = map(clock_s, match.groups())
        text = _POSITION.sub("", "\n".join(block[times + 1 :]))
        if len(voices := {name.strip() for name in _VOICE.findall(text)}) > 1:
            raise FormatError(
                f"{path}: line {number + times}: {' and '.join(sorted(voices))} speak in one subtitle; make one for"
                " each speaker"
            )
        found.append(("".join(voices), Annotation(start_s, end_s, _VOICE.sub(" ", text).strip())))
        lines = [line.strip() for line in re.sub(r"<[^>]*>", "", text).split("\n") if line.strip()]
        repeated += bool(lines and lines[0] in lines_before[-1:])
        lines_before = lines or lines_before
    if not found:
        raise FormatError(f"{path}: has no subtitle; one begins with a line such as 00:00:01,000 --> 00:00:02,500")
    if repeated > _SCROLLING * len(found):
        raise FormatError(
            f"{path}: {repeated:,} of {len(found):,} subtitles repeat the line before, as automatic ones that scroll"
            " do; use subtitles in which each line stands once"
        )
    speakers = dict.fromkeys(speaker for speaker, _ in found)
    return [Tier(_NAME, tuple(each for name, each in found if name == speaker), speaker) for speaker in speakers]


def is_labels(text: str) -> bool:
    """Whether all lines of a text are those of a label track."""
    lines = _label_lines(text)
    return bool(lines) and all(_LABEL.fullmatch(line) for line in lines)


def read_labels(path: Path) -> list[Tier]:
    """Read a tier of the labels of a track, for which `is_labels` holds."""
    labels = []
    for line in _label_lines(read_utf8(path)):
        if match := _LABEL.fullmatch(line):
            begin_s, end_s = (float(number.replace(",", ".")) for number in match.groups()[:2])
            labels.append(Annotation(begin_s, end_s, match[3] or ""))
    return [Tier("labels", tuple(labels))]


def _label_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("\\")]


def _blocks(text: str) -> list[tuple[int, list[str]]]:
    """The groups of lines without an empty one, each with the number of its first line."""
    blocks: list[tuple[int, list[str]]] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not inside:
            blocks.append((number, []))
        inside = bool(line.strip())
        if inside:
            blocks[-1][1].append(line)
    return blocks
