"""Pruning of n-grams that hardly change the model (Stolcke 1998, "Entropy-based pruning").

Without an n-gram (h, w), the word has the probability a' p(w | h'), where h' is h without its first word, and the
back-off weight of h changes from a to a'. The relative entropy between the two models,

    -p(h) { p(w | h) [log p(w | h') + log a' - log p(w | h)] + [log a' - log a] sum of p(v | h) over unlisted v },

is computed for each n-gram as if it alone were removed, as in SRILM.

Axes: G n-grams of all orders, H histories, R n-grams of one order.
"""

from dataclasses import replace

import numpy as np

from speech3.lm.ngrams import BOS, EOS, ArpaLm
from speech3.lm.normalize import listed, normalized, total_of_words

_NOTHING = 1e-10  # values below this are zero but for rounding


def prune(lm: ArpaLm, threshold: float) -> ArpaLm:
    """Remove n-grams whose removal raises the perplexity by less than `threshold` (1e-7 means 0.00001 %).

    Histories of n-grams that are kept are kept, too. All back-off weights are recomputed so that the probabilities
    after every history sum to one; threshold 0 does only that.
    """
    kept_G, has_longer_G = np.ones(len(lm.word_G), bool), np.zeros(len(lm.word_G), bool)
    changes, history_G = _perplexity_changes(lm), lm.history_G()
    for order in range(lm.order, 1, -1):
        nodes = slice(lm.starts_N[order], lm.starts_N[order + 1])
        kept_G[nodes] = has_longer_G[nodes] | (changes[order - 2] >= threshold)
        has_longer_G[history_G[nodes][kept_G[nodes]]] = True
    return normalized(_part(lm, kept_G, history_G))


def _perplexity_changes(lm: ArpaLm) -> list[np.ndarray]:
    """For each order from 2, the relative change of the perplexity when each of its n-grams is removed."""
    history_G, trie, total = lm.history_G(), lm.trie, total_of_words(lm)
    log_prob_H = np.zeros(len(lm.first_H) - 1)  # of each history as a sequence of words, natural logarithm
    total_H = np.full(len(log_prob_H), total)
    changes = []
    for order in range(2, lm.order + 1):
        found = listed(lm, trie, history_G, order)
        nodes = slice(found.first, found.first + len(found.sum_H))
        words_H = lm.prob_G[nodes].copy()
        if order == 2:
            words_H[lm.numbers[BOS]] = words_H[lm.numbers[EOS]]  # sentences have as many starts as ends
        log_prob_H[nodes] = log_prob_H[history_G[nodes]] + words_H * np.log(10)
        left_H = np.maximum(1 - found.sum_H, 0)
        lower_left_H = np.maximum(total_H[trie.fail_H[nodes]] - found.lower_sum_H, 0)
        total_H[nodes] = np.where(found.number_H > 0, 1.0, total_H[trie.fail_H[nodes]])
        at_R = found.history_R - found.first
        left_R, lower_left_R = left_H[at_R], lower_left_H[at_R]
        with np.errstate(divide="ignore", invalid="ignore"):
            weight_R = np.log((left_R + found.prob_R) / (lower_left_R + found.lower_R))
            others_R = left_R * (weight_R - np.log(left_R / lower_left_R))
        others_R[(left_R < _NOTHING) | (lower_left_R < _NOTHING)] = 0
        word_R = found.prob_R * (np.log(found.lower_R) + weight_R - np.log(found.prob_R))
        changes.append(np.expm1(-np.exp(log_prob_H[found.history_R]) * (word_R + others_R)))
    return changes


def _part(lm: ArpaLm, kept_G: np.ndarray, history_G: np.ndarray) -> ArpaLm:
    """The model with only some of its n-grams, which must include all their histories."""
    starts_N = np.concatenate([[0], np.cumsum(kept_G)])[lm.starts_N]
    order = int(np.flatnonzero(np.diff(starts_N))[-1])
    children_H = np.bincount(history_G[1:][kept_G[1:]], minlength=len(lm.first_H) - 1)
    kept_H = kept_G[: lm.starts_N[order]]
    first_H = 1 + np.concatenate([[0], np.cumsum(children_H[: len(kept_H)][kept_H])])
    return replace(
        lm,
        starts_N=starts_N[: order + 2],
        first_H=first_H,
        word_G=lm.word_G[kept_G],
        prob_G=lm.prob_G[kept_G],
        backoff_H=lm.backoff_H[: len(kept_H)][kept_H],
    )
