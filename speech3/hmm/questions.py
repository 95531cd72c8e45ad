"""Questions about phones, derived from data: the phone sets that arise when similar phones are merged pair by pair.

Kaldi's questions are the sets of a top-down clustering (cluster-phones). Merging bottom up gives similar sets with a
closed-form cost: the loss of likelihood when two single-Gaussian clusters become one.
"""

from collections.abc import Iterable

import numpy as np

VARIANCE_FLOOR = 0.01


def log_likelihood(stats: np.ndarray) -> np.ndarray:
    """Log likelihood of frames under the one Gaussian estimated from them, with floored variances.

    Parameters
    ----------
    stats
        (..., 1 + 2 D) float64: count, sums, sums of squares.

    Returns
    -------
    (...,) float64; 0 for no frames.
    """
    count = stats[..., 0]
    dim = (stats.shape[-1] - 1) // 2
    safe = np.maximum(count, 1e-10)[..., None]
    mean = stats[..., 1 : 1 + dim] / safe
    var = np.maximum(stats[..., 1 + dim :] / safe - mean * mean, VARIANCE_FLOOR)
    return np.where(count > 0, -0.5 * count * (np.log(2 * np.pi * var).sum(-1) + dim), 0.0)


def merge_questions(
    stats: np.ndarray, groups: list[tuple[int, ...]], extra: Iterable[frozenset[int]] = ()
) -> np.ndarray:
    """Cluster groups of phones and return every phone set that arises.

    Parameters
    ----------
    stats
        (P + 1, 1 + 2 D): statistics of each phone's middle state.
    groups
        Phones that are in one cluster from the start (the stress or tone variants of a vowel).
    extra
        Further phone sets.

    Returns
    -------
    (Q, P + 1) bool: the members of each set, none of which is empty. The last set holds all phones of `groups`: its
    complement is silence and the ends of the utterance.
    """
    clusters = [frozenset(group) for group in groups if stats[list(group), 0].sum() > 0]
    sums = [stats[sorted(cluster)].sum(0) for cluster in clusters]
    found = set(clusters) | set(extra) | {frozenset([phone]) for cluster in clusters for phone in cluster}
    while len(clusters) > 1:
        table = np.stack(sums)
        loss = log_likelihood(table)[:, None] + log_likelihood(table)[None] - log_likelihood(table[:, None] + table)
        np.fill_diagonal(loss, np.inf)
        a, b = sorted(int(index) for index in np.unravel_index(int(np.argmin(loss)), loss.shape))
        clusters[a], sums[a] = clusters[a] | clusters[b], sums[a] + sums[b]
        del clusters[b], sums[b]
        found.add(clusters[a])
    ordered = sorted((sorted(phones) for phones in found), key=lambda phones: (len(phones), phones))
    member = np.zeros((len(ordered), stats.shape[0]), bool)
    for row, phones in zip(member, ordered, strict=True):
        row[phones] = True
    return member
