"""Fixtures: a language of three phones and four words, and its HMM."""

import numpy as np
import pytest

from speech3.hmm.model import Hmm, Tree, monophone_tree
from speech3.language.lexicon import Lexicon, Pronunciation

WORDS = {"ab": ["a b"], "ba": ["b a"], "ca": ["c a", "c a a"], "cc": ["c c"]}


@pytest.fixture
def lexicon() -> Lexicon:
    return Lexicon(tuple(Pronunciation(w, tuple(p.split())) for w, prons in WORDS.items() for p in prons))


@pytest.fixture
def hmm(lexicon: Lexicon) -> Hmm:
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    return Hmm(lexicon, tree, np.linspace(0.5, 0.8, tree.num_pdfs))


def asking(side: int, phones: int, states: int, members: tuple[int, ...]) -> Tree:
    """A tree in which every state of every phone but the first asks whether the phone at `side` is in `members`."""
    roots = np.arange(phones * states).reshape(phones, states)
    side_N, member_N = np.full(3 * phones * states, -1, np.int8), np.zeros((3 * phones * states, phones + 1), bool)
    yes_N = np.zeros(len(side_N), np.int32)
    no_N, pdf = yes_N.copy(), 0
    for root in roots.reshape(-1).tolist():
        leaves = [root]
        if root >= states:  # the first phone is silence
            leaves = [phones * states + 2 * root, phones * states + 2 * root + 1]
            side_N[root], yes_N[root], no_N[root] = side, *leaves
            member_N[root, list(members)] = True
        for leaf in leaves:
            yes_N[leaf] = no_N[leaf] = pdf
            pdf += 1
    return Tree(np.concatenate([np.zeros((1, states), int), roots]).astype(np.int32), side_N, member_N, yes_N, no_N)
