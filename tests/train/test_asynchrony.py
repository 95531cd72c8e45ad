"""Sums over epochs' records with known answers; quantiles beside numpy's."""

from typing import Any

import numpy as np
import pytest

from speech3.engine.interface import ShardReport
from speech3.train.curves import Asynchrony, asynchrony, staleness_mean, staleness_p95


def epoch(number: int, staleness: list[int], *minibatches: int, **more: Any) -> dict[str, Any]:
    shards = [{"minibatches": n, "compute_s": 2.0 * n, "sync_s": 0.5, "wait_s": 0.25, "busy": 3} for n in minibatches]
    counts = {"used": sum(minibatches) - 2, "stale": 1, "refused": 1, "returned": 4}
    return {
        "event": "epoch",
        "epoch": number,
        "staleness": staleness,
        "shards": shards,
        "minibatches": counts,
        "versions": 5,
        "restarts": 1,
    } | more


def test_epochs_are_added() -> None:
    plain = {"event": "epoch", "epoch": 1, "heldout_accuracy": 0.3}
    found = asynchrony([plain, epoch(2, [1, 2], 10, 30), {"event": "heldout"}, epoch(3, [0, 1, 4], 20, 20, 20)])
    assert found == Asynchrony(
        {"used": 96, "stale": 2, "refused": 2, "returned": 8},
        versions=10,
        restarts=2,
        staleness=(1, 3, 4),
        shards=(
            ShardReport(30, 60.0, 1.0, 0.5, 6),
            ShardReport(50, 100.0, 1.0, 0.5, 6),
            ShardReport(20, 40.0, 0.5, 0.25, 3),
        ),
    )
    assert found.dropped == 4
    assert found.shares == (0.3, 0.5, 0.2)
    assert found.shards[0].sync_share == pytest.approx(1.5 / 61.5)


def test_an_epoch_done_twice_counts_once() -> None:
    assert asynchrony([epoch(1, [9], 1), epoch(1, [1, 2], 10, 30)]) == asynchrony([epoch(1, [1, 2], 10, 30)])


def test_runs_that_are_not_asynchronous() -> None:
    assert asynchrony([]) is None
    assert asynchrony([{"event": "epoch", "epoch": 1}]) is None
    assert asynchrony([epoch(1, [])]) is None


def test_idle_shards_share_nothing() -> None:
    idle = Asynchrony(shards=(ShardReport(), ShardReport()))
    assert idle.shares == (0.0, 0.0)
    assert idle.shards[0].sync_share == 0.0


@pytest.mark.parametrize("counts", [[5], [0, 3], [10, 20, 5, 0, 1], [95, 0, 0, 5], [94, 0, 0, 6], [1] * 40])
def test_staleness_of_pushes(counts: list[int]) -> None:
    pushes = np.repeat(np.arange(len(counts)), counts)
    assert staleness_mean(counts) == pytest.approx(pushes.mean())
    assert staleness_p95(counts) == np.quantile(pushes, 0.95, method="inverted_cdf")


def test_no_pushes() -> None:
    assert (staleness_mean([]), staleness_p95([])) == (0.0, 0)
