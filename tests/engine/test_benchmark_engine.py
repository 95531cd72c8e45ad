"""The engine's benchmark runs and prints what it should; how fast anything is, is no matter here."""

import importlib
import json
from pathlib import Path

import pytest

from speech3.config import DnnConfig


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("engine")


def _tiny(benchmark):
    model = DnnConfig(layers=1, width=8, left_context=1, right_context=1)
    return benchmark.Case("tiny", bins=4, senones=5, model=model, frames=1200, minibatches=8, minibatch=64)


def test_two_shards(benchmark):
    lines = benchmark.two_shards(_tiny(benchmark), ["asgd2_over_asgd1", "sync_share"], rounds=1)
    figures = {figure["name"]: figure for figure in map(json.loads, lines)}
    assert set(figures) == {"asgd2_over_asgd1", "sync_share"}
    assert all(figure["unit"] and figure["rival"] and figure["value"] > 0 for figure in figures.values())
    assert figures["sync_share"]["value"] < 1


def test_one_shard(benchmark):
    (figure,) = map(json.loads, benchmark.one_shard(_tiny(benchmark), rounds=1))
    assert figure["name"] == "engine1_over_bare"
    assert set(figure["by"]) == {"world", "metrics", "clock"}
    assert figure["value"] == min(figure["by"].values()) > 0
