"""Portions: each is kept once, whoever computes it, is slow or dies; the last are handed out twice."""

import numpy as np
import pytest

from speech3.engine.papers.sandblaster_workers import Portions


def test_last_portions_are_assigned_twice_and_kept_once():
    portions = Portions(3)
    assert [portions.assign(worker) for worker in (0, 1, 2)] == [0, 1, 2]
    assert portions.computed(1, 1)
    assert portions.assign(1) == 0  # the longest out
    assert portions.computed(2, 2)
    assert portions.assign(2) is None  # 0 is out twice
    assert portions.computed(1, 0) and not portions.computed(0, 0)
    assert portions.finished and portions.keepers == (1, 2)


def test_no_worker_gets_a_portion_twice():
    portions = Portions(1)
    assert portions.assign(0) == 0 and portions.assign(0) is None


def test_a_sum_is_lost_with_its_worker():
    portions = Portions(4)
    for worker, portion in ((0, 0), (1, 1), (0, 2)):
        assert portions.assign(worker) == portion
        assert portions.computed(worker, portion)
    assert portions.assign(0) == 3 and portions.assign(1) == 3
    assert portions.lost(0) == 2  # what it had kept; the other goes on with the last
    assert [portions.assign(0), portions.assign(0)] == [0, 2]
    assert portions.computed(1, 3) and not portions.finished
    assert portions.computed(0, 0) and portions.computed(0, 2)
    assert portions.finished and portions.keepers == (0, 1)


def test_portion_of_dead_worker_waits_again():
    portions = Portions(1)
    assert portions.assign(0) == 0
    assert portions.lost(0) == 1
    assert not portions.computed(0, 0)
    assert portions.assign(1) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_portion_is_in_exactly_one_sum(seed):
    rng, workers = np.random.default_rng(seed), 4
    portions, busy, sums = Portions(30), {}, [[] for _ in range(workers)]
    while not portions.finished:
        worker = int(rng.integers(workers))
        if rng.random() < 0.05:
            portions.lost(worker)
            sums[worker] = []
            busy.pop(worker, None)
        elif worker in busy:
            portion = busy.pop(worker)
            if portions.computed(worker, portion):
                sums[worker].append(portion)
        elif (portion := portions.assign(worker)) is not None:
            busy[worker] = portion
    assert sorted(portion for each in sums for portion in each) == list(range(30))
    assert portions.keepers == tuple(worker for worker in range(workers) if sums[worker])
