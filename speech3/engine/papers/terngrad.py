"""TernGrad (Wen et al. 2017, "TernGrad: Ternary gradients to reduce communication in distributed deep learning").

**The mean of several workers' ternary gradients** (sections 3.2 and 3.3 of the paper). All workers use the largest of
their scales, so their codes can be added as integers: the sum of N codes has 2 N + 1 levels. Each worker adds up all
workers' codes in its share of the words and sends the sums to all: it is the parameter server of that share. The result
depends neither on the order of workers nor on DDP's buckets: random numbers depend only on the key and a value's
position among the model's parameters. `SharedCodes` computes the mean of virtual workers in one process, `Exchange` is
a communication hook of PyTorch's DDP. A gradient that is not finite makes the mean of its tensor NaN.

A sum of N codes, plus N, is a digit in base 2 N + 1. As many digits as fit are written into a word of 32 bits as one
number: 10 digits for four workers, so 3.2 bits per value where log2(9) is 3.17. The word is that number as a fraction
of the largest, rounded up, so that decoding needs no division: after multiplication by the base, the part above 32 bits
is the next digit.

**Its performance model** predicts frames per second of N synchronous workers. The time of a step is the sum of the
times of a minibatch, of encoding and decoding, and of the exchange (`exchange_s`). As in the paper, the inputs of the
model are measured on one machine: the time of a minibatch; the time of a worker's part of the coding for each N
(statistics and packing, adding up its share of all workers' codes, unpacking the mean); and the bytes that it would
send and receive. We depart from the paper in one way: there, codes have the same size in both directions; here, the
mean has 2N + 1 levels, log2(2N + 1) bits per value. So where the exchange dominates, the gain is smaller with more
workers.

Axes: N workers, P values, B buckets, M words of codes, D digits, Q words of digits.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise, product
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from speech3.config import CodecConfig
from speech3.engine.codecs import TernaryLayout, add_sums, as_floats, key_of, layout, pack, statistics
from speech3.engine.flat import Flat, wait_for_gpus
from speech3.engine.gradient import gradient
from speech3.engine.interface import WorkerParts
from speech3.engine.optimizers import Sgd
from speech3.errors import SettingError, TrainingError

LEVEL = 0.02  # gains with a smaller relative difference count as equal: measured times vary that much between runs
_ROUNDS = 15
MOST_WORKERS = 2**14 - 1  # so that 2 N, the largest digit, is an int16
_WORD = 2.0**32


def check_levels(workers: int) -> None:
    """Refuse more workers (`MOST_WORKERS`) than the sums of their codes can be written for."""
    if workers > MOST_WORKERS:
        raise SettingError(
            f"{workers:,} workers: the mean of ternary codes is written in 16 bits per value before it is packed, for "
            f"{MOST_WORKERS:,} workers at most; use fewer"
        )


def digits_in_word(levels: int) -> int:
    """How many digits in base `levels` fit into a word of 32 bits."""
    count = 1
    while levels ** (count + 1) < _WORD:
        count += 1
    return count


def sum_codes(words_NM: Tensor) -> Tensor:
    """Digits (16, M), int32, from 0 to 2 N: the sums over workers of the 16 codes in each word, plus N."""
    sums = [((words_NM << (30 - 2 * k)) >> 30).sum(0, dtype=torch.int32) for k in range(16)]
    return torch.stack(sums) + len(words_NM)


def encode_levels(digits_D: Tensor, levels: int) -> Tensor:
    """The words (Q), int32, that code the digits; the most significant digit of word q is digit q, the next is Q + q.

    Raises `Speech3Error` if there are too many workers: see `check_levels`.
    """
    check_levels(levels // 2)
    count = digits_in_word(levels)
    words = -(-len(digits_D) // count)
    digits = digits_D.new_zeros(count * words)
    digits[: len(digits_D)] = digits_D
    number_Q = digits.new_zeros(words, dtype=torch.int64)
    for digit_Q in digits.view(count, words):
        number_Q = number_Q * levels + digit_Q
    # Rounded up, or incremented if it was exact. This stays below the next number, since 2^32 / levels^count is above
    # 1 + 2^-11 for all numbers of workers up to `MOST_WORKERS`; that margin is far above float64 rounding.
    fraction_Q = (number_Q.double() * (_WORD / levels**count) + 2.0**-16).floor() + 1
    return fraction_Q.long().to(torch.int32)


def decode_levels(words_Q: Tensor, levels: int, digits: int) -> Tensor:
    """Decode the first `digits` digits, int16; raises as `encode_levels` does."""
    check_levels(levels // 2)
    count = digits_in_word(levels)
    out = words_Q.new_empty(count, len(words_Q), dtype=torch.int16)
    fraction_Q = words_Q.long() & 0xFFFFFFFF
    for each_Q in out:
        fraction_Q *= levels
        each_Q.copy_(fraction_Q >> 32)
        fraction_Q &= 0xFFFFFFFF
    return out.flatten()[:digits]


def decode_sums(coded_NQ: Tensor, share: int) -> Tensor:
    """Decode the sums of codes, int16 (16, N share), of which each worker encoded those of its `share` words."""
    workers, words = coded_NQ.shape
    levels = 2 * workers + 1
    count = digits_in_word(levels)
    digits = decode_levels(coded_NQ.flatten(), levels, coded_NQ.numel() * count)
    # Sizes are explicit, since -1 is ambiguous without words, which is so if all tensors are sent as float32.
    each_ND = digits.view(count, workers, words).transpose(0, 1).reshape(workers, count * words)[:, : 16 * share]
    return each_ND.view(workers, 16, share).transpose(0, 1).reshape(16, workers * share) - workers


class SharedCodes:
    """The mean of gradients that are coded with a shared scale, for parameters in a flat vector."""

    def __init__(self, parameters: Flat, config: CodecConfig) -> None:
        self.config, self.mean_P, self.values_P = config, parameters.zeros_like(), parameters.zeros_like()
        floats = as_floats(parameters.views, below=config.float_below, last=config.float_last)
        self.layout = layout(self.mean_P.views, bucket=config.bucket, floats=floats)

    def mean(
        self, gradients: Sequence[Sequence[Tensor]], workers: int, key: tuple[int, ...]
    ) -> tuple[Sequence[Tensor], int, int]:
        """The mean gradient, and the bytes that each worker sends and receives for it.

        `gradients` are those of the first workers; the others code zeros, as in `ddp`. `key` selects random numbers.
        """
        where, weight = self.layout, workers / len(gradients)
        limits_NB = torch.zeros(len(gradients), len(where.sizes_B), device=self.values_P.vector_K.device)
        scales_NB = torch.zeros_like(limits_NB)
        for g, limits_B, scales_B in zip(gradients, limits_NB, scales_NB, strict=True):
            statistics(self._flat(g, weight), where, self.config.clip, limits_B, scales_B)
        # The scale of each bucket is the largest of all workers'.
        shared_B = scales_NB.nan_to_num(nan=torch.inf).amax(0)  # so that it is the largest, whichever worker has it
        share = -(-where.words // workers)  # words whose sums each worker computes
        words_NM = torch.zeros(workers, workers * share, dtype=torch.int32, device=shared_B.device)
        mean = self.mean_P
        mean.vector_K.zero_()
        for worker, (g, limits_B) in enumerate(zip(gradients, limits_NB, strict=True)):
            values_P = self._flat(g, weight)
            pack(values_P, where, limits_B, shared_B, key_of(*key, worker), words_NM[worker])
            for each in where.floats:
                mean.vector_K[each] += values_P[each]
        for each in where.floats:
            mean.vector_K[each] /= workers
        # Each worker adds up its share of the codes, and sends the sums to all.
        shares = words_NM.split(share, dim=1)
        coded_NQ = torch.stack([encode_levels(sum_codes(each).flatten(), 2 * workers + 1) for each in shares])
        add_sums(decode_sums(coded_NQ, share), where, shared_B, 1 / workers, mean.vector_K)
        plain = shared_B.nbytes + 4 * where.num_floats
        return mean.views, words_NM[0].nbytes + plain, coded_NQ.nbytes + plain

    def alone(self, g: Sequence[Tensor], workers: int) -> tuple[int, int]:
        """Do one worker's part of `mean`, to time it, with its own codes for the others'; returns bytes up and down."""
        where, values_P = self.layout, self._flat(g, 1.0)
        limits_B = values_P.new_empty(len(where.sizes_B))
        scales_B = torch.empty_like(limits_B)
        statistics(values_P, where, self.config.clip, limits_B, scales_B)
        share = -(-where.words // workers)
        words_NM = torch.zeros(workers, share, dtype=torch.int32, device=values_P.device)
        pack(values_P, where, limits_B, scales_B, 0, words_NM.view(-1))
        coded_Q = encode_levels(sum_codes(words_NM).flatten(), 2 * workers + 1)
        coded_NQ = coded_Q.repeat(workers, 1)
        add_sums(decode_sums(coded_NQ, share), where, scales_B, 1 / workers, self.mean_P.vector_K)
        plain = scales_B.nbytes + 4 * where.num_floats
        return words_NM.nbytes + plain, coded_NQ.nbytes + plain

    @torch.no_grad()
    def _flat(self, g: Sequence[Tensor], weight: float) -> Tensor:
        for view, each in zip(self.values_P.views, g, strict=True):
            torch.mul(each, weight, out=view)
        return self.values_P.vector_K


# The name since PyTorch 2.13, in which the old one warns in every process.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Exchange:
    """The state of the hook: the model's parameters, the config, and the bytes that this worker sent and received."""

    parameters: Sequence[Tensor]
    config: CodecConfig
    key: int = 0
    up: int = 0
    down: int = 0
    layouts: dict[tuple[int, ...], TernaryLayout] = field(default_factory=dict)

    def begin(self, key: int) -> None:
        """Begin a step, whose codes draw random numbers by `key`; without a codec, count the gradients as sent."""
        self.key = key
        if self.config.kind == "none":
            size = sum(parameter.nbytes for parameter in self.parameters)
            self.up, self.down = self.up + size, self.down + size

    def layout_of(self, bucket: dist.GradBucket) -> TernaryLayout:
        """The layout of a DDP bucket: positions of its tensors in the bucket, random numbers by those in the model."""
        places = tuple(int(parameter.storage_offset()) for parameter in bucket.parameters())
        if places not in self.layouts:
            as_they_are = as_floats(self.parameters, below=self.config.float_below, last=self.config.float_last)
            floats = {int(p.storage_offset()): kept for p, kept in zip(self.parameters, as_they_are, strict=True)}
            chosen = [floats[place] for place in places]
            bucket_layout = layout(bucket.gradients(), bucket=self.config.bucket, floats=chosen, counters=places)
            self.layouts[places] = bucket_layout
        return self.layouts[places]


def mean_of_codes(state: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: replace the gradients of a bucket by their mean over all workers."""
    values_P, where, workers = bucket.buffer(), state.layout_of(bucket), dist.get_world_size()
    # 1. One scale for all workers, the largest of each bucket: codes can be added only if they mean the same.
    if where.words:
        scales_B = values_P.new_empty(len(where.sizes_B))
        limits_B = torch.empty_like(scales_B)
        statistics(values_P, where, state.config.clip, limits_B, scales_B)
        scales_B.nan_to_num_(nan=torch.inf)  # so that it is the largest, whichever worker has it
        state.up += scales_B.nbytes
        dist.all_reduce(scales_B, dist.ReduceOp.MAX)
        state.down += scales_B.nbytes
        words_NM = torch.zeros(workers, -(-where.words // workers), dtype=torch.int32, device=values_P.device)
        pack(values_P, where, limits_B, scales_B, state.key, words_NM.view(-1))
    # 2. The mean of the codes, and of what is sent as float32.
    floats = [values_P[each].clone() for each in where.floats]
    values_P.zero_()
    if where.words:
        add_sums(_sums(state, words_NM), where, scales_B, 1 / workers, values_P)
    if floats:
        together = torch.cat(floats)
        state.up += together.nbytes
        dist.all_reduce(together)
        state.down += together.nbytes
        for each, mean in zip(where.floats, together.split([len(each) for each in floats]), strict=True):
            values_P[each] = mean / workers
    # A future must be told in advance which GPU its result is on.
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[values_P.device] if values_P.is_cuda else None
    )
    future.set_result(values_P)
    return future


def _sums(state: Exchange, words_NM: Tensor) -> Tensor:
    """Sums of all workers' codes, (16, N M), int16; row n of this worker's `words_NM` is added up by worker n."""
    workers, words = words_NM.shape
    theirs_NM = torch.empty_like(words_NM)
    state.up += words_NM.nbytes
    dist.all_to_all_single(theirs_NM.view(-1), words_NM.view(-1))
    mine = encode_levels(sum_codes(theirs_NM).flatten(), 2 * workers + 1)
    all_N = mine.new_empty(workers, len(mine))
    _all_gather(all_N.view(-1), mine)
    state.down += all_N.nbytes
    return decode_sums(all_N, words)


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
    # The pairs of points, among `steps`, that contradict the claim.
    against: tuple[tuple[ThroughputPoint, ThroughputPoint], ...]


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
    return Costs(mean(frames[1:]), compute_s, Sent(size, size), ternary)


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
    return [median(taken) for taken in seconds]


def exchange_s(workers: int, size: int, bandwidth: float, latency_s: float) -> float:
    """Seconds that the workers take to exchange gradients; `size` is the bytes per worker, up and down together.

    Gradients are sent up a tree and the mean is sent down: 2 log2(N) W / bandwidth for W bytes per worker, where the
    bytes of each direction are those really sent (the mean has more levels than a gradient, so its code takes more).
    Each of the 2 log2(N) steps also costs the latency.
    """
    depth = math.log2(workers)
    return depth * size / bandwidth + 2 * depth * latency_s


def throughputs(
    costs: dict[str, Costs], workers: Sequence[int], bandwidths: Sequence[float], latency_s: float = 0.0
) -> list[ThroughputPoint]:
    """A point for each neural network in `costs`, bandwidth (bytes per second) and number of workers, in this order."""
    points = []
    for (name, each), bandwidth, count in product(costs.items(), bandwidths, workers):
        rates = []
        for sent in (each.float32, each.ternary[count]) if count > 1 else (Sent(0, 0), Sent(0, 0)):
            took_s = exchange_s(count, sent.up + sent.down, bandwidth, latency_s)
            rates.append(count * each.frames / (each.compute_s + sent.coding_s + took_s))
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
