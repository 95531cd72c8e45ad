"""Words that the model's lexicon lacks, and a model whose lexicon knows more words."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace

from speech3.errors import Speech3Error
from speech3.hmm.lexicon import Lexicon, Pronunciation, Silences, mark_positions
from speech3.hmm.model import Hmm


def unknown_words(texts: Mapping[str, str | None], lexicon: Lexicon) -> dict[str, list[str]]:
    """The utterances of each word outside the lexicon, once for each time it is said; the most frequent word first."""
    found: dict[str, list[str]] = {}
    for utterance, text in texts.items():
        for word in (text or "").split():
            if word not in lexicon.by_word:
                found.setdefault(word, []).append(utterance)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def with_words(hmm: Hmm, pronunciations: Iterable[Pronunciation], source: str) -> Hmm:
    """The model with pronunciations, without places in the word, of words that it lacks; others are passed over.

    Where silences were estimated, one is as probable after a new word as after the usual word.

    Raises
    ------
    Speech3Error
        A phone is none of the model's; `source`, the word and the phone are named.
    """
    lexicon = hmm.lexicon
    new = tuple(pron for pron in pronunciations if pron.word not in lexicon.by_word)
    if not new:
        return hmm
    new = _in_phones_of(lexicon, new, source)
    return replace(hmm, lexicon=replace(lexicon, pronunciations=lexicon.pronunciations + new))


def with_pronunciations(hmm: Hmm, pronunciations: Iterable[Pronunciation], source: str) -> Hmm:
    """The same, but words that the model knows are pronounced in the new ways alone."""
    new, lexicon = tuple(pronunciations), hmm.lexicon
    words = {pron.word for pron in new}
    kept = tuple(pron for pron in lexicon.pronunciations if pron.word not in words)
    phones = lexicon.phones  # which the tree numbers, used or not
    new = _in_phones_of(lexicon, new, source)
    return replace(hmm, lexicon=replace(lexicon, pronunciations=kept + new, inventory=phones))


def sayable(pron: Pronunciation, lexicon: Lexicon) -> bool:
    """Are these, without places in the word, phones that the model has at such places?"""
    (marked,) = _marked((pron,), lexicon)
    return all(phone in lexicon.phone_ids for phone in marked.phones)


def _marked(new: tuple[Pronunciation, ...], lexicon: Lexicon) -> tuple[Pronunciation, ...]:
    if not lexicon.position_dependent:
        return new
    return mark_positions(replace(lexicon, pronunciations=new, position_dependent=False)).pronunciations


def _in_phones_of(lexicon: Lexicon, new: tuple[Pronunciation, ...], source: str) -> tuple[Pronunciation, ...]:
    new = _marked(new, lexicon)
    for pron in new:
        if strange := [phone for phone in pron.phones if phone not in lexicon.phone_ids]:
            known = ", ".join(dict.fromkeys(lexicon.base_phone(phone) for phone in lexicon.phones))
            raise Speech3Error(
                f"{source}: {pron.word}: {lexicon.base_phone(strange[0])} is no phone of the model"
                f"{' at this place in a word' if lexicon.position_dependent else ''}; it has {known}"
            )
    if lexicon.end:  # silence_prob is that of the sentence's beginning alone
        usual = Silences(statistics.median(lexicon.silences(pron).after for pron in lexicon.pronunciations))
        new = tuple(replace(pron, silences=pron.silences or usual) for pron in new)
    return new
