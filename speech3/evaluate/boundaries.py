"""The accuracy of an aligner's phone boundaries against a reference alignment.

Silence is removed from both alignments; the remaining phones must be the same, and are matched one to one. Boundaries
are the beginning of each phone, and the end of each phone that is followed by silence in the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from speech3.errors import MismatchError
from speech3.hmm import Segment
from speech3.language import SILENCE


@dataclass(frozen=True)
class Boundaries:
    """Differences (aligned minus reference, in seconds) of the boundaries that are counted, and of those set apart.

    Attributes
    ----------
    mismatched
        Utterances whose phones differ from those of the reference; none of their boundaries is included.
    """

    differences_s: np.ndarray
    apart_s: np.ndarray
    mismatched: tuple[str, ...]

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
        spoken = [(index, s) for index, s in enumerate(truth) if s.label != SILENCE]
        hypothesis = [s for s in found if s.label != SILENCE]
        if [s.label for _, s in spoken] != [s.label for s in hypothesis]:
            mismatched.append(utterance)
            continue
        for (index, true), ours in zip(spoken, hypothesis, strict=True):
            before = truth[index - 1].label if index else SILENCE
            (set_apart if apart(before, true.label) else counted).append(ours.start_s - true.start_s)
            if index + 1 < len(truth) and truth[index + 1].label == SILENCE:
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
