import pytest
import toys

from speech3.config import DecodeConfig
from speech3.decoding.graph import build_graph, load_graph
from speech3.decoding.search import decode
from speech3.decoding.tune import tune
from speech3.errors import Speech3Error

GRID = DecodeConfig(beam=500.0, acoustic_scales=(0.02, 0.1, 0.5, 2.5), word_penalties=(-6.0, 0.0, 6.0))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("graph")
    build_graph(toys.toy_hmm(), toys.bigram(), out, toys.SCALE)
    return load_graph(out)


@pytest.fixture(scope="module")
def scores():
    return [(f"u{seed}", toys.random_scores(toys.toy_hmm(), 40, seed)) for seed in range(12)]


def test_the_setting_that_made_the_references_is_found(graph, scores):
    for scale, penalty in ((0.5, -6.0), (0.1, 0.0), (2.5, 0.0)):
        truth = {h.utterance: h.words for h in decode(graph, scores, GRID, scale, penalty).hypotheses}
        truth = {utterance: words or ("nothing",) for utterance, words in truth.items()}
        found = tune(graph, lambda: scores, truth, GRID)
        assert (found.best.acoustic_scale, found.best.word_penalty) == (scale, penalty)
        assert found.best.error_rate == min(point.error_rate for point in found.table)
        assert len({(p.acoustic_scale, p.word_penalty) for p in found.table}) == len(found.table) <= 12


def test_the_error_rate_is_the_one_asked_for(graph, scores):
    truth = {utterance: ("A", "B") for utterance, _ in scores}
    seen = []

    def shortest(references, hypotheses):
        assert references == ["A B"] * len(scores) == ["A B"] * len(hypotheses)
        seen.append(hypotheses)
        return float(sum(len(text) for text in hypotheses))

    found = tune(graph, lambda: scores, truth, GRID, error_rate=shortest)
    assert found.best.error_rate == min(sum(map(len, texts)) for texts in seen)
    assert found.best.error_rate < max(point.error_rate for point in found.table)


def test_nothing_moves_without_gain(graph, scores):
    hopeless = {utterance: ("nothing", "of", "the", "kind") * 9 for utterance, _ in scores}
    config = GRID.model_copy(update={"acoustic_scales": (0.1, 0.11, 0.12), "word_penalties": (0.0, 1.0, 2.0)})
    found = tune(graph, lambda: scores, hopeless, config)
    assert {point.error_rate for point in found.table} == {1.0}
    assert (found.best.acoustic_scale, found.best.word_penalty) == (0.11, 0.0)


def test_the_climb_ends_where_no_neighbour_is_better(graph, scores):
    truth = {h.utterance: h.words or ("nothing",) for h in decode(graph, scores, GRID, 0.3, 1.0).hypotheses}
    scales, penalties = tuple(0.02 * 1.5**n for n in range(12)), tuple(map(float, range(-5, 6)))
    config = GRID.model_copy(update={"acoustic_scales": scales, "word_penalties": penalties})
    found = tune(graph, lambda: scores, truth, config)
    tried = {(p.acoustic_scale, p.word_penalty): p.error_rate for p in found.table}
    assert len(tried) < 40 < len(scales) * len(penalties)
    i, j = scales.index(found.best.acoustic_scale), penalties.index(found.best.word_penalty)
    around = [(scales[a], penalties[j]) for a in (i - 1, i + 1) if 0 <= a < len(scales)]
    around += [(scales[i], penalties[b]) for b in (j - 1, j + 1) if 0 <= b < len(penalties)]
    assert all(tried[setting] >= found.best.error_rate for setting in around)


def test_utterances_without_reference_are_named(graph, scores):
    with pytest.raises(Speech3Error, match="u3"):
        tune(graph, lambda: scores, {u: ("A",) for u, _ in scores if u != "u3"}, GRID)
    with pytest.raises(Speech3Error, match="no utterances"):
        tune(graph, lambda: [], {}, GRID)


def test_scores_are_drawn_once_for_each_step(graph, scores):
    draws = []
    found = tune(graph, lambda: draws.append(1) or scores, {u: ("A",) for u, _ in scores}, GRID)
    assert 1 < len(draws) < len(found.table)
