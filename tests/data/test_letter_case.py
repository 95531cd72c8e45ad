"""Lower case by the rules of languages, wherever text is normalised."""

import unicodedata

import pytest

from speech3.data.transcripts import (
    case_doubts,
    lower_case,
    normalize_text,
    parse_steps,
    plain_words,
    words_with_sharp_s,
)
from speech3.evaluate.wer import score
from speech3.language.graphemes import Graphemes


@pytest.mark.parametrize(
    ("language", "text", "lower"),
    [
        ("tr", "Işık ISPARTA İZMİR İstanbul I\u0307zmir KIZ", "ışık ısparta izmir istanbul izmir kız"),
        ("TR_tr", "KIZ", "kız"),
        ("trk/tr", "KIZ", "kız"),  # a voice of espeak-ng
        ("az", "QIZIL İKİ", "qızıl iki"),
        ("az-Latn", "QIZIL", "qızıl"),
        ("en", "KIZ I", "kiz i"),
        ("", "KIZ İZMİR", "kiz izmir"),  # no combining dot, which no language writes
        ("lt", "Ì Í Ĩ J\u0303 Į\u0303 ì IJ", "i̇̀ i̇́ i̇̃ j̇̃ į̇̃ i̇̀ ij"),
        ("el", "ΟΔΟΣ ΣΑΣ οδοσ Σ", "οδος σας οδος σ"),
        ("", "ΟΔΟΣ, ΣΟΦΟΣ.", "οδος, σοφος."),
        ("de", "STRAẞE Straße STRASSE", "straße straße strasse"),
    ],
)
def test_lower_case(language: str, text: str, lower: str) -> None:
    assert lower_case(text, language) == unicodedata.normalize("NFC", lower)
    assert lower_case(unicodedata.normalize("NFD", text), language) == unicodedata.normalize("NFC", lower)


def test_ss_in_capitals_is_the_words_own_spelling() -> None:
    texts = ["DIE STRASSE, DIE MASSE", "die Straße", "das Maß, die Maße und die Masse"]
    spellings = words_with_sharp_s(texts, "de-AT")
    assert spellings == {"strasse": "straße", "mass": "maß"}, "Masse and Maße are both words"
    assert lower_case(texts[0], "de", spellings) == "die straße, die masse"
    assert words_with_sharp_s(texts, "en") == {}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["kız", "ILIK"], "lang=tr"),
        (["Straße", "STRASSE"], "lang=de"),
        (["kız", "ılık"], ""),
        (["Straße", "MISS"][:1], ""),
        (["MISS IRIS"], ""),
    ],
)
def test_where_the_language_is_not_known_it_is_said_if_it_matters(texts: list[str], says: str) -> None:
    assert says in case_doubts(texts) and bool(says) == bool(case_doubts(texts))


def test_plain_words_and_spelling_by_letters_follow_the_language() -> None:
    assert plain_words("KIZ, [GÜLÜŞ IŞIK]", language="tr") == "kız [gülüş_ışık]"
    assert Graphemes(language="tr")("KIZ") == ("k", "ı", "z") and Graphemes(language="tr").parts("KIZ") == tuple("KIZ")
    assert Graphemes()("ΟΔΟΣ") == Graphemes()("οδος") == ("ο", "δ", "ο", "σ"), "both forms of sigma are one sound"
    assert Graphemes(language="lt")("Ìr") == Graphemes()("ìr") == ("ì", "r")
    assert Graphemes()("İzmir") == ("i", "z", "m", "i", "r")


def test_scores_follow_the_language() -> None:
    steps = parse_steps("lower")
    reference, hypothesis = {"u": "KIZ İZMİR"}, {"u": "kız izmir"}
    assert score(reference, hypothesis, normalize=steps, language="tr").words.errors == 0
    assert score(reference, hypothesis, normalize=steps).words.errors == 1
    german = {"u": "DIE STRASSE"}, {"u": "die straße"}
    assert score(*german, normalize=steps, language="de").words.errors == 0
    assert normalize_text("ΟΔΟΣ ΟΔΟΣ", steps) == "οδος οδος"
