"""Fillers that are spelled: the phones of words that a graph lacks, and the letters guessed from them."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import toys
from test_filler import cost_of
from whistles import HMM as SAID_HMM, RATE_HZ, SAID, SETTINGS, features, save_gmm, whistled

from speech3.config import RecipeConfig, parse
from speech3.decode.grammar import (
    join_segments,
    join_words,
    one_word_grammar,
    phone_costs,
    read_spelling,
    spelled_filler,
    with_filler,
)
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.lattice_directory import WantedResults, decode_latticed, open_lattices, oracle_texts
from speech3.decode.new_graph import GraphSources, make_graph
from speech3.decode.output import UtteranceParts, write_decoding
from speech3.decode.recognizer import Recognizer, Transcription, load_recognizer, transcribe_samples
from speech3.decode.rescoring import _spelling_cost
from speech3.decode.streaming import Stream
from speech3.decode.transcribing import transcription_json
from speech3.errors import DataError, Speech3Error
from speech3.evaluate.text import read_all
from speech3.hmm import Segment, read_ctm
from speech3.language import ngram_log_probs
from speech3.language.lexicon import Lexicon, Pronunciation

# Each word is spelled as it is pronounced, in capitals.
WORDS = ["A", *("".join(letters) for size in range(2, 9) for letters in product("AB", repeat=size))][:400]
HMM = toys.toy_hmm(Lexicon(tuple(Pronunciation(word, tuple(word.lower())) for word in WORDS)))
BAB = (("SIL", 0.3), ("b", 0.3), ("a", 0.2), ("b", 0.3), ("SIL", 0.3))
UNITS = ("<b>￭", "￭<a>￭", "￭<b>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whistles whose graph has the word A, and a filler."""
    model = save_gmm(tmp_path_factory.mktemp("spelled"))
    HMM.save(model)
    build_graph(HMM, toys.estimate_lm([["A"]], 1), model / "graph", toys.SCALE, spelled_filler(HMM))
    replace(SETTINGS, filler_cost=-2.0).save(model)
    return model


def test_words_that_the_graph_lacks_are_spelled_and_marked_where_words_have_times(model: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(model)
    sounds = {"word": SAID["a-bb"][1][:3], "other": BAB}
    feats = {name: features(whistled(*sound), tmp_path) for name, sound in sounds.items()}
    feats["word"] = features(whistled(*SAID["a-bb"][1]), tmp_path)[:60]
    decoding = recognizer.decode(feats, confidences=True)
    write_decoding(tmp_path, recognizer, feats, decoding)
    assert (tmp_path / "hyp.txt").read_text() == "word A\nother BAB\n"
    labels = {name: [word.label for word in track] for name, track in read_ctm(tmp_path / "hyp.ctm").items()}
    assert labels == {"other": ["<BAB>"], "word": ["A"]}


def test_samples_streams_and_json_mark_guesses_and_partial_results_have_none(model: Path) -> None:
    recognizer = load_recognizer(model)
    found = transcribe_samples(recognizer, whistled(*BAB), RATE_HZ)
    assert found.text == "BAB" and [(word.word, word.guessed, word.marked) for word in found.words] == [
        ("BAB", True, "<BAB>")
    ]
    stream = Stream(recognizer, RATE_HZ)
    assert {stream.accept(part) for part in np.array_split(whistled(*BAB), 20)} == {""}
    assert [(word.text, word.guessed) for word in stream.finish().words] == [("BAB", True)]
    word = found.words[0]
    assert word.start_s is not None and word.end_s is not None
    segment = Segment(word.start_s, word.end_s, word.text, word.confidence, word.guessed)
    about = json.loads(transcription_json(Transcription("x.wav", "BAB", [segment], 1.4)))
    assert about["text"] == "BAB" and about["words"][0]["word"] == "<BAB>"


def test_a_guess_of_little_confidence_is_unk(model: Path) -> None:
    found = transcribe_samples(load_recognizer(model).with_min_confidence(1.0), whistled(*BAB), RATE_HZ)
    assert found.text == "<unk>" and not found.words[0].guessed


def test_nbest_lists_spell_as_the_text_does(model: Path) -> None:
    found = transcribe_samples(Recognizer.load(model, nbest=3), whistled(*BAB), RATE_HZ)
    assert found.nbest[0].words == ("BAB",)


def test_fillers_without_a_speller_and_noise_are_unk_as_before() -> None:
    spelling = spelled_filler(HMM)
    assert join_words(("A", *UNITS, "A"), "￭", spelling.speller) == ("A", "BAB", "A")
    assert join_words(("A", *UNITS, "A"), "￭") == ("A", "<unk>", "A")
    assert join_words((), "￭", spelling.speller) == ()
    noise = ("<unk>￭", "￭<unk>")
    assert join_words(noise, "￭", spelling.speller) == ("<unk>",)
    parts = [Segment(n / 10, (n + 1) / 10, unit, 0.9 - n / 10) for n, unit in enumerate(("A", *UNITS))]
    assert join_segments(parts, "￭", spelling.speller) == [
        parts[0],
        Segment(0.1, 0.4, "BAB", parts[-1].confidence, True),
    ]


def test_phones_cost_what_the_trigram_of_the_lexicons_words_says(model: Path) -> None:
    spelling = read_spelling(model / "graph")
    assert spelling is not None and spelling.speller is not None and spelling.letters.order == 3
    assert not phone_costs(load_graph(model / "graph").words, spelling).any()


def test_graphs_of_other_texts_spell_as_well_and_graphs_built_without_a_speller_do_not(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("BB A\nA A\n")
    make_graph(model, tmp_path / "graph", GraphSources(text=tmp_path / "text"))
    assert load_graph(tmp_path / "graph").speller is not None
    (tmp_path / "sentences.txt").write_text("A A\n")
    make_graph(model, tmp_path / "graph", GraphSources(sentences=tmp_path / "sentences.txt"))
    assert load_graph(tmp_path / "graph").has_filler and load_graph(tmp_path / "graph").speller is not None
    build_graph(HMM, toys.estimate_lm([["A"]], 1), tmp_path / "graph", toys.SCALE)
    assert load_graph(tmp_path / "graph").speller is None, "nothing is left of the earlier graph"


def test_a_lexicon_of_few_words_is_refused(tmp_path: Path) -> None:
    few = toys.toy_hmm(Lexicon((Pronunciation("A", ("a",)), Pronunciation("AB", ("a", "b")))))
    with pytest.raises(DataError, match=r"has only 2 words .* and 300 are needed .* lm.filler=true"):
        spelled_filler(few)
    for more in ({"negatives": {}}, {"lexicon": "graphemes"}):
        with pytest.raises(Speech3Error, match=r"lm\.filler=spelled: spells words from the phones of speech"):
            parse(RecipeConfig, {"corpus": "any", "lm": {"order": 2, "filler": "spelled"}, **more}, Path("recipe.yaml"))


def test_a_ctm_with_marked_guesses_is_scored_as_the_text_is(tmp_path: Path) -> None:
    (tmp_path / "ref.txt").write_text("u A BAB <laugh>\n")
    words = ("A", "<BAB>", "<laugh>", "<unk>")
    (tmp_path / "hyp.ctm").write_text("".join(f"u 1 {n}.000 0.500 {word} 0.900\n" for n, word in enumerate(words)))
    found = read_all([tmp_path / "ref.txt", tmp_path / "hyp.ctm"])
    assert found.hypotheses == [{"u": "A BAB <laugh> <unk>"}]
    assert len(found.notes) == 1 and "1 word, such as <BAB>" in found.notes[0]


def test_words_of_a_long_utterance_are_divided_as_the_text_has_them() -> None:
    track = [Segment(0.0, 0.1, "A"), Segment(0.1, 0.2, "<BAB>"), Segment(2.1, 2.2, "<noise>"), Segment(2.2, 2.3, "B")]
    found = UtteranceParts({"u": {"u-1": 0.0, "u-2": 2.0}}).divided({"u": "A BAB <noise> B"}, {"u": track})
    assert found == {"u-1": "A BAB", "u-2": "<noise> B"}


def test_the_oracle_spells_as_the_text_does(model: Path, tmp_path: Path) -> None:
    feats = {"u": features(whistled(*BAB), tmp_path)}
    decode_latticed(load_recognizer(model), feats, tmp_path / "out", WantedResults(archive=True))
    assert oracle_texts(tmp_path / "out" / "lat.ark", {"u": "BAB"}) == {"u": "BAB"}


def test_a_neural_model_that_lacks_a_word_does_not_spell_it_for_nothing(model: Path, tmp_path: Path) -> None:
    feats = {"u": features(whistled(*BAB), tmp_path)}
    decode_latticed(load_recognizer(model), feats, tmp_path / "out", WantedResults(archive=True))
    directory, lm = open_lattices(tmp_path / "out"), Mock(knows=lambda word: word == "A")
    spelling = read_spelling(model / "graph")
    assert spelling is not None
    cost = sum(-log_prob for log_prob in ngram_log_probs(spelling.letters, [list(UNITS)])[0])
    assert _spelling_cost(directory, lm, ("A", *UNITS, "A", *UNITS)) == pytest.approx(2 * cost)
    assert cost > 0 and _spelling_cost(directory, lm, ("A", "A")) == 0
    assert _spelling_cost(directory, Mock(knows=lambda word: word in ("A", "BAB")), UNITS) == 0


def test_the_filler_of_a_grammar_has_the_trigrams_of_that_of_an_n_gram_model(model: Path) -> None:
    spelling = read_spelling(model / "graph")
    assert spelling is not None
    grammar = with_filler(one_word_grammar(SAID_HMM.lexicon), spelling)
    first, *rest = ngram_log_probs(spelling.letters, [list(UNITS)])[0].tolist()
    wanted = -math.log(spelling.weight) - first - sum(rest[:-1])  # the last is the end, which the last phone marks
    assert cost_of(grammar, UNITS) == pytest.approx(wanted, rel=1e-4)
    assert cost_of(grammar, UNITS[1:]) == cost_of(grammar, (UNITS[0], *UNITS)) == math.inf
