"""A folder of recordings: its text beside the transcripts, listed graphemes, names, and what is left out of it."""

import os
from pathlib import Path

import pytest
from fieldwork import recording, short_textgrid

from speech3.corpora.anyspeech import prepare
from speech3.corpora.folder import read_folder
from speech3.corpora.pairs import recordings_in
from speech3.data.datadir import read_datadir
from speech3.errors import DataError
from speech3.language.arpa import write_arpa
from speech3.language.kneser_ney import estimate_lm


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def corpus(root: Path, words: str, utterances: int = 20, seconds: float = 0.2) -> Path:
    for number in range(utterances):
        recording(root / f"s{number % 10}_{number:02d}.wav", seconds)
        (root / f"s{number % 10}_{number:02d}.txt").write_text(f"{words}\n")
    return root


def test_the_text_is_changed_as_the_transcripts_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = corpus(tmp_path / "in", "Mama, leo!"), tmp_path / "out"
    (source / "lang").mkdir()
    (source / "lang" / "text").write_text("<i>Mama</i>, leo!\n— Jana: k'ak'?\n...\n<b>mama</b> leo\n")
    (tmp_path / "graphemes.txt").write_text("k'\n")
    prepare(source, out, 1, lexicon="graphemes", graphemes=str(tmp_path / "graphemes.txt"))
    assert "<i>" in (text := said(capsys)) and text.count("lang/text: HTML in text (2 times)") == 1
    lines = (out / "lm_text").read_text().splitlines()
    assert set(lines) == {"mama leo", "jana k'ak'"}
    words = [line.split()[0] for line in (out / "lexicon.txt").read_text().splitlines()]
    assert words == ["<unk>", "leo", "mama", "jana", "k'ak'"]
    write_arpa(estimate_lm([["mama", "leo"]], 1), source / "lang" / "x.arpa")
    prepare(source, tmp_path / "given", 1, lexicon="graphemes")
    assert (tmp_path / "given" / "lm_text").read_text() == "mama leo\njana k'ak\nmama leo\n", (
        "that of the given model alone"
    )
    prepare(out, tmp_path / "kaldi", 1, lexicon="graphemes")  # data directories
    assert not (out / "lang").exists()
    (out / "lang").mkdir()
    (out / "lang" / "text").write_text("Mama, leo!\n")
    prepare(out, tmp_path / "again", 1, lexicon="graphemes")
    assert "Mama, leo!" in (tmp_path / "again" / "lm_text").read_text().splitlines()


def test_marks_at_edges_are_letters_if_they_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = corpus(tmp_path / "in", "K’ak’ 'ala ‘leo’ ma?a")
    data, _ = read_folder(source)
    assert {utterance.text for utterance in data.utterances.values()} == {"k'ak ala leo ma a"}
    assert (
        "40 words lost an apostrophe, a colon or a middle dot at an edge: k'ak', 'ala; if it is a letter there, list it"
        " in a file, such as k' or a:, and add lexicon=graphemes graphemes=FILE"
    ) in said(capsys)
    data, _ = read_folder(source, graphemes=("k'", "?"))
    assert {utterance.text for utterance in data.utterances.values()} == {"k'ak' ala leo ma?a"}
    assert "at an edge" not in said(capsys)
    (tmp_path / "graphemes.txt").write_text("k'\n?\n")
    prepare(source, tmp_path / "out", 1, lexicon="graphemes", graphemes=str(tmp_path / "graphemes.txt"))
    assert "k'ak' k' a k'\n" in (tmp_path / "out" / "lexicon.txt").read_text()
    assert "ma?a m a ? a\n" in (tmp_path / "out" / "lexicon.txt").read_text()


def test_times_names_and_other_formats_are_no_words(tmp_path: Path) -> None:
    subtitles = "1\n00:00:00,000 --> 00:00:02,000\nmama\n"
    texts = ["s_1 mama leo", "[00:00:01.5] mama", subtitles, '{"text": "mama"}', "mama saa 10:30"]
    for number, text in enumerate(texts, 1):
        recording(tmp_path / f"s_{number}.wav", 0.2)
        (tmp_path / f"s_{number}.txt").write_text(text)
    data, faults = read_folder(tmp_path)
    assert [utterance.text for utterance in data.utterances.values()] == ["mama leo", "mama saa 10:30"]
    kinds = [(Path(fault.where).stem, fault.kind) for fault in faults]
    unread = "format not read"
    assert kinds == [("s_1", "name in text"), ("s_2", "times in text"), ("s_3", unread), ("s_4", unread)]


@pytest.mark.parametrize(
    "text",
    [
        "0 2.5 mama leo\n2.5 4 jana",
        "0 2 mama leo\n2 4 jana",
        "[0.10 - 1.50] mama leo",
        "mama [0.1] leo",
        "(0:01) mama leo\n(0:03) jana",
        "0:01 mama leo\n0:03 jana",
        "00:00:01.100 mama leo",
        "0:00:00.100,0:00:01.500\nmama leo",
        "tx\t\t00:00:00.100\t0.1\t00:00:01.500\t1.5\tmama leo",
        "signal a\n#\n 0.1 125 mama\n 1.5 125 leo",
        "start,end,text\n0.1,1.5,mama leo",
        "0:0:0.1 --> 0:0:1.5\nmama leo",
        "Kofi Mensah  0:01\nmama leo\n\nAma  0:03\njana",
        "a 1 0.0 0.5 mama\na 1 0.5 0.9 leo",
        "a 1 kofi 0.0 0.5 <o> mama\na 1 ama 0.5 0.9 leo",
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".lab"])
def test_times_in_text_are_no_words(tmp_path: Path, text: str, suffix: str) -> None:
    for name, content in (("a", text), ("b", "mama saa 10:30\nleo 1.5"), ("c", "1 2 3\n4 5 6"), ("d", "3 4 leo")):
        if suffix == ".lab" and name in "cd":
            continue  # HTK's label files have whole numbers
        recording(tmp_path / f"{name}.wav", 0.2)
        (tmp_path / f"{name}{suffix}").write_text(content)
    data, faults = read_folder(tmp_path)
    assert [(Path(fault.where).name, fault.kind) for fault in faults] == [(f"a{suffix}", "times in text")]
    assert {"b": "mama saa 10:30 leo 1 5", "c": "1 2 3 4 5 6", "d": "3 4 leo"}.items() >= {
        (key, utterance.text) for key, utterance in data.utterances.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "@UTF8\n@Begin\n*CHI:\tmama leo .\n%mor:\tn|mama adv|leo\n@End\n",
        "\\_sh v3.0 400 Text\n\n\\ref 001\n\\tx mama leo\n\\ge mother today\n",
        "\\tx mama leo\n\\ge mother today\n",
        "tx\tKofi\tmama leo\ntx\tKofi\tjana leo\n",
        "tmin\ttier\ttext\ttmax\n0.0\twords\tmama\t0.5\n",
    ],
)
def test_files_of_other_programs_are_no_words(tmp_path: Path, text: str) -> None:
    for name, content in (("a", text), ("b", "Kofi:\tmama leo\nAma:\tjana leo")):
        recording(tmp_path / f"{name}.wav", 0.2)
        (tmp_path / f"{name}.txt").write_text(content)
    data, faults = read_folder(tmp_path)
    assert [u.recording for u in data.utterances.values()] == ["b"]
    assert [(Path(fault.where).name, fault.kind) for fault in faults if not fault.warning] == [
        ("a.txt", "format not read")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "hello\tmy\tfriend",
        "Matthew 5:10\nhello\n\nMatthew 5:10\nfriend",
        "Luke 6:20\nhello\n\nMatthew 5:10\nfriend",
        "The train leaves at 10:30\nhello\n\nThe train leaves at 10:45\nfriend",
    ],
)
def test_words_that_look_like_columns_or_times_are_words(tmp_path: Path, text: str) -> None:
    recording(tmp_path / "a.wav", 0.2)
    (tmp_path / "a.txt").write_text(text)
    data, faults = read_folder(tmp_path)
    assert [u.text for u in data.utterances.values()] == [" ".join(text.lower().split())] and not faults


def test_codes_of_praat_are_no_letters(tmp_path: Path) -> None:
    recording(tmp_path / "a.wav")
    (tmp_path / "a.TextGrid").write_text(short_textgrid({"words": [(0, 1, "h\\aelo"), (1, 2, "leo \\ jana")]}))
    data, faults = read_folder(tmp_path)
    assert [u.text for u in data.utterances.values()] == ["leo jana"]
    assert [(fault.kind, fault.warning) for fault in faults] == [("code in text", False)]
    assert "\\ae" in faults[0].problem


def test_codes_that_praat_knows_are_found(tmp_path: Path) -> None:
    codes = ("ae", "sw", "o/", "ng", ":f", "a'", "c,", "^h", "~^", "|v", "'1", "T(", "?g", "e<", "d.", "i-", "-3")
    recording(tmp_path / "a.wav", 20)
    said = [(place, place + 1, f"h\\{code}lo") for place, code in enumerate(codes)]
    (tmp_path / "a.TextGrid").write_text(short_textgrid({"words": [*said, (19, 20, "leo")]}))
    _, faults = read_folder(tmp_path)
    assert [fault.problem.split(",")[0] for fault in faults] == [f"has \\{code}".split(",")[0] for code in codes]


def test_a_backslash_between_words_is_no_code(tmp_path: Path) -> None:
    recording(tmp_path / "a.wav")
    (tmp_path / "a.TextGrid").write_text(short_textgrid({"words": [(0, 1, "either\\or"), (1, 2, "AC\\DC")]}))
    data, faults = read_folder(tmp_path)
    assert len(data.utterances) == 2 and not faults


def test_a_name_before_a_tab_is_no_word(tmp_path: Path) -> None:
    recording(tmp_path / "s_1.wav", 0.2)
    (tmp_path / "s_1.txt").write_text("s_1\tmama leo")
    data, _ = read_folder(tmp_path)
    assert [utterance.text for utterance in data.utterances.values()] == ["mama leo"]


def test_labels_of_pauses_are_no_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "a.wav")
    annotations = [(0.0, 0.3, "sil"), (0.3, 0.8, "leo"), (0.8, 1.2, "<p:>"), (1.2, 1.6, "SP"), (1.6, 2.0, "sil leo")]
    (tmp_path / "a.TextGrid").write_text(short_textgrid({"words": annotations}))
    data, _ = read_folder(tmp_path)
    assert [utterance.text for utterance in data.utterances.values()] == ["leo", "sil leo"]
    assert "left out 3 (pause): a.TextGrid: 'sil' at 0.00 s" in said(capsys)


def test_annotations_too_short_for_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording(tmp_path / "a.wav")
    annotations = [(0.0, 0.1, "leo"), (0.3, 0.35, "jana"), (1.0, 1.5, "mama"), (1.95, 2.05, "leo")]
    (tmp_path / "a.TextGrid").write_text(short_textgrid({"tx": annotations}))
    recording(tmp_path / "b.wav", 0.05)
    (tmp_path / "b.txt").write_text("leo")
    data, faults = read_folder(tmp_path)
    assert [utterance.text for utterance in data.utterances.values()] == ["leo", "mama"]
    assert [fault.kind for fault in faults] == ["too short"] * 3
    assert "left out 3 (too short): a.TextGrid: 'jana' at 0.30 s: lasts 0.050 s, in which no word" in said(capsys)


def test_a_missing_end_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the transcripts have times; where they have none, once for all shares that are tried."""
    recording(tmp_path / "tiers" / "a.wav")
    (tmp_path / "tiers" / "a.TextGrid").write_text(short_textgrid({"tx": [(0, 1.99, "leo")]}))
    texts = corpus(tmp_path / "texts", "leo", 40, 2.0)
    for path in (tmp_path / "tiers" / "a.wav", texts / "s0_00.wav"):
        path.write_bytes(path.read_bytes()[:-800])
    data, faults = read_folder(tmp_path / "tiers")
    assert [(fault.kind, fault.warning) for fault in faults] == [("missing end", True)] and data.utterances
    assert (
        "1 utterance with a missing end kept: a.wav: ends 50 ms before the end given in its header; the rest is"
        in said(capsys)
    )
    prepare(texts, tmp_path / "out", 1, lexicon="graphemes")
    assert said(capsys).count("before the end given in their headers") == 1


def test_a_lossless_recording_is_preferred(tmp_path: Path) -> None:
    for suffix in ("mp3", "ogg", "wav"):
        recording(tmp_path / f"kofi.{suffix}")
    (tmp_path / "kofi.txt").write_text("leo")
    data, faults = read_folder(tmp_path)
    assert data.recordings == {"kofi": str(tmp_path / "kofi.wav")}
    assert [(fault.kind, Path(fault.where).name) for fault in faults] == [
        ("second recording", "kofi.mp3"),
        ("second recording", "kofi.ogg"),
    ]


def test_recordings_of_one_name_in_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("wav", "mp3"):
        recording(tmp_path / folder / f"kofi.{folder}")
    (tmp_path / "eaf").mkdir()
    (tmp_path / "eaf" / "kofi.txt").write_text("leo")
    with pytest.raises(DataError, match=r"kofi\.wav"):
        read_folder(tmp_path)
    recording(tmp_path / "wav" / "ama.wav")
    (tmp_path / "wav" / "ama.txt").write_text("leo")
    _, faults = read_folder(tmp_path)
    assert [(fault.kind, Path(fault.where).name) for fault in faults] == [
        ("unclear transcript", "kofi.wav"),
        ("unclear transcript", "kofi.mp3"),
        ("unclear recording", "kofi.txt"),
    ]
    assert "left out 2 (unclear transcript): wav/kofi.wav: 2 recordings and" in said(capsys)


def test_names_that_are_not_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = corpus(tmp_path / "in", "leo"), tmp_path / "out"
    for suffix, template in ((b".wav", "s0_00.wav"), (b".txt", "s0_00.txt")):
        (Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9" + suffix))).write_bytes((source / template).read_bytes())
    assert len(recordings_in(source)) == 20
    prepare(source, out, 1, lexicon="graphemes")
    assert "left out 2 (name): caf\\xe9.txt: its name is not UTF-8, or has a line break; rename it" in said(capsys)
    assert "caf\\xe9.wav" in (out / "left_out.txt").read_text()
    assert sum(len(read_datadir(out / name).utterances) for name in ("train", "dev", "test")) == 20


def test_capitals_are_lowered_by_the_rules_of_the_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = corpus(tmp_path / "in", "IŞIK, İZMİR KIZ")
    data, _ = read_folder(source, language="tr")
    assert {utterance.text for utterance in data.utterances.values()} == {"ışık izmir kız"}
    assert "the language of the text" not in said(capsys)
    read_folder(source)
    assert "the language of the text is not known" in said(capsys)
    prepare(source, tmp_path / "out", 1, lexicon="graphemes", lang="tr")
    assert {line.split()[0] for line in (tmp_path / "out" / "lexicon.txt").read_text().splitlines()} == {
        "<unk>",
        "ışık",
        "izmir",
        "kız",
    }


def test_markup_in_any_transcript_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        recording(tmp_path / f"{name}.wav")
    (tmp_path / "a.txt").write_text("<b>leo</b> (laughter)")
    (tmp_path / "b.TextGrid").write_text(short_textgrid({"tx": [(0.0, 2.0, "SPEAKER1: leo")]}))
    (tmp_path / "metadata.csv").write_text("c.wav|leo &amp; jana\n")
    data, _ = read_folder(tmp_path)
    assert sorted(each.text or "" for each in data.utterances.values()) == ["leo", "leo [laughter]", "leo jana"]
    line = said(capsys)
    assert "<b>" in line and "(laughter)" in line and "SPEAKER1" in line and "2 utterances (HTML in text)" in line
