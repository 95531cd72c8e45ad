"""TernGrad's figure as tables and panels: every number where its headings say, one scale for all networks."""

import json

import pytest
from matplotlib.figure import Figure

from speech3.engine.papers.terngrad import Costs, Sent, conclusions, throughputs
from speech3.evaluate import figures
from speech3.evaluate.comparison import throughput_text, write_throughput
from speech3.train.simulation import BYTES_PER_GIGABIT, MeasuredNetwork, Throughput

WORKERS, GIGABITS = (1, 2, 4), (0.001, 10.0)


def _costs(compute_s: float) -> Costs:
    return Costs(
        100,
        compute_s,
        Sent(6_000_000, 6_000_000),
        {
            2: Sent(400_000, 500_000, 0.0025),
            4: Sent(400_000, 700_000, 0.0035),
        },
    )


@pytest.fixture
def found() -> Throughput:
    networks = (
        MeasuredNetwork("dnn", 1_500_000, 1.0, _costs(0.01)),
        MeasuredNetwork("cnn", 1_500_000, 0.25, _costs(0.08)),
    )
    points = throughputs({n.name: n.costs for n in networks}, WORKERS, [each * BYTES_PER_GIGABIT for each in GIGABITS])
    held = conclusions(points, {network.name: network.connected for network in networks})
    return Throughput("cpu", WORKERS, GIGABITS, networks, tuple(points), tuple(held))


def test_tables(found):
    rows = [line.split() for line in throughput_text(found).splitlines()]
    measured = "1,500,000 100.0 100 10.00 6.000 2.50 .. 3.50 0.400 0.500 .. 0.700"
    assert ["dnn", *measured.split()] in rows
    assert ["network", "Gbit/s", "gradients", "1", "2", "4"] in rows
    # By hand, 4 workers at 10 Gbit/s: 2 log2(4) W / b, and the coding.
    float32, ternary = 400 / (0.08 + 4 * 6e6 / 1.25e9), 400 / (0.08 + 0.0035 + 2 * 1.1e6 / 1.25e9)
    by_name = {tuple(row[:3]): row[3:] for row in rows if len(row) == 6}
    assert by_name["cnn", "10", "float32"][-1] == f"{float32:,.0f}"
    assert by_name["cnn", "10", "ternary"][-1] == f"{ternary:,.0f}"
    assert by_name["cnn", "10", "gain"][-1] == f"{ternary / float32:.2f}"
    assert by_name["dnn", "0.001", "float32"][0] == by_name["dnn", "0.001", "ternary"][0] == "10,000"
    assert len(by_name) == 1 + 2 * 2 * 3


def test_conclusions_say_how_many_steps_are_level(found):
    """One step of workers for each network and bandwidth; where only bytes count, the mean of more is longer."""
    text = throughput_text(found)
    assert "TernGrad: more workers gain more: does not always hold (2 of 4 steps)\n" in text
    assert "  not: dnn, 0.001 Gbit/s, 2 workers: gain 13.3" in text
    assert "TernGrad: less bandwidth gains more: holds (4 of 4 steps)\n" in text
    assert "TernGrad: more fully connected layers gain more: holds (2 of 2 steps; 2 level, within 2 %)" in text


def test_what_is_written(found, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "write_png", lambda path, panels: drawn.update(panels))
    write_throughput(tmp_path, found)
    values = json.loads((tmp_path / "throughput.json").read_text())
    assert values["level_within"] == 0.02
    assert [(each["steps"], each["level"], len(each["against"])) for each in values["conclusions"]] == [
        (4, 0, 2),
        (4, 0, 0),
        (2, 2, 0),
    ]
    assert list(drawn) == ["dnn: 100 % fully connected", "cnn: 25 % fully connected"]
    limits, rates = [], [rate for point in found.points for rate in (point.float32, point.ternary)]
    for name, draw in zip(("dnn", "cnn"), drawn.values(), strict=True):
        axes = Figure().add_subplot()
        draw(axes)
        mine = [point for point in found.points if point.network == name]
        assert [list(line.get_ydata()) for line in axes.lines] == [
            [rate(point) for point in mine if point.bandwidth == gigabits * BYTES_PER_GIGABIT]
            for gigabits in GIGABITS
            for rate in (lambda p: p.ternary, lambda p: p.float32)
        ]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [
            f"{gigabits} Gbit/s, {gradients}" for gigabits in ("0.001", "10") for gradients in ("ternary", "float32")
        ]
        limits.append(axes.get_ylim())
    assert limits[0] == limits[1] and limits[0][0] < min(rates) and limits[0][1] > max(rates)
