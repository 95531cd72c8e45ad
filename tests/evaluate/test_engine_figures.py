"""What is on the axes: heights, lengths, units."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from speech3.engine.interface import ShardReport
from speech3.engine.papers.terngrad import ThroughputPoint
from speech3.evaluate.figures import Line, draw_accuracy, draw_lines, draw_shards, draw_staleness, draw_throughput
from speech3.train.curves import Curve


@pytest.fixture
def axes() -> Axes:
    return Figure().add_subplot()


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize(
    ("end_s", "end_frames", "x_s", "label_s", "x_frames", "label_frames"),
    [
        (60.0, 9000, 60.0, "seconds of training", 9000, "frames trained on"),
        (1200.0, 90000, 20.0, "minutes of training", 90, "thousand frames trained on"),
        (7200.0, 2_000_000, 2.0, "hours of training", 2, "million frames trained on"),
    ],
)
def test_accuracy_is_drawn_in_units_that_fit(
    end_s: float, end_frames: int, x_s: float, label_s: str, x_frames: float, label_frames: str
) -> None:
    curves = [Curve("one", 1, (0.0, end_s), (0, end_frames), (0.1, 0.5)), Curve("two", 2, (1.0,), (10,), (0.2,))]
    time, frames = Figure().subplots(1, 2)
    draw_accuracy(time, curves, "seconds", marks=(0.45, 0.49))
    draw_accuracy(frames, curves, "frames")
    assert list(time.lines[0].get_xdata()) == [0, x_s]
    assert list(time.lines[0].get_ydata()) == [0.1, 0.5]
    assert time.get_xlabel() == label_s
    assert [line.get_ydata()[0] for line in time.lines[2:]] == [0.45, 0.49]
    assert [text.get_text() for text in time.texts] == ["in the table: 45.0 %", "49.0 %"]
    assert list(frames.lines[0].get_xdata()) == [0, x_frames]
    assert frames.get_xlabel() == label_frames


def test_runs_of_very_different_lengths_have_a_logarithmic_axis(axes: Axes) -> None:
    short, long = Curve("short", 1, (0.0, 0.5, 2.0), (0, 5, 10), (0.1, 0.2, 0.4)), (0.0, 21.0)
    draw_accuracy(axes, [short, Curve("long", 1, long, (0, 10), (0.1, 0.5))], "seconds")
    assert axes.get_xscale() == "log" and axes.get_xlim()[0] == 0.5
    other = Figure().add_subplot()
    draw_accuracy(other, [short, Curve("long", 1, (0.0, 19.0), (0, 10), (0.1, 0.5))], "seconds")
    assert other.get_xscale() == "linear" and other.get_xlim()[0] == 0


def test_a_simulators_clock_is_called_virtual(axes: Axes) -> None:
    draw_accuracy(axes, [Curve("x", 1, (10.0,), (10,), (0.2,))], "seconds", virtual=True)
    assert axes.get_xlabel() == "virtual seconds of training"
    assert axes.get_legend() is None


def test_more_lines_than_colours_can_be_distinguished(axes: Axes) -> None:
    draw_lines(axes, [Line(str(number), [0, 1], [0, 1], number) for number in range(14)], "x")
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 14


@pytest.mark.parametrize(("count", "beside"), [(2, False), (4, False), (5, True), (14, True)])
def test_the_names_of_many_lines_stand_beside_the_axes(count: int, beside: bool) -> None:
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    draw_lines(axes, [Line(f"run {number}", [0, 1], [0, 1], number) for number in range(count)], "x")
    figure.draw_without_rendering()
    legend = axes.get_legend()
    assert legend and [text.get_text() for text in legend.get_texts()] == [f"run {number}" for number in range(count)]
    assert (legend.get_window_extent().x0 >= axes.get_window_extent().x1) == beside
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_throughput_of_many_bandwidths(axes: Axes) -> None:
    """Each has its look; float32 is dashed and ternary is not."""
    bandwidths, workers = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0], [1, 2, 4]
    rows = [[ThroughputPoint("dnn", b, n, 100 * b * n, 200 * b * n) for n in workers] for b in bandwidths]
    draw_throughput(axes, rows, bandwidths, span=(1.0, 1e6))
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 2 * len(bandwidths) and len({look[:2] for look in looks}) == len(bandwidths)
    for number, bandwidth in enumerate(bandwidths):
        ternary, float32 = axes.lines[2 * number : 2 * number + 2]
        assert list(ternary.get_ydata()) == pytest.approx([200 * bandwidth * n for n in workers])
        assert list(float32.get_ydata()) == pytest.approx([100 * bandwidth * n for n in workers])
        assert list(ternary.get_xdata()) == list(float32.get_xdata()) == workers
        assert (ternary.get_linestyle(), float32.get_linestyle()) == ("-", "--")
    legend = axes.get_legend()
    assert legend and [text.get_text() for text in legend.get_texts()] == [
        f"{each:g} Gbit/s, {gradients}" for each in bandwidths for gradients in ("ternary", "float32")
    ]
    assert axes.get_ylim()[0] < 1.0 and axes.get_ylim()[1] > 1e6
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4"]
    assert axes.get_xlabel() == "workers"
    figures = [axes.yaxis.get_major_formatter()(value, 0) for value in (500.0, 2e3, 3e6)]
    assert figures == ["500", "2 k", "3 M"]


def test_staleness(axes: Axes) -> None:
    draw_staleness(axes, [10, 70, 15, 5])
    assert [bar.get_height() for bar in bars(axes)] == pytest.approx([0.10, 0.70, 0.15, 0.05])
    assert axes.get_xlabel().endswith("100 minibatches, mean 1.15, 95 % at most 2")


def test_shards(axes: Axes) -> None:
    draw_shards(axes, [ShardReport(30, 10.0, 2.0, 1.0, 5, 0.25), ShardReport(10, 4.0, 0.5, 0.0, 0)])
    ends = [bar.get_x() + bar.get_width() for bar in bars(axes)]
    assert ends == pytest.approx([10, 12, 13, 13.25, 4, 4.5, 4.5, 4.5])
    assert [text.get_text() for text in axes.texts] == ["75.0 %", "25.0 %"]
    assert axes.get_xlim()[1] > 13


def test_shards_that_did_nothing(axes: Axes) -> None:
    draw_shards(axes, [ShardReport(), ShardReport()])
    assert [text.get_text() for text in axes.texts] == ["0.0 %", "0.0 %"]
