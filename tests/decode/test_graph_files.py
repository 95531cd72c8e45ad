"""Graph files: what is written, and what is refused before kaldi-decoder sees it."""

import json

import numpy as np
import pytest
import toys

from speech3.decode.grammar import from_arpa, one_word_grammar
from speech3.decode.graph import Units, add_self_loops, build_graph, load_graph
from speech3.errors import Speech3Error
from speech3.io.fst import ARC, Fst, FstBuilder, from_kaldifst, read_fst, to_kaldifst, write_fst
from speech3.language.kneser_ney import estimate_lm
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.language.ngrams import from_ngrams


@pytest.fixture
def graph_dir(tmp_path):
    build_graph(toys.toy_hmm(), toys.bigram(), tmp_path, toys.SCALE)
    return tmp_path


def some_fst():
    builder = FstBuilder()
    first, second = builder.state(), builder.state(final=0.25)
    builder.arc(second, first, 3, 0, 1.5)
    builder.chain(first, second, [1, 2], 7, 0.5)
    return builder.fst()


def test_openfst_reads_what_we_write_and_the_reverse(tmp_path):
    import kaldifst

    text = to_kaldifst(some_fst()).to_str().split()
    same = kaldifst.compile("0 2 1 7 0.5\n2 1 2 0\n1 0 3 0 1.5\n1 0.25\n", keep_state_numbering=True)
    assert sorted(text) == sorted(same.to_str().split())
    back = from_kaldifst(to_kaldifst(some_fst()))
    write_fst(some_fst(), tmp_path / "a.fst")
    again = read_fst(tmp_path / "a.fst")
    for one in (back, again):
        assert np.array_equal(one.source_A, [0, 1, 2])
        assert one.arcs_A.tolist() == [(1, 7, 0.5, 2), (3, 0, 1.5, 0), (2, 0, 0.0, 1)]
        assert one.final_S.tolist() == [np.inf, 0.25, np.inf]


def test_graph_json_lists_what_was_left_out(tmp_path):
    lm = estimate_lm([["A", "ZEBRA", "AB"], ["QUAGGA", "A"], ["A", "AB"]], 2)
    about = build_graph(toys.toy_hmm(), lm, tmp_path, toys.SCALE)
    assert about["dropped"] == ["ZEBRA", "QUAGGA"]
    assert about == json.loads((tmp_path / "graph.json").read_text())
    graph = load_graph(tmp_path)
    assert graph.words == ("<eps>", "A", "AB", "#0")
    assert (graph.num_pdfs, about["states"]) == (9, len(graph.fst.final_S))


def test_the_unknown_word_is_never_recognised(tmp_path):
    lexicon = Lexicon((*toys.LEXICON.pronunciations, Pronunciation("<unk>", ("SPN",))))
    lm = estimate_lm([["A", "ZEBRA", "AB"]], 2, [*lexicon.by_word])
    assert "<unk>" in lm.words
    for grammar in (from_arpa(lm, lexicon), from_arpa(lm, toys.LEXICON), one_word_grammar(lexicon)):
        assert "<unk>" not in (*grammar.words, *grammar.dropped)


def test_language_models_without_use_are_refused(tmp_path):
    with pytest.raises(Speech3Error, match=r"Kneser-Ney: none of its 2 words \(a, ab"):
        build_graph(toys.toy_hmm(), estimate_lm([["a", "ab"]], 2), tmp_path, toys.SCALE)
    endless = from_ngrams(({("<s>",): (-99.0, 0.0), ("</s>",): (-99.0, 0.0), ("A",): (0.0, 0.0)},), "endless.arpa")
    with pytest.raises(Speech3Error, match=r"endless\.arpa: no sentence can end"):
        build_graph(toys.toy_hmm(), endless, tmp_path, toys.SCALE)
    assert not list(tmp_path.iterdir())


def test_impossible_endings_leave_an_empty_graph_which_is_refused(tmp_path):
    ngrams = {("<s>",): (-99.0, -99.0), ("</s>",): (0.0, 0.0), ("A",): (-1.0, 0.0)}, {("A", "A"): (-1.0, 0.0)}
    with pytest.raises(Speech3Error, match=r"cut\.arpa: the graph is empty"):
        build_graph(toys.toy_hmm(), from_ngrams(ngrams, "cut.arpa"), tmp_path, toys.SCALE)


@pytest.mark.parametrize("keep", [0, 10, 64, 1000, -1])
def test_a_graph_cut_short_is_refused(graph_dir, keep):
    path = graph_dir / "HCLG.fst"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Speech3Error, match=r"HCLG\.fst: .*cut short"):
        load_graph(graph_dir)


def test_graphs_that_would_crash_the_decoder_are_refused(graph_dir):
    fst = load_graph(graph_dir).fst

    def refused(match, start=fst.start, final_S=fst.final_S, source_A=fst.source_A, **columns):
        arcs_A = fst.arcs_A.copy()[: len(source_A)]
        for name, value in columns.items():
            arcs_A[name][0] = value
        write_fst(Fst(start, final_S, source_A, arcs_A), graph_dir / "HCLG.fst")
        with pytest.raises(Speech3Error, match=match):
            load_graph(graph_dir)

    refused("empty", start=-1)
    refused("empty", final_S=np.full_like(fst.final_S, np.inf))
    refused("empty", source_A=fst.source_A[:0])
    refused("state that does not exist", nextstate=len(fst.final_S))
    refused("ilabels range from 0 to 10", ilabel=10)
    refused("olabels range from -5", olabel=-5)
    (graph_dir / "words.txt").unlink()
    with pytest.raises(Speech3Error, match=r"words\.txt"):
        load_graph(graph_dir)
    assert ARC.itemsize == 16


def test_self_loops_only_where_a_pdf_was_just_read():
    builder = FstBuilder()
    start, middle, end = builder.state(), builder.state(), builder.state(final=1.0)
    builder.arc(start, middle, 1, 5, 0.5)
    builder.arc(middle, start, 2, 0, 0.25)  # the start is entered without reading anything, too: no loop on it
    builder.arc(middle, end, 1, 0)
    builder.arc(start, end, 2, 0)  # the end is entered by two pdfs
    pdf_U = np.arange(2)
    looped = add_self_loops(builder.fst(), Units(pdf_U, pdf_U, np.zeros(2), -0.3 * np.log([0.5, 0.2])))
    arcs = {(int(source), *arc) for source, arc in zip(looped.source_A, looped.arcs_A.tolist(), strict=True)}
    one, two = np.float32(-0.3 * np.log([0.5, 0.2])).tolist()
    before_start, by_one, by_two = 3, 4, 5
    assert arcs == {
        (start, 1, 5, 0.5, middle),
        (middle, 1, 0, one, middle),
        (middle, 2, 0, 0.25, before_start),
        (before_start, 2, 0, two, before_start),
        (before_start, 0, 0, 0.0, start),
        (middle, 1, 0, 0.0, by_one),
        (by_one, 1, 0, one, by_one),
        (by_one, 0, 0, 0.0, end),
        (start, 2, 0, 0.0, by_two),
        (by_two, 2, 0, two, by_two),
        (by_two, 0, 0, 0.0, end),
    }
    assert looped.final_S.tolist() == [np.inf, np.inf, 1.0, np.inf, np.inf, np.inf]


def test_units_of_one_loop_share_its_state():
    builder = FstBuilder()
    start, middle, end = builder.state(), builder.state(), builder.state(final=1.0)
    builder.arc(start, middle, 1, 5, 0.5)
    builder.arc(start, middle, 2, 0)  # entered otherwise, stayed in alike: one loop on the state itself
    builder.arc(middle, end, 1, 0)
    builder.arc(middle, end, 3, 0)  # stayed in otherwise: two states
    units = Units(np.array([0, 1, 2]), np.array([3, 3, 4]), np.zeros(3), np.zeros(3))
    looped = add_self_loops(builder.fst(), units)
    arcs = {(int(source), *arc) for source, arc in zip(looped.source_A, looped.arcs_A.tolist(), strict=True)}
    by_first, by_last = 3, 4
    assert arcs == {
        (start, 1, 5, 0.5, middle),
        (start, 2, 0, 0.0, middle),
        (middle, 4, 0, 0.0, middle),
        (middle, 1, 0, 0.0, by_first),
        (by_first, 4, 0, 0.0, by_first),
        (by_first, 0, 0, 0.0, end),
        (middle, 3, 0, 0.0, by_last),
        (by_last, 5, 0, 0.0, by_last),
        (by_last, 0, 0, 0.0, end),
    }
