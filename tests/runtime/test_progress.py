"""Progress passes things through; metrics survive a kill."""

import errno
import io
import json
import time
from pathlib import Path

import pytest

from speech3.errors import Speech3Error
from speech3.runtime import Metrics, console, progress, read_metrics, reporting as module, say


def test_items_pass_through_with_and_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr", io.StringIO())
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        assert list(progress(iter("abc"), 3, "letters")) == list("abc")
        assert list(progress([], 0, "letters")) == []


def test_plain_lines_say_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.0)
    list(progress(range(3), 3, "pack [x]"))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 2  # none for the last: what follows speaks for itself
    assert lines[0].startswith("pack [x]: 1/3, ") and lines[1].startswith("pack [x]: 2/3, ")
    assert lines[1].endswith(" s left")


def test_the_first_line_comes_early(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, *(float(second) for second in range(1, 31))])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    list(progress(range(30), 30, "a second each"))
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "a second each: 5/30",
        "a second each: 15/30",
        "a second each: 25/30",
    ]


def test_the_time_left_is_not_judged_by_the_first_item(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 20.0, *(21.0 + second for second in range(19))])  # twenty seconds, then a second each
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    list(progress(range(20), 20, "compiled"))
    assert capsys.readouterr().err.splitlines() == [
        "compiled: 1/20, 0.1/s",
        "compiled: 11/20, 1.0/s, 9 s left",
    ]


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    list(progress(range(100), 100, "quick"))
    assert capsys.readouterr() == ("", "")


def test_say_prints_long_lines_and_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[bold]u1[/bold] " + "word " * 60 + "end"
    say(text)
    assert capsys.readouterr() == ("", text + "\n")
    assert console.stderr


def test_metrics_are_stamped_lines(tmp_path: Path) -> None:
    path, start = tmp_path / "exp" / "metrics.jsonl", time.time()
    assert read_metrics(path) == []
    metrics = Metrics(path)
    metrics.write(epoch=1, loss=0.5)
    metrics.write(epoch=2, what="größer")
    records = read_metrics(path)
    assert [record["epoch"] for record in records] == [1, 2] and records[1]["what"] == "größer"
    assert all(start - 1 <= record["time"] <= time.time() + 1 for record in records)
    Metrics(path).write(epoch=3)
    assert [record["epoch"] for record in read_metrics(path)] == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("cut", [1, 5, 15])
def test_a_line_cut_short_costs_itself_and_not_the_next(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    for epoch in (1, 2):
        Metrics(path).write(epoch=epoch, loss=0.5)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = [1, 2] if cut == 1 else [1]  # the newline alone was missing
    assert [record["epoch"] for record in read_metrics(path)] == kept
    Metrics(path).write(epoch=3)
    assert [record["epoch"] for record in read_metrics(path)] == [*kept, 3]
    assert json.loads(path.read_text().splitlines()[-1])["epoch"] == 3


def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(Speech3Error, match=r"metrics\.jsonl: no space left on the disk"):
        metrics.write(epoch=1)
