"""What systems leave beside files is no recording and no transcript."""

from pathlib import Path

import pytest
import soundfile
from fieldwork import recording, short_textgrid
from sounds import RATE_HZ, tone

from speech3.corpora.folder import read_folder
from speech3.corpora.fsdd import prepare
from speech3.corpora.pairs import read_untranscribed
from speech3.data.audio import AudioError, info, read_file
from speech3.data.augment.noises import find_responses, find_sounds
from speech3.data.datadir import read_datadir
from speech3.data.paths import files_below, is_left_behind, is_sync_conflict, matching_paths
from speech3.errors import Speech3Error
from speech3.language.lexicon import find_lang

APPLE = b"\0\5\26\7\0\2\0\0Mac OS X        \0\2\0\0\0\11\0\0\0\62\0\0\16\260\0\0\0\2\0\0\16\342\0\0\1\36" + bytes(4038)
LEFT = (
    "._a.wav", ".DS_Store", "Thumbs.db", "desktop.ini", "~$a.txt", ".~lock.a.txt#", "a.wav~", "a.wav.part",
    "a (conflicted copy 2024-01-31).wav", "a (Eva's conflicted copy 2024-01-31).wav", "a (Case Conflict).wav",
    "a.sync-conflict-20240131-101010-ABCDEFG.wav", "a_conflict-20240131-101010.wav", "a.Conflict.wav", "__MACOSX",
    "a (In Konflikt stehende Kopie von Eva 2024-01-31).wav",
)  # fmt: skip
KEPT = ("a.wav", "_a.wav", "a (1).wav", "conflict.wav", "talk (conflict resolution).wav", "a-2.TextGrid", "thumbs.wav")


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_behind(name):
    assert is_left_behind(Path("x") / name)
    assert is_sync_conflict(Path(name)) == ("onfli" in name)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not(name):
    assert not is_left_behind(Path("x") / name)


def _litter(directory: Path) -> None:
    (directory / "__MACOSX").mkdir(exist_ok=True)
    for path in list(directory.iterdir()):
        if path.is_file():
            (directory / f"._{path.name}").write_bytes(APPLE)
            (directory / "__MACOSX" / path.name).write_bytes(APPLE)
            (directory / f"{path.stem} (conflicted copy 2024-01-31){path.suffix}").write_bytes(path.read_bytes())
            (directory / f"{path.stem}.sync-conflict-20240131-101010-ABCDEFG{path.suffix}").write_bytes(b"")
            (directory / f"~${path.name}").write_bytes(b"\0")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (directory / name).write_bytes(b"\0\0\0\1Bud1")


def test_an_mp3_beside_its_resource_fork_is_read(tmp_path):
    soundfile.write(tmp_path / "a.mp3", tone(), RATE_HZ)
    (tmp_path / "._a.mp3").write_bytes(APPLE)
    assert abs(len(read_file(tmp_path / "a.mp3")[0]) - 4000) < 600
    with pytest.raises(AudioError, match=r"macOS leaves beside a file.*pass the file itself"):
        info(tmp_path / "._a.mp3")


def test_a_folder_of_recordings(tmp_path):
    for name in "abc":
        recording(tmp_path / f"{name}.wav")
        (tmp_path / f"{name}.TextGrid").write_text(short_textgrid({"words": [(0.2, 1.5, "oh one two")]}))
    _litter(tmp_path)
    data, faults = read_folder(tmp_path)
    assert sorted(data.recordings) == ["a", "b", "c"]
    assert {Path(path).name for path in data.recordings.values()} == {"a.wav", "b.wav", "c.wav"}
    assert {fault.kind for fault in faults} == {"conflicted copy"}


def test_untranscribed_recordings_and_noises(tmp_path):
    for name in "ab":
        recording(tmp_path / f"{name}.wav")
    (tmp_path / "rir_list").write_text(f"--rir-id 1 --room-id 1 {tmp_path}/a.wav\n")
    _litter(tmp_path)
    assert sorted(read_untranscribed(tmp_path, []).recordings) == ["a.wav", "b.wav"]
    assert [sound.name for sound in find_sounds(tmp_path)] == ["a.wav", "b.wav"]
    assert len(find_responses(tmp_path)) == 1


def test_a_public_corpus(tmp_path):
    for digit in range(10):
        for speaker in ("george", "lucas", "theo", "nicolas"):
            recording(tmp_path / "recordings" / f"{digit}_{speaker}_0.wav", 0.3)
    _litter(tmp_path / "recordings")
    prepare(tmp_path, tmp_path / "out", 1)
    utterances = [key for part in ("train", "dev", "test") for key in read_datadir(tmp_path / "out" / part).utterances]
    assert len(utterances) == 40


def test_a_language_model(tmp_path):
    (tmp_path / "lm.arpa").write_text("\\data\\\n")
    _litter(tmp_path)
    assert find_lang(tmp_path).arpa == tmp_path / "lm.arpa"
    (tmp_path / "other.arpa").write_text("\\data\\\n")
    with pytest.raises(Speech3Error, match="2 language models"):
        find_lang(tmp_path)


def test_patterns_and_trees(tmp_path):
    (tmp_path / "1" / "2").mkdir(parents=True)
    (tmp_path / "1" / "2" / "1-2.trans.txt").write_text("1-2-0000 A\n")
    _litter(tmp_path / "1" / "2")
    assert matching_paths(tmp_path, "*/*/*.trans.txt") == [tmp_path / "1" / "2" / "1-2.trans.txt"]
    assert list(files_below(tmp_path)) == [tmp_path / "1" / "2" / "1-2.trans.txt"]
    assert matching_paths(tmp_path / "1" / "2", "*/*") == []
