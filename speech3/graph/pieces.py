"""Joining pieces into words: a piece that begins a word starts with ``▁``, as SentencePiece writes it."""

from collections.abc import Iterable, Sequence

from speech3.alignment.times import Stretch
from speech3.lexicon.subwords import WORD_START


def are_pieces(vocabulary: Iterable[str]) -> bool:
    """Whether a graph with this vocabulary writes pieces instead of words."""
    return any(word.startswith(WORD_START) for word in vocabulary)


def join_words(pieces: Sequence[str]) -> tuple[str, ...]:
    """Words from pieces; pieces before the first one that begins a word form a word too.

    >>> join_words(("▁hel", "lo", "▁world"))
    ('hello', 'world')
    """
    return tuple("".join(pieces).replace(WORD_START, " ").split())


def join_stretches(pieces: Sequence[Stretch]) -> list[Stretch]:
    """Words with times from pieces with times: from the start of the first piece to the end of the last.

    The confidence of a word is the lowest of its pieces; None if it is unknown for a piece.
    """
    words: list[Stretch] = []
    for piece in pieces:
        label = piece.label.removeprefix(WORD_START)
        if words and label == piece.label:
            sure = _least(words[-1].confidence, piece.confidence)
            words[-1] = Stretch(words[-1].start_s, piece.end_s, words[-1].label + label, sure)
        else:
            words.append(Stretch(piece.start_s, piece.end_s, label, piece.confidence))
    return words


def join_confidences(pieces: Sequence[str], confidences: Sequence[float]) -> list[float]:
    """Confidences of the words that `join_words` makes: the lowest of their pieces."""
    parts = [Stretch(0.0, 0.0, piece, sure) for piece, sure in zip(pieces, confidences, strict=True)]
    return [word.confidence or 0.0 for word in join_stretches(parts)]


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
