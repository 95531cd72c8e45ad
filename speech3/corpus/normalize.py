"""Normalisation of transcripts: letter case, punctuation, Unicode's composition."""

import re
import unicodedata
from collections.abc import Callable, Sequence

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
    ASCII). Symbols such as ``<``, ``$`` and ``+`` are not punctuation in Unicode, so ``<unk>`` survives.
    """
    for step in steps:
        if step not in _STEPS:
            raise Speech3Error(f"normalisation: unknown step {step!r}; choose from {', '.join(_STEPS)}")
        text = _STEPS[step](text)
    return " ".join(text.split())
