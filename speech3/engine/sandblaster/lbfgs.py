"""L-BFGS that sees no vector: it asks for inner products and answers with coefficients (Dean et al. 2012, section 4.2).

Whoever holds parameters, gradients and history (server partitions, each a slice of them all) multiplies and adds its
slices as told; only scalars travel. The two-loop recursion (Nocedal 1980) then runs over coefficients of the vectors
s_1 .. s_k, y_1 .. y_k and g, whose (2k + 1)^2 inner products are enough for it (Chen, Wang and Zhou 2014). The line
search is the strong Wolfe one (Nocedal and Wright 2006, algorithms 3.5 and 3.6).

The paper says neither which line search it takes nor what ends it; both are ours. So is that each iteration asks for
all inner products anew: they cost the partitions a small share of one gradient, and nothing has to be kept in step.

As the shard's loop does, the algorithm says what it wants and the world that drives it answers.

Axes: J the 2k + 1 vectors of the recursion.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_DECREASE, _CURVATURE = 1e-4, 0.9  # of the Wolfe conditions, as Nocedal and Wright give them for quasi-Newton steps
_NOISE = 1e-7  # of a loss, relative: float32 tells no smaller difference
_EVALUATIONS = 20  # of one line search
_BEND = 1e-3  # of the slope: a pair of less curvature is rounding


@dataclass(frozen=True)
class Point:
    """The objective at the base plus `step` times the direction, and its derivative by the step."""

    step: float
    loss: float
    slope: float

    @property
    def finite(self) -> bool:
        """Loss and slope are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.slope)


@dataclass(frozen=True)
class Begin:
    """Wants loss and gradient at the base. Answer: the loss, finite."""


@dataclass(frozen=True)
class Dots:
    """Wants the inner products of the pairs in these slots, oldest first, and g. Answer: (J, J), float64."""

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Direct:
    """Wants the direction set to the sum of `coefficients_J` times the same vectors. No answer."""

    slots: tuple[int, ...]
    coefficients_J: tuple[float, ...]


@dataclass(frozen=True)
class Try:
    """Wants loss and slope, and the gradient kept, at the base plus `step` times the direction. Answer: `Point`."""

    step: float


@dataclass(frozen=True)
class Accept:
    """Wants the point tried last to become the base; with a slot, the pair of this step put there. No answer."""

    slot: int | None


Want = Begin | Dots | Direct | Try | Accept


@dataclass
class History:
    """Which slots hold pairs, oldest first: at most `size` of `size` + 1, so the next has a place before one goes."""

    size: int
    slots: list[int] = field(default_factory=list)

    def next_slot(self) -> int:
        """Where the next pair goes."""
        return next(slot for slot in range(self.size + 1) if slot not in self.slots)

    def put(self, slot: int) -> None:
        """That slot has the newest pair now."""
        self.slots = [*self.slots, slot][-self.size :]


def coefficients(dots_JJ: np.ndarray) -> np.ndarray:
    """The quasi-Newton direction -H g in terms of s_1 .. s_k, y_1 .. y_k, g; float64 (J,).

    Parameters
    ----------
    dots_JJ
        Inner products of these; each s_i . y_i is above 0.
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


def descend(iterations: int, history: History, first: float) -> Generator[Want, Any, str]:
    """Iterations on one objective; `history` is kept up.

    Parameters
    ----------
    first
        Step along the gradient that is tried first where there is no history.

    Returns
    -------
    reason
        Why it ended before `iterations`; empty if it did not.
    """
    loss = yield Begin()
    for _ in range(iterations):
        point, slope = None, 0.0
        while point is None:
            slope = yield from _turn(history)
            if history.slots and 0 <= -slope <= _NOISE * abs(loss):  # what a quasi-Newton step would gain, about
                return f"at a minimum, as near as float32 can tell (loss {loss:.6g})"
            if slope < 0:
                start = Point(0.0, loss, slope)
                point = yield from search(start, 1.0 if history.slots else first)
            if point is None and not history.slots:
                return (
                    f"no step along the gradient lowers the loss ({loss:.6g}): at a minimum, a gradient too rough, or "
                    f"a first step (training.learning_rate) far too long or too short"
                )
            if point is None:
                history.slots = []  # once more, along the gradient
        bent = point.step * (point.slope - slope) > _BEND * point.step * abs(slope)
        slot = history.next_slot() if bent else None
        yield Accept(slot)
        if slot is not None:
            history.put(slot)
        loss = point.loss
    return ""


def _turn(history: History) -> Generator[Want, Any, float]:
    """Set the direction; returns its slope, no number where there is no way down."""
    asked, pairs = tuple(history.slots), len(history.slots)
    dots_JJ = yield Dots(asked)
    bent = [i for i in range(pairs) if dots_JJ[i, pairs + i] > 0]  # so it was along the line; float32 may have lost it
    chosen = [*bent, *(pairs + i for i in bent), 2 * pairs]
    dots_JJ, history.slots = dots_JJ[np.ix_(chosen, chosen)], [asked[i] for i in bent]
    slots = tuple(history.slots)
    c_J = coefficients(dots_JJ)
    slope = float(dots_JJ[-1] @ c_J)
    if slope < 0 and np.isfinite(c_J).all():
        yield Direct(slots, tuple(c_J.tolist()))
        return slope
    return math.nan


def search(start: Point, first: float) -> Generator[Want, Point, Point | None]:
    """A step that meets the strong Wolfe conditions, the point tried last; else the best that lowers the loss; or none.

    Every trial costs loss and gradient of the whole batch, so slopes are known at all points and interpolation is
    cubic.
    """
    noise = _NOISE * abs(start.loss)
    low, high, point = start, None, start  # `low` has the lowest loss so far; a good step is between it and `high`
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
            break  # what is left to find is less than float32 can tell
    if low.step and low is not point:
        low = yield Try(low.step)  # its gradient was overwritten
    return low if low.finite and low.loss < start.loss else None


def _lower(point: Point, start: Point, noise: float) -> bool:
    """Sufficient decrease; where float32 cannot tell two losses apart, the slopes alone decide (Hager, Zhang 2005)."""
    return point.finite and point.loss <= start.loss + _DECREASE * point.step * start.slope + noise


def _longer(low: Point) -> float:
    return 4 * low.step


def _between(low: Point, high: Point) -> float:
    """The minimum of the cubic through both points, not too near to either end."""
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
