"""Small phone sets whose graphs can be enumerated."""

import itertools
import math

import numpy as np

from speech3.sequence.graph import START, PhoneLm, SequenceGraph, estimate_phone_lm
from speech3.sequence.lfmmi import Denominator, assemble


def toy_denominator(seed: int = 0, phones: int = 3, pdfs: int = 7) -> Denominator:
    """A denominator of random phone sequences and random pdfs."""
    generator = np.random.default_rng(seed)
    sequences = [generator.integers(1, phones + 1, generator.integers(2, 7)).tolist() for _ in range(8)]
    pdfs_PP2 = generator.integers(0, pdfs, (phones + 1, phones + 1, 2)).astype(np.int32)
    return assemble(estimate_phone_lm(sequences, extra_lm_states=4), pdfs, pdfs_PP2)


def toy_senones(seed: int = 0, senones: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Senones of the frames of random utterances, and where these begin and end."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 9, 6)
    return generator.integers(0, senones, lengths.sum()).repeat(2), 2 * np.cumsum([0, *lengths])


def log_prob(lm: PhoneLm, phones: list[int]) -> float:
    """Natural log probability of a complete sequence and its end; minus infinity if an arc is missing."""
    state, total = START, 0.0
    for phone in phones:
        arc = lm.arc(state, phone)
        if arc < 0:
            return -math.inf
        total += math.log(lm.prob_A[arc])
        state = int(lm.next_A[arc])
    end = 1.0 - lm.prob_A[lm.ptr_J1[state] : lm.ptr_J1[state + 1]].sum()
    return total + math.log(end) if end > 1e-12 else -math.inf


def enumerated_log_z(y_TS: np.ndarray, graph: SequenceGraph, leak: float) -> float:
    """Log of the summed weight of every path of states, leaks included, one by one."""
    return math.log(sum(weight for weight, _ in enumerated_paths(y_TS, graph, leak)))


def enumerated_paths(y_TS: np.ndarray, graph: SequenceGraph, leak: float) -> list[tuple[float, tuple[int, ...]]]:
    """The weight of every path of states, leaks included, and its pdfs."""
    frames = len(y_TS)
    weight_JJ = np.zeros((graph.num_states, graph.num_states))
    for j in range(graph.num_states):
        for a in range(graph.in_ptr_J1[j], graph.in_ptr_J1[j + 1]):
            weight_JJ[graph.in_src_A[a], j] += graph.in_weight_A[a]
    # In frame t a path enters or loops, after which it may leak from wherever it is to any state, but not at the end.
    moves = {
        (i, j, first): weight
        for i in range(graph.num_states)
        for j in range(graph.num_states)
        for first, weight in ((True, weight_JJ[i, j]), (False, float(graph.loops_J[j]) if i == j else 0.0))
        if weight
    }
    paths = [(j, float(graph.initial_J[j]), ()) for j in range(graph.num_states)]
    for t in range(frames):
        x_S = np.exp(y_TS[t])
        after = []
        for state, weight, pdfs in paths:
            for (i, j, first), arc in moves.items():
                if i == state:
                    pdf = int((graph.first_J if first else graph.loop_J)[j])
                    after.append((j, weight * arc * x_S[pdf], (*pdfs, pdf)))
        states = range(graph.num_states) if t < frames - 1 else ()
        paths = after + [(k, w * leak * float(graph.initial_J[k]), pdfs) for _, w, pdfs in after for k in states]
    return [(weight, pdfs) for _, weight, pdfs in paths]


def enumerated_numerator(
    y_TS: np.ndarray, phones: list[int], begins: list[int], graph: Denominator, lm: PhoneLm, tolerance: int
) -> float:
    """Log of the summed weight of the ways to say a whole utterance in a chunk of its own, each tried.

    `begins` are the output frames at which the phones begin in the alignment; the first is at 0.
    """
    frames, states, arcs = len(y_TS), [], []
    state = 0
    for phone in phones:
        arc = lm.arc(state, phone)
        arcs.append(lm.prob_A[arc])
        state = int(lm.next_A[arc])
        states.append(state)
    total = 0.0
    for cuts in itertools.combinations(range(1, frames), len(phones) - 1):
        edges = [0, *cuts, frames]
        inside = all(abs(cut - begin) <= tolerance for cut, begin in zip(cuts, begins[1:], strict=True))
        if not inside:
            continue
        weight = float(graph.initial_J[0]) * math.prod(arcs)
        for k, state in enumerate(states):
            for t in range(edges[k], edges[k + 1]):
                weight *= math.exp(y_TS[t, (graph.first_J if t == edges[k] else graph.loop_J)[state]])
        total += weight
    return math.log(total)
