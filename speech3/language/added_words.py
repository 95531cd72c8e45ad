"""Words that an n-gram model was estimated without: added to it, or spelled by a model of letters.

A new word w gets a probability p(w | h) after every history h. To make up for the added probability A(h), the sum of
p(w | h) over the new words, all words are scaled down by the same factor:

    p'(w | h) = p(w | h) / (1 + A(h))        backoff'(h) = backoff(h) (1 + A(h')) / (1 + A(h))

for all words, old and new; h' is h without its first word. So the probabilities after every history keep their sum, and
the ratio of the probabilities of any two old words stays the same.

An unseen word is drawn letter by letter where the word model expects a new word (Bazzi and Glass 2000, "Modeling
out-of-vocabulary words for robust speech recognition"; Kaldi's utils/lang/make_unk_lm.sh does the same with phones):

    p(spelled w | h) = p(new | h) p(letters of w)

`new` is a word added to the word model with only a unigram probability. So p(new | h) is large after histories that
many different words have followed, because their Kneser-Ney back-off weights are large. The word after a spelled one
has its unigram probability. The letters are units, which show their places in the word: ``c￭ ￭a￭ ￭t``. Both models
together are one n-gram model, whose unigrams are those of two distributions: of words and first letters, and of further
letters. A decoding graph allows further letters only within spelled words, and nothing else there
(`speech3.decode`). So the first of the two is backed off to between words, the second within words, and each sums to
one.

Axes: G n-grams of all orders, H histories, R n-grams of one order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from speech3.data import SYMBOLS
from speech3.errors import DataError, FormatError, MissingError
from speech3.language.lexicon import JOINER, NOT_WORDS
from speech3.language.mixtures import listed, normalized
from speech3.language.ngrams import BOS, EOS, NEVER, ROOT, UNKNOWN, ArpaLm, Ngrams, Rows, from_ngrams, from_rows, step
from speech3.language.pronounce import Phones
from speech3.runtime import composed, read_utf8

_LIKE = "like"
_RESERVED = NOT_WORDS | SYMBOLS
_LARGEST_SHARE = 0.5  # largest share of the probability that new words may take; more must be a mistake
_ROUNDS = 60  # of bisection
_NEW_WORD = "new"  # the class of unseen words, while its weight is sought


@dataclass(frozen=True)
class AddedWord:
    """A word to add: one line of a word list, or several lines with the same word."""

    word: str
    weight: float | None  # probability relative to the model's median word; None if not given, which means 1
    # A word of the model whose n-grams it copies: it has the same probabilities, and so have the words after it
    like: str | None
    pronunciations: tuple[Phones, ...]  # pronunciations from the list
    line: int  # number of its first line


def read_added(path: Path) -> list[AddedWord]:
    """Read lines `WORD [WEIGHT | like OTHER] [PHONE PHONE ...]`; a word on several lines has several pronunciations.

    Raises Speech3Error, with file and line: there is no word, a word cannot be added (`<s>`), a weight is not above
    zero, `like` is not followed by a word, or a word has two weights.
    """
    found: dict[str, AddedWord] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        if not line.strip():
            continue
        entry = _entry(line.split(), number, path)
        before = found.setdefault(entry.word, entry)
        if before is entry:
            continue
        if (entry.weight, entry.like) not in ((None, None), (before.weight, before.like)):
            raise FormatError(
                f"{path}:{number}: {entry.word} has another weight than in line {before.line}; keep one of them"
            )
        both = dict.fromkeys(before.pronunciations + entry.pronunciations)
        found[entry.word] = replace(before, pronunciations=tuple(both))
    if not found:
        raise DataError(f"{path}: contains no word to add; write one word per line")
    return list(found.values())


def _entry(fields: Sequence[str], number: int, path: Path) -> AddedWord:
    word, *rest = composed(fields[0], path), *fields[1:]
    if word in _RESERVED:
        raise FormatError(f"{path}:{number}: {word} is not a word that can be spoken; remove the line")
    weight, like = None, None
    if rest and rest[0] == _LIKE:
        if len(rest) < 2:
            raise FormatError(f"{path}:{number}: `{_LIKE}` needs a word that {word} is like: {word} {_LIKE} OTHER")
        like, rest = composed(rest[1], path), rest[2:]
    elif rest and (weight := number_in(rest[0])) is not None:
        rest = rest[1:]
        if not 0 < weight < math.inf:
            raise FormatError(
                f"{path}:{number}: {word}: weights must be above 0 (1: as probable as the median word), not {fields[1]}"
            )
    return AddedWord(word, weight, like, (tuple(rest),) if rest else (), number)


def number_in(field: str) -> float | None:
    """The value of a field that is a number; None for a word, such as `inf`."""
    try:
        return float(field) if field[0] in "+-.0123456789" else None
    except ValueError:
        return None


def add_words(lm: ArpaLm, words: Iterable[AddedWord], source: Path) -> ArpaLm:
    """Add words to a model that lacks them, and renormalise it.

    Raises Speech3Error, with `source` and, if it is one word's fault, the line: a word is to be like one that the model
    lacks, or the new words together would be more probable than the old ones.
    """
    words = list(words)
    median, likes = _median(lm), dict[str, list[int]]()
    numbers = {word.word: len(lm.vocabulary) + place for place, word in enumerate(words)}
    unigrams = np.full(len(words), NEVER)
    for place, word in enumerate(words):
        if word.like is None:
            unigrams[place] = math.log10(median * (1.0 if word.weight is None else word.weight))
        elif word.like in lm.numbers:
            likes.setdefault(word.like, []).append(numbers[word.word])
            unigrams[place] = lm.prob_G[1 + lm.numbers[word.like]]
        else:
            raise MissingError(
                f"{source}:{word.line}: {word.word} is to be like {word.like}, which is not in the language model"
                f" ({lm.source}); pass a word that is"
            )
    _check_share(float((10.0**unigrams).sum()), source)
    copied = {lm.numbers[word]: copies for word, copies in likes.items()}
    longer = [_with_copies(lm.rows(order), copied) for order in range(2, lm.order + 1)]
    likened = [lm.backoff_H[1 + lm.numbers[word.like]] if word.like and lm.order > 1 else 0.0 for word in words]
    return _extended(lm, numbers, unigrams, likened, longer, f"{lm.source} with {source}")


def with_unigrams(lm: ArpaLm, log10_probs: Mapping[str, float]) -> ArpaLm:
    """Add words that the model lacks, given their unigram probabilities before it is renormalised."""
    longer = [lm.rows(order) for order in range(2, lm.order + 1)]
    return _extended(lm, log10_probs, list(log10_probs.values()), [0.0] * len(log10_probs), longer, lm.source)


def _extended(
    lm: ArpaLm, words: Iterable[str], probs: ArrayLike, backoffs: ArrayLike, longer: Sequence[Rows], source: str
) -> ArpaLm:
    first, vocabulary = lm.rows(1), (*lm.vocabulary, *words)
    numbers_R1 = np.arange(len(vocabulary), dtype=np.int32)[:, None]
    alone = Rows(numbers_R1, np.append(first.prob_R, probs), np.append(first.backoff_R, backoffs))
    return _renormalised(from_rows(vocabulary, [alone, *longer], source), len(vocabulary) - len(lm.vocabulary))


def _with_copies(rows: Rows, copied: Mapping[int, Sequence[int]]) -> Rows:
    """The n-grams, and copies of those with a copied word in which each new word like it takes its place."""
    words, which = [rows.words_RN], [np.arange(len(rows.prob_R))]
    for other, copies in copied.items():
        here = np.flatnonzero((rows.words_RN == other).any(axis=1))
        for copy in copies:
            found = rows.words_RN[here]
            words.append(np.where(found == other, np.int32(copy), found))
            which.append(here)
    all_R = np.concatenate(which)
    return Rows(np.concatenate(words), rows.prob_R[all_R], rows.backoff_R[all_R])


def _renormalised(lm: ArpaLm, new: int) -> ArpaLm:
    history_G, is_new_G = lm.history_G(), lm.word_G >= len(lm.vocabulary) - new
    share_H = np.zeros(len(lm.first_H) - 1)  # A(h)
    share_H[ROOT] = (10.0 ** lm.prob_G[lm.starts_N[1] : lm.starts_N[2]])[-new:].sum()
    for order in range(2, lm.order + 1):
        found = listed(lm, lm.trie, history_G, order)
        nodes = found.nodes
        counts_R = is_new_G[lm.starts_N[order] : lm.starts_N[order + 1]]
        own_H, lower_H = (
            np.bincount(found.history_R - found.first, counts_R * prob_R, minlength=len(found.sum_H))
            for prob_R in (found.prob_R, found.lower_R)
        )
        rest_H = np.maximum(share_H[lm.trie.fail_H[nodes]] - lower_H, 0)
        share_H[nodes] = own_H + 10.0 ** lm.backoff_H[nodes] * rest_H
    prob_G, backoff_H = lm.prob_G.copy(), lm.backoff_H.copy()
    possible_G = prob_G > NEVER
    possible_G[ROOT] = False
    prob_G[possible_G] -= np.log10(1 + share_H[history_G[possible_G]])
    weighted = np.flatnonzero(backoff_H > NEVER)[1:]  # the root has no weight
    backoff_H[weighted] += np.log10((1 + share_H[lm.trie.fail_H[weighted]]) / (1 + share_H[weighted]))
    return replace(lm, prob_G=prob_G, backoff_H=backoff_H)


def _median(lm: ArpaLm) -> float:
    none = [lm.numbers[word] for word in (*_RESERVED, BOS, EOS) if word in lm.numbers]
    probs = np.delete(lm.prob_G[lm.starts_N[1] : lm.starts_N[2]], none)
    probs = probs[probs > NEVER]
    if not len(probs):
        raise DataError(f"{lm.source}: has no words; add words to a language model that has some")
    return float(10.0 ** np.median(probs))


def _check_share(added: float, source: Path) -> None:
    if added > _LARGEST_SHARE * (1 + added):
        raise DataError(
            f"{source}: together, the words would take {added / (1 + added):.0%} of the probability; lower their"
            " weights (1: as probable as the median word)"
        )


def letter_units(letters: Sequence[str]) -> tuple[str, ...]:
    """The letters of a word, at least two, marked with their places in it.

    >>> letter_units("cat")
    ('c￭', '￭a￭', '￭t')
    """
    first, *inner, last = letters
    return (first + JOINER, *(JOINER + letter + JOINER for letter in inner), JOINER + last)


def add_letter_model(lm: ArpaLm, letters: ArpaLm, weight: float) -> ArpaLm:
    """The word model, and a model of spellings (`letter_units`), together.

    `weight`: unigram probability of a new word before all are scaled down to sum to one.
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


def new_word_weight(lm: ArpaLm, sentences: Iterable[Sequence[str]]) -> float:
    """The weight of new words with which a text is most probable: as many are expected in it as there are.

    `lm`: the word model; words of the text that it lacks are the new ones. `<unk>` is one of them.
    `sentences`: words of each sentence. If none is new, half a word counts as new.
    """
    known = with_unigrams(lm, {_NEW_WORD: 0.0})
    new, number = known.numbers[_NEW_WORD], {word: place for word, place in known.numbers.items() if word != UNKNOWN}
    found, share_T = 0, []
    for sentence in sentences:
        state = known.start
        for word in (*sentence, EOS):
            share = 10.0 ** step(known.trie, state, new)[1]
            share_T.append(share / (1 - share))  # A(h) at weight 1
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
