"""Phones from espeak's symbols, letters, and what stands in for phones that training never hears."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from speech3.language import espeak, pronounce
from speech3.language.pronounce import ipa_phones, letters, read_in, replace_rare, spelled_out, stand_ins

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.mark.parametrize(
    ("symbols", "phones"),
    [
        ("f ˈɔːɹ", "f ɔː ɹ"),  # a vowel with a consonant after it
        ("f ˈaɪɚ", "f aɪ ɚ"),  # a third vowel
        ("dʒ ˈʌ m p", "dʒ ʌ m p"),
        ("n ˈi2 χ ˈɑu2", "n i2 χ ɑu2"),  # Mandarin tones
        ("t ˈeɜ", "t e3"),  # espeak's print of Vietnamese tone 3
        ("h ˈoenɡ1", "h oe1 nɡ"),  # the tone is the vowel's
        ("l ˈəːɜ j", "l əː3 j"),
        ("k ɔ m p j ˈuː t ɜ", "k ɔ m p j uː t ɜ"),  # no tone: a German vowel
        ("(en) h ə l ˈəʊ (cmn)", "h ə l əʊ"),
        ("l ˈe-", "l e"),  # a French liaison mark
        ("vʲ ˈe t", "vʲ e t"),
        ("", ""),
    ],
)
def test_phones_of_espeaks_symbols(symbols: str, phones: str) -> None:
    assert ipa_phones(symbols.split()) == tuple(phones.split())


def test_stress_is_kept_if_asked_for() -> None:
    assert ipa_phones(["h", "ə", "l", "ˈoʊ"], stress=True) == ("h", "ə", "l", "oʊˈ")
    assert ipa_phones(["f", "ˌɔːɹ"], stress=True) == ("f", "ɔːˌ", "ɹ")


@pytest.mark.parametrize(
    ("word", "spelling"),
    [
        ("Don't", "d o n t"),
        ("well-known", "w e l l k n o w n"),
        ("CAFÉ", "c a f é"),
        ("cafe\u0301", "c a f é"),  # decomposed: the same letter
        ("e\u0323\u0301", "ẹ́"),  # Yoruba: no letter of its own for this one, the mark stays on it
        ("1984", ""),
        ("—", ""),
        ("किताब", "क ि त ा ब"),  # vowel signs are sounds
        ("한글", "ᄒ ᅡ ᆫ ᄀ ᅳ ᆯ"),
    ],
)
def test_letters(word: str, spelling: str) -> None:
    assert letters(word) == tuple(spelling.split())


def test_a_script_that_the_language_does_not_read_is_seen() -> None:
    pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
    for lang, own, foreign in (
        ("en-us", "hello", "привет"),
        ("de", "straße", "привет"),
        ("ru", "привет", "你好"),
        ("cy", "llanfair", "你好"),
        ("yue", "香港", "привет"),
        ("en-us", "w", "γειά"),
    ):
        said = espeak.pronounce([own, foreign], espeak.voice_of(lang))
        assert [spelled_out(groups, word) for groups, word in zip(said, (own, foreign), strict=True)] == [False, True]


def test_another_language_is_seen() -> None:
    pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
    said = espeak.pronounce(["नमस्ते", "mtoto"], espeak.voice_of("sw"))
    assert [read_in(groups) for groups in said] == ["hi", ""]


def test_stand_ins() -> None:
    trained = {"e": 10, "aː5": 7, "aː2": 9, "i": 4, "u": 4}
    assert stand_ins(["é", "aː3", "iu", "e", "χ"], trained) == {
        "é": ("e",),
        "aː3": ("aː2",),
        "iu": ("i", "u"),
        "e": ("e",),
        "χ": (),
    }


def test_rare_phones_go_to_others_and_unheard_ones_leave_no_word() -> None:
    table = {"et": [("e", "t")], "été": [("é", "t", "é")], "thé": [("x", "t")], "zoo": [("z", "u")]}
    found, replaced = replace_rare(table, {"et": 9, "été": 1, "thé": 1}, least=5)
    assert found["été"] == [("e", "t", "e")]
    assert found["thé"] == [("x", "t")]  # heard, if seldom, and nothing is like it
    assert found["zoo"] == []
    assert replaced["é"] == ("e",) and replaced["z"] == () and "e" not in replaced


def test_a_conversion_is_learnt() -> None:
    """Made-up phones: x becomes K S, h nothing, a vowel depends on what follows it."""
    rng = np.random.default_rng(1)

    def convert_one(phones: tuple[str, ...]) -> tuple[str, ...]:
        rules = {"x": ("K", "S"), "h": (), "t": ("T",), "m": ("M",)}
        following = (*phones[1:], "#")
        return tuple(
            p
            for phone, after in zip(phones, following, strict=True)
            for p in rules.get(phone, ("A1",) if after == "m" else ("A0",))
        )

    words = [tuple(str(p) for p in rng.choice(list("xhtma"), rng.integers(2, 7))) for _ in range(400)]
    conversion = pronounce.learn([(word, convert_one(word)) for word in words[:300]])
    wrong = [word for word in words[300:] if conversion(word) != convert_one(word)]
    assert len(wrong) <= 2
    assert conversion(("q",)) == ()


def test_phone_errors_count_the_nearest_variant() -> None:
    assert pronounce.phone_errors([[("a", "b"), ("a", "c")], [("d",)]], [("a", "c"), ()]) == pytest.approx(1 / 3)


def test_phones_that_agree_already_stay() -> None:
    words = [("a", "b"), ("b", "aː"), ("aː", "a", "c"), ("c", "b")] * 5
    conversion = pronounce.learn([(word, word) for word in words])
    assert all(conversion(word) == word for word in words)


def test_cmudict_from_espeak() -> None:
    """500 words held out of minilibri's lexicon: 5.0 % of the phones (with stress digits) are wrong."""
    pytest.importorskip("espeakng_loader", reason="the espeak extra is not installed")
    path = SHARED / "corpora" / "minilibri" / "lang" / "lexicon.txt"
    if not path.exists():
        pytest.skip(f"no {path}")
    lexicon = defaultdict(list)
    for line in path.read_text().splitlines()[1:]:
        word, *phones = line.split()
        lexicon[word].append(tuple(phones))
    words = sorted(lexicon)
    held = set(np.random.default_rng(1).choice(words, 500, replace=False))
    train = [word for word in words if word not in held][::6]
    said = espeak.pronounce([word.lower() for word in words], espeak.voice_of("en-us"))
    phones = {w: ipa_phones([s for group in g for s in group], stress=True) for w, g in zip(words, said, strict=True)}
    conversion = pronounce.learn([(phones[word], lexicon[word][0]) for word in train])
    assert (
        pronounce.phone_errors([lexicon[w] for w in sorted(held)], [conversion(phones[w]) for w in sorted(held)])
        < 0.065
    )
