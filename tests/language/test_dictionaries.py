"""Dictionaries as people have them: Kaldi's, MFA's, CMUdict, SAMPA; and what is wrong in them, with its line."""

from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.hmm.clustering import digits, phone_groups
from speech3.language import g2p
from speech3.language.lexicon import lexicon_lines, read_lexicon, warnings

Rows = list[tuple[str, str, float]]
KALDI: Rows = [("<UNK>", "SPN", 1.0), ("a", "A", 0.5), ("a", "EY", 1.0), ("be", "B EH", 1.0)]
IPA: Rows = [("a", "ə", 0.99), ("be", "b iː", 0.5)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lexicon.txt", "!SIL SIL\n<UNK> SPN\na A\na EY\nbe B EH\n", [(w, p, 1.0) for w, p, _ in KALDI]),
        ("lexiconp.txt", "!SIL 1.0 SIL\n<UNK> 1.0 SPN\na 0.5 A\na 1.0 EY\nbe 1.0 B EH\n", KALDI),
        (
            "lexiconp_silprob.txt",
            "!SIL 1 0.2 1 1 SIL\n<UNK> 1 0.2 1 1 SPN\na 0.5 .2 1.1 .9 A\na 1 .2 1 1 EY\nbe 1 .2 1 1 B EH\n",
            KALDI,
        ),
        ("english.dict", "a\tə\nbe\tb iː\n", [(w, p, 1.0) for w, p, _ in IPA]),
        ("english.dict", "a\t0.99\tə\nbe\t0.5\tb iː\n", IPA),
        ("english.dict", "a\t0.99\t0.17\t1.43\t0.9\tə\nbe\t0.5\t0.2\t1.0\t1.0\tb iː\n", IPA),
        ("english.dict", "a\t1\t1\t1\t1\tə\nbe\t0.5\t0.2\t1.0\t1.0\tb iː\n", [("a", "ə", 1.0), IPA[1]]),
        ("lexicon.txt", "\ufeffa\t A  B \r\n\r\nb\tB\r\n", [("a", "A B", 1.0), ("b", "B", 1.0)]),
        ("lexicon.txt", "a\u00a0A B\nb B\n", [("a", "A B", 1.0), ("b", "B", 1.0)]),
        (
            "cmudict-0.7b",
            ";;; # CMUdict\n!POINT  P OY1\nTOMATO  T AH0\nTOMATO(1)  T AA1\n",
            [("!POINT", "P OY1", 1.0), ("TOMATO", "T AH0", 1.0), ("TOMATO", "T AA1", 1.0)],
        ),
        (
            "cmudict.dict",
            "a AH0\na(2) EY1 # place, danish\n'bout B AW1 T\n",
            [("a", "AH0", 1.0), ("a", "EY1", 1.0), ("'bout", "B AW1 T", 1.0)],
        ),
        ("lexicon.txt", "a(1) AH0\na(2) EY1\nb(2) B\n", [("a", "AH0", 1.0), ("a", "EY1", 1.0), ("b(2)", "B", 1.0)]),
        ("cmudict-0.7b", b";;; # CMUdict\nD\xc9J\xc0  D EY2\n", [("DÉJÀ", "D EY2", 1.0)]),
        ("lexicon.txt", "a A\nbe B EH\n".encode("utf-16"), [("a", "A", 1.0), ("be", "B EH", 1.0)]),
    ],
)
def test_forms(tmp_path: Path, name: str, text: str | bytes, expected: Rows) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = [(pron.word, " ".join(pron.phones), pron.prob) for pron in read_lexicon(path).pronunciations]
    assert found == expected


def test_a_compiled_lexicon_is_read_without_its_second_column(tmp_path: Path) -> None:
    path = tmp_path / "align_lexicon.txt"
    path.write_text("<eps> <eps> SIL\na a A_S\nbe be B_B EH_E\n")
    (tmp_path / "word_boundary.txt").write_text("SIL nonword\n")
    assert [pron.phones for pron in read_lexicon(path).pronunciations][-2:] == [("A",), ("B", "EH")]


def test_several_silences_and_noises(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("!SIL SIL\n<sil> sil\n<p> sp\nspn spn\n[noise] NSN\n<laugh> LGH\na A\nha H A LGH\n")
    lexicon = read_lexicon(path)
    assert lexicon.noise_phones == ("sil", "sp", "spn", "NSN"), "LGH is in a word, too"
    assert {lexicon.phones[number - 1] for number in lexicon.context_free} == {"SIL", "sil", "sp", "spn", "NSN"}


def test_digits_of_sampa_are_not_stress(tmp_path: Path) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text("see e:6 n\nsees e: n\nneun n 9 6\nfoo 2: n\n")
    lexicon = read_lexicon(path)
    assert not digits(lexicon) and all(len(group) == 1 for group in phone_groups(lexicon))
    path.write_text("a AH0\nb B AH1\nc S IY0\nd D IY1 S\n")
    assert digits(read_lexicon(path)) == {"AH0": "0", "AH1": "1", "IY0": "0", "IY1": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a A\nb B 12\n", r"lexicon\.txt:2: b: 12 is a number, not a phone"),
        ("a 0,5 A\nb 1,0 B\n", r"lexicon\.txt:1: a: 0,5 is a number"),
        ("a 0.17 1.43 0.9 A\n", r"lexicon\.txt:1: a: 1\.43 is a number"),
        ("a|A B\nb|B A\n", r"lexicon\.txt: its words have commas, semicolons or bars in them"),
        ('{"a": ["A B"]}\n', r"lexicon\.txt: is JSON"),
        ("word\tphones\na\tA B\n", r"lexicon\.txt: is a table"),
        ("a A #1\n", r"lexicon\.txt:1: a: #1 is a disambiguation symbol of Kaldi"),
        ("a,A B\nb,B\n", r"lexicon\.txt: its words have commas, semicolons or bars in them \(a,A\)"),
        ("a A\nb\n", r"lexicon\.txt:2: b has no phones"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lexicon.txt"
    path.write_text(text)
    with pytest.raises(Speech3Error, match=message):
        read_lexicon(path)


def test_doubtful_lines_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lexicon.txt"
    rows = [f"w{number} A B{number % 3}\n" for number in range(120)]
    text = "".join([*rows[:60], "slip A Bo\n", *rows[60:], "two A . B0\n", "[noise] NSN\n"])
    assert warnings(list(lexicon_lines(text, path)), path) == [
        f"{path}:61: slip: no other word has the phone Bo; correct it if it is a slip",
        f"{path}:122: two: no other word has the phone .; correct it if it is a slip",
        f"{path}:122: two: . is a phone of its own here, in 1 places; remove it if it only separates syllables or marks"
        " stress",
    ]
    assert not warnings(list(lexicon_lines("a A\nb B\n", path)), path), "few words: each phone may occur once"
    path.write_text(text)
    g2p.read_table(path)
    assert "slip: no other word has the phone Bo" in " ".join(capsys.readouterr().err.split())
