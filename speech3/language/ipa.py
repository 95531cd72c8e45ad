"""Phones by their articulatory features (the chart of the International Phonetic Association), and their distances.

A phone is described by the features of its first and of its last symbol: ``aɪ`` begins open and ends close, ``t͡ʃ``
begins as a stop and ends as a fricative. The distance of two phones is the mean of the distances of their beginnings
and ends; that of two symbols is the sum of ``weight * |difference|`` over the features. Marks other than length,
nasality and the hook of ``ɚ`` do not count, nor do tones: letters, superscripts, or digits after vowels, as espeak-ng
writes them. A phone with any other letter or digit is not in IPA, and is not described.

Axes: F features.
"""

import unicodedata
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from speech3.data import folded, is_arpabet

_FEATURES = (
    *("syllabic", "sonorant", "continuant", "nasal", "lateral", "rhotic", "strident", "voiced", "place"),
    *("height", "back", "round", "long"),
)
# Places are in steps along the vocal tract, other features from 0 to 1.
_WEIGHTS_F = np.array([2, 1, 1, 1, 1, 1, 0.25, 0.5, 0.25, 3, 1.5, 0.75, 0.25])
# From bilabial to glottal: bilabial, labiodental, dental, alveolar, postalveolar, retroflex, alveolo-palatal, palatal,
# velar, uvular, pharyngeal, glottal.
_PLACES = (0, 0.5, 2.5, 3, 4, 4, 4.5, 5, 8, 9, 10, 11)
# Symbols in the order of these places, for each manner: sonorant, continuant, nasal, lateral, rhotic, voiced.
_MANNERS = {
    (0, 0, 0, 0, 0, 0): ("p..t.ʈ.ckqʡʔ",),
    (0, 0, 0, 0, 0, 1): ("b..d.ɖ.ɟɡɢ..", "ɓ..ɗ...ʄɠʛ.."),
    (0, 1, 0, 0, 0, 0): ("ɸfθsʃʂɕçxχħh",),
    (0, 1, 0, 0, 0, 1): ("βvðzʒʐʑʝɣʁʕɦ",),
    (0, 1, 0, 1, 0, 0): ("...ɬ........",),
    (0, 1, 0, 1, 0, 1): ("...ɮ........",),
    (0.5, 0, 0, 0, 0.5, 1): (".ⱱ.ɾ.ɽ......",),
    (1, 0, 1, 0, 0, 1): ("mɱ.n.ɳ.ɲŋɴ..",),
    (1, 1, 0, 0, 0, 1): (".ʋ.....jɰ...", ".......ɥw..."),
    (1, 1, 0, 0, 0, 0): ("........ʍ...",),
    (1, 1, 0, 0, 1, 1): ("ʙ..r.....ʀ..", "...ɹ.ɻ......"),
    (1, 1, 0, 1, 0, 1): ("...l.ɭ.ʎʟ...",),
}
_STRIDENT, _ROUNDED = frozenset("szʃʒʂʐɕʑ"), frozenset("ɥwʍ")
# Vowels by height, in sixths: front, central and back, each unrounded and rounded.
_VOWELS = {6: "iyɨʉɯu", 5: "ɪʏ...ʊ", 4: "eøɘɵɤo", 3: "..ə...", 2: "ɛœɜɞʌɔ", 1: "æ.ɐ...", 0: "aɶ..ɑɒ"}
_OPEN_FRONT_BACK = 0.25  # in most languages, what is written `a` is nearer to the centre
_WRITTEN = {"g": "ɡ", "ɫ": "l", "ᵻ": "ɨ", "ɚ": "ə˞", "ɝ": "ɜ˞", "ʧ": "tʃ", "ʤ": "dʒ", "ʦ": "ts", "ʣ": "dz", "ʨ": "tɕ"}
_MARKS = {"ː": "long", "̃": "nasal", "˞": "rhotic"}
_NOT_IPA = frozenset({"Lu", "Ll", "Lt", "Lo", "Nl", "Nd"})  # of symbols without features; Lm are small letters as marks
# TIMIT's and CMUdict's phones; those that are missing are written as in IPA.
_ARPABET_IS_IPA = (
    "aa:ɑː ae:æ ah:ʌ|ə ao:ɔː aw:aʊ ax:ə ax-h:ə axr:ɚ ay:aɪ eh:ɛ er:ɝː|ɚ ey:eɪ ih:ɪ ix:ɨ iy:iː ow:oʊ oy:ɔɪ uh:ʊ uw:uː"
    " ux:ʉː ch:tʃ dh:ð dx:ɾ hh:h hv:ɦ jh:dʒ ng:ŋ nx:n q:ʔ r:ɹ sh:ʃ th:θ y:j zh:ʒ el:l em:m en:n eng:ŋ bcl:b dcl:d"
    " gcl:ɡ pcl:p tcl:t kcl:k"
)
_ARPABET = dict(pair.split(":") for pair in _ARPABET_IS_IPA.split())


def _table() -> dict[str, np.ndarray]:
    table = {}
    for (sonorant, continuant, nasal, lateral, rhotic, voiced), rows in _MANNERS.items():
        for symbol, place in (pair for row in rows for pair in zip(row, _PLACES, strict=True)):
            strident, rounded = symbol in _STRIDENT, symbol in _ROUNDED
            described = (0, sonorant, continuant, nasal, lateral, rhotic, strident, voiced, place, 0, 0, rounded, 0)
            table[symbol] = np.array(described, np.float64)
    for height, row in _VOWELS.items():
        for index, symbol in enumerate(row):
            back = _OPEN_FRONT_BACK if symbol == "a" else index // 2 / 2
            table[symbol] = np.array((1, 1, 1, 0, 0, 0, 0, 1, 0, height / 6, back, index % 2, 0), np.float64)
    table.pop(".")
    return table


_TABLE = _table()


class Nearest(NamedTuple):
    """A phone's nearest one of another set, and how far away it is."""

    phone: str
    distance: float


def _features(ipa: str) -> list[np.ndarray]:
    """The features (F,) of each symbol; none at all if a letter or digit is not IPA, as in pinyin's ``ang1``."""
    found: list[np.ndarray] = []
    composed = unicodedata.normalize("NFC", ipa)  # ç is a symbol of its own
    written = "".join(each if each in _TABLE else unicodedata.normalize("NFD", each) for each in composed)
    for symbol in "".join(_WRITTEN.get(each, each) for each in written):
        if symbol in _TABLE:
            found.append(_TABLE[symbol].copy())
        elif symbol in _MARKS and found:
            found[-1][_FEATURES.index(_MARKS[symbol])] = 1
        elif unicodedata.category(symbol) in _NOT_IPA and not (symbol.isdecimal() and found and found[-1][0]):
            return []
    return found


def _readings(phone: str, arpabet: bool) -> list[list[np.ndarray]]:
    name = folded(phone)
    written = _ARPABET.get(name, name) if arpabet else phone
    return [found for each in written.split("|") if (found := _features(each))]


def _distance(one: list[list[np.ndarray]], other: list[list[np.ndarray]]) -> float:
    between = ((_WEIGHTS_F @ (abs(a[0] - b[0]) + abs(a[-1] - b[-1]))) / 2 for a in one for b in other)
    return float(min(between, default=np.inf))


def nearest_phones(phones: Collection[str], known: Collection[str]) -> Mapping[str, Nearest]:
    """The nearest of the phones `known` to each of `phones`, where the chart has them.

    Each set is in the symbols of TIMIT or CMUdict if it has vowels of theirs, else in IPA. Of several that are as near,
    the first in alphabetical order is taken.
    """
    there, here = is_arpabet(known), is_arpabet(phones)
    readings = {phone: _readings(phone, there) for phone in sorted(known)}
    found = {}
    for phone in phones:
        wanted = _readings(phone, here)
        best = min(readings, key=lambda other: _distance(wanted, readings[other]))
        if (distance := _distance(wanted, readings[best])) < np.inf:
            found[phone] = Nearest(best, distance)
    return found
