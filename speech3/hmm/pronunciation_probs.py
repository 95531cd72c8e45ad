"""Pronunciation and silence probabilities, estimated from alignments.

G. Chen, H. Xu, M. Wu, D. Povey, S. Khudanpur: Pronunciation and silence probability modeling for ASR, Interspeech 2015
(Kaldi's steps/get_prons.sh and utils/dict_dir_add_pronprobs.sh). C denotes counts, w is a pronunciation of a word,
s is silence and n is no silence:

    P(w | word)      = (C(w) + 1) / (C(word) + variants), divided by the largest for the word
    P(s after w)     = (C(w s) + 2 P(s)) / (C(w) + 2)
    F(s before w)    = (C(s w) + 2) / (sum of P(s after v) over every v before w, + 2);  F(n before w) likewise
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from speech3.hmm.gmm import Sums
from speech3.hmm.transcript import NO_WORD
from speech3.hmm.workers import Workers, WorkerShare
from speech3.language import Lexicon, Pronunciation, Silences

SMOOTHING = 2.0  # lambda 2 and lambda 3 of the paper
RARE = 0.01  # the average silence is at least this probable, and at most 1 minus this
Key: TypeAlias = tuple[str, tuple[int, ...]]  # word and phone numbers
EDGE: Key = ("", ())  # the sentence's beginning, or its end
Expected: TypeAlias = dict[Key, float]  # expected number of silences before each pronunciation


@dataclass
class PronunciationCounts(Sums):
    """How often each pronunciation occurs, and with silence before and after it.

    Pairs of pronunciations are not counted: a large corpus has millions.
    """

    said: Counter[Key] = field(default_factory=Counter)
    after_silence: Counter[Key] = field(default_factory=Counter)
    before_silence: Counter[Key] = field(default_factory=Counter)

    @cached_property
    def average(self) -> float:
        """P(s)."""
        return min(max(self.before_silence.total() / max(self.said.total(), 1), RARE), 1 - RARE)

    def silence_after(self, key: Key) -> float:
        """P(s after w)."""
        return (self.before_silence[key] + SMOOTHING * self.average) / (self.said[key] + SMOOTHING)


def estimated_along(workers: Workers, lexicon: Lexicon) -> Lexicon:
    """The lexicon with probabilities estimated from the alignments that the workers hold."""
    counts = workers.total(count)
    expected: Expected = {}
    for found in workers.run(expected_silences, counts):
        expected |= {key: expected.get(key, 0.0) + silences for key, silences in found.items()}
    return estimate(lexicon, counts, expected)


def count(share: WorkerShare) -> PronunciationCounts:
    """Count pronunciations and silences along the alignments of a share."""
    counts = PronunciationCounts()
    for before, silence, key in _joins(share):
        counts.said[key] += 1
        if silence:
            counts.after_silence[key] += 1
            counts.before_silence[before] += 1
    return counts


def expected_silences(share: WorkerShare, counts: PronunciationCounts) -> Expected:
    """The sum over the pronunciations before each pronunciation of the probability of silence after them."""
    found: defaultdict[Key, float] = defaultdict(float)
    for before, _, key in _joins(share):
        found[key] += counts.silence_after(before)
    return dict(found)


def _joins(share: WorkerShare) -> Iterator[tuple[Key, bool, Key]]:
    """Pairs of neighbouring pronunciations, and whether silence is between them."""
    for utterance, alignment in share.alignments.items():
        before, silence, said = EDGE, False, share.words[utterance]
        change = (np.flatnonzero(np.diff(alignment.words)) + 1).tolist()
        phones, indices = alignment.phones.tolist(), alignment.words.tolist()
        for begin, end in pairwise([0, *change, len(phones)]):
            if indices[begin] == NO_WORD:
                silence = True
                continue
            key = (said[indices[begin]], tuple(phones[begin:end]))
            yield before, silence, key
            before, silence = key, False
        yield before, silence, EDGE


def estimate(lexicon: Lexicon, counts: PronunciationCounts, expected: Expected) -> Lexicon:
    """The lexicon with estimated pronunciation and silence probabilities.

    A word that does not occur keeps equally probable pronunciations and gets the average silence probability.
    """
    said, after = counts.said, counts.silence_after

    def silences(key: Key) -> Silences:
        return Silences(
            after(key),
            (counts.after_silence[key] + SMOOTHING) / (expected.get(key, 0.0) + SMOOTHING),
            (said[key] - counts.after_silence[key] + SMOOTHING) / (said[key] - expected.get(key, 0.0) + SMOOTHING),
        )

    by_word: Counter[str] = Counter()
    for (word, _), n in said.items():
        by_word[word] += n
    ids = lexicon.phone_ids
    keys = [(pron.word, tuple(ids[phone] for phone in pron.phones)) for pron in lexicon.pronunciations]
    rate = {key: (said[key] + 1) / (by_word[key[0]] + len(lexicon.by_word[key[0]])) for key in keys}
    best: dict[str, float] = {}
    for (word, _), value in rate.items():
        best[word] = max(best.get(word, 0.0), value)

    def estimated(pron: Pronunciation, key: Key) -> Pronunciation:
        return replace(pron, prob=rate[key] / best[key[0]], silences=silences(key))

    prons = tuple(estimated(pron, key) for pron, key in zip(lexicon.pronunciations, keys, strict=True))
    return replace(lexicon, pronunciations=prons, silence_prob=after(EDGE), end=silences(EDGE))
