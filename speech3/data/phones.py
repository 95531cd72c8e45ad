"""Classes of phones: those to which TIMIT's are folded, and broad ones, such as vowel and stop, for any language.

TIMIT's 61 phones are folded to 48 for training and to 39 classes for scoring (Lee and Hon 1989, "Speaker-independent
phone recognition using hidden Markov models"; ``data/timit/phones.txt``). The glottal stop ``q`` is deleted.

Broad classes are of phones of TIMIT and CMUdict (with or without stress), or IPA symbols with any diacritics. What is
neither, such as a letter of another script, is ``other``.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from speech3.errors import FormatError

Size = Literal[39, 48]
_DELETED = "-"
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


def fold(text: str, size: Size) -> str:
    """Replace the phones of `text` by their classes; what the table lacks stays as it is.

    Phones that are already folded to the 48, or to the same classes, are accepted, too.
    """
    table = _table(size)
    return " ".join(found for phone in text.split() if (found := table.get(phone, phone)) != _DELETED)


@lru_cache
def _rows() -> list[tuple[str, str, str]]:
    """Each of the 61 phones, its class of the 48 and of the 39."""
    from speech3.config import shipped

    path = shipped("data") / "timit" / "phones.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = [line.split() for line in lines if line.strip() and not line.startswith("#")]  # `h#` is a phone
    if any(len(row) != 3 for row in fields):
        raise FormatError(f"{path}: every line needs three columns; restore the file that came with speech3")
    return [(phone, of_48, of_39) for phone, of_48, of_39 in fields]


def phones61() -> tuple[str, ...]:
    """TIMIT's 61 phones, sorted."""
    return tuple(phone for phone, _, _ in _rows())


@lru_cache
def _table(size: Size) -> dict[str, str]:
    if size == 48:
        return {phone: of_48 for phone, of_48, _ in _rows()}
    return {name: of_39 for *names, of_39 in _rows() for name in names if name != _DELETED}
