"""Our search against Viterbi over all states in float64, and against kaldi-decoder with the same beams."""

import dataclasses
import threading

import numpy as np
import pytest
import random_graphs
import toys
from random_graphs import best_cost, pieces_of, random_graph, random_scores

from speech3.config import DecodeConfig
from speech3.decode import beam_search, token_passing as kernel
from speech3.decode.beam_search import BeamSearch, BestPath, search_graph, with_word_penalty
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.search import decode
from speech3.decode.token_passing import _smallest
from speech3.errors import Speech3Error
from speech3.io.fst import Fst, FstBuilder, write_fst

PDFS, SCALE = 5, 0.3


def searched(fst, scores_TP, beam=1e6, max_active=10**6, pieces=None, search=None) -> BestPath | None:
    search = search or BeamSearch()
    search.begin(search_graph(fst, scores_TP.shape[1], "toy"), "u", SCALE, beam, max_active)
    for piece in pieces or [slice(None)]:
        search.read(scores_TP[piece])
    return search.best_path()


@pytest.mark.parametrize("seed", range(30))
def test_the_best_path_is_that_of_a_search_of_all_states(seed):
    fst = random_graph(seed, finals=0.0 if seed % 3 == 0 else 0.3)
    for frames in (1, 2, 17):
        scores_TP = random_scores(100 + seed, frames)
        found = searched(fst, scores_TP)
        cost, final = best_cost(fst, scores_TP, SCALE)
        if not np.isfinite(cost):
            assert found is None
            continue
        assert found.reached_final == final
        assert found.cost == pytest.approx(cost, abs=1e-4)
        explained = -SCALE * scores_TP[np.arange(frames), found.pdfs_T].sum(dtype=np.float64)
        assert found.acoustic_cost == pytest.approx(explained, abs=1e-4)


def test_the_words_of_the_best_path_are_those_of_the_cheapest_of_all_paths():
    for seed in range(12):
        fst, scores_TP = random_graph(seed, states=6, finals=0.6), random_scores(seed, 4)
        (pdfs, words, cost), *_ = random_graphs.all_paths(fst, scores_TP, SCALE)
        found = searched(fst, scores_TP)
        assert (tuple(found.pdfs_T), found.olabels) == (pdfs, words)
        assert found.cost == pytest.approx(cost, abs=1e-4)


def kaldi_path(fst, scores_TP, beam, max_active, directory):
    import kaldi_decoder
    import kaldifst

    write_fst(fst, directory / "graph.fst")
    graph = kaldifst.StdConstFst.read(str(directory / "graph.fst"))
    options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=max_active)
    decoder = kaldi_decoder.FasterDecoder(graph, options)
    decoder.decode(kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores_TP * np.float32(SCALE))))
    found, path = decoder.get_best_path()
    assert found
    _, _, words, weight = kaldifst.get_linear_symbol_sequence(path)
    return weight.value1 + weight.value2, tuple(words), decoder.reached_final()


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("graph")
    build_graph(toys.toy_hmm(context=True), toys.bigram(), out, toys.SCALE)
    return load_graph(out)


@pytest.mark.parametrize(("beam", "max_active"), [(500.0, 10**6), (12.0, 10**6), (500.0, 300)])
def test_it_is_kaldi_decoder_s_with_the_same_beams(graph, tmp_path, beam, max_active):
    for seed in range(10):
        scores_TP = toys.random_scores(toys.toy_hmm(context=True), 60, seed)
        found = searched(graph.fst, scores_TP, beam, max_active)
        cost, words, final = kaldi_path(graph.fst, scores_TP, beam, max_active, tmp_path)
        assert found.reached_final == final
        assert found.cost == pytest.approx(cost, abs=1e-3)
        assert found.olabels == words


def test_what_lies_outside_the_beam_or_the_limit_is_lost():
    def cost(seed: int, beam: float, max_active: int) -> float:
        return searched(random_graph(seed, states=300), random_scores(seed, 30), beam, max_active).cost

    for narrow in ((0.7, 10**6), (1e6, 15), (1e6, 1)):
        losses = [cost(seed, *narrow) - cost(seed, 1e6, 10**6) for seed in range(10)]
        assert min(losses) > -1e-3 and max(losses) > 0.1
    near = [cost(seed, 6.0, 10**6) - cost(seed, 1e6, 10**6) for seed in range(10)]
    assert near == pytest.approx([0.0] * 10, abs=1e-3)


@pytest.mark.parametrize("sizes", [(1,), (7, 1, 30), (1000,)])
def test_frames_may_come_in_pieces(graph, sizes):
    scores_TP = toys.random_scores(toys.toy_hmm(context=True), 200, 3)
    whole = searched(graph.fst, scores_TP, 15.0, 500)
    found = searched(graph.fst, scores_TP, 15.0, 500, pieces_of(200, sizes))
    assert dataclasses.asdict(found) | {"pdfs_T": 0} == dataclasses.asdict(whole) | {"pdfs_T": 0}
    np.testing.assert_array_equal(found.pdfs_T, whole.pdfs_T)


def test_partial_results_are_those_of_the_frames_so_far(graph):
    scores_TP = toys.random_scores(toys.toy_hmm(context=True), 90, 4)
    search = BeamSearch()
    search.begin(search_graph(graph.fst, graph.num_pdfs, "toy"), "u", SCALE, 500.0, 10**6)
    for frames in (0, 30, 60, 90):
        search.read(scores_TP[search.frames : frames])
        assert search.frames == frames
        cost, final = best_cost(graph.fst, scores_TP[:frames], SCALE)
        partial = search.best_path()
        assert (partial.cost, partial.reached_final) == (pytest.approx(cost, abs=1e-3), final)
        assert len(partial.pdfs_T) == frames


def test_tokens_that_lead_nowhere_are_dropped_and_nothing_changes(graph, monkeypatch):
    scores_TP = toys.random_scores(toys.toy_hmm(context=True), 3000, 5)
    whole = searched(graph.fst, scores_TP, 15.0, 500)
    search = BeamSearch()
    monkeypatch.setattr(beam_search, "_ROOM", 4000)
    found = searched(graph.fst, scores_TP, 15.0, 500, search=search)
    assert (found.cost, found.olabels) == (whole.cost, whole.olabels)
    np.testing.assert_array_equal(found.pdfs_T, whole.pdfs_T)
    assert len(search._memory.tokens_H4) < 20_000, "3,000 frames of 100 tokens and more would not fit"


def test_one_memory_serves_many_utterances_and_graphs(graph):
    search, other = BeamSearch(), random_graph(5)
    for seed in range(6):
        fst, pdfs = (graph.fst, graph.num_pdfs) if seed % 2 else (other, PDFS)
        scores_TP = random_scores(seed, 20 + 7 * seed, pdfs)
        assert searched(fst, scores_TP, search=search).cost == searched(fst, scores_TP).cost


def test_threads_search_at_the_same_time_what_one_finds(graph):
    scores = [toys.random_scores(toys.toy_hmm(context=True), 300, seed) for seed in range(4)]
    alone = [searched(graph.fst, scores_TP, 15.0, 500).cost for scores_TP in scores]
    found = [0.0] * 4

    def work(index: int) -> None:
        found[index] = searched(graph.fst, scores[index], 15.0, 500).cost

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_a_frame_that_no_path_reads_ends_the_search(graph):
    scores_TP = toys.random_scores(toys.toy_hmm(context=True), 30, 0)
    scores_TP[10] = -np.inf
    search = BeamSearch()
    search.begin(search_graph(graph.fst, graph.num_pdfs, "toy"), "u", SCALE, 15.0, 100)
    search.read(scores_TP)
    assert not search.alive and search.best_path() is None
    search.read(scores_TP)  # in pieces, more of them may come
    assert search.best_path() is None


def test_a_part_of_the_pdfs_may_be_impossible(graph):
    scores_TP = toys.random_scores(toys.toy_hmm(context=True), 30, 0)
    best = searched(graph.fst, scores_TP)
    scores_TP[12, best.pdfs_T[12]] = -np.inf
    found = searched(graph.fst, scores_TP)
    assert found.pdfs_T[12] != best.pdfs_T[12] and found.cost > best.cost


def test_scores_that_are_all_alike_leave_the_graph_to_decide(graph):
    scores_TP = np.zeros((12, graph.num_pdfs), np.float32)
    assert searched(graph.fst, scores_TP).cost == pytest.approx(best_cost(graph.fst, scores_TP, SCALE)[0], abs=1e-4)


def test_bad_scores_are_refused_with_the_utterance(graph):
    search = BeamSearch()
    search.begin(search_graph(graph.fst, graph.num_pdfs, "toy"), "utt3", SCALE, 15.0, 100)
    good = toys.random_scores(toys.toy_hmm(context=True), 5, 0)
    for bad in (good[:, :-1], good[0], np.where(good > 1, np.nan, good), np.where(good > 1, np.inf, good)):
        with pytest.raises(Speech3Error, match="utt3: "):
            search.read(bad)
    search.read(good)
    assert search.best_path().cost == searched(graph.fst, good, 15.0, 100).cost, "what was refused was not read"


def with_arcs(fst: Fst, **columns) -> Fst:
    arcs_A = fst.arcs_A.copy()
    for name, value in columns.items():
        arcs_A[name][3] = value
    return dataclasses.replace(fst, arcs_A=arcs_A)


def test_graphs_that_would_break_the_search_are_refused():
    fst = random_graph(0)
    for bad, message in [
        (Fst(-1, fst.final_S[:0], fst.source_A[:0], fst.arcs_A[:0]), "empty or has no final state"),
        (dataclasses.replace(fst, start=12), "empty or has no final state"),
        (dataclasses.replace(fst, final_S=np.full(12, np.inf, np.float32)), "empty or has no final state"),
        (dataclasses.replace(fst, final_S=np.full(12, np.nan, np.float32)), "not a finite number"),
        (with_arcs(fst, ilabel=PDFS + 1), "ilabels range from 0 to 6, but there are 6"),
        (with_arcs(fst, ilabel=-1), "ilabels range from -1"),
        (with_arcs(fst, nextstate=12), "next states range"),
        (with_arcs(fst, weight=np.nan), "not a finite number"),
        (with_arcs(fst, weight=np.inf), "not a finite number"),
    ]:
        with pytest.raises(Speech3Error, match=f"the/graph: .*{message}"):
            search_graph(bad, PDFS, "the/graph")


def test_arcs_that_read_nothing_may_not_go_round_in_a_circle():
    builder = FstBuilder()
    for final in (np.inf, np.inf, 0.0):
        builder.state(final)
    for source, target, ilabel in ((0, 1, 0), (1, 0, 0), (1, 2, 1)):
        builder.arc(source, target, ilabel, 0, -1.0)
    with pytest.raises(Speech3Error, match="form a cycle"):
        search_graph(builder.fst(), 1, "toy")


def test_a_long_row_of_silent_arcs_that_get_cheaper_late():
    """Each shortcut is found before the cheaper way round, which changes all that was reached by it."""
    builder, states = FstBuilder(), 40
    for state in range(states):
        builder.state(0.0 if state == states - 1 else np.inf)
    builder.arc(0, 0, 1, 0)
    for state in range(states - 1):
        builder.arc(state, state + 1, 0, 0, 1.0)
        for further in range(state + 2, min(state + 6, states)):
            builder.arc(state, further, 0, 0, 1.0 + (further - state))
    fst, scores_TP = builder.fst(), np.zeros((3, 1), np.float32)
    cost = best_cost(fst, scores_TP, SCALE)[0]
    assert searched(fst, scores_TP).cost == pytest.approx(cost, abs=1e-4)


def test_silent_arcs_to_tokens_that_were_followed_already(monkeypatch):
    """Ten states are followed before an eleventh is, which has cheaper ways to them; and there is room for one of them.

    Where there is no room to remember which tokens became cheaper, all are followed again.
    """
    builder = FstBuilder()
    for _ in range(12):
        builder.state()
    end = builder.state(0.0)
    builder.arc(0, 0, 1, 0, 0.3)
    for state in range(1, 12):
        builder.arc(0, state, 0, 0, 20.0 + state if state < 11 else 1.0)
    for state in range(1, 11):
        builder.arc(11, state, 0, 0, 2.0 + 0.1 * state)
        builder.arc(state, end, 0, state, 1.0)
    fst, scores_TP = builder.fst(), np.zeros((3, 1), np.float32)
    cost = best_cost(fst, scores_TP, SCALE)[0]
    assert searched(fst, scores_TP).cost == pytest.approx(cost, abs=1e-4)
    new_tokens, made = kernel.new_tokens, []

    def little_room(states: int, room: int) -> kernel.Tokens:
        made.append(np.full(9, -7, np.int32))
        return new_tokens(states, room)._replace(work_S=made[-1][4:5])

    monkeypatch.setattr(kernel, "new_tokens", little_room)
    assert searched(fst, scores_TP).cost == pytest.approx(cost, abs=1e-4)
    assert (np.delete(made[-1], 4) == -7).all() and made[-1][4] != -7, "its one place is used, and nothing beside it"


def test_the_word_penalty_is_a_cost_of_each_word_and_leaves_the_graph_alone(graph):
    arranged = search_graph(graph.fst, graph.num_pdfs, "toy")
    before = arranged.weight_A4.copy()
    charged = with_word_penalty(arranged, 2.5)
    words_A = arranged.arcs_A4[:, 1] > 0
    np.testing.assert_allclose(charged.weight_A4[:, 2] - before[:, 2], 2.5 * words_A, atol=1e-6)
    np.testing.assert_array_equal(charged.arcs_A4[:, [0, 1, 3]], arranged.arcs_A4[:, [0, 1, 3]])
    np.testing.assert_array_equal(arranged.arcs_A4.view(np.float32)[:, 2], before[:, 2])
    assert with_word_penalty(arranged, 0.0) is arranged


def test_a_stopped_decoding_ends_its_threads(graph):
    def scores():
        yield from ((f"u{n}", toys.random_scores(toys.toy_hmm(context=True), 50, n)) for n in range(7))
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        decode(graph, scores(), DecodeConfig(), 0.3, jobs=2)
    assert threading.active_count() == before


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("different", [2, 1000])
def test_the_value_of_a_rank_is_that_of_sorting(count: int, different: int) -> None:
    values = np.random.default_rng(count).integers(0, different, count).astype(np.float32)
    values[:1] = np.inf
    for rank in {0, count // 3, count // 2, count - 1}:
        assert _smallest(np.append(values, np.float32(-1)), count, rank) == np.sort(values)[rank]
