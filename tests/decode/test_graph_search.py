"""The graph and the search together, compared with an enumeration of all possible sentences."""

import numpy as np
import pytest
import toys

from speech3.config import DecodeConfig
from speech3.decode import search
from speech3.decode.grammar import one_word_grammar
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.search import decode, lattices
from speech3.errors import DataError, Speech3Error
from speech3.hmm.model import Hmm, monophone_tree
from speech3.language.kneser_ney import estimate_lm
from speech3.language.lexicon import Lexicon, Pronunciation

WIDE = DecodeConfig(beam=500.0, max_active=100000)
FRAMES = 13  # room for four one-phone words


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Build each toy recogniser once: (context, order of the LM or the grammar) to (hmm, graph, costs of sentences)."""
    made = {}

    def make(context, lm):
        if (context, lm) not in made:
            hmm = toys.toy_hmm(context=context)
            out = tmp_path_factory.mktemp("graph")
            if lm == "one-word":
                grammar = one_word_grammar(hmm.lexicon)
                language = {(word,): np.log(4) for word in ("A", "AB", "BA", "BA2")}
            else:
                grammar = toys.bigram(lm)
                language = toys.sentences(grammar, FRAMES // 3)
            build_graph(hmm, grammar, out, toys.SCALE)
            made[context, lm] = hmm, load_graph(out), language
        return made[context, lm]

    return make


@pytest.mark.parametrize("lm", [1, 2, 3, "one-word"])
@pytest.mark.parametrize("context", [False, True], ids=["monophones", "triphones"])
def test_best_path_is_that_of_an_exhaustive_search(toy, context, lm):
    hmm, graph, language = toy(context, lm)
    winners = set()
    for seed in range(5):
        scores_TP = toys.random_scores(hmm, FRAMES, seed)
        (found,) = decode(graph, [("u", scores_TP)], WIDE, 0.4).hypotheses
        costs = toys.exhaustive(hmm, language, np.float32(0.4) * scores_TP)
        best = min(costs, key=costs.__getitem__)
        winners.add(best)
        assert found.reached_final
        assert found.cost == pytest.approx(costs[best], abs=2e-3)
        assert costs[found.words] == pytest.approx(costs[best], abs=2e-3)
    assert len(winners) > 1, "the seeds should make different sentences win"


@pytest.mark.parametrize("scale", [0.0, 0.4, 1.0])
def test_transitions_count_as_much_as_the_scale_says(tmp_path, scale):
    hmm, lm = toys.toy_hmm(context=True), toys.bigram()
    assert build_graph(hmm, lm, tmp_path, scale)["self_loop_scale"] == scale
    graph, language = load_graph(tmp_path), toys.sentences(lm, FRAMES // 3)
    for seed in range(3):
        scores_TP = toys.random_scores(hmm, FRAMES, seed)
        (found,) = decode(graph, [("u", scores_TP)], WIDE, 0.4).hypotheses
        best, usual = (
            min(toys.exhaustive(hmm, language, np.float32(0.4) * scores_TP, s).values()) for s in (scale, toys.SCALE)
        )
        assert found.cost == pytest.approx(best, abs=2e-3)
        assert abs(best - usual) > 0.1, "at another scale the best path costs something else"


@pytest.mark.parametrize("context", [False, True], ids=["monophones", "triphones"])
def test_words_may_have_silences_of_their_own(tmp_path, context):
    hmm, lm = toys.toy_hmm(toys.SILENCES, context), toys.bigram()
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    graph, language = load_graph(tmp_path), toys.sentences(lm, FRAMES // 3)
    for seed in range(5):
        scores_TP = toys.random_scores(hmm, FRAMES, seed)
        (found,) = decode(graph, [("u", scores_TP)], WIDE, 0.4).hypotheses
        costs = toys.exhaustive(hmm, language, np.float32(0.4) * scores_TP)
        assert found.cost == pytest.approx(min(costs.values()), abs=2e-3)


def test_words_that_share_all_their_pdfs_are_distinguished_by_the_language_model(tmp_path):
    # Like two words that differ only in stress, or in positions of phones, with a tree that asks about neither.
    lexicon = Lexicon((Pronunciation("A", ("a0", "b")), Pronunciation("B", ("a1", "b")), Pronunciation("C", ("a1",))))
    tree = monophone_tree(np.array([0, 1, 1, 2]))  # SIL, a0 and a1, b
    assert tree.phone_classes.tolist() == [0, 1, 2, 2, 4]
    hmm, lm = (
        Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5)),
        estimate_lm([["A", "C", "B"], ["C"], ["B", "A"], ["A"]], 2),
    )
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    language = toys.sentences(lm, 3)
    for seed in range(5):
        scores_TP = toys.random_scores(hmm, FRAMES, seed)
        (found,) = decode(load_graph(tmp_path), [("u", scores_TP)], WIDE, 0.4).hypotheses
        costs = toys.exhaustive(hmm, language, np.float32(0.4) * scores_TP)
        assert costs[found.words] == pytest.approx(min(costs.values()), abs=2e-3)


def test_word_penalty_is_a_cost_of_each_word(toy):
    hmm, graph, _ = toy(True, 2)
    lengths = []
    for penalty in (-4.0, 0.0, 4.0):
        language = toys.sentences(toys.bigram(), FRAMES // 3, penalty)
        scores_TP = toys.random_scores(hmm, FRAMES, 1)
        (found,) = decode(graph, [("u", scores_TP)], WIDE, 0.3, penalty).hypotheses
        costs = toys.exhaustive(hmm, language, np.float32(0.3) * scores_TP)
        assert found.cost == pytest.approx(min(costs.values()), abs=2e-3)
        lengths.append(len(found.words))
    assert lengths[0] > lengths[2]


def test_silence_in_the_lexicon_is_distinguished_from_optional_silence(tmp_path):
    lexicon = Lexicon((Pronunciation("A", ("a",)), Pronunciation("B", ("b",)), Pronunciation("C", ("SIL", "a"))), 0.4)
    hmm, lm = toys.toy_hmm(lexicon, context=True), estimate_lm([["A", "C", "B"], ["C"], ["B", "A"], ["A"]], 2)
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    scores_TP = toys.random_scores(hmm, FRAMES, 3)
    (found,) = decode(load_graph(tmp_path), [("u", scores_TP)], WIDE, 1.0).hypotheses
    costs = toys.exhaustive(hmm, toys.sentences(lm, 4), scores_TP)
    assert found.cost == pytest.approx(min(costs.values()), abs=2e-3)


def test_threads_give_what_one_thread_gives_in_order(toy):
    hmm, graph, _ = toy(True, 2)
    scores = [(f"u{seed}", toys.random_scores(hmm, 20 + seed, seed)) for seed in range(9)]
    alone, together = (decode(graph, iter(scores), WIDE, 0.3, 0.5, jobs) for jobs in (1, 2))
    assert [h.utterance for h in together.hypotheses] == [name for name, _ in scores]
    assert [(h.words, h.cost) for h in together.hypotheses] == [(h.words, h.cost) for h in alone.hypotheses]


def test_utterances_whose_search_dies_are_reported(toy):
    hmm, graph, _ = toy(False, "one-word")
    good = toys.random_scores(hmm, 20, 0)
    dead = good.copy()
    dead[10] = -np.inf
    bad = [("short", good[:2]), ("none", good[:0]), ("dead", dead)]
    fine = [(f"good{number}", good) for number in range(57)]
    decoding = decode(graph, [*bad, *fine], WIDE, 1.0)
    assert [h.utterance for h in decoding.hypotheses] == [name for name, _ in fine]
    assert list(decoding.failed) == ["short", "none", "dead"]
    assert "no frames" in decoding.failed["none"]
    with pytest.raises(DataError, match="3 of 59 utterances could not be decoded, more than"):
        decode(graph, [*bad, *fine[1:]], WIDE, 1.0)
    with pytest.raises(Speech3Error, match="dead: no path survived"):
        decode(graph, [("dead", dead)], WIDE, 1.0)
    with pytest.raises(Speech3Error, match="no utterances"):
        decode(graph, [], WIDE, 1.0)


def test_scores_that_would_crash_the_decoder_are_refused(toy):
    hmm, graph, _ = toy(False, 2)
    scores_TP = toys.random_scores(hmm, 20, 0)
    with pytest.raises(Speech3Error, match=r"utt7.*8\).*9 pdfs"):
        decode(graph, [("utt7", scores_TP[:, :-1])], WIDE, 1.0)
    for bad in (np.nan, np.inf):
        broken = scores_TP.copy()
        broken[3, 4] = bad
        with pytest.raises(Speech3Error, match=r"utt8: .*NaN or infinite"):
            decode(graph, [("utt8", broken)], WIDE, 1.0)


def test_one_utterance_whose_scores_are_no_numbers_is_left_out(toy):
    hmm, graph, _ = toy(False, 2)
    scores = [(f"u{seed:02}", toys.random_scores(hmm, 20, seed)) for seed in range(30)]
    scores[7][1][3, 4] = np.nan
    for jobs in (1, 2):
        found = decode(graph, scores, WIDE, 1.0, 0.0, jobs, confidences=True)
        assert len(found.hypotheses) == 29 and list(found.failed) == ["u07"]
        assert "NaN or infinite" in found.failed["u07"]
    words = decode(graph, scores, WIDE, 1.0, tolerant=True).words
    assert words["u07"] == () and all(each for key, each in words.items() if key != "u07")
    assert [key for key, each in lattices(graph, scores, WIDE, (1.0, 0.0)) if each is None] == ["u07"]
    broken = [(key, np.full_like(scores_TP, np.nan)) for key, scores_TP in scores]
    for searched in (
        lambda: decode(graph, broken, WIDE, 1.0),
        lambda: decode(graph, broken, WIDE, 1.0, tolerant=True),
        lambda: list(lattices(graph, broken, WIDE, (1.0, 0.0))),
    ):
        with pytest.raises(Speech3Error, match=r"30 of 30 utterances .*(?s:.*)training diverged"):
            searched()


def test_confidences_are_of_the_words_and_change_nothing_else(toy, monkeypatch):
    hmm, graph, language = toy(True, 2)
    scores = [(f"u{seed}", toys.random_scores(hmm, FRAMES, seed)) for seed in range(6)]
    plain = decode(graph, scores, WIDE, 0.4).hypotheses
    assert {h.confidences for h in plain} == {None}
    for jobs in (1, 2):
        found = decode(graph, scores, WIDE, 0.4, 0.0, jobs, confidences=True).hypotheses
        assert [(h.words, h.cost) for h in found] == [(h.words, h.cost) for h in plain]
        assert all(len(h.confidences) == len(h.units) for h in found)
        sure = [each for h in found for each in h.confidences]
        assert 0 <= min(sure) < 0.6 < 0.8 < max(sure) <= 1
    costs = toys.exhaustive(hmm, language, np.float32(0.4) * scores[0][1])
    near = {said: np.exp(min(costs.values()) - cost) for said, cost in costs.items()}
    one = sum(share for said, share in near.items() if plain[0].words[0] in said) / sum(near.values())
    assert found[0].confidences[0] == pytest.approx(one, abs=0.15), "nearly the share of sentences that have the word"
    monkeypatch.setattr(search, "_MAX_FRAMES", FRAMES - 1)
    assert {h.confidences for h in decode(graph, scores, WIDE, 0.4, confidences=True).hypotheses} == {None}
    monkeypatch.setattr(search, "_MAX_FRAMES", FRAMES)
    monkeypatch.setattr(search, "_MAX_CELLS", 0)
    assert {h.confidences for h in decode(graph, scores, WIDE, 0.4, confidences=True).hypotheses} == {None}
