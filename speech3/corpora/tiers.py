"""Transcripts with times: tiers of annotations in Praat and ELAN files, subtitles, label tracks.

Of several tiers, `choose` finds those that contain the transcript, and who speaks on each.

ELAN's .eaf files (EAF 3.0, https://www.mpi.nl/tools/elan/EAFv3.0.xsd): an annotation has times of its own
(``ALIGNABLE_ANNOTATION``), or refers to an annotation of a parent tier (``REF_ANNOTATION``) and has the times of that.
Several with the same parent, such as its words, are joined in order.

Praat's TextGrid, in the long or the short text format, in UTF-8 or UTF-16: Praat reads only free-standing numbers,
texts in double quotes and flags in angle brackets, and skips all else
(https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html), so both formats are the same sequence of values.

SubRip (.srt) has no specification; a subtitle is its number, its times and its lines of text, up to an empty line.
WebVTT (.vtt): https://www.w3.org/TR/webvtt1/ (hours may be missing; an identifier is optional; blocks NOTE, STYLE and
REGION hold no text; ``<v NAME>`` in a text names the speaker). What else is marked in the text,
`speech3.data.markup` knows.

Label tracks, of Audacity (https://manual.audacityteam.org/man/importing_and_exporting_labels.html) and others: lines of
begin, end and text, in seconds; lines that begin with a backslash hold the frequencies of the label before.
"""

import math
import mimetypes
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from speech3.errors import DataError, FormatError, MissingError, counted
from speech3.runtime import read_bytes, read_utf8, to_utf8, write_text

EVERY = "*"  # as a name of tiers
_LONGEST_EXAMPLE = 40  # characters
_ROUNDING_S = 1e-4  # programs write -1e-17 for 0
_MOST_KINDS = 25  # listed in a message
# ref@SP (usual in ELAN), SP - words (Montreal Forced Aligner), A_Transcription-txt-sw (FLEx: capitals, then _).
_NAMED_SPEAKER = re.compile(
    r"(?P<kind>[^@]+)@(?P<a>[^@]+)|(?P<b>.+?) - (?P<kind_b>.+)"
    r"|(?!(?:IPA|X?SAMPA|ARPABET|ORT|POS|ASR|ID|FT)_)(?P<c>[A-Z][A-Z0-9]*)_(?P<kind_c>.+)"  # IPA_words: no speaker
)
_ANNOTATION_TAGS = ("ALIGNABLE_ANNOTATION", "REF_ANNOTATION")
_TEXTGRID_VALUE = re.compile(
    r'"(?P<text>(?:[^"]|"")*)"|![^\n]*|<[^>\s]*>|(?<!\S)(?P<number>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?!\S)'
)
_SAVE_AS_TEXT = "open it in Praat and save it with Save as text file"
_CLOCK = r"((?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3})"
_TIMES = re.compile(rf"\s*{_CLOCK}\s*-->\s*{_CLOCK}(?:\s.*)?")
_NO_TEXT = re.compile(r"(?:WEBVTT|NOTE|STYLE|REGION)\b|X-TIMESTAMP-MAP=")
_VOICE = re.compile(r"<v(?:\.[\w.]+)?\s+([^>]+)>")
_POSITION = re.compile(r"\{\\[^}]*\}")  # {\an8}, of SubStation Alpha
_SCROLLING = 0.5  # least share of subtitles that repeat a line of the one before where they scroll
_NAME = "subtitles"
_LABEL = re.compile(r"\s*(\d+[.,]\d+)\s+(\d+[.,]\d+)(?:\s+(.*))?")


def clock_s(clock: str) -> float:
    """Seconds of ``h:mm:ss`` or ``mm:ss``, with a fraction after a point or a comma."""
    hours, minutes, seconds = ("0", *clock.split(":"))[-3:]
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds.replace(",", "."))


@dataclass(frozen=True)
class Annotation:
    """What was said from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Tier:
    """One tier of a file; `participant` and `type` (ELAN's linguistic type) are empty where the file names none."""

    name: str
    annotations: tuple[Annotation, ...]
    participant: str = ""
    type: str = ""
    span_s: tuple[float, float] | None = None  # of the whole file (Praat), None if it gives none
    origin_s: float = 0.0  # added to the times of the file (ELAN)

    @property
    def speaker(self) -> str:
        """The participant, or the speaker in names such as ``ref@SP`` and ``A_Transcription``; empty if unknown."""
        named = _NAMED_SPEAKER.fullmatch(self.name)
        return self.participant or (named["a"] or named["b"] or named["c"] if named else "")

    @property
    def kind(self) -> str:
        """The name without the speaker: the same for the tiers of all speakers; the type if nothing is left."""
        if self.participant and self.participant in self.name:
            return self.name.replace(self.participant, "", 1).strip("@_- ") or self.type or self.name
        named = _NAMED_SPEAKER.fullmatch(self.name)
        return named["kind"] or named["kind_b"] or named["kind_c"] if named else self.name


def shifted(tiers: Sequence[Tier], duration_s: float, tolerance_s: float) -> tuple[list[Tier], str]:
    """The tiers with times that count from the beginning of the recording, and what was done about them, or empty.

    Praat keeps the times of the whole recording in a TextGrid that was extracted from it ("preserve times"), but not in
    the sound; ELAN has a time origin, which does not count if the recording was cut there.
    """
    if not tiers:
        return [], ""
    begin_s, end_s = tiers[0].span_s or (0.0, duration_s)
    if abs(begin_s) > _ROUNDING_S:
        as_long, same_end = abs(end_s - begin_s - duration_s), abs(end_s - duration_s)
        if min(as_long, same_end) > tolerance_s:
            raise DataError(
                f"its times are from {begin_s:g} to {end_s:g} s, but the recording lasts {duration_s:.2f} s, so that it"
                " is not clear where they begin in it; let them begin at 0 (Praat: Modify, Shift times to)"
            )
        if as_long <= same_end:
            moved = [_moved(tier, -begin_s) for tier in tiers]
            return moved, f"its times begin at {begin_s:g} s, which counts as the beginning of the recording"
    latest_s = max((a.end_s for tier in tiers for a in tier.annotations if not math.isnan(a.end_s)), default=0.0)
    origin_s = tiers[0].origin_s
    if origin_s > 0 and latest_s > duration_s + tolerance_s:
        raise DataError(
            f"its times begin {origin_s:g} s after the beginning of the recording (TIME_ORIGIN), but then they end at"
            f" {latest_s:.2f} s, and the recording lasts {duration_s:.2f} s; correct the offset in ELAN (Edit, Media"
            " synchronization)"
        )
    return list(tiers), ""


def _moved(tier: Tier, seconds: float) -> Tier:
    annotations = (replace(a, start_s=a.start_s + seconds, end_s=a.end_s + seconds) for a in tier.annotations)
    return replace(tier, annotations=tuple(annotations))


def choose(files: Mapping[str, Sequence[Tier]], wanted: str | None, source: Path) -> dict[str, list[Tier]]:
    """Choose the tiers of each file that contain the transcript.

    `wanted` is their name, the name without the speaker, or ELAN's type; several are separated by commas. None if the
    files have only one kind of tier with text; `EVERY`: all tiers with text.
    """
    if wanted == EVERY:
        return {file: [tier for tier in tiers if _has_text(tier)] for file, tiers in files.items()}
    spoken = [tier for tiers in files.values() for tier in tiers if _has_text(tier)]
    if wanted is None:
        kinds = {_folded(tier.kind) for tier in spoken}
        if len(kinds) > 1:
            raise DataError(
                f"{source}: several tiers could hold the transcript; name one, as in"
                f" {_option(next(kind for kind, _, texts in _kinds(files) if texts))} (several: tier=NAME,NAME; all,"
                f" each of one speaker: {_option(EVERY)}; option --tier, except in recipes):\n"
                f"{_listing(files)}"
            )
        return {file: [tier for tier in tiers if _folded(tier.kind) in kinds] for file, tiers in files.items()}
    for names in ({_folded(wanted)}, {_folded(name) for name in wanted.split(",")}):
        for fields in (lambda tier: (tier.name, tier.kind), lambda tier: (tier.type,)):
            chosen = {
                file: [tier for tier in tiers if names & {_folded(field) for field in fields(tier)}]
                for file, tiers in files.items()
            }
            if any(chosen.values()):
                return chosen
    raise MissingError(f"{source}: {_option(wanted)}: no file has such a tier; the tiers are:\n{_listing(files)}")


def _has_text(tier: Tier) -> bool:
    return any(a.text.strip() for a in tier.annotations)


def _folded(name: str) -> str:
    return name.strip().casefold()


def _option(name: str) -> str:
    return f"tier={shlex.quote(name)}"


def _kinds(files: Mapping[str, Sequence[Tier]]) -> list[tuple[str, set[str], list[str]]]:
    """Each kind of tier, the files that have it, and its texts; the kind that is in most files comes first."""
    found: dict[str, tuple[str, set[str], list[str]]] = {}
    for file, tiers in files.items():
        for tier in tiers:
            _, holders, texts = found.setdefault(_folded(tier.kind), (tier.kind, set(), []))
            holders.add(file)
            texts += [a.text.strip() for a in tier.annotations if a.text.strip()]
    return sorted(found.values(), key=lambda entry: (-len(entry[1]), -len(entry[2]), entry[0]))


def _listing(files: Mapping[str, Sequence[Tier]]) -> str:
    ordered, lines = _kinds(files), []
    for kind, holders, texts in ordered[:_MOST_KINDS]:
        example = max(texts[:5], key=len, default="")
        shown = example if len(example) <= _LONGEST_EXAMPLE else f"{example[:_LONGEST_EXAMPLE]}..."
        such = f", such as {shown!r}" if texts else ""
        lines.append(
            f"  {_option(kind)}: in {len(holders)} of {len(files)} files, {counted(len(texts), 'annotation')}{such}"
        )
    more = f"\n  and {len(ordered) - _MOST_KINDS} more" if len(ordered) > _MOST_KINDS else ""
    return "\n".join(lines) + more


@dataclass(frozen=True)
class _Stored:
    """An annotation as stored: with time slots, or with the annotation that it refers to and the one before it."""

    id: str
    text: str
    slots: tuple[str, str] = ("", "")
    parent: str = ""
    previous: str = ""


def read_elan(path: Path) -> list[Tier]:
    """Read all tiers, with the times of their annotations.

    An annotation whose times cannot be found has NaN. Annotations that divide a stretch of time, but whose inner
    boundaries were never set (ELAN shows them evenly spaced), become one. Times are those of the recording: ELAN counts
    from the point in it that ``TIME_ORIGIN`` names, if its beginning was cut off in ELAN's media synchronisation.
    Several media with different beginnings are an error if none of them has the file's name.
    """
    try:
        content, converted = to_utf8(read_bytes(path), path)
        # A declaration of UTF-16 in the first line is wrong once the text is UTF-8; a str is read without regard to it.
        root = ElementTree.fromstring(content.decode() if "UTF" in converted else content)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise FormatError(f"{path}: is not XML ({error}); open it in ELAN and save it again") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise FormatError(f"{path}: is not an ELAN file, its root is {root.tag}; open it in ELAN and save it again")
    origin_ms = _origin_ms(root, path)
    times_s = {
        slot.get("TIME_SLOT_ID", ""): (origin_ms + int(slot.attrib["TIME_VALUE"])) / 1000
        for slot in root.iter("TIME_SLOT")
        if slot.get("TIME_VALUE", "").isdecimal()
    }
    stored = [(tier, _stored(tier)) for tier in root.iter("TIER")]
    by_id = {each.id: each for _, all_of_tier in stored for each in all_of_tier}
    return [
        Tier(
            tier.get("TIER_ID", "").strip(),
            tuple(_aligned(all_of_tier, by_id, times_s)),
            tier.get("PARTICIPANT", "").strip(),
            tier.get("LINGUISTIC_TYPE_REF", "").strip(),
            origin_s=origin_ms / 1000,
        )
        for tier, all_of_tier in stored
    ]


def _origin_ms(root: ElementTree.Element, path: Path) -> int:
    media: list[tuple[str, int]] = []
    for each in root.iter("MEDIA_DESCRIPTOR"):
        origin = each.get("TIME_ORIGIN", "")
        stem = Path(each.get("RELATIVE_MEDIA_URL", "") or each.get("MEDIA_URL", "")).stem
        media.append((stem, int(origin) if origin.lstrip("-").isdecimal() else 0))
    origins = {origin for stem, origin in media if stem == path.stem} or {origin for _, origin in media} or {0}
    if len(origins) > 1:
        raise DataError(
            f"{path}: its media begin at several times ({', '.join(map(str, sorted(origins)))} ms), and none of them"
            f" is called {path.stem}; rename the recording in ELAN (linked files) to that"
        )
    return origins.pop()


def _stored(tier: ElementTree.Element) -> list[_Stored]:
    found = (entry for annotation in tier.iter("ANNOTATION") for entry in annotation if entry.tag in _ANNOTATION_TAGS)
    return [
        _Stored(
            entry.get("ANNOTATION_ID", ""),
            entry.findtext("ANNOTATION_VALUE") or "",
            (entry.get("TIME_SLOT_REF1", ""), entry.get("TIME_SLOT_REF2", "")),
            entry.get("ANNOTATION_REF", ""),
            entry.get("PREVIOUS_ANNOTATION", ""),
        )
        for entry in found
    ]


def _aligned(tier: list[_Stored], by_id: dict[str, _Stored], times_s: dict[str, float]) -> list[Annotation]:
    if any(each.parent for each in tier):
        return _of_parents(tier, by_id, times_s)
    by_start = {each.slots[0]: each for each in tier}
    joined: set[str] = set()
    annotations = []
    for each in sorted(tier, key=lambda each: each.slots[0] not in times_s):  # those with a known start first
        if each.id in joined:
            continue
        texts, last = [each.text], each
        joined.add(each.id)
        while last.slots[1] not in times_s and last.slots[1] in by_start:
            following = by_start[last.slots[1]]
            if following.id in joined:
                break
            texts, last = [*texts, following.text], following
            joined.add(last.id)
        annotations.append(_annotation((each.slots[0], last.slots[1]), texts, times_s))
    return annotations


def _of_parents(tier: list[_Stored], by_id: dict[str, _Stored], times_s: dict[str, float]) -> list[Annotation]:
    """The texts of a tier that refers to others, joined for each annotation that has times of its own."""
    texts: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for each in tier:
        ancestor, places = each, [_place(each, by_id)]
        while ancestor.parent in by_id and len(places) <= len(by_id):  # even if references are circular
            ancestor = by_id[ancestor.parent]
            places.append(_place(ancestor, by_id))
        texts.setdefault(ancestor.id, []).append((tuple(reversed(places)), each.text))
    return [_annotation(by_id[key].slots, [text for _, text in sorted(parts)], times_s) for key, parts in texts.items()]


def _place(each: _Stored, by_id: dict[str, _Stored]) -> int:
    place = 0
    while each.previous in by_id and place < len(by_id):
        each, place = by_id[each.previous], place + 1
    return place


def _annotation(slots: tuple[str, str], texts: list[str], times_s: dict[str, float]) -> Annotation:
    start_s, end_s = (times_s.get(slot, math.nan) for slot in slots)
    return Annotation(start_s, end_s, " ".join(text.strip() for text in texts if text.strip()))


def write_elan(path: Path, tiers: Sequence[Tier], media: str = "") -> None:
    """Write an ELAN file; its times are in whole milliseconds.

    `media` is the recording, relative to the file; if it is empty, ELAN will ask for it.
    """
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    root = ElementTree.Element("ANNOTATION_DOCUMENT", AUTHOR="speech3", DATE=now, FORMAT="3.0", VERSION="3.0")
    root.set("xmlns:xsi", "http://www.w3.org/2001/XMLSchema-instance")
    root.set("xsi:noNamespaceSchemaLocation", "http://www.mpi.nl/tools/elan/EAFv3.0.xsd")
    header = ElementTree.SubElement(root, "HEADER", MEDIA_FILE="", TIME_UNITS="milliseconds")
    if media:
        kind = mimetypes.guess_type(media)[0] or "audio/x-wav"
        whole = f"file://{(path.parent / media).resolve()}"  # ELAN does not decode percent signs
        ElementTree.SubElement(header, "MEDIA_DESCRIPTOR", MEDIA_URL=whole, MIME_TYPE=kind, RELATIVE_MEDIA_URL=media)
    order = ElementTree.SubElement(root, "TIME_ORDER")
    edges_ms = [(round(1000 * each.start_s), round(1000 * each.end_s)) for tier in tiers for each in tier.annotations]
    # Each annotation has time slots of its own: moving its edges in ELAN leaves other tiers as they are.
    slots = sorted((time_ms, number, side) for number, pair in enumerate(edges_ms) for side, time_ms in enumerate(pair))
    for time_ms, number, side in slots:
        ElementTree.SubElement(order, "TIME_SLOT", TIME_SLOT_ID=f"ts{2 * number + side + 1}", TIME_VALUE=str(time_ms))
    number = 0
    for tier in tiers:
        element = ElementTree.SubElement(root, "TIER", LINGUISTIC_TYPE_REF="default-lt", TIER_ID=tier.name)
        for each in tier.annotations:
            outer = ElementTree.SubElement(element, "ANNOTATION")
            inner = ElementTree.SubElement(outer, "ALIGNABLE_ANNOTATION", ANNOTATION_ID=f"a{number + 1}")
            inner.set("TIME_SLOT_REF1", f"ts{2 * number + 1}")
            inner.set("TIME_SLOT_REF2", f"ts{2 * number + 2}")
            ElementTree.SubElement(inner, "ANNOTATION_VALUE").text = each.text
            number += 1
    ElementTree.SubElement(
        root, "LINGUISTIC_TYPE", GRAPHIC_REFERENCES="false", LINGUISTIC_TYPE_ID="default-lt", TIME_ALIGNABLE="true"
    )
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    write_text(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def read_textgrid(path: Path) -> list[Tier]:
    """Read the interval tiers; point tiers have no intervals of speech and are left out."""
    values = _textgrid_values(read_utf8(path))
    try:
        if next(values) not in ("ooTextFile", "ooTextFile short") or next(values) != "TextGrid":
            raise FormatError(f"{path}: is not a TextGrid in a text format; {_SAVE_AS_TEXT}")
        span_s = _seconds(next(values)), _seconds(next(values))
        tiers = [tier for _ in range(_whole(next(values))) if (tier := _next_tier(values))]
        return [replace(tier, span_s=span_s) for tier in tiers]
    except (StopIteration, TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{path}: is not a complete TextGrid; {_SAVE_AS_TEXT}") from error


def _next_tier(values: Iterator[str | float]) -> Tier | None:
    kind, name = next(values), str(next(values))
    if kind not in ("IntervalTier", "TextTier"):
        raise ValueError(kind)
    next(values), next(values)
    count, annotations = _whole(next(values)), []
    for _ in range(count):
        start, end = next(values), next(values) if kind == "IntervalTier" else 0.0
        annotations.append(Annotation(_seconds(start), _seconds(end), str(next(values))))
    return Tier(name, tuple(annotations)) if kind == "IntervalTier" else None


def _whole(value: str | float) -> int:
    return int(_seconds(value))


def _seconds(value: str | float) -> float:
    if isinstance(value, str):
        raise TypeError(value)
    return value


def _textgrid_values(text: str) -> Iterator[str | float]:
    for match in _TEXTGRID_VALUE.finditer(text):
        if match["text"] is not None:
            yield match["text"].replace('""', '"')
        elif match["number"]:
            yield float(match["number"])


def read_subtitles(path: Path) -> list[Tier]:
    """Read a tier of the subtitles, or one for each speaker if ``<v NAME>`` names them.

    Raises `FormatError`: a block has no times or times that cannot be read, there is no subtitle, or most subtitles
    repeat the line before, as automatic ones that scroll do: their words would count twice.
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
