"""The uncertainty of error rates: bootstrap intervals, and a matched-pairs randomisation test.

M. Bisani and H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004:
utterances (or speakers, whose utterances are not independent) are drawn with replacement, and the rate of every draw
is the number of its errors over that of its words. The p value is that of the matched-pairs randomisation test: if two
systems were equal, the difference of their errors on a unit could as well have had the other sign (L. Gillick and
S. Cox, "Some statistical issues in the comparison of speech recognition algorithms", ICASSP 1989, use its normal
approximation).

Axes: U units (utterances or speakers), R resamples, C columns of counts.
"""

import numpy as np

RESAMPLES = 10_000
_CHUNK = 2_000_000  # numbers drawn at a time, to limit memory


def _resampled_sums(counts_UC: np.ndarray, seed: int) -> np.ndarray:
    """Column sums (R, C) over U rows drawn with replacement."""
    # Units with the same counts are interchangeable, so one multinomial over the distinct rows replaces U draws.
    rows_KC, multiplicity_K = np.unique(counts_UC, axis=0, return_counts=True)
    units = len(counts_UC)
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // len(rows_KC))
    sums = [
        generator.multinomial(units, multiplicity_K / units, size=min(chunk, RESAMPLES - start)) @ rows_KC
        for start in range(0, RESAMPLES, chunk)
    ]
    return np.concatenate(sums)


def _interval(values_R: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values_R, (0.025, 0.975))
    return float(low), float(high)


def rate_interval(errors_U: np.ndarray, lengths_U: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of ``sum(errors) / sum(lengths)``.

    Parameters
    ----------
    errors_U, lengths_U
        int64 counts per unit: errors, and words (or characters) of the reference.

    Returns
    -------
    low, high
        Fractions.
    """
    sums_RC = _resampled_sums(np.stack([errors_U, lengths_U], axis=1), seed)
    sums_RC = sums_RC[sums_RC[:, 1] > 0]  # a draw of only empty references has no rate
    return _interval(sums_RC[:, 0] / sums_RC[:, 1])


def difference_interval(
    errors_U: np.ndarray, other_errors_U: np.ndarray, lengths_U: np.ndarray, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of the rate of `other` minus that of the first system, over the same drawn units."""
    sums_RC = _resampled_sums(np.stack([other_errors_U - errors_U, lengths_U], axis=1), seed)
    sums_RC = sums_RC[sums_RC[:, 1] > 0]
    return _interval(sums_RC[:, 0] / sums_RC[:, 1])


def matched_pairs_p(errors_U: np.ndarray, other_errors_U: np.ndarray, seed: int = 0) -> float:
    """Two-sided p value of the hypothesis that two systems make equally many errors (matched-pairs randomisation test).

    Its smallest value is 1 / (resamples + 1); with few units it is also at least about 2 to the power of 1 - U.
    """
    difference_U = other_errors_U - errors_U
    sizes_M, numbers_M = np.unique(np.abs(difference_U[difference_U != 0]), return_counts=True)
    generator = np.random.default_rng(seed)
    positive_RM = generator.binomial(numbers_M, 0.5, size=(RESAMPLES, len(sizes_M)))
    sums_R = (2 * positive_RM - numbers_M) @ sizes_M
    extreme = int(np.count_nonzero(np.abs(sums_R) >= abs(int(difference_U.sum()))))
    return (1 + extreme) / (1 + RESAMPLES)
