"""Subtitles and label tracks beside recordings: times, speakers, text; what cannot be read is named."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech3.corpora.folder import read_folder
from speech3.corpora.tiers import Annotation, Tier, read_subtitles
from speech3.errors import DataError, FormatError, MissingError
from speech3.recipe.aligner_files import read_source

SRT = """\ufeff1
00:00:00,500 --> 00:00:02,000 X1:100 X2:600
{\\an8}Good <i>morning</i>,
how are you?

2
00:00:02,000 --> 00:00:04,250
- Fine.

"""
VTT = """WEBVTT - Some title

STYLE
::cue { color: lime }

NOTE not said

first
00:00.500 --> 00:02.000 align:start position:0%
<v Anna Lee>Good <00:01.000><c>morning</c></v>

01:00:02.000 --> 01:00:04.250
<00:00:02.100><v Ben>Fine &amp; well.
"""


def recorded(folder: Path, name: str, seconds: float = 5.0) -> None:
    folder.mkdir(exist_ok=True)
    noise_N = np.random.default_rng(1).standard_normal(round(16000 * seconds)) * 0.1
    soundfile.write(folder / f"{name}.wav", noise_N, 16000)


def test_both_formats_have_the_times_and_the_speakers_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "a.srt").write_text(SRT.replace("\n", "\r\n"))
    (tmp_path / "a.vtt").write_text(VTT)
    (srt,) = read_subtitles(tmp_path / "a.srt")
    assert [(a.start_s, a.end_s) for a in srt.annotations] == [(0.5, 2.0), (2.0, 4.25)]
    assert srt.annotations[0].text.split() == ["Good", "<i>morning</i>,", "how", "are", "you?"] and not srt.speaker
    anna, ben = read_subtitles(tmp_path / "a.vtt")
    assert (anna.speaker, ben.speaker, anna.kind, ben.kind) == ("Anna Lee", "Ben", "subtitles", "subtitles")
    assert (ben.annotations[0].start_s, ben.annotations[0].end_s) == (3602.0, 3604.25)


def test_a_folder_with_subtitles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "in", "talk")
    (tmp_path / "in" / "talk.en-GB.srt").write_text(SRT)
    (tmp_path / "in" / "talk.txt").write_text("all of it in one go")
    data, faults = read_folder(tmp_path / "in")
    found = [(u.speaker, u.text, u.start_s, u.end_s) for u in data.utterances.values()]
    assert found == [("talk", "good morning how are you", 0.5, 2.0), ("talk", "fine", 2.0, 4.25)]
    assert {fault.kind for fault in faults} == {"second transcript", "HTML in text"}
    assert "talk.txt" in capsys.readouterr().err


def test_speakers_of_subtitles_are_those_of_the_utterances(tmp_path: Path) -> None:
    recorded(tmp_path / "in", "talk")
    (tmp_path / "in" / "talk.vtt").write_text(VTT.replace("01:00:0", "00:00:0"))
    data, _ = read_folder(tmp_path / "in")
    assert {(u.speaker, u.text) for u in data.utterances.values()} == {
        ("Anna_Lee", "good morning"),
        ("Ben", "fine well"),
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "has no subtitle"),
        ("WEBVTT\n\nNOTE nothing\n", "has no subtitle"),
        ("1\n00:00:01,000 -> 00:00:02,000\nhello\n", "line 1: .*'1'"),
        ("1\n0:01 --> 0:02\nhello\n", "line 2: .*'0:01 --> 0:02'"),
        (SRT + "lost line\n", "line 10: .*'lost line'"),
        (SRT.replace("you?\n\n", "you?\n"), "line 6: there is no empty line"),
        (VTT.replace("</v>", "</v> <v Ben>Hi"), "line 9: Anna Lee and Ben"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "a.srt"
    path.write_text(text)
    with pytest.raises(FormatError, match=rf"a\.srt: .*{named}"):
        read_subtitles(path)


def test_subtitles_that_scroll_are_refused(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(6)]
    cues = [f"{n}\n00:00:0{n},000 --> 00:00:0{n + 1},000\n{lines[n - 1]}\n{lines[n]}\n" for n in range(1, 6)]
    recorded(tmp_path / "in", "a", 8)
    (tmp_path / "in" / "a.srt").write_text("\n".join(cues))
    with pytest.raises(MissingError, match=r"(?s)a\.srt.*4 of 5 subtitles repeat"):
        read_folder(tmp_path / "in")


@pytest.mark.parametrize("number", ["{:.6f}", "{:.1f}"])
@pytest.mark.parametrize(
    ("apart", "comma", "file"), [("\t", False, "a.txt"), ("\t", True, "a.txt"), (" ", False, "a.lab")]
)
def test_label_tracks_have_times(tmp_path: Path, number: str, apart: str, comma: bool, file: str) -> None:
    labels = [(0.5, 2.0, "Good morning"), (2.0, 4.2, "10:30 is fine."), (4.5, 4.5, "a point"), (4.6, 4.8, "")]
    lines = [apart.join((number.format(begin), number.format(end), text)) for begin, end, text in labels]
    if apart == "\t":
        lines.insert(1, "\\\t100.000000\t2000.000000")  # the frequencies of a label, as Audacity writes them
    text = "\n".join(lines)
    recorded(tmp_path, "a")
    (tmp_path / file).write_text(text.replace(".", ",") if comma else text)
    data, faults = read_folder(tmp_path)
    assert [(u.start_s, u.end_s, u.text) for u in data.utterances.values()] == [
        (0.5, 2.0, "good morning"),
        (2.0, 4.2, "10:30 is fine"),
    ]
    assert [fault.kind for fault in faults] == ["no length"]  # the point


def test_the_aligner_keeps_the_labels_as_a_tier(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    (tmp_path / "a.txt").write_text("0.5\t2.0\tgood morning\n")
    recorded(tmp_path, "b")
    (tmp_path / "b.txt").write_text("good morning")
    source = read_source(tmp_path)
    a, b = (source.targets[key] for key in "ab")
    assert b.reader is None and a.reader and a.transcript
    assert a.reader(a.transcript) == [Tier("labels", (Annotation(0.5, 2.0, "good morning"),))]
    assert read_source(tmp_path / "a.wav").targets["a"].reader is a.reader


def test_a_file_that_is_no_transcript_is_named(tmp_path: Path) -> None:
    recorded(tmp_path, "a")
    (tmp_path / "a.sbv").write_text("0:00:00.100,0:00:01.500\nhello\n")
    with pytest.raises(DataError, match=r"a\.sbv"):
        read_folder(tmp_path)
    recorded(tmp_path, "b")
    (tmp_path / "b.txt").write_text("hello")
    (fault,) = read_folder(tmp_path)[1]
    assert fault.kind == "no transcript" and "a.sbv" in fault.problem
