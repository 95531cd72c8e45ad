"""Pronunciation and silence probabilities, estimated from alignments.

G. Chen, H. Xu, M. Wu, D. Povey, S. Khudanpur: Pronunciation and silence probability modeling for ASR, Interspeech 2015
(Kaldi's steps/get_prons.sh and utils/dict_dir_add_pronprobs.sh). C are counts, w is a pronunciation of a word,
s is silence and n is no silence:

    P(w | word)      = (C(w) + 1) / (C(word) + variants), divided by the largest for the word
    P(s after w)     = (C(w s) + 2 P(s)) / (C(w) + 2)
    F(s before w)    = (C(s w) + 2) / (sum of P(s after v) over every v before w, + 2);  F(n before w) likewise
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from speech3.hmm.alignment import Alignment
from speech3.hmm.transcript import NO_WORD
from speech3.lexicon.lexicon import Lexicon, Pronunciation, Silences

SMOOTHING = 2.0  # lambda 2 and lambda 3 of the paper
RARE = 0.01  # the average silence is at least this probable, and at most 1 minus this
Key: TypeAlias = tuple[str, tuple[int, ...]]  # word and phone numbers
EDGE: Key = ("", ())  # the sentence's beginning, or its end


@dataclass
class Counts:
    """Counts of pairs of neighbouring pronunciations, with silence between them (True) or not."""

    joins: Counter[tuple[Key, bool, Key]] = field(default_factory=Counter)

    def __iadd__(self, other: "Counts") -> "Counts":
        self.joins.update(other.joins)
        return self


def count(alignments: Mapping[str, Alignment], words: Mapping[str, list[str]]) -> Counts:
    """Count the pairs of neighbouring pronunciations in the alignments; `words` are the transcripts."""
    counts = Counts()
    for utterance, alignment in alignments.items():
        before, silence = EDGE, False
        change = np.flatnonzero(np.diff(alignment.words)) + 1
        for run in np.split(np.arange(len(alignment.words)), change):
            index = int(alignment.words[run[0]])
            if index == NO_WORD:
                silence = True
                continue
            key = (words[utterance][index], tuple(alignment.phones[run].tolist()))
            counts.joins[before, silence, key] += 1
            before, silence = key, False
        counts.joins[before, silence, EDGE] += 1
    return counts


def estimate(lexicon: Lexicon, counts: Counts) -> Lexicon:
    """The lexicon with estimated pronunciation and silence probabilities.

    A word that does not occur keeps equally probable pronunciations and gets the average silence probability.
    """
    said: Counter[Key] = Counter()
    silence_after: Counter[Key] = Counter()
    for (before, silence, key), n in counts.joins.items():
        said[key] += n
        silence_after[before] += n * silence
    total = sum(said.values())
    average = min(max(sum(silence_after.values()) / max(total, 1), RARE), 1 - RARE)

    def after(key: Key) -> float:
        return (silence_after[key] + SMOOTHING * average) / (said[key] + SMOOTHING)

    with_silence: Counter[Key] = Counter()
    without: Counter[Key] = Counter()
    expected: defaultdict[Key, float] = defaultdict(float)  # expected number of silences before each
    for (before, silence, key), n in counts.joins.items():
        (with_silence if silence else without)[key] += n
        expected[key] += n * after(before)

    def silences(key: Key) -> Silences:
        return Silences(
            after(key),
            (with_silence[key] + SMOOTHING) / (expected[key] + SMOOTHING),
            (without[key] + SMOOTHING) / (said[key] - expected[key] + SMOOTHING),
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
