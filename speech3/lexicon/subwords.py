"""Segment words into SentencePiece pieces (Kudo 2018, "Subword regularization": the unigram model, best segmentation).

Kudo and Richardson 2018; https://github.com/google/sentencepiece. A piece that begins a word begins with ``▁``.
"""

import io
from collections.abc import Iterable, Mapping
from typing import Any

from speech3.errors import Speech3Error
from speech3.lexicon.pronounce import letters

WORD_START = "▁"
JOINER = "￭"  # where a letter of a spelled word is joined to the letters beside it (`speech3.lm.letters`)


def train_pieces(words: Mapping[str, int], vocabulary: int) -> bytes:
    """Train a unigram model; the same words give the same bytes.

    Parameters
    ----------
    words
        How often each word occurs in the text.
    vocabulary
        Number of pieces; there are fewer if the text has fewer.

    Raises
    ------
    Speech3Error
        There are more letters than `vocabulary`.
    """
    import sentencepiece

    model = io.BytesIO()
    text = (word for word in sorted(words) for _ in range(words[word]))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, model_type="unigram", vocab_size=vocabulary,
            character_coverage=1.0, hard_vocab_limit=False, normalization_rule_name="identity",
            split_by_unicode_script=False, split_by_number=False, num_threads=1, bos_id=-1, eos_id=-1,
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        needed = len(set("".join(words))) + 3
        raise Speech3Error(
            f"pieces={vocabulary}: SentencePiece cannot make this number of pieces"
            f" ({str(error).strip().splitlines()[-1]});"
            f" the text has {len(words)} words of {needed - 3} letters; try pieces={max(2 * needed, 30)}"
        ) from error
    return model.getvalue()


class Cutter:
    """Segments words so that every piece has a letter; a piece without one (``▁``, an apostrophe) joins its neighbour.

    Parameters
    ----------
    model
        As `train_pieces` returns it.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._known: dict[str, tuple[str, ...]] = {}

    def __call__(self, word: str) -> tuple[str, ...]:
        """Pieces of a word, which must have a letter."""
        if word not in self._known:
            self._known[word] = _voiced(self._processor.encode(word, out_type=str))
        return self._known[word]


def _voiced(pieces: Iterable[str]) -> tuple[str, ...]:
    joined: list[str] = []
    waiting = ""
    for piece in pieces:
        if letters(piece):
            joined.append(waiting + piece)
            waiting = ""
        elif joined:
            joined[-1] += piece
        else:
            waiting += piece
    return tuple(joined)


def single_letters(words: Iterable[str]) -> set[str]:
    """Pieces of one letter, at a word's start and inside, which can spell every word of these letters."""
    characters = {character for word in words for character in word if letters(character)}
    return characters | {WORD_START + character for character in characters}
