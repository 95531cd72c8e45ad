"""L-BFGS by coefficients equals L-BFGS by vectors, and dense BFGS; its line search keeps the Wolfe conditions.

Axes: K values, J vectors of the recursion.
"""

import math

import convex
import numpy as np
import pytest
import torch

from speech3.engine.papers.sandblaster import History, TrialPoint, coefficients, descend, search


def _quadratic(size, seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(size, size))
    return factor @ factor.T / size + 0.1 * np.eye(size), rng.normal(size=size)


def _at_once(function):
    """A generator that waits for nothing."""

    def generator(*args):
        return function(*args)
        yield

    return generator


class Driver:
    """The objective with float64 vectors of its own."""

    def __init__(self, function, at_K, history):
        self.function, self.history = function, history
        self.at_K, self.evaluations, self.directions = at_K, 0, []
        self.pairs = {}

    def run(self, iterations, first=0.1):
        return convex.through(descend(self, iterations, self.history, first))

    def _evaluate(self, at_K):
        self.evaluations += 1
        return self.function(at_K)

    def _basis(self, slots):
        return np.array([*(self.pairs[slot][0] for slot in slots), *(self.pairs[slot][1] for slot in slots), self.g_K])

    @_at_once
    def begin(self):
        self.loss, self.g_K = self._evaluate(self.at_K)
        return self.loss

    @_at_once
    def dots(self, slots):
        return self._basis(slots) @ self._basis(slots).T

    @_at_once
    def direct(self, slots, coefficients_J):
        self.direction_K = np.array(coefficients_J) @ self._basis(slots)
        self.directions.append(self.direction_K)

    @_at_once
    def at(self, step):
        self.tried_K = self.at_K + step * self.direction_K
        self.tried = loss, g_K = self._evaluate(self.tried_K)
        return TrialPoint(step, loss, float(g_K @ self.direction_K))

    @_at_once
    def accept(self, slot):
        if slot is not None:
            self.pairs[slot] = (self.tried_K - self.at_K, self.tried[1] - self.g_K)
        self.at_K, (self.loss, self.g_K) = self.tried_K, self.tried


def test_two_loop_recursion_over_coefficients_equals_dense_inverse():
    rng = np.random.default_rng(1)
    a_KK, _ = _quadratic(7)
    s = rng.normal(size=(4, 7))
    y, g_K = s @ a_KK, rng.normal(size=7)
    h_KK = (s[-1] @ y[-1]) / (y[-1] @ y[-1]) * np.eye(7)
    for each_s, each_y in zip(s, y, strict=True):
        rho = 1 / (each_s @ each_y)
        left_KK = np.eye(7) - rho * np.outer(each_s, each_y)
        h_KK = left_KK @ h_KK @ left_KK.T + rho * np.outer(each_s, each_s)
    basis = np.array([*s, *y, g_K])
    np.testing.assert_allclose(coefficients(basis @ basis.T) @ basis, -h_KK @ g_K, rtol=1e-10)


def test_without_a_history_it_goes_down_the_gradient():
    assert coefficients(np.array([[4.0]])).tolist() == [-1.0]


def test_a_quadratic_is_solved_and_old_pairs_make_room():
    a_KK, b_K = _quadratic(12)
    driver = Driver(lambda x: (0.5 * x @ a_KK @ x - b_K @ x, a_KK @ x - b_K), np.zeros(12), History(5))
    driver.run(60)
    np.testing.assert_allclose(driver.at_K, np.linalg.solve(a_KK, b_K), atol=1e-3)
    assert len(driver.history.slots) <= 5 and len(driver.pairs) == 6  # one more than are remembered


def test_rosenbrock_takes_as_many_evaluations_as_pytorch():
    def function(x):
        return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, np.array(
            [-2 * (1 - x[0]) - 400 * x[0] * (x[1] - x[0] ** 2), 200 * (x[1] - x[0] ** 2)]
        )

    driver = Driver(function, np.array([-1.2, 1.0]), History(10))
    driver.run(60)
    np.testing.assert_allclose(driver.at_K, [1, 1], atol=1e-3)
    x = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.LBFGS([x], max_iter=60, max_eval=1000, line_search_fn="strong_wolfe")

    def closure():
        theirs.zero_grad()
        loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        loss.backward()
        return loss

    theirs.step(closure)
    assert driver.evaluations <= 1.5 * theirs.state[x]["func_evals"]


def test_a_convex_loss_is_as_low_as_pytorchs():
    def function(flat_K):
        linear = convex.model().double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(flat_K), linear.parameters())
        loss = convex.objective(linear, 30)
        gradients = torch.autograd.grad(loss, list(linear.parameters()))
        return loss.item(), torch.cat([g.reshape(-1) for g in gradients]).numpy()

    driver = Driver(function, np.zeros((convex.FEATURES + 1) * convex.CLASSES), History(10))
    driver.run(40)
    assert driver.loss - convex.least(30) < 1e-5


CURVES = {  # loss and slope by step; at 0 the slope is below 0
    "parabola": lambda t: ((t - 3) ** 2, 2 * (t - 3)),
    "far": lambda t: ((t - 3e4) ** 2, 2 * (t - 3e4)),
    "near": lambda t: ((t - 3e-5) ** 2, 2 * (t - 3e-5)),
    "wavy": lambda t: (t**2 / 50 - math.sin(3 * t) - t / 2, t / 25 - 3 * math.cos(3 * t) - 0.5),
    "steep": lambda t: (-t / (t * t + 2), (t * t - 2) / (t * t + 2) ** 2),
    "wall": lambda t: (-t + (math.inf if t > 0.01 else 0.0), -1.0 if t < 0.005 else 0.0),
    "no number": lambda t: ((t - 0.2) ** 2, 2 * (t - 0.2)) if t < 1 else (math.nan, math.nan),
}


def _search(curve, first):
    start, tried = TrialPoint(0.0, *curve(0.0)), []

    @_at_once
    def at(step):
        tried.append(TrialPoint(step, *curve(step)))
        return tried[-1]

    return start, convex.through(search(at, start, first)), tried


@pytest.mark.parametrize("first", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("name", CURVES)
def test_a_step_that_was_found_is_the_last_tried_and_lower(name, first):
    start, found, tried = _search(CURVES[name], first)
    assert found is not None and found is tried[-1] and len(tried) <= 21
    assert found.loss <= start.loss + 1e-4 * found.step * start.slope + 1e-7 * abs(start.loss)
    if name not in ("far", "wall"):  # which may take more trials than there are
        assert abs(found.slope) <= 0.9 * abs(start.slope)


def test_a_search_without_success_ends():
    _, found, tried = _search(lambda t: (5 + t, -1.0), 1.0)  # a slope that lies
    assert found is None and len(tried) <= 20


def test_what_cannot_be_lowered_ends_after_one_more_search_along_the_gradient():
    a_KK, b_K = _quadratic(5)
    driver = Driver(lambda x: (0.5 * x @ a_KK @ x - b_K @ x, a_KK @ x - b_K), np.zeros(5), History(5))
    assert driver.run(2) == "" and driver.history.slots
    before_K, driver.evaluations = driver.at_K, 0
    driver.function = lambda x: (1e3 + np.linalg.norm(x - before_K), a_KK @ before_K - b_K)  # a gradient that lies
    assert "no step along the gradient lowers the loss" in driver.run(5)
    assert driver.history.slots == [] and driver.evaluations <= 1 + 2 * 20
    np.testing.assert_array_equal(driver.at_K, before_K)


def test_at_the_minimum_nothing_is_tried():
    driver = Driver(lambda x: (1.0, np.zeros(3)), np.zeros(3), History(5))
    assert "at a minimum" in driver.run(5)
    assert driver.evaluations == 1


def test_a_pair_that_float32_flattened_is_forgotten():
    a_KK, b_K = _quadratic(5)
    driver = Driver(lambda x: (0.5 * x @ a_KK @ x - b_K @ x, a_KK @ x - b_K), np.zeros(5), History(5))
    driver.run(3)
    first, second, third = driver.history.slots
    driver.pairs[second] = (np.zeros(5), driver.pairs[second][1])
    driver.run(1)
    assert driver.history.slots[:2] == [first, third] and len(driver.history.slots) == 3
