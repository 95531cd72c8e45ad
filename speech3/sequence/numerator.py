"""Numerators of LF-MMI: the phones of a chunk, with a tolerance in time, made when the chunk is drawn.

A chunk is a stretch of an utterance, maybe at another speed. Its numerator is the chain of the phones of an alignment,
each of which may begin some output frames earlier or later than it does there (Povey et al. 2016). Its arcs have the
probabilities of the phone language model, and its beginnings the initial weights of the denominator: every path of the
numerator is then a path of the denominator with the same weight, so that the criterion is never above zero. Phones that
never followed one another in training, as in held-out speech, have about the weight of a leak.

Alignments are packed as a label for each frame, twice the phone, and one more where a phone begins (`phone_labels`).

Axes: T frames, N phones of a chunk, B chunks, K phones of all chunks of a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np

from speech3.frames.chunks import Chunk
from speech3.sequence.denominator import Denominator
from speech3.sequence.phone_lm import START

UNSEEN = 1e-8  # weight of beginning in a phone, after a neighbour, that the phone language model has not seen together
NEVER = -1e30


def phone_labels(phones: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Labels (T,) int32 of an alignment: its phones (N,), and their first frames and the end (N + 1,)."""
    labels_T = np.repeat(2 * np.asarray(phones, np.int32), np.diff(starts))
    labels_T[starts[:-1]] += 1
    return labels_T


@dataclass(frozen=True, eq=False)
class Numerators:
    """The numerators of a batch of chunks.

    Attributes
    ----------
    frames
        Output frames of a chunk.
    ptr_B1
        int64: the phones of chunk b are those from ``ptr[b]`` up to ``ptr[b + 1]``.
    first_K, loop_K
        int32 pdfs; -1 for the start of an utterance, which stands before its first phone and emits nothing.
    enter_K, begin_K
        float64 log weights: of the arc from the phone before, and of having begun before the chunk does.
    low_K, high_K
        int32: the output frames that may be of this phone are those from low through high; -1: before the chunk.
    """

    frames: int
    ptr_B1: np.ndarray
    first_K: np.ndarray
    loop_K: np.ndarray
    enter_K: np.ndarray
    begin_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray

    def __len__(self) -> int:
        """Output frames of the batch."""
        return (len(self.ptr_B1) - 1) * self.frames


@dataclass(frozen=True, eq=False)
class NumeratorMaker:
    """Makes the numerators of chunks.

    Attributes
    ----------
    frames
        Input frames of a chunk, a multiple of `subsampling`.
    tolerance
        Output frames by which a phone may begin earlier or later than in the alignment.
    """

    denominator: Denominator
    frames: int
    subsampling: int = 3
    tolerance: int = 2
    leak: float = 0.1

    def __call__(self, chunks: Sequence[Chunk]) -> Numerators:
        """The numerators of a batch."""
        lm, graph = self.denominator.lm, self.denominator
        outputs = self.frames // self.subsampling
        found = [
            _chain(
                chunk.labels_T, chunk.start, chunk.speed, self.subsampling, outputs, self.tolerance, self.leak,
                graph.pdfs_PP2, graph.initial_J, lm.left_J, lm.phone_J, lm.ptr_J1, lm.arc_phone_A, lm.next_A, lm.prob_A,
            )
            for chunk in chunks
        ]  # fmt: skip
        ptr_B1 = np.cumsum([0, *(len(first_N) for first_N, *_ in found)])
        return Numerators(outputs, ptr_B1, *(np.concatenate(arrays) for arrays in zip(*found, strict=True)))


@numba.njit(cache=True, nogil=True)
def _chain(labels, start, speed, sub, outputs, tolerance, leak, pdfs, initial, left, phone, ptr, arc_phone, nxt, prob):  # type: ignore[no-untyped-def] # pragma: no cover
    frames = len(labels)
    reach = int((tolerance + 2) * sub * speed) + 1
    first = max(0, min(start - reach, frames - 1))
    known = 0  # phones before, so that the state of the phone language model is known
    while first > 0 and (known < 4 or not labels[first] & 1):
        known += labels[first] & 1
        first -= 1
    last = min(frames, int(start + outputs * sub * speed) + reach + 1)
    count = 0
    for t in range(first, last):
        count += labels[t] & 1 or t == first
    phones, begins = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
    n = 0
    phones[0], begins[0] = 0, 0
    for t in range(first, last):
        if labels[t] & 1 or t == first:
            n += 1
            phones[n] = labels[t] >> 1
            x = ((t - start) / speed - (sub // 2)) / sub  # an output stands for the frame in its middle
            begins[n] = int(np.ceil(x - 1e-9))
    size = n + 1
    pdf_first, pdf_loop = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    enter, begin = np.full(size, NEVER), np.full(size, NEVER)
    low, high = np.full(size, -1, np.int32), np.full(size, -1, np.int32)
    at_start = start <= 0
    if at_start:
        begin[0] = math.log(np.float64(initial[START]))
    else:
        high[0] = -2
    state, before = (START if first == 0 else -1), 0
    for k in range(1, size):
        arc = -1
        if state >= 0:
            a, end = ptr[state], ptr[state + 1]
            while a < end and arc_phone[a] < phones[k]:
                a += 1
            if a < end and arc_phone[a] == phones[k]:
                arc = a
        if arc >= 0:
            state = nxt[arc]
        else:
            state = -1
            for j in range(1, len(phone)):
                if phone[j] == phones[k] and left[j] == before:
                    state = j
                    break
        weight = np.float64(initial[state]) if state >= 0 else UNSEEN
        enter[k] = math.log(prob[arc] if arc >= 0 else leak * weight)
        begin[k] = math.log(weight)
        pdf_first[k], pdf_loop[k] = pdfs[before, phones[k], 0], pdfs[before, phones[k], 1]
        low[k] = begins[k] - tolerance
        high[k] = max(low[k], begins[k + 1] - 1 + tolerance) if k + 1 < size else outputs
        if at_start:
            low[k] = max(low[k], 0)
        before = phones[k]
    from_k, to_k = 0, size
    while from_k < size - 1 and high[from_k] < -1:
        from_k += 1
    while to_k > from_k + 1 and low[to_k - 1] >= outputs:
        to_k -= 1
    return (
        pdf_first[from_k:to_k], pdf_loop[from_k:to_k], enter[from_k:to_k], begin[from_k:to_k],
        low[from_k:to_k], high[from_k:to_k],
    )  # fmt: skip


def numerator_posteriors(y_BTS: np.ndarray, numerators: Numerators) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability, and the posterior of each pdf, which is its gradient.

    Parameters
    ----------
    y_BTS
        float32 or float64, outputs of the network.

    Returns
    -------
    log_z_B, posterior_BTS
        float64, and `y_BTS`'s type. Where no path fits the chunk they are minus infinity and zero.
    """
    n = numerators
    return _posteriors(y_BTS, n.ptr_B1, n.first_K, n.loop_K, n.enter_K, n.begin_K, n.low_K, n.high_K)


@numba.njit(cache=True, nogil=True)
def log_add(a, b):  # type: ignore[no-untyped-def] # pragma: no cover
    top, other = (a, b) if a > b else (b, a)
    return top + math.log1p(math.exp(other - top)) if other > NEVER / 2 else top


@numba.njit(cache=True, nogil=True)
def _posteriors(y, ptr, first, loop, enter, begin, low, high):  # type: ignore[no-untyped-def] # pragma: no cover
    chunks, frames, _ = y.shape
    log_z, posterior = np.full(chunks, -np.inf), np.zeros_like(y)
    for c in range(chunks):
        base, size, yc, post = ptr[c], ptr[c + 1] - ptr[c], y[c], posterior[c]
        alpha, beta = np.full((frames + 1, size), NEVER), np.full((frames + 1, size), NEVER)
        for k in range(size):
            if low[base + k] <= -1 <= high[base + k]:
                alpha[0, k] = begin[base + k]
        for t in range(frames):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                value = alpha[t, k] + yc[t, loop[g]]
                if k > 0:
                    value = log_add(value, alpha[t, k - 1] + enter[g] + yc[t, first[g]])
                alpha[t + 1, k] = value
        total = NEVER
        for k in range(size):
            total = log_add(total, alpha[frames, k])
            beta[frames, k] = 0.0
        if not total > NEVER / 2:
            if not total <= NEVER / 2:
                log_z[c] = np.nan
            continue
        log_z[c] = total
        for t in range(frames - 1, -1, -1):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                after = beta[t + 1, k]
                if after <= NEVER / 2:
                    continue
                stay = yc[t, loop[g]] + after
                post[t, loop[g]] += math.exp(alpha[t, k] + stay - total)
                beta[t, k] = log_add(beta[t, k], stay)
                if k > 0:
                    move = enter[g] + yc[t, first[g]] + after
                    post[t, first[g]] += math.exp(alpha[t, k - 1] + move - total)
                    beta[t, k - 1] = log_add(beta[t, k - 1], move)
    return log_z, posterior
