"""Splicing where Kaldi's vectors do not reach."""

import torch

from speech3.config import FeatureConfig
from speech3.features.compute import finish_features
from speech3.features.context import add_deltas, splice


def test_older_frames_first_edges_repeated() -> None:
    feats_TF = torch.tensor([[1.0, -1], [2, -2], [3, -3]])
    expected = [[1, -1, 1, -1, 1, -1, 2, -2], [1, -1, 1, -1, 2, -2, 3, -3], [1, -1, 2, -2, 3, -3, 3, -3]]
    assert splice(feats_TF, 2, 1).tolist() == expected
    assert splice(feats_TF, 0, 1)[:, 2:].tolist() == [[2, -2], [3, -3], [3, -3]]


def test_contexts_longer_than_the_utterance_no_frame_and_no_context() -> None:
    one_TF = torch.randn(1, 3)
    assert splice(one_TF, 7, 4).equal(one_TF.repeat(1, 12))
    assert splice(torch.zeros(0, 3), 2, 2).shape == (0, 15)
    assert splice(one_TF, 0, 0) is one_TF


def test_splicing_comes_after_deltas() -> None:
    feats_TF = torch.randn(20, 4)
    (ours_TF,) = finish_features([feats_TF], FeatureConfig(deltas=2, left_context=1, right_context=1))
    derived_TF = add_deltas(feats_TF, 2)
    assert ours_TF.shape == (20, 36)
    assert ours_TF[:, 12:24].equal(derived_TF)
    assert ours_TF[1:, :12].equal(derived_TF[:-1])
