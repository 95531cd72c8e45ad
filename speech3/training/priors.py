"""The priors of senones, which turn a network's posteriors into scaled likelihoods.

Axes: S senones.
"""

import numpy as np


def log_priors(counts_S: np.ndarray) -> np.ndarray:
    """Natural logarithms of the senones' relative frequencies, float32 (S,); one is added to each count."""
    smoothed_S = counts_S.astype(np.float64) + 1
    return np.log(smoothed_S / smoothed_S.sum()).astype(np.float32)
