"""Reading of texts, finding out their kind, normalisation."""

from pathlib import Path

import pytest

from speech3.data.transcripts import normalize_text, parse_steps
from speech3.errors import Speech3Error
from speech3.evaluate.text import characters, find_speakers, read_all, read_text


def files(directory: Path, *texts: str) -> list[Path]:
    paths = [directory / f"file{n}" for n in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def test_read_text(tmp_path: Path) -> None:
    (path,) = files(tmp_path, "\ufeffu1 one  two \r\n\nu2\nu3\tthree\u2028four\n")
    assert read_text(path) == {"u1": "one  two", "u2": "", "u3": "three\u2028four"}


@pytest.mark.parametrize(
    ("ref", "hyp", "reading"),
    [
        ("u1 a b\nu2 c\n", "u2 c\nu1 a\n", "kaldi"),
        ("spk-utt a b\n", "spk-utt a c\n", "kaldi"),
        ("0001 a b\n0002 c d\n0003 e\n", "0001 a b\n0003 e\n", "kaldi"),
        ("a one two\nb three\n", "a one\nb three\n", "kaldi"),
        ("anna one two\nbert three\n", "bert three\n", "kaldi"),
        ("hello world\n", "hello there\n", "plain"),
        ("the cat sat\non the mat\n", "the cat sit\non mat\n", "plain"),
        ("one two\none three\n", "one two\none two\n", "plain"),
        ("1 2 3\n3 1 2\n2 1\n", "1 2 3\n3 1 2\n2 2 1\n", "plain"),
        ("a b\n\nc d\n", "a b\nx\n\n", "plain"),
        ("a b\n", "x b\n", "plain"),
        ("1 2\n1 3\n", "1 2\n1 4\n", "plain"),
    ],
)
def test_reading_is_found_out(tmp_path: Path, ref: str, hyp: str, reading: str) -> None:
    assert read_all(files(tmp_path, ref, hyp)).readings == (reading, reading)


def test_plain_lines_are_paired_in_order(tmp_path: Path) -> None:
    found = read_all(files(tmp_path, "a b\n\nc d\n", "a b\nx\n\n\n"), "plain")
    assert found.references + found.hypotheses == [
        {"line-1": "a b", "line-2": "", "line-3": "c d"},
        {"line-1": "a b", "line-2": "x", "line-3": ""},
    ]


def test_reading_can_be_said(tmp_path: Path) -> None:
    paths = files(tmp_path, "hello world\n", "hello there\n")
    found = read_all(paths, "kaldi")
    assert (found.references, found.hypotheses) == ([{"hello": "world"}], [{"hello": "there"}])


def test_ids_are_not_taken_for_words_without_a_warning(tmp_path: Path) -> None:
    ids, others, words = (f"{utt}1 a b\n{utt}2 c\n" for utt in ("s1-u", "s2-u", ""))
    with pytest.raises(Speech3Error, match="with the same ids") as refused:
        read_all(files(tmp_path, ids, others))
    assert "--format" not in str(refused.value)
    both = files(tmp_path, ids, others)
    notes = read_all(both, "plain").notes
    assert [str(path) in note and "utterance ids" in note for path, note in zip(both, notes, strict=True)] == [True] * 2
    assert len(read_all(files(tmp_path, words, ids), "plain").notes) == 1
    assert not read_all(files(tmp_path, words, words), "plain").notes
    with pytest.raises(Speech3Error, match="--format plain if these are words"):
        read_all(files(tmp_path, "anna one two\nbert three\n", "carl one two\ndora three\n"))


@pytest.mark.parametrize(
    ("ref", "hyp", "reading", "says"),
    [
        ("u1 a\n", "", "auto", "file1: is empty.*nothing was decoded"),
        ("", "u1 a\n", "auto", "file0: is empty"),
        ("u1 a\nu1 b\n", "u1 a\n", "kaldi", "file0:2: utterance u1 occurs a second time"),
        ("a b\nb a\n", "a b\n", "plain", "file1 has 1 lines, .*file0 has 2"),
        ("s1-u1 a b\ns1-u2 c\n", "a b\nc\n", "auto", "file0: .*s1-u1.*file1"),
        ("a b\nc\n", "s1-u1 a b\ns1-u2 c\n", "auto", "file1: .*s1-u1.*file0"),
        ("\nutt 1 a\nutt 2 b\n", "utt 1 a\nutt 2 c\n", "auto", "file0: .*contain a space .`utt 1`"),
        ("u1 a\nu2 b\n", "v1 a\nv2 b\n", "auto", "fewer than half of their utterance ids agree"),
    ],
)
def test_faults_are_named(tmp_path: Path, ref: str, hyp: str, reading, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Speech3Error, match=says):
        read_all(files(tmp_path, ref, hyp), reading)


def test_missing_binary_and_directory(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"u1 caf\xe9\n")
    for path, says in ((tmp_path / "none", "no such file"), (tmp_path / "latin", "not UTF-8"), (tmp_path, "directory")):
        with pytest.raises(Speech3Error, match=says):
            read_text(path)


@pytest.mark.parametrize(
    ("text", "steps", "result"),
    [
        ("  A  b\tC ", "", "A b C"),
        ("Don’t, 'stop' -- the dogs' well-known U.S.!", "punct", "Don't stop the dogs well known U S"),
        ("Don't STOP", "lower", "don't stop"),
        ("ＡＢ１ ﬁne…", "nfkc", "AB1 fine..."),
        ("ＡＢ１ ﬁne… «Ja»", "nfkc,lower,punct", "ab1 fine ja"),
        ("<unk> 5 $ 日本、語。", "punct", "<unk> 5 $ 日本 語"),
        ("...", "punct", ""),
    ],
)
def test_normalisation(text: str, steps: str, result: str) -> None:
    assert normalize_text(text, parse_steps(steps)) == result


def test_unknown_step_is_named() -> None:
    with pytest.raises(Speech3Error, match="unknown step 'loud'; choose from nfkc, lower, punct"):
        parse_steps("nfkc,loud")
    with pytest.raises(Speech3Error, match="loud"):
        normalize_text("x", ["loud"])


def test_speakers_beside_the_reference(tmp_path: Path) -> None:
    ref, texts = tmp_path / "text", {"u1": "a", "u2": "b"}
    assert find_speakers(ref, texts, "kaldi", None)[0] is None
    (tmp_path / "utt2spk").write_text("u1 anna\nu2 bert\nu3 carl\n")
    assert find_speakers(ref, texts, "kaldi", None) == (
        {"u1": "anna", "u2": "bert", "u3": "carl"},
        str(tmp_path / "utt2spk"),
    )
    assert find_speakers(ref, texts, "plain", None)[0] is None
    (tmp_path / "utt2spk").write_text("u1 anna\n")
    assert "lacks u2" in find_speakers(ref, texts, "kaldi", None)[1]
    with pytest.raises(Speech3Error, match="utterance u2 has no speaker"):
        find_speakers(ref, texts, "kaldi", tmp_path / "utt2spk")


@pytest.mark.parametrize("text", ["สวัสดี ครับ", "ສະບາຍດີ ບໍ", "မင်္ဂလာပါ ရှင့်", "សួស្តី បាទ", "三 百", "カタ カナ"])
def test_spaces_are_not_counted_in_scripts_without_them(text: str) -> None:
    assert characters(text) == text.replace(" ", "")
    assert characters(f"a {text}  b  cat") == f"a{text.replace(' ', '')}b cat"
