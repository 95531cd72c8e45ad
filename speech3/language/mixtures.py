"""Models made of others: linear interpolation, pruning, and back-off weights that make probabilities sum to one.

The sum after a history is that of its listed words, plus its back-off weight times the sum of all other words'
probabilities after the shorter history (`check_sums`, `normalized`).

Interpolation, with weights tuned on a held-out text: the exact average is not a back-off model, because each model
backs off on its own. The mixture here is one (static interpolation, as SRILM's -mix-lm): it lists the n-grams of all
models with the averages of their probabilities and backs off elsewhere.

Pruning of n-grams that hardly change the model (Stolcke 1998, "Entropy-based pruning"): without an n-gram (h, w), the
word has the probability a' p(w | h'), where h' is h without its first word, and the back-off weight of h changes from a
to a'. The relative entropy between the two models,

    -p(h) { p(w | h) [log p(w | h') + log a' - log p(w | h)] + [log a' - log a] sum of p(v | h) over unlisted v },

is computed for each n-gram as if it alone were removed, as in SRILM.

Axes: M models, T words of a text, X n-grams of the mixture, V words, G n-grams of all orders, H histories, R n-grams of
one order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from speech3.errors import FormatError, MismatchError, SettingError
from speech3.language.arpa import read_arpa
from speech3.language.kneser_ney import Known
from speech3.language.ngrams import BOS, EOS, ROOT, UNKNOWN, ArpaLm, Trie, backed_off, follow, score

TOLERANCE = 0.01  # 10,000 probabilities, rounded to five digits as some tools do, are off by 1e-4
_NOTHING = 1e-10  # values below this are zero but for rounding
_BOS_PROB = 1e-99  # probability of <s>
_SAME, _ROUNDS = 1e-6, 1000


@dataclass(frozen=True)
class Listed:
    """N-grams of one order, and sums of their probabilities for each history."""

    history_R: np.ndarray  # int64: the node of each n-gram's history
    # prob_R, lower_R: probability of the last word, and its probability after the shorter history.
    prob_R: np.ndarray
    lower_R: np.ndarray
    first: int  # the node of the first history
    # sum_H, lower_sum_H, number_H: sums of both, and number of n-grams, for each history.
    sum_H: np.ndarray
    lower_sum_H: np.ndarray
    number_H: np.ndarray

    @property
    def nodes(self) -> slice:
        """The nodes of the histories."""
        return slice(self.first, self.first + len(self.sum_H))


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

    `mending`: if true, new back-off weights will be computed, so only the sums of listed words are checked.
    Raises Speech3Error: with the history that has the largest sum, and what to do.
    """
    total_H, history_G = np.full(len(lm.first_H) - 1, total_of_words(lm)), lm.history_G()
    if total_H[ROOT] > 1 + TOLERANCE:
        raise FormatError(f"{lm.source}: the 1-grams' probabilities sum to {total_H[ROOT]:.4g}; make the model again")
    for order in range(2, lm.order + 1):
        found = listed(lm, lm.trie, history_G, order)
        nodes = found.nodes
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
        raise FormatError(
            f"{lm.source}: after `{' '.join(history)}` {what} sum to {sum_H[worst]:.4g}{others}; {remedy}"
        )


def normalized(lm: ArpaLm) -> ArpaLm:
    """The same n-grams with back-off weights that make the probabilities after every history sum to one."""
    backoff_H, history_G = np.zeros(len(lm.backoff_H)), lm.history_G()
    trie = lm.trie._replace(backoff_H=backoff_H)
    total_H = np.full(len(backoff_H), total_of_words(lm))
    for order in range(2, lm.order + 1):
        found = listed(lm, trie, history_G, order)
        nodes = found.nodes
        with_words_H = found.number_H > 0
        left_H = np.maximum(1 - found.sum_H, _NOTHING)
        lower_left_H = total_H[trie.fail_H[nodes]] - found.lower_sum_H
        needed_H = with_words_H & (lower_left_H > _NOTHING)
        backoff_H[nodes][needed_H] = np.log10(left_H[needed_H] / lower_left_H[needed_H])
        total_H[nodes] = np.where(with_words_H, 1.0, total_H[trie.fail_H[nodes]])
    return replace(lm, backoff_H=backoff_H)


def check_models(models: Sequence[ArpaLm]) -> None:
    """Raise an error if models cannot be interpolated.

    Raises Speech3Error: there are fewer than two, or two of them have no word in common.
    """
    if len(models) < 2:
        raise SettingError("interpolation needs at least two language models")
    for place, one in enumerate(models):
        for other in models[:place]:
            if not set(one.words) & set(other.words):
                raise MismatchError(
                    f"{other.source} ({', '.join(other.words[:3])} ...) and {one.source} ({', '.join(one.words[:3])}"
                    " ...) have no word in common; spell both the same way (upper or lower case?)"
                )


def check_weights(weights: Sequence[float], models: Sequence[object]) -> None:
    """Raise an error if interpolation weights are invalid.

    Raises Speech3Error: their number is not the number of models, one is negative, or they do not sum to 1.
    """
    if len(weights) != len(models):
        raise SettingError(f"{len(weights)} weights for {len(models)} models; pass one for each, such as 0.7,0.3")
    if not all(weight >= 0 for weight in weights) or abs(sum(weights) - 1) > 1e-4:
        given = ", ".join(f"{weight:g}" for weight in weights)
        raise SettingError(f"the weights {given} sum to {sum(weights):g}; they must be at least 0 and sum to 1")


def best_weights(
    models: Sequence[ArpaLm], blocks: Iterable[np.ndarray], vocabulary: Sequence[str], source: str
) -> list[float]:
    """The interpolation weights that maximise the likelihood of a text, found by expectation maximisation.

    `blocks`: the text in blocks, numbered with `tuning_numbers`; words that no model has are left out, and are `<unk>`
    in the histories of others.
    `source`: what to call the text in messages.
    Raises Speech3Error: none of the text's words is in the models.
    """
    numbers_MV = [_numbers_in(model, vocabulary) for model in models]
    left_out, columns, words = vocabulary.index(UNKNOWN) if UNKNOWN in vocabulary else -1, [], 0
    for word_T in blocks:
        logs_MT = [
            score(model.trie, np.append(number_V, -1)[word_T], model.start, model.numbers[EOS])[1]
            for model, number_V in zip(models, numbers_MV, strict=True)
        ]
        known_T = (word_T >= 0) & (word_T != left_out)
        words += int((known_T & (word_T != vocabulary.index(EOS))).sum())
        columns.append(10.0 ** np.stack(logs_MT)[:, known_T])
    prob_MT = np.concatenate(columns, axis=1) if columns else np.zeros((len(models), 0))
    prob_MT = prob_MT[:, prob_MT.any(axis=0)]
    if not words or not prob_MT.shape[1]:
        raise MismatchError(
            f"{source}: no word of the language models; use another text to tune the weights on, or spell them the same"
            " way (upper or lower case?)"
        )
    return em_weights(prob_MT).tolist()


def em_weights(prob_MT: np.ndarray) -> np.ndarray:
    """The interpolation weights (M,) that maximise the product over T of the mixed probabilities, by EM."""
    weight_M = np.full(len(prob_MT), 1 / len(prob_MT))
    for _ in range(_ROUNDS):
        share_MT = weight_M[:, None] * prob_MT
        better_M = (share_MT / share_MT.sum(axis=0)).mean(axis=1)
        change = np.abs(better_M - weight_M).max()
        weight_M = better_M
        if change < _SAME:
            break
    return weight_M


def joint_vocabulary(models: Sequence[ArpaLm]) -> tuple[str, ...]:
    """The words of all models: those of the first model, then those that the others add."""
    return tuple(dict.fromkeys(word for model in models for word in model.vocabulary))


def tuning_numbers(vocabulary: Sequence[str]) -> Known:
    """The word numbers for the text of `best_weights`."""
    return Known({word: number for number, word in enumerate(vocabulary)})


def _numbers_in(model: ArpaLm, vocabulary: Sequence[str]) -> np.ndarray:
    """The number of each word of the vocabulary in the model, -1 if the model lacks it; int32 (V,)."""
    return np.array([model.numbers.get(word, -1) for word in vocabulary], np.int32)


def interpolate(models: Sequence[ArpaLm], weights: Sequence[float], source: str) -> ArpaLm:
    """Interpolate models. A word that a model lacks has probability zero in it."""
    check_models(models)
    check_weights(weights, models)
    used = [(model, weight) for model, weight in zip(models, weights, strict=True) if weight > 0]
    vocabulary = joint_vocabulary([model for model, _ in used])
    mixture = _union([model for model, _ in used], vocabulary, source)
    history_X, prob_X = mixture.history_G(), np.zeros(len(mixture.word_G))
    for model, weight in used:
        number_V = _numbers_in(model, vocabulary)
        word_X = np.concatenate([[-1], number_V[mixture.word_G[1:]]])
        prob_X += weight * 10.0 ** follow(model.trie, history_X, word_X)
    mixture.prob_G[:] = np.log10(np.maximum(prob_X, _BOS_PROB))
    mixture.prob_G[0], mixture.prob_G[mixture.starts_N[1] + mixture.numbers[BOS]] = 0, np.log10(_BOS_PROB)
    return normalized(mixture)


def _union(models: Sequence[ArpaLm], vocabulary: tuple[str, ...], source: str) -> ArpaLm:
    """The n-grams of all models; probabilities and back-off weights are still zero."""
    size = len(vocabulary)
    numbers = {word: number for number, word in enumerate(vocabulary)}
    to_joint_M = [np.array([numbers[word] for word in model.vocabulary]) for model in models]
    histories_M = [model.history_G() for model in models]
    places_M = to_joint_M  # places of each model's n-grams of the order below in the union
    starts, firsts, words = [0, 1, 1 + size], [np.array([1, 1 + size])], [np.array([-1]), np.arange(size)]
    below = size
    for order in range(2, max(model.order for model in models) + 1):
        keys_M = []
        for model, places, history_G, to_joint in zip(models, places_M, histories_M, to_joint_M, strict=True):
            if order > model.order:
                keys_M.append(np.zeros(0, np.int64))
                continue
            nodes = slice(model.starts_N[order], model.starts_N[order + 1])
            keys_M.append(places[history_G[nodes] - model.starts_N[order - 1]] * size + to_joint[model.word_G[nodes]])
        key_X = np.unique(np.concatenate(keys_M))
        places_M = [np.searchsorted(key_X, keys) for keys in keys_M]
        firsts.append(starts[-1] + np.searchsorted(key_X, np.arange(1, below + 1) * size))
        words.append(key_X % size)
        starts.append(starts[-1] + len(key_X))
        below = len(key_X)
    word_G, first_H = np.concatenate(words).astype(np.int32), np.concatenate(firsts)
    return ArpaLm(
        vocabulary, np.array(starts), first_H, word_G, np.zeros(len(word_G)), np.zeros(len(first_H) - 1), source
    )


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
        nodes = found.nodes
        words_H = lm.prob_G[nodes].copy()
        if order == 2:
            words_H[lm.numbers[BOS]] = words_H[lm.numbers[EOS]]  # sentences have as many starts as ends
        log_prob_H[nodes] = log_prob_H[history_G[nodes]] + words_H * np.log(10)
        # What is left for unlisted words, here and after the shorter history.
        left_H = np.maximum(1 - found.sum_H, 0)
        lower_left_H = np.maximum(total_H[trie.fail_H[nodes]] - found.lower_sum_H, 0)
        total_H[nodes] = np.where(found.number_H > 0, 1.0, total_H[trie.fail_H[nodes]])
        at_R = found.history_R - found.first
        left_R, lower_left_R = left_H[at_R], lower_left_H[at_R]
        # a' / a and the change of unlisted words, then that of the word itself.
        with np.errstate(divide="ignore", invalid="ignore"):
            weight_R = np.log((left_R + found.prob_R) / (lower_left_R + found.lower_R))
            others_R = left_R * (weight_R - np.log(left_R / lower_left_R))
        others_R[(left_R < _NOTHING) | (lower_left_R < _NOTHING)] = 0
        word_R = found.prob_R * (np.log(found.lower_R) + weight_R - np.log(found.prob_R))
        changes.append(np.expm1(-np.exp(log_prob_H[found.history_R]) * (word_R + others_R)))
    return changes


def _part(lm: ArpaLm, kept_G: np.ndarray, history_G: np.ndarray) -> ArpaLm:
    starts_N = np.concatenate([[0], np.cumsum(kept_G)])[lm.starts_N]
    order = int(np.flatnonzero(np.diff(starts_N))[-1])
    children_H = np.bincount(history_G[1:][kept_G[1:]], minlength=len(lm.first_H) - 1)
    kept_H = kept_G[: lm.starts_N[order]]
    first_H = 1 + np.concatenate([[0], np.cumsum(children_H[: len(kept_H)][kept_H])])
    word_G, prob_G, backoff_H = lm.word_G[kept_G], lm.prob_G[kept_G], lm.backoff_H[: len(kept_H)][kept_H]
    return ArpaLm(lm.vocabulary, starts_N[: order + 2], first_H, word_G, prob_G, backoff_H, lm.source)
