"""Another graph for a model: with the program from end to end, and all mistakes."""

import json
import math
from pathlib import Path

import pytest
import soundfile
import toys
from random_graphs import sentences_of
from whistles import RATE_HZ, whistled

from speech3.cli import recognise as decode_verb, recognise as rescore_verb
from speech3.data.datadir import DataDir, Utterance, read_datadir, write_datadir
from speech3.decode.align import find_alignment
from speech3.decode.graph import build_graph, load_graph
from speech3.decode.new_graph import GraphSources, _pronounced, make_graph, replace_graph
from speech3.decode.recognizer import Recognizer, load_recognizer, transcribe
from speech3.errors import DataError, MissingError, Speech3Error
from speech3.hmm.alignment.oov import by_letters, with_pronunciations
from speech3.hmm.alignment.times import read_ctm
from speech3.hmm.model import PdfsOnly
from speech3.language import WordGraph, espeak
from speech3.language.arpa import read_arpa, write_arpa
from speech3.language.lexicon import Lexicon, Pronunciation, mark_positions
from speech3.runtime.files import write_text


@pytest.fixture
def baa(tmp_path: Path) -> Path:
    """A recording of the phones b, a, a, which are no word of the model."""
    path = tmp_path / "baa.wav"
    soundfile.write(path, whistled(("SIL", 0.3), ("b", 0.25), ("a", 0.5), ("SIL", 0.3)), RATE_HZ)
    return path


def made(tmp_path: Path, name: str, text: str) -> Path:
    write_text(tmp_path / name, text)
    return tmp_path / name


def test_words_are_added_and_recognised_with_their_times(model: Path, tmp_path: Path, baa: Path, speech3) -> None:
    words, out = made(tmp_path, "words.txt", "BAA b a a\nBB\nABBA like A a b b a\n"), tmp_path / "new"
    (before,) = transcribe(load_recognizer(model), [baa])
    assert "BAA" not in before.text
    process = speech3("graph", model, out, "--add", words)
    assert process.returncode == 0, process.stderr
    assert "1 of the words are already in the language model and keep their probabilities: BB" in process.stderr
    assert process.stdout.startswith(f"{out}: 5 words, ")
    assert (out / "lexicon.txt").read_text() == "BAA 1 b a a\nABBA 1 a b b a\n"
    lm = read_arpa(out / "lm.arpa.gz")
    assert lm.log10_prob(["<s>"], "ABBA") == pytest.approx(lm.log10_prob(["<s>"], "A"))
    assert sum(10 ** lm.log10_prob(["<s>"], word) for word in (*lm.words, "</s>")) == pytest.approx(1, abs=1e-5)
    after = speech3("transcribe", model, baa, "--graph", out, "--ctm")
    assert after.returncode == 0, after.stderr
    _, _, start, duration, word, _ = after.stdout.split()
    assert (word, float(start)) == ("BAA", pytest.approx(0.3, abs=0.05))
    assert float(duration) == pytest.approx(0.75, abs=0.06)
    hot = made(tmp_path, "hot.txt", "BB 20\n")
    (hotter,) = transcribe(replace_graph(load_recognizer(model), out, hot), [baa])
    assert "BB" in hotter.text.split()
    (loaded,) = transcribe(Recognizer.load(model, graph=out, hot=["BB 20"]), [baa])
    assert loaded == hotter
    refused = speech3("transcribe", model, baa, "--hot", made(tmp_path, "none.txt", "BAA\n"))
    assert refused.returncode == 1 and "speech3 graph MODEL OUT --add" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_added_words_have_times_after_rescoring(model: Path, tmp_path: Path, baa: Path) -> None:
    graph, data = tmp_path / "new", tmp_path / "data"
    make_graph(model, graph, GraphSources(add=made(tmp_path, "words.txt", "BAA 5 b a a\n")))
    write_datadir(DataDir(data, {"u": str(baa)}, {"u": Utterance("u", "u", "u", "BAA")}), data)
    decode_verb.decode(model, data, tmp_path / "old", lattice=True, nbest=2, graph=graph, jobs=1)
    lm, out = str(graph / "lm.arpa.gz"), tmp_path / "rescored"
    rescore_verb.rescore(tmp_path / "old", lm, out, ctm=True, nbest=2, jobs=1)
    assert [word.label for word in read_ctm(out / "hyp.ctm")["u"]] == ["BAA"]
    rescore_verb.rescore(tmp_path / "old", lm, out, weight=0.5, jobs=1)
    assert not (out / "hyp.ctm").exists() and not (out / "nbest.jsonl").exists(), "those of the run before"


def test_the_corrected_lexicon_is_given_back(model: Path, tmp_path: Path, baa: Path) -> None:
    words, out = made(tmp_path, "words.txt", "BAA 2\n"), tmp_path / "new"
    lexicon = made(tmp_path, "lexicon.txt", "BAA b b b\nBAA b a\nZZZ a\n")
    found = make_graph(model, out, GraphSources(add=words, lexicon=lexicon))
    assert found.about["words"] == 4 and not found.guessed.pronunciations
    (result,) = transcribe(replace_graph(load_recognizer(model), out), [baa])
    assert result.text == "BAA"
    kept = (out / "lexicon.txt").read_text()
    make_graph(model, tmp_path / "again", GraphSources(add=words, lexicon=out / "lexicon.txt"))
    assert (tmp_path / "again" / "lexicon.txt").read_text() == kept == "BAA 1 b b b\nBAA 1 b a\n"


def test_sentences_a_grammar_a_model_and_text(model: Path, tmp_path: Path, sounds: dict[str, Path]) -> None:
    texts = {
        "sentences": "A BB\nBB A\n",
        "grammar": "#JSGF V1.0;\ngrammar g;\npublic <r> = A BB | BB <r>;",
        "text": "A BB\nA BB\nBB A\n",
    }
    for option, text in texts.items():
        out = tmp_path / option
        make_graph(model, out, GraphSources(**{option: made(tmp_path, "file.txt", text)}))  # type: ignore[arg-type]
        recognizer = replace_graph(load_recognizer(model), out)
        assert set(recognizer.graph.words) == {"<eps>", "A", "BB", "#0"}
        (result,) = transcribe(recognizer, [sounds["a-bb"]])
        assert result.text == "A BB"
        (result,) = transcribe(recognizer, [sounds["ab"]])  # AB is not a word of this graph
        assert result.text and "AB" not in result.text.split()
        assert (out / "lm.arpa.gz").exists() == (option == "text") and not (out / "lexicon.txt").exists()
    write_arpa(toys.estimate_lm([["A", "QUAGGA"], ["A"]], 2), tmp_path / "other.arpa")
    about = make_graph(model, tmp_path / "lm", GraphSources(lm=tmp_path / "other.arpa")).about
    assert about["dropped"] == ["QUAGGA"] and (tmp_path / "lm" / "dropped.txt").read_text() == "QUAGGA\n"
    make_graph(
        model, tmp_path / "lm", GraphSources(sentences=made(tmp_path, "file.txt", "A\n"))
    )  # in place of the earlier graph
    assert not (tmp_path / "lm" / "dropped.txt").exists() and not (tmp_path / "lm" / "lm.arpa.gz").exists()


def test_texts_are_written_as_the_models_words(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the model's words are in upper case, and none has punctuation at an edge."""
    for option in ("text", "sentences"):
        file = made(tmp_path, option, "a, Bb!\n- BB a\n")
        make_graph(model, tmp_path / "out", GraphSources(**{option: file}))  # type: ignore[arg-type]
        assert set(load_graph(tmp_path / "out").words) == {"<eps>", "A", "BB", "#0"}
        assert f"{file}: 4 of 5 words were changed to the model's spelling" in capsys.readouterr().err
    # Words of a lexicon that is given have its spelling.
    lexicon = made(tmp_path, "lexicon.txt", "iBaa b a a\n")
    make_graph(model, tmp_path / "out", GraphSources(text=made(tmp_path, "text", "A ibaa iBaa\n"), lexicon=lexicon))
    assert set(load_graph(tmp_path / "out").words) == {"<eps>", "A", "iBaa", "#0"}


def test_a_grammar_s_costs_stand_in_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from speech3.config import DecodeConfig
    from speech3.decode.grammar import from_word_graph
    from speech3.decode.search import decode
    from speech3.language.grammar import read_jsgf

    hmm = toys.toy_hmm()
    body = "#JSGF V1.0;\ngrammar g;\npublic <r> = /3/ A (AB | BA)* | /1/ [BA2] <s>;\n<s> = AB [<s>];"
    grammar = read_jsgf(made(tmp_path, "g.jsgf", body))
    build_graph(hmm, from_word_graph(grammar, hmm.lexicon), tmp_path, toys.SCALE)
    language = {words: -math.log(share) for words, share in sentences_of(grammar, 3).items()}
    for seed in range(5):
        scores_TP = toys.random_scores(hmm, 12, seed)
        expected = toys.exhaustive(hmm, language, scores_TP)
        best = min(expected, key=expected.__getitem__)
        config = DecodeConfig(beam=1000.0, max_active=100_000)
        found = decode(load_graph(tmp_path), [("u", scores_TP)], config, 1.0).hypotheses[0]
        assert (found.words, found.cost) == (best, pytest.approx(expected[best], abs=2e-3))


def test_letters_say_how_words_are_pronounced() -> None:
    spelled = {f"{a}{b}{c}": (a, b, c) for a in "bdgkl" for b in "aeiou" for c in "nst"}
    lexicon = mark_positions(Lexicon(tuple(Pronunciation(word, phones) for word, phones in spelled.items())))
    guesses = by_letters(toys.toy_hmm(lexicon), ["lodo", "bat", "gin", "zan"])
    assert [(pron.word, pron.phones) for pron in guesses.pronunciations] == [
        ("lodo", tuple("lodo")),  # no word of the lexicon ends in o, which is then that within words
        ("bat", tuple("bat")),
        ("gin", tuple("gin")),
    ]
    assert guesses.unpronounced.keys() == {"zan"}
    assert "no word of the lexicon has" in guesses.unpronounced["zan"]
    assert "0% of the phones are wrong" in guesses.how
    assert guesses.how.startswith("from the spelling")  # of one word or several


def test_other_pronunciations_keep_the_numbers_of_phones() -> None:
    lexicon = Lexicon((Pronunciation("A", ("a",)), Pronunciation("B", ("b",)), Pronunciation("C", ("c",))))
    hmm = with_pronunciations(toys.toy_hmm(lexicon), [Pronunciation("A", ("b", "b"))], "x")
    assert hmm.lexicon.phones == lexicon.phones and hmm.lexicon.by_word["A"][0].phones == ("b", "b")
    assert list(hmm.lexicon.by_word) == ["B", "C", "A"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "nothing to change: add --add, --lexicon, --lm, --text, --grammar or --sentences"),
        ({"lm": "", "text": ""}, "--lm and --text exclude one another"),
        ({"add": "A", "grammar": ""}, "--add and --grammar exclude one another"),
        ({"add": "\n"}, r"add: contains no word to add"),
        ({"add": "A\nBB\n"}, r"add: nothing to add: the model .*already"),
        ({"add": "BAA a q\n"}, r"add: BAA: q is not a phone of the model; use its phones: a, b$"),
        ({"add": "BAA\n"}, r"add: cannot pronounce BAA: the model's lexicon has only 3 words .*--lang"),
        ({"add": "Baa b a\nNo\n"}, r"add: No: the model's words are in upper case; cannot pronounce NO: "),
        (
            {"grammar": "#JSGF V1.0;\ngrammar g;\npublic <r> = ab a;"},
            r"grammar: ab, a: the model's words are in upper case; write AB, A$",
        ),
        (
            {"grammar": "#JSGF V1.0;\ngrammar g;\npublic <r> = ab. xyz;"},
            r": ab\., xyz: .* upper case and have no punctuation; cannot pronounce XYZ",
        ),
        (
            {"grammar": "#JSGF V1.0;\ngrammar g;\npublic <r> = AB, A BB.;"},
            r"grammar: AB,, BB\.: the model's words have no punctuation; write AB, BB$",
        ),
        ({"sentences": "ab. xyz\n"}, r"sentences: cannot pronounce XYZ: "),
        ({"add": "BAA like C b a\n"}, r"add:1: BAA is to be like C, which is not in the language model"),
        ({"add": "BAA 1e6 b a\n"}, r"add: together, the words would take 100% of the probability"),
        ({"add": "BAA 2 b a\nBAA 3 a b\n"}, r"add:2: BAA has another weight than in line 1"),
        ({"lexicon": "ZEBRA a\n"}, r"lexicon: none of its words \(ZEBRA\) is in .*so it would change nothing"),
        ({"lexicon": "A\n"}, r"lexicon:1: A has no phones"),
        ({"add": "BAA b a\nABBA SIL\n"}, r"add:2: ABBA has no phone of speech, only SIL; write how it is pronounced"),
        ({"add": "ABBA SIL SIL\n"}, r"add:1: ABBA has no phone of speech, only SIL SIL"),
        ({"add": "ABBA SPN\n"}, r"add:1: ABBA has no phone of speech, only SPN"),
        ({"lexicon": "B b\nBB SIL\n"}, r"lexicon:2: BB is pronounced as silence, SIL; write its phones"),
        ({"sentences": "\n"}, r"sentences: contains no sentence"),
        ({"sentences": "-\n"}, r"sentences: contains no sentence"),
        ({"text": "-\n"}, r"text: contains no words"),
        ({"sentences": "A ZEBRA\n"}, r"sentences: cannot pronounce ZEBRA: "),
        ({"grammar": "A B"}, r"grammar:1: a JSGF grammar begins with"),
        ({"grammar": "#JSGF V1.0;\ngrammar g;\npublic <r> = <VOID>;"}, r"grammar: the grammar accepts no sentence"),
        ({"text": "x y\n"}, r"text: none of its 2 words \(X, Y"),
        ({"lm": "no arpa"}, r"lm:1: the file ends where the"),
    ],
)
def test_mistakes_are_named(model: Path, tmp_path: Path, texts: dict[str, str], message: str) -> None:
    sources = GraphSources(**{name: made(tmp_path, name, text) for name, text in texts.items()})  # type: ignore[arg-type]
    with pytest.raises(Speech3Error, match=message):
        make_graph(model, tmp_path / "out", sources)
    assert not (tmp_path / "out" / "graph.json").exists()


def test_advice_for_new_words_does_not_go_in_a_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """espeak-ng's phones cannot be learnt from a few words in CMU's, so --lang is no remedy, nor is omitting it."""
    monkeypatch.setattr(espeak, "voice_of", str)
    monkeypatch.setattr(espeak, "pronounce", lambda texts, voice: [[["x"]] * len(t.split()) for t in texts])
    hmm = toys.toy_hmm(Lexicon((Pronunciation("ONE", ("W", "AH1", "N")), Pronunciation("TWO", ("T", "UW1")))))
    graph = WordGraph((), {}, "")
    for lang in (None, "en-us"):
        with pytest.raises(Speech3Error, match=r"SIX.*--lexicon FILE") as error:
            _pronounced(hmm, GraphSources(lang=lang), graph, ["SIX"], tmp_path / "kept")
        assert "50" in str(error.value) and "--lang" not in str(error.value) and "omit" not in str(error.value)


def test_an_unknown_language_gets_advice_for_graph_and_not_for_recipes(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(espeak, "voices", lambda: ())
    (data / "text").write_text("ab AB X\na-bb A BB\n")
    sources = GraphSources(add=made(tmp_path, "words.txt", "BAA\n"), lang="xx")
    for refused in (
        lambda: make_graph(model, tmp_path / "out", sources),
        lambda: find_alignment(load_recognizer(model), read_datadir(data), tmp_path / "ali", 1, lang="xx"),
    ):
        with pytest.raises(Speech3Error, match=r"--lang xx: espeak-ng does not know .*--lexicon FILE") as error:
            refused()
        assert "graphemes" not in str(error.value) and "lang=" not in str(error.value)


def test_order_is_that_of_text(model: Path, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match="--order applies to the language model estimated from --text"):
        make_graph(model, tmp_path / "out", GraphSources(lm=tmp_path, order=2))


def test_places_that_hold_something_else(model: Path, tmp_path: Path) -> None:
    sources = GraphSources(sentences=made(tmp_path, "s.txt", "A\n"))
    made(tmp_path, "full/letter.txt", "dear")
    for out, message in (
        (tmp_path / "full", "full: exists and is not an earlier graph"),
        (tmp_path / "full" / "letter.txt", r"letter\.txt: .*expected a directory"),
        (tmp_path / "s.txt", r"s\.txt: is one of the inputs"),
        (model / "graph", "graph: .*the model's own graph"),
    ):
        with pytest.raises(Speech3Error, match=message):
            make_graph(model, out, sources)
    assert (tmp_path / "full" / "letter.txt").read_text() == "dear"
    with pytest.raises(Speech3Error, match=r"full: not a decoding graph \(it has no graph\.json\)"):
        replace_graph(load_recognizer(model), tmp_path / "full")


def test_models_that_have_no_language_model_to_add_to(model: Path, tmp_path: Path) -> None:
    sources = GraphSources(add=made(tmp_path, "words.txt", "BAA b a\n"))
    (model / "graph" / "lm.arpa.gz").unlink()
    with pytest.raises(MissingError, match=r"has no lm\.arpa\.gz"):
        make_graph(model, tmp_path / "out", sources)
    (model / "graph" / "graph.json").unlink()
    with pytest.raises(MissingError, match="has no graph whose language model could be used"):
        make_graph(model, tmp_path / "out", sources)
    PdfsOnly(9, "made elsewhere").save(model)
    with pytest.raises(Speech3Error, match="no graph can be built for it: made elsewhere"):
        make_graph(model, tmp_path / "out", sources)


def test_a_graph_of_pieces(model: Path, tmp_path: Path) -> None:
    write_arpa(toys.estimate_lm([["▁A", "A"]], 2), model / "graph" / "lm.arpa.gz")
    with pytest.raises(DataError, match="language model consists of word pieces,"):
        make_graph(model, tmp_path / "out", GraphSources(add=made(tmp_path, "words.txt", "BAA b a\n")))


def test_a_graph_of_another_model(model: Path, tmp_path: Path) -> None:
    build_graph(toys.toy_hmm(context=True), toys.bigram(), tmp_path / "other", toys.SCALE)
    with pytest.raises(Speech3Error, match=r"other: built for \d+ pdfs, but the model has 9"):
        replace_graph(load_recognizer(model), tmp_path / "other")
    assert json.loads((model / "graph" / "graph.json").read_text())["lm"] == "Kneser-Ney"


def test_corrected_recordings_of_other_names_are_refused_before_the_alignment(
    model: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(Speech3Error, match=r"corrected recordings \(x_1, x_2\) .* no names in common"):
        find_alignment(
            load_recognizer(model), read_datadir(data), tmp_path / "ali", 1, corrected={"x_1": [], "x_2": []}
        )
    assert not (tmp_path / "ali").exists()
