"""Pruning by relative entropy, against the entropy itself."""

from dataclasses import replace

import numpy as np
import pytest
import small_texts

from speech3.errors import FormatError, Speech3Error
from speech3.language.kneser_ney import estimate_lm
from speech3.language.mixtures import check_sums, normalized, prune
from speech3.language.ngrams import BOS, EOS, ArpaLm, from_ngrams


def without(lm: ArpaLm, ngram: tuple[str, ...]) -> ArpaLm:
    tables = [{words: values for words, values in table.items() if words != ngram} for table in lm.ngrams]
    return normalized(from_ngrams(tables, "less"))


def history_probability(lm: ArpaLm, history: tuple[str, ...]) -> float:
    """Of its words, one after the other; a sentence starts as often as one ends."""
    value = 1.0
    for place, word in enumerate(history):
        value *= 10 ** lm.log10_prob(history[:place], EOS if word == BOS else word)
    return value


def relative_entropy(lm: ArpaLm, other: ArpaLm, history: tuple[str, ...]) -> float:
    """Of the two distributions after the history, weighted by its probability."""
    one, two = small_texts.distribution(lm, history), small_texts.distribution(other, history)
    return history_probability(lm, history) * float((one * np.log(one / two)).sum())


@pytest.mark.parametrize("order", [2, 3])
def test_what_is_taken_out_is_what_matters_least(order: int) -> None:
    lm = estimate_lm(small_texts.text(40, seed=1, words="abcd"), order, ["a", "b", "c", "d", "rare"])
    longest = list(lm.ngrams[-1])
    rise = np.array([np.expm1(relative_entropy(lm, without(lm, ngram), ngram[:-1])) for ngram in longest])
    assert (rise > 0).all()
    for threshold in np.quantile(rise, [0.1, 0.5, 0.9]):
        for close, kept in ((threshold * (1 - 1e-6), rise >= threshold), (threshold * (1 + 1e-6), rise > threshold)):
            found = prune(lm, close)
            expected = {ngram for ngram, stays in zip(longest, kept, strict=True) if stays}
            assert set(found.ngrams[-1]) == expected
            assert 0 < len(expected) < len(longest)


def test_what_longer_ngrams_begin_with_stays() -> None:
    lm = estimate_lm(small_texts.text(60, seed=2), 4)
    pruned = prune(lm, 1e-3)
    for length in range(1, pruned.order):
        assert set(pruned.ngrams[length - 1]) >= {ngram[:-1] for ngram in pruned.ngrams[length]}
    assert all(0 < len(p) < len(w) for p, w in zip(pruned.ngrams[1:], lm.ngrams[1:], strict=False))
    assert pruned.ngrams[0].keys() == lm.ngrams[0].keys()
    for table, whole in zip(pruned.ngrams, lm.ngrams, strict=False):
        assert all(table[ngram][0] == whole[ngram][0] for ngram in table)


@pytest.mark.parametrize("threshold", [0, 1e-4, 1e-2, 1e9])
def test_every_history_still_sums_to_one(threshold: float) -> None:
    lm = estimate_lm(small_texts.text(60, seed=3), 3, [*"abcdefgh", "rare"])
    pruned = prune(lm, threshold)
    for history in (("never",), *small_texts.histories(lm)):
        assert small_texts.distribution(pruned, history).sum() == pytest.approx(1, abs=1e-9)
    assert pruned.order == (3 if threshold < 1 else 1)
    if not threshold:
        assert pruned.ngrams == tuple(
            {ngram: pytest.approx(values, abs=1e-9) for ngram, values in table.items()} for table in lm.ngrams
        )


def test_broken_weights_are_named_and_repaired() -> None:
    lm = estimate_lm(small_texts.text(60, seed=4), 3, [*"abcdefgh", "rare"])
    check_sums(lm)
    check_sums(prune(lm, 1e-3))
    node = 1 + lm.numbers["b"]
    backoff_H = lm.backoff_H.copy()
    backoff_H[node] += 2
    broken = replace(lm, backoff_H=backoff_H, source="bad.arpa")
    total = small_texts.distribution(broken, ("b",)).sum()
    with pytest.raises(
        Speech3Error, match=rf"bad\.arpa: after `b` .* sum to {total:.4g}.*prune bad\.arpa OUT --thresh"
    ):
        check_sums(broken)
    check_sums(broken, mending=True)
    np.testing.assert_allclose(prune(broken, 0).backoff_H, lm.backoff_H, atol=1e-9)
    prob_G = lm.prob_G.copy()
    prob_G[lm.starts_N[3]] = 0.0
    with pytest.raises(FormatError, match=r"after `<s> .` its n-grams alone sum to .*make the"):
        check_sums(replace(lm, prob_G=prob_G), mending=True)
    prob_G[1:] += 0.1
    with pytest.raises(Speech3Error, match=r"the 1-grams' probabilities sum to"):
        check_sums(replace(lm, prob_G=prob_G))


def test_the_start_of_the_sentence_is_no_outcome() -> None:
    """KenLM's lmplz gives it the probability one."""
    lm = estimate_lm(small_texts.text(20, seed=5), 2)
    prob_G = lm.prob_G.copy()
    prob_G[1 + lm.numbers[BOS]] = 0.0
    check_sums(replace(lm, prob_G=prob_G))
    np.testing.assert_allclose(prune(replace(lm, prob_G=prob_G), 1e-3).backoff_H, prune(lm, 1e-3).backoff_H)
