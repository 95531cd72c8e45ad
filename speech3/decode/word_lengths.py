"""Lengths of words, by which what is not a word is told from one: noise is recognised as very short or endless words.

The logarithms of the lengths that a word has in training have a mean and a standard deviation. A recognised word that
is far shorter or longer than that becomes ``<unk>``. Recipes with negatives learn the lengths; other models judge none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from speech3.hmm import Segment
from speech3.language import is_word

_LEAST_TIMES = 10  # occurrences from which a word's lengths are known
# In standard deviations of the logarithm, which is taken to be at least a quarter: new speakers may speak twice as fast
# as those of train, or half as fast. Without that, digits lost up to 0.3 points of WER; with it 0.05 in five trainings.
_SHORTER, _LONGER = 3.0, 4.0
_LEAST_DEVIATION = 0.25


@dataclass(frozen=True)
class WordLengths:
    """Mean and standard deviation of the logarithm of each word's length in seconds."""

    words: Mapping[str, tuple[float, float]]

    def fits(self, word: Segment) -> bool:
        """Whether the word may be as long as that; true for words whose lengths are not known."""
        known = self.words.get(word.label)
        length_s = word.end_s - word.start_s
        if known is None or length_s <= 0:
            return True
        mean, deviation = known
        return -_SHORTER <= (math.log(length_s) - mean) / deviation <= _LONGER


def learn_lengths(words: Iterable[Segment]) -> WordLengths | None:
    """The lengths of words in alignments; None if no word occurs often enough."""
    logs: dict[str, list[float]] = {}
    for word in words:
        if is_word(word.label) and word.end_s > word.start_s:
            logs.setdefault(word.label, []).append(math.log(word.end_s - word.start_s))
    known = {
        label: (float(np.mean(values)), max(float(np.std(values)), _LEAST_DEVIATION))
        for label, values in sorted(logs.items())
        if len(values) >= _LEAST_TIMES
    }
    return WordLengths(known) if known else None


def lengths_of(values: Any) -> WordLengths | None:
    """Restore lengths from their `dataclasses.asdict`; a TypeError if they are none. ``None`` returns ``None``."""
    if values is None:
        return None
    found: Mapping[str, Sequence[float]] = WordLengths(**values).words
    try:
        words = {label: (float(mean), float(deviation)) for label, (mean, deviation) in found.items()}
    except (AttributeError, ValueError) as error:
        raise TypeError(f"{values} are no lengths of words") from error
    if not all(math.isfinite(mean) and 0 < deviation < math.inf for mean, deviation in words.values()):
        raise TypeError(f"{values} are no lengths of words")
    return WordLengths(words)
