"""How good confidences are: normalised cross-entropy (NIST's sclite) and a reliability table.

H is the cross-entropy of a recogniser that gives every word the same confidence, the share of correct words. NCE is the
fraction of H by which the confidences c reduce the cross-entropy:

    NCE = (H + sum over correct words of log2 c + sum over wrong words of log2 (1 - c)) / H

It is 1 at best, 0 for that constant confidence, and negative for confidences that are worse. The words are those of the
hypothesis: substitutions and insertions are wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from speech3.data import normalize_text
from speech3.errors import Speech3Error
from speech3.evaluate.text import scored_words
from speech3.evaluate.wer import Score
from speech3.hmm import Segment, read_ctm

MIN_CONFIDENCE = 5e-4  # of a word, and of its being wrong: 0.000 and 1.000 in a CTM are rounded values


@dataclass(frozen=True)
class Bin:
    """Words with confidences from `low` to `high`: their number, mean confidence, and the share of correct ones."""

    low: float
    high: float
    words: int
    confidence: float
    correct: float


@dataclass(frozen=True)
class Reliability:
    """How well confidences predict which words are correct.

    `correct` is the share of correct words. `nce` is NaN if all words are correct, or none: then H is 0. `bins` has
    only bins with words.
    """

    words: int
    correct: float
    nce: float
    bins: tuple[Bin, ...]

    @property
    def why_no_nce(self) -> str:
        """Why there is no NCE; empty if there is one."""
        if self.nce == self.nce:
            return ""
        return "all words are correct" if self.correct == 1 else "no word is correct" if self.words else "no words"


def reliability(confidences: Sequence[float], correct: Sequence[bool], bins: int = 10) -> Reliability:
    """The reliability of confidences (from 0 to 1), given which of the words are correct; `bins` have equal widths."""
    clipped = np.clip(np.asarray(confidences, np.float64), MIN_CONFIDENCE, 1 - MIN_CONFIDENCE)
    right = np.asarray(correct, bool)
    share = float(right.mean()) if len(right) else float("nan")
    nce = float("nan")
    if 0 < share < 1:
        alone = -len(right) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
        nce = float((alone + np.log2(clipped[right]).sum() + np.log2(1 - clipped[~right]).sum()) / alone)
    place = np.minimum((np.asarray(confidences, np.float64) * bins).astype(int), bins - 1)
    rows = []
    for number in range(bins):
        here = place == number
        if here.any():
            mean, good = float(np.asarray(confidences)[here].mean()), float(right[here].mean())
            rows.append(Bin(number / bins, (number + 1) / bins, int(here.sum()), mean, good))
    return Reliability(len(right), share, nce, tuple(rows))


def reliability_of(score: Score, tracks: Mapping[str, Sequence[Segment]]) -> Reliability | None:
    """The reliability of the confidences in a CTM for the words of a score; None if it has none, or other words.

    Utterances whose number of words in the CTM is not the number scored (normalisation may change it) are left out. If
    they are more than one in twenty, the CTM is taken to be that of another decoding.
    """
    confidences: list[float] = []
    right: list[bool] = []
    scored = [utterance for utterance in score.utterances if utterance.hyp]
    used = 0
    for utterance in scored:
        words = tracks.get(utterance.name, ())
        track = [word.confidence for word in words if scored_words(normalize_text(word.label, score.normalize))]
        known = [each for each in track if each is not None]
        if len(known) == len(track) == len(utterance.hyp):
            used += 1
            confidences += known
            right += [kind == "equal" for kind, _, hyp in utterance.alignment() if hyp]
    return reliability(confidences, right) if confidences and used >= 0.95 * len(scored) else None


def reliability_beside(score: Score, hypothesis: Path) -> Reliability | None:
    """The reliability of the CTM beside the text of a hypothesis: ``hyp.ctm`` for ``hyp.txt``; None if none fits it."""
    path = hypothesis.with_suffix(".ctm")
    if path == hypothesis or not path.is_file():
        return None
    try:
        tracks = read_ctm(path)
    except Speech3Error:
        return None  # not a CTM file that speech3 wrote
    return reliability_of(score, tracks)


def confidence_lines(found: Reliability) -> str:
    of = f"of the confidences of {found.words} words"
    head = f"NCE {found.nce:.3f}  {of}, {100 * found.correct:.2f} % of them correct"
    if found.why_no_nce:
        head = f"NCE none  {of}: it is not defined where {found.why_no_nce}"
    rows = (
        f"{each.low:.1f} to {each.high:.1f}  {each.words:6}  {each.confidence:.3f}  {each.correct:.3f}"
        for each in found.bins
    )
    return "\n".join([head, "confidence    words    mean  correct", *rows])
