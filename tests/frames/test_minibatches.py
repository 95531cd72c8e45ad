"""Minibatches: every frame once an epoch, windows as a loop would cut them, the same for the same (epoch, number)."""

import itertools

import numpy as np
import pytest
import torch

from speech3.errors import SettingError
from speech3.features.filterbank import mel_scale
from speech3.frames.masks import FrequencyWarp, MelColumns, SpecAugment
from speech3.frames.minibatches import PIECES, Minibatches, Order, Resident, Shuffle
from speech3.frames.packed import open_packed, write_frames


@pytest.fixture(params=["float32", "float16"])
def corpus(tmp_path, request):
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, 3)).astype(request.param) for i, n in enumerate((1, 2, 30, 7, 64, 5))}
    # A senone that is the frame's own number tells which frame a target belongs to.
    ends = np.cumsum([len(x) for x in feats.values()])
    senones = {u: np.arange(end - len(x), end) for (u, x), end in zip(feats.items(), ends, strict=True)}
    write_frames(tmp_path / "x", feats, senones, int(ends[-1]), utterances=list(feats), dtype=request.param)
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


def test_what_is_drawn_is_masked_window_by_window_and_what_is_scored_is_not(corpus):
    _, packed = corpus
    masks = SpecAugment(torch.tensor([7.0, 8.0, 9.0]), 1, 4, 1, 1, MelColumns(3))
    plain, masked = (
        Minibatches(packed, left=4, right=4, minibatch=16, seed=1, device=torch.device("cpu"), masks=each)
        for each in (None, masks)
    )
    hidden = []
    for epoch in (1, 2):
        (before, senones), (after, same) = plain.draw(epoch, 2), masked.draw(epoch, 2)
        assert torch.equal(senones, same) and torch.equal(after, masked.draw(epoch, 2)[0])
        changed = after != before
        assert torch.equal(after[changed], masks.mean_F.expand_as(after)[changed])
        hidden += [window.tobytes() for window in changed.numpy()]
    assert len(set(hidden)) > 16, "each window of each epoch has masks of its own"
    for (one, _), (other, _) in zip(plain.sequential(50), masked.sequential(50), strict=True):
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
    monkeypatch.setattr("speech3.frames.minibatches._CACHED", 40)
    first, second = (
        Minibatches(corpus[1], left=1, right=1, minibatch=16, seed=1, device=torch.device("cpu")) for _ in range(2)
    )
    forward = {(e, n): first.draw(e, n)[1].tolist() for e in (1, 2) for n in range(len(first))}
    for (epoch, number), targets in reversed(forward.items()):
        assert second.draw(epoch, number)[1].tolist() == targets
    other = Minibatches(corpus[1], left=1, right=1, minibatch=16, seed=2, device=torch.device("cpu"))
    assert other.draw(1, 0)[1].tolist() != forward[1, 0]


def _chunked(packed, monkeypatch, *, copies, minibatch=2, chunk_frames=40, seed=1):
    monkeypatch.setattr("speech3.frames.minibatches._copies", lambda device: copies)
    return Minibatches(
        packed, left=3, right=5, minibatch=minibatch, seed=seed, device=torch.device("cpu"), chunk_frames=chunk_frames
    )


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("minibatch", "chunk_frames"), [(1, 16), (2, 40), (3, 48), (3, 53), (3, 108)])
def test_chunks_have_every_frame_once_and_whole_windows(corpus, monkeypatch, copies, minibatch, chunk_frames):
    feats, packed = corpus
    expected_NWF = _windows(feats, 3, 5)
    batches = _chunked(packed, monkeypatch, copies=copies, minibatch=minibatch, chunk_frames=chunk_frames)
    epochs = []
    for epoch in (1, 2):
        drawn = [batches.draw(epoch, number) for number in range(len(batches))]
        for feats_BWF, senones_B in drawn:
            np.testing.assert_array_equal(feats_BWF.numpy(), expected_NWF[senones_B.numpy()])
        epochs.append(torch.cat([senones_B for _, senones_B in drawn]).tolist())
        assert sorted(epochs[-1]) == list(range(109))
        assert all(len(senones_B) == minibatch for _, senones_B in drawn[:-1])
        assert 0.5 * minibatch <= len(drawn[-1][1]) <= 1.5 * minibatch
    assert epochs[0] != epochs[1]


def test_copied_chunks_give_what_the_memory_map_gives_in_whatever_order(corpus, monkeypatch):
    mapped, copied, again = (_chunked(corpus[1], monkeypatch, copies=copies) for copies in (False, True, True))
    monkeypatch.setattr("speech3.frames.minibatches._CACHED", 3)
    places = [(epoch, number) for epoch in (1, 2) for number in range(len(mapped))]
    drawn = {place: again.draw(*place) for place in places[::-1]}
    for place in places:
        for one, other, third in zip(mapped.draw(*place), copied.draw(*place), drawn[place], strict=True):
            assert torch.equal(one, other) and torch.equal(one, third)
    for (one, _), (other, _) in zip(mapped.sequential(50), copied.sequential(50), strict=True):
        assert torch.equal(one, other)


def test_chunks_are_copied_once_an_epoch_and_two_are_kept(corpus, monkeypatch):
    copied = []

    class Counted(Resident):
        def __init__(self, packed, device, left, right, spans=None):
            super().__init__(packed, device, left, right, spans)
            copied.append(len(self.frames_RF))

    monkeypatch.setattr("speech3.frames.minibatches.Resident", Counted)
    batches = _chunked(corpus[1], monkeypatch, copies=True)
    for epoch in (1, 2):
        for number in range(len(batches)):
            batches.draw(epoch, number)
            assert len(batches._chunks) <= 2
    assert len(copied) == 2 * 3  # 109 frames in chunks of 40
    assert max(copied) <= 40 + PIECES * (1 + 3 + 5)


def test_a_chunk_that_holds_all_frames_is_the_whole_corpus(corpus, monkeypatch):
    whole, chunked = (
        _chunked(corpus[1], monkeypatch, copies=True, chunk_frames=chunk_frames) for chunk_frames in (0, 109)
    )
    assert torch.equal(whole.draw(1, 3)[1], chunked.draw(1, 3)[1])


def test_a_chunk_is_not_too_small_for_its_minibatches(corpus):
    with pytest.raises(SettingError, match=r"training.chunk_frames=31"):
        Minibatches(corpus[1], left=0, right=0, minibatch=2, seed=1, device=torch.device("cpu"), chunk_frames=31)


@pytest.mark.parametrize("sharers", [1, 3])
@pytest.mark.parametrize("chunk_frames", [0, 50])
def test_whether_frames_are_copied_goes_by_free_memory(corpus, monkeypatch, capsys, chunk_frames, sharers):
    """The device is PyTorch's meta device, with shapes and types alone, and as much memory as the test says."""
    packed, meta = corpus[1], torch.device("meta")
    copied = sharers * (2 * chunk_frames or 109) * (3 * packed.frames_NF.itemsize + 2)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    given = {"left": 3, "right": 5, "minibatch": 2, "seed": 1, "chunk_frames": chunk_frames}
    expected = Minibatches(packed, device=torch.device("cpu"), **given).draw(1, 0)
    for free, on in ((copied / 0.8 + 1, meta), (copied / 0.8 - 1, torch.device("cpu"))):
        monkeypatch.setattr("speech3.frames.minibatches.free_bytes", lambda device, free=free: free)
        if (batches := Minibatches(packed, device=meta, sharers=sharers, **given)) and on.type == "cpu":
            drawn = batches.draw(1, 0)
            for found, wanted in zip(drawn, expected, strict=True):
                assert found.device == meta and found.dtype == wanted.dtype and found.shape == wanted.shape
            assert next(batches.sequential(20))[0].device == meta
        assert batches._whole is None or batches._whole.frames_RF.device == on
        assert (batches._whole is None) == bool(chunk_frames and on == meta)
    told = capsys.readouterr().err.split()
    assert " ".join(told).count("frames stay on the host, where minibatches are gathered") == 1


def test_memory_that_another_process_took_first(corpus, monkeypatch, capsys):
    """What is drawn then is what would have been."""
    for chunk_frames in (0, 40):
        expected = _chunked(corpus[1], monkeypatch, copies=True, chunk_frames=chunk_frames)
        refusals = []

        class Full(Resident):
            def __init__(self, packed, device, left, right, spans=None, refusals=refusals):
                if not refusals:
                    refusals.append(spans)
                    raise torch.OutOfMemoryError
                super().__init__(packed, device, left, right, spans)

        with monkeypatch.context() as patched:
            patched.setattr("speech3.frames.minibatches.Resident", Full)
            patched.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
            batches = _chunked(corpus[1], monkeypatch, copies=True, chunk_frames=chunk_frames)
            for number in range(len(batches)):
                for found, wanted in zip(batches.draw(1, number), expected.draw(1, number), strict=True):
                    assert torch.equal(found, wanted)
        assert len(refusals) == 1 and not batches._copied
        assert "another process has taken the memory" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("count", "chunk_frames"), [(1000, 100), (1001, 999), (5003, 300), (40, 17)])
def test_order_in_chunks(count, chunk_frames):
    order = Order(count, chunk_frames, 1, 2)
    parts = order.parts(0, count)
    assert [chunk for chunk, _ in parts] == list(range(-(-count // chunk_frames)))
    assert sorted(torch.cat([frames_B for _, frames_B in parts]).tolist()) == list(range(count))
    for chunk, frames_B in parts:
        spans = order.spans(chunk)
        assert len(spans) == PIECES and spans == sorted(spans)
        assert sorted(frames_B.tolist()) == [frame for first, end in spans for frame in range(first, end)]
        assert len(frames_B) <= chunk_frames + PIECES
        assert frames_B.tolist() != sorted(frames_B.tolist())
    cuts = [*range(0, count, 37), count]
    piecewise = [frames_B for cut in itertools.pairwise(cuts) for _, frames_B in order.parts(*cut)]
    assert torch.equal(torch.cat(piecewise), torch.cat([frames_B for _, frames_B in parts]))
    assert Order(count, chunk_frames, 1, 3).spans(0) != order.spans(0)


def test_order_in_chunks_mixes():
    # Of n items in a random order, the rank correlation with any fixed order is ~ 1/sqrt(n), here within a chunk; a
    # chunk is speech from all over the corpus.
    order = Order(400_000, 50_000, 1, 1)
    for chunk, frames_B in order.parts(0, 400_000):
        ranks = frames_B.numpy().argsort().argsort()
        assert abs(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) < 4 / np.sqrt(len(ranks))
        assert np.ptp(order.spans(chunk)) > 200_000


def test_shuffle_is_the_same_in_every_version_and_another_for_every_seed():
    assert Shuffle(1000, 1, 1)(0, 8).tolist() == [68, 169, 385, 838, 988, 59, 662, 436]
    orders = {tuple(Shuffle(1000, *key)(0, 8).tolist()) for key in [(1, 1), (2, 1), (257, 1), (1, 2), (1, 1, 1)]}
    assert len(orders) == 5


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 65_537])
def test_shuffle_is_a_permutation_whatever_the_pieces(count):
    shuffle = Shuffle(count, seed=5, epoch=2)
    whole = shuffle(0, count)
    assert sorted(whole.tolist()) == list(range(count))
    cut = count // 3
    assert torch.equal(shuffle.all(), whole)
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
