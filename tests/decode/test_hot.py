"""Hot words and phrases against all sentences and all paths, one by one."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import toys
from random_graphs import all_paths, random_graph, random_scores

from speech3.config import DecodeConfig
from speech3.decode import search
from speech3.decode.beam_search import BeamSearch, Lattice, search_graph
from speech3.decode.grammar import join_words
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.hot_words import BOOST, automaton, best_path, parse_hot, read_hot, with_hot_words, with_phrases
from speech3.errors import DataError, FormatError, Speech3Error
from speech3.io.fst import ARC, Fst

SOURCE = Path("hot.txt")
WIDE = DecodeConfig(beam=1000.0, max_active=100_000)
SCALE = 0.3


def times(words: tuple, phrase: tuple) -> int:
    return sum(words[start : start + len(phrase)] == phrase for start in range(len(words) - len(phrase) + 1))


def worth(words: tuple, hot: dict[tuple, float]) -> float:
    return sum(boost * times(words, phrase) for phrase, boost in hot.items())


HOT = [
    {("AB",): 2.0},
    {("A",): 1.5, ("BA2",): -1.0},
    {("A", "AB"): 3.0},
    {("A", "A"): 2.5, ("AB", "A"): 1.0, ("A",): 0.5, ("AB", "A", "A"): 4.0},  # phrases that overlap, and a word of them
]


@pytest.mark.parametrize("hot", HOT)
def test_best_path_is_that_of_an_exhaustive_search(tmp_path, monkeypatch, hot) -> None:
    monkeypatch.setattr(search, "LATTICE_BEAM", 500.0)
    hmm, lm = toys.toy_hmm(), toys.bigram()
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    plain = load_graph(tmp_path)
    graph = with_hot_words(plain, hot, SOURCE)
    language = {words: cost - worth(words, hot) for words, cost in toys.sentences(lm, 3).items()}
    changed = 0
    for seed in range(6):
        scores_TP = toys.random_scores(hmm, 12, seed)
        expected = toys.exhaustive(hmm, language, scores_TP)
        best = min(expected, key=expected.__getitem__)
        found = search.decode(graph, [("u", scores_TP)], WIDE, 1.0, confidences=True).hypotheses[0]
        assert found.words == best
        assert found.cost == pytest.approx(expected[best], abs=2e-3)
        assert found.confidences is not None and len(found.confidences) == len(best)
        changed += search.decode(plain, [("u", scores_TP)], WIDE, 1.0).hypotheses[0].words != best
    assert changed


def paths_of(lattice: Lattice) -> dict[tuple, float]:
    arcs_A = np.zeros(len(lattice.source_A), ARC)
    arcs_A["ilabel"], arcs_A["olabel"], arcs_A["nextstate"] = lattice.ilabel_A, lattice.olabel_A, lattice.target_A
    arcs_A["weight"] = lattice.graph_A + np.float32(SCALE) * lattice.acoustic_A
    fst = Fst(0, lattice.final_S, lattice.source_A, arcs_A)
    found: dict[tuple, float] = {}
    for pdfs, words, cost in all_paths(fst, np.zeros((lattice.frames, 5), np.float32), 0.0):
        found[pdfs, words] = min(cost, found.get((pdfs, words), np.inf))
    return found


def test_a_lattice_s_paths_get_what_their_phrases_are_worth() -> None:
    phrases = {(1, 2): 1.0, (2, 1, 2): 2.0, (3, 3): -0.5, (2,): 0.25, (1, 2, 4): 3.0}
    shares = {1: 0.4, 2: 0.7}
    for seed in range(12):
        fst, scores_TP = random_graph(seed, states=5, finals=0.6), random_scores(seed, 4)
        beam = BeamSearch()
        beam.begin(search_graph(fst, 5, "toy"), "u", SCALE, 1e6, 10**6, 100.0)
        beam.read(scores_TP)
        lattice = beam.lattice()
        assert lattice
        composed = with_phrases(lattice, automaton(phrases, shares))
        assert (composed.target_A > composed.source_A).all() and (np.diff(composed.source_A) >= 0).all()
        before, after = paths_of(lattice), paths_of(composed)
        assert before.keys() == after.keys()
        for (pdfs, words), cost in before.items():
            expected = cost - worth(words, phrases) + sum(shares.get(word, 0.0) for word in words)
            assert after[pdfs, words] == pytest.approx(expected, abs=1e-4)
        best, least = best_path(composed, SCALE), min(after, key=after.__getitem__)
        assert (tuple(best.pdfs_T.tolist()), best.olabels) == least or best.cost == pytest.approx(
            after[least], abs=1e-4
        )
        assert best.cost == pytest.approx(after[least], abs=1e-4)


PIECES = toys.Lexicon(
    (
        toys.Pronunciation("▁A", ("a",)),
        toys.Pronunciation("B", ("b",)),
        toys.Pronunciation("▁B", ("b", "b")),
        toys.Pronunciation("▁AB", ("a", "b")),
        toys.Pronunciation("A", ("a", "a")),
    ),
    silence_prob=0.3,
)
PIECE_TEXT = [line.split() for line in ("▁A B", "▁AB A ▁B", "▁B ▁A", "▁A B A", "▁AB ▁AB", "▁B A", "▁A A B")]


def ways_of_pieces(pieces: tuple[str, ...]) -> list[tuple[float, tuple[int, ...]]]:
    """As `toys.pronunciations`: silence, or none at a cost, around words and not within them."""
    ids = PIECES.phone_ids
    sides = [piece.startswith("▁") for piece in (*pieces, "▁")]  # is there the side of a word before it?
    ways = []
    for silent in itertools.product([False, True], repeat=len(sides)):
        if any(silence and not side for silence, side in zip(silent, sides, strict=True)):
            continue
        asked = [silence for silence, side in zip(silent, sides, strict=True) if side]
        phones: tuple[str, ...] = ()
        for silence, piece in zip(silent, (*pieces, ""), strict=True):
            phones += ("SIL",) * silence + (PIECES.by_word[piece][0].phones if piece else ())
        cost = -sum(np.log(PIECES.silence_prob if silence else 1 - PIECES.silence_prob) for silence in asked)
        ways.append((cost, tuple(ids[phone] for phone in phones)))
    return ways


@pytest.mark.parametrize(
    "hot",
    [
        {("AB",): 3.0},  # ▁AB and ▁A B, but neither ▁AB A nor ▁A B A
        {("A",): -2.0, ("ABA",): 2.5},
        {("AB", "B"): 4.0, ("B",): 1.0, ("B", "A"): 3.0, ("AB", "B", "A"): 2.0},
    ],
)
def test_hot_words_of_pieces_equal_an_exhaustive_search(tmp_path, monkeypatch, hot) -> None:
    monkeypatch.setattr(search, "LATTICE_BEAM", 500.0)
    monkeypatch.setattr(toys, "pronunciations", lambda hmm, pieces: ways_of_pieces(pieces))
    hmm, lm = toys.toy_hmm(PIECES), toys.estimate_lm(PIECE_TEXT, 2)
    build_graph(hmm, lm, tmp_path, toys.SCALE)
    plain = load_graph(tmp_path)
    graph = with_hot_words(plain, hot, SOURCE)
    sentences = toys.sentences(lm, 4)
    language = {pieces: cost - worth(join_words(pieces), hot) for pieces, cost in sentences.items()}
    changed = 0
    for seed in range(4):
        scores_TP = toys.random_scores(hmm, 12, seed)
        expected = toys.exhaustive(hmm, language, scores_TP)
        best = min(expected, key=expected.__getitem__)
        found = search.decode(graph, [("u", scores_TP)], WIDE, 1.0, confidences=True).hypotheses[0]
        assert found.units == best and found.words == join_words(best)
        assert found.cost == pytest.approx(expected[best], abs=2e-3)
        assert found.confidences is not None and len(found.confidences) == len(best)
        changed += search.decode(plain, [("u", scores_TP)], WIDE, 1.0).hypotheses[0].words != found.words
    assert changed


def test_every_division_into_pieces_is_worth_the_same() -> None:
    symbols = ("<eps>", "▁A", "B", "▁AB", "A", "▁", "AB")
    hot = {("AB",): 2.0, ("A", "AB"): 1.0, ("ABA",): -0.5, ("B",): 4.0, ("BA", "A"): 8.0}
    spelled = {tuple(map(ord, "".join("▁" + word for word in words))): boost for words, boost in hot.items()}
    phrases = automaton(spelled, {}, symbols)
    for length in range(6):
        for labels in itertools.product(range(1, len(symbols)), repeat=length):
            state, gained = phrases.start, 0.0
            for label in labels:
                next_D, gained_D = phrases.read(label)
                state, gained = int(next_D[state]), gained + gained_D[state]
            text = "".join(symbols[label] for label in labels)
            if "▁▁" not in text and not text.endswith("▁"):  # SentencePiece writes no word without letters
                assert gained == pytest.approx(worth(tuple(text.replace("▁", " ").split()), hot))


def test_words_that_the_pieces_cannot_spell_are_named(tmp_path: Path) -> None:
    build_graph(toys.toy_hmm(PIECES), toys.estimate_lm(PIECE_TEXT, 2), tmp_path, toys.SCALE)
    with pytest.raises(Speech3Error, match=r"hot\.txt: the pieces of .* cannot spell ab, C; write them as"):
        with_hot_words(load_graph(tmp_path), {("AB", "ab"): 1.0, ("C",): 1.0, ("ABBA",): 1.0}, SOURCE)


def test_lines_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "hot.txt"
    path.write_text("NEW YORK 4.5\nBERLIN\n\n  5\nSTOP -2\nNEW  YORK 4.5\n")
    assert read_hot(path) == {("NEW", "YORK"): 4.5, ("BERLIN",): BOOST, ("5",): BOOST, ("STOP",): -2.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" \n", r"hot\.txt: contains no word to boost"),
        ("A 3\nB\nA 4\n", r"hot\.txt:3: A has the boost 4 here and 3 in line 1"),
        ("A 1e9\n", r"hot\.txt:1: boosts must be between -50 and 50 .*, not 1e9"),
    ],
)
def test_invalid_lists(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hot.txt"
    path.write_text(text)
    with pytest.raises(Speech3Error, match=message):
        read_hot(path)


@pytest.mark.parametrize("symbol", ["<eps>", "#0", "<s>", "</s>"])
def test_symbols_of_the_graph_are_no_hot_words(symbol: str) -> None:
    for line in (f"A {symbol}", f"{symbol} 2.5"):
        with pytest.raises(FormatError, match=f"hot:2: {symbol} is not a word that can be spoken; remove it"):
            parse_hot(["AB", line])


def test_words_that_the_graph_lacks_are_named(tmp_path: Path) -> None:
    build_graph(toys.toy_hmm(), toys.bigram(), tmp_path, toys.SCALE)
    with pytest.raises(DataError, match=r"hot\.txt"):
        with_hot_words(load_graph(tmp_path), {("A", "ZEBRA"): 1.0, ("QUAGGA",): 1.0}, SOURCE)
