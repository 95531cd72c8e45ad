"""State-level lattices against all paths of small graphs, one by one."""

import functools
from collections import defaultdict

import numpy as np
import pytest
import toys
from random_graphs import all_paths, pieces_of, random_graph, random_scores

from speech3.decode import beam_search, beam_search as linked_frames
from speech3.decode.beam_search import BeamSearch, Lattice, search_graph
from speech3.decode.graph import build_graph, load_graph
from speech3.io.fst import Fst, FstBuilder

SCALE = 0.3
ALL = 1e6, 10**6  # beam and limit that drop nothing


def lattice_of(fst, scores_TP, lattice_beam, beam=ALL, pieces=None) -> tuple[BeamSearch, Lattice | None]:
    search = BeamSearch()
    search.begin(search_graph(fst, scores_TP.shape[1], "toy"), "u", SCALE, *beam, lattice_beam)
    for piece in pieces or [slice(None)]:
        search.read(scores_TP[piece])
    return search, search.lattice()


def as_fst(lattice: Lattice) -> Fst:
    """The lattice as a graph whose paths can be enumerated, its acoustic costs among those of its arcs."""
    from speech3.io.fst import ARC

    arcs_A = np.zeros(len(lattice.source_A), ARC)
    arcs_A["ilabel"], arcs_A["olabel"], arcs_A["nextstate"] = lattice.ilabel_A, lattice.olabel_A, lattice.target_A
    arcs_A["weight"] = lattice.graph_A + np.float32(SCALE) * lattice.acoustic_A
    return Fst(0, lattice.final_S, lattice.source_A, arcs_A)


def paths_of(lattice: Lattice, pdfs: int = 5):
    return all_paths(as_fst(lattice), np.zeros((lattice.frames, pdfs), np.float32), 0.0)


def check_form(lattice: Lattice) -> None:
    """What every `Lattice` promises."""
    assert (lattice.target_A > lattice.source_A).all() and (np.diff(lattice.source_A) >= 0).all()
    assert set(lattice.source_A) | {len(lattice.final_S) - 1} >= set(range(len(lattice.final_S))) - set(
        np.flatnonzero(np.isfinite(lattice.final_S))
    )
    assert set(lattice.target_A) == set(range(1, len(lattice.final_S)))
    reads = lattice.ilabel_A > 0
    np.testing.assert_array_equal(lattice.frame_S[lattice.target_A], lattice.frame_S[lattice.source_A] + reads)
    assert (lattice.acoustic_A[~reads] == 0).all()
    assert (lattice.frame_S[np.isfinite(lattice.final_S)] == lattice.frames).all()


@functools.cache
def toy(seed: int):
    """A graph, scores, and the costs of all paths by what they read and write, cheapest first."""
    fst, scores_TP = random_graph(seed, states=5, finals=0.6), random_scores(seed, 4)
    return fst, scores_TP, by_labels(all_paths(fst, scores_TP, SCALE))


def by_labels(paths):
    costs = defaultdict(list)
    for pdfs, words, cost in paths:
        costs[pdfs, words].append(cost)
    return costs


@pytest.mark.parametrize("stretch", [1, 2, 32])
@pytest.mark.parametrize("lattice_beam", [0.0, 0.8, 3.0])
def test_its_paths_are_those_near_the_best_with_their_costs(monkeypatch, stretch, lattice_beam):
    monkeypatch.setattr(linked_frames, "_MIN_FRAMES", stretch)
    monkeypatch.setattr(linked_frames, "_MAX_FRAMES", stretch)
    others = 0
    for seed in range(15):
        fst, scores_TP, everything = toy(seed)
        search, lattice = lattice_of(fst, scores_TP, lattice_beam)
        check_form(lattice)
        found, best = by_labels(paths_of(lattice)), min(min(costs) for costs in everything.values())
        assert min(min(costs) for costs in found.values()) == pytest.approx(best, abs=1e-4)
        assert search.best_path().cost == pytest.approx(best, abs=1e-4)
        for labels, costs in everything.items():
            near = [cost for cost in costs if cost < best + lattice_beam - 1e-3]
            assert found[labels][: len(near)] == pytest.approx(near, abs=1e-3)
            others += len(near)
        for labels, costs in found.items():  # those beyond the beam are put together from arcs of near ones
            assert all(np.abs(np.array(everything[labels]) - cost).min() < 1e-3 for cost in costs)
    assert (others > 40) == (lattice_beam > 0)


def test_its_best_path_is_the_one_best_however_narrow_the_beam():
    """A narrow beam cuts off ways to tokens that other ways lead to; the lattice must not find them again."""
    for seed in range(60):
        fst, scores_TP = random_graph(seed, states=200), random_scores(seed, 25)
        for beam in ((0.4, 10**6), (1.2, 10**6), (1e6, 21), (1e6, 60)):
            search, lattice = lattice_of(fst, scores_TP, 4.0, beam)
            assert paths_of_best(lattice) == pytest.approx(search.best_path().cost, abs=1e-3), (seed, beam)


def test_a_path_exactly_at_the_edge_of_the_beam_is_there_as_a_whole():
    near = np.float32(0.011033099)
    far = near + np.float32(8)  # in float32, (far + 8) - 8 is less than far
    builder = FstBuilder()
    start, *middle, end = (builder.state(final) for final in (np.inf, np.inf, np.inf, 0.0))
    for state, word, cost in zip(middle, (1, 2), (near, far), strict=True):
        builder.arc(start, state, 1, 0, cost)
        builder.arc(state, end, 1, word, 0.0)
    _, lattice = lattice_of(builder.fst(), np.zeros((2, 1), np.float32), 8.0)
    check_form(lattice)
    assert sorted(words for _, words, _ in paths_of(lattice)) == [(1,), (2,)]


@pytest.mark.parametrize("lattice_beam", [0.5, 2.0])
def test_each_of_its_arcs_is_on_a_path_near_the_best(lattice_beam):
    others = 0
    for seed in range(12):
        fst, scores_TP = random_graph(seed, states=20), random_scores(seed, 30)
        _, lattice = lattice_of(fst, scores_TP, lattice_beam)
        cost_A = lattice.graph_A.astype(np.float64) + SCALE * lattice.acoustic_A
        forward = np.full(len(lattice.final_S), np.inf)
        forward[0] = 0.0
        for a in range(len(cost_A)):
            target = lattice.target_A[a]
            forward[target] = min(forward[target], forward[lattice.source_A[a]] + cost_A[a])
        backward = lattice.final_S.astype(np.float64)
        for a in reversed(range(len(cost_A))):
            source = lattice.source_A[a]
            backward[source] = min(backward[source], cost_A[a] + backward[lattice.target_A[a]])
        through = forward[lattice.source_A] + cost_A + backward[lattice.target_A]
        assert through.max() < backward[0] + lattice_beam + 1e-3
        others += (through > backward[0] + 0.8 * lattice_beam).sum()
    assert others > 10, "arcs near the edge of the beam should be there, too"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("graph")
    build_graph(toys.toy_hmm(context=True), toys.bigram(), out, toys.SCALE)
    return load_graph(out)


def toy_scores(frames: int, seed: int = 3) -> np.ndarray:
    return toys.random_scores(toys.toy_hmm(context=True), frames, seed)


def content(lattice: Lattice):
    """Arcs by what they are, whatever the order of parallel ones."""
    rows = zip(
        lattice.source_A,
        lattice.target_A,
        lattice.ilabel_A,
        lattice.olabel_A,
        lattice.graph_A,
        lattice.acoustic_A,
        strict=True,
    )
    return sorted(tuple(map(float, row)) for row in rows), lattice.final_S.tolist(), lattice.frame_S.tolist()


@pytest.mark.parametrize("beam", [ALL, (12.0, 200)])
def test_stretches_pieces_and_prunings_make_no_difference(graph, monkeypatch, beam):
    scores_TP = toy_scores(300)
    _, whole = lattice_of(graph.fst, scores_TP, 3.0, beam)
    assert len(whole.source_A) > 400
    monkeypatch.setattr(linked_frames, "_MIN_FRAMES", 7)
    monkeypatch.setattr(linked_frames, "_MAX_FRAMES", 7)
    for many, room, pieces in ((2**20, 2**21, None), (50, 2**21, (1,)), (300, 600, (10, 3)), (0, 20, (300,))):
        monkeypatch.setattr(linked_frames, "_MAX_NEW_LINKS", many)
        monkeypatch.setattr(beam_search, "_ROOM", room)
        sizes = pieces and pieces_of(300, pieces)
        search, found = lattice_of(graph.fst, scores_TP, 3.0, beam, sizes)
        assert content(found) == content(whole)
        assert search.best_path().cost == pytest.approx(lattice_of(graph.fst, scores_TP, 3.0, beam)[0].best_path().cost)


def test_a_lattice_of_the_frames_so_far_leaves_the_search_as_it_was(graph):
    scores_TP = toy_scores(100)
    search = BeamSearch()
    search.begin(graph.arranged, "u", SCALE, 15.0, 500, 3.0)
    for frames in (0, 1, 40, 64, 100):
        search.read(scores_TP[search.frames : frames])
        partial = search.lattice()
        check_form(partial)
        assert partial.frames == frames
        assert content(partial) == content(lattice_of(graph.fst, scores_TP[:frames], 3.0, (15.0, 500))[1])
        cost = search.best_path().cost
        assert paths_of_best(partial) == pytest.approx(cost, abs=1e-3)


def paths_of_best(lattice: Lattice) -> float:
    best = np.full(len(lattice.final_S), np.inf)
    best[0] = 0.0
    for a in range(len(lattice.source_A)):
        cost = best[lattice.source_A[a]] + float(lattice.graph_A[a]) + SCALE * float(lattice.acoustic_A[a])
        best[lattice.target_A[a]] = min(best[lattice.target_A[a]], cost)
    return float((best + lattice.final_S).min())


def test_where_no_final_state_is_reached_every_state_may_be_the_last():
    for seed in range(30):
        fst = random_graph(seed, states=12, finals=0.0)
        scores_TP = random_scores(seed, 2)
        search, lattice = lattice_of(fst, scores_TP, 2.0)
        assert lattice.reached_final == search.best_path().reached_final
        if not lattice.reached_final:
            last = np.flatnonzero(lattice.frame_S == 2)
            assert (lattice.final_S[last] == 0).all()
            assert paths_of_best(lattice) == pytest.approx(search.best_path().cost, abs=1e-4)
            return
    raise AssertionError("no seed without a final state")


def test_no_lattice_of_a_search_that_died_or_was_not_asked_for_one(graph):
    scores_TP = toy_scores(60)
    search = BeamSearch()
    search.begin(graph.arranged, "u", SCALE, 15.0, 500)
    search.read(scores_TP)
    assert search.lattice() is None
    scores_TP[40] = -np.inf
    _, lattice = lattice_of(graph.fst, scores_TP, 3.0)
    assert lattice is None
