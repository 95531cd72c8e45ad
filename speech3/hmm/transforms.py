"""Linear transforms of features for GMMs: LDA and MLLT, the same for all speakers, and fMLLR, one for each speaker.

LDA (Haeb-Umbach and Ney 1992; Kaldi's transform/lda-estimate.cc) projects spliced frames. MLLT (Gales 1999, "Semi-tied
covariance matrices for hidden Markov models"; Kaldi's transform/mllt.cc) is one matrix for all Gaussians that brings
their covariances closer to diagonal.

fMLLR, or constrained MLLR (Gales 1998; Kaldi's transform/fmllr-diag-gmm.cc), is the affine transform W = [A b] of the
features of one speaker that maximises the likelihood of A x + b under the GMMs, log abs det A included. Up to a
constant, its auxiliary function is

    count log abs det A - 0.5 sum_i (w_i G(i) w_i - 2 w_i k(i))        w_i: row i of W

With little speech the transform is pulled towards the identity by frames that the GMMs themselves would produce
(`prior_stats`): they are as many as `PRIOR_FRAMES`, so that their weight falls as the speaker's frames grow.

With the posteriors of the Gaussians of a frame's pdf, the auxiliary functions of MLLT and fMLLR depend on the GMMs only
through two vectors for each frame, the expected inverse variances and the expected means divided by variances.

Axes: T frames, F features of a frame, S spliced values, D dimensions kept, C classes, V values of a (perhaps extended)
frame (D + 1 in fMLLR), K = V (V + 1) / 2 products, G Gaussians.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numba
import numpy as np

from speech3.errors import DataError, SettingError, Speech3Error, TrainingError
from speech3.hmm.gmm import MIN_POSTERIOR, Gmm, GmmStats, Sums, accumulate, check_values, posteriors, zero_stats

SWEEPS = 20
PRIOR_FRAMES = 50.0
_SINGULAR = 1e-10  # smallest eigenvalue of the within-class covariance, relative to the largest
_BLOCK = 1024  # frames whose products are in memory at once
_MAX_CONDITION = 1e14
_SMALLEST_PIVOT = 1e-8


@dataclass(frozen=True, eq=False)
class Projection:
    """From the features of an utterance to the D values that GMMs see: static features, splicing, a matrix."""

    # (D, S) float64, S = statics * (2 * context + 1): LDA, or LDA followed by MLLT (Kaldi's ``final.mat``)
    matrix: np.ndarray
    statics: int  # the first values of each frame that are spliced; the derivatives behind them are not used
    context: int  # frames on either side
    inputs: int  # values per frame of the features, derivatives included

    @property
    def dim(self) -> int:
        return len(self.matrix)

    def __call__(self, feats_TF: np.ndarray) -> np.ndarray:
        """The projected features (T, D) float32; the first and last frame are repeated beyond the ends.

        Raises Speech3Error: the features have another number of values.
        """
        check_values(feats_TF, self.inputs)
        spliced_TS = spliced(feats_TF[:, : self.statics], self.context)
        projected_TD: np.ndarray = spliced_TS @ self.matrix.T.astype(np.float32)
        return projected_TD

    def inside(self, feats_TF: np.ndarray) -> np.ndarray:
        """The projected features of the frames that have `context` neighbours on both sides (T - 2 * context, D)."""
        return self(feats_TF)[self.context : len(feats_TF) - self.context]


def spliced(feats_TF: np.ndarray, context: int) -> np.ndarray:
    """Each frame with its neighbours (T, F * (2 * context + 1)), as Kaldi's splice-feats: the earliest frame first."""
    if not len(feats_TF):
        return np.zeros((0, feats_TF.shape[1] * (2 * context + 1)), np.float32)
    rows_TW = np.arange(len(feats_TF))[:, None] + np.arange(-context, context + 1)
    return np.asarray(feats_TF[rows_TW.clip(0, len(feats_TF) - 1)].reshape(len(feats_TF), -1), np.float32)


@dataclass(eq=False)
class LdaStats(Sums):
    """Sums of the spliced frames of each class, (C,) and (C, S), and of all their products (S, S); float64."""

    count: np.ndarray
    first: np.ndarray
    second: np.ndarray


def zero_lda_stats(classes: int, values: int) -> LdaStats:
    return LdaStats(np.zeros(classes), np.zeros((classes, values)), np.zeros((values, values)))


def accumulate_lda(stats: LdaStats, frames_TS: np.ndarray, class_T: np.ndarray) -> None:
    """Add frames, each with its class."""
    frames_TS = frames_TS.astype(np.float64)
    stats.count += np.bincount(class_T, minlength=len(stats.count))
    np.add.at(stats.first, class_T, frames_TS)
    stats.second += frames_TS.T @ frames_TS


def lda(stats: LdaStats, dim: int) -> np.ndarray:
    """The `dim` directions that separate the classes best, scaled so that the within-class covariance is one.

    Returns: (dim, S) float64; the between-class covariance becomes diagonal, its largest values first. The sign of each
    row is chosen such that its largest value is positive.
    Raises Speech3Error: `dim` is larger than S, there are too few frames, or a value or a combination of values is
    constant.
    """
    values, total = stats.first.shape[1], stats.count.sum()
    if not 1 <= dim <= values:
        raise SettingError(f"LDA to {dim} of {values} spliced values: choose at most {values} (hmm.lda.dim)")
    if total <= values + len(stats.count):
        raise DataError(
            f"LDA: {total:.0f} frames of speech are too few for {values} spliced values and {len(stats.count)} classes"
        )
    seen = stats.count > 0
    mean = stats.first.sum(0) / total
    means_CS = stats.first[seen] / stats.count[seen, None]
    within = stats.second / total - (means_CS * stats.count[seen, None]).T @ means_CS / total
    centred_CS = means_CS - mean
    between = (centred_CS * stats.count[seen, None]).T @ centred_CS / total
    # Whiten the within-class covariance, then diagonalise the other one.
    spread, axes = np.linalg.eigh((within + within.T) / 2)
    if spread[0] <= _SINGULAR * spread[-1]:
        raise TrainingError(
            "LDA: the within-class covariance is singular: a feature is constant, or depends on others; remove it"
        )
    whiten = (axes / np.sqrt(spread)) @ axes.T
    _, directions = np.linalg.eigh(whiten @ between @ whiten)
    matrix = directions[:, ::-1][:, :dim].T @ whiten
    largest = np.abs(matrix).argmax(1)
    return np.asarray(matrix * np.sign(matrix[np.arange(dim), largest])[:, None])


def expected_precisions(
    gmm: Gmm, feats_TD: np.ndarray, pdf_T: np.ndarray, values_of: Gmm | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The expected inverse variances and the expected means divided by variances, in each frame.

    `gmm`, `feats_TD`: give the posteriors of the Gaussians of the frame's pdf.
    `values_of`: the GMMs whose means and variances are used, one Gaussian for each of `gmm`; by default `gmm` itself.
    Returns: both (T, D) float64.
    """
    values_of = values_of or gmm
    precision = 1.0 / values_of.var
    inverse_TD, mean_TD = np.zeros((2, len(feats_TD), precision.shape[1]))
    given = *gmm.affine, gmm.offset, np.ascontiguousarray(feats_TD, np.float32), pdf_T.astype(np.int64)
    _expect(*given, precision, values_of.mean * precision, inverse_TD, mean_TD)
    return inverse_TD, mean_TD


@numba.njit(cache=True, nogil=True, fastmath=True)
def _expect(rows, bias, offset, feats, pdf, precision, scaled, inverse, mean):  # type: ignore[no-untyped-def]
    """Add to `inverse` and `mean` of each frame the posteriors' means of `precision` and of `scaled`."""
    dim, post = feats.shape[1], np.empty(len(bias))
    for t in range(len(feats)):
        begin, end = offset[pdf[t]], offset[pdf[t] + 1]
        # Expected precisions, and means times precisions, of the Gaussians of the frame's pdf.
        posteriors(rows, bias, begin, end, feats[t], post)
        for g in range(begin, end):
            gamma = post[g - begin]
            if gamma < MIN_POSTERIOR:
                continue
            for d in range(dim):
                inverse[t, d] += gamma * precision[g, d]
                mean[t, d] += gamma * scaled[g, d]


def weighted_products(weight_TD: np.ndarray, frames_TV: np.ndarray) -> np.ndarray:
    """For each d, the sum of ``weight[t, d] * outer(frame[t], frame[t])`` over t: (D, K), the upper triangles."""
    values = frames_TV.shape[1]
    products_BK = np.empty((min(_BLOCK, len(frames_TV)), values * (values + 1) // 2))
    total_DK = np.zeros((weight_TD.shape[1], products_BK.shape[1]))
    for at in range(0, len(frames_TV), _BLOCK):
        block_TV = frames_TV[at : at + _BLOCK].astype(np.float64)
        _multiply(block_TV, products_BK)
        total_DK += weight_TD[at : at + _BLOCK].T @ products_BK[: len(block_TV)]
    return total_DK


@numba.njit(cache=True, nogil=True)
def _multiply(frames, products):  # type: ignore[no-untyped-def]
    """Write the upper triangle of each frame's outer product with itself, in the order of ``np.triu_indices``."""
    values = frames.shape[1]
    for t in range(len(frames)):
        k = 0
        for i in range(values):
            for j in range(i, values):
                products[t, k] = frames[t, i] * frames[t, j]
                k += 1


def inverses_of(matrices_DVV: np.ndarray) -> np.ndarray | None:
    """The inverses of symmetric matrices (D, V, V); None if one is singular or not finite, or nearly so."""
    if not np.isfinite(matrices_DVV).all():
        return None
    try:
        inverses_DVV = np.linalg.inv(matrices_DVV)
    except np.linalg.LinAlgError:
        return None
    condition_D = np.linalg.norm(matrices_DVV, axis=(1, 2)) * np.linalg.norm(inverses_DVV, axis=(1, 2))
    return inverses_DVV if (condition_D < _MAX_CONDITION).all() else None


def packed(matrices_DVV: np.ndarray) -> np.ndarray:
    """The upper triangles (D, K) of symmetric matrices (D, V, V)."""
    return np.asarray(matrices_DVV[:, *np.triu_indices(matrices_DVV.shape[1])])


def unpacked(products_DK: np.ndarray) -> np.ndarray:
    """Symmetric matrices (D, V, V) from their upper triangles (D, K)."""
    values = int((np.sqrt(8 * products_DK.shape[1] + 1) - 1) / 2)
    first, second = np.triu_indices(values)
    full = np.empty((len(products_DK), values, values))
    full[:, first, second] = products_DK
    full[:, second, first] = products_DK
    return full


@dataclass(eq=False)
class MlltStats(Sums):
    """What one matrix for all Gaussians needs."""

    # (D, K): for each dimension i the sum of outer products of frames, weighted by the inverse variances of dimension i
    products: np.ndarray
    sums: GmmStats  # posteriors, and frames weighted by them, with which `scatter` takes the means off the products

    def scatter(self, gmm: Gmm) -> np.ndarray:
        """(D, D, D): for each i, the sum of ``posterior / var_i * outer(x - mean, x - mean)``, Gales's G(i)."""
        precision, mean, sums = 1.0 / gmm.var, gmm.mean, self.sums
        crossed = np.einsum("gi,gd,ge->ide", precision, mean, sums.first, optimize=True)
        squared = np.einsum("gi,gd,ge->ide", precision * sums.count[:, None], mean, mean, optimize=True)
        return np.asarray(unpacked(self.products) - crossed - crossed.transpose(0, 2, 1) + squared)


def zero_mllt_stats(gmm: Gmm) -> MlltStats:
    dim = gmm.mean.shape[1]
    return MlltStats(np.zeros((dim, dim * (dim + 1) // 2)), zero_stats(gmm))


def accumulate_mllt(gmm: Gmm, stats: MlltStats, feats_TD: np.ndarray, pdf_T: np.ndarray) -> None:
    """Add frames, each for the Gaussians of its pdf."""
    inverse_TD, _ = expected_precisions(gmm, feats_TD, pdf_T)
    stats.products += weighted_products(inverse_TD, feats_TD)
    accumulate(gmm, stats.sums, feats_TD, pdf_T)


def mllt(scatter_DDD: np.ndarray, count: float, sweeps: int = SWEEPS) -> np.ndarray:
    """The matrix A (D, D) that maximises ``count log abs det A - 0.5 sum_i a_i G(i) a_i``, a_i its rows, G the scatter.

    Its rows are updated in turn, from the identity; no sweep makes it worse.

    Raises Speech3Error: there are fewer frames than dimensions, or the features are linearly dependent.
    """
    dim = len(scatter_DDD)
    if count <= dim:
        raise DataError(f"MLLT: {count:.0f} frames of speech are too few for {dim} dimensions")
    if (inverses := inverses_of(scatter_DDD)) is None:
        raise TrainingError("MLLT: the statistics are singular: a feature is constant, or depends on others")
    matrix = np.eye(dim)
    for _ in range(sweeps):
        for i in range(dim):
            cofactors = np.linalg.inv(matrix)[:, i]  # divided by the determinant, which cancels
            row = inverses[i] @ cofactors
            matrix[i] = row * np.sqrt(count / (cofactors @ row))
    return matrix


@dataclass(eq=False)
class FmllrStats(Sums):
    """Statistics of one speaker, float64."""

    count: float  # frames, Gales's beta
    linear: np.ndarray  # (D, V): row i is the sum of ``posterior mean_i / var_i [x 1]``, his k(i)
    products: np.ndarray  # (D, K): the upper triangle of the sum of ``posterior / var_i outer([x 1], [x 1])``, his G(i)

    def __add__(self, other: "FmllrStats") -> "FmllrStats":
        return FmllrStats(self.count + other.count, self.linear + other.linear, self.products + other.products)

    def __mul__(self, frames: float) -> "FmllrStats":
        return FmllrStats(self.count * frames, self.linear * frames, self.products * frames)


def zero_fmllr_stats(dim: int) -> FmllrStats:
    return FmllrStats(0.0, np.zeros((dim, dim + 1)), np.zeros((dim, (dim + 1) * (dim + 2) // 2)))


def accumulate_fmllr(
    stats: FmllrStats,
    gmm: Gmm,
    feats_TD: np.ndarray,
    pdf_T: np.ndarray,
    seen_by_TD: np.ndarray | None = None,
    posteriors_by: Gmm | None = None,
) -> None:
    """Add frames, each for the Gaussians of its pdf.

    `gmm`: the GMMs to which the transform is fitted.
    `feats_TD`: the features that are to be transformed.
    `seen_by_TD`, `posteriors_by`: features and GMMs that give the posteriors: the features as adapted so far, or a
    speaker-independent twin of `gmm` with the same number of Gaussians. By default `feats_TD` and `gmm`.
    """
    seen_by_TD = feats_TD if seen_by_TD is None else seen_by_TD
    inverse_TD, mean_TD = expected_precisions(posteriors_by or gmm, seen_by_TD, pdf_T, gmm)
    extended_TV = extended(feats_TD)
    stats.count += len(feats_TD)
    stats.linear += mean_TD.T @ extended_TV
    stats.products += weighted_products(inverse_TD, extended_TV)


def extended(feats_TD: np.ndarray) -> np.ndarray:
    """Frames with a one behind their values, (T, D + 1) float64."""
    return np.concatenate([feats_TD, np.ones((len(feats_TD), 1))], axis=1, dtype=np.float64)


def prior_stats(gmm: Gmm, frames_J: np.ndarray) -> FmllrStats:
    """The expected statistics of one frame that the GMMs produce; their best transform is the identity.

    `frames_J`: how many frames of training speech each pdf has, zero for silence.
    """
    share_G = gmm.weight * np.repeat(frames_J / frames_J.sum(), np.diff(gmm.offset))
    precision = share_G[:, None] / gmm.var
    mean_GV = extended(gmm.mean)
    products_DVV = np.einsum("gi,gv,gw->ivw", precision, mean_GV, mean_GV, optimize=True)
    dim = gmm.mean.shape[1]
    spread_DD = precision.T @ gmm.var
    products_DVV[:, np.arange(dim), np.arange(dim)] += spread_DD
    return FmllrStats(1.0, (precision * gmm.mean).T @ mean_GV, packed(products_DVV))


def identity(dim: int) -> np.ndarray:
    """The transform (D, D + 1) that changes nothing."""
    return np.eye(dim, dim + 1)


def applied(transform_DV: np.ndarray, feats_TD: np.ndarray) -> np.ndarray:
    """The transformed features A x + b, float32 (T, D)."""
    transform_DV = transform_DV.astype(np.float32)
    return np.asarray(feats_TD @ transform_DV[:, :-1].T + transform_DV[:, -1])


def fmllr_gradient(stats: FmllrStats) -> np.ndarray:
    """The gradient (D, V) of the auxiliary function at the identity."""
    rows_D = np.arange(len(stats.linear))
    return np.asarray(stats.linear - unpacked(stats.products)[rows_D, :, rows_D] + stats.count * identity(len(rows_D)))


def fmllr_hessian(stats: FmllrStats) -> np.ndarray:
    """The negative Hessian (D V, D V) of the auxiliary function at the identity."""
    dim = len(stats.linear)
    found_DVDV = np.zeros((dim, dim + 1, dim, dim + 1))
    for i, products_VV in enumerate(unpacked(stats.products)):
        found_DVDV[i, :, i, :] += products_VV
        found_DVDV[i, :dim, :dim, i] += stats.count * np.eye(dim)  # of log abs det
    return found_DVDV.reshape(dim * (dim + 1), -1)


def fmllr(
    stats: FmllrStats, start_DV: np.ndarray | None = None, sweeps: int = SWEEPS, speaker: str = "speaker"
) -> np.ndarray:
    """The transform (D, D + 1) that maximises the auxiliary function, row by row; no sweep makes it worse.

    `start_DV`: where the rows begin; None: the identity.
    `speaker`: for messages.
    Raises Speech3Error: there is not enough speech, or it does not vary.
    """
    dim = len(stats.linear)
    if stats.count <= dim + 1:
        raise DataError(
            f"{speaker}: {stats.count:.0f} frames of speech are too few for a transform of {dim} values; it needs"
            f" more than {dim + 1}"
        )
    products_DVV = unpacked(stats.products)
    if not np.isfinite(products_DVV).all() or not np.isfinite(stats.linear).all():
        raise DataError(f"{speaker}: statistics for a transform are not finite; check the features of the speaker")
    if (inverses := inverses_of(products_DVV)) is None:
        raise TrainingError(
            f"{speaker}: statistics for a transform are singular: there is too little speech, or features are constant"
        )
    transform = identity(dim) if start_DV is None else np.array(start_DV, np.float64)
    for _ in range(sweeps):
        inverse = np.linalg.inv(transform[:, :-1])
        for i in range(dim):
            row = _best_row(inverse[:, i], inverses[i], stats.linear[i], stats.count)
            # The inverse of A after its row i has changed (Sherman and Morrison 1950).
            change = (row - transform[i])[:-1] @ inverse
            pivot = 1.0 + change[i]
            transform[i] = row
            if abs(pivot) < _SMALLEST_PIVOT:
                inverse = np.linalg.inv(transform[:, :-1])
            else:
                inverse -= np.outer(inverse[:, i], change / pivot)
    return transform


def _best_row(cofactors_D: np.ndarray, inverse_VV: np.ndarray, linear_V: np.ndarray, count: float) -> np.ndarray:
    """Row i given the others: ``(alpha p + k) G^-1``, with the better root alpha of Gales's equation.

    p has the cofactors of row i, here divided by the determinant, and a zero.
    """
    scaled_V = inverse_VV[:, :-1] @ cofactors_D
    a, b = float(scaled_V[:-1] @ cofactors_D), float(scaled_V @ linear_V)
    root = np.sqrt(b * b + 4.0 * a * count)
    # Of the two roots of a alpha^2 + b alpha - count = 0, computed without cancellation.
    q = -0.5 * (b + np.copysign(root, b))
    alphas = (q / a, -count / q)
    best = max(alphas, key=lambda alpha: count * np.log(abs(alpha * a + b)) - 0.5 * alpha * alpha * a)
    return np.asarray(best * scaled_V + inverse_VV @ linear_V)


def speaker_transforms(
    stats: Mapping[str, FmllrStats],
    prior: FmllrStats | None,
    starts: Mapping[str, np.ndarray],
    *,
    min_frames: float,
    prior_frames: float = PRIOR_FRAMES,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Transforms of all speakers with enough speech, and the reason for each speaker who has none.

    Parameters
    ----------
    prior
        Statistics of one frame that pull towards the identity; None: nothing does.
    starts
        Earlier transforms, from which the sweeps continue.
    min_frames
        Speakers with fewer frames of speech get no transform.
    """
    found: dict[str, np.ndarray] = {}
    without: dict[str, str] = {}
    for speaker, each in stats.items():
        if each.count < min_frames:
            without[speaker] = f"{each.count:.0f} frames of speech are fewer than {min_frames:g}"
            continue
        try:
            total = each + prior * prior_frames if prior else each
            transform = fmllr(total, starts.get(speaker), speaker=speaker)
        except Speech3Error as error:
            without[speaker] = str(error).removeprefix(f"{speaker}: ")
            continue
        if np.isfinite(transform).all():
            found[speaker] = transform
        else:
            without[speaker] = "its transform is not finite"
    return found, without
