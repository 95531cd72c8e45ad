"""The engine's benchmark runs and prints what it should; how fast anything is, is no matter here."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from speech3.config import DnnConfig
from speech3.engine.interface import Progress, ShardReport


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("engine")


def _tiny(benchmark):
    model = DnnConfig(layers=1, width=8, left_context=1, right_context=1)
    return benchmark.Case("tiny", bins=4, senones=5, model=model, frames=1200, minibatches=8, minibatch=64)


@pytest.mark.slow
def test_all_figures_of_a_network(benchmark):
    found = {f["name"]: f for f in map(json.loads, benchmark.figures(_tiny(benchmark), benchmark.FIGURES, rounds=2))}
    assert list(found) == list(benchmark.FIGURES)
    assert all(f["unit"] and f["rival"] and f["value"] > 0 and f["rounds"] == 2 for f in found.values())
    assert found["sync_share"]["value"] < 1 and found["sync_share_1"]["value"] < 1
    one, each = found["engine1_over_bare"], found["engine1_over_bare_1"]
    assert set(one["by"]) == {"world", "metrics", "clock"} and set(each["by"]) == {"world", "clock"}
    for figure in (one, each):
        assert figure["value"] == min(figure["by"].values())
        assert figure["between_epochs_s"] > 0 and figure["run_epoch_frames"] == 8 * 64


@pytest.mark.slow
def test_those_that_are_named(benchmark):
    (figure,) = map(json.loads, benchmark.figures(_tiny(benchmark), ["bare2_over_bare1"], rounds=1, suffix="_tiny"))
    assert figure["name"] == "bare2_over_bare1_tiny" and figure["rival"] == "one loop"


def test_an_hour_of_speech_by_the_clock(benchmark, monkeypatch):
    """10,000 frames a second bare, 9,000 in a run, 9,500 and 8,000 in the worlds; two seconds between two epochs."""

    def done(speed, sync_s):
        return Progress(frames=speed, seconds=1.0, shards=(ShardReport(minibatches=1, compute_s=1.0, sync_s=sync_s),))

    measured = {
        "bare": [10_000.0] * 3,
        "run": [(9000.0, 2.0)] * 3,
        "asgd1": [done(9500, 0.25)] * 3,
        "asgd1_1": [done(8000, 1.0)] * 3,
    }
    monkeypatch.setattr(benchmark, "_measured", lambda case, wanted, rounds: measured)
    names = ["engine1_over_bare", "engine1_over_bare_1"]
    one, each = map(json.loads, benchmark.figures(_tiny(benchmark), names, rounds=3))
    assert one["by"] == {"world": 0.95, "clock": round(360_000 / 42 / 10_000, 4), "metrics": 0.9}
    assert each["by"] == {"world": 0.8, "clock": round(360_000 / 47 / 10_000, 4)}
    assert (one["sync_share"], each["sync_share"], one["between_epochs_s"]) == (0.2, 0.5, 2.0)


def test_rounds_turn_the_order_about(benchmark, monkeypatch):
    rivals = importlib.import_module("engine_rivals")
    order = []
    rivals.in_turn({name: lambda name=name: order.append(name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert benchmark.ROUNDS >= 5 and sys.modules["pool"].RUNS >= 5
