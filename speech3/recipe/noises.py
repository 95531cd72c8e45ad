"""Noises in transcripts, such as ``[laughs]`` and ``<unk>``: no error rate counts them, as they cannot be recognised.

They are left out of references and hypotheses. (`speech3 score` scores texts as they are.)
"""

from collections.abc import Callable
from functools import partial

from speech3.lexicon.langdir import is_word
from speech3.scoring.text import ERROR_RATES
from speech3.scoring.wer import Metric

Rate = Callable[[list[str], list[str]], float]


def spoken(text: str | None) -> str:
    """The words of a text, without noises."""
    return " ".join(word for word in (text or "").split() if is_word(word))


def error_rate(metric: Metric) -> Rate:
    """The error rate of texts (references, hypotheses) as a fraction, without noises."""
    return partial(_of_words, ERROR_RATES[metric])


def _of_words(rate: Rate, references: list[str], hypotheses: list[str]) -> float:
    return rate([spoken(text) for text in references], [spoken(text) for text in hypotheses])
