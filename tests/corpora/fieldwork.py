"""Folders as linguists have them: recordings of noise, with TextGrid and ELAN files that the tests write."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np
import soundfile

Segment = tuple[float, float, str]
RATE_HZ = 8000


def recording(path: Path, seconds: float = 2.0, rate_hz: int = RATE_HZ, channels: int = 1) -> Path:
    """A recording of noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(1).normal(0, 0.1, (round(seconds * rate_hz), channels))
    soundfile.write(path, noise, rate_hz)
    return path


def short_textgrid(tiers: Mapping[str, Sequence[Segment]], end_s: float = 2.0) -> str:
    """Praat's short text format."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "0", str(end_s), "<exists>", str(len(tiers))]
    for name, stretches in tiers.items():
        lines += ['"IntervalTier"', f'"{name}"', "0", str(end_s), str(len(stretches))]
        for start, end, text in stretches:
            doubled = text.replace('"', '""')
            lines += [str(start), str(end), f'"{doubled}"']
    return "\n".join(lines) + "\n"


def long_textgrid(tiers: Mapping[str, Sequence[Segment]], end_s: float = 2.0) -> str:
    """Praat's long text format, with a point tier in front."""
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0 ", f"xmax = {end_s} ",
        "tiers? <exists> ", f"size = {len(tiers) + 1} ", "item []: ", "    item [1]:", '        class = "TextTier" ',
        '        name = "clicks" ',
        "        xmin = 0 ", f"        xmax = {end_s} ", "        points: size = 1 ", "        points [1]:",
        "            number = 0.5 ", '            mark = "12.5" ',
    ]  # fmt: skip
    for number, (name, stretches) in enumerate(tiers.items(), 2):
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier" ',
            f'        name = "{name}" ',
            "        xmin = 0 ",
            f"        xmax = {end_s} ",
            f"        intervals: size = {len(stretches)} ",
        ]
        for index, (start, end, text) in enumerate(stretches, 1):
            doubled = text.replace('"', '""')
            lines += [
                f"        intervals [{index}]:",
                f"            xmin = {start} ",
                f"            xmax = {end} ",
                f'            text = "{doubled}" ',
            ]
    return "\n".join(lines) + "\n"


def eaf(slots_ms: Mapping[str, int | None], *tiers: str) -> str:
    """An ELAN file; `tiers` from `tier`."""
    slots = "".join(
        f'<TIME_SLOT TIME_SLOT_ID="{name}"{"" if value is None else f" TIME_VALUE={quoteattr(str(value))}"}/>'
        for name, value in slots_ms.items()
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ANNOTATION_DOCUMENT AUTHOR="" FORMAT="3.0" VERSION="3.0">'
        '<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>'
        f"<TIME_ORDER>{slots}</TIME_ORDER>{''.join(tiers)}</ANNOTATION_DOCUMENT>\n"
    )


def tier(name: str, *annotations: str, participant: str = "", of_type: str = "default-lt", parent: str = "") -> str:
    """A tier; `annotations` from `aligned` or `referring`."""
    spoken_by = f" PARTICIPANT={quoteattr(participant)}" if participant else ""
    below = f" PARENT_REF={quoteattr(parent)}" if parent else ""
    within = "".join(f"<ANNOTATION>{annotation}</ANNOTATION>" for annotation in annotations)
    return f"<TIER LINGUISTIC_TYPE_REF={quoteattr(of_type)}{spoken_by}{below} TIER_ID={quoteattr(name)}>{within}</TIER>"


def aligned(key: str, begin: str, end: str, text: str) -> str:
    """An annotation between two time slots."""
    return (
        f'<ALIGNABLE_ANNOTATION ANNOTATION_ID="{key}" TIME_SLOT_REF1="{begin}" TIME_SLOT_REF2="{end}">'
        f"<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>"
    )


def referring(key: str, parent: str, text: str, previous: str = "") -> str:
    """An annotation that refers to another one."""
    after = f' PREVIOUS_ANNOTATION="{previous}"' if previous else ""
    return (
        f'<REF_ANNOTATION ANNOTATION_ID="{key}" ANNOTATION_REF="{parent}"{after}>'
        f"<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></REF_ANNOTATION>"
    )
