"""Times of phones and words, and the files that carry them."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from speech3.config import FeatureConfig
from speech3.errors import FormatError
from speech3.features.spectrum import frame_sizes
from speech3.hmm.alignment.align import write_alignments
from speech3.hmm.alignment.times import (
    Segment,
    file_name,
    frame_clock,
    phone_segments,
    read_ctm,
    word_segments,
    write_ctm,
    write_textgrid,
)
from speech3.hmm.model import Hmm
from speech3.hmm.transcript import Alignment
from speech3.io.ark import read_int_ark
from speech3.language.lexicon import Lexicon, mark_positions


@pytest.fixture
def alignment(lexicon: Lexicon) -> Alignment:
    ids = lexicon.phone_ids
    phones = np.array([ids[p] for p in ("SIL", "a", "b", "c", "a", "SIL")], np.int32)
    starts = np.array([0, 4, 8, 12, 15, 18, 22], np.int32)
    states = np.concatenate([np.minimum(np.arange(n), 2) for n in np.diff(starts)]).astype(np.int8)
    return Alignment(phones, np.array([-1, 0, 0, 1, 1, -1], np.int32), starts, states, -1.0)


def test_frames_stand_for_the_middle_of_their_windows(lexicon: Lexicon, alignment: Alignment) -> None:
    segments = phone_segments(alignment, lexicon, frame_clock(FeatureConfig()), duration_s=0.24)
    assert [s.label for s in segments] == ["SIL", "a", "b", "c", "a", "SIL"]
    assert segments[0].start_s == 0 and segments[-1].end_s == 0.24
    assert segments[1].start_s == pytest.approx(4 * 0.010 + 0.0075)
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(segments))
    centred = phone_segments(alignment, lexicon, frame_clock(FeatureConfig(snip_edges=False)))
    assert centred[1].start_s == pytest.approx(0.040)


@pytest.mark.parametrize("rate_hz", [16000, 22050, 11025])
@pytest.mark.parametrize("snip_edges", [True, False])
def test_times_are_those_of_the_samples(rate_hz: int, snip_edges: bool) -> None:
    config = FeatureConfig(sample_frequency=rate_hz, snip_edges=snip_edges)
    sizes, clock = frame_sizes(config, rate_hz), frame_clock(config)
    begin = 5000 * sizes.shift + ((sizes.length - sizes.shift) / 2 if snip_edges else 0)  # of 50 s
    assert clock.edges(np.array([0, 5000, 6000]), None)[1] == pytest.approx(begin / rate_hz, abs=1e-9)


def test_a_textgrid_has_no_gaps(tmp_path: Path) -> None:
    segments = [Segment(0.00004, 0.5, "a"), Segment(0.50005, 1.0, "b"), Segment(1.2, 1.99995, "c")]
    write_textgrid(tmp_path / "a.TextGrid", {"words": segments}, 2.0)
    times = re.findall(r"(?m)^ {12}x(?:min|max) = (.*)$", (tmp_path / "a.TextGrid").read_text())
    assert times == ["0.0000", "0.5000", "0.5000", "1.0000", "1.0000", "1.2000", "1.2000", "2.0000"]


def test_words_span_their_phones(alignment: Alignment) -> None:
    clock = frame_clock(FeatureConfig(snip_edges=False))
    assert word_segments(alignment, ["ab", "ca"], clock) == [Segment(0.04, 0.12, "ab"), Segment(0.12, 0.18, "ca")]


def test_all_files(hmm: Hmm, alignment: Alignment, tmp_path: Path) -> None:
    clock = frame_clock(FeatureConfig(snip_edges=False))
    write_alignments(tmp_path, hmm, {"u": alignment}, {"u": "ab ça"}, clock, bad={"v": "too short"})
    assert read_int_ark(tmp_path / "ali.ark")["u"].tolist() == alignment.pdfs(hmm).tolist()
    assert (tmp_path / "words.ctm").read_text() == "u 1 0.040 0.080 ab\nu 1 0.120 0.060 ça\n"
    assert [s.label for s in read_ctm(tmp_path / "phones.ctm")["u"]] == ["SIL", "a", "b", "c", "a", "SIL"]
    assert (tmp_path / "bad.txt").read_text() == "v too short\n"
    assert 'text = "ça"' in (tmp_path / "textgrid" / "u.TextGrid").read_text()
    write_alignments(tmp_path, hmm, {"w": alignment}, {"w": "ab ça"}, clock)
    assert [path.name for path in (tmp_path / "textgrid").iterdir()] == ["w.TextGrid"]


def test_textgrid_covers_the_whole_time(tmp_path: Path) -> None:
    write_textgrid(tmp_path / "x.TextGrid", {"words": [Segment(0.1, 0.2, 'say "hi"')]}, 0.5)
    text = (tmp_path / "x.TextGrid").read_text()
    assert text.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = 0.5000\n')
    assert "intervals: size = 3" in text and 'text = "say ""hi"""' in text
    assert "xmin = 0.2000\n            xmax = 0.5000" in text


def test_confidences_are_the_sixth_column(tmp_path: Path) -> None:
    tracks = {"u": [Segment(0.0, 0.5, "größe", 0.875), Segment(0.5, 0.75, "二", 0.0)], "v": [Segment(0.0, 1.0, "x")]}
    write_ctm(tmp_path / "words.ctm", tracks)
    text = (tmp_path / "words.ctm").read_text(encoding="utf-8")
    assert text == "u 1 0.000 0.500 größe 0.875\nu 1 0.500 0.250 二 0.000\nv 1 0.000 1.000 x\n"
    assert read_ctm(tmp_path / "words.ctm") == tracks


def test_channels_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "words.ctm").write_text("call A 0.0 0.5 hello\ncall B 0.1 0.5 hi\n")
    with pytest.raises(FormatError, match=r"words.ctm:2: call .*A.*B"):
        read_ctm(tmp_path / "words.ctm")


def test_places_in_the_word_are_left_out(lexicon: Lexicon, alignment: Alignment) -> None:
    marked = mark_positions(lexicon)
    phones = [marked.phone_ids[p] for p in ("SIL", "a_B", "b_E", "c_B", "a_E", "SIL")]
    placed = replace(alignment, phones=np.array(phones, np.int32))
    segments = phone_segments(placed, marked, frame_clock(FeatureConfig()))
    assert [s.label for s in segments] == ["SIL", "a", "b", "c", "a", "SIL"]


def test_file_names_are_safe_and_differ() -> None:
    names = ["a-1", "a/b", "a_b", "a%2Fb", "..", "...", "größe", "é" * 150, "é" * 149 + "e"]
    files = [file_name(name) for name in names]
    assert files[0] == "a-1" and files[1] == "a%2Fb" and files[6] == "größe"
    assert len(set(files)) == len(files)
    assert all("/" not in f and not f.startswith(".") and len(f.encode()) <= 200 for f in files)
