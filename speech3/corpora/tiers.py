"""Tiers of annotations in Praat and ELAN files: which of them contain the transcript, and who speaks on each."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speech3.errors import Speech3Error

_LONGEST_EXAMPLE = 40  # characters
_MOST_KINDS = 25  # listed in a message
# ref@SP (usual in ELAN), SP - words (Montreal Forced Aligner), A_Transcription-txt-sw (FLEx: capitals, then _).
_NAMED_SPEAKER = re.compile(
    r"(?P<kind>[^@]+)@(?P<a>[^@]+)|(?P<b>.+?) - (?P<kind_b>.+)"
    r"|(?!(?:IPA|X?SAMPA|ARPABET|ORT|POS|ASR|ID|FT)_)(?P<c>[A-Z][A-Z0-9]*)_(?P<kind_c>.+)"  # IPA_words: no speaker
)


@dataclass(frozen=True)
class Annotation:
    """What was said from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    text: str


@dataclass(frozen=True)
class Tier:
    """One tier of a file; `participant` and `type` (ELAN's linguistic type) are empty where the file names none.

    Attributes
    ----------
    span_s
        Begin and end of the whole file in seconds (Praat), None if it gives none.
    origin_s
        What was added to the times of the file (ELAN).
    """

    name: str
    annotations: tuple[Annotation, ...]
    participant: str = ""
    type: str = ""
    span_s: tuple[float, float] | None = None
    origin_s: float = 0.0

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

    Raises
    ------
    Speech3Error
        The times do not begin at 0, and it is not clear whether those of the recording do.
    """
    if not tiers:
        return [], ""
    begin_s, end_s = tiers[0].span_s or (0.0, duration_s)
    if begin_s:
        as_long, same_end = abs(end_s - begin_s - duration_s), abs(end_s - duration_s)
        if min(as_long, same_end) > tolerance_s:
            raise Speech3Error(
                f"its times are from {begin_s:g} to {end_s:g} s, but the recording lasts {duration_s:.2f} s, so that it"
                " is not clear where they begin in it; let them begin at 0 (Praat: Modify, Shift times to)"
            )
        if as_long <= same_end:
            moved = [_moved(tier, -begin_s) for tier in tiers]
            return moved, f"its times begin at {begin_s:g} s, which counts as the beginning of the recording"
    latest_s = max((a.end_s for tier in tiers for a in tier.annotations if not math.isnan(a.end_s)), default=0.0)
    origin_s = tiers[0].origin_s
    if origin_s > 0 and latest_s > duration_s + tolerance_s:
        raise Speech3Error(
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

    Parameters
    ----------
    files
        The tiers of each file.
    wanted
        Their name, the name without the speaker, or ELAN's type; several are separated by commas. None if the files
        have only one kind of tier with text.

    Raises
    ------
    Speech3Error
        `wanted` is in no file; or it is None and there are several kinds. The message lists the kinds.
    """
    spoken = [tier for tiers in files.values() for tier in tiers if any(a.text.strip() for a in tier.annotations)]
    if wanted is None:
        kinds = {_folded(tier.kind) for tier in spoken}
        if len(kinds) > 1:
            raise Speech3Error(
                f"{source}: several tiers could hold the transcript; give its name, as in"
                f" {_option(next(kind for kind, _, texts in _kinds(files) if texts))} (several: tier=NAME,NAME):\n"
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
    raise Speech3Error(f"{source}: {_option(wanted)}: no file has such a tier; the tiers are:\n{_listing(files)}")


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
    """One line for each kind of tier: files, annotations with text, an example."""
    ordered, lines = _kinds(files), []
    for kind, holders, texts in ordered[:_MOST_KINDS]:
        example = max(texts[:5], key=len, default="")
        shown = example if len(example) <= _LONGEST_EXAMPLE else f"{example[:_LONGEST_EXAMPLE]}..."
        such = f", such as {shown!r}" if texts else ""
        lines.append(f"  {_option(kind)}: in {len(holders)} of {len(files)} files, {len(texts):,} annotations{such}")
    more = f"\n  and {len(ordered) - _MOST_KINDS} more" if len(ordered) > _MOST_KINDS else ""
    return "\n".join(lines) + more
