import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from speech3.errors import Speech3Error
from speech3.language.arpa import read_arpa
from speech3.language.kneser_ney import discounts, estimate_lm
from speech3.language.train_lm import perplexity

SHARED = Path(__file__).parents[2].parent / "shared"
WORDS = st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(WORDS, st.integers(1, 4), st.booleans())
def test_every_history_sums_to_one(text, order, with_vocabulary):
    lm = estimate_lm(text, order, ["a", "b", "z", "<unk>"] if with_vocabulary else None)
    outcomes = [*lm.words, "</s>"]
    histories = [h for ngrams in lm.ngrams for h in ngrams if h[-1] != "</s>"] + [(), ("never", "seen")]
    for history in histories:
        total = sum(10 ** lm.log10_prob(history, word) for word in outcomes)
        assert total == pytest.approx(1.0, abs=1e-9)


def textbook(text, order, history, word):
    """The module's formula, word by word over the text, with its discounts."""
    padded = [["<s>", *sentence, "</s>"] for sentence in text]
    vocabulary = {word for sentence in padded for word in sentence} - {"<s>"}

    def grams(n):
        return Counter(tuple(s[i : i + n]) for s in padded for i in range(len(s) - n + 1))

    def counts(n):
        if n == order:
            found = grams(n)
        else:
            found = Counter(gram[1:] for gram in grams(n + 1))
            found.update({gram: c for gram, c in grams(n).items() if gram[0] == "<s>"})
        found.pop(("<s>",), None)
        return found

    def prob(history):
        n = len(history) + 1
        found = counts(n)
        d = discounts([list(found.values()).count(c) for c in (1, 2, 3, 4)])
        lower = prob(history[1:]) if history else 1 / len(vocabulary)
        followers = {gram: c for gram, c in found.items() if gram[:-1] == history}
        total = sum(followers.values())
        if not total:
            return lower
        gamma = sum(d[min(c, 3)] for c in followers.values()) / total
        c = found[(*history, word)]
        return (c - d[min(c, 3)]) / total + gamma * lower

    return prob(tuple(history)[-(order - 1) :] if order > 1 else ())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_of_the_formula(order):
    rng = np.random.default_rng(0)
    text = [[*rng.choice(list("abcdefgh"), rng.integers(1, 8), p=np.arange(8, 0, -1) / 36)] for _ in range(40)]
    lm = estimate_lm(text, order)
    for history in (["<s>"], ["<s>", "a"], ["a", "b"], ["h", "g"], ["c", "a"]):
        for word in ("a", "b", "h", "</s>"):
            assert 10 ** lm.log10_prob(history, word) == pytest.approx(textbook(text, order, history, word), rel=1e-9)


def test_discounts_of_chen_and_goodman_and_of_tiny_texts():
    y = 100 / 180
    expected = [0, 1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 12 / 20]
    np.testing.assert_allclose(discounts([100, 40, 20, 12]), expected)
    np.testing.assert_allclose(discounts([2, 1, 0, 0]), [0, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(discounts([3, 1, 0, 0]), [0, 0.6, 0.6, 0.6])
    np.testing.assert_allclose(discounts([0, 0, 0, 0]), [0, 0.5, 0.5, 0.5])


def test_vocabulary_and_unknown_words():
    lm = estimate_lm([["a", "x", "b"], ["y"]], 2, ["a", "b", "c"])
    assert set(lm.words) == {"a", "b", "c", "<unk>"}
    assert -3 < lm.log10_prob(["a"], "c") < lm.log10_prob(["a"], "<unk>")
    assert ("a", "<unk>") in lm.ngrams[1]
    assert set(estimate_lm([["a"]], 2, ["a", "b"]).words) == {"a", "b"}


def test_unseen_words_share_what_is_discounted():
    """Counts 2, 1, 1 of a, b and the end: each less n1 / (n1 + 2 n2) = 1/2; four words (and ends) share 3/8."""
    lm = estimate_lm([["a", "a", "b"]], 1, ["a", "b", "rare"])
    for word, expected in (("rare", 3 / 32), ("a", 1.5 / 4 + 3 / 32), ("b", 0.5 / 4 + 3 / 32), ("</s>", 7 / 32)):
        assert 10 ** lm.log10_prob([], word) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("text", [[], [["a", "<s>"]], [["</s>"]]])
def test_texts_that_are_none(text):
    with pytest.raises(Speech3Error, match="sentence"):
        estimate_lm(text, 2)


def test_perplexity_on_minilibri_is_at_most_that_of_the_given_bigram():
    lang = SHARED / "corpora" / "minilibri" / "lang"
    if not lang.exists():
        pytest.skip(f"{lang} is not here")
    reference = read_arpa(lang / "bigram.arpa.gz")
    with gzip.open(lang / "lm_train.txt.gz", "rt", encoding="utf-8") as stream:
        text = [line.split() for line in stream]
    test = [line.split()[1:] for line in (lang.parent / "test" / "text").read_text().splitlines()]
    (theirs, skipped), (ours, ours_skipped) = (
        perplexity(lm, test) for lm in (reference, estimate_lm(text, 2, reference.words))
    )
    assert skipped == ours_skipped == 0
    assert ours <= theirs
