"""Predicts frames per second of N synchronous workers by TernGrad's performance model (Wen et al. 2017, "TernGrad").

The time of a step is the sum of the times of a minibatch, of encoding and decoding, and of the exchange
(`synchronous.exchange_s`). As in the paper, the inputs of the model are measured on one machine: the time of a
minibatch; the time of a worker's part of the coding for each N (statistics and packing, adding up its share of all
workers' codes, unpacking the mean); and the bytes that it would send and receive. We depart from the paper in one way:
there, codes have the same size in both directions; here, the mean has 2N + 1 levels, log2(2N + 1) bits per value. So
where the exchange dominates, the gain is smaller with more workers.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any

from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.backends.synchronous import Times, exchange_s
from speech3.engine.codecs.mean import SharedCodes
from speech3.engine.flat import wait_for_gpus
from speech3.engine.gradient import gradient
from speech3.engine.interface import WorkerParts
from speech3.engine.optimizers import Sgd
from speech3.errors import TrainingError

LEVEL = 0.02  # gains with a smaller relative difference count as equal: measured times vary that much between runs
_ROUNDS = 15


@dataclass(frozen=True)
class Sent:
    """A worker's part of the exchange of one step: bytes sent, bytes received, seconds of encoding and decoding."""

    up: int
    down: int
    coding_s: float = 0.0


@dataclass(frozen=True)
class Costs:
    """The costs of a step for one worker on this machine."""

    frames: float  # mean number of frames in a minibatch
    compute_s: float  # seconds to compute a minibatch's gradient and update the parameters
    # The exchange of float32 gradients, which is the same for any number of workers, and that of ternary gradients, for
    # each number of workers.
    float32: Sent
    ternary: dict[int, Sent]


@dataclass(frozen=True)
class ThroughputPoint:
    """Frames per second of `workers` workers with links of `bandwidth` bytes per second, for each kind of gradient."""

    network: str
    bandwidth: float
    workers: int
    float32: float
    ternary: float

    @property
    def gain(self) -> float:
        return self.ternary / self.float32


@dataclass(frozen=True)
class Conclusion:
    """A claim about the gain, and how often it holds from one point to the next."""

    claim: str
    # Number of steps from one point to the next in which the gain changes by more than `LEVEL` of the smaller gain.
    steps: int
    level: int  # number of the other steps, which are no evidence for or against the claim
    against: tuple[
        tuple[ThroughputPoint, ThroughputPoint], ...
    ]  # the pairs of points, among `steps`, that contradict the claim


_Same = Callable[[ThroughputPoint], tuple[Any, ...]]  # what two points must have in common
_More = Callable[[ThroughputPoint], float]  # what they differ in


def measure_costs(parts: WorkerParts, codec: CodecConfig, workers: Sequence[int]) -> Costs:
    """Measure the costs on the device of `parts`, which must not be used again; times are medians over some rounds.

    `workers`: numbers of workers for which to measure ternary gradients.

    Raises `Speech3Error`: the loss or gradient of the first minibatch is not finite.
    """
    sgd = Sgd(parts.model)
    parts.begin_training()
    values_K = sgd.parameters.vector_K
    numbers = [number % len(parts.source) for number in range(_ROUNDS)]
    step, g = gradient(parts, 1, 0)
    if not step.finite:
        raise TrainingError(
            f"the loss of the first minibatch is {step.loss:g}, or its gradient is not finite: look for NaN or "
            f"infinity in the features"
        )
    frames = []

    def train(number: int) -> None:
        step, found = gradient(parts, 1, number)
        sgd.step(found if step.finite else g, 0.0)
        frames.append(step.frames)

    (compute_s,) = _medians_s([train], numbers, values_K)
    codes, coded = SharedCodes(sgd.parameters, codec), [count for count in workers if count > 1]
    sent = [codes.alone(g, count) for count in coded]
    times = _medians_s([lambda _, count=count: codes.alone(g, count) for count in coded], numbers, values_K)  # type: ignore[misc]
    ternary = {count: Sent(*size, coding_s) for count, size, coding_s in zip(coded, sent, times, strict=True)}
    size = sum(each.nbytes for each in g)
    return Costs(statistics.mean(frames[1:]), compute_s, Sent(size, size), ternary)


def _medians_s(works: Sequence[Callable[[int], object]], numbers: Sequence[int], on: Tensor) -> list[float]:
    """Median seconds of each function after one warm-up; in turns, so that a slow phase of the machine affects all."""
    for work in works:
        work(numbers[0])
    seconds: list[list[float]] = [[] for _ in works]
    for number in numbers:
        for work, taken in zip(works, seconds, strict=True):
            wait_for_gpus(on)
            begun = time.perf_counter()
            work(number)
            wait_for_gpus(on)
            taken.append(time.perf_counter() - begun)
    return [statistics.median(taken) for taken in seconds]


def frames_per_s(costs: Costs, sent: Sent | None, workers: int, network: Times) -> float:
    """Frames per second by the performance model; `sent` is None for one worker.

    Only bandwidth and latency of `network` are used.
    """
    coding_s, size = (sent.coding_s, sent.up + sent.down) if sent else (0.0, 0)
    return workers * costs.frames / (costs.compute_s + coding_s + exchange_s(network, workers, size))


def throughputs(
    costs: dict[str, Costs], workers: Sequence[int], bandwidths: Sequence[float], latency_s: float = 0.0
) -> list[ThroughputPoint]:
    """A point for each neural network in `costs`, bandwidth (bytes per second) and number of workers, in this order."""
    points = []
    for name, each in costs.items():
        for bandwidth in bandwidths:
            network = Times((), 0.0, bandwidth=bandwidth, latency_s=latency_s)
            for count in workers:
                plain, coded = (each.float32, each.ternary[count]) if count > 1 else (None, None)
                rates = (frames_per_s(each, sent, count, network) for sent in (plain, coded))
                points.append(ThroughputPoint(name, bandwidth, count, *rates))
    return points


def conclusions(points: Sequence[ThroughputPoint], connected: dict[str, float]) -> list[Conclusion]:
    """TernGrad's three conclusions, each tested on all pairs of points that differ by one step in that respect only.

    `connected`: for each neural network, the share of its parameters that are used once per frame.
    """
    claims: dict[str, tuple[_Same, _More]] = {
        "more workers gain more": (lambda p: (p.network, p.bandwidth), lambda p: p.workers),
        "less bandwidth gains more": (lambda p: (p.network, p.workers), lambda p: -p.bandwidth),
        "more fully connected layers gain more": (lambda p: (p.bandwidth, p.workers), lambda p: connected[p.network]),
    }
    return [_conclude(claim, points, *keys) for claim, keys in claims.items()]


def _conclude(claim: str, points: Sequence[ThroughputPoint], same: _Same, more: _More) -> Conclusion:
    steps = list(_steps([point for point in points if point.workers > 1], same, more))
    held = sum(after.gain > (1 + LEVEL) * before.gain for before, after in steps)
    against = tuple((before, after) for before, after in steps if before.gain > (1 + LEVEL) * after.gain)
    return Conclusion(claim, held + len(against), len(steps) - held - len(against), against)


def _steps(
    points: Sequence[ThroughputPoint], same: _Same, more: _More
) -> Iterator[tuple[ThroughputPoint, ThroughputPoint]]:
    """Pairs of points that differ only in `more`, with neighbouring values of it."""
    for _, group in groupby(sorted(points, key=same), key=same):
        ranks = [list(rank) for _, rank in groupby(sorted(group, key=more), key=more)]
        for few, many in pairwise(ranks):
            yield from product(few, many)
