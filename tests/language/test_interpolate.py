"""Mixtures of models, against the average of what they say."""

import numpy as np
import pytest
import small_texts

from speech3.errors import MismatchError, Speech3Error
from speech3.language.kneser_ney import estimate_lm, number_sentences
from speech3.language.mixtures import best_weights, check_weights, interpolate, joint_vocabulary, tuning_numbers
from speech3.language.ngrams import BOS, ArpaLm
from speech3.language.train_lm import perplexity


def models() -> list[ArpaLm]:
    """A trigram and a bigram, each with words that the other lacks."""
    return [
        estimate_lm(small_texts.text(60, seed=1), 3, source="one"),
        estimate_lm(small_texts.text(40, seed=2, words="hgfedxy"), 2, source="two"),
    ]


def tuned(lms: list[ArpaLm], text: list[list[str]]) -> list[float]:
    vocabulary = joint_vocabulary(lms)
    blocks = number_sentences(text, tuning_numbers(vocabulary), "text")
    return best_weights(lms, blocks, vocabulary, "text")


def average(lms: list[ArpaLm], weights: list[float], history: list[str], word: str) -> float:
    return sum(w * 10 ** lm.log10_prob(history, word) for lm, w in zip(lms, weights, strict=True))


def test_listed_ngrams_have_the_average_and_every_history_sums_to_one() -> None:
    lms, weights = models(), [0.3, 0.7]
    mixture = interpolate(lms, weights, "mix")
    for order in (1, 2, 3):
        union = set().union(*(lm.ngrams[order - 1] for lm in lms if lm.order >= order))
        assert set(mixture.ngrams[order - 1]) == union
        for ngram in union - {(BOS,)}:
            expected = np.log10(average(lms, weights, list(ngram[:-1]), ngram[-1]))
            assert mixture.ngrams[order - 1][ngram][0] == pytest.approx(expected, abs=1e-9)
    for history in (("never",), *small_texts.histories(mixture)):
        assert small_texts.distribution(mixture, history).sum() == pytest.approx(1, abs=1e-9)


def test_the_weights_are_the_best() -> None:
    lms = models()
    text = [*small_texts.text(30, seed=7), *small_texts.text(25, seed=8, words="hgfedxy"), ["a", "zebra", "b"]]

    events = [
        (["<s>", *sentence[:place]], word)
        for sentence in text
        for place, word in enumerate([*sentence, "</s>"])
        if word != "zebra"
    ]
    one_T, two_T = (np.array([10 ** lm.log10_prob(*event) for event in events]) for lm in lms)
    grid = np.linspace(0, 1, 2001)[1:-1]
    expected = grid[np.argmax([np.log(weight * one_T + (1 - weight) * two_T).sum() for weight in grid])]
    assert 0.2 < expected < 0.8
    assert tuned(lms, text) == pytest.approx([expected, 1 - expected], abs=1e-3)


def test_unknown_words_are_in_the_histories_of_others_as_in_perplexities() -> None:
    known = set("abcdefgh")
    lms = [estimate_lm(small_texts.text(60, seed=seed), order, known - {"c"}) for seed, order in ((1, 3), (2, 1))]
    text = small_texts.text(40, seed=7)
    said = [["<s>", *("<unk>" if word == "c" else word for word in sentence), "</s>"] for sentence in text]
    events = [
        (words[:place], words[place]) for words in said for place in range(1, len(words)) if words[place] != "<unk>"
    ]
    one_T, two_T = (np.array([10 ** lm.log10_prob(*event) for event in events]) for lm in lms)
    grid = np.linspace(0, 1, 2001)[1:-1]
    expected = grid[np.argmax([np.log(weight * one_T + (1 - weight) * two_T).sum() for weight in grid])]
    assert "<unk>" in lms[0].words and 0.2 < expected < 0.98
    assert tuned(lms, text)[0] == pytest.approx(expected, abs=1e-3)


def test_better_than_either_on_the_text_that_it_was_tuned_on() -> None:
    lms = [estimate_lm(small_texts.text(60, seed=1), 3), estimate_lm(small_texts.text(60, seed=9)[::-1] * 2, 2)]
    text = [*small_texts.text(40, seed=10), *small_texts.text(40, seed=9)]
    weights = tuned(lms, text)
    assert min(weights) > 0.05
    assert perplexity(interpolate(lms, weights, "mix"), text)[0] < min(perplexity(lm, text)[0] for lm in lms)


def test_a_model_without_weight_is_left_out() -> None:
    one, two = models()
    mixture = interpolate([one, two], [1.0, 0.0], "mix")
    for ngram, values in one.ngrams[2].items():
        assert mixture.ngrams[2][ngram] == pytest.approx(values, abs=1e-9)
    assert "x" not in mixture.vocabulary


def test_what_is_refused() -> None:
    lms = models()
    strangers = estimate_lm([["A", "B"]], 1, source="upper.arpa")
    with pytest.raises(MismatchError, match=r"one \(.*\) and upper\.arpa \(A, B \.\.\.\) have no"):
        interpolate([lms[0], strangers], [0.5, 0.5], "mix")
    with pytest.raises(Speech3Error, match="at least two language models"):
        interpolate(lms[:1], [1.0], "mix")
    for weights, message in (
        ([0.5], "1 weights for 2"),
        ([0.5, 0.6], "0.5, 0.6 sum to 1.1"),
        ([-0.5, 1.5], "at least 0"),
    ):
        with pytest.raises(Speech3Error, match=message):
            check_weights(weights, lms)
    with pytest.raises(Speech3Error, match="text: no word of the language models"):
        tuned(lms, [])
    with pytest.raises(Speech3Error, match="text: no word of the language models"):
        tuned(lms, [["A", "B"], ["C"]])
