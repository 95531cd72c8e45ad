import gzip
import shutil
from pathlib import Path

import pytest

from speech3.data.audio import load
from speech3.data.datadir import DataDir, Utterance, read_datadir, write_datadir
from speech3.errors import MissingError, Speech3Error
from speech3.io.ark import index_line


def test_reads_what_was_written_down(make):
    data = read_datadir(make(spk2gender="a f\nb m\n"))
    assert data.recordings == {"u1": "wav/u1.wav", "u2": "wav/u2.wav", "u3": "wav/u3.wav"}
    assert data.utterances["u3"] == Utterance("u3", "u3", "b", "FOUR FIVE SIX", gender="m")
    assert data.speakers() == {"a": ["u1", "u2"], "b": ["u3"]}


@pytest.mark.parametrize(
    "text",
    [
        "u3 FOUR FIVE SIX\nu1 ONE TWO\nu2 THREE\n",  # another order
        "u1 ONE TWO\r\nu2 THREE\r\nu3 FOUR FIVE SIX\r\n",
        "u1\tONE\tTWO\nu2\tTHREE\nu3   FOUR  FIVE SIX ",  # and no newline at the end
        b"\xef\xbb\xbfu1 ONE TWO\n\nu2 THREE\nu3 FOUR FIVE SIX\n",  # byte order mark, empty line
        "u1 ONE TWO\ru2 THREE\ru3 FOUR FIVE SIX\r",
    ],
)
def test_order_line_ends_tabs_and_marks_do_not_matter(make, text):
    assert read_datadir(make(text=text)).utterances == read_datadir(make()).utterances


def test_characters_that_python_takes_for_line_ends_are_part_of_the_line(make):
    data = read_datadir(make(text="u1 a\u0085b c\u2028d\nu2 x\nu3 y\n"))
    assert data.utterances["u1"].text == "a b c d"


def test_without_text_for_decoding(make):
    data = read_datadir(make(text=None))
    assert [utt.text for utt in data.utterances.values()] == [None] * 3


def test_spk2utt_serves_where_utt2spk_is_missing(make):
    data = read_datadir(make(utt2spk=None, spk2utt="b u3\na u2 u1\n"))
    assert data.speakers() == {"a": ["u1", "u2"], "b": ["u3"]}


def test_segments(make):
    directory = make(
        wav_scp="rec wav/u1.wav\n", segments="u2 rec 0.1 0.25\nu1 rec 0 0.1\nu3 rec 0.4 -1\n", spk2utt="a u1 u2\nb u3"
    )
    data = read_datadir(directory)
    assert [(u.recording, u.start_s, u.end_s) for u in data.utterances.values()] == [
        ("rec", 0.0, 0.1),
        ("rec", 0.1, 0.25),
        ("rec", 0.4, None),
    ]


FAULTS = {
    "no wav.scp": (dict(wav_scp=None), ["has no wav.scp"]),
    "empty wav.scp": (dict(wav_scp=""), ["wav.scp: is empty"]),
    "no path": (dict(wav_scp="u1 wav/u1.wav\nu2\nu3 wav/u3.wav"), ["wav.scp:2: u2: names no file"]),
    "empty text": (dict(text="u1 A\nu2 \nu3 B\n"), ["text:2: u2: the transcript is empty"]),
    "no text": (dict(text="u1 A\nu3 B\n"), ["u2: has no transcript"]),
    "no speaker": (dict(utt2spk="u1 a\nu3 b\n"), ["utt2spk: u2: has no speaker"]),
    "no utt2spk": (dict(utt2spk=None), ["3 utterances without a speaker"]),
    "two speakers": (dict(utt2spk="u1 a b\nu2 a\nu3 b\n"), ["utt2spk:1: u1: names more than one speaker"]),
    "speakers disagree": (dict(spk2utt="a u1\nb u2 u3\n"), ["u2: the speaker is a here and b in spk2utt"]),
    "spk2utt twice": (dict(utt2spk=None, spk2utt="a u1 u2\nb u2 u3\n"), ["spk2utt:2: u2: already belongs to a"]),
    "duplicate wav": (dict(wav_scp="u1 wav/u1.wav\nu2 x\nu3 y\nu1 wav/u1.wav"), ["wav.scp:4: u1: occurs a second"]),
    "duplicate text": (dict(text="u1 A\nu2 B\nu3 C\nu2 D"), ["text:4: u2", "another value than in line 2"]),
    "duplicate speaker": (dict(utt2spk="u1 a\nu2 a\nu3 b\nu3 b"), ["utt2spk:4: u3: occurs a second time, as"]),
    "text of nothing": (dict(text="u1 A\nu2 B\nu3 C\nu9 D"), ["text:4: u9: is neither in segments nor in wav.scp"]),
    "speaker of nothing": (dict(utt2spk="u1 a\nu2 a\nu3 b\nu9 b"), ["utt2spk:4: u9: is neither in segments nor"]),
    "spk2utt of nothing": (dict(utt2spk=None, spk2utt="a u1 u2\nb u3 u9"), ["spk2utt:2: u9: is neither in"]),
    "segment backwards": (dict(segments="u1 u1 0.3 0.1\nu2 u2 0 1\nu3 u3 0 1"), ["segments:1: u1: ends at 0.1 s, not"]),
    "segment of nothing": (dict(segments="u1 u1 0 0\nu2 u2 0 1\nu3 u3 0 1"), ["segments:1: u1: ends at 0 s, not"]),
    "segment before": (dict(segments="u1 u1 -2 1\nu2 u2 0 1\nu3 u3 0 1"), ["segments:1: u1: starts at -2 s"]),
    "no times": (dict(segments="u1 u1 a b\nu2 u2 0\nu3 u3 0 nan"), ["segments:1", "segments:2", "segments:3: u3: is"]),
    "no recording": (dict(segments="u1 u9 0 1\nu2 u2 0 1\nu3 u3 0 1"), ["segments:1: u1: recording u9 is not in"]),
    "gender": (dict(spk2gender="a female\nb m\n"), ["spk2gender:1: a: gender 'female'"]),
    "Latin-1": (dict(text=b"u1 A\nu2 caf\xe9\nu3 B\n"), ["text:2: u2: byte 0xe9 (number 7 of the line) is not UTF-8"]),
    "UTF-16": (dict(text="u1 A\nu2 B\nu3 C\n".encode("utf-16")), ["text: is UTF-16 text"]),
    "UTF-16 without mark": (dict(text="u1 A\nu2 B\nu3 C\n".encode("utf-16-le")), ["text: is UTF-16 text"]),
    "gzip": (dict(text=gzip.compress(b"u1 A\nu2 B\nu3 C\n")), ["text: is gzip text"]),
    "zip": (dict(text=b"PK\x03\x04\0\0"), ["text: is a zip archive", "office program, not text; unpack it"]),
    "NUL": (dict(text=b"u1 A\nu2 B\0\0\nu3 C\n"), ["text:2: has NUL bytes"]),
    "symbols": (dict(text="u1 A\nu2 <s> B </s>\nu3 C\n"), ["text:2: u2: has <s> and </s> in its transcript"]),
    "a symbol alone": (dict(text="u1 A\nu2 !SIL\nu3 C\n"), ["text:2: u2: has !SIL in its transcript"]),
    "a directory": (dict(), ["text: cannot be read"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_name_file_line_utterance(make, name):
    files, expected = FAULTS[name]
    directory = make(**files)
    if name == "a directory":
        (directory / "text").unlink()
        (directory / "text").mkdir()
    with pytest.raises(Speech3Error) as caught:
        read_datadir(directory)
    message = str(caught.value)
    assert all(part in message for part in expected)
    assert len(message.splitlines()) == (1 if len(expected) != 3 else 4)  # nothing is reported twice
    assert "sort" not in message


def test_all_faults_at_once(make):
    with pytest.raises(Speech3Error) as caught:
        read_datadir(make(text="u1\nu1 A\nu2 B\nu7 C\n", utt2spk="u1 a\nu2 a\n"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 5 and "5 faults" in lines[0]


def test_not_a_data_directory(tmp_path):
    with pytest.raises(Speech3Error, match="no such directory"):
        read_datadir(tmp_path / "nowhere")
    with pytest.raises(Speech3Error, match=r"has neither recordings"):
        read_datadir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Speech3Error, match="not a directory"):
        read_datadir(tmp_path / "file")


def test_subset_keeps_the_recordings_it_needs(make):
    part = read_datadir(make()).subset(["u3", "u1"])
    assert list(part.utterances) == list(part.recordings) == ["u1", "u3"]
    assert len(load(part, "u3")[0]) == 4000
    with pytest.raises(Speech3Error, match="no such utterance: u9"):
        part.subset(["u9"])


@pytest.mark.parametrize(
    "files",
    [
        {"spk2gender": "a f\nb m\n"},
        {"text": None},
        {"wav_scp": "r wav/u1.wav", "segments": "u1 r 0 0.125\nu2 r 0.2 0.333333\nu3 r 0.3 -1\n"},
        {"segments": "u1 u1 0 -1\n", "text": "u1 A", "utt2spk": "u1 a"},  # whole, but not all recordings are used
    ],
)
def test_round_trip(make, tmp_path, files):
    data = read_datadir(make(**files))
    write_datadir(data, tmp_path / "elsewhere" / "copy")
    again = read_datadir(tmp_path / "elsewhere" / "copy")
    assert again.utterances == data.utterances
    assert list(again.recordings) == list(data.recordings)
    assert all(Path(value).is_absolute() for value in again.recordings.values())
    for key in data.utterances:
        assert (load(again, key)[0] == load(data, key)[0]).all()


def test_a_directory_below_a_file_is_not_written(make, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Speech3Error, match=r"file/out/utt2spk: cannot be written"):
        write_datadir(read_datadir(make()), tmp_path / "file" / "out")


def test_files_written_are_sorted_and_leave_nothing_behind(make, tmp_path):
    out = tmp_path / "copy"
    with_segments = make(wav_scp="r wav/u1.wav", segments="u1 r 0 0.1\nu2 r 0.1 0.2\nu3 r 0.3 0.4\n")
    write_datadir(read_datadir(with_segments), out)
    (with_segments / "segments").unlink()
    write_datadir(read_datadir(make(text="u3 C\nu2 B\nu1 A\n")), out)
    assert sorted(path.name for path in out.iterdir()) == ["spk2utt", "text", "utt2spk", "wav.scp"]
    assert (out / "text").read_text() == "u1 A\nu2 B\nu3 C\n"
    assert (out / "spk2utt").read_text() == "a u1 u2\nb u3\n"


def test_paths_that_still_lead_to_the_file_stay_relative(make, tmp_path):
    directory = make()
    write_datadir(read_datadir(directory), directory)
    assert read_datadir(directory).recordings["u1"] == "wav/u1.wav"
    shutil.copytree(directory, tmp_path / "copy")  # a file of the same name, but another file
    write_datadir(read_datadir(directory), tmp_path / "copy")
    assert read_datadir(tmp_path / "copy").recordings["u1"] == str(directory / "wav" / "u1.wav")


def test_an_empty_set_is_not_written(tmp_path):
    with pytest.raises(Speech3Error, match="no utterance"):
        write_datadir(DataDir(tmp_path, {}, {}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


FEATS = "u1 ark/f.ark:14\nu2 ark/f.ark:99[0:9,0:12]\nu3 cat ark/f.ark |\n"


def _with_feats(make, **files):
    directory = make(**{"feats.scp": FEATS, "cmvn.scp": "a ark/c.ark:3\nb ark/c.ark:44\n", **files})
    (directory / "ark").mkdir(exist_ok=True)
    (directory / "ark" / "f.ark").write_bytes(b"nobody looks")
    (directory / "ark" / "c.ark").write_bytes(b"nobody looks")
    return directory


def test_features_are_copied_too(make, tmp_path):
    data = read_datadir(_with_feats(make))
    assert data.feats["u2"] == "ark/f.ark:99[0:9,0:12]" and data.cmvn == {"a": "ark/c.ark:3", "b": "ark/c.ark:44"}
    part = data.subset(["u2"])
    assert list(part.feats) == ["u2"] and list(part.cmvn) == ["a"]
    write_datadir(data, tmp_path / "copy")
    again = read_datadir(tmp_path / "copy")
    archive = tmp_path / "data" / "ark" / "f.ark"
    assert again.feats == {
        "u1": f"{archive}:14",
        "u2": f"{archive}:99[0:9,0:12]",
        "u3": f"cd {tmp_path / 'data'} && cat ark/f.ark |",
    }
    assert again.cmvn["b"] == f"{archive.with_name('c.ark')}:44"

    (tmp_path / "data" / "feats.scp").unlink()
    (tmp_path / "data" / "cmvn.scp").unlink()
    write_datadir(read_datadir(make()), tmp_path / "copy")
    assert not (tmp_path / "copy" / "feats.scp").exists() and not (tmp_path / "copy" / "cmvn.scp").exists()


@pytest.mark.parametrize("segments", [None, "u1 r 0 1\nu2 r 1 2\nu3 r 2 3.5\n"])
def test_features_without_audio(make, tmp_path, segments):
    directory = _with_feats(make, wav_scp=None, segments=segments)
    (directory / "wav.scp").unlink(missing_ok=True)
    data = read_datadir(directory)
    assert (
        not data.recordings and data.utterances["u3"].text == "FOUR FIVE SIX" and list(data.feats) == ["u1", "u2", "u3"]
    )
    with pytest.raises(MissingError, match="u1: no audio"):
        load(data, "u1")
    write_datadir(data, tmp_path / "copy")
    again = read_datadir(tmp_path / "copy")
    assert again.utterances == data.utterances and not (tmp_path / "copy" / "wav.scp").exists()


def test_faults_of_features(make):
    feats = "u1 f.ark:14\nu2\nu9 f.ark:7\n"
    with pytest.raises(Speech3Error) as caught:
        read_datadir(make(**{"feats.scp": feats, "cmvn.scp": "a\nb c.ark\n"}))
    message = str(caught.value)
    assert "3 faults" in message  # that u3 has none is not: its audio is there
    assert "feats.scp:3: u9: is neither in segments nor in wav.scp" in message
    assert "feats.scp:2: u2: names no file; add the path of the features" in message
    assert "cmvn.scp:1: a: names no file; add the path of the statistics" in message
    directory = make(wav_scp=None, segments="u1 r 0 1\nu2 r 1 2\nu3 r 2 3\n", **{"feats.scp": feats, "cmvn.scp": ""})
    (directory / "wav.scp").unlink()
    with pytest.raises(Speech3Error) as caught:
        read_datadir(directory)
    message = str(caught.value)
    assert "3 faults" in message and "feats.scp: u3: has no features; extract them" in message
    assert "feats.scp:3: u9: is neither in segments nor in feats.scp" in message


def test_line_breaks_in_paths_are_refused(tmp_path):
    data = DataDir(tmp_path, {"u": "/a\nb/u.wav"}, {"u": Utterance("u", "u", "s", "one")})
    with pytest.raises(Speech3Error, match=r"a\\nb"):
        write_datadir(data, tmp_path / "out")
    with pytest.raises(Speech3Error, match=r"c\\nd"):
        index_line("u", tmp_path / "c\nd" / "feats.ark", 0)
