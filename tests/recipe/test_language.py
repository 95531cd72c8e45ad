"""Language models of a recipe: the one for tuning has not seen dev's sentences; our own has the lexicon's words."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest

from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.decode.grammar import with_lexicon_of
from speech3.decode.graph import load_graph
from speech3.decode.new_graph import GraphSources, make_graph
from speech3.decode.search import Decoding
from speech3.errors import DataError, Speech3Error
from speech3.hmm.model import Hmm, monophone_tree
from speech3.language.arpa import ArpaLm, read_arpa, write_arpa
from speech3.language.kneser_ney import estimate_lm
from speech3.language.lexicon import Lexicon, Pronunciation
from speech3.language.neural import read_neural
from speech3.language.train_lm import perplexity
from speech3.recipe import evaluation, language
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.recipe.plan import planned_steps
from speech3.recipe.steps import make_plan
from speech3.runtime.files import write_text

TEXT = ["a b", "c", "a a", "b c", "c", "b b a"]
SAID = {"train": ["a b", "c"], "dev": ["b c", "c"], "test": ["a d"]}  # "c" is said in train, too


def experiment(out: Path, *overrides: str, source: Path | None = None, name: str = "any") -> Experiment:
    """An experiment with data as the stage `data` writes them."""
    write_text(out / "in" / "wav.scp", "")
    e = open_experiment(name, out, source or out / "in", ["jobs=1", *overrides], "")
    for split, sentences in SAID.items():
        rows = {f"{split}{n}": Utterance(f"{split}{n}", f"{split}{n}", "s", text) for n, text in enumerate(sentences)}
        write_datadir(DataDir(e.data(split), {key: f"{key}.wav" for key in rows}, rows), e.data(split))
    write_text(e.lexicon, "<unk> SPN\n!SIL SIL\n[noise] NSN\na A\nb B\nc C\nrare R\n")
    return e


def with_text(out: Path, *overrides: str) -> Experiment:
    e = experiment(out, *overrides)
    write_text(e.out / "data" / "lm_text", "".join(f"{line}\n" for line in TEXT))
    return e


def with_given(out: Path, text: bool = True) -> Experiment:
    """An experiment whose corpus includes a language model and, with `text`, the text of the model."""
    source = out.parent / "source"
    (source / "lang").mkdir(parents=True)
    e = experiment(out, source=source, name="minilibri")
    write_arpa(estimate_lm([line.split() for line in TEXT], 1), e.out / "data" / "lm.arpa.gz")
    write_text(source / "lang" / "lexicon.txt", "a A\n")
    if text:
        (source / "lang" / "lm_train.txt.gz").write_bytes(gzip.compress("".join(f"{t}\n" for t in TEXT).encode()))
    return e


def lm(e: Experiment, name: str) -> ArpaLm:
    return read_arpa(e.out / "lm" / f"{name}.arpa.gz")


def same(one: ArpaLm, other: ArpaLm) -> bool:
    """Whether two models are equal up to the precision of an ARPA file."""
    return len(one.ngrams) == len(other.ngrams) and all(
        ours == {words: pytest.approx(values, abs=1e-5) for words, values in theirs.items()}
        for ours, theirs in zip(one.ngrams, other.ngrams, strict=True)
    )


def test_words_that_the_text_lacks_are_in_our_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = with_text(tmp_path / "out")
    language.make_lm(e)
    found = lm(e, "lm")
    assert set(found.words) == {"a", "b", "c", "rare"}, "neither noises nor words of test"
    for history in ((), ("a",), ("<s>",)):
        total = sum(10 ** found.log10_prob(history, word) for word in (*found.words, "</s>"))
        assert total == pytest.approx(1, abs=1e-5)
        assert 10 ** found.log10_prob(history, "rare") > 1e-3
    assert same(found, estimate_lm([line.split() for line in TEXT], 3, {"a", "b", "c", "rare"}))
    said = capsys.readouterr().err
    assert "1 of the lexicon's 4 words are not in the text" in said
    value, skipped = perplexity(found, [["a", "d"]])
    assert skipped == 1
    assert f"perplexity of test {value:.1f} (without 1 of 2 words, which it lacks)" in said


def test_words_that_the_lexicon_lacks_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = with_text(tmp_path / "out")
    write_text(e.lexicon, "a A\nb B\n")
    language.make_lm(e)
    assert set(lm(e, "lm").words) == {"a", "b", "<unk>"}
    said = capsys.readouterr().err
    assert "1 of the text's 3 words are not in the lexicon and count as <unk>\n" in said


def test_words_that_only_the_given_text_has_are_pronounced_as_those_of_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, source = tmp_path / "sentences.txt", tmp_path / "corpus"
    text.write_text("Cab, ab!\nabba CAB (twice).\n1984\n")
    source.mkdir()
    (source / "u.wav").write_bytes(b"")  # a folder of recordings, whose transcripts are in plain words
    e = open_experiment("any", tmp_path / "out", source, [f"lm.text={text}", "lexicon=graphemes", "lm.letters=0"], "")
    for split in SAID:
        rows = {f"{split}{n}": Utterance(f"{split}{n}", f"{split}{n}", "s", "cab a b c twie") for n in range(9)}
        write_datadir(DataDir(e.data(split), {key: f"{key}.wav" for key in rows}, rows), e.data(split))
    words = ("cab", "a", "b", "c", "twie")
    write_text(e.lexicon, "".join(f"{word} {' '.join(word)}\n" for word in words))
    language.make_lm(e)
    # Written as the transcripts are; 1984 has no letters.
    assert set(lm(e, "lm").words) == {*words, "ab", "abba", "twice", "<unk>"}
    further = tmp_path / "out" / "lm" / "lexicon.txt"
    assert further.read_text() == "ab a b\nabba a b b a\ntwice t w i c e\n"
    said = capsys.readouterr().err
    assert f"3 words of {text} are not in the transcripts; their pronunciations: {further}" in said
    assert "1 of the text's 5 words are not in the lexicon and count as <unk>" in said
    # The graphs have these words, and what is recognised can be aligned.
    phones = sorted(set("".join(words)))
    known = Lexicon(tuple(Pronunciation(word, tuple(word)) for word in words))
    hmm = Hmm(known, monophone_tree(range(1 + len(phones))), [0.5] * 3 * (1 + len(phones)))  # type: ignore[arg-type]
    hmm.save(e.model("tri"))
    language.make_graphs(e, "tri")
    graph = e.model("tri") / "graph"
    assert {"ab", "abba", "twice"} < set(load_graph(graph).words)
    assert "abba" in with_lexicon_of(hmm, graph).lexicon.by_word  # type: ignore[union-attr]
    # So has another graph of the model, with a word more.
    (tmp_path / "add.txt").write_text("cabba c a b b a\n")
    made = make_graph(e.model("tri"), tmp_path / "more", GraphSources(add=tmp_path / "add.txt"))
    assert not made.about["dropped"]
    assert {"abba", "twice", "cabba"} < set(load_graph(tmp_path / "more").words)
    assert {"abba", "cabba"} < set(with_lexicon_of(hmm, tmp_path / "more").lexicon.by_word)  # type: ignore[union-attr]
    # The text is normalised once; what is taken out of it is said.
    assert (tmp_path / "out" / "lm" / "text.txt").read_text() == "cab ab\nabba cab twice\n1984\n"
    # Without such words, or with a grammar, nothing is left of them.
    grammar = open_experiment("any", tmp_path / "out", source, ["lm.order=null", "lm.grammar=one-word"], "")
    language.make_lm(grammar)
    assert not further.exists() and not (tmp_path / "out" / "lm" / "text.txt").exists()
    text.write_text("cab a b\n")
    language.make_lm(e)
    language.make_graphs(e, "tri")
    assert not further.exists() and not (graph / "lexicon.txt").exists()


def test_a_model_in_another_case_is_still_refused(tmp_path: Path) -> None:
    """Its words could be pronounced by their letters, but nobody would have said one."""
    e = experiment(
        tmp_path / "out", "lm.order=null", f"lm.arpa={tmp_path / 'upper.arpa'}", "lexicon=graphemes", "lm.letters=0"
    )
    write_arpa(estimate_lm([line.upper().split() for line in TEXT], 1), tmp_path / "upper.arpa")
    language.make_lm(e)
    assert not (tmp_path / "out" / "lm" / "lexicon.txt").exists()


def test_the_model_to_tune_with_lacks_sentences_that_only_dev_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    e = with_text(tmp_path / "out", "lm.order=2")
    language.make_lm(e)
    assert "1 of the text's 6 sentences are in dev" in capsys.readouterr().err
    kept = [line.split() for line in TEXT if line != "b c"]
    assert same(lm(e, "tuning"), estimate_lm(kept, 2, {"a", "b", "c", "rare"}))
    assert not (e.out / "lm" / "own.arpa.gz").exists(), "lm.arpa.gz is ours"
    write_text(e.out / "data" / "lm_text", "a b\nc\n")
    language.make_lm(e)
    assert not (e.out / "lm" / "tuning.arpa.gz").exists(), "the one of the earlier run is gone"


def test_transcripts_of_train_alone_need_no_second_model(tmp_path: Path) -> None:
    e = experiment(tmp_path / "out")
    language.make_lm(e)
    assert [path.name for path in (e.out / "lm").iterdir()] == ["lm.arpa.gz"]
    assert same(lm(e, "lm"), estimate_lm([["a", "b"], ["c"]], 3, {"a", "b", "c", "rare"}))


def test_a_given_model_gets_ours_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = with_given(tmp_path / "out")
    language.make_lm(e)
    assert same(lm(e, "lm"), estimate_lm([line.split() for line in TEXT], 1))
    words = {"a", "b", "c", "rare"}
    assert same(lm(e, "own"), estimate_lm([line.split() for line in TEXT], 1, words)), "of the given one's order"
    assert same(lm(e, "tuning"), estimate_lm([t.split() for t in TEXT if t != "b c"], 1, words))
    said = capsys.readouterr().err
    for name in ("lm", "own", "tuning"):
        value, _ = perplexity(lm(e, name), [["b", "c"], ["c"]])
        assert f"  {name}.arpa.gz: perplexity of dev {value:.1f}, perplexity of test " in said


def test_a_given_model_without_its_text_stands_alone(tmp_path: Path) -> None:
    e = with_given(tmp_path / "out", text=False)
    language.make_lm(e)
    assert [path.name for path in (e.out / "lm").iterdir()] == ["lm.arpa.gz"]


def test_pieces_are_compared_as_words(tmp_path: Path) -> None:
    e = experiment(tmp_path / "out", "lm.order=2")
    write_text(e.out / "data" / "lm_text", "▁a ▁b\n▁ b ▁c\n▁c a\n")
    write_text(e.out / "data" / "pieces.txt", "▁\n▁a\n▁b\n▁c\na\nb\n")
    language.make_lm(e)
    pieces = {"▁", "▁a", "▁b", "▁c", "a", "b"}
    assert same(lm(e, "lm"), estimate_lm([["▁a", "▁b"], ["▁", "b", "▁c"], ["▁c", "a"]], 2, pieces))
    assert same(lm(e, "tuning"), estimate_lm([["▁a", "▁b"], ["▁c", "a"]], 2, pieces))


def test_a_graph_for_each_model(tmp_path: Path) -> None:
    e = with_given(tmp_path / "out")
    lexicon = Lexicon(tuple(Pronunciation(word, (word.upper(),)) for word in ("a", "b", "c", "rare")))
    tree = monophone_tree(range(5))  # type: ignore[arg-type]
    Hmm(lexicon, tree, [0.5] * 15).save(e.model("tri"))  # type: ignore[arg-type]
    language.make_lm(e)
    language.make_graphs(e, "tri")
    words = {name: set(load_graph(e.model("tri") / name).words) for name in ("graph", "graph_tuning", "graph_own")}
    assert words["graph"] == {"<eps>", "a", "b", "c", "#0"}
    assert words["graph_tuning"] == words["graph_own"] == words["graph"] | {"rare"}
    (e.source / "lang" / "lm_train.txt.gz").unlink()  # type: ignore[operator]
    language.make_lm(e)
    language.make_graphs(e, "tri")
    assert [path.name for path in e.model("tri").glob("graph*")] == ["graph"]


def test_monophones_are_decoded_if_asked_for(tmp_path: Path) -> None:
    def planned(*overrides: str) -> set[str]:
        e = open_experiment("digits", tmp_path, None, list(overrides), "")
        assert e.systems == e.shown
        plans = make_plan(planned_steps(e), tmp_path, None, None)
        return {plan.step.name for plan in plans if plan.step.stage in ("graph", "decode")}

    gmms = {f"{stage}/{system}" for stage in ("graph", "decode") for system in ("tri", "lda", "sat")}
    assert planned() == gmms | {"graph/lm", "decode/dnn"}
    assert planned("decode_mono=true") == planned() | {"graph/mono", "decode/mono"}


def test_the_model_of_rescoring_lacks_sentences_that_only_dev_says(tmp_path: Path) -> None:
    e = with_text(tmp_path / "own", "lm.order=2", "lm.rescore=3")
    language.make_rescoring_lm(e)
    kept = [line.split() for line in TEXT if line != "b c"]
    assert same(read_arpa(e.rescoring_lm), estimate_lm(kept, 3, {"a", "b", "c", "rare"}))
    plan = {step.name: step for step in planned_steps(e)}
    assert plan["rescore/tri"].needs == ["decode/tri", "graph/rescore"]
    assert plan["graph/rescore"].outputs == [e.rescoring_lm] and "rescore/tri" in plan["score"].needs
    plain = {step.name: step for step in planned_steps(with_text(tmp_path / "plain", "lm.order=2"))}
    assert "graph/rescore" not in plain and plan["graph/lm"].config == plain["graph/lm"].config
    assert plan["decode/tri"].config == plain["decode/tri"].config, "nothing is decoded again"
    some = tmp_path / "some.arpa"
    some.write_text("no model")
    of_file = with_text(tmp_path / "file", "lm.order=2", f"lm.rescore={some}")
    assert of_file.rescoring_lm == some
    assert some in {step.name: step for step in planned_steps(of_file)}["rescore/tri"].inputs
    alone = with_given(tmp_path / "alone", text=False)
    given = experiment(tmp_path / "given", "lm.order=2", "lm.rescore=3", source=alone.source, name="minilibri")
    write_arpa(lm_given(alone), given.out / "data" / "lm.arpa.gz")
    for make in (language.make_rescoring_lm, language.check_given):
        with pytest.raises(Speech3Error, match=r"lm\.rescore=3: there is no text to make it of"):
            make(given)
    with pytest.raises(Speech3Error, match=r"some\.arpa:1: "):
        language.check_given(of_file)


def test_a_neural_model_of_rescoring_is_mixed_with_ngrams_and_lacks_dev(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "tiny.yaml", "width: 8\nepochs: 3\nsamples: 0\ndropout: 0\n")
    e = with_text(tmp_path / "own", "lm.order=2", f"lm.rescore={tmp_path / 'tiny.yaml'}")
    language.check_given(e)
    plan = {step.name: step for step in planned_steps(e)}
    step = plan["graph/rescore"]
    assert "graph/rescore" in plan["rescore/tri"].needs and step.owns == e.rescoring_lm
    assert step.settings["lm.rescore.width"] == 8 and step.open_keys == ["lm.rescore.device"]
    step.run()
    mixture = read_neural(e.rescoring_lm)
    kept = [line.split() for line in TEXT if line != "b c"]
    assert (e.rescoring_lm / "text.txt").read_text().split("\n")[1:-1] == [" ".join(words) for words in kept]
    assert mixture.ngrams and same(mixture.ngrams, estimate_lm(kept, 4, {"a", "b", "c", "rare"}))
    assert set(mixture.units[3:]) == {"a", "b", "c"} and 0 <= mixture.share <= 1
    assert "perplexity of test" in capsys.readouterr().err
    # A preset by its name, and a model that exists.
    assert planned_steps(with_text(tmp_path / "preset", "lm.order=2", "lm.rescore=lstm"))
    existing = with_text(tmp_path / "existing", "lm.order=2", f"lm.rescore={e.rescoring_lm}")
    language.check_given(existing)
    plan = {step.name: step for step in planned_steps(existing)}
    assert "graph/rescore" not in plan and plan["rescore/tri"].inputs == [e.rescoring_lm]


def test_words_that_look_like_ids_reach_the_neural_model(tmp_path: Path) -> None:
    write_text(tmp_path / "tiny.yaml", "width: 8\nepochs: 1\nsamples: 0\nseed: 7\n")
    e = experiment(tmp_path / "out", "lm.order=2", f"lm.rescore={tmp_path / 'tiny.yaml'}")
    codes = [f"x{number}" for number in range(30)]
    write_text(e.lexicon, "<unk> SPN\na A\nb B\n" + "".join(f"{code} C\n" for code in codes))
    write_text(e.out / "data" / "lm_text", "".join(f"{code} a b\n" for code in codes))
    assert e.rescoring_config and e.rescoring_config.seed == 7, "the file's own"
    language.train_rescoring_lm(e, e.rescoring_config)
    assert set(read_neural(e.rescoring_lm).units[3:]) == {"a", "b", *codes}
    write_text(e.lexicon, "<unk> SPN\nelsewhere A\n")
    with pytest.raises(DataError, match=r"lm_text: without dev's sentences it has no word of .*lexicon"):
        language.train_rescoring_lm(e, e.rescoring_config)


class _Model:
    def __init__(self, directory: Path) -> None:
        self.tuning_graph = directory / "graph_tuning"
        self.settings = SimpleNamespace(lengths=None)


def test_dev_of_sat_is_rescored_with_the_graph_that_has_not_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = with_text(tmp_path / "out", "lm.order=2", "lm.rescore=3")
    graphs, adapted = [], _Model(tmp_path / "adapted")

    def decode(recognizer: object, feats: object, out: Path, wanted: object, jobs: int, graph: Path | None) -> None:
        graphs.append((recognizer, out.name, graph))

    monkeypatch.setattr(evaluation.speakers, "last_pass", lambda e, split: (adapted, {}))
    monkeypatch.setattr(evaluation, "decode_latticed", decode)
    monkeypatch.setattr(evaluation, "open_lattices", lambda path: path)
    rescored = SimpleNamespace(rates={0.0: 0.2, 1.0: 0.1}, weight=1.0, decoding=Decoding((), {}))
    monkeypatch.setattr(evaluation, "rescore", lambda *_: rescored)
    monkeypatch.setattr(evaluation, "write_hypotheses", lambda *_: None)
    monkeypatch.setattr(evaluation, "_silent", lambda *_: frozenset())
    evaluation.rescore_system(e, "sat")
    assert graphs == [(adapted, "dev_lattices", adapted.tuning_graph), (adapted, "test_lattices", None)]


def lm_given(e: Experiment) -> ArpaLm:
    return read_arpa(e.out / "data" / "lm.arpa.gz")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lm.order=2", "lm.rescore=lstn"], r"lm\.rescore=lstn: .*lstm, transformer"),
        (["lm.order=2", "units=sentencepiece", "lm.rescore=lstm"], r"lm\.rescore=lstm: learns words"),
        (["lm.order=2", "lm.rescore=7"], "rescore: an order from 1 to 6, .*, not 7"),
        (["lm.order=null", "lm.grammar=one-word", "lm.rescore=2"], "lattices of a grammar have no n-grams"),
    ],
)
def test_what_cannot_be_rescored(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=message):
        experiment(tmp_path, *overrides)


def test_the_ids_of_kaldis_text_are_no_words(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"utt_{n:02d} {line}\n" for n, line in enumerate(TEXT)))
    e = experiment(tmp_path / "out", f"lm.text={tmp_path / 'text'}")
    language.make_lm(e)
    assert same(lm(e, "lm"), estimate_lm([line.split() for line in TEXT], 3, {"a", "b", "c", "rare"}))
    (tmp_path / "text").write_text("a b\n<s> b </s>\n")
    with pytest.raises(Speech3Error, match=r"text:2: </s> and <s> in the text"):
        language.check_given(e)  # in the stage `data`
