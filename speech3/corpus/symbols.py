"""Symbols of language models, graphs and Kaldi's lexicons that nobody speaks."""

from collections.abc import Iterable

# The ends of a sentence, the empty word, the symbol of back-off in a grammar, Kaldi's word for silence.
SYMBOLS = frozenset({"<s>", "</s>", "<eps>", "#0", "!sil"})


def symbols_in(words: Iterable[str]) -> list[str]:
    """The symbols among `words`, each once; in capitals or small letters, since transcripts are often changed so."""
    return list(dict.fromkeys(word for word in words if word.lower() in SYMBOLS))
