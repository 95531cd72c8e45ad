"""The same word has one form, whichever file it is from, and a line says where something was changed."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from speech3.data.datadir import read_datadir
from speech3.data.transcripts import read_lines
from speech3.decode.hot_words import read_hot
from speech3.evaluate.text import read_all, read_text
from speech3.hmm.kaldi.model import read_symbol_table
from speech3.language.added_words import read_added
from speech3.language.arpa import read_arpa
from speech3.language.grammar import read_sentences
from speech3.language.lexicon import arpa_words, lexicon_entries, read_lexicon, read_lexicon_text
from speech3.language.train_lm import read_words
from speech3.runtime import text as text_module
from speech3.runtime.text import compatibility_words, composed, to_one_form

NFC, NFD = "zéro", unicodedata.normalize("NFD", "zéro")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (NFD, NFC),
        ("ＡＢＣ１２ ﬁn oﬃce", "ABC12 fin office"),
        ("co\u00adop \u200bab\u200b \u200fab\u2060c", "coop ab abc"),
        ("น้ำ\u200bน้ำ می\u200cخواهم", "น้ำ\u200bน้ำ می\u200cخواهم"),
        ("kʰa น้ำ ㎏ Ⅷ ｶ ㄱ x² …！", "kʰa น้ำ ㎏ Ⅷ ｶ ㄱ x² …！"),
    ],
)
def test_one_form(text: str, form: str) -> None:
    assert to_one_form(text) == form


def test_what_is_changed_is_said_once_for_each_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "_said", set())
    assert composed("plain été", "a") == "plain été"
    assert composed(f"one {NFD}", "a") == composed(f"one {NFD}", "a") == f"one {NFC}"
    assert composed("ＡＢ", "b") == "AB"
    first, second = capsys.readouterr().err.splitlines()
    assert "a: " in first and f"(NFC) and are read in it, as in {NFC}" in first
    assert "b: full-width letters" in second and "ＡＢ as AB" in second


def test_letters_that_stand_for_others_are_named() -> None:
    assert compatibility_words(["㎏", "ｶｷ", "Ⅷ", "kʰa", "น้ำ", "été"]) == {"㎏": "kg", "ｶｷ": "カキ", "Ⅷ": "VIII"}


ARPA = "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1 <s> -1\n-1 </s>\n-1 {0} -1\n-1 <unk>\n"
ARPA += "\n\\2-grams:\n-1 <s> {0}\n\n\\end\\\n"
READERS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "words of a lexicon": ("{0} z e\n", lambda path: list(read_lexicon(path).by_word)),
    "a lexicon in lang/": ("{0} z e\n", lambda path: list(lexicon_entries(read_lexicon_text(path), path))),
    "lines of a lexicon in lang/": ("{0} z e\n", lambda path: read_lexicon_text(path).split()[:1]),
    "ARPA's words": (ARPA, lambda path: [word for word in arpa_words(path)]),
    "ARPA": (ARPA, lambda path: [word for word in read_arpa(path).vocabulary if word.startswith("z")]),
    "text of a language model": ("{0}\n", lambda path: [lines.text.strip() for lines in read_lines([path])]),
    "a vocabulary": ("{0}\n", lambda path: list(read_words(path))),
    "words to add": ("{0}\n", lambda path: [added.word for added in read_added(path)]),
    "hot words": ("{0}\n", lambda path: [word for words in read_hot(path) for word in words]),
    "sentences": ("{0}\n", lambda path: [word for word in read_sentences(path).words if word.startswith("z")]),
    "Kaldi's words.txt": ("{0} 0\n", lambda path: list(read_symbol_table(path, ""))),
    "Kaldi's text": ("u1 {0}\n", lambda path: [read_text(path)["u1"]]),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_words_gives_one_form(tmp_path: Path, name: str) -> None:
    content, read = READERS[name]
    for form in (NFD, NFC):
        (tmp_path / "file").write_text(content.format(form), encoding="utf-8")
        assert read(tmp_path / "file") == [NFC], name


def test_transcripts_have_one_form_and_phones_are_as_they_are_written(tmp_path: Path) -> None:
    for name, line in (("wav.scp", "u1 u1.wav"), ("text", f"u1 {NFD}"), ("utt2spk", "u1 s1")):
        (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
    assert read_datadir(tmp_path).utterances["u1"].text == NFC
    phone = unicodedata.normalize("NFD", "ã")
    (tmp_path / "lexicon.txt").write_text(f"{NFD} {phone}\n", encoding="utf-8")
    assert read_lexicon(tmp_path / "lexicon.txt").by_word[NFC][0].phones == (phone,), "models have such phones"


def test_references_and_hypotheses_are_compared_in_one_form(tmp_path: Path) -> None:
    for name, text in (("ref", f"u1 {NFC} ABC\n"), ("hyp", f"u1 {NFD} ＡＢＣ\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    texts = read_all([tmp_path / "ref", tmp_path / "hyp"])
    assert texts.references == texts.hypotheses == [{"u1": f"{NFC} ABC"}]
