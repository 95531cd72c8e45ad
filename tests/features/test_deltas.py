"""Derivatives: closed forms (Kaldi's vectors are in test_reference)."""

import numpy as np
import pytest
import torch

from speech3.features.context import add_deltas, delta_filters


def test_filters_are_kaldis_regression_weights() -> None:
    np.testing.assert_allclose(delta_filters(1, 2)[1], [-0.2, -0.1, 0, 0.1, 0.2])
    np.testing.assert_allclose(delta_filters(2, 2)[2], [0.04, 0.04, 0.01, -0.04, -0.1, -0.04, 0.01, 0.04, 0.04])


@pytest.mark.parametrize("window", [1, 2, 3])
def test_derivatives_of_a_parabola(window: int) -> None:
    t_T = torch.arange(40, dtype=torch.float32)
    feats_TF = torch.stack([3 * t_T + 1, 0.5 * t_T**2], dim=1)
    out_TF = add_deltas(feats_TF, 3, window)
    inner = slice(3 * window, -3 * window)
    assert out_TF.shape == (40, 8)
    torch.testing.assert_close(out_TF[:, :2], feats_TF)
    torch.testing.assert_close(out_TF[inner, 2], torch.full_like(t_T[inner], 3.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(out_TF[inner, 3], t_T[inner], atol=1e-4, rtol=0)
    torch.testing.assert_close(out_TF[inner, 5], torch.ones_like(t_T[inner]), atol=1e-3, rtol=0)
    torch.testing.assert_close(out_TF[inner, 7], torch.zeros_like(t_T[inner]), atol=1e-3, rtol=0)


def test_one_frame_and_none() -> None:
    torch.testing.assert_close(add_deltas(torch.ones(1, 1), 2, 2), torch.tensor([[1.0, 0.0, 0.0]]), atol=1e-6, rtol=0)
    assert add_deltas(torch.ones(0, 2), 2, 2).shape == (0, 6)
    assert add_deltas(torch.ones(4, 2), 0, 2).shape == (4, 2)
