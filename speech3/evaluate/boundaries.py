"""Errors of the boundaries of words and phones against a reference alignment.

`compare_boundaries` compares alignments of the same phones, apart from silence: the beginnings of the phones, and the
ends of those that are followed by silence in the reference. `compare` compares any two, by kind of boundary and by the
classes of the phones beside it.

Times are read from TextGrids, CTM, TIMIT's ``.phn`` and ``.wrd``, and folders of them. Words and phones of the two
sides are matched in order (the fewest differences, and of equally few those nearest in time); what has no counterpart,
or stands beside something that has none, is counted, not measured. Kinds:

- ``word starts``, ``word ends``: of every matched word;
- ``inside words``: between two phones of one word (needs words and phones in the reference);
- ``phones``: between any two phones that touch in the reference. Where the hypothesis has silence between them, the
  middle of it counts;
- ``after silence``, ``before silence``: where a stretch of phones begins and ends in the reference (needs phones).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from speech3.corpora import Tier, read_textgrid, timit
from speech3.data import SILENCE, broad_class, is_arpabet
from speech3.errors import DataError, MismatchError, MissingError, SettingError, listed
from speech3.hmm import LEVELS, Level, Segment, key, match, paired, read_ctm, spoken
from speech3.language import SILENCE as SIL

_LABELS: dict[str, Level] = {".phn": "phones", ".wrd": "words"}
_STOPS = {"bcl": "b", "dcl": "d jh", "gcl": "g", "pcl": "p", "tcl": "t ch", "kcl": "k"}  # and how they are released
TOLERANCES_MS = (5, 10, 20, 25, 50)
KINDS = ("word starts", "word ends", "inside words", "phones", "after silence", "before silence")
_TOUCH_S = 0.0011  # times are rounded to milliseconds in CTM


@dataclass
class Times:
    """The segments of each utterance, silence included: `tracks[level][utterance]`; `kind` says how they were read."""

    kind: str
    tracks: dict[Level, dict[str, list[Segment]]] = field(default_factory=dict)

    def add(self, level: Level, utterance: str, segments: list[Segment]) -> None:
        """Add a tier of an utterance; a second one of the same level (another speaker's) is joined to the first."""
        track = self.tracks.setdefault(level, {}).setdefault(utterance, [])
        track += segments
        track.sort(key=lambda segment: segment.start_s)


def read_times(path: Path, level: Level | None = None, tiers: Mapping[Level, str] | None = None) -> Times:
    """Read a CTM, TextGrid, ``.phn`` or ``.wrd`` file, or a folder of them.

    A folder that holds ``phones.ctm`` or ``words.ctm`` (as `speech3 align` writes them) is read from these; another
    from its TextGrids, at any depth, or else from its ``.phn`` and ``.wrd`` files. Utterances are named by the path in
    the folder, without the suffix.

    Parameters
    ----------
    level
        What a CTM holds whose name contains neither ``word`` nor ``phone``.
    tiers
        Names of the tiers in TextGrids; by default those whose name, without that of a speaker, is ``words`` or
        ``phones`` (also ``word``, ``phone``; any letter case).

    Raises
    ------
    Speech3Error
        There is nothing to read; a file is broken; a tier is missing everywhere; a CTM's level is unknown.
    """
    if not path.exists():
        raise MissingError(f"{path}: no such file or folder")
    if path.is_dir():
        return _folder(path, tiers or {})
    suffix = path.suffix.casefold()
    if suffix == ".textgrid":
        return _textgrids([path], path.parent, tiers or {})
    if suffix in _LABELS:
        return _labels([path], path.parent)
    found = Times("CTM")
    found.tracks[_level_of(path, level)] = read_ctm(path)
    if not any(found.tracks.values()):
        raise DataError(f"{path}: is empty; pass times of words or phones")
    return found


def level_in_name(path: Path) -> Level | None:
    """Whether the name of a file says that it holds words or phones."""
    name = path.name.casefold()
    said: list[Level] = [each for each in LEVELS if each[:-1] in name]
    return said[0] if len(said) == 1 else None


def _level_of(path: Path, level: Level | None) -> Level:
    found = level_in_name(path) or level
    if found is None:
        raise SettingError(
            f"{path}: its name does not say whether it holds words or phones; add --level words or --level phones"
        )
    return found


def _folder(path: Path, tiers: Mapping[Level, str]) -> Times:
    ctms: dict[Level, Path] = {level: path / f"{level}.ctm" for level in LEVELS if (path / f"{level}.ctm").exists()}
    if ctms:
        return Times("CTM", {level: read_ctm(file) for level, file in ctms.items()})
    files = sorted(each for each in path.rglob("*") if each.is_file())
    if grids := [each for each in files if each.suffix.casefold() == ".textgrid"]:
        return _textgrids(grids, path, tiers)
    if labels := [each for each in files if each.suffix.casefold() in _LABELS]:
        return _labels(labels, path)
    raise MissingError(f"{path}: no phones.ctm, no words.ctm, no TextGrids and no .phn or .wrd files in it")


def _key(file: Path, root: Path) -> str:
    return file.relative_to(root).with_suffix("").as_posix()


def _textgrids(files: Iterable[Path], root: Path, tiers: Mapping[Level, str]) -> Times:
    found, names = Times("TextGrid"), set[str]()
    for file in files:
        held = read_textgrid(file)
        names |= {tier.name for tier in held}
        for level in LEVELS:
            for tier in held:
                if _is(tier, level, tiers.get(level)):
                    found.add(level, _key(file, root), [Segment(a.start_s, a.end_s, a.text) for a in tier.annotations])
    missing = [f"--{level}-tier {name}" for level, name in tiers.items() if level not in found.tracks]
    if missing or not found.tracks:
        asked = " and ".join(missing) or "tiers words or phones"
        raise MissingError(
            f"{root}: no interval tier for {asked}; there are {listed(sorted(names)) or 'none'}: name them with"
            " --words-tier and --phones-tier"
        )
    return found


def _is(tier: Tier, level: Level, name: str | None) -> bool:
    if name is not None:
        return name in (tier.name, tier.kind)
    return tier.kind.strip().casefold() in (level, level[:-1])


def _labels(files: Iterable[Path], root: Path) -> Times:
    found = Times("TIMIT labels")
    for file in files:
        level = _LABELS[file.suffix.casefold()]
        labels = timit.read_labels(file)
        segments = [Segment(begin / timit.RATE_HZ, end / timit.RATE_HZ, label) for _, begin, end, label in labels]
        found.add(level, _key(file, root), _with_releases(segments) if level == "phones" else segments)
    return found


def _with_releases(segments: list[Segment]) -> list[Segment]:
    """Closures and their releases as one stop or affricate; a closure without a release is a stop, too."""
    joined: list[Segment] = []
    for segment in segments:
        if joined and segment.label in _STOPS.get(joined[-1].label, "").split():
            joined[-1] = Segment(joined[-1].start_s, segment.end_s, segment.label)
        else:
            joined.append(segment)
    return [Segment(s.start_s, s.end_s, _STOPS[s.label].split()[0]) if s.label in _STOPS else s for s in joined]


@dataclass
class BoundaryErrors:
    """What was compared; each Counter counts words and phones by level."""

    # hypothesis minus reference, by kind
    errors_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # by the classes of the phones before and after, such as vowel-stop; of phones and beside silence
    pairs_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    utterances: int = 0
    missing: list[str] = field(default_factory=list)  # utterances of the reference that the hypothesis lacks
    matched: Counter[str] = field(default_factory=Counter)
    other_label: Counter[str] = field(default_factory=Counter)  # of the matched ones
    only_reference: Counter[str] = field(default_factory=Counter)
    only_hypothesis: Counter[str] = field(default_factory=Counter)
    # by level, labels that only one side has
    examples: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def as_json(self) -> dict[str, Any]:
        return {
            "utterances": self.utterances,
            "missing": self.missing,
            "kinds": {kind: figures(self.errors_s[kind]) for kind in KINDS if self.errors_s.get(kind)},
            "pairs": {pair: figures(self.pairs_s[pair]) for pair in self.by_share()},
            **{
                level: {
                    "matched": self.matched[level],
                    "other_label": self.other_label[level],
                    "only_reference": self.only_reference[level],
                    "only_hypothesis": self.only_hypothesis[level],
                }
                for level in LEVELS
                if self.matched[level] or self.only_reference[level] or self.only_hypothesis[level]
            },
        }

    def by_share(self) -> list[str]:
        """Class pairs, the one with the largest sum of errors first."""
        return sorted(self.pairs_s, key=lambda pair: -float(np.abs(self.pairs_s[pair]).sum()))


def figures(errors_s: Sequence[float]) -> dict[str, float]:
    """Number, mean and median absolute error and bias in ms, and per cent within `TOLERANCES_MS`."""
    off_ms = 1000 * np.array(errors_s)
    size_ms = np.abs(off_ms)
    return {
        "n": len(off_ms),
        "mean_ms": round(float(size_ms.mean()), 3),
        "median_ms": round(float(np.median(size_ms)), 3),
        **{f"within_{ms}_ms": round(100 * float((size_ms <= ms + 1e-6).mean()), 2) for ms in TOLERANCES_MS},
        "bias_ms": round(float(off_ms.mean()), 3),
    }


def compare(reference: Times, hypothesis: Times) -> BoundaryErrors:
    """Compare all utterances that both sides have.

    Raises `Speech3Error`: the sides have no level or no utterance in common, or no word or phone of them matches.
    """
    levels = [level for level in LEVELS if level in reference.tracks and level in hypothesis.tracks]
    if not levels:
        sides = (" and ".join(times.tracks) for times in (reference, hypothesis))
        raise MismatchError("the reference has {}, but the hypothesis {}; pass times of the same".format(*sides))
    found = BoundaryErrors()
    names = sorted(set().union(*(reference.tracks[level] for level in levels)))
    partner = paired(names, set().union(*(hypothesis.tracks[level] for level in levels)))
    if not partner:
        theirs = next(iter(hypothesis.tracks[levels[0]]), "nothing")
        raise MismatchError(f"no utterance is in both: the reference has {names[0]}, the hypothesis {theirs}")
    phones = (s.label for track in reference.tracks.get("phones", {}).values() for s in track)
    arpabet = is_arpabet(phones)
    found.missing = [name for name in names if name not in partner]
    for name, other in partner.items():
        found.utterances += 1
        words = spoken(reference.tracks.get("words", {}).get(name, []))
        for level in levels:
            truth = spoken(reference.tracks[level].get(name, []))
            ours = spoken(hypothesis.tracks[level].get(other, []))
            matched = match(truth, ours, level)
            _count(found, level, truth, ours, matched)
            if level == "words":
                found.errors_s["word starts"] += [ours[h].start_s - truth[r].start_s for r, h in matched.items()]
                found.errors_s["word ends"] += [ours[h].end_s - truth[r].end_s for r, h in matched.items()]
            else:
                classes = [broad_class(phone.label, arpabet=arpabet) for phone in truth]
                _phones(found, truth, ours, matched, classes, words)
    if not any(found.errors_s.values()):
        raise MismatchError("no words or phones of the two sides match; are these times of the same recordings?")
    return found


def _count(
    found: BoundaryErrors, level: Level, truth: Sequence[Segment], ours: Sequence[Segment], matched: dict[int, int]
) -> None:
    found.matched[level] += len(matched)
    found.only_reference[level] += len(truth) - len(matched)
    found.only_hypothesis[level] += len(ours) - len(matched)
    used = set(matched.values())
    lone = [s.label for r, s in enumerate(truth) if r not in matched]
    lone += [s.label for h, s in enumerate(ours) if h not in used]
    found.examples[level].update(lone)
    other = (key(truth[r].label, level) != key(ours[h].label, level) for r, h in matched.items())
    found.other_label[level] += sum(other)


def _phones(
    found: BoundaryErrors,
    truth: Sequence[Segment],
    ours: Sequence[Segment],
    matched: dict[int, int],
    classes: Sequence[str],
    words: Sequence[Segment],
) -> None:
    """Add the errors of phones: between two that touch, and where stretches of them begin and end."""
    starts = {round(word.start_s, 3) for word in words}

    def add(kind: str, before: str, after: str, off_s: float) -> None:
        found.errors_s[kind].append(off_s)
        found.pairs_s[f"{before}-{after}"].append(off_s)

    for (r, before), (_, after) in pairwise(enumerate(truth)):
        if after.start_s - before.end_s > _TOUCH_S or r not in matched or matched.get(r + 1) != matched[r] + 1:
            continue
        left, right = ours[matched[r]], ours[matched[r] + 1]
        off_s = (left.end_s + right.start_s) / 2 - after.start_s
        add("phones", classes[r], classes[r + 1], off_s)
        if words and not any(round(after.start_s + ms / 1000, 3) in starts for ms in (-1, 0, 1)):
            found.errors_s["inside words"].append(off_s)
    for r, h in matched.items():
        if not r or truth[r].start_s - truth[r - 1].end_s > _TOUCH_S:
            add("after silence", SILENCE, classes[r], ours[h].start_s - truth[r].start_s)
        if r + 1 == len(truth) or truth[r + 1].start_s - truth[r].end_s > _TOUCH_S:
            add("before silence", classes[r], SILENCE, ours[h].end_s - truth[r].end_s)


def table(found: BoundaryErrors, most_pairs: int = 12) -> str:
    """The figures as text: kinds, the class pairs with the largest share of the error, and what was not matched."""
    head = f"{'':24s} {'n':>6s} {'mean ms':>8s} {'median':>7s}" + "".join(f" {f'<={ms}':>6s}" for ms in TOLERANCES_MS)
    lines = [f"{head} {'bias ms':>8s}"]
    lines += [_row(kind, found.errors_s[kind]) for kind in KINDS if found.errors_s.get(kind)]
    if found.pairs_s:
        total = sum(float(np.abs(errors).sum()) for errors in found.pairs_s.values()) or 1.0
        lines += ["", "by the classes of the phones beside a boundary (share of all errors, largest first)"]
        pairs = found.by_share()
        for name in pairs[:most_pairs]:
            share = 100 * float(np.abs(found.pairs_s[name]).sum()) / total
            lines.append(f"{_row(name, found.pairs_s[name])} {share:5.1f} %")
        if len(pairs) > most_pairs:
            lines.append(f"and {len(pairs) - most_pairs} more pairs: --json")
    lines += ["", f"utterances compared      {found.utterances}"]
    lines += [line for level in LEVELS if (line := _matching(found, level))]
    return "\n".join(lines)


def _row(name: str, errors_s: Sequence[float]) -> str:
    each = figures(errors_s)
    shares = "".join(f" {each[f'within_{ms}_ms']:6.1f}" for ms in TOLERANCES_MS)
    return f"{name:24s} {each['n']:6d} {each['mean_ms']:8.2f} {each['median_ms']:7.2f}{shares} {each['bias_ms']:8.2f}"


def _matching(found: BoundaryErrors, level: Level) -> str:
    alone = found.only_reference[level], found.only_hypothesis[level]
    if not (found.matched[level] or any(alone)):
        return ""
    parts = [f"{found.matched[level]} matched"]
    if found.other_label[level]:
        parts[0] += f" ({found.other_label[level]} with another label)"
    for side, number in zip(("reference", "hypothesis"), alone, strict=True):
        if number:
            parts.append(f"{number} only in the {side}")
    common = ", ".join(label for label, _ in found.examples[level].most_common(5))
    return f"{level:24s} {', '.join(parts)}" + (f" (such as {common}): not measured" if common else "")


@dataclass(frozen=True)
class Boundaries:
    """Differences (aligned minus reference, in seconds) of the boundaries that are counted, and of those set apart."""

    differences_s: np.ndarray
    apart_s: np.ndarray
    mismatched: tuple[str, ...]  # utterances with other phones than the reference; their boundaries are not included

    def within(self, tolerance_s: float, *, everything: bool = False) -> float:
        """Fraction of the boundaries within `tolerance_s`; with `everything`, including those set apart."""
        values = np.concatenate([self.differences_s, self.apart_s]) if everything else self.differences_s
        return float((np.abs(values) <= tolerance_s + 1e-9).mean())


def compare_boundaries(
    reference: Mapping[str, Sequence[Segment]],
    aligned: Mapping[str, Sequence[Segment]],
    merge: Callable[[str, str], bool] = lambda before, phone: False,
    apart: Callable[[str, str], bool] = lambda before, phone: False,
) -> Boundaries:
    """Compare the utterances that both alignments have.

    Parameters
    ----------
    merge
        Called with two consecutive phones of either alignment: whether the second is a part of the first.
    apart
        Called with two consecutive phones of the reference: whether to set their boundary apart, as one that the
        reference does not mark.

    Raises
    ------
    Speech3Error
        No utterance is in both with the same phones.
    """
    counted: list[float] = []
    set_apart: list[float] = []
    mismatched = []
    for utterance in sorted(reference.keys() & aligned.keys()):
        truth, found = (_merged(tracks[utterance], merge) for tracks in (reference, aligned))
        spoken = [(index, s) for index, s in enumerate(truth) if s.label != SIL]
        hypothesis = [s for s in found if s.label != SIL]
        if [s.label for _, s in spoken] != [s.label for s in hypothesis]:
            mismatched.append(utterance)
            continue
        for (index, true), ours in zip(spoken, hypothesis, strict=True):
            before = truth[index - 1].label if index else SIL
            (set_apart if apart(before, true.label) else counted).append(ours.start_s - true.start_s)
            if index + 1 < len(truth) and truth[index + 1].label == SIL:
                counted.append(ours.end_s - true.end_s)
    if not counted:
        raise MismatchError(
            "the two alignments have no utterance with the same phones; pass alignments of the same data"
        )
    return Boundaries(np.array(counted), np.array(set_apart), tuple(mismatched))


def _merged(segments: Sequence[Segment], merge: Callable[[str, str], bool]) -> list[Segment]:
    result: list[Segment] = []
    for segment in segments:
        if result and merge(result[-1].label, segment.label):
            result[-1] = Segment(result[-1].start_s, segment.end_s, result[-1].label)
        else:
            result.append(segment)
    return result
