"""Normalisation of transcripts: letter case, punctuation, Unicode's composition, classes of phones."""

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
    """Apply `steps` in their order and join the words by single spaces.

    ``nfkc`` is Unicode's compatibility composition, ``lower`` the lower case, and ``punct`` replaces each character of
    Unicode's punctuation classes by a space, except an apostrophe between letters or digits (typographic ones become
    ASCII). Symbols such as ``<``, ``$`` and ``+`` are not punctuation in Unicode, so ``<unk>`` survives. ``phones48``
    and ``phones39`` fold TIMIT's phones to Lee and Hon's classes (`speech3.corpus.phone_classes`).
    """
    for step in steps:
        if step not in _STEPS:
            raise Speech3Error(f"normalisation: unknown step {step!r}; choose from {', '.join(_STEPS)}")
        text = _STEPS[step](text)
    return " ".join(text.split())
