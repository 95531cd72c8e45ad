"""Lexicons in the notations of linguists, spreadsheets and web pages: read, or refused with file and line."""

from pathlib import Path

import pytest

from speech3.errors import FormatError
from speech3.language import read_lexicon

ZERO = {"zero": ("z", "iy", "r", "ow"), "one": ("w", "ah", "n"), "two": ("t", "uw")}


def written(tmp_path: Path, template: str, between: str = " ") -> Path:
    path = tmp_path / "lexicon.txt"
    path.write_text("".join(template.format(word, between.join(phones)) + "\n" for word, phones in ZERO.items()))
    return path


@pytest.mark.parametrize(
    ("template", "between", "removed"),
    [
        ("{} {}", " ", ""),
        ("{} /{}/", " ", "/ /"),
        ("{}\t[{}]", " ", "[ ]"),
        ("{}\t/ {} /", " ", "/ /"),
        ('"{}" {}', " ", "quotes"),
        ('"{}"\t"{}"', " ", "quotes"),
        ('"{}", "{}"', " ", ","),
        ("{}: {}", " ", ": after"),
        ("{} = {}", " ", "= after"),
        ("{}, {}", ", ", ", between"),
        ("{} 0.5 /{}/", " ", "/ /"),
        ("{}\t{}", "\t", ""),
        ("{} {}", "\t", ""),
    ],
)
def test_notations_that_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str, between: str, removed: str
) -> None:
    lexicon = read_lexicon(written(tmp_path, template, between))
    assert {pron.word: pron.phones for pron in lexicon.pronunciations} == ZERO
    said = capsys.readouterr().err
    assert removed in said and bool(said) is bool(removed)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("zero z.iy.r.ow\none w.ah.n\ntwo t.uw\n", "lexicon.txt:1: zero: z.iy.r.ow"),
        ("zero z-iy-r-ow\none w-ah-n\ntwo t-uw\n", "lexicon.txt:1: zero: z-iy-r-ow"),
        ("zero ˈzɪəɹəʊ\none wʌn\ntwo tuː\n", "lexicon.txt:1: zero: ˈzɪəɹəʊ"),
        ("zero /ˈzɪəɹəʊ/\none /wʌn/\ntwo /tuː/\n", "lexicon.txt:1: zero: ˈzɪəɹəʊ"),
        ("zero z iy\nread r eh d, r iy d\ntwo t uw\n", "lexicon.txt:2: read: d,"),
        ("zero\tz iy\nice cream\tay s k\ntwo\tt uw\n", "lexicon.txt:2: ice cream"),
        ("zero\t0.5\tz iy\nice cream\t0.5\tay s k\ntwo\t0.5\tt uw\n", "lexicon.txt:2: ice cream"),
        ("zero,z iy\none,w ah n\ntwo,t uw\n", "lexicon.txt"),
    ],
)
def test_phones_that_cannot_be_told_apart_are_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    with pytest.raises(FormatError) as error:
        read_lexicon(path)
    assert named in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "zero ZERO\none ONE\ntwo TWO\n",  # a model for each word
        "zero w_zero\none w_one\ntwo w_two\n",
        "<unk> SPN\n[breath] [breath]\nai a:\no ɔ:\n",
        "ŋa ŋ\nɛ ɛ\nou ɔ\nei e\n",
        'a. a\nzero z" \'i o%\none w A_" n\n',
        "zero\t0.5\tz iy\none\t1.0\tw ah n\n",
        "nǃa /\nǁa ǁ a\nǀo ǀ o\n",
        "mat m a t;\nnos n o s\nden d; e n;\nkot k o t\n",  # Kirshenbaum's palatals
        "første første\nnæste næste\nstør w_stør\nen en\n",
    ],
)
def test_what_is_no_notation_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    lexicon = read_lexicon(path)
    assert len(lexicon.pronunciations) == text.count("\n")
    assert not capsys.readouterr().err


def test_a_phone_in_brackets_that_is_the_word_stays(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("hello [h e l o]\nbye [b ai]\nyou [j u]\nthe [dh e]\ncat [k a t]\n[breath] [breath]\n")
    lexicon = read_lexicon(path)
    assert lexicon.by_word["[breath]"][0].phones == ("[breath]",)
    assert lexicon.by_word["cat"][0].phones == ("k", "a", "t")
