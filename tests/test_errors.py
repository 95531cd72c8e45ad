"""How many bad utterances are too many, what the user is told, and where speech3 runs."""

import sys

import pytest

import speech3
from speech3 import engine
from speech3.cli import main
from speech3.errors import Speech3Error, check_bad, check_platform


def test_five_per_cent_may_be_bad() -> None:
    check_bad({}, 1, "x")
    check_bad({"a": "short"}, 20, "x")
    with pytest.raises(Speech3Error, match=r"^x: 1 of 19 utterances are bad, more than 5 %:\n  a: short$"):
        check_bad({"a": "short"}, 19, "x")
    with pytest.raises(Speech3Error, match=r"^x: no utterances$"):
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


def test_windows_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    check_platform()
    monkeypatch.setattr(sys, "platform", "win32")
    for ask in (lambda: speech3.Recognizer, lambda: engine.fit, check_platform):
        with pytest.raises(Speech3Error, match="WSL"):
            ask()
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: speech3 runs on Linux and macOS")
