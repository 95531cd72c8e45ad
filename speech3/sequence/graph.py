"""Graphs as arrays, for the forward-backward computation: states with loops, and arcs that emit a pdf.

An arc into a state emits the state's first pdf, its loop emits the loop pdf.

The structure of a denominator is an n-gram without back-off (Povey et al. 2016; Kaldi's chain-est-phone-lm.cc), over
phones for LF-MMI and over senones for MMI and sMBR: back-off arcs would let every phone follow every other. Each
history that was seen is a state; the most frequent histories that are one phone longer are also states. The probability
of a phone is its relative frequency where the training sequences pass through the state (maximum likelihood).

A numerator (`speech3.sequence.lfmmi` makes it from an alignment or a transcript) is a small graph for one chunk whose
only cycles are the loops of its states. Each state is a phone with its left neighbour.

Axes: J states, A arcs, B chunks, T output frames of a chunk, S pdfs, K states of all chunks.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numba
import numpy as np

UNSEEN = 1e-8  # initial weight of a phone that the phone language model lacks after its left neighbour
NEVER = -1e30
START = 0  # the state before the first phone
_HISTORY = 2  # phones of a history
_BATCH = 10_000  # sequences held at a time


@dataclass(frozen=True, eq=False)
class Numerators:
    """The numerators of a batch of chunks."""

    frames: int  # output frames of a chunk
    ptr_B1: np.ndarray  # int64: the states of chunk b are ``ptr[b]`` up to ``ptr[b + 1]``, in topological order
    # first_K, loop_K: int32 pdfs; -1 for the start of an utterance, which emits nothing
    first_K: np.ndarray
    loop_K: np.ndarray
    begin_K: np.ndarray  # float64 log weight of being in the state before the chunk begins; `NEVER`: impossible
    final_K: np.ndarray  # bool: the chunk may end in the state
    # low_K, high_K: int32: only output frames from low through high may be in the state
    low_K: np.ndarray
    high_K: np.ndarray
    # arc_ptr_K1, src_A, weight_A: arcs sorted by the state that they enter: int64, int32 (from the chunk's first state
    # on), float64 log weight
    arc_ptr_K1: np.ndarray
    src_A: np.ndarray
    weight_A: np.ndarray

    @cached_property
    def fits_B(self) -> np.ndarray:
        """bool: a path through the numerator fits the chunk, whatever the network's outputs are."""
        states = self.first_K, self.begin_K, self.final_K, self.low_K, self.high_K
        return _fits(self.frames, self.ptr_B1, *states, self.arc_ptr_K1, self.src_A)

    def __len__(self) -> int:
        """Number of output frames of the chunks that fit their numerators; the loss is a mean over these."""
        return int(self.fits_B.sum()) * self.frames

    @property
    def left_out(self) -> int:
        """Number of output frames of the other chunks."""
        return (len(self.ptr_B1) - 1) * self.frames - len(self)


def numerator_posteriors(y_BTS: np.ndarray, numerators: Numerators) -> tuple[np.ndarray, np.ndarray]:
    """Log of the total probability of each chunk, and its gradient: the posterior of each pdf.

    Returns
    -------
    log_z_B, posterior_BTS
        float64, and the type of `y_BTS`. If no path fits a chunk, they are minus infinity and zero.
    """
    n = numerators
    states = n.first_K, n.loop_K, n.begin_K, n.final_K, n.low_K, n.high_K
    return _posteriors(y_BTS, n.ptr_B1, *states, n.arc_ptr_K1, n.src_A, n.weight_A)


@numba.njit(cache=True, nogil=True)
def _fits(frames, ptr, first, begin, final, low, high, arc_ptr, src):  # type: ignore[no-untyped-def]
    fits = np.zeros(len(ptr) - 1, np.bool_)
    for c in range(len(fits)):
        base, size = ptr[c], ptr[c + 1] - ptr[c]
        before, after = begin[base : base + size] > NEVER / 2, np.zeros(size, np.bool_)
        for t in range(frames):
            for k in range(size):
                g = base + k
                after[k] = False
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                after[k] = before[k]
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    after[k] |= before[src[a]]
            before, after = after, before
        for k in range(size):
            fits[c] |= before[k] and final[base + k]
    return fits


@numba.njit(cache=True, nogil=True)
def _log_add(a, b):  # type: ignore[no-untyped-def]
    top, other = (a, b) if a > b else (b, a)
    return top + math.log1p(math.exp(other - top)) if other > NEVER / 2 else top


@numba.njit(cache=True, nogil=True)
def _posteriors(y, ptr, first, loop, begin, final, low, high, arc_ptr, src, weight):  # type: ignore[no-untyped-def]
    chunks, frames, _ = y.shape
    log_z, posterior = np.full(chunks, -np.inf), np.zeros_like(y)
    for c in range(chunks):
        # Forward: alpha[t, k] is the log sum over paths that are in phone k after t frames.
        base, size, yc, post = ptr[c], ptr[c + 1] - ptr[c], y[c], posterior[c]
        alpha, beta = np.full((frames + 1, size), NEVER), np.full((frames + 1, size), NEVER)
        alpha[0] = begin[base : base + size]
        for t in range(frames):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                into = NEVER
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    into = _log_add(into, alpha[t, src[a]] + weight[a])
                alpha[t + 1, k] = _log_add(into + yc[t, first[g]], alpha[t, k] + yc[t, loop[g]])
        # The total over final phones; a chunk without a path has none, one with a NaN gets a NaN.
        total = NEVER
        for k in range(size):
            if final[base + k]:
                total = _log_add(total, alpha[frames, k])
                beta[frames, k] = 0.0
        if not total > NEVER / 2:
            if not total <= NEVER / 2:
                log_z[c] = np.nan
            continue
        log_z[c] = total
        # Backward, and the posteriors: a frame in k was either a loop or the first of the phone.
        for t in range(frames - 1, -1, -1):
            for k in range(size):
                g = base + k
                if first[g] < 0 or t < low[g] or t > high[g]:
                    continue
                after = beta[t + 1, k]
                if after <= NEVER / 2 or alpha[t + 1, k] <= NEVER / 2:
                    continue
                stay = yc[t, loop[g]] + after
                looped = math.exp(alpha[t, k] + stay - total)
                post[t, loop[g]] += looped
                post[t, first[g]] += max(math.exp(alpha[t + 1, k] + after - total) - looped, 0.0)
                if alpha[t, k] > NEVER / 2:
                    beta[t, k] = _log_add(beta[t, k], stay)
                move = yc[t, first[g]] + after
                for a in range(arc_ptr[g], arc_ptr[g + 1]):
                    beta[t, src[a]] = _log_add(beta[t, src[a]], move + weight[a])
    return log_z, posterior


@dataclass(frozen=True, eq=False)
class PhoneLm:
    """A deterministic automaton over phone sequences; state 0 is the start."""

    # left_J, phone_J: int32: the last two phones of a state's history; 0: the beginning of the utterance, or a shorter
    # history
    left_J: np.ndarray
    phone_J: np.ndarray
    ptr_J1: np.ndarray  # int32: the arcs of state j are ``ptr[j]`` up to ``ptr[j + 1]``, by ascending phone
    # arc_phone_A, next_A: int32: the phone that an arc reads, and the state that it enters
    arc_phone_A: np.ndarray
    next_A: np.ndarray
    # float64: probability of the arc; one minus their sum at a state is the probability that the utterance ends
    prob_A: np.ndarray

    @property
    def num_states(self) -> int:
        return len(self.phone_J)

    def arc(self, state: int, phone: int) -> int:
        """The arc of `state` that reads `phone`, or -1 if there is none."""
        first, end = self.ptr_J1[state : state + 2]
        place = first + int(np.searchsorted(self.arc_phone_A[first:end], phone))
        return place if place < end and self.arc_phone_A[place] == phone else -1


def estimate_phone_lm(
    sequences: Iterable[Sequence[int]], extra_lm_states: int = 2000, history: int = _HISTORY
) -> PhoneLm:
    """Estimate the phone language model from phone sequences (phones count from 1).

    Parameters
    ----------
    sequences
        Read twice, so an iterator is first copied to a list. A ValueError if they contain no phones.
    extra_lm_states
        How many histories that are one phone longer, the most frequent ones, become states.
    history
        Number of phones of all other histories, at least 1.
    """
    if isinstance(sequences, Iterator):
        sequences = list(sequences)
    counts: Counter[tuple[int, ...]] = Counter()
    empty = True
    for phones, times in _distinct(sequences):
        empty = empty and not phones
        padded = (0,) * history + phones
        for place in range(history + 1, len(padded)):
            counts[padded[place - history : place + 1]] += times
    if empty:
        raise ValueError("no phones to estimate a phone language model from")
    frequent = sorted(counts, key=lambda longer: (-counts[longer], longer))[:extra_lm_states]
    return _automaton(sequences, frozenset(frequent), history)


def _distinct(sequences: Iterable[Sequence[int]]) -> Iterator[tuple[tuple[int, ...], int]]:
    """The sequences, and how often each occurs within a batch: many are equal where there are few words."""
    left = iter(sequences)
    while batch := Counter(tuple(int(phone) for phone in sequence) for sequence in islice(left, _BATCH)):
        yield from batch.items()


def _automaton(sequences: Iterable[Sequence[int]], longer: frozenset[tuple[int, ...]], length: int) -> PhoneLm:
    """Pass the sequences through the states, adding new states, and count the arcs."""
    states: dict[tuple[int, ...], int] = {(0,) * length: START}
    arcs: Counter[tuple[int, int]] = Counter()  # by state and phone
    target: dict[tuple[int, int], int] = {}
    ends: Counter[int] = Counter()
    for phones, times in _distinct(sequences):
        state, recent = START, (0,) * (length + 1)
        for phone in phones:
            recent = (*recent[1:], phone)
            history = recent if recent in longer else recent[1:]
            arcs[state, phone] += times
            state = target.setdefault((state, phone), states.setdefault(history, len(states)))
        ends[state] += times
    passed = Counter(ends)
    for (state, _), times in arcs.items():
        passed[state] += times
    ordered = sorted(arcs)
    ptr_J1 = np.searchsorted([state for state, _ in ordered], np.arange(len(states) + 1)).astype(np.int32)
    return PhoneLm(
        left_J=np.array([(0, *history)[-2] for history in states], np.int32),
        phone_J=np.array([history[-1] for history in states], np.int32),
        ptr_J1=ptr_J1,
        arc_phone_A=np.array([phone for _, phone in ordered], np.int32),
        next_A=np.array([target[arc] for arc in ordered], np.int32),
        prob_A=np.array([arcs[arc] / passed[arc[0]] for arc in ordered]),
    )


@dataclass(frozen=True, eq=False)
class SequenceGraph:
    """The arrays of a graph."""

    num_pdfs: int  # number of outputs that a network must have
    # first_J, loop_J: int32: the pdf of the arcs into each state, and that of its loop
    first_J: np.ndarray
    loop_J: np.ndarray
    loops_J: np.ndarray  # float32: weight of each state's loop, 0 for the start, which has none
    # in_ptr_J1, in_src_A, in_weight_A: arcs sorted by the state that they enter: int32, int32, float32. Those of state
    # j are ``ptr[j]`` up to ``ptr[j + 1]``.
    in_ptr_J1: np.ndarray
    in_src_A: np.ndarray
    in_weight_A: np.ndarray
    # out_ptr_J1, out_dst_A, out_weight_A: the same arcs sorted by the state that they leave
    out_ptr_J1: np.ndarray
    out_dst_A: np.ndarray
    out_weight_A: np.ndarray
    initial_J: np.ndarray  # float32 initial weights, which sum to one

    @property
    def num_states(self) -> int:
        return len(self.first_J)


def graph_arrays(
    lm: PhoneLm,
    num_pdfs: int,
    first_J: np.ndarray,
    loop_J: np.ndarray,
    loops_J: np.ndarray,
    weight_A: np.ndarray,
    initial_J: np.ndarray,
) -> dict[str, Any]:
    """Fields of a `SequenceGraph` with the states and arcs of a language model; `weight_A` in the order of its arcs."""
    order_A = np.argsort(lm.next_A, kind="stable")
    return {
        "num_pdfs": num_pdfs,
        "first_J": first_J.astype(np.int32),
        "loop_J": loop_J.astype(np.int32),
        "loops_J": loops_J.astype(np.float32),
        "in_ptr_J1": np.searchsorted(lm.next_A[order_A], np.arange(lm.num_states + 1)).astype(np.int32),
        "in_src_A": sources(lm)[order_A],
        "in_weight_A": weight_A[order_A].astype(np.float32),
        "out_ptr_J1": lm.ptr_J1,
        "out_dst_A": lm.next_A,
        "out_weight_A": weight_A.astype(np.float32),
        "initial_J": initial_J.astype(np.float32),
    }


def sources(lm: PhoneLm) -> np.ndarray:
    """The state that each arc leaves, (A,) int32."""
    return np.repeat(np.arange(lm.num_states, dtype=np.int32), np.diff(lm.ptr_J1))


def average_occupancy(lm: PhoneLm, stay_J: np.ndarray, frames: int) -> np.ndarray:
    """Average occupancy (J,) of the states over the first `frames`; the end of an utterance leads back to the start.

    `stay_J` is the probability that a state's loop is taken. No state has zero occupancy, so that a chunk may begin in
    any, also in one that no utterance reaches so early.
    """
    source_A = sources(lm)
    ends_J = 1.0 - np.bincount(source_A, lm.prob_A, lm.num_states)
    occupancy_J, total_J = np.zeros(lm.num_states), np.zeros(lm.num_states)
    occupancy_J[START] = 1.0
    for _ in range(frames):
        total_J += occupancy_J
        leaving_J = occupancy_J * (1 - stay_J)
        moved_J = np.bincount(lm.next_A, leaving_J[source_A] * lm.prob_A, lm.num_states)
        moved_J[START] += leaving_J @ ends_J
        occupancy_J = occupancy_J - leaving_J + moved_J
    average_J = np.maximum(total_J / total_J.sum(), UNSEEN)
    return average_J / average_J.sum()
