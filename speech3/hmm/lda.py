"""Linear discriminant analysis on spliced features (Haeb-Umbach and Ney 1992; Kaldi's transform/lda-estimate.cc).

Axes: T frames, F features of a frame, S spliced values, D dimensions kept, C classes.
"""

from dataclasses import dataclass

import numpy as np

from speech3.errors import DataError, MismatchError, SettingError, TrainingError
from speech3.hmm.gmm import Sums

_SINGULAR = 1e-10  # smallest eigenvalue of the within-class covariance, relative to the largest


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
        self.check(feats_TF)
        spliced_TS = spliced(feats_TF[:, : self.statics], self.context)
        projected_TD: np.ndarray = spliced_TS @ self.matrix.T.astype(np.float32)
        return projected_TD

    def inside(self, feats_TF: np.ndarray) -> np.ndarray:
        """The projected features of the frames that have `context` neighbours on both sides (T - 2 * context, D)."""
        return self(feats_TF)[self.context : len(feats_TF) - self.context]

    def check(self, feats_TF: np.ndarray) -> None:
        """Raise `Speech3Error` unless the features have as many values as those that this was estimated on."""
        if feats_TF.ndim != 2 or feats_TF.shape[1] != self.inputs:
            raise MismatchError(
                f"features of shape {feats_TF.shape}, but the model was trained on {self.inputs} values per frame;"
                " extract them with the model's feature preset"
            )


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
