"""Raw lattices as arrays, and the best path through one for many acoustic scales and word penalties at once.

Axes: N nodes, L links, K points of the grid.
"""

import struct
from dataclasses import dataclass

import numba
import numpy as np

_LINK = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("graph", "<f4"), ("acoustic", "<f4"), ("target", "<i4")])


@dataclass(frozen=True, eq=False)
class Lattice:
    """State-level tracebacks of one utterance: everything within the lattice beam of the best path.

    Attributes
    ----------
    start
        Number of the start node.
    final_N
        float32 final graph costs, infinity where a node is not final.
    offset_N
        int64 (N + 1): the links of node n are `links_L[offset_N[n] : offset_N[n + 1]]`.
    links_L
        Labels, graph cost, acoustic cost and target of each link.
    """

    start: int
    final_N: np.ndarray
    offset_N: np.ndarray
    links_L: np.ndarray


def parse_lattice(data: bytes) -> Lattice:
    """Read what `kaldifst.Lattice.write` wrote (OpenFst's `vector` format with lattice weights)."""
    place = 4
    for _ in range(2):  # names of the FST's and the arc's type
        (length,) = struct.unpack_from("<i", data, place)
        place += 4 + length
    start, states = struct.unpack_from("<qq", data, place + 16)  # after version, flags and properties
    words = np.frombuffer(data, "<i4", offset=place + 40)
    final_N, offset_N, word_N = _scan(words, words.view("<f4"), states)
    counts = np.diff(offset_N)
    index_L5 = (np.repeat(word_N, counts) + 5 * (np.arange(offset_N[-1]) - np.repeat(offset_N[:-1], counts)))[:, None]
    return Lattice(start, final_N, offset_N, words[index_L5 + np.arange(5)].view(_LINK)[:, 0])


@numba.njit(cache=True)
def _scan(words: np.ndarray, floats: np.ndarray, states: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    final_N = np.empty(states, np.float32)
    offset_N = np.zeros(states + 1, np.int64)
    word_N = np.empty(states, np.int64)
    place = 0
    for state in range(states):  # a state: final weight (graph, acoustic), int64 number of arcs, arcs of five words
        final_N[state] = floats[place] + floats[place + 1]
        offset_N[state + 1] = offset_N[state] + words[place + 2]
        word_N[state] = place + 4
        place += 4 + 5 * words[place + 2]
    return final_N, offset_N, word_N


def best_words(lattice: Lattice, acoustic_factors_K: np.ndarray, penalties_K: np.ndarray) -> list[tuple[int, ...]]:
    """Word labels of the best path at each point of a grid.

    Parameters
    ----------
    acoustic_factors_K
        float64, multiplied with the lattice's acoustic costs.
    penalties_K
        float64, added for each word.
    """
    links = lattice.links_L
    columns = [np.ascontiguousarray(links[name]) for name in ("olabel", "graph", "acoustic", "target")]
    order_N = _topological(lattice.start, lattice.offset_N, columns[-1])
    back_NK, end_K = _viterbi(
        order_N, lattice.start, lattice.final_N, lattice.offset_N, *columns, acoustic_factors_K, penalties_K
    )
    source_L = np.repeat(np.arange(len(lattice.final_N)), np.diff(lattice.offset_N))
    return [_trace(back_NK[:, k], int(end_K[k]), source_L, links["olabel"]) for k in range(len(end_K))]


@numba.njit(cache=True)
def _topological(start: int, offset_N: np.ndarray, target_L: np.ndarray) -> np.ndarray:
    """Nodes reachable from `start`, each before those that its links lead to (depth-first, reversed)."""
    nodes = len(offset_N) - 1
    seen_N = np.zeros(nodes, np.bool_)
    next_N = offset_N[:-1].copy()
    stack = np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    first, depth = nodes, 1
    stack[0] = start
    seen_N[start] = True
    while depth:
        node = stack[depth - 1]
        if next_N[node] == offset_N[node + 1]:
            depth -= 1
            first -= 1
            order[first] = node
            continue
        target = target_L[next_N[node]]
        next_N[node] += 1
        if not seen_N[target]:
            seen_N[target] = True
            stack[depth] = target
            depth += 1
    return order[first:]


@numba.njit(cache=True)
def _viterbi(
    order_N: np.ndarray, start: int, final_N: np.ndarray, offset_N: np.ndarray, olabel_L: np.ndarray,
    graph_L: np.ndarray, acoustic_L: np.ndarray, target_L: np.ndarray, factors_K: np.ndarray, penalties_K: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    nodes, points = len(final_N), len(factors_K)
    cost_NK = np.full((nodes, points), np.inf)
    back_NK = np.full((nodes, points), -1, np.int64)
    end_K = np.full(points, -1, np.int64)
    best_K = np.full(points, np.inf)
    cost_NK[start] = 0.0
    for node in order_N:
        for k in range(points):
            if cost_NK[node, k] + final_N[node] < best_K[k]:
                best_K[k] = cost_NK[node, k] + final_N[node]
                end_K[k] = node
        for link in range(offset_N[node], offset_N[node + 1]):
            target, is_word = target_L[link], olabel_L[link] > 0
            for k in range(points):
                cost = cost_NK[node, k] + graph_L[link] + factors_K[k] * acoustic_L[link]
                if is_word:
                    cost += penalties_K[k]
                if cost < cost_NK[target, k]:
                    cost_NK[target, k] = cost
                    back_NK[target, k] = link
    return back_NK, end_K


def _trace(back_N: np.ndarray, node: int, source_L: np.ndarray, olabel_L: np.ndarray) -> tuple[int, ...]:
    words = []
    while node >= 0 and back_N[node] >= 0:
        link = back_N[node]
        if olabel_L[link]:
            words.append(int(olabel_L[link]))
        node = int(source_L[link])
    return tuple(reversed(words))
