"""Nearest phones by articulatory features, against broad classes that were listed apart from the chart."""

import pytest

from speech3.data.phones import _IPA, broad_class
from speech3.language.ipa import nearest_phones

_CMU = (
    "AA0 AE1 AH0 AO1 AW1 AY1 B CH D DH EH1 ER0 EY1 F G HH IH0 IY1 JH K L M N NG OW1 OY1 P R S SH T TH UH1 UW1 V W Y Z"
)
CMU = [*_CMU.split(), "ZH"]
SYMBOLS = [symbol for symbols in _IPA.values() for symbol in symbols if symbol not in "ǀǃǂǁʘɧʢʜɺ"]


def test_each_symbol_is_nearest_to_itself() -> None:
    assert {phone: found for phone, found in nearest_phones(SYMBOLS, SYMBOLS).items() if found.distance} == {}
    # Symbols with the same features are equally near: those of fricatives and trills at the same place would not be.
    same = {phone: found.phone for phone, found in nearest_phones(SYMBOLS, SYMBOLS).items() if found.phone != phone}
    assert all(broad_class(phone) == broad_class(other) for phone, other in same.items())


@pytest.mark.parametrize(
    ("ipa", "english"),
    [
        *[("iː", "IY1"), ("ɪ", "IH0"), ("eɪ", "EY1"), ("ɛ", "EH1"), ("æ", "AE1"), ("ɑː", "AA0"), ("ɔː", "AO1")],
        *[("oʊ", "OW1"), ("ʊ", "UH1"), ("uː", "UW1"), ("ʌ", "AH0"), ("ə", "AH0"), ("ɝ", "ER0"), ("ɚ", "ER0")],
        *[("aɪ", "AY1"), ("aʊ", "AW1"), ("ɔɪ", "OY1"), ("tʃ", "CH"), ("dʒ", "JH"), ("ð", "DH"), ("θ", "TH")],
        *[("ʃ", "SH"), ("ʒ", "ZH"), ("ŋ", "NG"), ("ɹ", "R"), ("j", "Y"), ("h", "HH"), ("ɡ", "G"), ("g", "G")],
    ],
)
def test_english_phones_are_found_in_cmus_symbols(ipa: str, english: str) -> None:
    """What espeak-ng writes for English, and the phone that CMUdict's page gives for the same sound."""
    assert nearest_phones([ipa], CMU)[ipa].phone == english


def test_phones_that_english_lacks() -> None:
    foreign = {"y": "IY1", "ç": "SH", "ts": "CH", "r": "R", "ɾ": "D", "ɲ": "N", "β": "V", "q": "K", "tʰ": "T", "n̩": "N"}
    found = nearest_phones(foreign, CMU)
    assert {phone: near.phone for phone, near in found.items()} == foreign
    assert found["q"].distance == 0.25  # one place further back
    assert found["tʰ"].distance == 0


def test_timit_and_ipa_agree() -> None:
    timit = nearest_phones(["ax", "hv", "ux", "q", "eng", "s", "iy"], CMU)
    ipa = nearest_phones(["ə", "ɦ", "ʉː", "ʔ", "ŋ", "s", "iː"], CMU)
    assert list(timit.values()) == list(ipa.values())


def test_what_the_chart_lacks_is_left_out() -> None:
    assert nearest_phones(["5", "ж", "a"], CMU).keys() == {"a"}
    pinyin = ["ang1", "iang4", "v4", "b"]
    assert nearest_phones(pinyin, CMU).keys() == {"b"}


def test_tones_and_marks_do_not_count() -> None:
    written = ["a˥", "a³⁵", "ɑu2", "tʰ", "kʷ", "ⁿd"]  # ɑu2: espeak-ng's tone
    plain = ["a", "a", "ɑu", "t", "k", "d"]
    assert list(nearest_phones(written, CMU).values()) == [nearest_phones([each], CMU)[each] for each in plain]
