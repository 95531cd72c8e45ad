"""Broad classes of phones: vowel, stop, fricative, affricate, nasal, liquid, glide, silence.

Phones are those of TIMIT and CMUdict (with or without stress), or IPA symbols with any diacritics. What is neither,
such as a letter of another script, is ``other``.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

SILENCE = "silence"
OTHER = "other"
_SILENT = frozenset(("", "sil", "sp", "spn", "<eps>", "h#", "#h", "pau", "epi", "<p:>", "<sil>", "noise", "nsn"))
# TIMIT's phones and CMUdict's; closures are parts of stops.
_NAMED = {
    "vowel": "aa ae ah ao aw ax ax-h axr ay eh er ey ih ix iy ow oy uh uw ux",
    "stop": "bcl dcl gcl pcl tcl kcl vcl cl dx q",
    "fricative": "dh hh hv sh th zh",
    "affricate": "ch jh",
    "nasal": "em en eng ng nx",
    "liquid": "el",
}
_OF_NAME = {phone: name for name, phones in _NAMED.items() for phone in phones.split()}
_IPA = {
    "vowel": "iyɨʉɯuɪʏʊeøɘɵɤoəɛœɜɞʌɔæɐaɶɑɒɚɝ",
    "stop": "pbtdʈɖcɟkɡgqɢʔɓɗʄɠʛʡʘǀǃǂǁ",
    "fricative": "ɸβfvθðszʃʒʂʐçʝxɣχʁħʕhɦɕʑɧʜʢɬɮ",
    "nasal": "mɱnɳɲŋɴ",
    "liquid": "rɾɽʀlɫɭʎʟɹɻɺʙⱱ",
    "glide": "jwɥɰʋʍ",
}
_OF_SYMBOL = {symbol: name for name, symbols in _IPA.items() for symbol in symbols}


def is_silence(label: str) -> bool:
    """Whether a label marks silence or a pause rather than a phone."""
    return label.casefold() in _SILENT


def folded(label: str) -> str:
    """A phone without letter case and, if it is a vowel of CMUdict, without its stress."""
    label = unicodedata.normalize("NFC", label)
    if label[-1:] in ("0", "1", "2") and _OF_NAME.get(label[:-1].casefold()) == "vowel":
        label = label[:-1]
    lower = label.casefold()
    return lower if lower in _OF_NAME or (label.isascii() and len(label) == 1) else label


def is_arpabet(labels: Iterable[str]) -> bool:
    """Whether phones are those of TIMIT or CMUdict: whether any is a vowel that these write with two letters."""
    return any(len(name) > 1 and _OF_NAME.get(name) == "vowel" for name in map(folded, labels))


@lru_cache(maxsize=4096)
def broad_class(label: str, *, arpabet: bool = False) -> str:
    """The broad class of a phone, `SILENCE`, or `OTHER`; ``y`` is a glide in TIMIT and CMUdict, a vowel in IPA."""
    if is_silence(label):
        return SILENCE
    label = folded(label)
    if arpabet and label == "y":
        return "glide"
    if label in _OF_NAME:
        return _OF_NAME[label]
    base = [symbol for symbol in unicodedata.normalize("NFD", label) if symbol in _OF_SYMBOL]
    if not base:
        return OTHER
    names = [_OF_SYMBOL[symbol] for symbol in base]
    if names[:2] == ["stop", "fricative"]:
        return "affricate"
    return names[0]
