"""Pronunciations for words that have none: from espeak-ng's symbols or from letters, and replacements of rare phones.

Pure functions. A pronunciation is a tuple of phones; an empty one means that the word cannot be pronounced.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from speech3.corpus.letter_case import lowered

Phones = tuple[str, ...]

PRIMARY, SECONDARY = "ˈ", "ˌ"
_VOWELS = frozenset("aeiouyæøœɐɑɒɔəɘɛɜɞɤɨɪɯɵɶɚɝʉʊʌʏᵻᵿ")
_SWITCH = re.compile(r"\([a-z0-9-]+\)")  # espeak switches to the phones of another language
_TONES = {"ɜ": "3", "ɵ": "8"}  # espeak prints tones 3 and 8 as the vowels that these digits are in ASCII-IPA
# Marks that change the letter before them; others (Indic vowel signs, points of Arabic and Hebrew) are sounds.
ATTACHED = frozenset({1, 7, 9, 107, 122, *range(200, 241)})  # overlays, nukta, virama, tones of Thai and Lao, accents


def ipa_phones(symbols: Sequence[str], *, stress: bool = False) -> Phones:
    """Cut espeak's IPA symbols into phones.

    A diphthong, an affricate and a long vowel are one phone; a vowel with a consonant after it (``ɔːɹ``) is two, and a
    third vowel begins another (``aɪɚ``: ``aɪ ɚ``). A tone is a digit after its vowel (``ɑu2``). Stress is removed, or
    with `stress` put after its vowel (``ɑːˈ``); where it is distinctive (English), the vowel differs as well.

    Parameters
    ----------
    symbols
        As `espeak.pronounce` returns them.
    """
    phones: list[str] = []
    for symbol in symbols:
        bare = _SWITCH.sub("", symbol).replace("-", "")
        mark = bare[:1] if bare[:1] in (PRIMARY, SECONDARY) else ""
        found = _segments(bare.strip(PRIMARY + SECONDARY))
        if mark and stress and found:
            place = next((index for index, phone in enumerate(found) if phone[0] in _VOWELS), 0)
            found[place] += mark
        phones += found
    return tuple(phones)


def _segments(symbol: str) -> list[str]:
    symbol = unicodedata.normalize("NFD", symbol)
    tone = _tone(symbol)
    segments: list[str] = []
    for character in symbol[: len(symbol) - len(tone)]:
        previous = segments[-1] if segments else ""
        vowels = sum(c in _VOWELS for c in previous)
        if (previous and character not in _VOWELS and not character.isalpha()) or (
            previous and unicodedata.category(character) == "Lm"
        ):
            segments[-1] += character
        elif previous and (vowels == 1 if character in _VOWELS else not vowels):
            segments[-1] += character  # diphthong; affricate
        elif character.isalpha():
            segments.append(character)
    place = next((index for index, phone in enumerate(segments) if phone[0] in _VOWELS), len(segments) - 1)
    if segments and tone:
        segments[place] += "".join(_TONES.get(digit, digit) for digit in tone)
    return segments


def _tone(symbol: str) -> str:
    match = re.fullmatch(r".*?[^\W\d_].*?([0-9]+|(?<=[aeiouyəɛɔɨɯʊɑː])[ɜɵ])", symbol)
    return match[1] if match else ""


def spelled_out(symbols: Sequence[Sequence[str]], word: str) -> bool:
    """Did espeak name the letters one by one, as it does for a script that the language does not use?

    Parameters
    ----------
    symbols
        espeak's lists of symbols for `word`.
    """
    letters = sum(character.isalpha() for character in word)
    if any(character.isdigit() for character in word) or not letters:
        return False
    ideographs = any(unicodedata.category(character) == "Lo" for character in word)
    named = len(symbols) == letters >= 2 and not ideographs
    return named or sum(map(len, symbols)) > 3 * letters + 6


def read_in(symbols: Sequence[Sequence[str]]) -> str:
    """The language in which espeak pronounced a word from its beginning, if not the voice's own; else empty."""
    first = symbols[0][0] if symbols and symbols[0] else ""
    return first[1:-1] if _SWITCH.fullmatch(first) else ""


def letters(word: str) -> Phones:
    """Spell a word: each letter (grapheme), with the marks on it, is a phone; capitals become lower case.

    Digits, punctuation, apostrophes and hyphens are silent. Korean syllables are split into their letters.
    """
    text = lowered(word).replace("ς", "σ")
    text = "".join(unicodedata.normalize("NFD", c) if "가" <= c <= "힣" else c for c in text)
    found: list[str] = []
    for character in text:
        kind = unicodedata.category(character)
        if kind[0] == "M" and unicodedata.combining(character) in ATTACHED:
            if found:
                found[-1] += character
        elif kind[0] in "LM":
            found.append(character)
    return tuple(found)


def script(words: Iterable[str]) -> str:
    """The script of most letters of `words`: Latin, CJK, ...; ``no`` if none."""
    return next(iter(scripts(Counter(words))), "no")


def scripts(counts: Mapping[str, int]) -> dict[str, tuple[int, list[str]]]:
    """The scripts of words, that of most letters first: the first word of the letters' Unicode names.

    Japanese kana count as CJK, since they are written together; letters such as ``ʼ`` and ``ʰ`` belong to any script.

    Parameters
    ----------
    counts
        How often each word occurs.

    Returns
    -------
    For each script its number of letters, and the three most frequent words that have some.
    """
    letters, words = Counter[str](), dict[str, Counter[str]]()
    for word, count in counts.items():
        for character in word:
            if character.isalpha() and unicodedata.category(character) != "Lm":
                name = unicodedata.name(character, "?").split()[0]
                name = "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA") else name.capitalize()
                letters[name] += count
                words.setdefault(name, Counter())[word] += count
    ordered = sorted(letters, key=lambda name: (letters[name], name), reverse=True)
    return {name: (letters[name], sorted(words[name], key=lambda w: (-words[name][w], w))[:3]) for name in ordered}


def bare_letters(phone: str) -> str:
    """A phone's letters, without marks, lengths and tones."""
    return "".join(c for c in unicodedata.normalize("NFD", phone) if unicodedata.category(c) in ("Ll", "Lo", "Lt"))


def stand_ins(phones: Sequence[str], trained: Mapping[str, int]) -> dict[str, Phones]:
    """Replacements for phones that are not in training: the same phone with other marks, else its parts.

    ``é`` becomes ``e``, ``aː3`` becomes ``aː5``, a diphthong its two vowels.

    Parameters
    ----------
    trained
        How often each phone that has its own model occurs.

    Returns
    -------
    The replacement of each of `phones`; empty if no phone is similar.
    """
    alike: dict[str, str] = {}
    for phone in sorted(trained, key=lambda phone: (-trained[phone], phone)):
        alike.setdefault(bare_letters(phone), phone)
    table: dict[str, Phones] = {}
    for phone in dict.fromkeys(phones):
        if phone in trained:
            table[phone] = (phone,)
        elif (bare := bare_letters(phone)) in alike:
            table[phone] = (alike[bare],)
        else:
            parts = [alike.get(character, "") for character in bare]
            table[phone] = tuple(parts) if parts and all(parts) else ()
    return table


def replace_rare(
    pronunciations: Mapping[str, Sequence[Phones]],
    counts: Mapping[str, int],
    least: int,
    alike: Callable[[Sequence[str], Mapping[str, int]], dict[str, Phones]] = stand_ins,
) -> tuple[dict[str, list[Phones]], dict[str, Phones]]:
    """Replace phones with fewer than `least` occurrences in training, if similar phones exist.

    Parameters
    ----------
    counts
        How often each word occurs in the training transcripts.
    alike
        Finds the replacements of phones among those that are frequent enough.

    Returns
    -------
    The pronunciations, none for a word with a phone that cannot be trained or replaced; and what replaced each rare
    phone.
    """
    heard = Counter[str]()
    for word, variants in pronunciations.items():
        for phone in variants[0] if variants else ():
            heard[phone] += counts.get(word, 0)
    trained = {phone: count for phone, count in heard.items() if count >= least}
    table = alike(sorted(heard), trained)
    table |= {phone: (phone,) for phone, like in table.items() if not like and heard[phone]}
    result: dict[str, list[Phones]] = {}
    for word, variants in pronunciations.items():
        kept = [tuple(p for phone in v for p in table[phone]) for v in variants if all(table.get(ph) for ph in v)]
        result[word] = list(dict.fromkeys(kept))
    return result, {phone: like for phone, like in table.items() if like != (phone,)}
