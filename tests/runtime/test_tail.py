"""Files that grow, are cut, and are begun again, read a piece at a time."""

import json
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime.files import Appended, Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)


def lines(*epochs: int) -> str:
    return "".join(json.dumps({"epoch": epoch}) + "\n" for epoch in epochs)


def found(tail: Tail) -> tuple[bool, list[int]]:
    appended = tail.read()
    assert appended.damaged == ()
    return appended.afresh, [record["epoch"] for record in appended.records]


def test_only_what_is_new(path: Path) -> None:
    with Tail(path) as tail:
        assert found(tail) == (False, [])
        append(path, lines(1, 2))
        assert found(tail) == (False, [1, 2])
        assert found(tail) == (False, [])
        append(path, lines(3))
        assert found(tail) == (False, [3])


def test_a_half_written_line_is_read_when_it_is_whole(path: Path) -> None:
    with Tail(path) as tail:
        append(path, lines(1) + '{"epo')
        assert found(tail) == (False, [1])
        append(path, 'ch": 2')
        assert found(tail) == (False, [])
        append(path, "}")
        assert found(tail) == (False, [2])
        append(path, "\n" + lines(3))
        assert found(tail) == (False, [3])
        append(path, "no\n")
        assert tail.read().damaged == (4,)


def test_a_character_cut_in_two(path: Path) -> None:
    line = json.dumps({"epoch": "größer"}, ensure_ascii=False).encode()
    cut = line.index("ö".encode()) + 1
    with Tail(path) as tail:
        path.write_bytes(line[:cut])
        assert tail.read() == Appended(False)
        with path.open("ab") as stream:
            stream.write(line[cut:] + b"\n")
        assert tail.read().records == ({"epoch": "größer"},)


def test_a_file_begun_again_under_its_name(path: Path) -> None:
    append(path, lines(1, 2) + '{"epo')
    with Tail(path) as tail:
        assert found(tail) == (False, [1, 2])
        path.unlink()
        append(path, lines(5, 6, 7, 8, 9))  # longer than the old one, whose half line is forgotten
        assert found(tail) == (True, [5, 6, 7, 8, 9])
        path.unlink()
        assert found(tail) == (True, [])
        assert found(tail) == (False, [])
        append(path, lines(1))
        assert found(tail) == (False, [1])


def test_a_file_cut_in_place(path: Path) -> None:
    append(path, lines(1, 2, 3))
    with Tail(path) as tail:
        assert found(tail) == (False, [1, 2, 3])
        path.write_text(lines(4))
        assert found(tail) == (True, [4])


def test_damaged_lines_are_listed_by_number(path: Path) -> None:
    append(path, lines(1) + "{'epoch'}\n\n" + lines(2) + "3\n")
    with Tail(path) as tail:
        assert tail.read() == Appended(False, ({"epoch": 1}, {"epoch": 2}), (2, 5))
        with path.open("ab") as stream:
            stream.write(b"\xff\xfe\n")
        assert tail.read() == Appended(False, (), (6,))


def test_what_is_no_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Speech3Error, match=r"metrics\.jsonl: cannot be read \(Is a directory\)"):
        Tail(path).read()
