"""Joining pieces into words.

A piece that begins a word starts with ``▁``, as SentencePiece writes it; in a vocabulary with such pieces, all others
continue a word. In a vocabulary of words and letters, letters are joined where they have ``￭`` (`speech3.lm.letters`).
"""

from collections.abc import Iterable, Sequence

from speech3.alignment.times import Segment
from speech3.lexicon.subwords import JOINER, WORD_START


def mark_of(vocabulary: Iterable[str]) -> str:
    """The mark of the pieces in a vocabulary, ``▁`` or ``￭``; empty if it consists of whole words."""
    marks = (JOINER if word.startswith(JOINER) else WORD_START * word.startswith(WORD_START) for word in vocabulary)
    return next(filter(None, marks), "")


def are_pieces(vocabulary: Iterable[str]) -> bool:
    """Whether a graph with this vocabulary writes pieces instead of words, or letters beside words."""
    return mark_of(vocabulary) != ""


def continues(unit: str, mark: str) -> bool:
    """Whether a unit of a vocabulary with this mark belongs to the same word as the one before it."""
    return unit.startswith(JOINER) if mark == JOINER else not unit.startswith(mark)


def bare(unit: str) -> str:
    """The letters of a unit, without marks."""
    return unit.removeprefix(WORD_START).strip(JOINER)


def join_words(pieces: Sequence[str], mark: str = WORD_START) -> tuple[str, ...]:
    """Words from pieces of a vocabulary with this mark; pieces before the first start of a word form a word, too.

    >>> join_words(("▁hel", "lo", "▁world"))
    ('hello', 'world')
    >>> join_words(("hello", "w￭", "￭o￭", "￭r￭", "￭l￭", "￭d"), "￭")
    ('hello', 'world')
    """
    return tuple(word.label for word in join_segments([Segment(0.0, 0.0, piece, None) for piece in pieces], mark))


def join_segments(pieces: Sequence[Segment], mark: str = WORD_START) -> list[Segment]:
    """Words with times from pieces with times: from the start of the first piece to the end of the last.

    The confidence of a word is the lowest of its pieces; None if it is unknown for a piece.
    """
    words: list[Segment] = []
    for piece in pieces:
        label = bare(piece.label)
        if words and continues(piece.label, mark):
            confidence = _least(words[-1].confidence, piece.confidence)
            words[-1] = Segment(words[-1].start_s, piece.end_s, words[-1].label + label, confidence)
        else:
            words.append(Segment(piece.start_s, piece.end_s, label, piece.confidence))
    return words


def join_confidences(pieces: Sequence[str], confidences: Sequence[float], mark: str = WORD_START) -> list[float]:
    """Confidences of the words that `join_words` makes: the lowest of their pieces."""
    parts = [Segment(0.0, 0.0, piece, confidence) for piece, confidence in zip(pieces, confidences, strict=True)]
    return [word.confidence or 0.0 for word in join_segments(parts, mark)]


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
