"""Minibatches: every frame once an epoch, windows as a loop would cut them, the same for the same (epoch, number)."""

import numpy as np
import pytest
import torch

from speech3.features.augment import FrequencyWarp
from speech3.features.mel import mel_scale
from speech3.frames.minibatches import Minibatches
from speech3.frames.packed import open_packed, pack
from speech3.frames.shuffle import Shuffle


@pytest.fixture(params=["float32", "float16"])
def corpus(tmp_path, request):
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, 3)).astype(request.param) for i, n in enumerate((1, 2, 30, 7, 64, 5))}
    # A senone that is the frame's own number tells which frame a target belongs to.
    ends = np.cumsum([len(x) for x in feats.values()])
    senones = {u: np.arange(end - len(x), end) for (u, x), end in zip(feats.items(), ends, strict=True)}
    pack(tmp_path / "x", feats, senones, int(ends[-1]), utterances=list(feats), dtype=request.param)
    return feats, open_packed(tmp_path / "x")


def _windows(feats, left, right):
    windows = []
    for x_TF in feats.values():
        padded = np.concatenate([x_TF[:1].repeat(left, 0), x_TF, x_TF[-1:].repeat(right, 0)])
        windows += [padded[t : t + left + 1 + right] for t in range(len(x_TF))]
    return np.stack(windows).astype(np.float32)


@pytest.mark.parametrize(("left", "right"), [(5, 5), (0, 0), (3, 0), (0, 9)])
def test_windows_repeat_the_edges_of_each_utterance(corpus, left, right):
    feats, packed = corpus
    expected_NWF = _windows(feats, left, right)
    batches = Minibatches(packed, left=left, right=right, minibatch=16, seed=1, device=torch.device("cpu"))
    for inputs, senones in [batches.draw(1, 3), *batches.sequential(50)]:
        assert inputs.dtype == torch.float32
        np.testing.assert_array_equal(inputs.numpy(), expected_NWF[senones.numpy()])
    in_order = torch.cat([senones for _, senones in batches.sequential(50)])
    assert in_order.tolist() == list(range(len(packed)))


def test_what_is_drawn_is_warped_and_what_is_scored_is_not(corpus):
    _, packed = corpus
    warp = FrequencyWarp(mel_scale(np.array([300.0, 800.0, 1500.0])), 0.2)
    plain, warped = (
        Minibatches(packed, left=2, right=2, minibatch=16, seed=1, device=torch.device("cpu"), warp=each)
        for each in (None, warp)
    )
    (before, senones), (after, same), (again, _) = plain.draw(1, 2), warped.draw(1, 2), warped.draw(1, 2)
    assert torch.equal(senones, same) and torch.equal(after, again)
    assert not torch.equal(before, after)
    assert not torch.equal(after, warped.draw(2, 2)[0])
    for (one, _), (other, _) in zip(plain.sequential(50), warped.sequential(50), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("minibatch", [1, 16, 20, 109, 500])
def test_an_epoch_has_every_frame_once(corpus, minibatch):
    batches = Minibatches(corpus[1], left=1, right=1, minibatch=minibatch, seed=1, device=torch.device("cpu"))
    epochs = [[batches.draw(epoch, number)[1] for number in range(len(batches))] for epoch in (1, 2)]
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == list(range(109))
        assert all(len(targets) == minibatch for targets in epoch[:-1])
        assert len(epoch[-1]) <= 1.5 * minibatch
        assert len(epoch) == 1 or len(epoch[-1]) >= 0.5 * minibatch
    assert torch.cat(epochs[0]).tolist() != torch.cat(epochs[1]).tolist()


def test_a_minibatch_is_known_by_epoch_and_number(corpus, monkeypatch):
    monkeypatch.setattr("speech3.frames.shuffle._CACHED", 40)
    first, second = (
        Minibatches(corpus[1], left=1, right=1, minibatch=16, seed=1, device=torch.device("cpu")) for _ in range(2)
    )
    forward = {(e, n): first.draw(e, n)[1].tolist() for e in (1, 2) for n in range(len(first))}
    for (epoch, number), targets in reversed(forward.items()):
        assert second.draw(epoch, number)[1].tolist() == targets
    other = Minibatches(corpus[1], left=1, right=1, minibatch=16, seed=2, device=torch.device("cpu"))
    assert other.draw(1, 0)[1].tolist() != forward[1, 0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 65_537])
def test_shuffle_is_a_permutation_whatever_the_pieces(count):
    shuffle = Shuffle(count, seed=5, epoch=2)
    whole = shuffle(0, count)
    assert sorted(whole.tolist()) == list(range(count))
    cut = count // 3
    assert torch.equal(torch.cat([shuffle(0, cut), shuffle(cut, count)]), whole)


def test_shuffle_mixes():
    # Of a random permutation of n items: rank correlation with the order ~ 1/sqrt(n), neighbours that stay
    # neighbours ~ 2, items of each tenth spread evenly over tenths (chi-square of 81 degrees of freedom).
    n = 50_000
    for seed, epoch in ((0, 0), (1, 1), (1, 2), (2, 1)):
        order = Shuffle(n, seed, epoch)(0, n).numpy()
        assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 4 / np.sqrt(n)
        assert (np.abs(np.diff(order)) == 1).sum() < 15
        table = np.histogram2d(order, np.arange(n), bins=10)[0]
        assert ((table - n / 100) ** 2 / (n / 100)).sum() < 140
    first, second = (Shuffle(n, 1, epoch)(0, n) for epoch in (1, 2))
    assert (first == second).sum() < 12


def test_shuffle_of_a_thousand_hours_is_computed_piece_by_piece():
    count = 360_000_000
    piece = Shuffle(count, 1, 1)(count - 1000, count)
    assert len(set(piece.tolist())) == 1000
    assert piece.min() >= 0
    assert piece.max() < count
    assert piece.double().std() > 0.2 * count  # of a uniform distribution: 0.289
