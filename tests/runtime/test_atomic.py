"""Either the old file or the new one, never half of one; a disk that refuses is explained."""

import errno
import os
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime.files import atomic_path, explained_disk_errors, read_json, write_json, write_text

FULL = Path("/dev/full")  # every write to it fails with ENOSPC; only ever opened, never replaced


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_new_file_replaces_the_old_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "out.txt"
    write_text(path, "old")
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent  # a rename across file systems would be a copy
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path.parent) == ["out.txt"]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, fault: type[BaseException]) -> None:
    path = tmp_path / "out.txt"
    write_text(path, "old")
    with pytest.raises(fault), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise fault
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "out.txt"):
        pass


@pytest.mark.skipif(not FULL.is_char_device(), reason="no /dev/full on this system")
def test_a_full_disk_names_the_file_and_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    write_text(path, "old")
    with pytest.raises(Speech3Error, match=r"out\.txt: no space left on the disk; free some"), atomic_path(path) as new:
        new.write_text("half")
        with FULL.open("w") as stream:
            stream.write("x")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_directory_one_may_not_write_to(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(Speech3Error, match=rf"x/out\.txt: cannot be written \({os.strerror(number)}\); choose another"):
        write_text(tmp_path / "x" / "out.txt", "new")


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(Speech3Error, match=r"out/a\.txt: cannot be written"):
        write_text(tmp_path / "out" / "a.txt", "new")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_place_taken_by_a_directory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(Speech3Error, match="out: cannot be written"):
        write_text(tmp_path / "out", "new")
    assert names(tmp_path) == ["out"]


def test_names_as_long_as_the_file_system_takes_and_longer(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)  # 254 bytes
    with atomic_path(path) as new:
        new.write_text("new")
    assert path.read_text() == "new"
    with pytest.raises(Speech3Error, match="cannot be written"):
        write_text(tmp_path / ("x" * 256), "new")


def test_other_errors_of_the_system_pass_through() -> None:
    with pytest.raises(OSError, match="Input/output"), explained_disk_errors("x"):
        raise OSError(errno.EIO, "Input/output error")


def test_json_round_trip_and_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"word": "größer 数", "numbers": [1, 2.5, None, True]}
    write_json(path, value)
    assert read_json(path) == value
    assert "größer 数" in path.read_text(encoding="utf-8")
    for content, message in (
        (b'{"a": 1', "not valid JSON.*make it again"),
        (b'{"\xff": 1}', "1: not UTF-8"),
        (b"", "not"),
    ):
        path.write_bytes(content)
        with pytest.raises(Speech3Error, match=rf"a\.json: ?{message}"):
            read_json(path)
    with pytest.raises(Speech3Error, match=r"b\.json: no such file"):
        read_json(tmp_path / "b.json")
    for place, message in ((path / "c.json", "Not a directory"), (tmp_path, "is a directory")):
        with pytest.raises(Speech3Error, match=message):
            read_json(place)
