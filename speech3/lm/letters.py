"""Words that an n-gram model lacks, spelled with an n-gram model of the letters of words.

An unseen word is drawn letter by letter where the word model expects a new word (Bazzi and Glass 2000, "Modeling
out-of-vocabulary words for robust speech recognition"; Kaldi's utils/lang/make_unk_lm.sh does the same with phones):

    p(spelled w | h) = p(new | h) p(letters of w)

`new` is a word added to the word model (`speech3.lm.added`) with only a unigram probability. So p(new | h) is large
after histories that many different words have followed, because their Kneser-Ney back-off weights are large. The word
after a spelled one has its unigram probability.

The letters are units, which show their places in the word: ``c￭ ￭a￭ ￭t``. Both models together are one n-gram model,
whose unigrams are those of two distributions: of words and first letters, and of further letters. A decoding graph
allows further letters only within spelled words, and nothing else there (`speech3.graph.lexicon_fst`). So the first
of the two is backed off to between words, the second within words, and each sums to one.

Axes: R n-grams of one order.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from speech3.lexicon.subwords import JOINER
from speech3.lm.added import with_unigrams
from speech3.lm.kneser_ney import estimate
from speech3.lm.ngrams import BOS, EOS, NEVER, UNKNOWN, ArpaLm, Ngrams, Rows, from_ngrams, from_rows
from speech3.lm.normalize import normalized
from speech3.lm.trie import step

_ROUNDS = 60  # of bisection
_NEW = "new"  # the class of unseen words, while its weight is sought


def units_of(letters: Sequence[str]) -> tuple[str, ...]:
    """The letters of a word, at least two, marked with their places in it.

    >>> units_of("cat")
    ('c￭', '￭a￭', '￭t')
    """
    first, *inner, last = letters
    return (first + JOINER, *(JOINER + letter + JOINER for letter in inner), JOINER + last)


def letter_model(spellings: Iterable[Sequence[str]], order: int) -> ArpaLm:
    """Estimate a model of spellings, given by their units."""
    return estimate(spellings, order, source="spellings of words")


def with_letters(lm: ArpaLm, letters: ArpaLm, weight: float) -> ArpaLm:
    """The word model and the letter model together.

    Parameters
    ----------
    letters
        As `letter_model` returns it.
    weight
        Unigram probability of a new word before all are scaled down to sum to one, as in `speech3.lm.added`.
    """
    firsts = {ngram[1]: prob for ngram, (prob, _) in letters.ngrams[1].items() if ngram[0] == BOS}
    total = math.log10(sum(10.0**prob for prob in firsts.values()))
    words = with_unigrams(lm, {unit: math.log10(weight) + prob - total for unit, prob in firsts.items()})
    further = _after_first(letters)
    vocabulary = (*words.vocabulary, *(unit for unit in further.vocabulary if unit not in words.numbers))
    numbers = {word: number for number, word in enumerate(vocabulary)}
    number_V = np.array([numbers[unit] for unit in further.vocabulary], np.int32)
    orders = []
    for order in range(1, max(lm.order, further.order) + 1):
        parts = [words.rows(order)] if order <= lm.order else []
        if order <= further.order:
            rows = further.rows(order)
            parts.append(Rows(number_V[rows.words_RN], rows.prob_R, rows.backoff_R))
        orders.append(Rows(*map(np.concatenate, zip(*parts, strict=True))))
    both, again = orders[0], number_V < len(words.vocabulary)
    place_V = np.arange(len(number_V)) + len(words.vocabulary)
    both.backoff_R[number_V[again]] += both.backoff_R[place_V[again]]  # of first letters; `<s>` keeps its own
    kept_R = np.append(np.ones(len(words.vocabulary), bool), ~again)
    orders[0] = Rows(*(column[kept_R] for column in both))
    return from_rows(vocabulary, orders, lm.source)


def _after_first(letters: ArpaLm) -> ArpaLm:
    """The model of the letters after the first, in which only its first unit marks the beginning of a word.

    Units that cannot follow have no probability: a first letter, and the end, which the last letter marks.
    """
    alone = {ngram: values for ngram, values in letters.ngrams[0].items() if ngram[0].startswith(JOINER)}
    total = math.log10(sum(10.0**prob for prob, _ in alone.values()))
    others = [ngram for ngram in letters.ngrams[0] if ngram not in alone]
    unigrams: Ngrams = {ngram: (NEVER, 0.0) for ngram in others} | {
        ngram: (prob - total, 0.0) for ngram, (prob, _) in alone.items()
    }
    tables: list[dict[tuple[str, ...], tuple[float, float]]] = [{} for _ in letters.ngrams[1:]]
    for order, table in enumerate(letters.ngrams[1:], 2):
        for ngram, (prob, _) in table.items():
            if ngram[-1] == EOS:
                continue
            if ngram[0] == BOS:  # counted as it is, where the shorter one is counted once for all words
                ngram = ngram[1:]
            elif not ngram[0].startswith(JOINER) and order < letters.order:
                continue
            if len(ngram) > 1:
                tables[len(ngram) - 2][ngram] = prob, 0.0
    return normalized(from_ngrams([unigrams, *(table for table in tables if table)], letters.source))


def weight_for(lm: ArpaLm, sentences: Iterable[Sequence[str]]) -> float:
    """The weight of new words with which a text is most probable: as many are expected in it as there are.

    Parameters
    ----------
    lm
        The word model; words of the text that it lacks are the new ones. `<unk>` is one of them.
    sentences
        Words of each sentence. If none is new, half a word counts as new.
    """
    known = with_unigrams(lm, {_NEW: 0.0})
    new, number = known.numbers[_NEW], {word: place for word, place in known.numbers.items() if word != UNKNOWN}
    found, share_T = 0, []
    for sentence in sentences:
        state = known.start
        for word in (*sentence, EOS):
            share = 10.0 ** step(known.trie, state, new)[1]
            share_T.append(share / (1 - share))  # A(h) of `speech3.lm.added`, at weight 1
            following = number.get(word, new)
            found += following == new
            state = step(known.trie, state, following)[2]
    share_at_one_T, wanted = np.array(share_T), max(found, 0.5)
    low, high = -12.0, 12.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        grown_T = share_at_one_T * 10.0**middle
        low, high = (middle, high) if (grown_T / (1 + grown_T)).sum() < wanted else (low, middle)
    return 10.0**low
