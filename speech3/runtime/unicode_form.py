"""One Unicode form for the words of all files: composed (NFC), with ordinary letters for full-width ones and ligatures.

Keyboards and macOS write the same letter in several ways: é is one character, or e and a combining accent. Every
reader of words changes them to one form, so that the same word is the same in every file. Of the compatibility forms
(NFKC), only those are changed that never are another letter: full-width Latin letters and digits, and the ligatures of
Latin type (U+FB00 to U+FB06). NFKC as a whole would change letters that orthographies use, such as the sign of
aspiration, U+02B0, and the vowel sign am of Thai. Characters that are not seen are left out. Phones are not changed:
models have them as they are.
"""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from speech3.runtime.reporting import say

_FOLDED = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\ufb00-\ufb06]+")
# Decompositions of letters that look like others; "compat" would be too wide (Thai, Lao, Korean letters).
_KINDS = ("<wide>", "<narrow>", "<square>", "<circle>", "<font>", "<isolated>", "<initial>", "<medial>", "<final>")
_said: set[str] = set()


# Soft hyphens, marks of direction and joiners of lines are not seen and are no part of a word. The space without width
# is one, except in scripts that divide words by it (Thai, Lao, Burmese, Khmer). U+200C and U+200D change letters.
_DIVIDED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSEEN = re.compile(
    f"[\u00ad\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]|(?<![{_DIVIDED}])\u200b|\u200b(?![{_DIVIDED}])"
)


def to_one_form(text: str) -> str:
    """A text in the form that all words have."""
    if text.isascii():
        return text
    text = _UNSEEN.sub("", text)
    return unicodedata.normalize("NFC", _FOLDED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text))


def composed(text: str, path: Path | str) -> str:
    """The words of a file, or of a part of it, in one form; if that changes something, a line says so, once a file."""
    if text.isascii() or (changed := to_one_form(text)) == text:
        return text
    if str(path) not in _said:
        _said.add(str(path))
        pairs = zip(text.split(), changed.split(), strict=False)
        word, read = next((pair for pair in pairs if pair[0] != pair[1]), (text, changed))
        if unseen := _UNSEEN.search(word):
            say(f"  {path}: invisible characters (U+{ord(unseen[0]):04X}) are left out, as in {read}")
        elif _FOLDED.search(word):
            say(f"  {path}: full-width letters and ligatures are read as ordinary letters (NFKC): {word} as {read}")
        else:
            say(f"  {path}: some letters are not in Unicode's composed form (NFC) and are read in it, as in {read}")
    return changed


def compatibility_words(words: Iterable[str]) -> dict[str, str]:
    """Words with letters that stand for others in Unicode (half-width kana, ㎏, Ⅷ), and the words that they look like.

    These are left as they are, since they may be meant.
    """
    return {
        word: unicodedata.normalize("NFKC", word)
        for word in words
        if not word.isascii() and any(map(_stands_for_another, word))
    }


def _stands_for_another(letter: str) -> bool:
    kind = unicodedata.decomposition(letter).partition(" ")[0]
    roman = "\u2160" <= letter <= "\u217f"
    return roman or (kind in _KINDS and unicodedata.category(letter)[0] in "LNS")
