"""Graphs of phones of a first and a loop pdf against an exhaustive enumeration, and against a reader of pdfs."""

import numpy as np
import pytest
import toys

from speech3.config import DecodeConfig
from speech3.decode.grammar import one_word_grammar
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.search import decode
from speech3.hmm.model import Hmm
from speech3.language.lexicon import Lexicon

WIDE = DecodeConfig(beam=500.0, max_active=100000)
FRAMES = 4  # room for as many one-phone words
CONTEXTS = pytest.mark.parametrize("context", [False, True], ids=["monophones", "left-biphones"])


def costs_match(hmm: Hmm, graph, language, frames: int, seeds: int) -> set[tuple[str, ...]]:
    """Compare the best path's cost with that of all sentences; returns the sentences that won."""
    winners = set()
    for seed in range(seeds):
        scores_TP = toys.random_scores(hmm, frames, seed)
        (found,) = decode(graph, [("u", scores_TP)], WIDE, 0.4).hypotheses
        costs = toys.exhaustive(hmm, language, np.float32(0.4) * scores_TP)
        best = min(costs, key=costs.__getitem__)
        winners.add(best)
        assert found.reached_final
        assert found.cost == pytest.approx(costs[best], abs=2e-3)
        assert costs[found.words] == pytest.approx(costs[best], abs=2e-3)
    return winners


@CONTEXTS
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("lexicon", [toys.LEXICON, toys.SILENCES], ids=["plain", "silences"])
def test_best_path_is_that_of_an_exhaustive_search(tmp_path, context: bool, order: int, lexicon: Lexicon) -> None:
    hmm, lm = toys.first_and_loop_hmm(lexicon, context), toys.bigram(order)
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    winners = costs_match(hmm, load_graph(tmp_path), toys.sentences(lm, FRAMES), FRAMES, 5)
    assert len(winners) > 1, "the seeds should make different sentences win"


@CONTEXTS
@pytest.mark.parametrize("frames", [1, 2, 9])
def test_long_and_short_phones(tmp_path, context: bool, frames: int) -> None:
    hmm = toys.first_and_loop_hmm(context=context)
    build_graph(hmm, one_word_grammar(hmm.lexicon), tmp_path, toys.SCALE)
    costs_match(hmm, load_graph(tmp_path), {(word,): np.log(4) for word in ("A", "AB", "BA", "BA2")}, frames, 6)


def test_self_loop_scale_is_not_used(tmp_path) -> None:
    hmm = toys.first_and_loop_hmm()
    abouts = [build_graph(hmm, toys.bigram(), tmp_path / str(scale), scale) for scale in (0.1, 1.0)]
    assert all(about["self_loop_scale"] is None for about in abouts)
    one, other = (load_graph(tmp_path / str(scale)).fst for scale in (0.1, 1.0))
    np.testing.assert_array_equal(one.arcs_A, other.arcs_A)


def test_first_pdfs_are_never_stayed_in(tmp_path) -> None:
    hmm = toys.first_and_loop_hmm()
    build_graph(hmm, toys.bigram(), tmp_path, toys.SCALE)
    fst = load_graph(tmp_path).fst
    loops_A = fst.arcs_A[fst.source_A == fst.arcs_A["nextstate"]]
    windows = [(x, y, z) for x in range(4) for y in range(1, 4) for z in range(4)]
    assert set((loops_A["ilabel"] - 1).tolist()) <= {hmm.pdfs(*window)[1] for window in windows}
    assert (loops_A["weight"] == 0).all()
