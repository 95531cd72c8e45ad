"""Small texts, and what their models say, word by word."""

import numpy as np

from speech3.language.ngrams import EOS, ArpaLm


def text(sentences: int, seed: int, words: str = "abcdefgh") -> list[list[str]]:
    """Sentences of up to seven words, the first of `words` the most frequent; a word likes the one before it."""
    rng = np.random.default_rng(seed)
    share = np.arange(len(words), 0, -1) / np.arange(len(words) + 1).sum()
    found = []
    for _ in range(sentences):
        sentence = [*rng.choice(list(words), rng.integers(1, 8), p=share)]
        found.append([str(sentence[max(0, i - (i % 3 == 1))]) for i in range(len(sentence))])
    return found


def outcomes(lm: ArpaLm) -> list[str]:
    """All that can follow a history."""
    return [*lm.words, EOS]


def distribution(lm: ArpaLm, history: tuple[str, ...]) -> np.ndarray:
    """Probability of each outcome, by `ArpaLm.log10_prob`."""
    return np.array([10 ** lm.log10_prob(history, word) for word in outcomes(lm)])


def histories(lm: ArpaLm) -> list[tuple[str, ...]]:
    """The empty one, and all n-grams that something may follow."""
    return [(), *(h for ngrams in lm.ngrams[:-1] for h in ngrams if h[-1] != EOS)]
