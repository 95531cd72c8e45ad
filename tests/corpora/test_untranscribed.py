"""Recordings without transcripts: what no utterance of train, dev and test covers."""

from pathlib import Path

import pytest
from fieldwork import recording

from speech3.corpora.pairs import read_untranscribed
from speech3.data.datadir import DataDir, Utterance, read_datadir, write_datadir
from speech3.errors import DataError, Speech3Error


def _spans(source: Path, known: list[DataDir]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for utterance in read_untranscribed(source, known).utterances.values():
        assert utterance.text is None and utterance.end_s is not None
        found.setdefault(utterance.recording, []).append((utterance.start_s, utterance.end_s))
    return found


def test_utterances_of_train_dev_and_test_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in"
    for name in ("new", "whole", "part"):
        recording(source / "tapes" / f"{name}.wav", 0.4 if name == "new" else 4.0)
    (source / "tapes" / "broken.wav").write_text("no sound")
    known = DataDir(
        tmp_path / "in",
        {"w": "tapes/whole.wav", "p": str(source / "tapes" / ".." / "tapes" / "part.wav")},
        {
            "a": Utterance("a", "w", "s", "mama"),
            "b": Utterance("b", "p", "s", "mama", 1.0, 2.0),
            "c": Utterance("c", "p", "s", "leo", 2.3, 4.0),
        },
    )
    assert _spans(source, [known]) == {
        "tapes_new.wav": [(0.0, 0.4)],  # one word
        "tapes_part.wav": [(0.0, 0.95)],  # 0.2 s between the others are a pause
    }
    (source / "wav.scp").write_text("p tapes/part.wav\n")
    (source / "segments").write_text("x p 0.5 2.5\n")
    (source / "text").write_text("x ignored\n")
    (source / "utt2spk").write_text("x x\n")
    assert _spans(source, []) == {"p": [(0.5, 2.5)]}
    monkeypatch.chdir(source / "tapes")
    (source / "wav.scp").write_text("p part.wav\n")  # relative to the working directory
    assert _spans(source, []) == {"p": [(0.5, 2.5)]}
    (source / "wav.scp").write_text("p cat tapes/part.wav |\n")
    write_datadir(read_datadir(source), tmp_path / "train")  # with another command: `cd ... && cat ...`
    with pytest.raises(Speech3Error, match="nothing is left without a transcript"):
        read_untranscribed(source, [read_datadir(tmp_path / "train")])


def test_copies_of_known_recordings_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = recording(tmp_path / "in" / "a.wav", 4.0)
    known = DataDir(tmp_path, {"a": str(whole)}, {"a": Utterance("a", "a", "s", "mama")})
    recording(tmp_path / "in" / "A.flac", 4.0)  # beside it, in another format
    (tmp_path / "in" / "elsewhere").mkdir()
    (tmp_path / "in" / "elsewhere" / "b.wav").write_bytes(whole.read_bytes())
    recording(tmp_path / "in" / "elsewhere" / "a.wav", 3.0)  # only the name is the same
    assert _spans(tmp_path / "in", [known]) == {"elsewhere_a.wav": [(0.0, 3.0)]}
    assert capsys.readouterr().err.count("is the same recording as") == 2
    recording(tmp_path / "in" / "elsewhere a.wav", 3.0)
    with pytest.raises(DataError, match=r"would both have the name elsewhere_a\.wav"):
        read_untranscribed(tmp_path / "in", [known])


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, message in ((tmp_path / "none", "no such directory"), (tmp_path / "empty", "no recordings")):
        with pytest.raises(Speech3Error, match=message):
            read_untranscribed(path, [])
    whole = recording(tmp_path / "in" / "a.wav")
    known = DataDir(tmp_path, {"a": str(whole)}, {"a": Utterance("a", "a", "s", "mama")})
    with pytest.raises(Speech3Error, match="nothing is left without a transcript"):
        read_untranscribed(tmp_path / "in", [known])
