"""Word lattices and what is read off them, against enumeration of all paths."""

import itertools
from collections import defaultdict

import jiwer
import numpy as np
import pytest
from random_graphs import all_paths, random_graph, random_scores
from test_lattice import SCALE, lattice_of, paths_of

from speech3.decode import word_lattice
from speech3.decode.beam_search import best_words, rest_costs
from speech3.decode.lattice_paths import confidences, minimum_bayes_risk, nbest, oracle_words
from speech3.decode.word_lattice import WordLattice, words_of

BEAM = 4.0


def toy(seed: int, frames: int = 4, words: int = 4, beam: float = BEAM):
    """(state-level lattice, word lattice, cost and pdfs of the best path of each sequence of words, at most `beam`)."""
    fst, scores_TP = random_graph(seed, states=5, finals=0.6, words=words), random_scores(seed, frames)
    _, lattice = lattice_of(fst, scores_TP, beam)
    by_words = defaultdict(list)
    for pdfs, said, cost in paths_of(lattice):
        by_words[said].append((cost, pdfs))
    best = min(min(ways) for ways in by_words.values())[0]
    sequences = {said: min(ways) for said, ways in by_words.items() if min(ways)[0] <= best + beam}
    return lattice, words_of(lattice, SCALE, beam), sequences


def every_path(lattice: WordLattice) -> dict[tuple[int, ...], tuple[float, float, tuple[int, ...]]]:
    """(graph cost, acoustic cost, pdfs) of each sequence of words."""
    found, waiting = {}, [(0, (), 0.0, 0.0, ())]
    while waiting:
        state, said, graph, acoustic, pdfs = waiting.pop()
        assert len(pdfs) == lattice.frame_S[state]
        if np.isfinite(lattice.final_graph_S[state]):
            assert said not in found, "a sequence of words has one path"
            found[said] = (
                graph + lattice.final_graph_S[state],
                acoustic + lattice.final_acoustic_S[state],
                (*pdfs, *lattice.final_pdfs_S[state].tolist()),
            )
        for a in np.flatnonzero(lattice.source_A == state):
            read = lattice.pdfs_K[lattice.begin_A1[a] : lattice.begin_A1[a + 1]].tolist()
            waiting.append(
                (
                    lattice.target_A[a],
                    (*said, int(lattice.word_A[a])),
                    graph + lattice.graph_A[a],
                    acoustic + lattice.acoustic_A[a],
                    (*pdfs, *read),
                )
            )
    return found


def costs_of(found) -> dict[tuple[int, ...], float]:
    return {said: graph + SCALE * acoustic for said, (graph, acoustic, _) in found.items()}


def pairs_of(lattice: WordLattice) -> list[tuple[int, int]]:
    return list(zip(lattice.source_A.tolist(), lattice.word_A.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_each_sequence_of_words_keeps_its_best_path(seed):
    lattice, words, sequences = toy(seed)
    found = every_path(words)
    costs = costs_of(found)
    best = min(costs.values())
    surely = {said for said, (cost, _) in sequences.items() if cost < best + BEAM - 0.01}
    assert surely <= set(found)
    near = (path.arcs for path in nbest(words, 10**4, SCALE) if path.cost < best + BEAM + 0.01)
    assert set().union(*near) == set(range(len(words.word_A))), "each arc is on a path within the beam"
    for said, (cost, _) in sequences.items():
        if said in found:
            assert costs[said] == pytest.approx(cost, abs=2e-3)
    scores_TP = random_scores(seed, 4)
    for said, (_, acoustic, pdfs) in found.items():
        assert len(pdfs) == 4 and acoustic == pytest.approx(-scores_TP[np.arange(4), pdfs].sum(), abs=0.01), said
    assert (words.target_A > words.source_A).all() and (np.diff(words.source_A) >= 0).all()
    pairs = pairs_of(words)
    assert len(set(pairs)) == len(pairs) and 0 not in words.word_A, "deterministic, and every arc has a word"
    shared = sum(map(len, words.final_pdfs_S)) + len(words.pdfs_K)
    assert words.density == pytest.approx(shared / 4) and words.frames == lattice.frames == 4


def test_sets_of_states_that_are_the_same_are_one_state():
    lattice, words, sequences = toy(3, frames=7, words=2, beam=6.0)
    assert len(sequences) > 30
    assert len(words.frame_S) < len({said[:n] for said in sequences for n in range(len(said) + 1)}), "it is no tree"
    assert best_words(lattice, SCALE) == nbest(words, 1, SCALE)[0].words


def test_a_lattice_that_grows_too_large_has_a_narrower_beam(monkeypatch):
    lattice, whole, _ = toy(3, frames=7, words=2)
    monkeypatch.setattr(word_lattice, "_MAX_ELEMENTS", 60)
    found = words_of(lattice, SCALE)
    costs = {said: graph + SCALE * acoustic for said, (graph, acoustic, _) in every_path(whole).items()}
    kept = {said: graph + SCALE * acoustic for said, (graph, acoustic, _) in every_path(found).items()}
    assert 1 < len(kept) < len(costs)
    assert sorted(kept.values()) == pytest.approx(sorted(costs.values())[: len(kept)]), "the cheapest of all"


@pytest.mark.parametrize("most", [1, 2, 5, 13])
def test_the_best_path_is_found_however_few_states_fit(monkeypatch, most):
    monkeypatch.setattr(word_lattice, "_MAX_ELEMENTS", most)
    for seed in range(8):
        lattice, words, _ = toy(seed, frames=7, words=2)
        assert best_words(lattice, SCALE) == nbest(words, 1, SCALE)[0].words


def test_rounding_errors_do_not_keep_the_beam_from_narrowing(monkeypatch):
    beams, whole = [], word_lattice.determinized

    def cut_on_the_best_path(lattice, scale, beam, most):
        beams.append(beam)
        *found, reached = whole(lattice, scale, beam, most)
        return *found, -1e-13 if len(beams) == 1 else reached

    monkeypatch.setattr(word_lattice, "determinized", cut_on_the_best_path)
    lattice, words, _ = toy(3, frames=7, words=2)
    assert best_words(lattice, SCALE) == nbest(words, 1, SCALE)[0].words
    assert beams == [pytest.approx(BEAM, abs=1e-5), 1e-3]


@pytest.mark.parametrize("scale", [SCALE, 0.5, 0.1])
def test_the_n_best_are_the_cheapest_of_all(scale):
    for seed in range(8):
        _, words, _ = toy(seed)
        every = every_path(words)
        costs = sorted((graph + scale * acoustic, said) for said, (graph, acoustic, _) in every.items())
        for n in (1, 5, 10_000):
            found = nbest(words, n, scale)
            assert [path.cost for path in found] == pytest.approx([cost for cost, _ in costs[:n]], abs=1e-6)
            assert len({path.words for path in found}) == len(found) == min(n, len(every))
        for path in found:
            graph, acoustic, pdfs = every[path.words]
            assert path.cost == pytest.approx(graph + scale * acoustic)
            parts = [words.pdfs_K[words.begin_A1[arc] : words.begin_A1[arc + 1]] for arc in path.arcs]
            last = words.target_A[path.arcs[-1]] if path.arcs else 0
            assert tuple(np.concatenate([*parts, words.final_pdfs_S[last]])) == pdfs


def test_words_at_another_scale_are_those_of_the_cheapest_path():
    others = 0
    for seed in range(10):
        fst, scores_TP = random_graph(seed, states=5, finals=0.6), random_scores(seed, 4)
        _, lattice = lattice_of(fst, scores_TP, 50.0)  # all paths are in it
        for scale, penalty in ((SCALE, 0.0), (1.0, 0.0), (0.05, 0.0), (SCALE, 2.0)):
            cost = min(cost + penalty * len(said) for _, said, cost in all_paths(fst, scores_TP, scale))
            if not penalty:
                assert rest_costs(lattice, scale)[0] == pytest.approx(cost, abs=1e-3)
            said = best_words(lattice, scale, penalty)
            paths = all_paths(fst, scores_TP, scale)
            (again,) = {words for _, words, each in paths if each + penalty * len(words) < cost + 1e-4}
            assert said == again
            others += said != best_words(lattice, SCALE)
    assert others > 5


def edits(one, other) -> int:
    """Edit distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def test_the_oracle_is_the_path_with_the_fewest_errors():
    seen = set()
    for seed in range(8):
        _, words, _ = toy(seed)
        every = every_path(words)
        for reference in ((), (1,), (2, 3), (1, 1, 4, 2), (9, 9, 9)):
            fewest = min(edits(reference, said) for said in every)
            assert edits(reference, oracle_words(words, reference)) == fewest
            seen.add(fewest)
            if reference and fewest < len(reference):
                said = min(every, key=lambda each: edits(reference, each))
                texts = [" ".join(map(str, each)) for each in (reference, said)]
                assert jiwer.wer(*texts) == pytest.approx(fewest / len(reference))
    assert len(seen) > 2


def posteriors_of(words: WordLattice) -> dict[tuple[int, ...], float]:
    costs = costs_of(every_path(words))
    weights = {said: np.exp(-cost + min(costs.values())) for said, cost in costs.items()}
    return {said: weight / sum(weights.values()) for said, weight in weights.items()}


def test_confidences_of_a_hypothesis():
    certain = 0
    for seed in range(10):
        _, words, _ = toy(seed)
        posterior = posteriors_of(words)
        said = nbest(words, 1, SCALE)[0].words
        found = confidences(words, said, SCALE)
        assert found.words == said and len(found.confidences) == len(said)
        assert all(0 <= sure <= 1 for sure in found.confidences)
        risk = sum(share * edits(said, other) for other, share in posterior.items())
        assert found.expected_errors >= risk - 1e-3, "averaging in states never makes it smaller"
        assert found.expected_errors == pytest.approx(risk, abs=0.25)
        certain += len(posterior) == 1
        if len({len(other) for other in posterior}) == 1 and len(said) == 1:
            assert found.confidences[0] == pytest.approx(posterior[said], abs=1e-6)


def test_a_word_of_which_all_paths_are_sure_has_confidence_one():
    words = one_word_then([(5, 0.0)], [(6, 0.3), (7, 0.3), (8, 1.0)])
    found = confidences(words, (5, 6), 1.0)
    shares = np.exp([-0.3, -0.3, -1.0]) / np.exp([-0.3, -0.3, -1.0]).sum()
    assert found.confidences == pytest.approx((1.0, shares[0]))
    assert found.expected_errors == pytest.approx(1 - shares[0], abs=1e-4)
    assert confidences(words, (5, 9), 1.0).confidences == pytest.approx((1.0, 0.0)), "a word that is not in it"


def one_word_then(*slots: list[tuple[int, float]]) -> WordLattice:
    """A lattice of slots, one after another, each of (word, cost)."""
    rows = [(place, place + 1, word, cost) for place, slot in enumerate(slots) for word, cost in slot]
    source, target, word, cost = map(np.array, zip(*rows, strict=True))
    states = len(slots) + 1
    final = np.array([np.inf] * len(slots) + [0.0])
    return WordLattice(
        source.astype(np.int32), target.astype(np.int32), word.astype(np.int32), cost, np.zeros(len(rows)), final,
        final, np.zeros(0, np.int32), np.zeros(len(rows) + 1, np.int32),
        (np.zeros(0, np.int32),) * states, np.zeros(states, np.int32), 0,
    )  # fmt: skip


def test_minimum_bayes_risk_takes_the_likeliest_word_of_each_place():
    """Three paths: the best one is A B, but C, D and E follow another first word that is likelier in all."""
    paths = {(1, 2): 0.4, (3, 4): 0.35, (3, 5): 0.25}
    rows = [(0, 1, 1, 0.0), (0, 2, 3, 0.0), (1, 3, 2, -np.log(0.4)), (2, 3, 4, -np.log(0.35)), (2, 3, 5, -np.log(0.25))]
    source, target, word, cost = map(np.array, zip(*rows, strict=True))
    final = np.array([np.inf, np.inf, np.inf, 0.0])
    words = WordLattice(
        source.astype(np.int32), target.astype(np.int32), word.astype(np.int32), cost, np.zeros(5), final, final,
        np.zeros(0, np.int32), np.zeros(6, np.int32), (np.zeros(0, np.int32),) * 4, np.zeros(4, np.int32), 0,
    )  # fmt: skip
    assert nbest(words, 1, 1.0)[0].words == (1, 2)
    found = minimum_bayes_risk(words, (1, 2), 1.0)
    assert found.words == (3, 2) and found.confidences == pytest.approx((0.6, 0.4))
    risks = {
        said: sum(share * edits(said, other) for other, share in paths.items())
        for said in itertools.product(range(1, 6), repeat=2)
    }
    assert found.expected_errors == pytest.approx(min(risks.values()), abs=1e-3) == risks[3, 2]


def test_minimum_bayes_risk_never_expects_more_errors_than_where_it_began():
    fewer = 0
    for seed in range(20):
        _, words, _ = toy(seed)
        said = nbest(words, 1, SCALE)[0].words
        before, found = confidences(words, said, SCALE), minimum_bayes_risk(words, said, SCALE)
        assert found.expected_errors <= before.expected_errors + 1e-9
        fewer += found.expected_errors < before.expected_errors - 1e-3
    assert fewer > 1
