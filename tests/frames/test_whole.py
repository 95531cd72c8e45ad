"""Minibatches of whole utterances: each comes once in an epoch, with utterances of its length, padded by its end."""

from itertools import chain

import numpy as np
import pytest
import torch

from speech3.frames.chunks import WholeUtterances, padded_frames
from speech3.frames.packed import open_packed, write_frames

LEFT, RIGHT, SUBSAMPLING = 4, 2, 3


@pytest.fixture
def packed(tmp_path):
    """60 utterances of 5 to 64 frames; each frame is (utterance, place)."""
    lengths = np.random.default_rng(0).permutation(60) + 5
    feats = {f"u{i:02}": np.array([[i, t] for t in range(n)], np.float32) for i, n in enumerate(lengths)}
    labels = {name: np.full(len(feats_TF), i) for i, (name, feats_TF) in enumerate(feats.items())}
    write_frames(tmp_path / "f.frames", feats, labels, 60, utterances=list(feats))
    return open_packed(tmp_path / "f.frames")


def source(packed, minibatch=200, seed=1, **more):
    return WholeUtterances(
        packed,
        left=LEFT,
        right=RIGHT,
        minibatch=minibatch,
        subsampling=SUBSAMPLING,
        seed=seed,
        device=torch.device("cpu"),
        targets=list,
        **more,
    )


def utterances(minibatch):
    return [int(chunk.labels_T[0]) for chunk in minibatch[1]]


def test_each_utterance_comes_once_in_an_epoch_with_others_each_time(packed):
    drawn = [
        [utterances(source(packed).draw(epoch, number)) for number in range(len(source(packed)))] for epoch in (1, 2)
    ]
    for groups in drawn:
        assert sorted(chain(*groups)) == list(range(60))
    assert {frozenset(group) for group in drawn[0]} != {frozenset(group) for group in drawn[1]}
    assert drawn[0] == [utterances(source(packed).draw(1, number)) for number in range(len(source(packed)))]


def test_minibatches_are_of_about_one_length_and_size(packed):
    many = source(packed, minibatch=400)
    sizes, padded = [], 0
    for number in range(len(many)):
        inputs, chunks = many.draw(1, number)
        frames = inputs.feats_BTF.shape[1] - LEFT - RIGHT
        assert frames == padded_frames(chunks, SUBSAMPLING)
        assert frames % SUBSAMPLING == 0
        sizes.append(len(chunks) * frames)
        padded += sizes[-1] - sum(len(chunk.labels_T) for chunk in chunks)
    assert max(sizes) < 2 * 400
    assert padded < 0.4 * sum(sizes)
    assert len(source(packed, minibatch=10)) > 50  # one utterance at least is in each


def test_a_sentence_does_not_get_among_words(tmp_path):
    lengths = [20] * 300 + [900] * 3
    feats = {f"u{i:03}": np.zeros((n, 1), np.float32) for i, n in enumerate(lengths)}
    write_frames(
        tmp_path / "f.frames", feats, {u: np.zeros(len(x), int) for u, x in feats.items()}, 1, utterances=list(feats)
    )
    mixed = source(open_packed(tmp_path / "f.frames"), minibatch=1000)
    for number in range(len(mixed)):
        size, frames, _ = mixed.draw(1, number)[0].feats_BTF.shape
        assert size * (frames - LEFT - RIGHT) < 1200


def test_edge_frames_are_repeated_as_context_and_padding(packed):
    inputs, chunks = source(packed).draw(1, 3)
    for feats_TF, chunk in zip(inputs.feats_BTF.numpy(), chunks, strict=True):
        place_T = np.clip(np.arange(-LEFT, len(feats_TF) - LEFT), 0, len(chunk.labels_T) - 1)
        np.testing.assert_array_equal(feats_TF[:, 0], chunk.labels_T[0])
        np.testing.assert_array_equal(feats_TF[:, 1], place_T)


def test_a_faster_utterance_is_shorter(packed):
    inputs, chunks = source(packed, minibatch=10, speeds=(1.25,)).draw(1, 0)
    frames = len(chunks[0].labels_T)
    assert inputs.feats_BTF.shape[1] - LEFT - RIGHT == 3 * int(np.ceil(frames / 1.25 / 3))
    assert inputs.feats_BTF[0, LEFT + 4, 1] == 5


def test_held_out_utterances_come_as_they_are(packed):
    minibatches = list(source(packed, speeds=(1.25,)).sequential(150))
    assert sorted(chain(*map(utterances, minibatches))) == list(range(60))
    for inputs, chunks in minibatches:
        assert all(chunk.speed == 1 for chunk in chunks)
        assert len(chunks) == 1 or len(chunks) * (inputs.feats_BTF.shape[1] - LEFT - RIGHT) <= 150 + 2 * len(chunks)
