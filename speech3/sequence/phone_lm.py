"""The phone language model of the denominator: an n-gram without back-off (Povey et al. 2016; chain-est-phone-lm.cc).

Back-off arcs would let every phone follow every other and multiply the arcs of the graph. Instead, each history that
was seen is a state, in which a phone that never followed it has probability zero. Histories are two phones long; the
most frequent histories of three phones are also states. The probability of a phone is its relative frequency where the
training sequences pass through the state, which is the maximum likelihood estimate for this automaton.

Axes: J states, A arcs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

START = 0  # the state before the first phone
_HISTORY = 2  # phones of a history
_BATCH = 10_000  # sequences held at a time


@dataclass(frozen=True, eq=False)
class PhoneLm:
    """A deterministic automaton over phone sequences; state 0 is the start.

    Attributes
    ----------
    left_J, phone_J
        int32: the last two phones of a state's history; 0: the beginning of the utterance, or a shorter history.
    ptr_J1
        int32: the arcs of state j are ``ptr[j]`` up to ``ptr[j + 1]``, by ascending phone.
    arc_phone_A, next_A
        int32: the phone that an arc reads, and the state that it enters.
    prob_A
        float64: probability of the arc; one minus their sum at a state is the probability that the utterance ends.
    """

    left_J: np.ndarray
    phone_J: np.ndarray
    ptr_J1: np.ndarray
    arc_phone_A: np.ndarray
    next_A: np.ndarray
    prob_A: np.ndarray

    @property
    def num_states(self) -> int:
        """Number of states, J."""
        return len(self.phone_J)

    def arc(self, state: int, phone: int) -> int:
        """The arc of `state` that reads `phone`, or -1 if there is none."""
        first, end = self.ptr_J1[state : state + 2]
        place = first + int(np.searchsorted(self.arc_phone_A[first:end], phone))
        return place if place < end and self.arc_phone_A[place] == phone else -1

    def log_prob(self, phones: Sequence[int]) -> float:
        """Natural log probability of a complete sequence and its end; minus infinity if an arc is missing."""
        state, total = START, 0.0
        for phone in phones:
            arc = self.arc(state, phone)
            if arc < 0:
                return -np.inf
            total += float(np.log(self.prob_A[arc]))
            state = int(self.next_A[arc])
        end = 1.0 - self.prob_A[self.ptr_J1[state] : self.ptr_J1[state + 1]].sum()
        return total + float(np.log(end)) if end > 1e-12 else -np.inf


def estimate(sequences: Iterable[Sequence[int]], longer_histories: int = 2000, history: int = _HISTORY) -> PhoneLm:
    """Estimate the phone language model from phone sequences (phones count from 1).

    Parameters
    ----------
    sequences
        Read twice, so an iterator is first copied to a list.
    longer_histories
        How many histories that are one phone longer, the most frequent ones, become states.
    history
        Number of phones of all other histories, at least 1.

    Raises
    ------
    ValueError
        The sequences contain no phones.
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
    frequent = sorted(counts, key=lambda longer: (-counts[longer], longer))[:longer_histories]
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
