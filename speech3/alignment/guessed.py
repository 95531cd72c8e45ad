"""Guess pronunciations, in a model's phones, of words that its lexicon lacks: with espeak-ng, or from their letters."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speech3.alignment.oov import has_phones
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.io.atomic import write_text
from speech3.lexicon.espeak import voice_of
from speech3.lexicon.guess import from_spelling, guess
from speech3.lexicon.lexicon import Lexicon, Pronunciation
from speech3.lexicon.pronounce import Phones

_ITS_LEXICON = "the model's lexicon"


@dataclass(frozen=True)
class Guesses:
    """Guessed pronunciations of words.

    Attributes
    ----------
    pronunciations
        With phones that are not marked with positions in the word; a word may have several.
    how
        How they were guessed, as text for messages.
    unpronounced
        Words without a pronunciation, with the reasons.
    """

    pronunciations: tuple[Pronunciation, ...]
    how: str
    unpronounced: Mapping[str, str]


def by_espeak(hmm: Hmm, words: Sequence[str], counts: Mapping[str, int], lang: str) -> Guesses:
    """Pronunciations by espeak-ng, converted to the model's phones as learnt from the words of its lexicon.

    Parameters
    ----------
    counts
        How often each word of the text, known or not, occurs: it is an error if most of the text cannot be pronounced.
        Empty: not checked.
    lang
        espeak-ng's code of the language.

    Raises
    ------
    Speech3Error
        espeak-ng is not installed, does not know the language, or pronounces too few words of the lexicon; or most of
        the text cannot be pronounced.
    """
    if not words:
        voice_of(lang)  # reject an unknown code, although it is not used
        return Guesses((), "", {})
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{lang}-lexicon.txt"
        write_text(path, "".join(_plain_lines(hmm.lexicon)))
        try:
            found = guess(words, counts, path, lang, spelled=False)
        except Speech3Error as error:
            raise Speech3Error(str(error).replace(str(path), _ITS_LEXICON)) from error
    return _guesses(hmm, found.guessed, f"by espeak-ng ({lang})", found.unpronounced)


def by_letters(hmm: Hmm, words: Sequence[str]) -> Guesses:
    """Pronunciations from the letters, as learnt from the words of the lexicon.

    Raises
    ------
    Speech3Error
        The lexicon has too few words to learn from.
    """
    table: dict[str, list[Phones]] = {}
    for pron in hmm.lexicon.pronunciations:
        if not set(hmm.lexicon.noise_phones).intersection(pron.phones):
            table.setdefault(pron.word, []).append(_plain(hmm.lexicon, pron))
    found, wrong = from_spelling(words, table, _ITS_LEXICON)
    how = f"from their letters (in held-out words of the lexicon, {wrong:.0%} of the phones are wrong)"
    reasons = {word: "has a letter that no word of the lexicon has" for word, phones in found.items() if not phones}
    return _guesses(hmm, {word: [phones] for word, phones in found.items() if phones}, how, reasons)


def _guesses(hmm: Hmm, table: Mapping[str, Sequence[Phones]], how: str, reasons: Mapping[str, str]) -> Guesses:
    guessed = [Pronunciation(word, tuple(phones)) for word, variants in table.items() for phones in variants]
    kept = tuple(pron for pron in guessed if has_phones(pron, hmm.lexicon))
    left = set(table) - {pron.word for pron in kept}
    why = "has a phone that the model lacks"
    return Guesses(kept, how, {**reasons, **dict.fromkeys(sorted(left), why)})


def _plain(lexicon: Lexicon, pron: Pronunciation) -> Phones:
    return tuple(lexicon.base_phone(phone) for phone in pron.phones)


def _plain_lines(lexicon: Lexicon) -> Iterable[str]:
    for pron in lexicon.pronunciations:
        yield f"{pron.word} {' '.join(_plain(lexicon, pron))}\n"
