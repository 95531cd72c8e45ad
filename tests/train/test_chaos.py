"""tests/chaos.py, a few kills of it; and that it would see a loss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import MINIBATCH, lost

CHAOS = Path(__file__).parents[1] / "chaos.py"


@pytest.mark.slow
def test_shards_killed_at_random_moments_lose_nothing(experiment):
    command = [sys.executable, str(CHAOS), "2", "7", "--experiment", str(experiment)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr + process.stdout
    (line,) = process.stdout.splitlines()
    count = json.loads(line)
    assert (count["kills"], count["in_sync"], count["lost"], count["finished"]) == (2, 1, 0, True)
    assert count["restarts"] >= 1 and count["used"] > 0 and count["dropped"] == 0
    assert 0.1 < count["heldout_accuracy"] < 1
    assert 0.97 < count["throughput_kept"] < 1


def _record(used=10, stale=0, refused=0, versions=5, staleness=(3, 2)):
    minibatches = {"used": used, "stale": stale, "refused": refused, "returned": 3}
    return {"minibatches": minibatches, "versions": versions, "staleness": list(staleness)}


LAST = MINIBATCH + 5  # frames of the last minibatch
TOTAL = 9 * MINIBATCH + LAST


@pytest.mark.parametrize(
    ("record", "frames", "count"),
    [
        (_record(), TOTAL, 0),
        (_record(used=9, refused=1), TOTAL - MINIBATCH, 0),
        (_record(used=8, refused=1, stale=1), TOTAL - MINIBATCH - LAST, 0),
        (_record(used=9), TOTAL - MINIBATCH, 2),  # in no state, and its frames were not trained on
        (_record(), TOTAL - MINIBATCH, 1),  # said to be used, but not in the totals of the state
        (_record(), TOTAL + 2 * MINIBATCH, 2),  # trained on twice
        (_record(versions=6), TOTAL, 1),  # published, but of no minibatch
        (_record(staleness=(3, 1)), TOTAL, 1),
        (_record(staleness=(9, 3)), TOTAL, 2),  # in pushes, but not used
    ],
)
def test_a_loss_is_counted(record, frames, count):
    assert lost(record, TOTAL, frames) == count
