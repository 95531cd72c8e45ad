"""How many bad utterances are too many, what the user is told, and where speech3 runs."""

import ast
import pickle
import sys
from pathlib import Path

import pytest

import speech3
from speech3 import engine
from speech3.cli import main
from speech3.data import AudioError
from speech3.errors import DataError, MissingError, Speech3Error, check_bad, check_platform


def test_five_per_cent_may_be_bad() -> None:
    check_bad({}, 1, "x")
    check_bad({"a": "short"}, 20, "x")
    with pytest.raises(Speech3Error, match=r"^x: 1 of 19 utterances are bad, more than 5 %:\n  a: short$"):
        check_bad({"a": "short"}, 19, "x")
    with pytest.raises(DataError, match=r"^x: no utterances$"):
        check_bad({}, 0, "x")


def test_more_may_be_bad_where_the_caller_says_so() -> None:
    check_bad({"a": "short"}, 4, "x", most=0.25)
    with pytest.raises(Speech3Error, match=r"^x: 1 of 3 utterances are bad, more than 25 %:"):
        check_bad({"a": "short"}, 3, "x", most=0.25)


def test_the_first_are_shown_once_each_with_the_remedy() -> None:
    bad = {f"u{number}": f"u{number}: short" for number in range(12)}
    with pytest.raises(Speech3Error) as caught:
        check_bad(bad, 100, "data/a", "cannot be used", "mend them")
    first, *lines = str(caught.value).splitlines()
    assert first == "data/a: 12 of 100 utterances cannot be used, more than 5 %; mend them:"
    assert lines == [*(f"  u{number}: short" for number in range(10)), "  and 2 more"]


def test_every_error_is_of_a_kind() -> None:
    bare = []
    for path in Path(speech3.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Speech3Error":
                bare.append(f"{path}:{node.lineno}")
    assert bare == []


def test_a_restated_error_keeps_its_kind() -> None:
    class OfAFileError(MissingError):
        def __init__(self, file: str, problem: str) -> None:
            super().__init__(f"{file}: {problem}")

    again = OfAFileError("a.txt", "no such file").restated("dev: a.txt: no such file")
    assert type(again) is MissingError and str(again) == "dev: a.txt: no such file"
    copied = pickle.loads(pickle.dumps(again))  # as errors of worker processes are
    assert type(copied) is MissingError and str(copied) == str(again)


def test_windows_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_platform()
    monkeypatch.setattr(sys, "platform", "win32")
    for ask in (lambda: speech3.Recognizer, lambda: engine.fit, check_platform):
        with pytest.raises(Speech3Error, match="WSL"):
            ask()
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: speech3 runs on Linux and macOS")


def test_the_remedy_is_the_end_of_the_message() -> None:
    error = MissingError("a.txt: no such file; make it, or; pass another")
    assert error.remedy == "make it, or; pass another"
    assert MissingError("a.txt: no such file").remedy == ""
    assert AudioError("kind", "a.wav", "is empty", "record it again").remedy == "record it again"
