"""Text for language models: plain sentences, or Kaldi's `text`, whose ids are no words."""

from pathlib import Path

import pytest

from speech3.data.transcripts import _say_ids, read_sentences, sentences_of_file
from speech3.errors import FormatError, Speech3Error

KALDI = "spk1-utt_01 one two\nspk1-utt_02 three\nspk2-utt_01\nspk2-utt_02 two one\n"
COMMANDS = "".join(f"{chr(97 + n)}{chr(97 + n)} the door\n" for n in range(26))  # sorted, each first word once


def read(path: Path, text: str | bytes) -> list[list[str]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(sentences_of_file(path))


def test_ids_are_left_out_and_that_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _say_ids.cache_clear()
    for _ in range(2):
        assert read(tmp_path / "text", KALDI) == [["one", "two"], ["three"], ["two", "one"]]
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("each line begins with an utterance id (spk1-utt_01, ...)") == 1


TRN = ";; sclite\none two (spk-0001)\nthree (spk-0002)\n(spk-0003)\ntwo one (spk-0004)\n"


def test_ids_of_trn_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(tmp_path / "a.trn", TRN) == [["one", "two"], ["three"], ["two", "one"]]
    assert "each line ends with an utterance id ((spk-0001), ...)" in " ".join(capsys.readouterr().err.split())
    laughs = "so it is (laughs)\nwell (laughs)\n"
    assert read(tmp_path / "b", laughs) == [["so", "it", "is", "(laughs)"], ["well", "(laughs)"]]


def test_a_line_without_an_id_among_lines_of_trn_is_named(tmp_path: Path) -> None:
    lines = "".join(f"one two (spk-{n:04d})\n" for n in range(30))
    with pytest.raises(FormatError, match=r"a\.trn:31: `three four` does not end in an utterance id"):
        read(tmp_path / "a.trn", f"{lines}three four\n")


def test_first_words_among_ids_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"utt{number:02d} one two" for number in range(20)]
    assert len(read(tmp_path / "corpus.txt", "\n".join(["HELLO THERE", *lines]))) == 21
    assert "corpus.txt: 1 of them look like words (HELLO)" in " ".join(capsys.readouterr().err.split())


def test_ids_without_digits_are_those_of_the_data_directory(tmp_path: Path) -> None:
    text = "ann hello world\nbob good bye\n"
    assert read(tmp_path / "text", text)[0] == ["ann", "hello", "world"]
    (tmp_path / "utt2spk").write_text("ann x\nbob x\n")
    assert read(tmp_path / "text", text) == [["hello", "world"], ["good", "bye"]]
    assert read(tmp_path / "text", "one two\nthree four\n") == [["one", "two"], ["three", "four"]]


@pytest.mark.parametrize(
    "text",
    [
        COMMANDS,
        "no thanks\nok thanks\n",
        "x-ray please\nt-shirt please\n",
        "1 2 3\n2 1\n1 3\n",
        "b52\nr2d2\nc3po\n",  # a list of words
        KALDI.replace("spk2", "\nspk2", 1),  # an empty line: plain text
        "one\n",
        "7 seven\n",
    ],
)
def test_plain_sentences_keep_their_first_words(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "text", text) == [words for line in text.split("\n") if (words := line.split())]


def test_each_file_is_judged_alone(tmp_path: Path) -> None:
    for name, text in (("plain", COMMANDS), ("kaldi", KALDI), ("again", COMMANDS)):
        (tmp_path / name).write_text(text)
    blocks = list(read_sentences([tmp_path / name for name in ("plain", "kaldi", "again")]))
    assert [block.text.split()[0] for block in blocks] == ["aa", "one", "aa"]


@pytest.mark.parametrize("symbol", ["<s>", "</s>", "<eps>", "#0", "!SIL", "<S>"])
def test_symbols_are_named_with_their_line(tmp_path: Path, symbol: str) -> None:
    with pytest.raises(Speech3Error, match=rf"text:2: {symbol} in the text.*sed"):
        read(tmp_path / "text", f"a b\nb {symbol} c\n")
    assert read(tmp_path / "text", "a#0 b\n<unk> <s>b\n") == [["a#0", "b"], ["<unk>", "<s>b"]]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"audio_filepath": "a.wav", "duration": 1.0, "text": "one two"}\n', "JSON"),
        ("path\tsentence\na.mp3\tone two\n", "a table"),
        ("file,transcript\na.wav,one, two\n", "a table"),
        ("1\n00:00:01,000 --> 00:00:02,000\none two\n", "subtitles"),
        ("WEBVTT\n\n00:01.000 --> 00:02.000\none\n", "subtitles"),
    ],
)
def test_other_formats_are_not_taken_for_sentences(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(Speech3Error, match=f"corpus: is .*{what}"):
        read(tmp_path / "corpus", text)
    assert read(tmp_path / "corpus", "path, sentence\nid text\n")  # words that are also headings


@pytest.mark.parametrize(
    "text",
    [
        "call mom (home)\ncall mom (work)\ncall dad (mobile)\n",
        "windows (95)\n",
        "".join(f"play heat ({1990 + n})\n" for n in range(10)) + "stop\n",
    ],
)
def test_what_stands_in_parentheses_may_be_a_word(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "lines.txt", text) == [line.split() for line in text.splitlines()]
