"""Statistics of the features of many utterances, without storing them: moments, extremes and faults.

Axes: T frames, F features.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class FeatureStatistics:
    """Statistics of the utterances that were added; values that are not finite are counted and otherwise ignored.

    Attributes
    ----------
    counts_F
        Number of finite values of each dimension.
    lowest_F, highest_F
        float64; plus and minus infinity for a dimension without finite values.
    nan, infinite
        Numbers of such values.
    not_finite, repeated
        For each utterance that has any: the number of values that are not finite; the number of frames that equal the
        preceding frame, as in digital silence.
    shortest, longest
        Number of frames, and the utterance.
    """

    dim: int
    utterances: int = 0
    frames: int = 0
    nan: int = 0
    infinite: int = 0
    not_finite: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    shortest: tuple[int, str] | None = None
    longest: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self.counts_F = np.zeros(self.dim, np.int64)
        self.lowest_F, self.highest_F = np.full(self.dim, np.inf), np.full(self.dim, -np.inf)
        self._mean_F, self._squares_F = np.zeros(self.dim), np.zeros(self.dim)

    def add(self, utterance: str, feats_TF: np.ndarray) -> None:
        """Add an utterance of at least one frame."""
        frames = len(feats_TF)
        self.utterances += 1
        self.frames += frames
        self.shortest = min(self.shortest or (frames, utterance), (frames, utterance))
        if self.longest is None or frames > self.longest[0]:
            self.longest = frames, utterance
        if same := int((feats_TF[1:] == feats_TF[:-1]).all(1).sum()):
            self.repeated[utterance] = same
        finite_TF = np.isfinite(feats_TF)
        if bad := finite_TF.size - int(finite_TF.sum()):
            nan = int(np.isnan(feats_TF).sum())
            self.nan, self.infinite = self.nan + nan, self.infinite + bad - nan
            self.not_finite[utterance] = bad
        self._add_moments(np.asarray(feats_TF, np.float64), finite_TF)

    def _add_moments(self, feats_TF: np.ndarray, finite_TF: np.ndarray) -> None:
        # Chan, Golub, LeVeque 1979: combine the moments of two sets without differences of large sums.
        there_TF = np.where(finite_TF, feats_TF, 0.0)
        counts_F = finite_TF.sum(0)
        mean_F = there_TF.sum(0) / np.maximum(counts_F, 1)
        squares_F = np.square(np.where(finite_TF, feats_TF - mean_F, 0.0)).sum(0)
        total_F = np.maximum(self.counts_F + counts_F, 1)
        step_F = mean_F - self._mean_F
        self._squares_F += squares_F + np.square(step_F) * self.counts_F * counts_F / total_F
        self._mean_F += step_F * counts_F / total_F
        self.counts_F += counts_F
        self.lowest_F = np.minimum(self.lowest_F, np.where(finite_TF, feats_TF, np.inf).min(0))
        self.highest_F = np.maximum(self.highest_F, np.where(finite_TF, feats_TF, -np.inf).max(0))

    @property
    def mean_F(self) -> np.ndarray:
        """Mean, float64."""
        return self._mean_F

    @property
    def deviation_F(self) -> np.ndarray:
        """Standard deviation, float64."""
        return np.sqrt(self._squares_F / np.maximum(self.counts_F, 1))

    @property
    def constant(self) -> list[int]:
        """Dimensions in which all values are equal."""
        return np.flatnonzero(self.lowest_F >= self.highest_F).tolist()

    def lines(self, shift_ms: float) -> list[tuple[str, str]]:
        """The statistics as pairs of a name and a text."""
        seconds = self.frames * shift_ms / 1000
        length = f"{seconds / 3600:.2f} h" if seconds > 360 else f"{seconds:.2f} s"
        found = [("frames", f"{self.frames:,} ({length} at {shift_ms:g} ms per frame) of {self.dim} dimensions")]
        if self.shortest and self.longest and self.utterances > 1:
            shortest, longest = (f"{frames:,} frames ({name})" for frames, name in (self.shortest, self.longest))
            found.append(("lengths", f"{shortest} to {longest}"))
        tables = {"mean": self.mean_F, "deviation": self.deviation_F, "minimum": self.lowest_F,
                  "maximum": self.highest_F}  # fmt: skip
        found += [(name, _span(values_F)) for name, values_F in tables.items()]
        constant = ", ".join(map(str, self.constant[:20])) + (" ..." if len(self.constant) > 20 else "")
        found.append(("constant", f"dimension {constant}" if constant else "no dimension"))
        bad = f"{self.nan:,} NaN, {self.infinite:,} infinite values in {_named(self.not_finite)}"
        found.append(("not finite", bad if self.not_finite else "no value"))
        same = f"{sum(self.repeated.values()):,} frames equal the preceding frame, in {_named(self.repeated)}"
        found.append(("silence", f"digital: {same}" if self.repeated else "no frame equals the preceding frame"))
        return found


def _span(values_F: np.ndarray) -> str:
    finite = np.flatnonzero(np.isfinite(values_F))
    if not len(finite):
        return "none"
    values_F = np.round(values_F, 5) + 0.0  # print the mean of normalised features as 0, not -3e-8
    low, high = finite[np.argmin(values_F[finite])], finite[np.argmax(values_F[finite])]
    if values_F[low] == values_F[high]:
        return f"{values_F[low]:.4g}"
    return f"{values_F[low]:.4g} (dimension {low}) to {values_F[high]:.4g} (dimension {high})"


def _named(counts: dict[str, int]) -> str:
    worst = sorted(counts, key=lambda name: (-counts[name], name))[:3]
    more = f" and {len(counts) - len(worst):,} more" if len(counts) > len(worst) else ""
    return f"{', '.join(worst)}{more}"
