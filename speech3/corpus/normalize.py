"""Normalisation of transcripts: letter case, punctuation, Unicode composition, phone classes."""

import re
import unicodedata
from collections.abc import Callable, Sequence

from speech3.corpus.phone_classes import fold
from speech3.errors import Speech3Error


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


def plain_words(text: str) -> str:
    """The words of a transcript in ordinary spelling: in lower case, without punctuation, composed (NFC).

    Apostrophes, hyphens, colons and middle dots stay between letters, where orthographies use them; an apostrophe there
    becomes ASCII. What is in square, angle or curly brackets becomes one word in brackets: ``[laughs loudly]`` becomes
    ``[laughs_loudly]``. NFKC is not used, since it would turn the sign of aspiration, U+02B0, into ``h``.
    """
    words: list[str] = []
    end = 0
    for apart in _SET_APART.finditer(text):
        words += _plain(text[end : apart.start()])
        words.append("_".join(apart.group().lower().split()))
        end = apart.end()
    return " ".join([*words, *_plain(text[end:])])


def _plain(text: str) -> list[str]:
    composed = unicodedata.normalize("NFC", text.lower()).translate(_MARKS)
    words = (word.strip(_WITHIN_WORDS) for word in composed.split())
    return [re.sub("(?<=.)[ʼʻ](?=.)", "'", word) for word in words if word]


_STEPS: dict[str, Callable[[str], str]] = {
    "nfkc": lambda text: unicodedata.normalize("NFKC", text),
    "lower": str.lower,
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


def normalize_text(text: str, steps: Sequence[str]) -> str:
    """Apply `steps` in their order and join the words with single spaces.

    ``nfkc`` is Unicode's compatibility composition, ``lower`` changes to lower case, and ``punct`` replaces each
    character of Unicode's punctuation classes with a space, except an apostrophe between letters or digits (typographic
    ones become ASCII). Symbols such as ``<``, ``$`` and ``+`` are not punctuation in Unicode, so ``<unk>`` is kept.
    ``phones48`` and ``phones39`` fold TIMIT's phones to Lee and Hon's classes (`speech3.corpus.phone_classes`).

    Raises
    ------
    Speech3Error
        A step is unknown.
    """
    for step in steps:
        if step not in _STEPS:
            raise Speech3Error(f"normalisation: unknown step {step!r}; choose from {', '.join(_STEPS)}")
        text = _STEPS[step](text)
    return " ".join(text.split())
