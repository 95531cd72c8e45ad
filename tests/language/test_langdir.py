"""`lang/` as Kaldi's prepare_lang.sh leaves it."""

import gzip
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.language import lexicon as langdir
from speech3.language.lexicon import mark_positions, read_lexicon
from speech3.runtime.text import read_utf8

ALIGN = "<eps> <eps> SIL\n!SIL !SIL SIL_S\n<UNK> <UNK> SPN_S\na a AH_S\na a EY_S\nabout about AH_B B_I AW_I T_E\n"


def test_a_compiled_lang_directory_is_a_lexicon(tmp_path: Path) -> None:
    (tmp_path / "phones").mkdir()
    for name, text in (("align_lexicon", ALIGN), ("word_boundary", "SIL nonword\n"), ("optional_silence", "SIL\n")):
        (tmp_path / "phones" / f"{name}.txt").write_text(text)
    (tmp_path / "phones.txt").write_text("<eps> 0\n")
    lexicon = langdir.find_lang(tmp_path).lexicon
    assert lexicon == tmp_path / "phones" / "align_lexicon.txt"
    text = langdir.read_lexicon_text(lexicon)
    assert langdir.lexicon_entries(text, lexicon) == {
        "<UNK>": [("SPN",)],
        "a": [("AH",), ("EY",)],
        "about": [("AH", "B", "AW", "T")],
    }
    (tmp_path / "phones" / "word_boundary.txt").unlink()  # phones without places may be called so
    assert "about AH_B B_I AW_I T_E" in langdir.read_lexicon_text(lexicon)
    lexicon.unlink()
    with pytest.raises(Speech3Error, match=r"lang directory of Kaldi without phones/align_lexicon\.txt"):
        langdir.find_lang(tmp_path)


def test_a_phone_that_looks_like_a_probability() -> None:
    sampa, path = "\u00een 1 n\na a\nnu n u\n", Path("lexicon.txt")
    assert langdir.lexicon_entries(sampa, path)["\u00een"] == [("1", "n")]
    for text in ("a 1 A\nb 0.5 B\n<unk> SPN\n", "a 1 A\nb 1 B B\n<unk> SPN\n", "a 1 A\nb 0.5 B\nc C D\n"):
        assert langdir.lexicon_entries(text, path)["a"] == [("A",)], text
    assert langdir.lexicon_entries("a 1 1\n", Path("lexiconp.txt")) == {"a": [("1",)]}
    for field in ("1.2", "0", ".x", "A"):
        with pytest.raises(Speech3Error, match=r"lexiconp\.txt:1: a needs a probability above 0 and up to 1"):
            langdir.lexicon_entries(f"a {field} A\n", Path("lexiconp.txt"))


@pytest.mark.parametrize("name", ["text", "text.gz", "lm_train.txt", "lm_train.txt.gz"])
def test_the_text_may_be_packed(tmp_path: Path, name: str) -> None:
    content = "mama anasoma\nвода\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    text = langdir.find_lang(tmp_path).text
    assert text == tmp_path / name
    assert read_utf8(text) == content.decode()


def test_a_packed_text_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"cut short" * 99)[:-9])
    with pytest.raises(Speech3Error, match=r"text\.gz: cannot be read \("):
        read_utf8(tmp_path / "text.gz")


def test_noises_and_silences_are_no_words() -> None:
    assert not any(map(langdir.is_word, ["<unk>", "<s>", "<noise>", "[laughter]", "{cough}", "(breath)", "!SIL"]))
    assert all(map(langdir.is_word, ["a", "'tis", "<", "it's", "你好", "x]", "!"]))


MFA = "zero\t0.99\t0.17\t1.43\t0.9\tz ih r ow\nzero\t0.5\tz iy\none\tw ah n\n"
SILPROB = "zero 1 0.17 1 1 z ih\none 0.3 0.2 1.5 0.7 w ah\n"


@pytest.mark.parametrize("name", ["lexicon.txt", "lexiconp.txt", "english.dict"])
def test_columns_of_numbers_are_no_phones(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    found = list(langdir.lexicon_lines(SILPROB, path))
    assert [(line.word, line.values, line.phones) for line in found] == [
        ("zero", (1.0,), ("z", "ih")),
        ("one", (0.3,), ("w", "ah")),
    ]
    told = " ".join(capsys.readouterr().err.split())
    assert f"{name}: four numbers after a word: the first is used" in told and "(in recipes, hmm.lexicon_probs" in told
    if name != "lexiconp.txt":  # each of whose lines has a probability
        found = list(langdir.lexicon_lines(MFA, path))
        assert [(line.values, line.phones) for line in found] == [
            ((0.99,), ("z", "ih", "r", "ow")),
            ((0.5,), ("z", "iy")),
            ((), ("w", "ah", "n")),
        ]
    assert langdir.lexicon_entries("zero 0.9 z ih\none 1.0 w\n", path) == {"zero": [("z", "ih")], "one": [("w",)]}


def test_the_own_name_keeps_the_silence_probabilities() -> None:
    (first, _) = langdir.lexicon_lines(SILPROB, Path("lexiconp_silprob.txt"))
    assert first.values == (1.0, 0.17, 1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a A\nb 0.5 0.7 B\n", r"lexicon\.txt:2: b: 0\.7 is a number, not a phone"),
        ("a 1.5 A\n", r"lexicon\.txt:1: a: 1\.5 is a number"),
        ("a A B 1.0_I\n", r"lexicon\.txt:1: a: 1\.0_I is a number"),
        ("a 12 7 233\n", r"lexicon\.txt:1: a: 12 is a number"),
        ("a A 1e-05\n", r"lexicon\.txt:1: a: 1e-05 is a number"),
        ("a -1.2 A\n", r"lexicon\.txt:1: a: -1\.2 is a number"),
        (f"{SILPROB}b 0.5 0.7 B\n", r"lexicon\.txt:3: b has 2 numbers before its phones"),
        ("a 0 0.1 1 1 A\n", r"lexicon\.txt:1: a needs a probability above 0"),
        ("a A\n<s> S EH\n", r"lexicon\.txt:2: <s> is a symbol"),
        ("#0 A B\n", r"lexicon\.txt:1: #0 is a symbol"),
    ],
)
def test_numbers_and_symbols_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        langdir.lexicon_entries(text, Path("lexicon.txt"))


def test_digits_are_phones_in_sampa() -> None:
    text = "schön S 2: n\nkönnen k 9 n @ n\noper o: p 6\nneun n OY n\n"
    assert langdir.lexicon_entries(text, Path("lexicon.txt"))["oper"] == [("o:", "p", "6")]
    assert langdir.lexicon_entries("œuvre 9 v R\nî 1\n", Path("lexicon.txt"))["œuvre"] == [("9", "v", "R")]


def test_comments_and_variants_as_in_cmudict() -> None:
    text = (
        ";;; # CMUdict\n## old\n# a remark\n#by hand\n<s> SIL\n!SIL SIL\n#HASH-MARK HH AE1 SH\n"
        "TOMATO T AH0 HH AE1 # food\nTOMATO(2) T SH\nSMILE(2) SH\n"
    )
    assert langdir.lexicon_entries(text, Path("lexicon.txt")) == {
        "!SIL": [("SIL",)],
        "#HASH-MARK": [("HH", "AE1", "SH")],
        "TOMATO": [("T", "AH0", "HH", "AE1"), ("T", "SH")],
        "SMILE(2)": [("SH",)],
    }


def test_noises_are_those_of_kaldi_and_of_the_lists_beside_the_lexicon(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("!SIL SIL\n<unk> SPN\n[noise] NSN\n[laugh] LAU\n[breath] BRH\na A\nbreath BRH\n")
    assert read_lexicon(path).noise_phones == ("SPN", "NSN", "LAU")
    path.write_text("!SIL SIL\n<unk> SPN\n[noise] NSN\n[laugh] LAU\n[breath] BRH\na A\n")
    assert read_lexicon(path).noise_phones == ("SPN", "NSN", "LAU", "BRH"), "no word has BRH"
    (tmp_path / "silence_phones.txt").write_text("SIL\nSPN NSN\nBRH\n")
    (tmp_path / "nonsilence_phones.txt").write_text("A\nLAU\n")
    lexicon = read_lexicon(path)
    assert lexicon.noise_phones == ("SPN", "NSN", "BRH")
    marked = mark_positions(lexicon)
    assert marked.phones == ("SIL", "A_S", "BRH", "LAU_S", "NSN", "SPN")
    assert {marked.phones[number - 1] for number in marked.context_free} == {"SIL", "BRH", "NSN", "SPN"}


def test_noises_of_a_compiled_lang_directory(tmp_path: Path) -> None:
    (tmp_path / "phones").mkdir()
    for name, text in (
        ("word_boundary", "SIL nonword\n"),
        ("silence", "SIL\nSIL_B\nBRH\nBRH_S\n"),
        ("nonsilence", "A_S\n"),
    ):
        (tmp_path / "phones" / f"{name}.txt").write_text(text)
    expected = frozenset({"SIL", "BRH"}), frozenset({"A"})
    assert langdir.listed_phones(tmp_path / "lexicon.txt") == expected
    assert langdir.listed_phones(tmp_path / "phones" / "align_lexicon.txt") == expected
