"""Times and efficiencies: the SPEECH3 talk's own numbers (DESIGN.md), and curves with known answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from speech3.errors import Speech3Error
from speech3.train.curves import Curve, accuracies_of, curve_of, efficiency, make_table, read_curve, time_to


def seconds(clock: str) -> int:
    minutes, rest = clock.split(":")
    return 60 * int(minutes) + int(rest)


CNN = {  # workers: time to 40, 43 and 44 % frame accuracy, and the talk's efficiency in per cent
    1: (("5:50", 100.0), ("14:36", 100.0), ("19:29", 100.0)),
    2: (("3:36", 81.0), ("8:59", 81.3), ("11:58", 81.4)),
    3: (("2:48", 69.4), ("5:59", 81.3), ("7:58", 81.5)),
    4: (("2:05", 70.0), ("4:28", 81.7), ("6:32", 74.6)),
    5: (("1:40", 70.0), ("3:49", 76.5), ("5:43", 68.2)),
}


@pytest.mark.parametrize("workers", CNN)
def test_the_talks_cnn(workers: int) -> None:
    for (alone, _), (time, per_cent) in zip(CNN[1], CNN[workers], strict=True):
        assert round(100 * efficiency(seconds(alone), seconds(time), workers), 1) == per_cent


def test_the_talks_lstm() -> None:
    alone = {46.5: 111, 47.5: 222, 48.5: 461}
    assert efficiency(alone[46.5], 60, 2) == pytest.approx(0.925)
    assert efficiency(alone[47.5], 120, 2) == pytest.approx(0.925)
    # Here the talk's figures do not follow from its times: it says 128 and 122.
    assert round(100 * efficiency(alone[48.5], seconds("3:01"), 2), 1) == 127.3
    assert round(100 * efficiency(alone[48.5], seconds("1:15"), 5), 1) == 122.9


def curve(workers: int, *points: tuple[float, float], name: str = "x") -> Curve:
    times, accuracy = zip(*points, strict=True)
    return Curve(name, workers, times, tuple(int(100 * t) for t in times), accuracy)


def test_time_is_interpolated_up_to_the_first_crossing() -> None:
    up_and_down = curve(1, (10, 0.2), (20, 0.4), (30, 0.3), (40, 0.5))
    assert time_to(up_and_down, 0.3) == pytest.approx(15)
    assert time_to(up_and_down, 0.4) == 20
    assert time_to(up_and_down, 0.45) == pytest.approx(37.5)
    assert time_to(up_and_down, 0.5) == 40
    assert time_to(up_and_down, 0.51) is None
    assert time_to(up_and_down, 0.1) == 10  # nothing is known before the first point


def test_table() -> None:
    alone = curve(1, (100, 0.30), (200, 0.45), (300, 0.50), (400, 0.49), name="sgd")
    two = curve(2, (100, 0.30), (150, 0.475), (200, 0.48), name="two")
    assert accuracies_of(alone) == pytest.approx((0.45, 0.475, 0.49))
    table = make_table(alone, [two])
    assert table.accuracies == accuracies_of(alone)
    first, second = table.rows
    assert (first.name, first.workers, first.best_accuracy, first.final_accuracy) == ("sgd", 1, 0.50, 0.49)
    assert first.seconds == pytest.approx((200, 250, 280))
    assert first.efficiency == pytest.approx((1, 1, 1))
    assert (second.name, second.workers, second.best_accuracy, second.final_accuracy) == ("two", 2, 0.48, 0.48)
    assert second.seconds[:2] == pytest.approx((100 + 50 * 0.15 / 0.175, 150))
    assert second.efficiency[:2] == pytest.approx((200 / (2 * second.seconds[0]), 250 / 300))  # type: ignore[operator]
    assert (second.seconds[2], second.efficiency[2]) == (None, None)


def test_table_without_a_baseline() -> None:
    four, two = curve(4, (50, 0.3), (90, 0.6)), curve(2, (100, 0.25), (200, 0.5))
    table = make_table(None, [four, two])
    assert table.accuracies == pytest.approx((0.45, 0.475, 0.49))  # of the one with the fewest workers
    assert [row.efficiency for row in table.rows] == [(None, None, None)] * 2
    assert table.rows[0].seconds[0] == pytest.approx(70)
    assert make_table(None, [four], (0.3,)).rows[0].seconds == (50,)


def test_a_time_of_zero_has_no_efficiency() -> None:
    begun = curve(2, (0, 0.6), (10, 0.7))
    assert make_table(curve(1, (10, 0.3), (20, 0.5)), [begun]).rows[1].efficiency == (None, None, None)


def record(event: str, epoch: int, frames: int, accuracy: float | None, **more: Any) -> dict[str, Any]:
    values = {"event": event, "epoch": epoch, "frames": frames, "seconds": frames / 10}
    return {**values, "heldout_accuracy": accuracy, **more}


def test_records_become_points_in_order() -> None:
    records = [
        {"event": "before", "epoch": 0, "heldout_accuracy": 0.1, "train_accuracy": None},
        record("heldout", 1, 50, 0.2),
        {"event": "start"},
        record("heldout", 1, 75, float("nan")),
        record("heldout", 1, 100, 0.29),
        record("epoch", 1, 100, 0.3, workers=3),
        record("heldout", 2, 150, None),
        record("epoch", 2, 200, 0.4, workers=3),
    ]
    assert curve_of("x", records) == Curve("x", 3, (0, 5, 10, 20), (0, 50, 100, 200), (0.1, 0.2, 0.3, 0.4))
    assert curve_of("x", [record("epoch", 1, 100, 0.3)], workers=2) == Curve("x", 2, (10,), (100,), (0.3,))
    assert curve_of("x", [{"event": "gmm", "iteration": 1}]) is None


def test_what_a_resumed_run_does_again_counts_once() -> None:
    killed = [record("heldout", 1, 50, 0.2), record("epoch", 1, 100, 0.3), record("heldout", 2, 150, 0.35)]
    again = [record("heldout", 1, 80, 0.25), record("epoch", 1, 100, 0.31)]
    found = curve_of("x", [*killed, *again])
    assert found is not None
    assert (found.frames, found.accuracy) == ((50, 80, 100), (0.2, 0.25, 0.31))


def test_a_run_directory_is_read(tmp_path: Path) -> None:
    run = tmp_path / "asgd2"
    run.mkdir()
    lines = [json.dumps(record("epoch", n, 100 * n, n / 10)) + "\n" for n in (1, 2)]
    (run / "run.json").write_text('{"training": {"workers": 2}}', encoding="utf-8")
    (run / "metrics.jsonl").write_text("".join(lines) + '{"event": "epo', encoding="utf-8")
    assert read_curve(run) == Curve("asgd2", 2, (10, 20), (100, 200), (0.1, 0.2))


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match="not the directory of a training run"):
        read_curve(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"event": "gmm", "iteration": 1}\n', encoding="utf-8")
    with pytest.raises(Speech3Error, match="not the directory of a training run"):
        read_curve(tmp_path)
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Speech3Error, match="wait for the run's first epoch"):
        read_curve(tmp_path)
