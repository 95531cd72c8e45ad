"""Extended Baum-Welch against closed forms, a search for the step size, and a maximiser for the weights."""

import numpy as np
import pytest

from speech3.errors import Speech3Error
from speech3.hmm.gmm import Gmm, GmmStats, extended_baum_welch, smallest_d


def drawn_gmm(seed: int, sizes: tuple[int, ...] = (1, 3, 2), dim: int = 3) -> Gmm:
    rng, total = np.random.default_rng(seed), sum(sizes)
    weight = np.concatenate([rng.dirichlet(np.full(size, 3.0)) for size in sizes])
    offset = np.concatenate([[0], np.cumsum(sizes)])
    return Gmm(offset, weight, rng.standard_normal((total, dim)), rng.uniform(0.3, 2, (total, dim)))


def drawn_stats(gmm: Gmm, seed: int, frames: int = 30) -> GmmStats:
    """Of frames around each Gaussian, but not quite where it is."""
    rng = np.random.default_rng(seed)
    x_GND = 0.7 + gmm.mean[:, None] + rng.standard_normal((len(gmm.weight), frames, gmm.mean.shape[1]))
    gamma_GN1 = rng.random((len(gmm.weight), frames, 1))
    first, second = ((gamma_GN1 * power).sum(1) for power in (x_GND, x_GND**2))
    return GmmStats(gamma_GN1.sum((1, 2)), first, second)


def one_gaussian(mean: float, var: float) -> Gmm:
    return Gmm(np.array([0, 1]), np.ones(1), np.array([[mean]]), np.array([[var]]))


def stats_of(values: list[float]) -> GmmStats:
    x = np.array(values)
    return GmmStats(np.array([float(len(x))]), np.array([[x.sum()]]), np.array([[(x * x).sum()]]))


def test_one_gaussian_has_its_closed_form() -> None:
    """With tau 4 and one frame in the denominator, D is 6; n is 2, so the frames of the old Gaussian are 6 of 8."""
    new = extended_baum_welch(one_gaussian(1.0, 2.0), stats_of([1, 2, 3]), stats_of([0]), tau=4)
    assert new.mean[0, 0] == pytest.approx((6 + 6 * 1) / 8)
    assert new.var[0, 0] == pytest.approx((14 + 6 * (2 + 1)) / 8 - (12 / 8) ** 2)
    assert new.weight.tolist() == [1.0]


def test_without_a_denominator_and_smoothing_it_is_maximum_likelihood() -> None:
    new = extended_baum_welch(one_gaussian(1.0, 2.0), stats_of([1, 2, 6]), stats_of([]), tau=0)
    assert (new.mean[0, 0], new.var[0, 0]) == (pytest.approx(3), pytest.approx(np.var([1, 2, 6])))


def test_equal_statistics_change_nothing() -> None:
    gmm = drawn_gmm(0)
    new = extended_baum_welch(gmm, drawn_stats(gmm, 1), drawn_stats(gmm, 1), tau=100)
    for name in ("offset", "weight", "mean", "var"):
        np.testing.assert_allclose(getattr(new, name), getattr(gmm, name), rtol=1e-9)


@pytest.mark.parametrize("tau", [0, 100])
def test_a_gaussian_without_statistics_remains_as_it_is(tau: float) -> None:
    gmm = drawn_gmm(0)
    stats, nothing = drawn_stats(gmm, 1), drawn_stats(gmm, 1, frames=0)
    for array in (stats.count, stats.first, stats.second):
        array[2] = 0
    new = extended_baum_welch(gmm, stats, nothing, tau)
    np.testing.assert_allclose([new.mean[2], new.var[2]], [gmm.mean[2], gmm.var[2]])
    assert not np.allclose(new.mean[1], gmm.mean[1])


@pytest.mark.parametrize("seed", range(4))
def test_below_the_smallest_d_a_variance_is_negative_and_above_it_none(seed: int) -> None:
    gmm = drawn_gmm(seed)
    said, other = drawn_stats(gmm, seed + 10, 10), drawn_stats(gmm, seed + 20, 12)
    count, first, second = (getattr(said, name) - getattr(other, name) for name in ("count", "first", "second"))

    def new_variances(d_G: np.ndarray) -> np.ndarray:
        total = (count + d_G)[:, None]
        mean = (first + d_G[:, None] * gmm.mean) / total
        return (second + d_G[:, None] * (gmm.var + gmm.mean**2)) / total - mean**2

    d = smallest_d(gmm, count, first, second)
    assert (d > 0).any()
    assert (new_variances(d + 1e-6) > 0).all()
    limited = d > np.maximum(-count, 0) + 1e-3  # by a variance, not by the count
    assert limited.any()
    assert (new_variances(d - 1e-4).min(1)[limited] < 0).all()
    assert (extended_baum_welch(gmm, said, other, tau=0).var > 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_weights_maximise_their_function(seed: int) -> None:
    gmm = drawn_gmm(seed, sizes=(3,))
    said, other = drawn_stats(gmm, seed + 10), drawn_stats(gmm, seed + 20)
    said.count[0] *= 4
    new = extended_baum_welch(gmm, said, other, tau=100)

    one, two = (grid.ravel() for grid in np.mgrid[0.001:1:0.001, 0.001:1:0.001])
    weight_W3 = np.stack([one, two, 1 - one - two], axis=1)[one + two < 0.9995]
    value_W = np.log(weight_W3) @ (said.count + 10 * gmm.weight) - weight_W3 @ (other.count / gmm.weight)
    np.testing.assert_allclose(new.weight, weight_W3[value_W.argmax()], atol=2e-3)
    assert new.weight[0] > gmm.weight[0]


def test_nan_in_the_statistics_is_refused() -> None:
    gmm, stats = drawn_gmm(0), drawn_stats(drawn_gmm(0), 1)
    stats.second[0, 0] = np.nan
    with pytest.raises(Speech3Error, match="not finite"):
        extended_baum_welch(gmm, stats, drawn_stats(gmm, 2), tau=100)
