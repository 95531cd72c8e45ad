"""Pieces of words, joined: a piece that begins a word begins with ``▁``, as SentencePiece writes it."""

from collections.abc import Iterable, Sequence

from speech3.corpus.subwords import WORD_START
from speech3.hmm.times import Stretch


def are_pieces(vocabulary: Iterable[str]) -> bool:
    """Does a graph with these words write pieces?"""
    return any(word.startswith(WORD_START) for word in vocabulary)


def join_words(pieces: Sequence[str]) -> tuple[str, ...]:
    """Words from pieces; what comes before the first beginning of a word is a word too.

    >>> join_words(("▁hel", "lo", "▁world"))
    ('hello', 'world')
    """
    return tuple("".join(pieces).replace(WORD_START, " ").split())


def join_stretches(pieces: Sequence[Stretch]) -> list[Stretch]:
    """The same with times: a word lasts from its first piece's beginning to its last one's end.

    It is as sure as its least sure piece.
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
    """How sure the words are that `join_words` makes: as their least sure pieces."""
    parts = [Stretch(0.0, 0.0, piece, sure) for piece, sure in zip(pieces, confidences, strict=True)]
    return [word.confidence or 0.0 for word in join_stretches(parts)]


def _least(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else min(one, other)
