"""The formats of NIST's sclite: recognised, read, divided by time, scored; or refused by line."""

from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.evaluate.formats import Line, format_of
from speech3.evaluate.text import Texts, allowed, read_all, read_ids, read_text, resolve
from speech3.evaluate.wer import ErrorCounts, score

REF_TRN = "the cat sat (s1-u1)\nthe dog ran away (s1-u2)\na bird (s2-u1)\nno (s2-u2)\n"
HYP_TRN = "yes (s2-u2)\nthe cat sit (s1-u1)\na word (s2-u1)\nthe dog ran(s1-u2)\n"  # in another order
STM = (
    ';; LABEL "M" "Male" "Male Talkers"\n'
    "rec A anna 0.00 2.00 <O,M,00> hello there\n"
    "rec A bert 2.00 4.00 IGNORE_TIME_SEGMENT_IN_SCORING\n"
    "rec A anna 4.00 6.00 how are you\n"
    "rec B carl 0.00 3.00 fine\n"
)
CTM = (
    ";; made by a test\n"
    "rec 1 0.10 0.50 hello 0.99\nrec 1 1.70 0.50 there 0.98\n"  # its middle, 1.95, is before the end of the segment
    "rec 1 2.50 0.50 noise 0.3\nrec 1 4.10 0.30 how 0.9\n\nrec 1 4.60 0.30 were 0.9\nrec 1 6.60 0.30 you 0.9\n"
    "rec 2 0.50 0.20 fine 0.9\nother 1 0.00 0.10 what 0.5\n"
)


def read(directory: Path, reading: str = "auto", **texts: str) -> Texts:
    """Write ``ref_trn="..."`` to ref.trn (``ref``: no ending), and read all."""
    paths = []
    for name, text in texts.items():
        path = directory / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return read_all(paths, reading)  # type: ignore[arg-type]


def counts(texts: Texts) -> ErrorCounts:
    return score(texts.references[0], texts.hypotheses[0]).words


@pytest.mark.parametrize("names", [("ref_trn", "hyp_trn"), ("ref", "hyp"), ("ref", "hyp_txt")])
def test_trn_is_read_by_its_ids_whatever_the_order_and_the_name(tmp_path: Path, names: tuple[str, str]) -> None:
    texts = read(tmp_path, **dict(zip(names, (REF_TRN, HYP_TRN), strict=True)))
    assert texts.readings == ("trn", "trn")
    found = counts(texts)
    assert (found.length, found.errors) == (10, 4), "WER 40.00, as sclite says"


def test_files_with_ids_of_different_formats_are_compared_by_the_ids(tmp_path: Path) -> None:
    kaldi = "s1-u1 the cat sit\ns1-u2 the dog ran\ns2-u1 a word\ns2-u2 yes\n"
    assert counts(read(tmp_path, ref_trn=REF_TRN, hyp=kaldi)).errors == 4
    ctm = "s1-u1 1 0.0 0.1 the 0.9\ns1-u1 1 0.1 0.1 cat\ns1-u2 1 0.0 0.1 the\ns2-u1 1 0.2 0.1 bird\n"
    found = read(tmp_path, ref=kaldi, hyp_ctm=ctm)
    assert found.hypotheses[0] == {"s1-u1": "the cat", "s1-u2": "the", "s2-u1": "bird"}


def test_words_of_a_ctm_are_divided_by_the_times_of_an_stm(tmp_path: Path) -> None:
    texts = read(tmp_path, ref_stm=STM, hyp_ctm=CTM)
    assert texts.hypotheses[0] == {
        "rec-A-0.00-2.00": "hello there",
        "rec-A-4.00-6.00": "how were you",
        "rec-B-0.00-3.00": "fine",
    }
    assert texts.references[0]["rec-A-0.00-2.00"] == "hello there", "the label is not a word"
    assert texts.speakers == {"rec-A-0.00-2.00": "anna", "rec-A-4.00-6.00": "anna", "rec-B-0.00-3.00": "carl"}
    assert (counts(texts).length, counts(texts).errors) == (6, 1)
    assert any("marked IGNORE" in note and note.endswith("and not scored: 1 segment") for note in texts.notes)
    assert any("other 1" in note for note in texts.notes)


def test_two_ctm_files_are_compared_by_recording_and_channel(tmp_path: Path) -> None:
    reference = "a A 0.5 0.1 two\na A 0.1 0.1 one\na B 0.0 0.1 three\n"
    texts = read(tmp_path, ref_ctm=reference, hyp_ctm="a 1 0.1 0.1 one\na 2 0.0 0.1 tree\n")
    assert texts.references[0] == {"a-1": "one two", "a-2": "three"}
    assert counts(texts) == ErrorCounts(3, 1, 1, 0)


def test_alternatives_no_word_and_optional_words(tmp_path: Path) -> None:
    reference = "i've { um / uh / @ } as far as (i'm) { very { much / @ } / so } concerned (a_1)\n;; remark\nb (a_2)\n"
    for hypothesis, errors, length in (
        ("i've as far as so concerned", 0, 7),  # the optional word counts as correct
        ("i've uh as far as i'm very concerned", 0, 8),
        ("i've er as far as i'm very much concerned", 1, 8),  # an insertion beside no word costs less than another word
    ):
        texts = read(tmp_path, ref_trn=reference, hyp_trn=f"{hypothesis} (a_1)\nb (a_2)\n")
        assert (counts(texts).errors, counts(texts).length) == (errors, length + 1), hypothesis
        assert "alternatives" in texts.notes[0]
    ctm = "a A 0.0 0.1 one\na A * * <ALT_BEGIN>\na A 0.2 0.1 um\na A * * <ALT>\na A 0.2 0.1 uh\na A * * <ALT_END>\n"
    texts = read(tmp_path, ref_ctm=ctm, hyp_ctm="a A 0.0 0.1 one\na A 0.2 0.1 uh\n")
    assert counts(texts) == ErrorCounts(2, 0, 0, 0)


def test_tags_are_not_part_of_words(tmp_path: Path) -> None:
    texts = read(
        tmp_path, ref_ctm="a A 0.0 0.1 one\na A 0.2 0.1 two\n", hyp_ctm="a A 0.0 0.1 one;tag1\na A 0.2 0.1 two;;b\n"
    )
    assert counts(texts) == ErrorCounts(2, 0, 0, 0)


def test_alternatives_are_chosen_after_normalisation() -> None:
    reference = {"u": Line("{ Um / Uh } yes", "ref.trn:1")}
    assert resolve(reference, {"u": "uh yes"}, str.lower)[0] == {"u": "uh yes"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a { b / c", "closing brace"),
        ("a } b", "opening"),
        ("{ a/b / c }", "spaces around /"),
        ("{ a / b } " * 11, "more"),
    ],
)
def test_faulty_alternatives_are_named(text: str, says: str) -> None:
    with pytest.raises(Speech3Error, match=f"ref.trn:7: .*{says}"):
        allowed(Line(text, "ref.trn:7"))


@pytest.mark.parametrize(
    ("ref", "hyp", "says"),
    [
        ({"ref_trn": REF_TRN}, {"hyp_trn": "a (s1-u1)\nthe dog\n"}, "hyp.trn:2: .*does not end in an utterance id"),
        ({"ref_trn": REF_TRN}, {"hyp_trn": "a (s1-u1)\nb (s1-u1)\n"}, "hyp.trn:2: utterance s1-u1 occurs a second"),
        ({"ref_trn": REF_TRN}, {"hyp_trn": "{ a / b } (s1-u1)\n"}, "hyp.trn:1: .*a hypothesis is one text"),
        ({"ref": REF_TRN}, {"hyp": REF_TRN + "some words\n"}, "hyp:5: `some words` is not a line of .trn"),
        ({"ref_trn": REF_TRN}, {"hyp": "the cat sit\nthe dog ran\na word\nyes\n"}, "hyp: .*fewer than half.*ref.trn"),
        ({"ref_stm": STM}, {"hyp_trn": HYP_TRN}, "hyp.trn: .*pass the hypothesis as .ctm"),
        ({"ref_stm": STM}, {"hyp_ctm": "x 1 0.0 0.1 a\n"}, "hyp.ctm: has no recording and channel"),
        ({"ref_stm": STM + "rec A x later 9.0 a\n"}, {"hyp_ctm": CTM}, "ref.stm:6: .*not `file channel speaker"),
        ({"ref_ctm": CTM}, {"hyp_ctm": CTM + "rec 1 now 0.1 a\n"}, "hyp.ctm:11: .*not `file channel begin"),
        ({"ref_ctm": CTM}, {"hyp_ctm": CTM + "rec 1 * * <ALT_BEGIN>\nother 1 8 0.1 a\n"}, "hyp.ctm:11: .*no <ALT_END>"),
        ({"ref_ctm": CTM}, {"hyp_stm": STM}, "hyp.stm: .stm is a format of references"),
        ({"ref": "u1 a\nu2 b\n"}, {"hyp": ";; by me\nu1 a\nu2 b\n"}, "hyp:1: a comment of sclite"),
        ({"ref": "u1 { um / uh } a\n"}, {"hyp": "u1 uh a\n"}, "ref:1: alternatives in braces"),
        ({"ref": '{"utt": "u1", "text": "a"}\n'}, {"hyp": "u1 a\n"}, "ref: is JSON"),
        ({"ref_csv": "id,text\nu1,a\n"}, {"hyp": "u1 a\n"}, "ref.csv: is a table"),
        ({"ref": "client_id\tpath\tsentence\nx\ty\tz\n"}, {"hyp": "u1 a\n"}, "ref: is a table with a heading"),
        ({"ref": "1\n00:00:01,000 --> 00:00:02,000\na\n"}, {"hyp": "a\n"}, "ref: is subtitles"),
        ({"ref": "SPEAKER r 1 0.0 1.0 <NA> <NA> a <NA>\n"}, {"hyp": "a\n"}, "ref: is RTTM"),
        ({"ref": 'File type = "ooTextFile"\n'}, {"hyp": "a\n"}, "ref: is a TextGrid"),
    ],
)
def test_a_file_of_an_unknown_or_mixed_format_is_an_error(
    tmp_path: Path, ref: dict[str, str], hyp: dict[str, str], says: str
) -> None:
    with pytest.raises(Speech3Error, match=says):
        read(tmp_path, **ref, **hyp)


@pytest.mark.parametrize(
    "text",
    [
        "u1 yes (laughs)\nu2 no (laughs)\n",  # remarks, not ids
        "u1 1 2 3 4\nu2 5 6 7 8\n",  # digits, not times
        "hello (world)\n",
        "[noise] well\n",
    ],
)
def test_kaldi_text_and_plain_text_are_not_taken_for_other_formats(text: str) -> None:
    assert format_of("text", text.splitlines()) is None


def test_the_format_can_be_said(tmp_path: Path) -> None:
    texts = read(tmp_path, "kaldi", ref="u1 { um / uh } a\n", hyp="u1 uh a\n")
    assert counts(texts).length == 6, "braces are words then"
    assert read(tmp_path, "stm", ref=STM, hyp=CTM).readings == ("stm", "ctm")


def test_kaldi_text_with_a_blank_line_is_not_plain_text(tmp_path: Path) -> None:
    assert read(tmp_path, ref="u1 a\nu2 b\nu3 c\n", hyp="u1 a\n\nu3 c\n").readings == ("kaldi", "kaldi")


def test_other_verbs_refuse_what_they_would_misread(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(REF_TRN)
    with pytest.raises(Speech3Error, match=r"is in the format \.trn"):
        read_text(path)
    assert read_ids(path)["s1-u2"] == "the dog ran away"
