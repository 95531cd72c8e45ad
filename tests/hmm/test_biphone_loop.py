"""The loop of left biphones against every path there is."""

import itertools

import numpy as np
import pytest

from speech3.hmm.model import FIRST_AND_LOOP, Hmm, context_free_tree, monophone_tree
from speech3.hmm.phone_loop import Biphones, biphones
from speech3.language.lexicon import Lexicon, Pronunciation

PDFS, PHONES = 6, 3


def _best(outputs: np.ndarray, loop: Biphones, bigram: np.ndarray) -> tuple[float, list[int]]:
    """The best of all sequences of phones and all their boundaries."""
    frames, best = len(outputs), (-np.inf, [])
    for count in range(1, frames + 1):
        for cuts in itertools.combinations(range(1, frames), count - 1):
            edges = [0, *cuts, frames]
            for phones in itertools.product(range(1, PHONES + 1), repeat=count):
                score, before = 0.0, 0
                for phone, begin, end in zip(phones, edges, edges[1:], strict=False):
                    score += bigram[loop.group_N[before], loop.group_N[phone]]
                    score += outputs[begin, loop.first_NN[before, phone]]
                    score += outputs[begin + 1 : end, loop.loop_NN[before, phone]].sum()
                    before = phone
                score += bigram[loop.group_N[before], -1]
                best = max(best, (score, [int(loop.group_N[phone]) for phone in phones]))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_all_paths_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pdfs = rng.integers(0, PDFS, (2, PHONES + 1, PHONES + 1)).astype(np.int32)
    loop = Biphones(pdfs[0], pdfs[1], np.array([2, 0, 1, 1]))  # the last two phones differ in stress alone
    bigram = rng.normal(size=(3, 3)).astype(np.float32)
    outputs = rng.normal(0, 2, (4, PDFS)).astype(np.float32)
    assert loop.best_phones(outputs, bigram).tolist() == _best(outputs, loop, bigram)[1]


def test_only_for_left_biphones_of_a_first_and_a_loop_pdf() -> None:
    lexicon = Lexicon((Pronunciation("w", ("a", "b")),))
    phones = len(lexicon.phones)
    pdfs = np.arange(2 * phones).reshape(phones, 2)
    found = biphones(Hmm(lexicon, context_free_tree(pdfs), np.full(2 * phones, 0.5), FIRST_AND_LOOP, 3))
    assert found is not None
    assert found.first_NN[0, 1:].tolist() == pdfs[:, 0].tolist()
    assert found.loop_NN[2, 1:].tolist() == pdfs[:, 1].tolist()
    assert biphones(Hmm(lexicon, monophone_tree(np.arange(phones)), np.full(3 * phones, 0.5))) is None
