"""Sequence minibatches: every frame once an epoch, streams that go on where they ended, resets and padding."""

import itertools

import numpy as np
import pytest
import torch

from speech3.frames.packed import open_packed, pack
from speech3.frames.sequences import Sequences

LENGTHS = (1, 2, 30, 7, 64, 5, 20, 21, 3, 40, 11)
FRAMES = sum(LENGTHS)


@pytest.fixture(params=["float32", "float16"])
def corpus(tmp_path, request):
    rng = np.random.default_rng(0)
    feats = {f"u{i}": rng.normal(size=(n, 3)).astype(request.param) for i, n in enumerate(LENGTHS)}
    ends = np.cumsum(LENGTHS)
    # A senone that is the frame's own number tells which frame a target belongs to.
    senones = {u: np.arange(end - len(x), end) for (u, x), end in zip(feats.items(), ends, strict=True)}
    pack(tmp_path / "x", feats, senones, FRAMES, utterances=list(feats), dtype=request.param)
    return feats, open_packed(tmp_path / "x")


def _sequences(packed, *, chunk=8, streams=3, left=2, right=4, seed=1, row_minibatches=4):
    return Sequences(
        packed, left=left, right=right, chunk=chunk, streams=streams, seed=seed, device=torch.device("cpu"),
        row_minibatches=row_minibatches,
    )  # fmt: skip


def _chunks(length, chunk):
    return [min(chunk, length - start) for start in range(0, length, chunk)]


@pytest.mark.parametrize(
    ("chunk", "streams", "row_minibatches"), [(8, 3, 4), (8, 1, 4), (1, 5, 7), (20, 2, 50), (64, 4, 1), (500, 30, 1)]
)
def test_an_epoch_has_every_chunk_once_in_streams_that_go_on(corpus, chunk, streams, row_minibatches):
    _, packed = corpus
    source = _sequences(packed, chunk=chunk, streams=streams, row_minibatches=row_minibatches)
    assert list(itertools.chain(*source.rows)) == list(range(len(source)))
    first_frames = {int(offset) for offset in packed.offsets_U1[:-1]}
    orders = []
    for epoch in (1, 2):
        seen, lengths, not_full = [], [], 0
        for row in source.rows:
            ended_at_B = np.full(streams, -1)
            for number in row:
                inputs, senones_BT = source.draw(epoch, number)
                assert senones_BT.shape == inputs.feats_BTWF.shape[:2] == (streams, int(inputs.lengths_B.max()))
                not_full += bool((inputs.lengths_B == 0).any())
                for b, (targets_T, length, begins) in enumerate(
                    zip(senones_BT.tolist(), inputs.lengths_B.tolist(), inputs.begins_B.tolist(), strict=True)
                ):
                    assert set(targets_T[length:]) <= {-1}
                    frames = targets_T[:length]
                    assert frames == list(range(frames[0], frames[0] + length)) if length else not frames
                    if not length:
                        assert number == row[-1]
                        continue
                    assert begins == (number == row[0] or frames[0] in first_frames)
                    assert begins or frames[0] == ended_at_B[b]
                    ended_at_B[b] = frames[-1] + 1
                    seen += frames
                    lengths.append(length)
        assert sorted(seen) == list(range(FRAMES))
        assert sorted(lengths) == sorted(itertools.chain(*(_chunks(length, chunk) for length in LENGTHS)))
        assert not_full <= 1
        orders.append(seen)
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("left", "right"), [(2, 4), (0, 0), (5, 0), (0, 9)])
def test_windows_repeat_the_edges_of_each_utterance(corpus, left, right):
    feats, packed = corpus
    source = _sequences(packed, left=left, right=right)
    windows = []
    for x_TF in feats.values():
        padded = np.concatenate([x_TF[:1].repeat(left, 0), x_TF, x_TF[-1:].repeat(right, 0)])
        windows += [padded[t : t + left + 1 + right] for t in range(len(x_TF))]
    expected_NWF = np.stack(windows).astype(np.float32)
    for number in range(len(source)):
        inputs, senones_BT = source.draw(1, number)
        assert inputs.feats_BTWF.dtype == torch.float32 and senones_BT.dtype == torch.int64
        there = senones_BT >= 0
        np.testing.assert_array_equal(inputs.feats_BTWF[there].numpy(), expected_NWF[senones_BT[there].numpy()])
        assert torch.isfinite(inputs.feats_BTWF).all()


def test_a_minibatch_is_known_by_epoch_and_number(corpus):
    first, second, other = (_sequences(corpus[1], seed=seed) for seed in (1, 1, 2))
    drawn = {(e, n): first.draw(e, n)[1].tolist() for e in (1, 2) for n in range(len(first))}
    for (epoch, number), targets in reversed(drawn.items()):
        assert second.draw(epoch, number)[1].tolist() == targets
    assert other.draw(1, 0)[1].tolist() != drawn[1, 0]


def test_whole_utterances(corpus):
    source = _sequences(corpus[1], chunk=64, streams=2)
    for number in range(len(source)):
        inputs, _ = source.draw(1, number)
        assert inputs.begins_B.all()
        assert set(inputs.lengths_B.tolist()) <= {0, *LENGTHS}


def test_rows_are_of_one_length_about(corpus):
    source = _sequences(corpus[1], chunk=1, streams=2, row_minibatches=10)
    assert len(source.rows) == round(FRAMES / 20)
    assert {len(row) for row in source.rows} <= {10, 11}
