"""A small language."""

import numpy as np
import pytest

from speech3.hmm.lexicon import Lexicon, Pronunciation
from speech3.hmm.model import Hmm
from speech3.hmm.tree import monophone_tree

WORDS = {"ab": ["a b"], "ba": ["b a"], "ca": ["c a", "c a a"], "cc": ["c c"]}


@pytest.fixture
def lexicon() -> Lexicon:
    return Lexicon(tuple(Pronunciation(w, tuple(p.split())) for w, prons in WORDS.items() for p in prons))


@pytest.fixture
def hmm(lexicon: Lexicon) -> Hmm:
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    return Hmm(lexicon, tree, np.linspace(0.5, 0.8, tree.num_pdfs))
