"""Linear interpolation of several models, with weights tuned on a held-out text.

The exact average is not a back-off model, because each model backs off on its own. The mixture here is one (static
interpolation, as SRILM's -mix-lm): it lists the n-grams of all models with the averages of their probabilities and
backs off elsewhere, with back-off weights that make the probabilities after every history sum to one.

Axes: M models, T words of a text, X n-grams of the mixture, V words.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from speech3.errors import Speech3Error
from speech3.lm.ngrams import BOS, EOS, ArpaLm
from speech3.lm.normalize import normalized
from speech3.lm.text import Known
from speech3.lm.trie import follow, score

_NEVER = 1e-99  # probability of <s>
_SAME, _ROUNDS = 1e-6, 1000


def check_models(models: Sequence[ArpaLm]) -> None:
    """Raise an error if models cannot be interpolated.

    Raises
    ------
    Speech3Error
        There are fewer than two, or two of them have no word in common.
    """
    if len(models) < 2:
        raise Speech3Error("interpolation takes two language models or more; give another one")
    for place, one in enumerate(models):
        for other in models[:place]:
            if not set(one.words) & set(other.words):
                raise Speech3Error(
                    f"{other.source} ({', '.join(other.words[:3])} ...) and {one.source} ({', '.join(one.words[:3])}"
                    " ...) have no word in common; spell both the same way (upper or lower case?)"
                )


def check_weights(weights: Sequence[float], models: Sequence[ArpaLm]) -> None:
    """Raise an error if interpolation weights are invalid.

    Raises
    ------
    Speech3Error
        Their number is not the number of models, one is negative, or they do not sum to 1.
    """
    if len(weights) != len(models):
        raise Speech3Error(f"{len(weights)} weights for {len(models)} models; give one for each, such as 0.7,0.3")
    if not all(weight >= 0 for weight in weights) or abs(sum(weights) - 1) > 1e-4:
        given = ", ".join(f"{weight:g}" for weight in weights)
        raise Speech3Error(f"the weights {given} sum to {sum(weights):g}; they must be at least 0 and sum to 1")


def best_weights(
    models: Sequence[ArpaLm], blocks: Iterable[np.ndarray], vocabulary: Sequence[str], source: str
) -> list[float]:
    """The interpolation weights that maximise the likelihood of a text, found by expectation maximisation.

    Parameters
    ----------
    blocks
        The text in blocks of `speech3.lm.text`, numbered with `tuning_numbers`; words that no model has are left out.
    source
        What to call the text in messages.

    Raises
    ------
    Speech3Error
        None of the text's words is in the models.
    """
    numbers_MV = [_numbers_in(model, vocabulary) for model in models]
    columns = []
    for word_T in blocks:
        logs_MT = [
            score(model.trie, np.append(number_V, -1)[word_T], model.start, model.numbers[EOS])[1]
            for model, number_V in zip(models, numbers_MV, strict=True)
        ]
        columns.append(10.0 ** np.stack(logs_MT)[:, word_T >= 0])
    prob_MT = np.concatenate(columns, axis=1) if columns else np.zeros((len(models), 0))
    prob_MT = prob_MT[:, prob_MT.any(axis=0)]
    if not prob_MT.shape[1]:
        raise Speech3Error(f"{source}: no word of the language models; give another text to tune the weights on")
    weight_M = np.full(len(models), 1 / len(models))
    for _ in range(_ROUNDS):
        share_MT = weight_M[:, None] * prob_MT
        better_M = (share_MT / share_MT.sum(axis=0)).mean(axis=1)
        change = np.abs(better_M - weight_M).max()
        weight_M = better_M
        if change < _SAME:
            break
    return weight_M.tolist()


def joint_vocabulary(models: Sequence[ArpaLm]) -> tuple[str, ...]:
    """The words of all models: those of the first model, then those that the others add."""
    return tuple(dict.fromkeys(word for model in models for word in model.vocabulary))


def tuning_numbers(vocabulary: Sequence[str]) -> Known:
    """The word numbers for the text of `best_weights`: unknown words are -1, even if there is an `<unk>`."""
    numbers = Known({word: number for number, word in enumerate(vocabulary)})
    numbers.unknown = -1
    return numbers


def _numbers_in(model: ArpaLm, vocabulary: Sequence[str]) -> np.ndarray:
    """The number of each word of the vocabulary in the model, -1 if the model lacks it; int32 (V,)."""
    return np.array([model.numbers.get(word, -1) for word in vocabulary], np.int32)


def interpolate(models: Sequence[ArpaLm], weights: Sequence[float], source: str) -> ArpaLm:
    """Interpolate models. A word that a model lacks has probability zero in it.

    Raises
    ------
    Speech3Error
        Raised by `check_models` and `check_weights`.
    """
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
    mixture.prob_G[:] = np.log10(np.maximum(prob_X, _NEVER))
    mixture.prob_G[0], mixture.prob_G[mixture.starts_N[1] + mixture.numbers[BOS]] = 0, np.log10(_NEVER)
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
