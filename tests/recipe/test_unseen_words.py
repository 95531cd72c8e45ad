"""Recipes with `lm.letters`: the letter model, its weight chosen on dev, the graphs; and what is refused."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from speech3.data.datadir import DataDir, Utterance, write_datadir
from speech3.decode.grammar import read_spelling
from speech3.decode.graph import load_graph
from speech3.errors import MissingError, Speech3Error
from speech3.hmm.model import Hmm, monophone_tree
from speech3.language.added_words import new_word_weight
from speech3.language.arpa import read_arpa
from speech3.language.lexicon import mark_positions, read_lexicon
from speech3.recipe import language
from speech3.recipe.experiment import Experiment, open_experiment
from speech3.runtime.files import write_text

SAID = {"train": ["ba nga", "ngaba"], "dev": ["ba ab", "nganga ba", "ba nga"], "test": ["abab"]}


def experiment(out: Path, *overrides: str) -> Experiment:
    """An experiment with data as the stage `data` writes them."""
    e = open_experiment("any", out, out / "in", ["jobs=1", "lexicon=graphemes", *overrides], "")
    for split, sentences in SAID.items():
        rows = {f"{split}{n}": Utterance(f"{split}{n}", f"{split}{n}", "s", text) for n, text in enumerate(sentences)}
        write_datadir(DataDir(e.data(split), {key: f"{key}.wav" for key in rows}, rows), e.data(split))
    write_text(e.lexicon, "<unk> SPN\n[noise] NSN\nba b a\nnga ng a\nngaba ng a b a\nabba a b b a\n")
    write_text(out / "data" / "letters.txt", "a a\nb b\nng ng\n")
    lexicon = mark_positions(read_lexicon(e.lexicon))
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5)).save(e.model("tri"))
    return e


def test_graphs_spell_words_of_the_letters_of_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = experiment(tmp_path / "out")
    write_text(e.out / "data" / "lm_text", "ba nga\nngaba\nba nga ba\nba ab\n")  # the last is a sentence of dev
    language.make_lm(e)
    letters = read_arpa(e.out / "lm" / "letters.arpa.gz")
    assert set(letters.words) == {"a￭", "b￭", "ng￭", "￭a￭", "￭b￭", "￭a"}, "ng is one letter"
    assert letters.ngrams[1]["<s>", "ng￭"] > letters.ngrams[1]["<s>", "a￭"], "each word counts once, noises not at all"
    language.make_graphs(e, "tri")
    dev = [line.split() for line in SAID["dev"]]
    weight = new_word_weight(read_arpa(e.out / "lm" / "tuning.arpa.gz"), dev)  # the other model has seen dev
    assert weight != pytest.approx(new_word_weight(read_arpa(e.out / "lm" / "lm.arpa.gz"), dev), rel=0.01)
    for name in ("graph", "graph_tuning"):
        found = read_spelling(e.model("tri") / name)
        assert found is not None and found.weight == pytest.approx(weight)
        units = {word for word in load_graph(e.model("tri") / name).words if "￭" in word}
        assert units == set(letters.words)
    assert f"unseen words at weight {weight:.3g}" in capsys.readouterr().err
    closed = experiment(tmp_path / "out", "lm.letters=0")
    language.make_lm(closed)
    language.make_graphs(closed, "tri")
    assert not (e.out / "lm" / "letters.arpa.gz").exists()
    assert read_spelling(e.model("tri") / "graph") is None, "nothing is left of the earlier graph"
    assert not any("￭" in word for word in load_graph(e.model("tri") / "graph").words)


def test_the_order_is_that_of_the_key(tmp_path: Path) -> None:
    e = experiment(tmp_path / "out", "lm.letters=2")
    language.make_lm(e)
    assert read_arpa(e.out / "lm" / "letters.arpa.gz").order == 2
    assert experiment(tmp_path / "six").recipe.letters == 6, "where words are spelled by their letters"
    for other in ("units=sentencepiece", "lexicon=espeak"):
        assert experiment(tmp_path / "none", other).recipe.letters == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["lexicon=espeak", "lm.letters=4"], r"lm\.letters: words are spelled where their letters are their phones"),
        (["units=sentencepiece", "lm.letters=4"], r"set lexicon=graphemes units=words"),
        (["lm.order=null", "lm.grammar=one-word", "lm.letters=4"], r"without lm\.grammar; or set lm\.letters=0"),
        (["lm.letters=1"], "letters: an order from 2 to 6, or 0 for a closed vocabulary, not 1"),
        (["lm.letters=7"], "lm.letters"),
    ],
)
def test_what_cannot_be_spelled(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(Speech3Error, match=message):
        experiment(tmp_path, *overrides)


def test_data_of_an_earlier_version_and_words_of_one_letter(tmp_path: Path) -> None:
    e = experiment(tmp_path / "out")
    write_text(e.out / "data" / "letters.txt", "ba b a\nnga ng a\n")
    write_text(e.lexicon, "ba b a\nnga ng a\n")
    with pytest.raises(Speech3Error, match=r"lexicon\.txt: no word has two letters, .*; set lm\.letters=0"):
        language.make_lm(e)
    (e.out / "data" / "letters.txt").unlink()
    with pytest.raises(MissingError, match=r"letters\.txt"):
        language.make_lm(e)


def test_fillers_of_graphs_are_spelled_if_the_key_says_so(tmp_path: Path) -> None:
    e = experiment(tmp_path / "out", "lm.filler=spelled", "lexicon=espeak", "jobs=2")
    words = ["".join(letters) for size in range(2, 9) for letters in product("ab", repeat=size)][:400]
    write_text(e.lexicon, "<unk> SPN\n" + "".join(f"{word} {' '.join(word)}\n" for word in words))
    lexicon = mark_positions(read_lexicon(e.lexicon))
    tree = monophone_tree(np.arange(len(lexicon.phones)))
    Hmm(lexicon, tree, np.full(tree.num_pdfs, 0.5)).save(e.model("tri"))
    write_text(e.out / "data" / "lm_text", "ba ab\nabba\n")
    language.make_lm(e)
    language.make_graphs(e, "tri")
    for name in ("graph", "graph_tuning"):
        graph = load_graph(e.model("tri") / name)
        assert graph.speller is not None and graph.has_filler
        assert graph.speller(["<b>", "<a>", "<b>"]) == "bab"
    closed = experiment(tmp_path / "out", "lexicon=espeak")
    language.make_graphs(closed, "tri")
    assert load_graph(e.model("tri") / "graph").speller is None, "nothing is left of the earlier graph"
