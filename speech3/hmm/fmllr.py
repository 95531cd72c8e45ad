"""fMLLR, or constrained MLLR: an affine transform of the features of one speaker (Gales 1998).

The transform W = [A b] maximises the likelihood of A x + b under the GMMs, log abs det A included (Kaldi's
transform/fmllr-diag-gmm.cc). Up to a constant, the auxiliary function is

    count log abs det A - 0.5 sum_i (w_i G(i) w_i - 2 w_i k(i))        w_i: row i of W

With little speech the transform is pulled towards the identity by frames that the GMMs themselves would produce
(`prior_stats`): they are as many as `PRIOR_FRAMES`, so that their weight falls as the speaker's frames grow.

Axes: T frames, D dimensions, V = D + 1, K = V (V + 1) / 2 products.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from speech3.errors import DataError, Speech3Error, TrainingError
from speech3.hmm.gmm import Gmm, Sums
from speech3.hmm.lda_mllt import expected_precisions, inverses_of, packed, unpacked, weighted_products

SWEEPS = 20
PRIOR_FRAMES = 50.0
_SMALLEST_PIVOT = 1e-8


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
    weight_T: np.ndarray | None = None,
) -> None:
    """Add frames, each for the Gaussians of its pdf.

    `gmm`: the GMMs to which the transform is fitted.
    `feats_TD`: the features that are to be transformed.
    `seen_by_TD`, `posteriors_by`: features and GMMs that give the posteriors: the features as adapted so far, or a
    speaker-independent twin of `gmm` with the same number of Gaussians. By default `feats_TD` and `gmm`.
    `weight_T`: weight of each frame; None: one.
    """
    seen_by_TD = feats_TD if seen_by_TD is None else seen_by_TD
    inverse_TD, mean_TD = expected_precisions(posteriors_by or gmm, seen_by_TD, pdf_T, gmm)
    if weight_T is not None:
        inverse_TD *= weight_T[:, None]
        mean_TD *= weight_T[:, None]
    extended_TV = extended(feats_TD)
    stats.count += len(feats_TD) if weight_T is None else float(weight_T.sum())
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
    sweeps: int = SWEEPS,
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
            transform = fmllr(total, starts.get(speaker), sweeps, speaker)
        except Speech3Error as error:
            without[speaker] = str(error).removeprefix(f"{speaker}: ")
            continue
        if np.isfinite(transform).all():
            found[speaker] = transform
        else:
            without[speaker] = "its transform is not finite"
    return found, without
