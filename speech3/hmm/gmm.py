"""Diagonal-covariance Gaussian mixtures, one per pdf: likelihoods, statistics, re-estimation, splitting.

All pdfs share one set of arrays; the Gaussians of pdf j are rows ``offset[j]:offset[j + 1]``. Behaviour and constants
follow Kaldi's gmm/mle-diag-gmm.cc.

Extended Baum-Welch re-estimates GMMs by a discriminative criterion F, which raises the likelihood of frames for some
pdfs (the numerator) and lowers it for others (the denominator). A Gaussian with mean mu, variance v, sums, sums of
squares and the count ``n = num - den`` becomes

    mu' = (sum_num - sum_den + D mu) / (n + D)
    v'  = (squares_num - squares_den + D (v + mu^2)) / (n + D) - mu'^2

The larger D, the smaller the step; F rises if D is large enough. As in Kaldi (gmm/ebw-diag-gmm.cc),

    D = max(tau + E den, 2 * the smallest D with positive variances)

where tau acts as that many frames drawn from the Gaussian itself: I-smoothing towards the model before the update
(Povey et al. 2008), which needs no further statistics. The weights c of a mixture maximise
``sum num log c - den c / c_old`` (Povey 2003, section 4.4); this has no step size.

Axes: T frames, D dimensions, G Gaussians, J pdfs, N pairs of a frame and a pdf.
"""

import heapq
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numba
import numpy as np

from speech3.errors import MismatchError, TrainingError
from speech3.io import load_tensors, save_tensors

MIN_POSTERIOR = 1e-8  # of a Gaussian in a frame; smaller ones are not accumulated
MIN_VARIANCE = 0.001
MIN_OCCUPANCY = 10.0  # Gaussians with fewer frames are removed
MIN_WEIGHT = 1e-5
_MIN_COUNT = 20.0  # frames of each Gaussian when there are to be more
PERTURBATION = 0.01  # of the means in a split, in standard deviations
_SCORES = 1 << 23  # Gaussians times frames that are scored at once, 32 MB
_WEIGHT_ITERATIONS = 50
_WEIGHT_TAU = 10.0  # smooths the weights of a pdf towards its old ones, in frames, as in Kaldi's train_mmi.sh


class FrameScorer:
    """A `Scorer` of GMMs: a row of scores for each frame, which are likelihoods."""

    subsampling = 1
    pseudo_likelihoods = False


@dataclass(frozen=True, eq=False)
class Gmm(FrameScorer):
    """Mixtures of J pdfs with G Gaussians in total."""

    offset: np.ndarray  # (J + 1,) int64: the first Gaussian of each pdf, then G
    weight: np.ndarray  # (G,) float64, summing to one within each pdf
    # `mean`, `var`: (G, D) float64
    mean: np.ndarray
    var: np.ndarray

    @property
    def num_pdfs(self) -> int:
        return len(self.offset) - 1

    @cached_property
    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Log likelihood of Gaussian g is ``bias[g] + rows[g] @ [x, x * x]``."""
        precision = 1.0 / self.var
        bias = np.log(self.weight) - 0.5 * (
            np.log(2 * np.pi * self.var).sum(1) + (self.mean * self.mean * precision).sum(1)
        )
        rows = np.concatenate([self.mean * precision, -0.5 * precision], axis=1)
        return rows.astype(np.float32), bias.astype(np.float32)

    def loglikes(self, feats_TD: np.ndarray, pdfs: np.ndarray | None = None) -> np.ndarray:
        """Log likelihoods of all pdfs, or of the given ones.

        Only the Gaussians of these pdfs are scored, those of a few pdfs at a time.

        `feats_TD`: float32.
        `pdfs`: (U,) int; None for all J.
        Returns: (T, U) float32.
        Raises Speech3Error: the features do not have the dimension of the GMMs.
        """
        check_values(feats_TD, self.mean.shape[1])
        pdfs = np.arange(self.num_pdfs) if pdfs is None else np.asarray(pdfs)
        wide_TD = np.concatenate([feats_TD, feats_TD * feats_TD], axis=1)
        out_UT = np.empty((len(pdfs), len(feats_TD)), np.float32)
        place_U = (np.cumsum(np.diff(self.offset)[pdfs]) - 1) * len(feats_TD) // _SCORES
        for some_U in np.split(np.arange(len(pdfs)), np.flatnonzero(np.diff(place_U)) + 1):
            self._score(wide_TD, pdfs[some_U], out_UT[some_U[0] : some_U[-1] + 1] if len(some_U) else out_UT)
        return out_UT.T

    def _score(self, wide_TD: np.ndarray, pdfs: np.ndarray, out_UT: np.ndarray) -> None:
        """Write the log likelihoods of a few pdfs; `wide_TD` holds the features and their squares."""
        if not len(pdfs):
            return
        sizes, (rows, bias) = np.diff(self.offset)[pdfs], self.affine
        gaussians = np.concatenate([np.arange(self.offset[j], self.offset[j + 1]) for j in pdfs])
        scores_GT = rows[gaussians] @ wide_TD.T
        scores_GT += bias[gaussians, None]
        for u, (end, size) in enumerate(zip(np.cumsum(sizes), sizes, strict=True)):
            block = scores_GT[end - size : end]
            if size == 1:
                out_UT[u] = block[0]
                continue
            peak = block.max(0)
            out_UT[u] = np.log(np.exp(block - peak).sum(0)) + peak

    def save(self, path: Path | str, about: dict[str, object] | None = None) -> None:
        """Write a safetensors file of kind ``gmm``."""
        arrays = {"offset": self.offset, "weight": self.weight, "mean": self.mean, "var": self.var}
        save_tensors(path, arrays, {**(about or {}), "kind": "gmm"})


def check_values(feats_TF: np.ndarray, values: int) -> None:
    """Raise `Speech3Error` unless the features have as many values as those that a model was trained on."""
    if feats_TF.ndim != 2 or feats_TF.shape[1] != values:
        raise MismatchError(
            f"features of shape {feats_TF.shape}, but the model was trained on {values} values per frame; extract them"
            " with the model's feature preset"
        )


def load_gmm(path: Path | str) -> Gmm:
    arrays, _ = load_tensors(path, "gmm")
    for name, array in arrays.items():
        if array.dtype == np.float16:  # stored so to save space, as those of the English aligner
            arrays[name] = array.astype(np.float64)
    return Gmm(arrays["offset"], arrays["weight"], arrays["mean"], arrays["var"])


class Sums:
    """A dataclass of statistics of which ``+=`` adds those of other data, field by field."""

    def __iadd__(self, other: Self) -> Self:
        for field in fields(cast(Any, self)):  # and not what a cached property has computed
            total = getattr(self, field.name)
            total += getattr(other, field.name)  # arrays in place
            setattr(self, field.name, total)
        return self


@dataclass(eq=False)
class GmmStats(Sums):
    """Sufficient statistics: counts (G,), sums and sums of squares (G, D), log likelihood and frames."""

    count: np.ndarray
    first: np.ndarray
    second: np.ndarray
    loglike: float = 0.0
    frames: int = 0


def zero_stats(gmm: Gmm) -> GmmStats:
    return GmmStats(np.zeros(len(gmm.weight)), np.zeros_like(gmm.mean), np.zeros_like(gmm.mean))


def accumulate(
    gmm: Gmm, stats: GmmStats, feats_TD: np.ndarray, pdf_T: np.ndarray, seen_by_TD: np.ndarray | None = None
) -> None:
    """Add the frames of an utterance, each for the Gaussians of its pdf, weighted by their posteriors.

    `seen_by_TD`: the frames from which the posteriors are computed, such as adapted ones; by default `feats_TD`.
    """
    frames = len(feats_TD)
    accumulate_weighted(gmm, stats, feats_TD, np.arange(frames), pdf_T, np.ones(frames), seen_by_TD)
    stats.frames += frames


def accumulate_weighted(
    gmm: Gmm,
    stats: GmmStats,
    feats_TD: np.ndarray,
    frame_N: np.ndarray,
    pdf_N: np.ndarray,
    weight_N: np.ndarray,
    seen_by_TD: np.ndarray | None = None,
) -> None:
    """Add pairs of a frame and a pdf, each with a weight, for the Gaussians of the pdf."""
    rows, bias = gmm.affine
    seen_by_TD = feats_TD if seen_by_TD is None else np.ascontiguousarray(seen_by_TD, feats_TD.dtype)
    pairs = frame_N.astype(np.int64), pdf_N.astype(np.int64), weight_N.astype(np.float64)
    sums = stats.count, stats.first, stats.second
    stats.loglike += _accumulate(rows, bias, gmm.offset, seen_by_TD, np.ascontiguousarray(feats_TD), *pairs, *sums)


@numba.njit(cache=True, nogil=True, fastmath=True)
def posteriors(rows, bias, begin, end, x, post):  # type: ignore[no-untyped-def]
    """Write the posteriors of Gaussians `begin` to `end` to `post`; return the log likelihood of their mixture."""
    dim, peak, norm = len(x), -np.inf, 0.0
    # Log likelihoods are affine in x and x squared.
    for g in range(begin, end):
        value = np.float64(bias[g])
        for d in range(dim):
            value += rows[g, d] * x[d] + rows[g, dim + d] * x[d] * x[d]
        post[g - begin] = value
        peak = max(peak, value)
    # Relative to the largest, so that the sum can neither underflow nor overflow.
    for g in range(end - begin):
        post[g] = np.exp(post[g] - peak)
        norm += post[g]
    for g in range(end - begin):
        post[g] /= norm
    return peak + np.log(norm)


@numba.njit(cache=True, nogil=True, fastmath=True)
def _accumulate(rows, bias, offset, seen, feats, frame, pdf, weight, count, first, second):  # type: ignore[no-untyped-def]
    dim, total = feats.shape[1], 0.0
    post = np.empty(len(bias))  # enough for any; numba takes a second to compile a maximum
    for n in range(len(frame)):
        # E step: posteriors from what is `seen`, statistics of `feats`, which may be other features.
        t, begin, end = frame[n], offset[pdf[n]], offset[pdf[n] + 1]
        total += weight[n] * posteriors(rows, bias, begin, end, seen[t], post)
        for g in range(begin, end):
            gamma = post[g - begin]
            if gamma < MIN_POSTERIOR:
                continue
            gamma *= weight[n]
            count[g] += gamma
            for d in range(dim):
                x = np.float64(feats[t, d])
                first[g, d] += gamma * x
                second[g, d] += gamma * x * x
    return total


def update(gmm: Gmm, stats: GmmStats) -> Gmm:
    """Maximum-likelihood re-estimation; Gaussians with few frames are removed, but never a pdf's last one."""
    found, seen = twin_of(gmm, stats), stats.count > MIN_OCCUPANCY
    keep, weight = seen.copy(), stats.count.copy()
    for begin, end in zip(gmm.offset[:-1], gmm.offset[1:], strict=True):
        if not seen[begin:end].any():  # a pdf with too little data keeps its heaviest Gaussian as it is
            best = begin + int(np.argmax(gmm.weight[begin:end]))
            keep[best], weight[best] = True, 1.0
        kept = np.where(keep[begin:end], weight[begin:end], 0.0)
        weight[begin:end] = np.maximum(kept / kept.sum(), MIN_WEIGHT)
    sizes = np.add.reduceat(keep.astype(np.int64), gmm.offset[:-1])
    offset = np.concatenate([[0], np.cumsum(sizes)])
    return Gmm(offset, normalized(weight[keep], offset), found.mean[keep], found.var[keep])


def twin_of(gmm: Gmm, stats: GmmStats) -> Gmm:
    """GMMs with as many Gaussians as `gmm`, re-estimated once; those with few frames keep their means and variances."""
    seen = stats.count > MIN_OCCUPANCY
    mean, var, count = gmm.mean.copy(), gmm.var.copy(), stats.count[seen, None]
    mean[seen] = stats.first[seen] / count
    var[seen] = np.maximum(stats.second[seen] / count - mean[seen] ** 2, MIN_VARIANCE)
    return Gmm(gmm.offset, gmm.weight, mean, var)


def normalized(weight: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Weights (G,) that sum to one within each pdf."""
    return weight / np.repeat(np.add.reduceat(weight, offset[:-1]), np.diff(offset))


def split_targets(counts: np.ndarray, total: int, power: float) -> np.ndarray:
    """Number of Gaussians for each pdf: proportional to its count to the power of `power`, at least one.

    Kaldi's ``GetSplitTargets`` (hmm/hmm-utils.cc): each further Gaussian goes to the pdf with the largest
    ``count ** power / gaussians``, as long as each Gaussian keeps `_MIN_COUNT` frames.
    """
    targets = np.ones(len(counts), np.int64)
    heap = [(-(count**power), j) for j, count in enumerate(counts) if count > 2 * _MIN_COUNT]
    heapq.heapify(heap)
    for _ in range(total - len(counts)):
        if not heap:
            break
        _, j = heapq.heappop(heap)
        targets[j] += 1
        if counts[j] > (targets[j] + 1) * _MIN_COUNT:
            heapq.heappush(heap, (-(counts[j] ** power) / targets[j], j))
    return targets


def split(gmm: Gmm, targets: np.ndarray, generator: np.random.Generator) -> Gmm:
    """Split the heaviest Gaussian of each pdf until the pdf has its target number (Kaldi's ``DiagGmm::Split``)."""
    weights, means, variances, sizes = [], [], [], []
    for j in range(gmm.num_pdfs):
        rows = slice(gmm.offset[j], gmm.offset[j + 1])
        weight, mean, var = list(gmm.weight[rows]), list(gmm.mean[rows]), list(gmm.var[rows])
        while len(weight) < targets[j]:
            heaviest = int(np.argmax(weight))
            weight[heaviest] /= 2
            shift = PERTURBATION * np.sqrt(var[heaviest]) * generator.standard_normal(len(var[heaviest]))
            weight.append(weight[heaviest])
            mean.append(mean[heaviest] + shift)
            var.append(var[heaviest])
            mean[heaviest] = mean[heaviest] - shift
        weights += weight
        means += mean
        variances += var
        sizes.append(len(weight))
    return Gmm(np.concatenate([[0], np.cumsum(sizes)]), np.array(weights), np.array(means), np.array(variances))


def extended_baum_welch(gmm: Gmm, numerator: GmmStats, denominator: GmmStats, tau: float, e: float = 2.0) -> Gmm:
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
        raise TrainingError("the statistics of the discriminative update are not finite: look for NaN in the features")
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
