"""Pieces joined into words, and silence between words only."""

import kaldifst
import numpy as np

from speech3.decode.grammar import are_pieces, join_segments, join_words, lexicon_fst
from speech3.hmm.alignment.times import Segment
from speech3.hmm.model import monophone_tree
from speech3.io.fst import to_kaldifst
from speech3.language.lexicon import Lexicon, Pronunciation, Silences


def test_joined() -> None:
    assert join_words(("▁hel", "lo", "▁world")) == ("hello", "world")
    assert join_words(("lo", "▁world")) == ("lo", "world")
    assert join_words(()) == ()
    assert are_pieces(("<eps>", "lo", "▁hel", "#0"))
    assert not are_pieces(("<eps>", "LO", "#0"))
    assert are_pieces(("<eps>", "LO", "l￭", "￭o", "#0"))
    assert join_words(("LO", "l￭", "￭a￭", "￭o", "LO", "LO"), "￭") == ("LO", "lao", "LO", "LO")
    assert join_words(("lo", "hel"), "▁") == ("lohel",)


def test_times_are_merged() -> None:
    pieces = [Segment(0.1, 0.3, "▁hel"), Segment(0.3, 0.5, "lo"), Segment(0.7, 0.9, "▁world")]
    assert join_segments(pieces) == [Segment(0.1, 0.5, "hello"), Segment(0.7, 0.9, "world")]


def cost(fst: "kaldifst.StdVectorFst", ids: list[int]) -> float:
    """Cost of the best way to read these phones, disambiguation symbols read as nothing."""
    acceptor = kaldifst.make_linear_acceptor(ids)
    best = kaldifst.shortest_path(kaldifst.compose(acceptor, fst))
    if best.num_states == 0:
        return float("inf")
    found, _, _, weight = kaldifst.get_linear_symbol_sequence(best)
    assert found
    return float(weight.value)


def test_no_silence_within_a_word_and_no_charge_for_that() -> None:
    pieces = (Pronunciation("▁a", ("a",)), Pronunciation("b", ("b",)), Pronunciation("▁ab", ("c",)))
    lexicon = Lexicon(pieces, silence_prob=0.2)
    words = ("<eps>", "▁a", "b", "▁ab", "#0")
    classes = monophone_tree(np.arange(len(lexicon.phones))).phone_classes
    fst = to_kaldifst(lexicon_fst(lexicon, words, classes)[0])
    kaldifst.arcsort(fst, sort_type="ilabel")
    sil, a, b, c = (lexicon.phone_ids[phone] for phone in ("SIL", "a", "b", "c"))
    whole = cost(fst, [c])
    assert abs(cost(fst, [a, b]) - whole) < 1e-5  # the same silences to choose: before and after
    assert cost(fst, [a, sil, b]) == float("inf")
    assert cost(fst, [sil, a, b, sil]) < float("inf")
    assert cost(fst, [a, b, sil, a]) < float("inf")
    assert cost(fst, [sil, b]) == float("inf")


def test_estimated_silences_are_not_charged_within_a_word_either() -> None:
    # Sentences mostly begin with silence (0.9), words are seldom followed by it; "b" is a word of the text as well.
    asked = Silences(0.3, 1.5, 0.4)
    pieces = (
        Pronunciation("▁a", ("a",), silences=Silences(0.1, 0.5, 1.2)),
        Pronunciation("b", ("b",), silences=asked),
        Pronunciation("▁ab", ("c",), silences=Silences(0.3, 0.5, 1.2)),
    )
    lexicon = Lexicon(pieces, silence_prob=0.9, end=Silences(0.9, 2.0, 0.1))
    words = ("<eps>", "▁a", "b", "▁ab", "#0")
    classes = monophone_tree(np.arange(len(lexicon.phones))).phone_classes
    fst = to_kaldifst(lexicon_fst(lexicon, words, classes)[0])
    kaldifst.arcsort(fst, sort_type="ilabel")
    sil, a, b, c = (lexicon.phone_ids[phone] for phone in ("SIL", "a", "b", "c"))
    for before, after in (([], []), ([sil], []), ([], [sil]), ([sil], [sil])):
        assert abs(cost(fst, [*before, a, b, *after]) - cost(fst, [*before, c, *after])) < 1e-5
    assert cost(fst, [a, sil, b]) == float("inf")


def test_a_word_is_as_sure_as_its_least_sure_piece():
    pieces = [Segment(0.0, 0.2, "▁he", 0.9), Segment(0.2, 0.3, "l", 0.4), Segment(0.3, 0.5, "▁wor", 0.7)]
    assert join_segments(pieces) == [Segment(0.0, 0.3, "hel", 0.4), Segment(0.3, 0.5, "wor", 0.7)]
