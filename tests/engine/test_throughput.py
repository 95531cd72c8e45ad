"""TernGrad's performance model: its formula by hand, bytes of real buffers, and claims that hold and do not."""

import math

import pytest
import tiny

from speech3.config import CodecConfig
from speech3.engine.backends.one_process import Synchronous, Times
from speech3.engine.codecs import layout
from speech3.engine.flat import flatten
from speech3.engine.interface import Rate
from speech3.engine.papers.terngrad import (
    Costs,
    Sent,
    SharedCodes,
    ThroughputPoint,
    conclusions,
    digits_in_word,
    measure_costs,
    throughputs,
)

COSTS = Costs(100, 0.5, Sent(8000, 8000), {4: Sent(500, 1000, 0.1), 16: Sent(500, 1500, 0.2)})
WORKERS = (1, 4, 16)


def test_the_formula_by_hand():
    points = throughputs({"dnn": COSTS}, WORKERS, [1e4, 1e5], latency_s=0.01)
    assert [(p.bandwidth, p.workers) for p in points] == [(b, n) for b in (1e4, 1e5) for n in WORKERS]
    assert [p.float32 for p in points] == pytest.approx(
        [
            100 / 0.5,
            400 / (0.5 + 2 * 8000 / 1e4 * 2 + 4 * 0.01),
            1600 / (0.5 + 2 * 8000 / 1e4 * 4 + 8 * 0.01),
            100 / 0.5,
            400 / (0.5 + 2 * 8000 / 1e5 * 2 + 4 * 0.01),
            1600 / (0.5 + 2 * 8000 / 1e5 * 4 + 8 * 0.01),
        ]
    )
    assert [p.ternary for p in points[:3]] == pytest.approx(
        [
            100 / 0.5,
            400 / (0.5 + 0.1 + 2 * 1500 / 1e4 + 4 * 0.01),
            1600 / (0.5 + 0.2 + 4 * 2000 / 1e4 + 8 * 0.01),
        ]
    )


@pytest.mark.parametrize("workers", [2, 4, 512])
def test_bytes_are_those_of_the_buffers(workers):
    own = flatten(tiny.model())
    costs = measure_costs(tiny.Build()(), CodecConfig(kind="ternary"), [1, workers])
    words = layout(own.views).words
    share = math.ceil(words / workers)
    levels = math.ceil(16 * share / digits_in_word(2 * workers + 1))  # words of one worker's share of the mean
    assert costs.ternary == {workers: costs.ternary[workers]} and costs.ternary[workers].coding_s > 0
    assert costs.ternary[workers].up == 4 * (share * workers + 4)  # and four scales
    assert costs.ternary[workers].down == 4 * (levels * workers + 4)
    assert costs.float32 == Sent(4 * 82, 4 * 82) and costs.frames == tiny.FRAMES and costs.compute_s > 0


def test_what_is_measured_is_what_a_simulated_worker_sends():
    config, batches = CodecConfig(kind="ternary", float_below=6), tiny.Batches(4)
    world = Synchronous(tiny.Build(batches)(), Times((1.0,) * 4, 0.0), codec=config)
    done = list(world.epoch(1, tiny.waiting(batches), Rate(0.1, 1, 4)))[-1]
    g = [view.clone() for view in flatten(tiny.model()).views]
    assert SharedCodes(flatten(tiny.model()), config).alone(g, 4) == (done.up / 4, done.down / 4)


def _points(gain):
    return [
        ThroughputPoint(network, bandwidth, workers, 100.0, 100.0 * gain(network, bandwidth, workers))
        for network in ("cnn", "dnn", "lstm")
        for bandwidth in (1.0, 10.0)
        for workers in (1, 2, 4, 8)
    ]


CONNECTED = {"cnn": 0.8, "dnn": 1.0, "lstm": 1.0}


def test_conclusions_that_hold():
    found = conclusions(_points(lambda net, b, n: 1 + n / b + CONNECTED[net]), CONNECTED)
    assert [each.claim for each in found] == [
        "more workers gain more",
        "less bandwidth gains more",
        "more fully connected layers gain more",
    ]
    assert [each.steps for each in found] == [3 * 2 * 2, 3 * 3, 2 * 3 * 2]  # one worker alone is in none of them
    assert all(each.against == () and each.level == 0 for each in found)


def test_conclusions_that_do_not_hold():
    found = conclusions(_points(lambda net, b, n: 9 - abs(n - 4) - CONNECTED[net]), CONNECTED)
    workers, bandwidth, connected = found
    assert [(a.workers, b.workers) for a, b in workers.against] == [(4, 8)] * 6
    assert (bandwidth.steps, bandwidth.level, bandwidth.against) == (0, 9, ())  # the same gain says nothing
    assert len(connected.against) == connected.steps and {a.network for a, _ in connected.against} == {"cnn"}


@pytest.mark.parametrize(("sign", "against"), [(1, 0), (-1, 6)])
def test_steps_that_noise_may_have_made_are_level(sign, against):
    """Gains of 2, 4 and 8 workers: the first step is 1.9 %, the second 2.1 %."""
    gains = {1: 1.0, 2: 0.9, 4: 0.9 * 1.019**sign, 8: 0.9 * (1.019 * 1.021) ** sign}
    more = conclusions(_points(lambda net, b, n: gains[n]), CONNECTED)[0]
    assert (more.steps, more.level, len(more.against)) == (6, 6, against)
    assert {(a.workers, b.workers) for a, b in more.against} <= {(4, 8)}
