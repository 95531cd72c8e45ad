"""Words added to a language model: what they are as probable as, and that nothing else changes."""

import itertools
import math
from pathlib import Path

import pytest

from speech3.errors import DataError, MissingError, Speech3Error
from speech3.language.added_words import AddedWord, add_words, read_added
from speech3.language.kneser_ney import estimate_lm
from speech3.language.ngrams import ArpaLm, from_ngrams

TEXT = [line.split() for line in ("a b c", "b a", "c c b a", "a", "d a b", "b c a d")]
SOURCE = Path("words.txt")


def listed(tmp_path: Path, text: str) -> list[AddedWord]:
    path = tmp_path / "words.txt"
    path.write_text(text)
    return read_added(path)


def histories(lm: ArpaLm) -> list[tuple[str, ...]]:
    words = [*lm.words, "unheard"]
    return [(), *[("<s>", *some) for n in range(3) for some in itertools.product(words, repeat=n)]]


def prob(lm: ArpaLm, history: tuple[str, ...], word: str) -> float:
    return 10 ** lm.log10_prob(history, word)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_history_still_sums_to_one_and_old_words_keep_their_ratios(tmp_path: Path, order: int) -> None:
    lm = estimate_lm(TEXT, order)
    more = add_words(lm, listed(tmp_path, "x\ny 0.3\nz like d\nw like b\n"), SOURCE)
    assert set(more.words) == {*lm.words, "x", "y", "z", "w"} and more.order == order
    for history in histories(more):
        old = [word for word in history if word in ("x", "y", "z", "w")]
        total = sum(prob(more, history, word) for word in (*more.words, "</s>"))
        assert total == pytest.approx(1, abs=1e-9), history
        if not old:
            ratios = {word: prob(more, history, word) / prob(lm, history, word) for word in (*lm.words, "</s>")}
            assert max(ratios.values()) == pytest.approx(min(ratios.values()), abs=1e-12), history
            assert max(ratios.values()) < 1


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_word_like_another_is_as_probable_and_so_is_what_follows(tmp_path: Path, order: int) -> None:
    lm = estimate_lm(TEXT, order)
    more = add_words(lm, listed(tmp_path, "z like b\n"), SOURCE)
    for history in histories(lm):
        assert prob(more, history, "z") == pytest.approx(prob(more, history, "b"), rel=1e-12)
    for word in ("a", "c", "</s>"):
        assert prob(more, ("<s>", "z"), word) == pytest.approx(prob(more, ("<s>", "b"), word), rel=1e-12)
    if order > 1:
        assert prob(more, ("a",), "z") != pytest.approx(prob(more, ("d",), "z"), rel=0.1)


def test_the_default_is_the_median_word(tmp_path: Path) -> None:
    counts = {"a": 8, "b": 4, "c": 2, "d": 1, "e": 1}
    ngrams = {(word,): (math.log10(count / 20), 0.0) for word, count in counts.items()}
    lm = from_ngrams(
        ({("<s>",): (-99.0, 0.0), ("</s>",): (math.log10(0.2), 0.0), ("<unk>",): (-9, 0.0), **ngrams},), "toy"
    )
    more = add_words(lm, listed(tmp_path, "x\ny 3\n"), SOURCE)
    assert prob(more, (), "x") == pytest.approx(prob(more, (), "c"))
    assert prob(more, (), "y") == pytest.approx(3 * prob(more, (), "c"))
    assert prob(more, (), "c") == pytest.approx(0.1 / 1.4)
    assert more.ngrams[0][("<s>",)][0] == -99.0


def test_a_list_of_words(tmp_path: Path) -> None:
    found = listed(tmp_path, "HOFF\n\nMEYER 2 M AY ER\nMEYER 2 M EY ER\nLEE like KIM L IY\n  LEE L EH\nROE R OW\n")
    assert found == [
        AddedWord("HOFF", None, None, (), 1),
        AddedWord("MEYER", 2.0, None, (("M", "AY", "ER"), ("M", "EY", "ER")), 3),
        AddedWord("LEE", None, "KIM", (("L", "IY"), ("L", "EH")), 5),
        AddedWord("ROE", None, None, (("R", "OW"),), 7),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"words\.txt: contains no word to add"),
        ("\n \n", r"words\.txt: contains no word to add"),
        ("A\n<s>\n", r"words\.txt:2: <s> is not a word"),
        ("A 0\n", r"words\.txt:1: A: weights must be above 0 .*, not 0"),
        ("A -1\n", r"words\.txt:1: A: weights must be above 0"),
        ("A like\n", r"words\.txt:1: `like` needs a word"),
        ("A 2\nB\nA 3\n", r"words\.txt:3: A has another weight than in line 1"),
        ("A 2\nA like B\n", r"words\.txt:2: A has another weight than in line 1"),
    ],
)
def test_invalid_lists(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Speech3Error, match=message):
        listed(tmp_path, text)


def test_what_cannot_be_added(tmp_path: Path) -> None:
    lm = estimate_lm(TEXT, 2)
    with pytest.raises(MissingError, match=r"words\.txt:2"):
        add_words(lm, listed(tmp_path, "y\nx like zebra\n"), SOURCE)
    with pytest.raises(DataError, match=r"words\.txt"):
        add_words(lm, listed(tmp_path, "x 1000\n"), SOURCE)
