"""Lower case by the rules of a language (Unicode's SpecialCasing.txt), where they differ from those of English.

Turkish and Azeri have i with a dot and ı without one: I becomes ı, and İ becomes i. In Lithuanian, i and j keep their
dot below another accent. Greek writes ς at the end of words. German ß is SS in capitals, so STRASSE may be straße.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping

_DOTLESS = frozenset({"tr", "tur", "az", "aze", "azj", "crh", "gag"})
_LITHUANIAN = frozenset({"lt", "lit"})
_GERMAN = frozenset({"de", "deu", "ger"})
_DOT = "\u0307"
_ACCENTS = "\u0300-\u0306\u0308-\u0314\u033d-\u0344\u034a-\u034c"  # above a letter, without the dot
_WITHOUT_DOT = re.compile(f"([ij\u012f]\u0328?)(?=[{_ACCENTS}])")
_FINAL_SIGMA, _OTHER_SIGMA = re.compile(r"(?<=\w)σ(?![\w'’])"), re.compile(r"ς(?=\w)")
_WORD = re.compile(r"\w+")


def lowered(text: str, language: str = "", spellings: Mapping[str, str] | None = None) -> str:
    """A text in lower case, composed (NFC).

    Parameters
    ----------
    language
        Its code, such as ``tr``, ``tr-TR`` or an espeak-ng voice; empty if it is not known.
    spellings
        For words that are in capitals, their spelling in lower case, as `sharp_s` finds it.
    """
    if text.isascii() and (text.islower() or (not language and not spellings)):
        return text.lower()
    text = unicodedata.normalize("NFC", text)
    if spellings:
        text = _WORD.sub(lambda word: spellings.get(word[0].lower(), word[0]) if word[0].isupper() else word[0], text)
    code = _code(language)
    if code in _DOTLESS:
        text = text.replace("I", "ı")
    text = text.replace("İ", "i").lower()  # Python's lower would leave a combining dot on the i
    text = _OTHER_SIGMA.sub("σ", _FINAL_SIGMA.sub("ς", text))
    if code in _LITHUANIAN:
        text = _WITHOUT_DOT.sub(rf"\1{_DOT}", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", text)


def sharp_s(texts: Iterable[str], language: str) -> dict[str, str]:
    """Words of German texts that occur with ß in lower case, by their spelling with ss; not those that have both.

    >>> sharp_s(["Die Straße", "DIE STRASSE"], "de")
    {'strasse': 'straße'}
    """
    if _code(language) not in _GERMAN:
        return {}
    words = {word.lower() for text in texts for word in _WORD.findall(text) if not word.isupper()}
    with_ss = {word for word in words if "ss" in word}
    return {plain: word for word in words if "ß" in word and (plain := word.replace("ß", "ss")) not in with_ss}


def doubts(texts: Iterable[str]) -> str:
    """What is not known of these texts in mixed case, if their language is not: a sentence, or nothing."""
    dotless = dotted = sharp = capitals = ""
    for text in texts:
        if text.isascii() and text.islower():
            continue
        for word in unicodedata.normalize("NFC", text).split():
            if re.search("[ıİ]", word):
                dotless = dotless or word
            if "I" in word or "İ" in word:
                dotted = dotted or word
            if "ß" in word:
                sharp = sharp or word
            if "SS" in word and word.isupper():
                capitals = capitals or word
    if dotless and dotted:
        return (
            f"the language of the text is not known, but it has ı or İ ({dotless}): in Turkish or Azeri, I would become"
            f" ı, but it becomes i (as in {dotted}); give the language, as in lang=tr"
        )
    if sharp and capitals:
        return (
            f"the language of the text is not known, but it has ß ({sharp}) and SS in capitals ({capitals}), which"
            " becomes ss; give the language: lang=de"
        )
    return ""


def _code(language: str) -> str:
    """``tr`` for ``tr``, ``TR_tr``, ``tr-Latn`` and espeak-ng's ``trk/tr``."""
    return re.split("[-_]", language.rpartition("/")[2].lower())[0]
