"""Vectors in compiled code against NumPy."""

import numba
import numpy as np
import pytest

from speech3.sequence.forward_backward import WIDTH, at_least_zero, load, spread, store


@numba.njit(error_model="numpy")
def compute(rows, number, out):
    a, b = load(rows, np.uint32(1)), load(rows, np.uint32(2))
    store(out, 0, (a + b) * number - a / b)
    store(out, 1, at_least_zero(a - spread(rows[0, 0])))
    store(out, 2, number - a)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_compute_as_numpy_does(dtype):
    rows = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(dtype)
    rows[1, 3], rows[2, 4] = np.nan, 0  # NaN stays NaN, and division by zero is infinite
    out = np.full((4, WIDTH), 7, dtype)
    compute(rows, np.float32(0.5), out)
    a, b = rows[1:]
    with np.errstate(divide="ignore"):
        expected = [(a + b) * dtype(0.5) - a / b, np.maximum(a - rows[0, 0], 0), dtype(0.5) - a]
    np.testing.assert_allclose(out[:3], expected, rtol=1e-6)
    assert np.isnan(out[:3, 3]).all()
    assert np.isinf(out[0, 4])
    assert (out[3] == 7).all()


def test_rows_that_are_not_contiguous_are_refused():
    with pytest.raises(numba.TypingError):
        compute(np.zeros((WIDTH, 3), np.float32).T, np.float32(0.5), np.zeros((4, WIDTH), np.float32))
