"""Calibrated confidences: probabilities that words are correct (Platt 1999; Yu et al. 2011 for speech recognition).

Words' posteriors in a lattice are too high: the acoustic scores of neighbouring frames are not independent, and word
sequences that the lattice lacks count as impossible. So a linear function of the log odds of the posterior is fitted to
a dev set. On minilibri, the length of the word, its neighbours, the density of the lattice, a second posterior, or a
piecewise linear function added at most 0.01 to the normalised cross-entropy of 0.32, so two parameters are enough.

Axes: W words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jiwer
import numpy as np

_SURE = 1e-3  # posteriors are clipped to this distance from 0 and 1: one unit of the last digit in hyp.ctm
_STEPS, _PULL = 50, 1.0  # most Newton steps; strength of the prior, which matters if words are few or all correct


@dataclass(frozen=True)
class Calibration:
    """``log odds = offset + slope * log odds of the posterior``."""

    offset: float
    slope: float

    def __call__(self, posterior: float) -> float:
        """The probability, between 0 and 1, that a word with this posterior is correct."""
        return float(1 / (1 + np.exp(-self.offset - self.slope * _log_odds(np.array(posterior)))))


def calibration_of(values: Any) -> Calibration | None:
    """Restore a calibration from its `dataclasses.asdict`; ``None`` returns ``None``.

    Raises
    ------
    TypeError
        `values` is not a calibration.
    """
    if values is None:
        return None
    found = Calibration(**values)
    if not all(isinstance(value, float | int) and np.isfinite(value) for value in (found.offset, found.slope)):
        raise TypeError(f"{values} is not a calibration")
    return found


def fit_calibration(posteriors: Sequence[float], correct: Sequence[bool]) -> Calibration:
    """The calibration with the highest posterior probability given words that are known to be correct or wrong.

    It is found by Newton's method. A Gaussian prior centred on the identity dominates if there is little data; the
    slope is never negative, so the ranking of the words is preserved.
    """
    odds_W, correct_W = _log_odds(np.array(posteriors, np.float64)), np.array(correct, np.float64)
    inputs_W2, prior = np.stack([np.ones(len(odds_W)), odds_W], axis=1), np.array([0.0, 1.0])
    fitted = prior.copy()
    for _ in range(_STEPS):
        sure_W = 1 / (1 + np.exp(-inputs_W2 @ fitted))
        gradient = inputs_W2.T @ (sure_W - correct_W) + _PULL * (fitted - prior)
        curvature = (inputs_W2 * (sure_W * (1 - sure_W))[:, None]).T @ inputs_W2 + _PULL * np.eye(2)
        change = np.linalg.solve(curvature, gradient)
        fitted -= change * min(1.0, 2.0 / max(float(np.abs(change).max()), 1e-12))  # full Newton steps may overshoot
        if np.abs(change).max() < 1e-9:
            break
    return Calibration(float(fitted[0]), max(float(fitted[1]), 0.0))


def correct_words(reference: Sequence[str], said: Sequence[str]) -> list[bool]:
    """For each recognised word, whether it matches the reference in an alignment with the fewest errors."""
    if not said or not reference:
        return [False] * len(said)
    correct = [False] * len(said)
    for chunk in jiwer.process_words(" ".join(reference), " ".join(said)).alignments[0]:
        if chunk.type == "equal":
            correct[chunk.hyp_start_idx : chunk.hyp_end_idx] = [True] * (chunk.hyp_end_idx - chunk.hyp_start_idx)
    return correct


def _log_odds(posterior_W: np.ndarray) -> np.ndarray:
    bounded_W = np.clip(posterior_W, _SURE, 1 - _SURE)
    return np.asarray(np.log(bounded_W / (1 - bounded_W)))
