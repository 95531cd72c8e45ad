"""Words spelled by graphemes: letters with their marks, digraphs that are given, tones and lengths on their letter.

A phone's name is its grapheme in lower case, with ``꞉`` if it is long, and its tone: ``á``, ``ng``, ``a꞉``, ``e³⁵``.
`plain_phone` removes tone and length: phones that are then the same share the root of their decision trees.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from speech3.data import APOSTROPHES, lower_case
from speech3.errors import DataError, MissingError, counted
from speech3.language.pronounce import ATTACHED, PRIMARY, SECONDARY, Phones, bare_letters, hangul_split
from speech3.runtime import read_utf8

LONG = "꞉"
_LENGTHS = frozenset("ː:꞉ˑ·")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_TONE_LETTERS = "⁰¹²³⁴⁵⁶⁷⁸⁹˥˦˧˨˩꜀꜁꜂꜃꜄꜅꜆꜇꜈꜉꜊꜋꜌꜍꜎꜏꜐꜑"
# Acute, grave, circumflex, caron, macron, double acute and grave, hook above, vertical lines, contours: on vowels.
_TONE_MARKS = frozenset("\u0301\u0300\u0302\u030c\u0304\u030b\u030f\u0309\u030d\u1dc4\u1dc5\u1dc6\u1dc7\u1dc8\u1dc9")
_TONE_CLASSES = (107, 122)  # Unicode's combining classes of the tones of Thai and Lao, which are on consonants
_VOWELS = frozenset("aeiouyæøœɐɑɒɔəɘɛɜɞɤɨɪɯɵɶɚɝʉʊʌʏıаеиоуыэюяіїєёөүұәαεηιουω")
_ON_THE_LETTER_BEFORE = frozenset("ʰʱʷʲˠˤ")
_MIN_APOSTROPHES = 0.01  # of all letters; in the English of minilibri 0.0016, where they are silent
# Letters that often write a similar sound, likeliest first.
_LIKE = {
    "q": "k", "x": "ks", "c": "ks", "z": "s", "w": "vu", "v": "wfb", "f": "pv", "y": "ij", "j": "yi", "h": "x",
    "g": "k", "k": "cg", "b": "pv", "p": "bf", "d": "t", "t": "d", "r": "l", "l": "r", "m": "n", "n": "m",
    "u": "ow", "o": "u", "i": "ey", "e": "i", "ə": "ea", "ŋ": "n", "ʃ": "s", "ʒ": "z", "θ": "t", "ð": "d",
    "ß": "s", "ɣ": "g", "β": "b", "χ": "x", "ʔ": "'", "þ": "t", "ы": "и", "э": "е", "щ": "ш", "ц": "с", "ф": "п",
}  # fmt: skip


@dataclass(frozen=True)
class Graphemes:
    """How words are spelled."""

    # Graphemes of several characters (or an apostrophe), which are one phone each; the longest match is taken. A
    # vowel that is written twice is the long vowel.
    given: tuple[str, ...] = ()
    apostrophe: bool = False  # is an apostrophe a letter?
    language: str = ""  # its code, for the rules of lower case; empty if it is not known
    _known: dict[str, tuple[Phones, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, word: str) -> Phones:
        """The phones of a word; none if it has no letter."""
        return self._cut(word)[0]

    def silent(self, word: str) -> str:
        """The characters of a word that have no sound."""
        return self._cut(word)[1]

    def parts(self, word: str) -> tuple[str, ...]:
        """The word in parts of one grapheme each, as it is written; a mark or silent character is in its neighbour's.

        >>> Graphemes(given=("ng",)).parts("Ng'anyá")
        ("Ng'", 'a', 'n', 'y', 'á')
        """
        text = unicodedata.normalize("NFC", word)
        low = lower_case(text, self.language)
        low = low if len(low) == len(text) else text
        found: list[str] = []
        place = 0
        while place < len(text):
            match = self._matching.match(low, place) if self._matching else None
            part = text[place : place + (len(match.group()) if match else 1)]
            place += len(part)
            if found and (not self(found[-1]) or len(self(found[-1] + part)) == len(self(found[-1]))):
                found[-1] += part
            else:
                found.append(part)
        return tuple(found)

    @cached_property
    def _matching(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.given, key=lambda grapheme: (-len(grapheme), grapheme))
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def _cut(self, word: str) -> tuple[Phones, str]:
        if word not in self._known:
            self._known[word] = self._cut_afresh(_folded(word, self.language))
        return self._known[word]

    def _cut_afresh(self, text: str) -> tuple[Phones, str]:
        found: list[str] = []
        silent = ""
        place = 0
        while place < len(text):
            match = self._matching.match(text, place) if self._matching else None
            grapheme = match.group() if match else text[place]
            place += len(grapheme)
            if match:
                found.append(_name(grapheme))
            elif grapheme == "'" and self.apostrophe:
                found.append(grapheme)
            elif not _attach(found, grapheme):
                if unicodedata.category(grapheme)[0] in "LM" and grapheme not in PRIMARY + SECONDARY:
                    found.append(grapheme)
                else:
                    silent += grapheme
        return tuple(found), silent


def _folded(word: str, language: str = "") -> str:
    """In lower case, composed (NFC), Hangul split into its letters, one kind of apostrophe.

    The two forms of sigma, and i with and without the dot that Lithuanian keeps below accents, sound alike.
    """
    text = unicodedata.normalize("NFD", lower_case(word, language).replace("ς", "σ"))
    text = unicodedata.normalize("NFC", re.sub("(?<=[ij])(\u0328?)\u0307", r"\1", text))
    return "".join("'" if c in APOSTROPHES else c for c in hangul_split(text))


def _name(grapheme: str) -> str:
    """The name of a given grapheme: that of a long vowel if it is one vowel twice."""
    twice = len(grapheme) == 2 and grapheme[0] == grapheme[1] and _is_vowel(grapheme[0])
    return grapheme[0] + LONG if twice else grapheme


def _attach(found: list[str], character: str) -> bool:
    """Put a mark, a length or a tone on the letter that it belongs to; False if it is none of these."""
    mark = unicodedata.category(character)[0] == "M" and unicodedata.combining(character) in ATTACHED
    if mark or (character in _ON_THE_LETTER_BEFORE and found):
        if found:
            letter = found[-1].rstrip(LONG)
            found[-1] = unicodedata.normalize("NFC", letter + character) + found[-1][len(letter) :]
        return True
    if character in _LENGTHS and found:
        found[-1] += "" if found[-1].endswith(LONG) else LONG
        return True
    tone = character.translate(_SUPERSCRIPTS)
    vowel = next((place for place in reversed(range(len(found))) if _is_vowel(found[place])), None)
    if tone not in _TONE_LETTERS or vowel is None:
        return False
    found[vowel] += tone
    return True


def _is_vowel(phone: str) -> bool:
    return unicodedata.normalize("NFD", phone)[:1] in _VOWELS


def plain_phone(phone: str) -> str:
    """A phone without its tone and length; a vowel without the accents that may write them.

    >>> " ".join(plain_phone(phone) for phone in ("á", "a꞉", "e³⁵", "ẹ́", "š", "ã"))
    'a a e ẹ š ã'
    """
    text, marks = unicodedata.normalize("NFD", phone), phone_marks(phone)
    return unicodedata.normalize("NFC", "".join(c for c in text if c not in marks)) or phone


def phone_marks(phone: str) -> frozenset[str]:
    """The marks of tone and length of a phone, which `plain_phone` removes."""
    text = unicodedata.normalize("NFD", phone)
    accents = _TONE_MARKS if text[:1] in _VOWELS else ()
    return frozenset(
        c
        for c in text[1:]
        if c == LONG or c in _TONE_LETTERS or c in accents or unicodedata.combining(c) in _TONE_CLASSES
    )


def read_graphemes(path: Path) -> tuple[str, ...]:
    """Read one grapheme a line; what follows a space is a remark.

    Raises Speech3Error: the file cannot be read, or has no line.
    """
    if not path.is_file():
        raise MissingError(f"{path}: no such file; set graphemes=FILE, one grapheme a line, such as ng")
    found = tuple(_folded(line.split()[0]) for line in read_utf8(path).splitlines() if line.strip())
    if not found:
        raise DataError(f"{path}: is empty; write one grapheme a line, such as ng, or leave graphemes= out")
    return tuple(dict.fromkeys(found))


def uses_apostrophes(counts: Mapping[str, int]) -> bool:
    """Are apostrophes within words so frequent that they are a sound, not a sign that something is left out?

    Those that are letters in Unicode (U+02BB, U+02BC) always are a sound.
    """
    apostrophes = letters = 0
    for word, count in counts.items():
        if any(character in APOSTROPHES and character.isalpha() for character in word):
            return True
        apostrophes += count * _folded(word).strip("'").count("'")
        letters += count * sum(character.isalpha() for character in word)
    return apostrophes > _MIN_APOSTROPHES * letters


def near_letters(phones: Iterable[str], trained: Mapping[str, int]) -> dict[str, Phones]:
    """For each phone one that has its own model, or several: itself, or what it is most likely to sound like.

    In this order: without tone and length; without any mark (``ö``: ``o``); the parts of a digraph; the letter in its
    Unicode name (``ɓ``, B WITH HOOK: ``b``); a letter that often writes a similar sound; the most frequent vowel or
    consonant.

    `trained`: how often each phone that has its own model occurs.
    """
    return {phone: _near(phone, trained) for phone in phones}


def _near(phone: str, trained: Mapping[str, int]) -> Phones:
    if phone in trained:
        return (phone,)
    by_count = sorted(trained, key=lambda other: (-trained[other], other))
    for simpler in (plain_phone, bare_letters):
        if simpler(phone) in trained:
            return (simpler(phone),)
        if alike := [other for other in by_count if simpler(other) == simpler(phone) != ""]:
            return (alike[0],)
    if len(letters := bare_letters(phone)) > 1:
        return tuple(part for letter in letters for part in _near(letter, trained))
    named = [letter for letter in (_named(letters), *_LIKE.get(letters, "")) if letter in trained]
    same_kind = [other for other in by_count if _is_vowel(other) == _is_vowel(phone)]
    return tuple((named or same_kind or by_count)[:1])


def _named(letter: str) -> str:
    """The lower-case letter in the Unicode name of a variant: ``ɓ`` is LATIN SMALL LETTER B WITH HOOK; else empty."""
    name = unicodedata.name(letter, "") if letter else ""
    match = re.fullmatch(r"(\w+ SMALL LETTER )(?:(?:[A-Z]+ )*)?([A-Z])(?: WITH .*)?", name)
    try:
        return unicodedata.lookup(f"{match[1]}{match[2]}").lower() if match else ""
    except KeyError:
        return ""


def silent_characters(counts: Mapping[str, int], spell: Graphemes) -> str:
    """Describe what has no sound in the words: punctuation and digits, with how often and in what words.

    Returns: empty if there is none.
    """
    marks, marked, numbers = Counter[str](), Counter[str](), Counter[str]()
    for word, count in counts.items():
        silent = spell.silent(word)
        for mark in {character for character in silent if not character.isdigit()}:
            marks[mark] += count
            marked[word] += count
        if any(character.isdigit() for character in silent):
            numbers[word] += count
    where = ", ".join(f"{mark} in {counted(marks[mark], 'word')}" for mark in _commonest(marks))
    punctuation = f"{where}, as {_quoted(marked)}"
    digits = f"digits in {counted(numbers.total(), 'word')}, as {_quoted(numbers)}: write numbers as words"
    return "; ".join([punctuation] * bool(marks) + [digits] * bool(numbers))


def _quoted(words: Mapping[str, int]) -> str:
    return ", ".join(_commonest(words))


def _commonest(counts: Mapping[str, int], most: int = 3) -> Sequence[str]:
    return sorted(counts, key=lambda key: (-counts[key], key))[:most]
