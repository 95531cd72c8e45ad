"""Intervals and p values against closed forms."""

import math

import numpy as np
import pytest

from speech3.evaluate.wer import difference_interval, matched_pairs_p, rate_interval, score


def binomial_quantile(trials: int, p: float, q: float) -> int:
    """Smallest k with P(X <= k) >= q, from the probabilities themselves."""
    total = 0.0
    for k in range(trials + 1):
        total += math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
        if total >= q:
            return k
    return trials


@pytest.mark.parametrize(("units", "errors"), [(40, 10), (200, 20), (1000, 300)])
def test_one_word_utterances_are_binomial(units: int, errors: int) -> None:
    # Drawing U one-word utterances with replacement makes a binomial number of errors, exactly.
    errors_U = np.r_[np.ones(errors, dtype=np.int64), np.zeros(units - errors, dtype=np.int64)]
    interval = rate_interval(errors_U, np.ones(units, dtype=np.int64))
    for value, q in zip(interval, (0.025, 0.975), strict=True):
        # 10,000 draws place the 2.5 % quantile within 0.16 % of probability: one step of the lattice at most.
        assert abs(round(value * units) - binomial_quantile(units, errors / units, q)) <= 1


def test_two_units_draw_their_three_sums() -> None:
    assert rate_interval(np.array([1, 9]), np.array([10, 10])) == (0.1, 0.9)


def test_large_samples_are_normal() -> None:
    # The ratio estimator: its standard error is that of errors - rate * length, over the mean length (delta method).
    generator = np.random.default_rng(3)
    lengths_U = generator.integers(1, 30, 3000)
    errors_U = generator.binomial(lengths_U, generator.beta(2, 8, 3000))
    rate = errors_U.sum() / lengths_U.sum()
    standard_error = np.std(errors_U - rate * lengths_U) / math.sqrt(3000) / lengths_U.mean()
    low, high = rate_interval(errors_U, lengths_U)
    assert (high - low) / 2 == pytest.approx(1.96 * standard_error, rel=0.03)
    assert (high + low) / 2 == pytest.approx(rate, rel=0.01)


def test_pairing_narrows_the_difference() -> None:
    generator = np.random.default_rng(4)
    lengths_U = np.full(500, 10)
    errors_U = generator.binomial(10, 0.3, 500)
    other_U = errors_U + generator.binomial(1, 0.1, 500)
    low, high = difference_interval(errors_U, other_U, lengths_U, lengths_U)
    difference_U = (other_U - errors_U) / 10
    assert (low + high) / 2 == pytest.approx(difference_U.mean(), rel=0.05)
    assert (high - low) / 2 == pytest.approx(1.96 * difference_U.std() / math.sqrt(500), rel=0.05)


@pytest.mark.parametrize("units", [1, 3, 6])
def test_p_of_few_agreeing_units(units: int) -> None:
    # All signs alike has probability 2 / 2^U among random signs; 0.02 is five deviations of 10,000 draws.
    p = matched_pairs_p(np.zeros(units, dtype=np.int64), np.full(units, 7))
    assert p == pytest.approx(2 ** (1 - units), abs=0.02)


def test_p_is_the_sign_test_for_equal_sizes() -> None:
    # 30 utterances won, 14 lost, by one error each: the two-sided sign test.
    errors_U, other_U = np.zeros(44, dtype=np.int64), np.r_[np.full(30, 1), np.full(14, -1)]
    exact = 2 * sum(math.comb(44, k) for k in range(15)) / 2**44
    assert matched_pairs_p(errors_U, other_U) == pytest.approx(exact, abs=0.008)


def test_p_of_no_difference_is_one() -> None:
    assert matched_pairs_p(np.array([1, 2, 3]), np.array([1, 2, 3])) == 1.0


def test_p_is_uniform_when_systems_are_equal() -> None:
    generator = np.random.default_rng(5)
    values = [
        matched_pairs_p(generator.binomial(10, 0.2, 80), generator.binomial(10, 0.2, 80), seed) for seed in range(200)
    ]
    # Under the null hypothesis 5 % fall below 0.05: 10 of 200, deviation 3.1.
    assert 1 <= sum(value < 0.05 for value in values) <= 22
    assert np.mean(values) == pytest.approx(0.5, abs=0.1)


def test_same_seed_same_interval() -> None:
    errors_U, lengths_U = np.arange(100) % 7, np.arange(100) % 11 + 5
    assert rate_interval(errors_U, lengths_U, 1) == rate_interval(errors_U, lengths_U, 1)
    assert rate_interval(errors_U, lengths_U, 1) != rate_interval(errors_U, lengths_U, 2)


def test_errors_that_cluster_by_speaker_widen_the_interval() -> None:
    ref = {f"s{n // 50}-{n % 50}": "word" for n in range(1000)}
    hyp = {name: "wrong" if int(name[1:].split("-")[0]) < 4 else "word" for name in ref}
    speakers = {name: name.split("-")[0] for name in ref}
    over_utterances, over_speakers = score(ref, hyp), score(ref, hyp, speakers)
    assert over_utterances.ci_units == "1000 utterances"
    assert over_speakers.ci_units == "20 speakers"
    # 4 of 20 speakers are all wrong: binomial over 20, sqrt(50) times as wide as over 1000.
    low, high = over_speakers.wer_ci95
    assert (round(20 * low), round(20 * high)) == (binomial_quantile(20, 0.2, 0.025), binomial_quantile(20, 0.2, 0.975))
    assert high - low > 5 * (over_utterances.wer_ci95[1] - over_utterances.wer_ci95[0])


def test_few_speakers_that_agree_do_not_make_it_certain() -> None:
    ref = {f"s{n // 50}-{n % 50}": "word" for n in range(100)}
    hyp = {name: "wrong" if name.endswith("7") else "word" for name in ref}
    result = score(ref, hyp, {name: name.split("-")[0] for name in ref})
    assert result.speakers["s0"].rate == result.speakers["s1"].rate
    assert result.wer_ci95 == score(ref, hyp).wer_ci95
    assert result.ci_units == "2 speakers and 100 utterances, the wider"


def test_empty_references_alone_in_a_draw_do_no_harm() -> None:
    low, high = rate_interval(np.array([1, 1, 0]), np.array([0, 0, 5]))
    assert 0 <= low <= high <= 2
    assert math.isfinite(high)
