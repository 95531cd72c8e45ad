"""Word pieces, and a text as one array of the numbers of its words or pieces, for a neural language model.

Pieces are SentencePiece's (Kudo 2018, "Subword regularization": the unigram model, best segmentation;
https://github.com/google/sentencepiece). A piece that begins a word begins with ``▁``.

Axes: V words of the text, P units of these words one after the other, T words of the text, or its units.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speech3.errors import DataError, MismatchError, SettingError, counted, listed
from speech3.language.kneser_ney import Numbers, read_tokens
from speech3.language.ngrams import BOS, EOS, UNKNOWN
from speech3.language.pronounce import letters
from speech3.language.train_lm import read_words

WORD_START = "▁"
BOS_UNIT, EOS_UNIT, UNKNOWN_UNIT = 0, 1, 2
SPECIAL = (BOS, EOS, UNKNOWN)  # the first units
# Words are cut as they are written; every letter of the text is covered, and the same text makes the same model.
_TRAINING: dict[str, Any] = {
    "model_type": "unigram",
    "character_coverage": 1.0,
    "hard_vocab_limit": False,
    "normalization_rule_name": "identity",
    "split_by_unicode_script": False,
    "split_by_number": False,
    "num_threads": 1,
    "bos_id": -1,
    "eos_id": -1,
    "minloglevel": 2,
}


def train_pieces(words: Mapping[str, int], vocabulary: int) -> bytes:
    """Train a unigram model; the same words make the same bytes.

    `vocabulary`: number of pieces; there are fewer if the text has fewer.
    Raises Speech3Error: there are more letters than `vocabulary`.
    """
    import sentencepiece

    model = io.BytesIO()
    text = (word for word in sorted(words) for _ in range(words[word]))
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, vocab_size=vocabulary, **_TRAINING
        )
    except RuntimeError as error:
        needed = len(set("".join(words))) + 3
        raise SettingError(
            f"pieces={vocabulary}: SentencePiece cannot make this number of pieces"
            f" ({str(error).strip().splitlines()[-1]});"
            f" the text has {counted(len(words), 'word')} of {needed - 3} letters; try pieces={max(2 * needed, 30)}"
        ) from error
    return model.getvalue()


class Cutter:
    """Segments words so that every piece has a letter; one without (``▁``, an apostrophe) joins its neighbour."""

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._known: dict[str, tuple[str, ...]] = {}

    def __call__(self, word: str) -> tuple[str, ...]:
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


@dataclass(frozen=True, eq=False)
class UnitText:
    """A text in units."""

    units: tuple[str, ...]  # the vocabulary, as in `NeuralLm`
    pieces: bytes  # SentencePiece's model; empty if the units are words
    unit_T: np.ndarray  # int32: every sentence, `<s>` first and `</s>` last
    # `words`, `unknown`: number of words, and of those outside the vocabulary
    words: int
    unknown: int

    @property
    def count_V(self) -> np.ndarray:
        """How often each unit follows another: not at all for `<s>`."""
        counts = np.bincount(self.unit_T, minlength=len(self.units))
        counts[BOS_UNIT] = 0
        return counts


def read_units(texts: Sequence[Path], pieces: int = 0, vocabulary: Path | None = None) -> UnitText:
    """Read texts of one sentence per line.

    `pieces`: number of pieces to train and to cut the words into; 0: the units are words.
    `vocabulary`: word list or lexicon; other words count as `<unk>`. None: the words of the text.
    Raises Speech3Error: there is no sentence, or no word of the vocabulary in them; both pieces and a vocabulary are
    given; also what `read_tokens` raises.
    """
    source = ", ".join(map(str, texts))
    if vocabulary and pieces:
        raise SettingError(f"{vocabulary}: a vocabulary is for words, but lm.pieces={pieces}; remove one of them")
    numbers = Numbers(read_words(vocabulary) if vocabulary else None)
    blocks = list(read_tokens(texts, numbers))
    if not blocks:
        raise DataError(f"{source}: no sentences; pass a text with one sentence per line")
    token_T, words = np.concatenate(blocks), list(numbers)
    count_V = np.bincount(token_T, minlength=len(words))
    total = int(count_V.sum() - count_V[numbers[EOS]])
    unknown = int(count_V[numbers[UNKNOWN]]) if UNKNOWN in numbers else 0
    if unknown == total:
        known = [word for word in words if word not in SPECIAL]
        raise MismatchError(
            f"{vocabulary or source}: none of the words of {source} is among its {len(known):,} ({listed(known, 3)});"
            " spell both the same way (upper or lower case?)"
        )
    real = {word: int(count) for word, count in zip(words, count_V, strict=True) if word not in SPECIAL}
    if pieces:
        model = train_pieces(real, pieces)
        cutter = Cutter(model)
        parts = {word: cutter(word) for word in real}
        # Letters, too, for words that the text lacks.
        units = (*SPECIAL, *sorted({piece for cut in parts.values() for piece in cut} | single_letters(real)))
    else:
        model, parts, units = b"", {word: (word,) for word in real}, (*SPECIAL, *real)
    unit_of = {unit: number for number, unit in enumerate(units)}
    table = [[unit_of[part] for part in parts.get(word, (word,))] or [UNKNOWN_UNIT] for word in words]
    table[numbers[EOS]] = [EOS_UNIT, BOS_UNIT]
    unit_T = np.roll(_expanded(token_T, table), 1)  # the last <s> begins the first sentence
    return UnitText(units, model, unit_T, total, unknown)


def _expanded(token_T: np.ndarray, table: Sequence[Sequence[int]]) -> np.ndarray:
    """Replace each token by the numbers of its row."""
    length_V = np.array([len(row) for row in table])
    unit_P = np.array([unit for row in table for unit in row], np.int32)
    first_V, length_T = np.cumsum(length_V) - length_V, length_V[token_T]
    begin_T = np.cumsum(length_T) - length_T
    return unit_P[np.repeat(first_V[token_T] - begin_T, length_T) + np.arange(length_T.sum())]
