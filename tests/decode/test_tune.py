import jiwer
import numpy as np
import pytest
import toys

from speech3.config import DecodeConfig
from speech3.decode import tune as module
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.search import decode
from speech3.decode.tune import drawn, error_rate_of, tune
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
        found = tune(graph, scores, truth, GRID)
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

    found = tune(graph, scores, truth, GRID, error_rate=shortest)
    assert found.best.error_rate == min(sum(map(len, texts)) for texts in seen)
    assert found.best.error_rate < max(point.error_rate for point in found.table)


def test_nothing_moves_without_gain(graph, scores):
    hopeless = {utterance: ("nothing", "of", "the", "kind") * 9 for utterance, _ in scores}
    config = GRID.model_copy(update={"acoustic_scales": (0.1, 0.11, 0.12), "word_penalties": (0.0, 1.0, 2.0)})
    found = tune(graph, scores, hopeless, config)
    assert {point.error_rate for point in found.table} == {1.0}
    assert (found.best.acoustic_scale, found.best.word_penalty) == (0.11, 0.0)


def test_the_climb_ends_where_no_neighbour_is_better(graph, scores):
    truth = {h.utterance: h.words or ("nothing",) for h in decode(graph, scores, GRID, 0.3, 1.0).hypotheses}
    scales, penalties = tuple(0.02 * 1.5**n for n in range(12)), tuple(map(float, range(-5, 6)))
    config = GRID.model_copy(update={"acoustic_scales": scales, "word_penalties": penalties})
    found = tune(graph, scores, truth, config)
    tried = {(p.acoustic_scale, p.word_penalty): p.error_rate for p in found.table}
    assert len(tried) < 40 < len(scales) * len(penalties)
    i, j = scales.index(found.best.acoustic_scale), penalties.index(found.best.word_penalty)
    around = [(scales[a], penalties[j]) for a in (i - 1, i + 1) if 0 <= a < len(scales)]
    around += [(scales[i], penalties[b]) for b in (j - 1, j + 1) if 0 <= b < len(penalties)]
    assert all(tried[setting] >= found.best.error_rate for setting in around)


def test_utterances_without_reference_are_named(graph, scores):
    with pytest.raises(Speech3Error, match="u3"):
        tune(graph, scores, {u: ("A",) for u, _ in scores if u != "u3"}, GRID)
    with pytest.raises(Speech3Error, match="no utterances"):
        tune(graph, [], {}, GRID)


def test_scores_are_computed_once_and_points_said(graph, scores, capsys):
    def computed():
        for utterance, scores_TP in scores:
            draws.append(utterance)
            yield utterance, scores_TP

    draws = []
    found = tune(graph, computed(), {u: ("A",) for u, _ in scores}, GRID)
    assert len(found.table) > 2 and draws == [utterance for utterance, _ in scores]
    said = dict(
        line.strip().removesuffix(" (from lattices)").split(": ")
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("  acoustic scale ")
    )
    for p in found.table:  # a point may be printed several times; the last time counts, unless it was searched before
        point = f"acoustic scale {p.acoustic_scale:g}, word penalty {p.word_penalty:g}"
        assert point in said
    best = f"acoustic scale {found.best.acoustic_scale:g}, word penalty {found.best.word_penalty:g}"
    assert said[best] == f"{100 * found.best.error_rate:.2f} %"


def test_the_error_rate_of_the_chosen_point_is_that_of_a_search(graph, scores, monkeypatch):
    """Lattices are made at a few points only, and never at the same one twice."""
    made, seen = [], []
    original = module.lattices

    def counted(graph, scores, config, setting, jobs):
        made.append(setting)
        return original(graph, scores, config, setting, jobs)

    monkeypatch.setattr(module, "lattices", counted)
    scales, penalties = tuple(0.1 * 1.3**n for n in range(9)), tuple(map(float, range(-5, 6)))
    config = GRID.model_copy(update={"acoustic_scales": scales, "word_penalties": penalties})
    for scale, penalty in ((0.3, 1.0), (0.15, -2.0), (0.6, 0.0)):
        made.clear()
        noisy = [(utterance, scores_TP + random_noise(utterance)) for utterance, scores_TP in scores]
        truth = {h.utterance: h.words or ("nothing",) for h in decode(graph, noisy, GRID, scale, penalty).hypotheses}
        best = tune(graph, scores, truth, config).best
        setting = best.acoustic_scale, best.word_penalty
        searched = error_rate_of(truth, decode(graph, scores, config, *setting, tolerant=True).words, jiwer.wer)
        assert best.error_rate == searched
        seen.append(searched)
        assert setting in made and len(made) == len(set(made)) <= 6
        rates = [
            error_rate_of(truth, decode(graph, scores, config, scale, penalty, tolerant=True).words, jiwer.wer)
            for scale in scales
            for penalty in penalties
        ]
        assert best.error_rate <= np.quantile(rates, 0.25), "among the best of the grid"
    assert max(seen) > 0.1


def random_noise(utterance: str) -> np.ndarray:
    noise = np.random.default_rng(int(utterance[1:])).normal(0, 3.0, (40, toys.toy_hmm().num_pdfs))
    return noise.astype(np.float32)


@pytest.mark.parametrize("in_memory", [10**9, 1])
def test_kept_scores_are_the_same_each_time(in_memory, monkeypatch):
    monkeypatch.setattr(module, "_MAX_BYTES", in_memory)
    rng = np.random.default_rng(0)
    scores = {f"u{n}": rng.standard_normal((n, 3)).astype(np.float32) for n in (4, 0, 7)}
    kept = module._KeptScores(iter(scores.items()))
    for _ in range(3):
        again = dict(kept)
        assert list(again) == list(scores)
        for utterance, scores_TP in scores.items():
            np.testing.assert_array_equal(again[utterance], scores_TP)


def test_the_file_of_scores_is_closed_after_an_error_too(graph, scores, monkeypatch):
    kept = module._KeptScores(scores)
    monkeypatch.setattr(module, "_KeptScores", lambda given: kept)
    with pytest.raises(Speech3Error, match="dev: no words"):
        tune(graph, scores, {}, GRID)
    assert kept._file.closed


def test_what_was_found_at_the_best_point(graph, scores):
    truth = {h.utterance: h.words or ("nothing",) for h in decode(graph, scores, GRID, 0.5, -6.0).hypotheses}
    found = tune(graph, scores, truth, GRID)
    best = decode(graph, scores, GRID, found.best.acoustic_scale, found.best.word_penalty)
    assert found.words == {h.utterance: h.words for h in best.hypotheses}


def test_a_best_point_at_the_edge_of_the_grid_is_said(graph, scores, capsys):
    truth = {h.utterance: h.words for h in decode(graph, scores, GRID, 0.5, -6.0).hypotheses}
    tune(graph, scores, {utterance: words or ("nothing",) for utterance, words in truth.items()}, GRID)
    said = capsys.readouterr().err
    assert "the best word penalty, -6, is on the edge of the grid decode.word_penalties; add values beyond it" in said
    assert "the best acoustic scale" not in said
    truth = {h.utterance: h.words for h in decode(graph, scores, GRID, 2.5, 0.0).hypotheses}
    tune(graph, scores, {utterance: words or ("nothing",) for utterance, words in truth.items()}, GRID)
    said = capsys.readouterr().err
    assert (
        "the best acoustic scale, 2.5, is on the edge of the grid decode.acoustic_scales; add values beyond it" in said
    )
    assert "the best word penalty" not in said


def test_pseudo_likelihoods_have_a_grid_of_their_own(graph, scores, capsys):
    truth = {h.utterance: h.words or ("nothing",) for h in decode(graph, scores, GRID, 4.0, 0.0).hypotheses}
    config = GRID.model_copy(update={"lfmmi_acoustic_scales": (1.0, 2.0, 4.0)})
    found = tune(graph, scores, truth, config, pseudo_likelihoods=True)
    assert {p.acoustic_scale for p in found.table} <= {1.0, 2.0, 4.0}
    assert found.best.acoustic_scale == 4.0
    assert "is on the edge of the grid decode.lfmmi_acoustic_scales" in capsys.readouterr().err


def test_utterances_are_drawn_until_they_last_long_enough():
    lengths_s = {f"u{n:03d}": 1.0 + n % 7 for n in range(300)}
    found = drawn(lengths_s, 5.0)
    together_s = sum(lengths_s[utterance] for utterance in found)
    assert 300.0 <= together_s < 307.0 and found == sorted(set(found))
    assert drawn(dict(reversed(lengths_s.items())), 5.0) == found[::-1], "the same ones, whatever their order"
    spread = np.array([int(utterance[1:]) for utterance in found])
    assert 120 < spread.mean() < 180, "from all parts"
    assert drawn(lengths_s, 1000.0) == list(lengths_s)
    assert len(drawn(lengths_s, 0.001)) == 1
    assert drawn({}, 10.0) == []
