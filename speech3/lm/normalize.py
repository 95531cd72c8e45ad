"""Checking that the probabilities after each history sum to one, and back-off weights that make them do so.

The sum after a history is that of its listed words, plus its back-off weight times the sum of all other words'
probabilities after the shorter history.

Axes: G n-grams of all orders, H histories, R n-grams of one order.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.lm.arpa import read_arpa
from speech3.lm.ngrams import BOS, ArpaLm
from speech3.lm.trie import ROOT, Trie, backed_off

TOLERANCE = 0.01  # 10,000 probabilities, rounded to five digits as some tools do, are off by 1e-4
_NOTHING = 1e-10  # values below this are zero but for rounding


@dataclass(frozen=True)
class Listed:
    """N-grams of one order, and sums of their probabilities for each history.

    Attributes
    ----------
    history_R
        int64: the node of each n-gram's history.
    prob_R, lower_R
        Probability of the last word, and its probability after the shorter history.
    first
        The node of the first history.
    sum_H, lower_sum_H, number_H
        Sums of both, and number of n-grams, for each history.
    """

    history_R: np.ndarray
    prob_R: np.ndarray
    lower_R: np.ndarray
    first: int
    sum_H: np.ndarray
    lower_sum_H: np.ndarray
    number_H: np.ndarray


def listed(lm: ArpaLm, trie: Trie, history_G: np.ndarray, order: int) -> Listed:
    """The n-grams of an order, at least 2; back-off weights are taken from `trie`, not from `lm`."""
    first, begin, end = (int(lm.starts_N[place]) for place in (order - 1, order, order + 1))
    history_R = history_G[begin:end]
    prob_R, lower_R = 10.0 ** lm.prob_G[begin:end], 10.0 ** backed_off(trie, history_G, begin, end)
    places = history_R - first
    sums = (np.bincount(places, weights, minlength=begin - first) for weights in (prob_R, lower_R, None))
    return Listed(history_R, prob_R, lower_R, first, *sums)


def total_of_words(lm: ArpaLm) -> float:
    """The sum of the unigram probabilities except that of `<s>`, which is never predicted and has 1 from KenLM."""
    prob_V = 10.0 ** lm.prob_G[lm.starts_N[1] : lm.starts_N[2]]
    prob_V[lm.numbers[BOS]] = 0
    return float(prob_V.sum())


def read_checked(path: Path) -> ArpaLm:
    """Read an ARPA file of the user and check it; raises what `read_arpa` and `check_sums` raise."""
    lm = read_arpa(path)
    check_sums(lm)
    return lm


def check_sums(lm: ArpaLm, mending: bool = False) -> None:
    """Raise an error if the probabilities after a history sum to more than one.

    Parameters
    ----------
    mending
        If true, new back-off weights will be computed, so only the sums of listed words are checked.

    Raises
    ------
    Speech3Error
        With the history that has the largest sum, and what to do.
    """
    total_H, history_G = np.full(len(lm.first_H) - 1, total_of_words(lm)), lm.history_G()
    if total_H[ROOT] > 1 + TOLERANCE:
        raise Speech3Error(f"{lm.source}: the 1-grams' probabilities sum to {total_H[ROOT]:.4g}; make the model again")
    for order in range(2, lm.order + 1):
        found = listed(lm, lm.trie, history_G, order)
        nodes = slice(found.first, found.first + len(found.sum_H))
        _refuse(lm, found.sum_H, found.first, "its n-grams alone", "make the model again")
        left_H = total_H[lm.trie.fail_H[nodes]] - found.lower_sum_H
        total_H[nodes] = found.sum_H + 10.0 ** lm.backoff_H[nodes] * left_H
        if not mending:
            remedy = f"compute new ones: speech3 lm prune {lm.source} OUT --threshold 0"
            _refuse(lm, total_H[nodes], found.first, "the back-off weights are broken; all words", remedy)


def _refuse(lm: ArpaLm, sum_H: np.ndarray, first: int, what: str, remedy: str) -> None:
    bad = np.count_nonzero(sum_H > 1 + TOLERANCE)
    if bad:
        worst = int(sum_H.argmax())
        history = lm.ngram(first + worst)
        others = f" (and those of {bad - 1:,} more histories to more than one)" if bad > 1 else ""
        raise Speech3Error(
            f"{lm.source}: after `{' '.join(history)}` {what} sum to {sum_H[worst]:.4g}{others}; {remedy}"
        )


def normalized(lm: ArpaLm) -> ArpaLm:
    """The same n-grams with back-off weights that make the probabilities after every history sum to one."""
    backoff_H, history_G = np.zeros(len(lm.backoff_H)), lm.history_G()
    trie = lm.trie._replace(backoff_H=backoff_H)
    total_H = np.full(len(backoff_H), total_of_words(lm))
    for order in range(2, lm.order + 1):
        found = listed(lm, trie, history_G, order)
        nodes = slice(found.first, found.first + len(found.sum_H))
        with_words_H = found.number_H > 0
        left_H = np.maximum(1 - found.sum_H, _NOTHING)
        lower_left_H = total_H[trie.fail_H[nodes]] - found.lower_sum_H
        needed_H = with_words_H & (lower_left_H > _NOTHING)
        backoff_H[nodes][needed_H] = np.log10(left_H[needed_H] / lower_left_H[needed_H])
        total_H[nodes] = np.where(with_words_H, 1.0, total_H[trie.fail_H[nodes]])
    return replace(lm, backoff_H=backoff_H)
