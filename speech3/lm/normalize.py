"""Do the words after each history sum to one? Back-off weights with which they do.

The words after a history sum to those that are listed there, and its back-off weight times all others' probabilities
after the shorter history.

Axes: G n-grams of all orders, H histories, R n-grams of one order.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error
from speech3.lm.arpa import read_arpa
from speech3.lm.ngrams import BOS, ArpaLm
from speech3.lm.trie import ROOT, Trie, backed_off

TOLERANCE = 0.01  # rounded to five digits, as some tools write them, 10,000 probabilities are 1e-4 off
_NOTHING = 1e-10  # what rounding leaves of zero


@dataclass(frozen=True)
class Listed:
    """N-grams of one order, and what those of each history sum to.

    Attributes
    ----------
    history_R
        int64: the node of each n-gram's history.
    prob_R, lower_R
        Probability of the last word, and the one it has after the shorter history.
    first
        The node at which histories begin.
    sum_H, lower_sum_H, number_H
        Sums of both, and how many n-grams there are, for each history.
    """

    history_R: np.ndarray
    prob_R: np.ndarray
    lower_R: np.ndarray
    first: int
    sum_H: np.ndarray
    lower_sum_H: np.ndarray
    number_H: np.ndarray


def listed(lm: ArpaLm, trie: Trie, history_G: np.ndarray, order: int) -> Listed:
    """The n-grams of an order from 2; `trie` holds the back-off weights that count."""
    first, begin, end = (int(lm.starts_N[place]) for place in (order - 1, order, order + 1))
    history_R = history_G[begin:end]
    prob_R, lower_R = 10.0 ** lm.prob_G[begin:end], 10.0 ** backed_off(trie, history_G, begin, end)
    places = history_R - first
    sums = (np.bincount(places, weights, minlength=begin - first) for weights in (prob_R, lower_R, None))
    return Listed(history_R, prob_R, lower_R, first, *sums)


def total_of_words(lm: ArpaLm) -> float:
    """What the words without history sum to, `<s>` apart, which is never predicted and to which KenLM gives 1."""
    prob_V = 10.0 ** lm.prob_G[lm.starts_N[1] : lm.starts_N[2]]
    prob_V[lm.numbers[BOS]] = 0
    return float(prob_V.sum())


def read_checked(path: Path) -> ArpaLm:
    """Read an ARPA file that a user gives; errors as of `read_arpa` and `check_sums`."""
    lm = read_arpa(path)
    check_sums(lm)
    return lm


def check_sums(lm: ArpaLm, mending: bool = False) -> None:
    """Refuse a model in which the words after a history sum to more than one.

    Parameters
    ----------
    mending
        New back-off weights will be calculated: only listed words count.

    Raises
    ------
    Speech3Error
        Naming the history for which it is worst, and what to do.
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
            remedy = f"calculate new ones: speech3 lm prune {lm.source} OUT --threshold 0"
            _refuse(lm, total_H[nodes], found.first, "the back-off weights are broken; all words", remedy)


def _refuse(lm: ArpaLm, sum_H: np.ndarray, first: int, what: str, remedy: str) -> None:
    bad = np.count_nonzero(sum_H > 1 + TOLERANCE)
    if bad:
        worst = int(sum_H.argmax())
        history = lm.ngram(first + worst)
        others = f" (and of {bad - 1:,} more histories to more than one)" if bad > 1 else ""
        raise Speech3Error(
            f"{lm.source}: after `{' '.join(history)}` {what} sum to {sum_H[worst]:.4g}{others}; {remedy}"
        )


def normalized(lm: ArpaLm) -> ArpaLm:
    """The same n-grams with back-off weights with which the words after every history sum to one."""
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
