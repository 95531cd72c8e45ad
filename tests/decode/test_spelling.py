"""Graphs that spell unseen words: compared with enumeration, and used by every program that reads graphs."""

import itertools
import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
import toys
from whistles import HMM, RATE_HZ, features_of_file, whistled

from speech3.config import DecodeConfig
from speech3.decode.grammar import Spelling, read_spelling, spelling_with
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.lattice_composition import cheapest_cost, of_grammar
from speech3.decode.lattice_directory import WantedResults, decode_latticed, open_lattices
from speech3.decode.lattice_paths import nbest
from speech3.decode.new_graph import GraphSources, make_graph, replace_graph
from speech3.decode.recognizer import load_recognizer, transcribe
from speech3.decode.rescoring import RescoreOptions, rescore
from speech3.decode.search import decode
from speech3.errors import MismatchError
from speech3.io.fst import read_fst
from speech3.language.added_words import letter_units
from speech3.language.arpa import ArpaLm, read_arpa, write_arpa
from speech3.language.lexicon import Lexicon, Pronunciation, Silences, mark_positions
from speech3.runtime.files import write_text

PHONES = {"A": ("a",), "B": ("b",)}
LETTERS = toys.estimate_lm(map(letter_units, ("AB", "BA", "BABA", "BAB", "BABAA", "ABAB")), 3)


def cost_in(graph: Path, units: Sequence[str]) -> float:
    """The language model cost in a graph, in which backing off may be cheaper than the ARPA format allows."""
    words = load_graph(graph).words
    grammar = of_grammar(read_fst(graph / "G.fst"), words.index("#0"), graph)
    return cheapest_cost(grammar, [words.index(unit) for unit in units])


def arpa_cost(lm: ArpaLm, units: Sequence[str]) -> float:
    said = ("<s>", *units, "</s>")
    return -math.log(10) * sum(lm.log10_prob(said[:place], said[place]) for place in range(1, len(said)))


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("lexicon", [toys.LEXICON, toys.SILENCES], ids=["plain", "silences"])
def test_the_best_path_is_that_of_an_enumeration(tmp_path: Path, lexicon: Lexicon, positions: bool) -> None:
    """Eight frames are enough for two phones, so an unseen word has two letters and is the only word."""
    lexicon = mark_positions(lexicon) if positions else lexicon
    hmm, lm = toys.toy_hmm(lexicon, context=True), toys.bigram()
    spelling = spelling_with(hmm, LETTERS, 30.0, PHONES)
    build_graph(hmm, lm, tmp_path, toys.SCALE, spelling)
    after = statistics.median(lexicon.silences(pron).after for pron in lexicon.pronunciations)
    letters = {
        f"?{one}{two}": Pronunciation(
            f"?{one}{two}", (*PHONES[one], *PHONES[two]), silences=Silences(after) if lexicon.end else None
        )
        for one, two in itertools.product("AB", repeat=2)
    }
    unseen = tuple(letters.values())
    unseen = mark_positions(Lexicon(unseen)).pronunciations if positions else unseen
    both = replace(lexicon, pronunciations=lexicon.pronunciations + unseen, inventory=lexicon.phones)
    language = {
        words: cost_in(tmp_path, words) for length in range(3) for words in itertools.product(lm.words, repeat=length)
    }
    for word in letters:
        units = letter_units(word[1:])
        language[(word,)] = cost_in(tmp_path, units)
        assert language[(word,)] <= arpa_cost(spelling.added_to(lm), units) + 1e-4
    graph, found_unseen = load_graph(tmp_path), 0
    for seed in range(20):
        scores_TP = toys.random_scores(hmm, 8, seed)
        expected = toys.exhaustive(replace(hmm, lexicon=both), language, scores_TP)
        words = min(expected, key=lambda each: expected[each])
        (found,) = decode(graph, [("u", scores_TP)], DecodeConfig(beam=1e3), 1.0, 0.0).hypotheses
        assert found.cost == pytest.approx(expected[words], abs=2e-3)
        assert found.words == tuple(word.removeprefix("?") for word in words)
        found_unseen += words[:1] in [(word,) for word in letters]
    assert 0 < found_unseen < 20


@pytest.fixture
def spelling_model(model: Path) -> Path:
    """The recogniser of `whistles`, which has the words A, AB and BB and spells others."""
    spelling = spelling_with(HMM, LETTERS, 3.0, PHONES)
    build_graph(HMM, toys.estimate_lm([["A"], ["AB"], ["BB"], ["A", "BB"]], 2), model / "graph", toys.SCALE, spelling)
    return model


@pytest.fixture
def baa(tmp_path: Path) -> Path:
    path = tmp_path / "baa.wav"
    segments = (("SIL", 0.3), ("b", 0.25), ("a", 0.25), ("b", 0.25), ("a", 0.25), ("SIL", 0.3))
    soundfile.write(path, whistled(*segments), RATE_HZ)
    return path


def test_an_unseen_word_with_its_time_and_confidence(spelling_model: Path, baa: Path, speech3) -> None:
    recognizer = load_recognizer(spelling_model)
    (found,) = transcribe(recognizer, [baa])
    assert found.text == "BABA"
    process = speech3("transcribe", spelling_model, baa, "--ctm")
    assert process.returncode == 0, process.stderr
    (line,) = process.stdout.splitlines()
    _, _, start, duration, word, sure = line.split()
    assert word == "BABA" and 0 < float(sure) <= 1
    assert (float(start), float(duration)) == (pytest.approx(0.3, abs=0.06), pytest.approx(1.0, abs=0.08))


def test_lattices_n_best_and_rescoring(spelling_model: Path, tmp_path: Path, baa: Path) -> None:
    recognizer, out, graph = load_recognizer(spelling_model), tmp_path / "out", spelling_model / "graph"
    feats = {"u": features_of_file(recognizer, baa)}
    decoding, _ = decode_latticed(recognizer, feats, out, WantedResults(archive=True, nbest=9), 1)
    rows = [json.loads(line)["words"] for line in (out / "nbest.jsonl").read_text().splitlines()]
    assert rows[0] == "BABA" == " ".join(decoding.hypotheses[0].words) and "￭" not in "".join(rows)
    given, own = tmp_path / "new.arpa", tmp_path / "own.arpa.gz"
    write_arpa(toys.estimate_lm([["BB", "A"], ["AB"], ["A", "AB", "BB"]], 3), given)
    shutil.copyfile(graph / "lm.arpa.gz", own)
    rescore(open_lattices(out), str(given), tmp_path / "new", RescoreOptions())
    before, after = (paths_of(path) for path in (out, tmp_path / "new"))
    spelling = read_spelling(graph)
    assert spelling is not None and len(before) > 20
    new = spelling.added_to(read_arpa(given))
    expected = {units: cost - cost_in(graph, units) + arpa_cost(new, units) for units, cost in before.items()}
    assert len(after) > 20  # some are pruned
    assert after == pytest.approx({units: expected[units] for units in after}, abs=5e-3)
    (graph / "G.fst").unlink()
    rescore(
        open_lattices(out), str(given), tmp_path / "old", RescoreOptions(old=own)
    )  # a model of words: letters are added
    assert paths_of(tmp_path / "old") == pytest.approx(after, abs=5e-3)


def paths_of(path: Path) -> dict[tuple[str, ...], float]:
    directory = open_lattices(path)
    ((_, lattice),) = directory.lattices()
    paths = nbest(lattice, 10**4, directory.about.acoustic_scale)
    return {tuple(directory.symbols[label] for label in each.words): each.cost for each in paths}


def test_another_graph_spells_too_unless_it_has_a_grammar(spelling_model: Path, tmp_path: Path, baa: Path) -> None:
    write_text(tmp_path / "words.txt", "ABBA 1 a b b a\n")
    make_graph(spelling_model, tmp_path / "added", GraphSources(add=tmp_path / "words.txt"))
    assert "ABBA 1 a b b a\n" in (tmp_path / "added" / "lexicon.txt").read_text()
    recognizer = replace_graph(load_recognizer(spelling_model), tmp_path / "added")
    (found,) = transcribe(recognizer, [baa])
    assert found.text == "BABA"
    write_text(tmp_path / "hot.txt", "BB 30\n")  # hot words are possible beside letters
    replace_graph(load_recognizer(spelling_model), tmp_path / "added", tmp_path / "hot.txt")
    write_text(tmp_path / "said.txt", "A BB\nAB\n")
    make_graph(spelling_model, tmp_path / "closed", GraphSources(sentences=tmp_path / "said.txt"))
    assert read_spelling(tmp_path / "closed") is None and not (tmp_path / "closed" / "lexicon.txt").exists()


def test_a_spelling_is_read_as_it_was_written(spelling_model: Path) -> None:
    found = read_spelling(spelling_model / "graph")
    assert isinstance(found, Spelling) and found.weight == 3.0
    assert {pron.word: pron.phones for pron in found.pronunciations}["￭B￭"] == ("b",)
    (spelling_model / "graph" / "lexicon.txt").unlink()
    with pytest.raises(MismatchError, match=r"letters\.arpa\.gz does not belong to this graph"):
        read_spelling(spelling_model / "graph")


def test_letters_at_positions_that_the_model_does_not_know_are_those_of_others() -> None:
    lexicon = mark_positions(Lexicon((Pronunciation("AB", ("a", "b")), Pronunciation("BA", ("b", "a")))))
    found = spelling_with(toys.toy_hmm(lexicon), LETTERS, 1.0, PHONES)
    assert {pron.word for pron in found.pronunciations} == {"A￭", "B￭", "￭A", "￭B", "￭A￭", "￭B￭"}
