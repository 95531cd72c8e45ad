"""Graphs drawn at random, and simple reference searches through them and through grammars."""

import itertools
import math
from collections import defaultdict

import numpy as np

from speech3.io.fst import Fst, FstBuilder
from speech3.language.grammar import WordGraph


def random_graph(seed: int, states: int = 12, pdfs: int = 5, words: int = 4, finals: float = 0.3) -> Fst:
    """A random graph; arcs that read nothing lead from lower to higher states, so they form no cycle."""
    rng, builder = np.random.default_rng(seed), FstBuilder()
    for _ in range(states):
        builder.state(float(rng.uniform(0, 2)) if rng.uniform() < finals else np.inf)
    builder.finals[-1] = 0.5
    for source in range(states):
        for _ in range(rng.integers(1, 4)):
            word = int(rng.integers(1, words + 1)) if rng.uniform() < 0.3 else 0
            builder.arc(source, int(rng.integers(states)), int(rng.integers(1, pdfs + 1)), word, rng.uniform(0, 3))
        for _ in range(rng.integers(0, 3)):
            if source + 1 < states:
                word = int(rng.integers(1, words + 1)) if rng.uniform() < 0.3 else 0
                builder.arc(source, int(rng.integers(source + 1, states)), 0, word, rng.uniform(-0.5, 2))
    fst = builder.fst()
    shuffled = rng.permutation(len(fst.arcs_A))
    return Fst(fst.start, fst.final_S, fst.source_A[shuffled], fst.arcs_A[shuffled])


def random_scores(seed: int, frames: int, pdfs: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(-40, 2, (frames, pdfs)).astype(np.float32)


def best_cost(fst: Fst, scores_TP: np.ndarray, scale: float) -> tuple[float, bool]:
    """Viterbi over all states in float64: the best cost, with final costs if a final state is reached."""
    cost_S = np.full(len(fst.final_S), np.inf)
    cost_S[fst.start] = 0.0
    reads = fst.arcs_A["ilabel"] > 0
    for row in (None, *scores_TP.astype(np.float64)):
        if row is not None:
            read = fst.arcs_A[reads]
            new_S = np.full(len(cost_S), np.inf)
            costs = cost_S[fst.source_A[reads]] + read["weight"] - scale * row[read["ilabel"] - 1]
            np.minimum.at(new_S, read["nextstate"], costs)
            cost_S = new_S
        for _ in cost_S:
            silent = fst.arcs_A[~reads]
            np.minimum.at(cost_S, silent["nextstate"], cost_S[fst.source_A[~reads]] + silent["weight"])
    ended = cost_S + fst.final_S
    return (float(ended.min()), True) if np.isfinite(ended).any() else (float(cost_S.min()), False)


def all_paths(fst: Fst, scores_TP: np.ndarray, scale: float) -> list[tuple[tuple[int, ...], tuple[int, ...], float]]:
    """(pdfs, words, cost) of every path that ends in a final state, cheapest first."""
    leaving = defaultdict(list)
    for source, arc in zip(fst.source_A.tolist(), fst.arcs_A, strict=True):
        leaving[source].append((int(arc["ilabel"]), int(arc["olabel"]), float(arc["weight"]), int(arc["nextstate"])))
    paths, found = [(fst.start, 0, (), (), 0.0)], []
    while paths:
        state, frame, pdfs, words, cost = paths.pop()
        if frame == len(scores_TP) and np.isfinite(fst.final_S[state]):
            found.append((pdfs, words, cost + float(fst.final_S[state])))
        for ilabel, olabel, weight, target in leaving[state]:
            said = (*words, olabel) if olabel else words
            if not ilabel:
                paths.append((target, frame, pdfs, said, cost + weight))
            elif frame < len(scores_TP):
                read = weight - scale * float(scores_TP[frame, ilabel - 1])
                paths.append((target, frame + 1, (*pdfs, ilabel - 1), said, cost + read))
    return sorted(found, key=lambda path: path[2])


def pieces_of(frames: int, sizes: tuple[int, ...]) -> list[slice]:
    """Slices with these sizes in turn, which together cover `frames` frames."""
    edges = [0]
    for size in itertools.cycle(sizes):
        if edges[-1] >= frames:
            return [slice(*pair) for pair in itertools.pairwise(edges)]
        edges.append(min(edges[-1] + size, frames))
    raise AssertionError


def sentences_of(graph: WordGraph, longest: int) -> dict[tuple[str, ...], float]:
    """Every sentence of up to `longest` words with its probability."""
    onward: dict[int, list[tuple[str, float, int]]] = {}
    for source, word, cost, target in graph.arcs:
        onward.setdefault(source, []).append((word, cost, target))
    found: dict[tuple[str, ...], float] = {}
    ways: list[tuple[tuple[str, ...], float, int]] = [((), 0.0, 0)]
    for _ in range(longest + 1):
        further = []
        for words, cost, state in ways:
            if state in graph.finals:
                found[words] = math.exp(-cost - graph.finals[state])
            further += [((*words, word), cost + more, target) for word, more, target in onward.get(state, [])]
        ways = further
    return found
