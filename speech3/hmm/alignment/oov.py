"""Find out-of-vocabulary words, and add words to the lexicon of a model.

Guess pronunciations, in a model's phones, of words that its lexicon lacks: with espeak-ng, or from their letters.
"""

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speech3.errors import MismatchError, Speech3Error
from speech3.hmm.model import Hmm
from speech3.language import (
    LEAST_WORDS,
    Lexicon,
    Phones,
    Pronunciation,
    Silences,
    from_spelling,
    guess_pronunciations,
    mark_positions,
    voice_of,
)
from speech3.runtime import write_text

_ITS_LEXICON = "the model's lexicon"
_TOO_WRONG = 0.3  # share of phones; then an unknown word is better aligned as noise


def unknown_words(texts: Mapping[str, str | None], lexicon: Lexicon) -> dict[str, list[str]]:
    """The utterances of each out-of-vocabulary word, one entry per occurrence; the most frequent word first."""
    found: dict[str, list[str]] = {}
    for utterance, text in texts.items():
        for word in (text or "").split():
            if word not in lexicon.by_word:
                found.setdefault(word, []).append(utterance)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def with_new_words(hmm: Hmm, pronunciations: Iterable[Pronunciation], source: str) -> Hmm:
    """Add pronunciations of out-of-vocabulary words to a model; pronunciations of words that it has are ignored.

    If silence probabilities were estimated, silence after a new word is as probable as after the median pronunciation.

    `pronunciations`: with phones that are not marked with positions in the word.
    `source`: where they come from, for the error message.
    Raises Speech3Error: the model lacks a phone. The message names `source`, the word and the phone.
    """
    lexicon = hmm.lexicon
    new = tuple(pron for pron in pronunciations if pron.word not in lexicon.by_word)
    if not new:
        return hmm
    new = _in_phones_of(lexicon, new, source)
    return replace(hmm, lexicon=replace(lexicon, pronunciations=lexicon.pronunciations + new))


def with_pronunciations(hmm: Hmm, pronunciations: Iterable[Pronunciation], source: str) -> Hmm:
    """Like `with_new_words`, but the new pronunciations of words that the model has replace the old ones."""
    new, lexicon = tuple(pronunciations), hmm.lexicon
    words = {pron.word for pron in new}
    kept = tuple(pron for pron in lexicon.pronunciations if pron.word not in words)
    phones = lexicon.phones  # all that the tree has, including those that no pronunciation uses any more
    new = _in_phones_of(lexicon, new, source)
    return replace(hmm, lexicon=replace(lexicon, pronunciations=kept + new, inventory=phones))


def has_phones(pron: Pronunciation, lexicon: Lexicon) -> bool:
    """Whether the model has all phones of `pron` (not marked with positions), at these positions in words or others."""
    (marked,) = _marked((pron,), lexicon)
    return all(phone in lexicon.phone_ids for phone in marked.phones)


def _marked(new: tuple[Pronunciation, ...], lexicon: Lexicon) -> tuple[Pronunciation, ...]:
    """Mark phones with their position in the word, or with another one if the model lacks them there.

    A small corpus lacks many phones at some position; at another one they share the root of their trees with it.
    """
    if not lexicon.position_dependent:
        return new
    marked = mark_positions(replace(lexicon, pronunciations=new, position_dependent=False)).pronunciations
    known = lexicon.phone_ids

    def nearest(phone: str) -> str:
        other = (f"{lexicon.base_phone(phone)}_{place}" for place in "IEBS")
        return phone if phone in known else next((each for each in other if each in known), phone)

    return tuple(replace(pron, phones=tuple(map(nearest, pron.phones))) for pron in marked)


def _in_phones_of(lexicon: Lexicon, new: tuple[Pronunciation, ...], source: str) -> tuple[Pronunciation, ...]:
    new = _marked(new, lexicon)
    for pron in new:
        if strange := [phone for phone in pron.phones if phone not in lexicon.phone_ids]:
            sounds = (phone for phone in lexicon.phones if phone not in lexicon.silence_phones)
            known = ", ".join(dict.fromkeys(map(lexicon.base_phone, sounds)))
            raise MismatchError(
                f"{source}: {pron.word}: {lexicon.base_phone(strange[0])} is not a phone of the model; use its phones:"
                f" {known}"
            )
    if lexicon.end:  # silence_prob then applies to the beginning of the sentence only
        usual = Silences(statistics.median(lexicon.silences(pron).after for pron in lexicon.pronunciations))
        new = tuple(replace(pron, silences=pron.silences or usual) for pron in new)
    return new


@dataclass(frozen=True)
class GuessedPronunciations:
    """Guessed pronunciations of words."""

    # with phones that are not marked with positions in the word; a word may have several
    pronunciations: tuple[Pronunciation, ...]
    how: str  # how they were guessed, as text for messages
    unpronounced: Mapping[str, str]  # words without a pronunciation, with the reasons


NONE = GuessedPronunciations((), "", {})


def by_espeak(
    hmm: Hmm, words: Sequence[str], counts: Mapping[str, int], lang: str, kept: Path | None = None
) -> GuessedPronunciations:
    """Pronunciations by espeak-ng, converted to the model's phones as learnt from the words of its lexicon.

    If n-grams of the lexicon's letters with its phones are better on held-out words of it, by those.

    Parameters
    ----------
    counts
        How often each word of the text, known or not, occurs: it is an error if most of the text cannot be pronounced.
        Empty: not checked.
    lang
        espeak-ng's code of the language.
    kept
        A file to keep what was learnt from the lexicon in (`speech3.language.g2p`).

    Raises
    ------
    Speech3Error
        Espeak-ng is not installed, does not know the language, or pronounces too few words of the lexicon; or most of
        the text cannot be pronounced.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{lang}-lexicon.txt"
        try:
            if not words:
                voice_of(lang)  # reject an unknown code, although it is not used
                return NONE
            prons = hmm.lexicon.pronunciations
            write_text(path, "".join(f"{pron.word} {' '.join(_plain(hmm.lexicon, pron))}\n" for pron in prons))
            found = guess_pronunciations(words, counts, path, lang, spelled=False, kept=kept)
        except Speech3Error as error:  # of verbs, which have an option --lang and no key `lexicon`
            told = str(error).replace(str(path), _ITS_LEXICON).partition("; or set lexicon=graphemes")[0]
            raise error.restated(told.replace("lang=", "--lang ", 1)) from error
    how = found.by.replace(path.name, _ITS_LEXICON)
    return _guesses(hmm, found.guessed, how, found.unpronounced)


def by_letters(hmm: Hmm, words: Sequence[str], kept: Path | None = None) -> GuessedPronunciations:
    """Pronunciations from the letters, as learnt from the words of the lexicon; `kept` as for `by_espeak`.

    Raises Speech3Error: the lexicon has too few words to learn from.
    """
    return _by_letters(hmm, words, kept)[0]


def by_lexicon(hmm: Hmm, words: Sequence[str], kept: Path | None = None) -> GuessedPronunciations:
    """As `by_letters`; none if the lexicon has too few words (hundreds), or a third of the phones are wrong."""
    if len(hmm.lexicon.by_word) < LEAST_WORDS:
        return NONE
    try:
        guesses, wrong = _by_letters(hmm, words, kept)
    except Speech3Error:  # most of its words are noises, or have no letters
        return NONE
    return guesses if wrong <= _TOO_WRONG else NONE


def _by_letters(hmm: Hmm, words: Sequence[str], kept: Path | None) -> tuple[GuessedPronunciations, float]:
    table: dict[str, list[Phones]] = {}
    for pron in hmm.lexicon.pronunciations:
        if not set(hmm.lexicon.noise_phones).intersection(pron.phones):
            table.setdefault(pron.word, []).append(_plain(hmm.lexicon, pron))
    found, wrong = from_spelling(words, table, _ITS_LEXICON, kept)
    how = f"from the spelling (in held-out words of the lexicon, {wrong:.0%} of the phones are wrong)"
    reasons = {word: "has a letter that no word of the lexicon has" for word, phones in found.items() if not phones}
    return _guesses(hmm, {word: [phones] for word, phones in found.items() if phones}, how, reasons), wrong


def _guesses(
    hmm: Hmm, table: Mapping[str, Sequence[Phones]], how: str, reasons: Mapping[str, str]
) -> GuessedPronunciations:
    guessed = [Pronunciation(word, tuple(phones)) for word, variants in table.items() for phones in variants]
    kept = tuple(pron for pron in guessed if has_phones(pron, hmm.lexicon))
    left = set(table) - {pron.word for pron in kept}
    why = "has a phone that the model lacks"
    return GuessedPronunciations(kept, how, {**reasons, **dict.fromkeys(sorted(left), why)})


def _plain(lexicon: Lexicon, pron: Pronunciation) -> Phones:
    return tuple(lexicon.base_phone(phone) for phone in pron.phones)
