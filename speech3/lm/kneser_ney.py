"""Interpolated modified Kneser-Ney n-gram estimation (Chen and Goodman 1998, section 3; Kneser and Ney 1995).

    p(w | h) = max(c(h w) - D(c(h w)), 0) / c(h) + gamma(h) p(w | h without its first word)

c is the count in the text for the highest order and for n-grams that begin with `<s>`; for all others the number of
different words seen before the n-gram. The recursion ends in the uniform distribution over the vocabulary.

Axes: T tokens of the text, G different n-grams of one order, H histories (n-grams of the order below).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from speech3.errors import Speech3Error
from speech3.lm.arpa import BOS, EOS, ArpaLm, Ngrams

UNKNOWN = "<unk>"
_NEVER = -99.0  # log10 probability that ARPA files give to <s>, which is never predicted


@dataclass(frozen=True)
class _Order:
    """The different n-grams of one order, each by numbers of its parts."""

    prefix_G: np.ndarray  # without the last word: number in the order below
    suffix_G: np.ndarray  # without the first word: number in the order below
    word_G: np.ndarray
    count_G: np.ndarray  # the c of the module's docstring


def estimate(
    sentences: Iterable[Sequence[str]],
    order: int,
    vocabulary: Collection[str] | None = None,
    source: str = "Kneser-Ney",
) -> ArpaLm:
    """Estimate a language model in which the words after every history sum to one.

    Parameters
    ----------
    sentences
        Words of each sentence, without `<s>` and `</s>`.
    order
        Length of the longest n-gram, 1 to 6. Shorter if no sentence is that long.
    vocabulary
        Words to give a probability, seen or not; others in the text count as ``<unk>``. None: the words of the text.

    Raises
    ------
    Speech3Error
        No sentences, or one that contains ``<s>`` or ``</s>``.
    """
    if not 1 <= order <= 6:
        raise Speech3Error(f"{source}: n-gram order {order} is not in 1 to 6")
    words, token_T, place_T = _tokens(sentences, vocabulary, source)
    orders = _count(token_T, place_T, len(words), order)
    return ArpaLm(_probabilities(orders, words), source)


def _tokens(
    sentences: Iterable[Sequence[str]], vocabulary: Collection[str] | None, source: str
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the words, the text as word numbers with <s> and </s>, and each token's place in its sentence."""
    numbers = {word: number for number, word in enumerate((BOS, EOS, *sorted(set(vocabulary or ()) - {BOS, EOS})))}
    tokens: list[int] = []
    places: list[int] = []
    for sentence in sentences:
        if BOS in sentence or EOS in sentence:
            raise Speech3Error(f"{source}: {BOS} or {EOS} inside a sentence; give the words alone")
        if vocabulary is not None:
            sentence = [word if word in numbers else UNKNOWN for word in sentence]
        tokens += [0, *(numbers.setdefault(word, len(numbers)) for word in sentence), 1]
        places += range(len(sentence) + 2)
    if not tokens:
        raise Speech3Error(f"{source}: no sentences to estimate a language model from")
    return list(numbers), np.array(tokens, np.int64), np.array(places, np.int64)


def _count(token_T: np.ndarray, place_T: np.ndarray, words: int, order: int) -> list[_Order]:
    gram_T, raws, parts = token_T, [], []
    for length in range(1, order + 1):
        end = np.flatnonzero(place_T >= length - 1)  # tokens at which an n-gram of this length ends
        if not len(end):
            break
        prefix = gram_T[end - 1] if length > 1 else np.zeros(len(end), np.int64)
        key, first, which, raw = np.unique(
            prefix * words + token_T[end], return_index=True, return_inverse=True, return_counts=True
        )
        suffix = gram_T[end[first]] if length > 1 else np.zeros(len(key), np.int64)
        parts.append((key // words, suffix, key % words, place_T[end[first]] == length - 1))
        raws.append(raw)
        gram_T = np.full(len(token_T), -1)
        gram_T[end] = which
        if length == 1:  # words are their own numbers, unseen ones too
            gram_T = token_T
            parts[0] = (np.zeros(words, np.int64), np.zeros(words, np.int64), np.arange(words), np.zeros(words, bool))
            raws[0] = np.bincount(token_T, minlength=words)
    orders = []
    for index, ((prefix, suffix, word, from_start), raw) in enumerate(zip(parts, raws, strict=True)):
        count = raw
        if index + 1 < len(parts):
            count = np.where(from_start, raw, np.bincount(parts[index + 1][1], minlength=len(raw)))
        if index == 0:
            count = np.where(word == 0, 0, count)  # <s> is never predicted
        orders.append(_Order(prefix, suffix, word, count))
    return orders


def discounts(count_G: np.ndarray) -> np.ndarray:
    """Discounts (4,) float64 for counts 0, 1, 2 and 3 or more (Chen and Goodman's equation 26).

    Where counts of counts are missing or give an impossible discount, as in tiny or repetitive texts, one discount
    for all (Kneser and Ney's n1 / (n1 + 2 n2)), or a half if even that cannot be had.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(count_G == n)) for n in (1, 2, 3, 4))
    shared = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if n1 and n2 and n3 and n4:
        modified = np.array([0, 1 - 2 * shared * n2 / n1, 2 - 3 * shared * n3 / n2, 3 - 4 * shared * n4 / n3])
        if (modified[1:] > 0).all() and (modified[1:] < (1, 2, 3)).all():
            return modified
    return np.array([0, shared, shared, shared])


def _probabilities(orders: list[_Order], words: list[str]) -> tuple[Ngrams, ...]:
    lower_H = np.full(1, 1.0 / (len(words) - 1))  # uniform over all words but <s>
    names: list[tuple[str, ...]] = [()]
    tables: list[list[tuple[str, ...]]] = []
    probs, backoffs = [], []
    for order in orders:
        discount = discounts(order.count_G)
        size = len(names)
        total_H = np.bincount(order.prefix_G, order.count_G, minlength=size)
        taken_G = discount[np.minimum(order.count_G, 3)]
        with np.errstate(divide="ignore", invalid="ignore"):
            gamma_H = np.where(total_H > 0, np.bincount(order.prefix_G, taken_G, minlength=size) / total_H, 1.0)
        prob_G = (order.count_G - taken_G) / total_H[order.prefix_G] + gamma_H[order.prefix_G] * lower_H[order.suffix_G]
        names = [(*names[p], words[w]) for p, w in zip(order.prefix_G.tolist(), order.word_G.tolist(), strict=True)]
        tables.append(names)
        probs.append(np.log10(prob_G))
        backoffs.append(np.log10(gamma_H))
        lower_H = prob_G
    probs[0][0] = _NEVER
    backoffs = [*backoffs[1:], np.zeros(len(names))]  # those of order n belong to histories, the n-grams below
    return tuple(
        dict(zip(table, zip(prob.tolist(), backoff.tolist(), strict=True), strict=True))
        for table, prob, backoff in zip(tables, probs, backoffs, strict=True)
    )
