"""The picture of a run: what stands in it, in terminals of several sizes, and in none."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from speech3.engine.interface import ShardReport
from speech3.evaluate import run_watch
from speech3.evaluate.run_watch import EpochView, MinibatchCounts, RunView, draw, duration, fitting, sparkline
from speech3.train.curves import Asynchrony

NOW = 1000.0
EPOCHS = tuple(
    EpochView(n, 3661.0, 12345.0, 0.3 + n / 100, 2.5, 0.25 + n / 100, 3.0 - n / 10, 0.4, 0.1) for n in range(1, 13)
)
SHARDS = Asynchrony(
    staleness=(10, 30, 0, 10), shards=(ShardReport(5, 9.0, 0.5, 0.5, 7), ShardReport(15, 8.0, 1.0, 1.0, 2))
)
VIEW = RunView(
    "asgd2", family="dnn", minibatch_frames=256, world="shared", workers=2, max_epochs=20, may_stop_early=True,
    minibatches=(1250, 5000), frames_per_s=12345.0, seconds=46000.0, seconds_left=2745.0, run_seconds_left=32000.0,
    epochs=(*EPOCHS, EpochView(13, 915.0, 12000.0, 0.45, 1.2, done=0.25)), best_epoch=12,
    accuracies=(0.26, 0.3, 0.37), losses=(2.9, 2.0, 1.8), latest=MinibatchCounts(1240, 7, 3, 11, 1),
    whole=MinibatchCounts(61240, 17, 13, 21, 2), shards=SHARDS, shards_epoch=13, recorded=NOW - 4,
)  # fmt: skip


def text_of(view: RunView, width: int = 80, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, legacy_windows=False)
    console.print(draw(view, NOW, **options))
    return console.file.getvalue()  # type: ignore[attr-defined]


def words_of(view: RunView, **options: Any) -> str:
    return " ".join(text_of(view, **options).split())


def test_everything_is_said() -> None:
    said = words_of(VIEW)
    for expected in (
        "asgd2: dnn, world shared, 2 workers, minibatches of 256 frames",
        "epoch 13 of at most 20",
        "1,250 of 5,000 minibatches",
        "12,345 frames/s, 12:46:40 of training",
        "45:45 left in this epoch, at most 8:53:20 in the run",
        "last record 4 s ago",
        "held-out accuracy ▁▄█ 26.00% to 37.00%",
        "held-out loss █▂▁ 2.9000 to 1.8000",
        "12 best 42.00 2.5000 37.00 1.8000 40.00 0.1 12,345 1:01:01",
        "13 (25%) 45.00 1.2000 - - - - 12,000 15:15",
        "epoch 13 1,240 7 3 11 1",
        "whole run 61,240 17 13 21 2",
        "staleness of 50 minibatches in epoch 13: mean 1.20, 95 % up to 3",
        "% of minibatches 20.0 60.0 0.0 20.0",
        "0 5 25.0 90.0 5.0 5.0 7",
        "1 15 75.0 80.0 10.0 10.0 2",
    ):
        assert expected in said, expected


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_broken_or_cut(width: int) -> None:
    assert max(map(len, text_of(VIEW, width).splitlines())) <= 80
    assert text_of(VIEW, width).split() == text_of(VIEW, 300).split()
    assert text_of(VIEW, width).count("\n") == text_of(VIEW, 300).count("\n")
    assert "…" not in text_of(VIEW, width)


def test_a_finished_run() -> None:
    said = words_of(replace(VIEW, finished=True, minibatches=None, seconds_left=None, run_seconds_left=None))
    assert "finished after 13 of at most 20 epochs; the result is from epoch 12" in said
    assert " left " not in said and "last record" not in said


def test_the_best_epoch_is_listed_where_it_is_long_ago() -> None:
    first = [line[:8].rstrip() for line in text_of(replace(VIEW, best_epoch=2)).splitlines()]
    assert first[first.index("epoch") + 1 :][:10] == ["2 best", *map(str, range(5, 13)), "13 (25%)"]
    unknown = [line[:8].rstrip() for line in text_of(replace(VIEW, best_epoch=None)).splitlines()]
    assert unknown[unknown.index("epoch") + 1 :][:10] == [*map(str, range(4, 13)), "13 (25%)"]


def test_a_run_without_shards() -> None:
    said = words_of(replace(VIEW, world="sgd", workers=1, shards=None, may_stop_early=False, minibatches=None))
    assert "world sgd, 1 worker," in said and "13 of 20 epochs done" in said and "staleness" not in said


def test_nothing_yet() -> None:
    assert text_of(RunView("new")).splitlines() == [
        "new",
        "nothing recorded yet; waiting for the first record (Ctrl-C to quit)",
    ]


def test_a_run_that_is_silent() -> None:
    assert "last record 2:00:00 ago; is the training still running?" in words_of(replace(VIEW, recorded=NOW - 7200))
    assert "ago; " not in words_of(VIEW)


def test_damaged_lines() -> None:
    assert "metrics.jsonl: ignoring unreadable line 3, 9" in words_of(replace(VIEW, damaged=(3, 9)))


def test_virtual_seconds_are_called_so() -> None:
    assert "12:46:40 of training by the virtual clock" in words_of(replace(VIEW, world="simulated"))


def test_large_staleness_is_counted_together() -> None:
    said = words_of(replace(VIEW, shards=Asynchrony(staleness=(1,) * 20)))
    assert "versions 0 1 2 3 4 5 6 7 8 9+" in said and "5.0 5.0 55.0 " in said


def test_a_figure_that_is_not_finite() -> None:
    assert "nan" in text_of(replace(VIEW, epochs=(EpochView(1, heldout_loss=float("nan")),)))


@pytest.mark.parametrize("height", [60, 40, 30, 24])
def test_as_much_as_the_terminal_has_lines_for(height: int) -> None:
    many = replace(VIEW, shards=replace(SHARDS, shards=SHARDS.shards * 16))
    console = Console(file=io.StringIO(), width=80, height=height, highlight=False)
    console.print(fitting(many, console, NOW))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.count("\n") <= height
    assert re.search(r"^13 \(25%\)", said, re.MULTILINE)
    assert re.search(r"^and \d+ more", said, re.MULTILINE)


def test_a_terminal_without_block_characters() -> None:
    said = text_of(VIEW, ascii_only=True)
    assert "held-out accuracy  _-#" in said
    assert not set("▁▂▃▄▅▆▇█") & set(said)


def test_sparklines() -> None:
    assert sparkline([0, 7, 3], 10) == "▁█▄"
    assert sparkline([2, 2], 10) == "▁▁"
    assert sparkline(list(range(100)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0] * 99 + [1], 10)[-1] == "█"  # the newest is always shown


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01")]
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_ctrl_c_leaves_the_last_view(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run_dir: Any, pause: Any) -> Any:
        yield VIEW
        raise KeyboardInterrupt

    monkeypatch.setattr(run_watch, "follow", interrupted)
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    assert run_watch._live(tmp_path, console) == VIEW
