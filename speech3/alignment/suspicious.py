"""Find utterances that are probably mistranscribed, by the confidence of their alignments (`confidence`).

A word's confidence is a mean over its phones, so it is less reliable for a short word: the doubt about a word of n
phones is ``(usual - confidence) * sqrt(n)``, where `usual` is the median of all words. On LibriSpeech, with words
replaced, left out or taken from other utterances, one threshold gave the same false alarm rate for triphones and
monophones, on speakers of the training data and on others: 0.5 % of the words at 0.57, 0.3 % at `DOUBTFUL`. Models with
an output for every third frame have fewer values per phone, so their mean is less precise, but they separate wrong from
correct words far better: on minilibri's dev, with one word of each utterance replaced, 0.3 % of the correct words and
95 % of the replaced ones are above `DOUBTFUL_SUBSAMPLED`; triphones, at the same false alarm rate, find 60 %.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from speech3.alignment.align import Aligned
from speech3.hmm.transcript import NO_WORD

DOUBTFUL, DOUBTFUL_SUBSAMPLED = 0.7, 1.05  # doubt above which a word is doubtful
UTTERANCE = 0.72  # confidence below which an utterance is suspicious in any set
OUTLIER, LEAST = 4.0, 0.08  # suspicious too: this many robust standard deviations and this much below the set's median
_LEAST_SET = 20  # utterances that a set needs for its own limits
_USUAL_WORD = 0.85  # least confidence of a usual word in smaller sets


@dataclass(frozen=True)
class Suspicion:
    """An utterance, why it is suspicious, and its transcript with ``*`` around the doubtful words."""

    utterance: str
    confidence: float
    reason: str
    transcript: str


@dataclass(frozen=True)
class Limits:
    """An utterance of less confidence than `utterance` is suspicious; `word` is the median confidence of words."""

    utterance: float
    word: float


def limits_of(aligned: Aligned) -> Limits:
    """Estimate `Limits`. Outliers are `OUTLIER` * 1.4826 median absolute deviations or more below the median."""
    if not aligned.confidences:
        return Limits(UTTERANCE, _USUAL_WORD)
    utterances = np.array([confidence.utterance for confidence in aligned.confidences.values()])
    word = float(np.median(np.concatenate([confidence.words_W for confidence in aligned.confidences.values()])))
    if len(utterances) < _LEAST_SET:
        return Limits(UTTERANCE, max(word, _USUAL_WORD))
    middle = float(np.median(utterances))
    outlier = middle - max(OUTLIER * 1.4826 * float(np.median(np.abs(utterances - middle))), LEAST)
    return Limits(max(UTTERANCE, outlier), word)


def doubtful_words(aligned: Aligned, utterance: str, word: float, doubtful: float) -> np.ndarray:
    """(W,) bool: the words that were probably not spoken; `word` is the confidence of a usual one."""
    owner = aligned.alignments[utterance].words
    phones_W = np.bincount(owner[owner != NO_WORD])
    doubt_W: np.ndarray = (word - aligned.confidences[utterance].words_W) * np.sqrt(phones_W)
    return doubt_W > doubtful


def suspicions(aligned: Aligned, texts: Mapping[str, str | None], subsampling: int = 1) -> list[Suspicion]:
    """List suspicious utterances, the worst first: no path, low confidence, doubtful words, or aligned on retry only.

    Parameters
    ----------
    subsampling
        Frames per output of the model.
    """
    limits, doubtful = limits_of(aligned), DOUBTFUL_SUBSAMPLED if subsampling > 1 else DOUBTFUL
    found = [
        Suspicion(utterance, 0.0, reason, texts.get(utterance) or "")
        for utterance, reason in aligned.bad.items()
        if utterance in aligned.retried
    ]
    for utterance, confidence in aligned.confidences.items():
        words = (texts.get(utterance) or "").split()
        doubtful_W = doubtful_words(aligned, utterance, limits.word, doubtful)
        reasons = []
        if confidence.utterance < limits.utterance:
            reasons.append(f"below {limits.utterance:.2f} as a whole")
        if doubtful_W.any():
            reasons.append(f"{doubtful_W.sum()} of {len(words)} words doubtful")
        if utterance in aligned.retried:
            reasons.append("aligned at the retry beam only")
        if reasons:
            marked = " ".join(f"*{word}*" if bad else word for word, bad in zip(words, doubtful_W, strict=True))
            found.append(Suspicion(utterance, confidence.utterance, ", ".join(reasons), marked))
    return sorted(found, key=lambda s: (s.confidence, s.utterance))
