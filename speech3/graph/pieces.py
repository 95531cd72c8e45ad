"""Joining pieces into words.

A piece that begins a word starts with ``▁``, as SentencePiece writes it; in a vocabulary with such pieces, all others
continue a word. In a vocabulary of words and letters, letters are joined where they have ``￭`` (`speech3.lm.letters`).
"""

from collections.abc import Iterable, Sequence

from speech3.alignment.times import Segment
from speech3.lexicon.subwords import JOINER, WORD_START


def are_pieces(vocabulary: Iterable[str]) -> bool:
    """Whether a graph with this vocabulary writes pieces instead of words, or letters beside words."""
    return any(word.startswith((WORD_START, JOINER)) for word in vocabulary)


def are_sentencepieces(vocabulary: Iterable[str]) -> bool:
    """Whether the units that do not begin with ``▁`` continue a word."""
    return any(word.startswith(WORD_START) for word in vocabulary)


def continues(unit: str, *, sentencepieces: bool) -> bool:
    """Whether a unit belongs to the same word as the one before it."""
    return not unit.startswith(WORD_START) if sentencepieces else unit.startswith(JOINER)


def bare(unit: str) -> str:
    """The letters of a unit, without marks."""
    return unit.removeprefix(WORD_START).strip(JOINER)


def join_words(pieces: Sequence[str]) -> tuple[str, ...]:
    """Words from pieces; pieces before the first one that begins a word form a word too.

    >>> join_words(("▁hel", "lo", "▁world"))
    ('hello', 'world')
    >>> join_words(("hello", "w￭", "￭o￭", "￭r￭", "￭l￭", "￭d"))
    ('hello', 'world')
    """
    return tuple(word.label for word in join_segments([Segment(0.0, 0.0, piece, None) for piece in pieces]))


def join_segments(pieces: Sequence[Segment]) -> list[Segment]:
    """Words with times from pieces with times: from the start of the first piece to the end of the last.

    The confidence of a word is the lowest of its pieces; None if it is unknown for a piece.
    """
    sentencepieces = are_sentencepieces(piece.label for piece in pieces)
    words: list[Segment] = []
    for piece in pieces:
        label = bare(piece.label)
        if words and continues(piece.label, sentencepieces=sentencepieces):
            sure = _least(words[-1].confidence, piece.confidence)
            words[-1] = Segment(words[-1].start_s, piece.end_s, words[-1].label + label, sure)
        else:
            words.append(Segment(piece.start_s, piece.end_s, label, piece.confidence))
    return words


def join_confidences(pieces: Sequence[str], confidences: Sequence[float]) -> list[float]:
    """Confidences of the words that `join_words` makes: the lowest of their pieces."""
    parts = [Segment(0.0, 0.0, piece, sure) for piece, sure in zip(pieces, confidences, strict=True)]
    return [word.confidence or 0.0 for word in join_segments(parts)]


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
