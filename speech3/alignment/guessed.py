"""Pronunciations, in a model's phones, of words that its lexicon lacks: by espeak-ng, or by their letters."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from speech3.alignment.oov import sayable
from speech3.errors import Speech3Error
from speech3.hmm.model import Hmm
from speech3.io.atomic import write_text
from speech3.lexicon.espeak import voice_of
from speech3.lexicon.guess import from_spelling, guess
from speech3.lexicon.lexicon import SPOKEN_NOISE, Lexicon, Pronunciation
from speech3.lexicon.pronounce import Phones

_ITS_LEXICON = "the model's lexicon"


@dataclass(frozen=True)
class Guesses:
    """What was found out about words.

    Attributes
    ----------
    pronunciations
        Without places in the word; a word may have several.
    how
        Where they are from, for people.
    unpronounced
        Words without, and why.
    """

    pronunciations: tuple[Pronunciation, ...]
    how: str
    unpronounced: Mapping[str, str]


def by_espeak(hmm: Hmm, words: Sequence[str], counts: Mapping[str, int], lang: str) -> Guesses:
    """As espeak-ng says the words, in phones that are learnt from those of the lexicon.

    Parameters
    ----------
    counts
        How often each word of the text, known or not, is said: if most of them cannot be, that is an error. Empty: no
        matter.
    lang
        espeak-ng's code of the language.

    Raises
    ------
    Speech3Error
        espeak-ng is not installed or does not know the language; the lexicon shares too few words with it.
    """
    if not words:
        voice_of(lang)  # an unknown code is a mistake even where it would not be used
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
    """As the letters of the lexicon's words are pronounced.

    Raises
    ------
    Speech3Error
        The lexicon has too few words to learn from.
    """
    table: dict[str, list[Phones]] = {}
    for pron in hmm.lexicon.pronunciations:
        if SPOKEN_NOISE not in pron.phones:
            table.setdefault(pron.word, []).append(_plain(hmm.lexicon, pron))
    found, wrong = from_spelling(words, table, _ITS_LEXICON)
    how = f"from their letters (of words that the lexicon knows, {wrong:.0%} of the phones come out wrong)"
    reasons = {word: "has a letter that no word of the lexicon has" for word, phones in found.items() if not phones}
    return _guesses(hmm, {word: [phones] for word, phones in found.items() if phones}, how, reasons)


def _guesses(hmm: Hmm, table: Mapping[str, Sequence[Phones]], how: str, reasons: Mapping[str, str]) -> Guesses:
    guessed = [Pronunciation(word, tuple(phones)) for word, variants in table.items() for phones in variants]
    kept = tuple(pron for pron in guessed if sayable(pron, hmm.lexicon))
    left = set(table) - {pron.word for pron in kept}
    why = "has a sound that the model does not know at that place in a word"
    return Guesses(kept, how, {**reasons, **dict.fromkeys(sorted(left), why)})


def _plain(lexicon: Lexicon, pron: Pronunciation) -> Phones:
    return tuple(lexicon.base_phone(phone) for phone in pron.phones)


def _plain_lines(lexicon: Lexicon) -> Iterable[str]:
    for pron in lexicon.pronunciations:
        yield f"{pron.word} {' '.join(_plain(lexicon, pron))}\n"
