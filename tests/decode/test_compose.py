"""Lattices with two language models, against enumeration of all paths."""

import dataclasses
import itertools

import numpy as np
import pytest
import toys
from test_lattice import SCALE
from test_lm_states import CHEAPER
from test_word_lattice import costs_of, every_path, one_word_then, toy
from toys import arpa_cost

from speech3.decode import lattice_composition
from speech3.decode.grammar import join_words
from speech3.decode.lattice_composition import (
    Reading,
    cheapest_cost,
    composed,
    expand_pieces,
    numbers_of,
    of_arpa,
    plain_reading,
    pruned,
)
from speech3.decode.lattice_paths import nbest
from speech3.decode.word_lattice import WordLattice
from speech3.errors import Speech3Error
from speech3.language.arpa import read_arpa

SYMBOLS = ("<eps>", "A", "AB", "BA", "BA2")


@pytest.fixture
def models(tmp_path):
    (tmp_path / "old.arpa").write_text(CHEAPER)
    return read_arpa(tmp_path / "old.arpa"), toys.bigram(3)


def both(words: WordLattice, models) -> lattice_composition.Composed:
    (old, old_numbers), (new, new_numbers) = map(of_arpa, models)
    readings = (plain_reading(words, numbers_of(SYMBOLS, each, "")) for each in (old_numbers, new_numbers))
    return composed(words, old, next(readings), new, next(readings))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_every_path_gets_the_new_cost_for_the_old(models, weight):
    changed = larger = 0
    old, old_numbers = of_arpa(models[0])
    slots = one_word_then(*[[(1, 0.2 * n), (2, 0.3), (4, 1.0)] for n in range(4)])  # histories meet in its states
    for words in (slots, *(toy(seed, frames=6)[1] for seed in range(3))):
        before = costs_of(every_path(words))
        mixed = both(words, models).mixed(weight)
        found = every_path(mixed)
        assert set(found) == set(before)
        for said, cost in costs_of(found).items():
            spoken = tuple(SYMBOLS[word] for word in said)
            theirs = cheapest_cost(old, [old_numbers[word] for word in spoken])
            assert cost == pytest.approx(before[said] + weight * (arpa_cost(models[1], spoken) - theirs), abs=1e-3)
        assert nbest(mixed, 1, SCALE)[0].words == min(costs_of(found), key=costs_of(found).get)
        changed += nbest(mixed, 1, SCALE)[0].words != nbest(words, 1, SCALE)[0].words
        larger += len(mixed.word_A) > len(words.word_A)
        for said, (_, acoustic, pdfs) in every_path(words).items():
            assert found[said][1:] == (pytest.approx(acoustic), pdfs)
        assert (mixed.target_A > mixed.source_A).all() and (np.diff(mixed.source_A) >= 0).all()
    assert larger and (changed > 0 if weight == 1 else changed == 0 or weight)


def test_words_that_a_model_lacks_and_too_many_arcs(models, monkeypatch):
    _, words, _ = toy(3)
    (old, _), reading = of_arpa(models[0]), plain_reading(words, np.full(5, 77))
    with pytest.raises(Speech3Error, match="language model used in the search does not allow"):
        composed(words, old, reading, old, reading)
    monkeypatch.setattr(lattice_composition, "_MAX_ARCS", 2)
    with pytest.raises(Speech3Error, match="more than 2 arcs with the histories"):
        both(words, models)


def test_pruning_leaves_the_paths_within_the_beam():
    fewer = 0
    for seed, beam in itertools.product(range(8), (0.5, 2.0)):
        _, words, _ = toy(seed, frames=6)
        before, found = every_path(words), every_path(less := pruned(words, SCALE, beam))
        best = min(costs_of(before).values())
        near = {said for said, cost in costs_of(before).items() if cost <= best + beam}
        assert near <= set(found) <= set(before) and all(found[said] == before[said] for said in found)
        on_paths = set().union(*(path.arcs for path in nbest(less, 10**4, SCALE) if path.cost <= best + beam + 1e-5))
        assert on_paths == set(range(len(less.word_A)))
        fewer += len(less.word_A) < len(words.word_A)
    assert fewer > 4


PIECES = ("<eps>", "▁A", "B", "▁BA", "2")  # spelling A, AB, BA, BA2, and others


def test_pieces_are_read_as_words():
    several = 0
    for seed in range(8):
        _, lattice, _ = toy(seed, frames=6)
        expanded, words, last = expand_pieces(lattice, PIECES)
        assert costs_of(every_path(expanded)) == pytest.approx(costs_of(every_path(lattice)))
        for path in nbest(expanded, 10**4, SCALE):
            end = int(expanded.target_A[path.arcs[-1]]) if path.arcs else 0
            said = [words[arc] for arc in path.arcs if words[arc]] + [last[end]] * bool(last[end])
            assert tuple(said) == join_words([PIECES[label] for label in path.words])
            several += len(said) > 1
    assert several > 10


def test_a_model_of_words_on_a_lattice_of_pieces(models):
    (old, numbers), symbols = of_arpa(models[1]), PIECES
    lattice = one_word_then([(1, 0.1), (3, 0.0)], [(2, 0.3), (4, 0.2)], [(1, 0.0)])
    lattice = dataclasses.replace(lattice, final_acoustic_S=np.array([np.inf] * 3 + [0.0]))
    expanded, words, last = expand_pieces(lattice, symbols)
    known = {"": -1, "A2": -1, "BAB": -1, **numbers}  # what no model has costs nothing here
    reading = Reading(*(np.array([known[word] for word in part], np.int64) for part in (words, last)))
    nothing = Reading(np.full(len(words), -1), np.full(len(last), -1))
    mixed = composed(expanded, old, nothing, old, reading).mixed(1.0)
    costs = {path.words: path.cost for path in nbest(mixed, 10, 1.0)}
    ends = arpa_cost(models[1], ())
    assert costs[1, 2, 1] == pytest.approx(0.4 + arpa_cost(models[1], ("AB", "A")) - ends)
    assert costs[3, 4, 1] == pytest.approx(0.2 + arpa_cost(models[1], ("BA2", "A")) - ends)
