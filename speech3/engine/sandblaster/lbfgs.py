"""The coordinator's L-BFGS, which handles scalars only (Dean et al. 2012, section 4.2).

Parameters, gradients and history stay in the server partitions, each of which holds a slice of all of them and applies
the operations that the coordinator asks for; only scalars travel. The two-loop recursion (Nocedal 1980) runs over the
coefficients of the vectors s_1 .. s_k, y_1 .. y_k and g, for which their (2k + 1)^2 inner products are sufficient
(Chen, Wang and Zhou 2014). The line search finds strong Wolfe points (Nocedal and Wright 2006, algorithms 3.5 and 3.6).

The paper does not name its line search or its stopping rule; both are our choice. So is computing all inner products
anew in each iteration: that costs the partitions a small share of one gradient, and no state has to be kept in step.

Like the shard's loop, the algorithm is a generator: it yields requests, and the world that drives it sends the results.

Axes: J the 2k + 1 vectors of the recursion.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_DECREASE, _CURVATURE = 1e-4, 0.9  # constants of the Wolfe conditions for quasi-Newton steps (Nocedal and Wright)
_NOISE = 1e-7  # relative difference of two losses below which float32 cannot tell them apart
_EVALUATIONS = 20  # at most, in one line search
_CURVED = 1e-3  # share of the slope: a pair with less curvature is rounding error


@dataclass(frozen=True)
class Point:
    """The objective at the base plus `step` times the direction, and its derivative with respect to the step."""

    step: float
    loss: float
    slope: float

    @property
    def finite(self) -> bool:
        """Loss and slope are finite numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.slope)


@dataclass(frozen=True)
class Begin:
    """Request loss and gradient at the base. Result: the loss, finite."""


@dataclass(frozen=True)
class Dots:
    """Request the inner products of the pairs in these slots, oldest first, and of g. Result: (J, J), float64."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Direct:
    """Request that the direction be set to the sum of `coefficients_J` times the same vectors. No result."""

    slots: tuple[int, ...]
    coefficients_J: tuple[float, ...]


@dataclass(frozen=True)
class Try:
    """Request loss, slope and gradient at the base plus `step` times the direction. Result: `Point`."""

    step: float


@dataclass(frozen=True)
class Accept:
    """Request that the last trial point become the base and, with a slot, this step's pair be stored. No result."""

    slot: int | None


Request = Begin | Dots | Direct | Try | Accept


@dataclass
class History:
    """The slots that hold pairs, oldest first: at most `size` of `size` + 1, so a slot is free for the next pair."""

    size: int
    slots: list[int] = field(default_factory=list)

    def next_slot(self) -> int:
        """The slot for the next pair."""
        return next(slot for slot in range(self.size + 1) if slot not in self.slots)

    def put(self, slot: int) -> None:
        """Record that a slot now holds the newest pair."""
        self.slots = [*self.slots, slot][-self.size :]


def coefficients(dots_JJ: np.ndarray) -> np.ndarray:
    """The quasi-Newton direction -H g in terms of s_1 .. s_k, y_1 .. y_k, g; float64 (J,).

    Parameters
    ----------
    dots_JJ
        Inner products of these vectors; each s_i . y_i is above 0.
    """
    pairs = len(dots_JJ) // 2
    c_J = np.zeros(len(dots_JJ))
    c_J[-1] = 1.0
    alphas = [0.0] * pairs
    for i in reversed(range(pairs)):
        alphas[i] = float(dots_JJ[i] @ c_J / dots_JJ[i, pairs + i])
        c_J[pairs + i] -= alphas[i]
    if pairs:
        c_J *= dots_JJ[pairs - 1, 2 * pairs - 1] / dots_JJ[2 * pairs - 1, 2 * pairs - 1]
    for i in range(pairs):
        beta = float(dots_JJ[pairs + i] @ c_J / dots_JJ[i, pairs + i])
        c_J[i] += alphas[i] - beta
    return -c_J


def descend(iterations: int, history: History, first: float) -> Generator[Request, Any, str]:
    """Run iterations of L-BFGS on one objective, updating `history`.

    Parameters
    ----------
    first
        Initial trial step along the gradient where there is no history.

    Returns
    -------
    reason
        Why it stopped before `iterations`; empty if it did not.
    """
    loss = yield Begin()
    for _ in range(iterations):
        point, slope = None, 0.0
        while point is None:
            slope = yield from _set_direction(history)
            if history.slots and 0 <= -slope <= _NOISE * abs(loss):  # the gain of a quasi-Newton step
                return f"at a minimum, to the precision of float32 (loss {loss:.6g})"
            if slope < 0:
                start = Point(0.0, loss, slope)
                point = yield from search(start, 1.0 if history.slots else first)
            if point is None and not history.slots:
                return (
                    f"no step along the gradient lowers the loss ({loss:.6g}): training is at a minimum, the gradient "
                    f"is too noisy, or the first step (training.learning_rate) is far too long or too short"
                )
            if point is None:
                history.slots = []  # restart along the gradient
        curved = point.step * (point.slope - slope) > _CURVED * point.step * abs(slope)
        slot = history.next_slot() if curved else None
        yield Accept(slot)
        if slot is not None:
            history.put(slot)
        loss = point.loss
    return ""


def _set_direction(history: History) -> Generator[Request, Any, float]:
    """Set the direction; returns its slope, or NaN if it is not a descent direction."""
    asked, pairs = tuple(history.slots), len(history.slots)
    dots_JJ = yield Dots(asked)
    curved = [i for i in range(pairs) if dots_JJ[i, pairs + i] > 0]  # float32 may lose the curvature
    chosen = [*curved, *(pairs + i for i in curved), 2 * pairs]
    dots_JJ, history.slots = dots_JJ[np.ix_(chosen, chosen)], [asked[i] for i in curved]
    slots = tuple(history.slots)
    c_J = coefficients(dots_JJ)
    slope = float(dots_JJ[-1] @ c_J)
    if slope < 0 and np.isfinite(c_J).all():
        yield Direct(slots, tuple(c_J.tolist()))
        return slope
    return math.nan


def search(start: Point, first: float) -> Generator[Request, Point, Point | None]:
    """Find a step that meets the strong Wolfe conditions; else the best step that lowers the loss; else None.

    The returned point is the one tried last. Every trial computes loss and gradient of the whole batch, so slopes are
    known at all points and interpolation is cubic.
    """
    noise = _NOISE * abs(start.loss)
    # `low` has the lowest loss so far; an acceptable step lies between it and `high`.
    low, high, point = start, None, start
    for _ in range(_EVALUATIONS):
        step = _longer(low) if high is None and low.step else first if high is None else _between(low, high)
        point = yield Try(step)
        if not _lower(point, start, noise) or point.loss > low.loss + noise:
            high = point
        elif abs(point.slope) <= -_CURVATURE * start.slope:
            return point
        else:
            if point.slope * ((high.step if high else math.inf) - low.step) >= 0:
                high = low
            low = point
        if high is not None and -start.slope * abs(high.step - low.step) <= 0.01 * noise:
            break  # float32 cannot resolve the remaining gain
    if low.step and low is not point:
        low = yield Try(low.step)  # its gradient was overwritten
    return low if low.finite and low.loss < start.loss else None


def _lower(point: Point, start: Point, noise: float) -> bool:
    """Sufficient decrease; where float32 cannot tell two losses apart, slopes alone decide (Hager and Zhang 2005)."""
    return point.finite and point.loss <= start.loss + _DECREASE * point.step * start.slope + noise


def _longer(low: Point) -> float:
    return 4 * low.step


def _between(low: Point, high: Point) -> float:
    """The minimum of the cubic through both points, kept away from both ends."""
    width = high.step - low.step
    if not high.finite:
        return low.step + 0.1 * width
    a = low.slope + high.slope - 3 * (low.loss - high.loss) / (low.step - high.step)
    root = a * a - low.slope * high.slope
    share = 0.5
    if root >= 0:
        b = math.copysign(math.sqrt(root), width)
        divisor = high.slope - low.slope + 2 * b
        if divisor:
            share = 1 - (high.slope + b - a) / divisor
    return low.step + min(max(share, 0.1), 0.9) * width
