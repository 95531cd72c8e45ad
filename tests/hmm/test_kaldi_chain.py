"""Phones of a first and a loop pdf for Kaldi: its chain topology, and a tree of left biphones."""

import itertools
from pathlib import Path

import numpy as np
from kaldi_dirs import answer
from small_language import asking

from speech3.hmm.kaldi.convert import export_kaldi
from speech3.hmm.kaldi.model import read_transition_model, read_tree
from speech3.hmm.model import FIRST_AND_LOOP, LEFT, Hmm
from speech3.language.lexicon import Lexicon


def test_tree_and_transitions(lexicon: Lexicon, hmm: Hmm, tmp_path: Path) -> None:
    phones = len(lexicon.phones)
    tree = asking(LEFT, phones, 2, (0, 1, 3))
    biphones = Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5), FIRST_AND_LOOP, 3)
    export_kaldi(biphones, tmp_path)
    theirs, model = read_tree(tmp_path / "tree"), read_transition_model(tmp_path / "final.mdl")
    assert (theirs.width, theirs.centre, theirs.num_pdfs, model.num_pdfs) == (2, 1, tree.num_pdfs, tree.num_pdfs)
    for window in itertools.product(range(phones + 1), range(1, phones + 1)):
        assert tuple(answer(theirs, window, state) for state in range(2)) == tree.pdfs(*window, 0)
    # One transition-state for each pair of pdfs that a left neighbour can make, in Kaldi's order.
    pairs = {(phone, 0, *tree.pdfs(left, phone, 0)) for left in range(phones + 1) for phone in range(1, phones + 1)}
    assert [tuple(row) for row in model.tuples.tolist()] == sorted(pairs)
    np.testing.assert_allclose(np.exp(model.log_prob_K[1:]), 0.5, atol=1e-6)
    # The pdf of the loop is read when a phone is stayed in, the first one when it is passed.
    np.testing.assert_array_equal(model.pdf_K[1::2], model.tuples[:, 3])
    np.testing.assert_array_equal(model.pdf_K[2::2], model.tuples[:, 2])
    state = "<State> 0 <ForwardPdfClass> 0 <SelfLoopPdfClass> 1 <Transition> 0 0.5 <Transition> 1 0.5 </State>"
    assert state in (tmp_path / "topo").read_text()
    assert (tmp_path / "frame_subsampling_factor").read_text() == "3\n"
    export_kaldi(hmm, tmp_path)
    assert not (tmp_path / "frame_subsampling_factor").exists()
