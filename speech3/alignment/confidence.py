"""Confidence in the words of an alignment: how far the likelihoods of its pdfs are below those of the best pdfs.

The measure is the Goodness of Pronunciation of Witt and Young (Speech Communication 30, 2000), the log likelihood of
the aligned phone minus that of the best competitor, per frame. They used a phone loop; here every pdf competes in every
frame, and the result is scaled so that it means the same for all models and recordings::

    d(phone)      = mean over its frames of  max_p L[t, p] - L[t, aligned pdf]
    D             = mean over the utterance's speech frames of  max_p L[t, p] - median_p L[t, p]
    c(phone)      = 1 - d(phone) / D
    c(word)       = 1 - mean over its phones of d / D, at least 0; c(utterance) likewise over all phones of its words

So 1 means that no pdf fits any frame better, 0 that a pdf picked at random would fit as well. All phones have the same
weight, whatever their length, because a wrong word often has one long vowel that fits by chance among phones that do
not.

It is not a probability. Measured with triphones on unseen LibriSpeech speakers, correct words have 0.87 on average (one
in twenty is below 0.73), wrong words 0.52. Of a dozen measures (log likelihood ratio, posteriors of pdf and phone,
rank, ratio to the phone loop), this one and the unscaled ratio separated replaced from correct words best.

Axes: T frames, P pdfs, S phone segments, W words.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from speech3.hmm.alignment import Alignment
from speech3.hmm.model import Hmm
from speech3.hmm.transcript import NO_WORD

_LEAST_SPREAD = 1e-3


@dataclass(frozen=True, eq=False)
class Confidence:
    """Confidences in [0, 1], float64: of an utterance, of its words (W,), and of its phones and silences (S,)."""

    utterance: float
    words_W: np.ndarray
    phones_S: np.ndarray

    @property
    def worst(self) -> int:
        """Index of the word with the lowest confidence."""
        return int(np.argmin(self.words_W))


def spread(loglikes_TP: np.ndarray) -> np.ndarray:
    """(T,) float32: the best pdf's log likelihood minus the median pdf's."""
    middle = loglikes_TP.shape[1] // 2
    spread_T: np.ndarray = loglikes_TP.max(1) - np.partition(loglikes_TP, middle, axis=1)[:, middle]
    return spread_T


def confidence(alignment: Alignment, hmm: Hmm, blocks: Iterable[np.ndarray]) -> Confidence:
    """Compare an alignment with the best pdf of each frame; the formula is at the top of this module.

    Parameters
    ----------
    blocks
        float32 log likelihoods of all pdfs, without acoustic scale, of consecutive blocks of frames (T, P).
    """
    pdf_T, spoken_T = alignment.pdfs(hmm), alignment.words[alignment.segment] != NO_WORD
    below, spreads, first = list[np.ndarray](), list[np.ndarray](), 0
    for loglikes_TP in blocks:
        here = slice(first, first + len(loglikes_TP))
        below.append(loglikes_TP.max(1) - loglikes_TP[np.arange(len(loglikes_TP)), pdf_T[here]])
        spreads.append(spread(loglikes_TP[spoken_T[here]]))
        first = here.stop
    below_T = np.concatenate(below)
    scale = max(float(np.concatenate(spreads).mean()), _LEAST_SPREAD)
    below_S = np.add.reduceat(below_T.astype(np.float64), alignment.starts[:-1]) / np.diff(alignment.starts) / scale
    spoken_S = alignment.words != NO_WORD
    word = alignment.words[spoken_S]
    counts_W = np.bincount(word)
    words_W = np.bincount(word, below_S[spoken_S]) / np.maximum(counts_W, 1)
    return Confidence(
        float(np.clip(1 - below_S[spoken_S].mean(), 0, 1)), np.clip(1 - words_W, 0, 1), np.clip(1 - below_S, 0, 1)
    )
