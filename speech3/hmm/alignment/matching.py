"""Match the words or phones of two alignments of a recording, and the names of two sets of recordings.

Axes: R segments of the reference, H segments of the hypothesis.
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Literal

import numpy as np

from speech3.data import broad_class, folded, is_silence
from speech3.hmm.alignment.times import Segment

Level = Literal["words", "phones"]
LEVELS: tuple[Level, ...] = ("words", "phones")
_ALIKE, _UNLIKE, _MISSING = 0.5, 1.5, 0.9  # costs: another label of the same class, of another one; no counterpart
_BOTH, _UP, _LEFT = 0, 1, 2  # steps: matched; only in the reference; only in the hypothesis
_PER_SECOND = 0.01  # cost of one second between the middles of two matched segments


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
