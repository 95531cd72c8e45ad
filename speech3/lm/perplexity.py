"""Perplexity: how well a model predicts a text.

Axes: T words and sentence ends of the text, N orders.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speech3.errors import Speech3Error
from speech3.lm.ngrams import EOS, UNKNOWN, ArpaLm
from speech3.lm.text import Known, number_sentences, read_tokens
from speech3.lm.trie import score


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a text, with the counts it is computed from.

    Attributes
    ----------
    sentences, words
        Counts in the text; the end of a sentence is an event, but not counted as a word.
    unknown
        Number of words that the model lacks.
    log10_known
        Sum of log10 probabilities over known words and sentence ends.
    log10_unknown
        The same over unknown words, each scored as `<unk>`; minus infinity if the model has no `<unk>` and the text has
        unknown words.
    hits_N
        Known words and sentence ends whose longest n-gram in the model is of order 1, 2, ...
    """

    sentences: int
    words: int
    unknown: int
    log10_known: float
    log10_unknown: float
    hits_N: tuple[int, ...]

    @property
    def known(self) -> float:
        """Perplexity over known words and sentence ends."""
        events = self.sentences + self.words - self.unknown
        return 10.0 ** (-self.log10_known / events) if events else math.nan

    @property
    def all(self) -> float:
        """Perplexity over all words and sentence ends; infinite if there are unknown words and no `<unk>`."""
        events = self.sentences + self.words
        return 10.0 ** (-(self.log10_known + self.log10_unknown) / events) if events else math.nan

    def as_json(self) -> dict[str, Any]:
        """The values for JSON; a perplexity that is infinite or not defined is None."""
        values = {
            name: value if math.isfinite(value) else None
            for name, value in (("ppl", self.known), ("ppl_with_oov", self.all))
        }
        counts = {"sentences": self.sentences, "words": self.words, "oov": self.unknown}
        return {**values, **counts, "log10_prob": self.log10_known, "hits": list(self.hits_N)}


def describe(found: Perplexity) -> str:
    """The values as text of three lines."""
    rate = 100 * found.unknown / found.words if found.words else 0.0
    events = max(1, sum(found.hits_N))
    hits = [f"{length}-grams {100 * hit / events:.1f} %" for length, hit in enumerate(found.hits_N, 1)]
    with_unknown = f"{found.all:.2f}" if math.isfinite(found.all) else "infinite, the model has no <unk>"
    lines = (
        f"{found.sentences:,} sentences, {found.words:,} words, {found.unknown:,} unknown (OOV, {rate:.2f} %)",
        f"perplexity {found.known:.2f}; with unknown words {with_unknown}",
        f"found as {', '.join(reversed(hits))}",
    )
    return "\n".join(lines)


def measure_text(lm: ArpaLm, texts: Sequence[Path]) -> Perplexity:
    """Perplexity of text files with one sentence per line.

    Raises
    ------
    Speech3Error
        There is no sentence; also what `speech3.lm.text.read_tokens` raises.
    """
    found = measure(lm, read_tokens(texts, Known(lm.numbers)))
    if not found.sentences:
        raise Speech3Error(f"{', '.join(map(str, texts))}: no sentences; give a text with one sentence per line")
    return found


def measure(lm: ArpaLm, blocks: Iterable[np.ndarray]) -> Perplexity:
    """Perplexity of a text in blocks of `speech3.lm.text`, numbered with `Known(lm.numbers)`."""
    end, unknown = lm.numbers[EOS], lm.numbers.get(UNKNOWN, -1)
    sentences = tokens = strange = 0
    sums, hits_N = np.zeros(2), np.zeros(lm.order + 1, np.int64)
    for word_T in blocks:
        node_T, prob_T = score(lm.trie, word_T, lm.start, end)
        strange_T = word_T == unknown
        sentences += int(np.count_nonzero(word_T == end))
        tokens += len(word_T)
        strange += int(np.count_nonzero(strange_T))
        sums += [prob_T[~strange_T].sum(), prob_T[strange_T].sum()]
        hits_N += np.bincount(np.searchsorted(lm.starts_N, node_T[~strange_T], "right") - 1, minlength=lm.order + 1)
    known, unknown_too = sums.tolist()
    return Perplexity(sentences, tokens - sentences, strange, known, unknown_too, tuple(hits_N[1:].tolist()))


def perplexity(lm: ArpaLm, sentences: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Perplexity over words and sentence ends, and the number of unknown words that were left out.

    Unknown words are scored as ``<unk>`` if the model has it, and left out otherwise.

    Raises
    ------
    Speech3Error
        There is nothing to average over, or a sentence contains `<s>` or `</s>`.
    """
    found = measure(lm, number_sentences(sentences, Known(lm.numbers), lm.source))
    with_unknown = UNKNOWN in lm.numbers
    value = found.all if with_unknown else found.known
    if math.isnan(value):
        raise Speech3Error(f"{lm.source}: no word of the text is in the language model")
    return value, 0 if with_unknown else found.unknown
