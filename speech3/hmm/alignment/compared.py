"""Compare the alignment of a recording with another one: match their segments, and learn from the differences.

What is matched are words or phones, and the names of two sets of recordings.

Differences teach the conventions of a user who has corrected some recordings. Where a boundary lies between two phones
is partly a convention: at the burst of a stop or after its aspiration, at the end of voicing or of audible friction.
The median difference between aligned and corrected boundaries is estimated for each pair of phone classes
(`speech3.data.phones`), drawn towards zero where there are few, and subtracted from all boundaries of that pair.
Such differences hold within a corpus; measured across corpora they do harm, so they are estimated anew for every user,
and what they gain is measured with each recording left out of the estimate in turn.

Axes: R segments of the reference, H segments of the hypothesis.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Literal

import numpy as np

from speech3.data import SILENCE, broad_class, folded, is_arpabet, is_silence
from speech3.errors import DataError, listed
from speech3.hmm.alignment.times import FrameClock, Segment
from speech3.hmm.transcript import Alignment
from speech3.language import Lexicon

Level = Literal["words", "phones"]
LEVELS: tuple[Level, ...] = ("words", "phones")
_ALIKE, _UNLIKE, _MISSING = 0.5, 1.5, 0.9  # costs: another label of the same class, of another one; no counterpart
_BOTH, _UP, _LEFT = 0, 1, 2  # steps: matched; only in the reference; only in the hypothesis
_PER_SECOND = 0.01  # cost of one second between the middles of two matched segments
Pair = tuple[str, str]  # classes of the phones before and after a boundary
_PRIOR = 10  # with so many boundaries, half of the median difference counts
_TOUCH_S = 0.0011  # times may be rounded to milliseconds
_SHORTEST = 0.5  # frames that a phone keeps


def spoken(segments: Sequence[Segment]) -> list[Segment]:
    """The segments that are not silence."""
    return [segment for segment in segments if not is_silence(segment.label.strip())]


def match(truth: Sequence[Segment], ours: Sequence[Segment], level: Level) -> dict[int, int]:
    """Match two sequences in order, and return for each matched segment of the first its index in the second.

    Different labels may be matched (two dictionaries pronounce a word differently), preferably of the same class.
    """
    if [s.label for s in truth] == [s.label for s in ours]:
        return {index: index for index in range(len(truth))}
    rows, columns = len(truth), len(ours)
    middle_R, middle_H = (np.array([s.start_s + s.end_s for s in side]) / 2 for side in (truth, ours))
    label_R, label_H = _numbers([[key(s.label, level) for s in side] for side in (truth, ours)])
    class_R, class_H = _numbers(
        [[broad_class(s.label) if level == "phones" else "" for s in side] for side in (truth, ours)]
    )
    skipped = _MISSING * np.arange(columns + 1)
    cost, steps = skipped, np.full((rows + 1, columns + 1), _LEFT, np.int8)  # the row above; how each place was reached
    steps[1:, 0] = _UP
    for r in range(rows):
        unlike = np.where((class_H == class_R[r]) & (level == "phones"), _ALIKE, _UNLIKE)
        pair = np.where(label_H == label_R[r], 0.0, unlike) + _PER_SECOND * np.minimum(
            abs(middle_H - middle_R[r]), 10.0
        )
        diagonal, up = cost[:-1] + pair, cost + _MISSING
        best = np.concatenate([up[:1], np.minimum(diagonal, up[1:])])
        # Steps to the left accumulate along the row.
        cost = np.minimum.accumulate(best - skipped) + skipped
        steps[r + 1, 1:] = np.where(diagonal <= up[1:], _BOTH, _UP)
        steps[r + 1, 1:][cost[1:] < best[1:] - 1e-9] = _LEFT
    matched: dict[int, int] = {}
    r, h = rows, columns
    while r and h:
        step = steps[r, h]
        r, h = r - (step != _LEFT), h - (step != _UP)
        if step == _BOTH:
            matched[r] = h
    return dict(sorted(matched.items()))


def key(label: str, level: Level) -> str:
    """What labels that count as the same have in common."""
    return folded(label) if level == "phones" else label.casefold()


def _numbers(sides: Sequence[Sequence[str]]) -> list[np.ndarray]:
    known: dict[str, int] = {}
    return [np.array([known.setdefault(label, len(known)) for label in side], np.int64) for side in sides]


def paired(reference: Iterable[str], hypothesis: Iterable[str]) -> dict[str, str]:
    """For each utterance of the reference, its name in the hypothesis, if any.

    Names are compared without letter case, and ``/``, ``_`` and ``-`` are the same. If names are paths, as many of
    their last parts count as are needed to be unique, so that ``DR1/FCJF0/SI648`` is ``fcjf0-si648``.
    """
    ours = _index(hypothesis)
    found, index = dict[str, str](), _index(reference)
    for name in reference:
        for short in _shortened(name):
            if short in ours and index.get(short) == name:
                found[name] = ours[short]
                break
    return found


def _shortened(name: str) -> list[str]:
    parts = PurePath(name).parts
    return ["-".join(parts[n:]).replace("_", "-").casefold() for n in range(len(parts))]


def _index(names: Iterable[str]) -> dict[str, str]:
    found: dict[str, str | None] = {}
    for name in names:
        for short in _shortened(name):
            found[short] = None if short in found and found[short] != name else name
    return {short: name for short, name in found.items() if name is not None}


@dataclass(frozen=True)
class Offsets:
    """Seconds by which aligned boundaries are late, by pair of classes, and what subtracting them gains."""

    late_s: Mapping[Pair, float]
    # `before_ms`, `after_ms`: mean absolute error on the corrected recordings, without offsets, and with those of all
    # others
    before_ms: float
    after_ms: float
    # `boundaries`, `recordings`: how many were compared
    boundaries: int
    recordings: int

    @property
    def help(self) -> bool:
        """Whether they bring boundaries nearer to those of recordings that were not used."""
        return self.after_ms < self.before_ms


def check_names(corrected: Collection[str], utterances: Collection[str]) -> None:
    """Raise an error if fewer than two corrected recordings are among the utterances."""
    if len(both := paired(corrected, utterances)) < 2:
        raise DataError(
            f"the corrected recordings ({listed(corrected)}) and the utterances ({listed(utterances)}) have"
            f" {'only one name' if both else 'no names'} in common; correct at least two, keeping their file names"
        )


def fit(errors: Mapping[str, Sequence[tuple[Pair, float]]]) -> Offsets:
    """Estimate offsets from the errors of each corrected recording, in seconds (`differences`).

    Raises Speech3Error: there are fewer than two recordings with boundaries that can be compared.
    """
    used = {recording: rows for recording, rows in errors.items() if rows}
    if len(used) < 2:
        raise DataError(
            f"only {len(used)} of the corrected recordings ({listed(errors)}) could be compared; correct at least two,"
            " keeping their phones and their file names"
        )
    before, after = list[float](), list[float]()
    for recording, rows in used.items():
        rest = _medians(row for other, each in used.items() if other != recording for row in each)
        before += [abs(error) for _, error in rows]
        after += [abs(error - rest.get(pair, 0.0)) for pair, error in rows]
    late_s = _medians(row for rows in used.values() for row in rows)
    return Offsets(late_s, 1000 * float(np.mean(before)), 1000 * float(np.mean(after)), len(before), len(used))


def _medians(rows: Iterator[tuple[Pair, float]]) -> dict[Pair, float]:
    """The median error of each pair, the smaller the fewer there are."""
    found: dict[Pair, list[float]] = defaultdict(list)
    for pair, error in rows:
        found[pair].append(error)
    return {pair: float(np.median(errors)) * len(errors) / (len(errors) + _PRIOR) for pair, errors in found.items()}


def differences(
    ours: Sequence[Segment], matched: Mapping[int, int], truth: Sequence[Segment]
) -> list[tuple[Pair, float]]:
    """The classes and the error, in seconds, of each of our boundaries that the truth has as well.

    `ours`, `truth`: phones and silences.
    `matched`: for the n-th phone of `truth` the number of the same phone in `ours`, both counted without silences.
    """
    places = [index for index, segment in enumerate(ours) if not is_silence(segment.label)]
    theirs = spoken(truth)
    partner = {places[h]: r for r, h in matched.items()}
    # Does silence precede the n-th phone? The last entry is for the end.
    pause = [True, *(b.start_s - a.end_s > _TOUCH_S for a, b in pairwise(theirs)), True]
    classes = classes_of([segment.label for segment in ours])
    found: list[tuple[Pair, float]] = []
    for index in range(1, len(ours)):
        left, right = partner.get(index - 1), partner.get(index)
        touch = left is not None and right == left + 1 and not pause[right]
        begins = right is not None and classes[index - 1] == SILENCE and pause[right]
        ends = left is not None and classes[index] == SILENCE and pause[left + 1]
        pair, time_s = (classes[index - 1], classes[index]), ours[index].start_s
        if right is not None and (touch or begins):
            found.append((pair, time_s - theirs[right].start_s))
        elif left is not None and ends:
            found.append((pair, time_s - theirs[left].end_s))
    return found


def classes_of(labels: Sequence[str]) -> list[str]:
    arpabet = is_arpabet(labels)
    return [broad_class(label, arpabet=arpabet) for label in labels]


def moved(alignment: Alignment, lexicon: Lexicon, clock: FrameClock, offsets: Offsets) -> Alignment:
    """The alignment with `edges` from which the offsets were subtracted; the order of the phones is kept."""
    classes = classes_of([lexicon.base_phone(lexicon.phones[phone - 1]) for phone in alignment.phones])
    late = [offsets.late_s.get(pair, 0.0) for pair in pairwise(classes)]
    edges = alignment.places
    edges[1:-1] -= np.array(late) / (clock.subsampling * clock.shift_s)
    count = _SHORTEST * np.arange(len(edges))
    edges[1:-1] = np.clip(edges[1:-1], count[1:-1], edges[-1] - count[::-1][1:-1])
    edges[:-1] = np.maximum.accumulate(edges[:-1] - count[:-1]) + count[:-1]
    return replace(alignment, edges=edges)
