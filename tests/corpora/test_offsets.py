"""Transcripts whose times do not begin at 0."""

import pytest
from fieldwork import aligned, eaf, recording, tier

from speech3.corpora.folder import read_folder
from speech3.errors import Speech3Error


def _textgrid(begin_s, end_s, *texts):
    """Praat's short format; each of `texts` has an equal part of the time."""
    each = (end_s - begin_s) / len(texts)
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", str(begin_s), str(end_s), "<exists>", "1"]
    lines += ['"IntervalTier"', '"words"', str(begin_s), str(end_s), str(len(texts))]
    for place, text in enumerate(texts):
        lines += [str(begin_s + place * each), str(begin_s + (place + 1) * each), f'"{text}"']
    return "\n".join(lines) + "\n"


def _times(data):
    return [(round(u.start_s, 3), round(u.end_s, 3)) for u in data.utterances.values()]


@pytest.mark.parametrize("begin_s", [0.3, -0.3, 1.5, 1234.5])
def test_a_textgrid_as_long_as_its_recording_begins_with_it(tmp_path, begin_s, capsys):
    recording(tmp_path / "a.wav")
    (tmp_path / "a.TextGrid").write_text(_textgrid(begin_s, begin_s + 2, "oh one", "two"))
    data, faults = read_folder(tmp_path)
    assert _times(data) == [(0, 1), (1, 2)]
    assert [(fault.kind, fault.warning) for fault in faults] == [("shifted", True)]
    assert f"its times begin at {begin_s:g} s" in " ".join(capsys.readouterr().err.split())


def test_rounding_is_no_shift(tmp_path):
    recording(tmp_path / "a.wav")
    (tmp_path / "a.TextGrid").write_text(_textgrid(-1.1e-17, 2, "oh one", "two"))
    data, faults = read_folder(tmp_path)
    assert _times(data) == [(0, 1), (1, 2)] and not faults


def test_a_textgrid_of_the_end_of_its_recording_has_its_times(tmp_path):
    recording(tmp_path / "a.wav")
    (tmp_path / "a.TextGrid").write_text(_textgrid(1.0, 2.0, "oh one", "two"))
    data, faults = read_folder(tmp_path)
    assert _times(data) == [(1, 1.5), (1.5, 2)] and not faults


def test_a_textgrid_of_which_it_is_not_clear_where_it_begins_is_left_out(tmp_path):
    for name in "ab":
        recording(tmp_path / f"{name}.wav")
    (tmp_path / "a.TextGrid").write_text(_textgrid(0.3, 1.4, "oh one", "two"))
    (tmp_path / "b.TextGrid").write_text(_textgrid(0, 2, "oh one", "two"))
    data, (fault,) = read_folder(tmp_path)
    assert list(data.recordings) == ["b"] and not fault.warning
    assert "it is not clear where they begin" in fault.problem and "Shift times" in fault.remedy
    (tmp_path / "b.wav").unlink()
    with pytest.raises(Speech3Error, match="it is not clear where they begin"):
        read_folder(tmp_path)


def test_an_elan_file_whose_origin_does_not_fit_the_recording_is_left_out(tmp_path):
    media = '<MEDIA_DESCRIPTOR MEDIA_URL="file:///a.wav" MIME_TYPE="audio/x-wav" TIME_ORIGIN="300"/>'
    content = eaf({"t1": 100, "t2": 1900}, tier("words", aligned("a1", "t1", "t2", "oh one")))
    for name, seconds in (("a", 2.0), ("b", 2.5)):
        recording(tmp_path / f"{name}.wav", seconds)
        described = content.replace("<TIME_ORDER>", f"<HEADER>{media}</HEADER><TIME_ORDER>")
        (tmp_path / f"{name}.eaf").write_text(described)
    data, (fault,) = read_folder(tmp_path)
    assert list(data.recordings) == ["b"] and _times(data) == [(0.4, 2.2)]
    assert "TIME_ORIGIN" in fault.problem and fault.where.endswith("a.eaf")
