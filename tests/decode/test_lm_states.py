"""Language models as states, against `ArpaLm.log10_prob` and against all paths through G."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import toys
from toys import arpa_cost

from speech3.decode.grammar import Grammar, from_arpa
from speech3.decode.lattice_composition import LmStates, cheapest_cost, end_cost, of_arpa, of_grammar, step
from speech3.errors import Speech3Error
from speech3.io.fst import Fst, FstBuilder
from speech3.language.arpa import ArpaLm, read_arpa

WORDS = ("A", "AB", "BA", "BA2")

# Backing off is cheaper than the bigrams `A AB` and `A </s>` and the trigram `A A BA`; `BA` has no bigrams of its own.
CHEAPER = r"""\data\
ngram 1=6
ngram 2=6
ngram 3=2

\1-grams:
-99 <s> -0.3
-0.9 </s>
-0.5 A -0.1
-0.4 AB -0.2
-0.8 BA
-1.1 BA2 -0.4

\2-grams:
-0.2 <s> A -0.05
-2.5 A AB -0.7
-0.6 A A -0.1
-3.0 A </s>
-0.3 AB BA2 -0.2
-0.5 BA2 A -0.3

\3-grams:
-4.0 A A BA
-0.1 <s> A AB

\end\
"""


@pytest.fixture(params=["1", "2", "3", "backing off is cheaper"])
def lm(request: pytest.FixtureRequest, tmp_path: Path) -> ArpaLm:
    if request.param.isdigit():
        return toys.bigram(int(request.param))
    (tmp_path / "lm.arpa").write_text(CHEAPER)
    return read_arpa(tmp_path / "lm.arpa")


def grammar_of(lm: ArpaLm) -> tuple[Grammar, LmStates]:
    grammar = from_arpa(lm, toys.LEXICON)
    return grammar, of_grammar(grammar.fst, len(grammar.words) - 1, "G.fst")


def cheapest(fst: Fst, words: list[int], backoff: int) -> float:
    """Over all paths, in every state with what is left to be read."""
    best, waiting = math.inf, [(fst.start, 0, 0.0)]
    while waiting:
        state, place, cost = waiting.pop()
        if place == len(words):
            best = min(best, cost + float(fst.final_S[state]))
        for arc in fst.arcs_A[fst.source_A == state]:
            if arc["ilabel"] == backoff:
                waiting.append((int(arc["nextstate"]), place, cost + float(arc["weight"])))
            elif place < len(words) and arc["ilabel"] == words[place]:
                waiting.append((int(arc["nextstate"]), place + 1, cost + float(arc["weight"])))
    return best


def sequences() -> list[tuple[str, ...]]:
    return [words for length in range(5) for words in itertools.product(WORDS, repeat=length)]


def sentence_cost(lm: LmStates, words: list[int]) -> float:
    total, state = 0.0, lm.start
    for word in words:
        cost, state = step(lm, state, word)
        total += cost
    return total + end_cost(lm, state)


def test_every_sequence_costs_what_the_format_defines(lm: ArpaLm) -> None:
    states, numbers = of_arpa(lm)
    grammar, of_g = grammar_of(lm)
    labels = {word: label for label, word in enumerate(grammar.words)}
    for words in sequences():
        expected = arpa_cost(lm, words)
        assert sentence_cost(states, [numbers[word] for word in words]) == pytest.approx(expected, abs=1e-9)
        assert sentence_cost(of_g, [labels[word] for word in words]) == pytest.approx(expected, abs=1e-4)
    assert sentence_cost(states, [10**6]) == math.inf


def test_the_cheapest_path_through_g(lm: ArpaLm) -> None:
    (grammar, states), less = grammar_of(lm), 0
    from_file, numbers = of_arpa(lm)
    backoff = len(grammar.words) - 1
    for words in sequences():
        labels = [grammar.words.index(word) for word in words]
        expected = cheapest(grammar.fst, labels, backoff)
        assert cheapest_cost(states, labels) == pytest.approx(expected, abs=1e-5)
        assert cheapest_cost(from_file, [numbers[word] for word in words]) == pytest.approx(expected, abs=1e-4)
        less += expected < arpa_cost(lm, words) - 0.01
    assert (less > 20) == (lm.ngrams[0]["BA",][0] == -0.8), "only there backing off is cheaper"
    assert cheapest_cost(states, [10**6]) == math.inf


def test_a_grammar_with_several_paths_is_refused() -> None:
    builder = FstBuilder()
    start, other = builder.state(), builder.state(final=0.0)
    builder.arc(start, other, 1, 1)
    builder.arc(start, start, 1, 1)
    with pytest.raises(Speech3Error, match=r"G\.fst: a sequence of words may have several paths"):
        of_grammar(builder.fst(), 9, "G.fst")
    builder.arcs[1] = (0, 0, 0.0, start)
    with pytest.raises(Speech3Error, match="several paths"):
        of_grammar(builder.fst(), 9, "G.fst")
    assert np.isfinite(builder.finals[1])
