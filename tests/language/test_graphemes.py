"""Words spelled by graphemes: digraphs, marks, tones, lengths, apostrophes, and what stands in for rare letters."""

from pathlib import Path

import pytest

from speech3.errors import MachineError, SettingError
from speech3.language import espeak
from speech3.language.graphemes import (
    Graphemes,
    near_letters,
    phone_marks,
    plain_phone,
    read_graphemes,
    silent_characters,
    uses_apostrophes,
)
from speech3.language.guessing import from_spelling, guess_pronunciations
from speech3.language.pronounce import scripts_of


@pytest.mark.parametrize(
    ("word", "spelling", "silent"),
    [
        ("Ngoma", "ng o m a", ""),
        ("ng'ombe", "ng' o m b e", ""),  # the longest that fits
        ("pin-gu", "p i n g u", "-"),
        ("maandazi", "m a꞉ n d a z i", ""),  # aa is given: a long a
        ("taːta", "t a꞉ t a", ""),
        ("ta:ta", "t a꞉ t a", ""),
        ("mána\u0301:", "m á n á꞉", ""),
        ("aː\u0301", "á꞉", ""),  # in any order
        ("ma³⁵n", "m a³⁵ n", ""),
        ("man35", "m a³⁵ n", ""),  # a tone after the whole syllable
        ("ma˥˩", "m a˥˩", ""),
        ("kʰaˈta", "kʰ a t a", "ˈ"),
        ("ẹ\u0301wọ̀", "ẹ́ w ọ̀", ""),
        ("1984", "", "1984"),
        ("e.g.", "e g", ".."),
        ("don’t", "d o n t", "'"),
        ("ก่า", "ก่ า", ""),
        ("한", "ᄒ ᅡ ᆫ", ""),
        ("किताब", "क ि त ा ब", ""),
    ],
)
def test_spelling(word: str, spelling: str, silent: str) -> None:
    spell = Graphemes(("ng", "ng'", "aa"))
    assert spell(word) == tuple(spelling.split())
    assert spell.silent(word) == silent


def test_the_apostrophe_is_a_letter_where_it_is_frequent() -> None:
    spell = Graphemes(apostrophe=True)
    for word in ("wa'a", "wa’a", "waʼa", "wa‘a", "waʻa"):
        assert spell(word) == ("w", "a", "'", "a")
    english = {"the": 60, "house": 30, "don't": 2, "there": 20}
    assert not uses_apostrophes(english)
    assert uses_apostrophes({**english, "wa’a": 30})
    assert not uses_apostrophes({**english, "'wa'": 30})  # quotation marks
    assert uses_apostrophes({**english, "waʻa": 1})  # a letter in Unicode


@pytest.mark.parametrize(
    ("phone", "root", "removed"),
    [
        ("á", "a", "\u0301"), ("a꞉", "a", "꞉"), ("á꞉³⁵", "a", "\u0301꞉³⁵"), ("ẹ́", "ẹ", "\u0301"),
        ("ái", "ai", "\u0301"),
        ("и̂", "и", "\u0302"), ("t꞉", "t", "꞉"), ("ก่", "ก", "\u0e48"),
        # Other letters, not tones or lengths.
        ("ã", "ã", ""), ("ö", "ö", ""), ("š", "š", ""), ("ń", "ń", ""), ("й", "й", ""), ("ng'", "ng'", ""),
        # Phones of other lexica.
        ("aː", "aː", ""), ("AH1", "AH1", ""), ("꞉", "꞉", ""), ("SIL", "SIL", ""), ("tʃ", "tʃ", ""), ("ɑ̃", "ɑ̃", ""),
    ],
)  # fmt: skip
def test_variants_share_their_plain_letter(phone: str, root: str, removed: str) -> None:
    assert plain_phone(phone) == root
    assert phone_marks(phone) == frozenset(removed)


def test_rare_letters_go_to_near_ones() -> None:
    trained = dict.fromkeys("abdehiklmnostuw", 10) | {"é": 6, "a꞉": 5, "ng": 7, "e": 50, "n": 60}
    expected = {
        "é": "é", "ê": "e", "a꞉³": "a", "ẽ": "e", "ö": "o", "ɓ": "b", "ø": "o", "ɛ": "e", "ŋ": "n",
        "q": "k", "x": "k", "dh": "d h", "æ": "e", "ж": "n", "и": "e", "ng": "ng",
    }  # fmt: skip
    assert near_letters(expected, trained) == {phone: tuple(like.split()) for phone, like in expected.items()}
    assert near_letters(["й"], {"и": 5, "н": 9}) == {"й": ("и",)}
    assert near_letters(["ấ"], {"â": 5, "a": 9}) == {"ấ": ("a",)}  # without tone marks of any kind
    assert near_letters(["a"], {}) == {"a": ()}


def test_letters_that_occur_once_lose_no_word(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"mama": 20, "leo": 20, "jazz": 1, "má": 3, "10": 2, "na-leo": 4}
    words = guess_pronunciations([*counts, "qoma"], counts, None, None, spelled=True, graphemes=["eo", "ny"])
    assert words.lines == [  # the most frequent consonant for j, z and q, the most frequent vowel for o
        "<unk> SPN",
        "mama m a m a",
        "leo l eo",
        "jazz m a m m",
        "má m a",
        "na-leo m a l eo",
        "qoma m a m a",
    ]
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "unpronounced characters in train: - in 4 words, as na-leo; digits in 2 words, as 10: write numbers as words"
        in told
    )
    assert "letters with fewer than 5 occurrences in train are treated as others: j as " in told and "á as a" in told
    assert "unused graphemes: ny" in told
    assert dict(words.unpronounced) == {"10": "has no letter"}


def test_nothing_is_silent() -> None:
    assert silent_characters({"mama": 1}, Graphemes()) == ""


def test_parts_are_written_as_the_word_is_and_have_one_grapheme_each() -> None:
    spell = Graphemes(("ng", "aa"), apostrophe=True)
    for word, parts in {
        "Ngaá-ma": "Ng a á- m a",
        "NGAAm": "NG AA m",
        "ng'o": "ng ' o",
        "-ta:m": "-t a: m",
        "ma³⁵ma": "m a³⁵ m a",
        "한국": "한 국",
        "": "",
    }.items():
        assert spell.parts(word) == tuple(parts.split())
        assert "".join(spell.parts(word)) == word
        assert tuple(phone for part in spell.parts(word) for phone in spell(part)) == spell(word)


def test_graphemes_file(tmp_path: Path) -> None:
    path = tmp_path / "graphemes.txt"
    path.write_text("\ufeffNg’ as in ng'ombe\nng\n\nny\tremark\nng\n", encoding="utf-8")
    assert read_graphemes(path) == ("ng'", "ng", "ny")


def test_scripts() -> None:
    mixed = "m\u0430ma"  # a Cyrillic letter within
    assert scripts_of({"mama": 2, "мама": 2, mixed: 1, "かな": 1, "漢": 1, "ʼʰ": 9, "12": 1}) == {
        "Latin": (11, ["mama", mixed]),
        "Cyrillic": (9, ["мама", mixed]),
        "CJK": (3, ["かな", "漢"]),
    }


def test_words_added_later_are_spelled_as_the_model_spells() -> None:
    """Digraphs and lengths are learnt back from the lexicon that they were written to."""
    spell = Graphemes(("ng", "aa"))
    syllables = [a + b for a in ("m", "k", "ng", "t", "s", "l") for b in ("a", "aa", "i", "ó")]
    words = [a + b for a in syllables for b in syllables]
    found, _ = from_spelling(["ngaaki", "sóngati"], {word: [spell(word)] for word in words[::2]}, "lexicon")
    assert found == {"ngaaki": ("ng", "a꞉", "k", "i"), "sóngati": ("s", "ó", "ng", "a", "t", "i")}


@pytest.mark.parametrize("installed", [True, False])
def test_a_mistaken_language_is_refused_where_words_need_no_espeak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    def no_espeak() -> None:
        raise MachineError("missing")

    (tmp_path / "lexicon.txt").write_text("leo l e o\n")
    wrong, right = "turkish", ("tr", "tr-TR", "crh")
    if not installed:
        monkeypatch.setattr(espeak, "voices", no_espeak)
    for lexicon in (None, tmp_path / "lexicon.txt"):
        with pytest.raises(SettingError, match=f"lang={wrong}: "):
            guess_pronunciations(["leo"], {"leo": 9}, lexicon, wrong, spelled=lexicon is None)
        for code in right:
            guess_pronunciations(["leo"], {"leo": 9}, lexicon, code, spelled=lexicon is None)
