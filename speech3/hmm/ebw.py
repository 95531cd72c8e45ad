"""Extended Baum-Welch: re-estimation of GMMs from numerator and denominator statistics.

A discriminative criterion F raises the likelihood of frames for some pdfs (the numerator) and lowers it for others (the
denominator). A Gaussian with mean mu, variance v, sums, sums of squares and the count ``n = num - den`` becomes

    mu' = (sum_num - sum_den + D mu) / (n + D)
    v'  = (squares_num - squares_den + D (v + mu^2)) / (n + D) - mu'^2

The larger D, the smaller the step; F rises if D is large enough. As in Kaldi (gmm/ebw-diag-gmm.cc),

    D = max(tau + E den, 2 * the smallest D with positive variances)

where tau acts as that many frames drawn from the Gaussian itself: I-smoothing towards the model before the update
(Povey et al. 2008), which needs no further statistics.

The weights c of a mixture maximise ``sum num log c - den c / c_old`` (Povey 2003, section 4.4); this has no step
size.

Axes: G Gaussians, D dimensions, J pdfs.
"""

from dataclasses import replace

import numpy as np

from speech3.errors import Speech3Error
from speech3.hmm.gmm import MIN_VARIANCE, MIN_WEIGHT, Gmm, GmmStats, normalized

_WEIGHT_ITERATIONS = 50
_WEIGHT_TAU = 10.0  # smooths the weights of a pdf towards its old ones, in frames, as in Kaldi's train_mmi.sh


def update(gmm: Gmm, numerator: GmmStats, denominator: GmmStats, tau: float, e: float = 2.0) -> Gmm:
    """Re-estimate means, variances and weights; a Gaussian without statistics remains as it is.

    Parameters
    ----------
    numerator, denominator
        Sums over pairs of a frame and a pdf, with weights of at least zero. Only their difference matters for means and
        variances, but D grows with the counts of the denominator; so what they share in a frame should be cancelled.
    tau
        I-smoothing, in frames.
    e
        E above, at least 1.

    Raises
    ------
    Speech3Error
        The statistics are not finite.
    """
    arrays = [array for stats in (numerator, denominator) for array in (stats.count, stats.first, stats.second)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise Speech3Error("the statistics of the discriminative update are not finite: look for NaN in the features")
    weight = _weights(gmm, numerator.count, denominator.count)
    count, first, second = (one - other for one, other in zip(arrays[:3], arrays[3:], strict=True))
    d = np.maximum(tau + e * denominator.count, 2 * smallest_d(gmm, count, first, second))
    seen = count + d > 0
    d, total = d[seen, None], (count + d)[seen, None]
    mean, var = gmm.mean.copy(), gmm.var.copy()
    mean[seen] = (first[seen] + d * gmm.mean[seen]) / total
    square = (second[seen] + d * (gmm.var[seen] + gmm.mean[seen] ** 2)) / total
    var[seen] = np.maximum(square - mean[seen] ** 2, MIN_VARIANCE)
    return replace(gmm, weight=weight, mean=mean, var=var)


def smallest_d(gmm: Gmm, count: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The smallest D above which all new variances are positive, (G,) float64; at least zero.

    Multiplied by ``(n + D)^2``, the new variance is ``v D^2 + b D + c``, with b and c as computed below.
    """
    n = count[:, None]
    b = second + n * (gmm.var + gmm.mean**2) - 2 * first * gmm.mean
    c = n * second - first**2
    discriminant = b * b - 4 * gmm.var * c
    root = (-b + np.sqrt(np.maximum(discriminant, 0))) / (2 * gmm.var)
    largest: np.ndarray = np.where(discriminant > 0, root, 0.0).max(1)
    return np.maximum(np.maximum(largest, -count), 0.0)


def _weights(gmm: Gmm, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """New weights, (G,); each iteration raises the function that they maximise (Povey 2003, equation 4.34)."""
    smoothed, slope = numerator + _WEIGHT_TAU * gmm.weight, denominator / gmm.weight
    k = np.repeat(np.maximum.reduceat(slope, gmm.offset[:-1]), np.diff(gmm.offset)) - slope
    weight = gmm.weight
    for _ in range(_WEIGHT_ITERATIONS):
        weight = normalized(smoothed + k * weight, gmm.offset)
    return normalized(np.maximum(weight, MIN_WEIGHT), gmm.offset)
