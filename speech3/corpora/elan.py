"""Read ELAN's .eaf files (EAF 3.0, https://www.mpi.nl/tools/elan/EAFv3.0.xsd).

An annotation has times of its own (``ALIGNABLE_ANNOTATION``), or refers to an annotation of a parent tier
(``REF_ANNOTATION``) and has the times of that. Several with the same parent, such as its words, are joined in order.
"""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from speech3.corpora.tiers import Annotation, Tier
from speech3.errors import Speech3Error
from speech3.io.text import read_bytes, to_utf8

_ANNOTATIONS = ("ALIGNABLE_ANNOTATION", "REF_ANNOTATION")


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

    Raises
    ------
    Speech3Error
        The file cannot be read or is not an ELAN file, or it names several media with different beginnings, and none of
        them has its name.
    """
    try:
        content, converted = to_utf8(read_bytes(path), path)
        # A declaration of UTF-16 in the first line is wrong once the text is UTF-8; a str is read without regard to it.
        root = ElementTree.fromstring(content.decode() if "UTF" in converted else content)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise Speech3Error(f"{path}: is not XML ({error}); open it in ELAN and save it again") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise Speech3Error(f"{path}: is not an ELAN file, its root is {root.tag}; open it in ELAN and save it again")
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
    """The time in the recording from which the annotations are counted."""
    media: list[tuple[str, int]] = []
    for each in root.iter("MEDIA_DESCRIPTOR"):
        origin = each.get("TIME_ORIGIN", "")
        stem = Path(each.get("RELATIVE_MEDIA_URL", "") or each.get("MEDIA_URL", "")).stem
        media.append((stem, int(origin) if origin.lstrip("-").isdecimal() else 0))
    origins = {origin for stem, origin in media if stem == path.stem} or {origin for _, origin in media} or {0}
    if len(origins) > 1:
        raise Speech3Error(
            f"{path}: its media begin at several times ({', '.join(map(str, sorted(origins)))} ms), and none of them"
            f" is called {path.stem}; rename the recording in ELAN (linked files) to that"
        )
    return origins.pop()


def _stored(tier: ElementTree.Element) -> list[_Stored]:
    found = (entry for annotation in tier.iter("ANNOTATION") for entry in annotation if entry.tag in _ANNOTATIONS)
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
    """How many annotations of the same parent come before it."""
    place = 0
    while each.previous in by_id and place < len(by_id):
        each, place = by_id[each.previous], place + 1
    return place


def _annotation(slots: tuple[str, str], texts: list[str], times_s: dict[str, float]) -> Annotation:
    start_s, end_s = (times_s.get(slot, math.nan) for slot in slots)
    return Annotation(start_s, end_s, " ".join(text.strip() for text in texts if text.strip()))
