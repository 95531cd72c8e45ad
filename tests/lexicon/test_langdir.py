"""`lang/` as Kaldi's prepare_lang.sh leaves it."""

import gzip
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.io.text import read_utf8
from speech3.lexicon import langdir

ALIGN = "<eps> <eps> SIL\n!SIL !SIL SIL_S\n<UNK> <UNK> SPN_S\na a AH_S\na a EY_S\nabout about AH_B B_I AW_I T_E\n"


def test_a_compiled_lang_directory_is_a_lexicon(tmp_path: Path) -> None:
    (tmp_path / "phones").mkdir()
    for name, text in (("align_lexicon", ALIGN), ("word_boundary", "SIL nonword\n"), ("optional_silence", "SIL\n")):
        (tmp_path / "phones" / f"{name}.txt").write_text(text)
    (tmp_path / "phones.txt").write_text("<eps> 0\n")
    lexicon = langdir.find(tmp_path).lexicon
    assert lexicon == tmp_path / "phones" / "align_lexicon.txt"
    text = langdir.read_lexicon_text(lexicon)
    assert langdir.entries(text, lexicon) == {
        "<UNK>": [("SPN",)], "a": [("AH",), ("EY",)], "about": [("AH", "B", "AW", "T")]
    }  # fmt: skip
    (tmp_path / "phones" / "word_boundary.txt").unlink()  # phones without places may be called so
    assert "about AH_B B_I AW_I T_E" in langdir.read_lexicon_text(lexicon)
    lexicon.unlink()
    with pytest.raises(Speech3Error, match=r"lang directory of Kaldi without phones/align_lexicon\.txt"):
        langdir.find(tmp_path)


def test_a_phone_that_looks_like_a_probability() -> None:
    sampa, path = "\u00een 1 n\na a\nnu n u\n", Path("lexicon.txt")
    assert langdir.entries(sampa, path)["\u00een"] == [("1", "n")]
    for text in ("a 1 A\nb 0.5 B\n<unk> SPN\n", "a 1 A\nb 1 B B\n<unk> SPN\n", "a 1 A\nb 0.5 B\nc C D\n"):
        assert langdir.entries(text, path)["a"] == [("A",)], text
    assert langdir.entries("a 1 1\n", Path("lexiconp.txt")) == {"a": [("1",)]}
    for field in ("1.2", "0", ".x", "A"):
        with pytest.raises(Speech3Error, match=r"lexiconp\.txt:1: a needs a probability above 0 and up to 1"):
            langdir.entries(f"a {field} A\n", Path("lexiconp.txt"))


@pytest.mark.parametrize("name", ["text", "text.gz", "lm_train.txt", "lm_train.txt.gz"])
def test_the_text_may_be_packed(tmp_path: Path, name: str) -> None:
    content = "mama anasoma\nвода\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    text = langdir.find(tmp_path).text
    assert text == tmp_path / name
    assert read_utf8(text) == content.decode()


def test_a_packed_text_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"cut short" * 99)[:-9])
    with pytest.raises(Speech3Error, match=r"text\.gz: cannot be read \("):
        read_utf8(tmp_path / "text.gz")


def test_noises_and_silences_are_no_words() -> None:
    assert not any(map(langdir.is_word, ["<unk>", "<s>", "<noise>", "[laughter]", "{cough}", "(breath)", "!SIL"]))
    assert all(map(langdir.is_word, ["a", "'tis", "<", "it's", "你好", "x]", "!"]))
