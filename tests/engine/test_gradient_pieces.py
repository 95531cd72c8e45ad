"""Pieces: each is kept once, whoever computes it, is slow or dies; the last are handed out twice."""

import numpy as np
import pytest

from speech3.engine.sandblaster.pieces import Pieces


def test_the_last_are_handed_out_twice_and_kept_once():
    pieces = Pieces(3)
    assert [pieces.hand(worker) for worker in (0, 1, 2)] == [0, 1, 2]
    assert pieces.computed(1, 1)
    assert pieces.hand(1) == 0  # the longest out
    assert pieces.computed(2, 2)
    assert pieces.hand(2) is None  # 0 is out twice
    assert pieces.computed(1, 0) and not pieces.computed(0, 0)
    assert pieces.finished and pieces.keepers == (1, 2)


def test_nobody_gets_what_it_has_already():
    pieces = Pieces(1)
    assert pieces.hand(0) == 0 and pieces.hand(0) is None


def test_a_sum_is_lost_with_its_worker():
    pieces = Pieces(4)
    for worker, piece in ((0, 0), (1, 1), (0, 2)):
        assert pieces.hand(worker) == piece
        assert pieces.computed(worker, piece)
    assert pieces.hand(0) == 3 and pieces.hand(1) == 3
    assert pieces.lost(0) == 2  # what it had kept; the other goes on with the last
    assert [pieces.hand(0), pieces.hand(0)] == [0, 2]
    assert pieces.computed(1, 3) and not pieces.finished
    assert pieces.computed(0, 0) and pieces.computed(0, 2)
    assert pieces.finished and pieces.keepers == (0, 1)


def test_what_a_dead_worker_had_alone_waits_again():
    pieces = Pieces(1)
    assert pieces.hand(0) == 0
    assert pieces.lost(0) == 1
    assert not pieces.computed(0, 0)
    assert pieces.hand(1) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_is_in_one_sum(seed):
    rng, workers = np.random.default_rng(seed), 4
    pieces, busy, sums = Pieces(30), {}, [[] for _ in range(workers)]
    while not pieces.finished:
        worker = int(rng.integers(workers))
        if rng.random() < 0.05:
            pieces.lost(worker)
            sums[worker] = []
            busy.pop(worker, None)
        elif worker in busy:
            piece = busy.pop(worker)
            if pieces.computed(worker, piece):
                sums[worker].append(piece)
        elif (piece := pieces.hand(worker)) is not None:
            busy[worker] = piece
    assert sorted(piece for each in sums for piece in each) == list(range(30))
    assert pieces.keepers == tuple(worker for worker in range(workers) if sums[worker])
