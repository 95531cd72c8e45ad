"""Normalisation of transcripts: letter case, punctuation, Unicode composition, phone classes."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from speech3.corpus.letter_case import lowered
from speech3.corpus.phone_classes import fold
from speech3.errors import Speech3Error
from speech3.io.unicode_form import one_form


class _Punctuation(dict[int, str]):
    """Table for str.translate: Unicode punctuation becomes a space, apostrophes are left to `_punct`."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        value = "'" if letter in "'\u2019" else letter
        if unicodedata.category(letter).startswith("P") and value != "'":
            value = " "
        self[code] = value
        return value


_PUNCTUATION = _Punctuation()
_LOOSE_APOSTROPHE = re.compile(r"(?<!\w)'|'(?!\w)")


def _punct(text: str) -> str:
    return _LOOSE_APOSTROPHE.sub(" ", text.translate(_PUNCTUATION))


# Characters typed as an apostrophe. U+02BB and U+02BC are letters in Unicode, so words may begin or end with them.
APOSTROPHES = frozenset("'’‘`´′ꞌʼʻ")
_WITHIN_WORDS = "'-:·"
_MAYBE_LETTERS = "':·"  # at the edge of a word: an ejective, a long vowel; or punctuation
_SET_APART = re.compile(r"\[[^\]]*\]|<[^>]*>|\{[^}]*\}")  # [laughter], <noise>


class _Marks(dict[int, str]):
    """Table for str.translate: apostrophes become ASCII, punctuation outside `_WITHIN_WORDS` a space."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        value = letter
        if letter in APOSTROPHES and unicodedata.category(letter) != "Lm":
            value = "'"
        elif unicodedata.category(letter).startswith("P") and letter not in _WITHIN_WORDS:
            value = " "
        self[code] = value
        return value


_MARKS = _Marks()


def plain_words(text: str, graphemes: Sequence[str] = (), language: str = "") -> str:
    """The words of a transcript in ordinary spelling: in lower case, without punctuation, composed (NFC).

    Apostrophes, hyphens, colons and middle dots stay between letters, where orthographies use them; an apostrophe there
    becomes ASCII. What is in square, angle or curly brackets becomes one word in brackets: ``[laughs loudly]`` becomes
    ``[laughs_loudly]``. NFKC is not used, since it would turn the sign of aspiration, U+02B0, into ``h``.

    Parameters
    ----------
    graphemes
        As `speech3.lexicon.graphemes.read_graphemes` returns them. Where one of them matches, also at the edge of a
        word, its characters are kept: with ``k'`` and ``!`` in the list, ``'K'ak'' !a?`` becomes ``k'ak' !a``.
    language
        Its code, for the rules of lower case (`speech3.corpus.letter_case`); empty if it is not known.
    """
    listed = _matching(tuple(graphemes))
    words: list[str] = []
    end = 0
    for apart in _SET_APART.finditer(text):
        words += _plain(text[end : apart.start()], listed, language)
        words.append("_".join(lowered(apart.group(), language).split()))
        end = apart.end()
    return " ".join([*words, *_plain(text[end:], listed, language)])


@cache
def _matching(graphemes: tuple[str, ...]) -> re.Pattern[str] | None:
    """The longest of the graphemes that matches, as in spelling."""
    longest_first = sorted(graphemes, key=lambda grapheme: (-len(grapheme), grapheme))
    return re.compile("|".join(map(re.escape, longest_first))) if graphemes else None


def _composed(text: str, language: str = "") -> str:
    return one_form(lowered(text, language))


def _plain(text: str, listed: re.Pattern[str] | None, language: str) -> list[str]:
    composed = _composed(text, language)
    changed, kept = composed.translate(_MARKS), set[int]()
    if listed:
        typed = "".join("'" if letter in APOSTROPHES else letter for letter in composed)
        kept = {place for match in listed.finditer(typed) for place in range(*match.span())}
        changed = "".join(typed[place] if place in kept else letter for place, letter in enumerate(changed))
    words = []
    for match in re.finditer(r"\S+", changed):
        first, end = match.span()
        while first < end and changed[first] in _WITHIN_WORDS and first not in kept:
            first += 1
        while first < end and changed[end - 1] in _WITHIN_WORDS and end - 1 not in kept:
            end -= 1
        words.append(changed[first:end])
    return [re.sub("(?<=.)[ʼʻ](?=.)", "'", word) for word in words if word]


def marked_at_edge(text: str) -> list[str]:
    """Words that `plain_words` takes an apostrophe, a colon or a middle dot from, at one edge only: not quotations."""
    found = []
    for written in _composed(_SET_APART.sub(" ", text)).translate(_MARKS).split():
        word = written.strip(_WITHIN_WORDS)
        before, _, after = written.partition(word) if word else ("", "", "")
        if any((mark in before) != (mark in after) for mark in _MAYBE_LETTERS):
            found.append(written)
    return found


_STEPS: dict[str, Callable[[str], str]] = {
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "lower": lowered,
    "punct": _punct,
    "phones48": lambda text: fold(text, 48),
    "phones39": lambda text: fold(text, 39),
}


def parse_steps(text: str) -> tuple[str, ...]:
    """Split ``nfkc,lower,punct`` into its steps.

    Raises
    ------
    Speech3Error
        A step is unknown.
    """
    steps = tuple(step for step in re.split(r"[,\s]+", text) if step)
    for step in steps:
        if step not in _STEPS:
            raise Speech3Error(f"--normalize: unknown step {step!r}; choose from {', '.join(_STEPS)}")
    return steps


def normalize_text(text: str, steps: Sequence[str], lower: Callable[[str], str] = lowered) -> str:
    """Apply `steps` in their order and join the words with single spaces.

    ``nfkc`` is Unicode's compatibility composition, ``lower`` changes to lower case, and ``punct`` replaces each
    character of Unicode's punctuation classes with a space, except an apostrophe between letters or digits (typographic
    ones become ASCII). Symbols such as ``<``, ``$`` and ``+`` are not punctuation in Unicode, so ``<unk>`` is kept.
    ``phones48`` and ``phones39`` fold TIMIT's phones to Lee and Hon's classes (`speech3.corpus.phone_classes`).

    Parameters
    ----------
    lower
        What ``lower`` does; `speech3.corpus.letter_case.lowered` with the language, if that is known.

    Raises
    ------
    Speech3Error
        A step is unknown.
    """
    for step in steps:
        if step not in _STEPS:
            raise Speech3Error(f"normalisation: unknown step {step!r}; choose from {', '.join(_STEPS)}")
        text = lower(text) if step == "lower" else _STEPS[step](text)
    return " ".join(text.split())
