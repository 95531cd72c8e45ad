"""Words added to an n-gram model that was estimated without them.

A new word w gets a probability p(w | h) after every history h, and what is added there, A(h) = sum of p(w | h) over the
new words, is taken from all words alike:

    p'(w | h) = p(w | h) / (1 + A(h))        backoff'(h) = backoff(h) (1 + A(h')) / (1 + A(h))

for all words, old and new; h' is h without its first word. So after every history the probabilities add up to what they
did before, and any two old words keep the ratio of theirs.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from speech3.corpus.langdir import NOT_WORDS, read_utf8
from speech3.corpus.pronounce import Phones
from speech3.errors import Speech3Error
from speech3.lm.arpa import BOS, EOS
from speech3.lm.ngrams import ArpaLm, from_ngrams

_LIKE = "like"
_RESERVED = NOT_WORDS | {"#0"}
_NEVER = -99.0  # log10 of what ARPA files mean by zero
_MOST = 0.5  # of the probability for new words; more is a mistake

Table = dict[tuple[str, ...], tuple[float, float]]


@dataclass(frozen=True)
class AddedWord:
    """A line of a list of words, or several of one word.

    Attributes
    ----------
    weight
        How many times as probable as the model's median word; None: not said, which is once.
    like
        The word of the model whose n-grams it shares: after every history it is as probable, and so is what follows.
    pronunciations
        Those that the list gives.
    line
        Where it stands first.
    """

    word: str
    weight: float | None
    like: str | None
    pronunciations: tuple[Phones, ...]
    line: int


def read_added(path: Path) -> list[AddedWord]:
    """Read lines `WORD [WEIGHT | like OTHER] [PHONE PHONE ...]`; a word on several lines has several pronunciations.

    Raises
    ------
    Speech3Error
        Naming file and line: there is no word, one is not to be added (`<s>`), a weight is not above zero, `like` is
        without a word, a word has two weights.
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
            raise Speech3Error(
                f"{path}:{number}: {entry.word} has another weight than in line {before.line}; leave one of them"
            )
        both = dict.fromkeys(before.pronunciations + entry.pronunciations)
        found[entry.word] = replace(before, pronunciations=tuple(both))
    if not found:
        raise Speech3Error(f"{path}: holds no word to add; write one word a line")
    return list(found.values())


def _entry(fields: Sequence[str], number: int, path: Path) -> AddedWord:
    word, *rest = fields
    if word in _RESERVED:
        raise Speech3Error(f"{path}:{number}: {word} is no word that can be said; remove the line")
    weight, like = None, None
    if rest and rest[0] == _LIKE:
        if len(rest) < 2:
            raise Speech3Error(f"{path}:{number}: `{_LIKE}` wants the word that {word} is like: {word} {_LIKE} OTHER")
        like, rest = rest[1], rest[2:]
    elif rest and (weight := _number(rest[0])) is not None:
        rest = rest[1:]
        if not 0 < weight < math.inf:
            raise Speech3Error(
                f"{path}:{number}: {word}: a weight lies above 0 (1: as probable as the median word), not {fields[1]}"
            )
    return AddedWord(word, weight, like, (tuple(rest),) if rest else (), number)


def _number(field: str) -> float | None:
    try:
        return float(field) if field[0] in "+-.0123456789" else None
    except ValueError:
        return None


def add_words(lm: ArpaLm, words: Iterable[AddedWord], source: Path) -> ArpaLm:
    """The model with words that it lacks, renormalised.

    Raises
    ------
    Speech3Error
        Naming `source` and the line: a word is to be like one that the model lacks, or the new words together would
        be more probable than the old ones.
    """
    words = list(words)
    median = _median(lm)
    likes: dict[str, list[str]] = {}
    tables = lm.ngrams
    new: list[Table] = [{} for _ in tables]
    for word in words:
        if word.like is None:
            new[0][(word.word,)] = (math.log10(median * (1.0 if word.weight is None else word.weight)), 0.0)
        elif (word.like,) in tables[0]:
            likes.setdefault(word.like, []).append(word.word)
        else:
            raise Speech3Error(
                f"{source}:{word.line}: {word.word} is to be like {word.like}, which is no word of the language model"
                f" ({lm.source}); name one that it has"
            )
    for table, known in zip(new, tables, strict=True):
        table.update(_copies(known, likes))
    _check_share(sum(10.0**prob for prob, _ in new[0].values()), source)
    added = _Added(lm, new)
    return from_ngrams(tuple(added.renormalised(order) for order in range(lm.order)), f"{lm.source} with {source}")


def _median(lm: ArpaLm) -> float:
    probs = [prob for (word,), (prob, _) in lm.ngrams[0].items() if word not in (*_RESERVED, BOS, EOS)]
    probs = [prob for prob in probs if prob > _NEVER]
    if not probs:
        raise Speech3Error(f"{lm.source}: has no word; words can be added to a language model that has some")
    return float(10.0 ** statistics.median(probs))


def _check_share(added: float, source: Path) -> None:
    if added > _MOST * (1 + added):
        raise Speech3Error(
            f"{source}: together the words would be {added / (1 + added):.0%} of what is said; lower their weights (1:"
            " as probable as the median word)"
        )


def _copies(
    ngrams: Mapping[tuple[str, ...], tuple[float, float]], likes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[tuple[str, ...], tuple[float, float]]]:
    """The n-grams that hold a word, with each word that is like it in its place."""
    if not likes:
        return
    for ngram, values in ngrams.items():
        for other in likes.keys() & set(ngram):
            for word in likes[other]:
                yield tuple(word if part == other else part for part in ngram), values


class _Added:
    """The new n-grams beside the old ones, and A(h) of the module's docstring."""

    def __init__(self, lm: ArpaLm, new: Sequence[Table]) -> None:
        self._tables: list[Table] = [{**old, **more} for old, more in zip(lm.ngrams, new, strict=True)]
        words = {word for (word,) in new[0]}
        self._after: dict[tuple[str, ...], list[str]] = {}  # new words that an n-gram of its own says after a history
        for ngram in chain(*new):
            if ngram[-1] in words:
                self._after.setdefault(ngram[:-1], []).append(ngram[-1])
        self._shares: dict[tuple[str, ...], float] = {}

    def _prob(self, history: tuple[str, ...], word: str) -> float:
        found = self._tables[len(history)].get((*history, word))
        if found is not None:
            return float(10.0 ** found[0])
        return float(10.0 ** self._backoff(history)) * self._prob(history[1:], word)

    def _backoff(self, history: tuple[str, ...]) -> float:
        return self._tables[len(history) - 1].get(history, (0.0, 0.0))[1]

    def _share(self, history: tuple[str, ...]) -> float:
        """A(h)."""
        if history not in self._shares:
            after = self._after.get(history, [])
            share = sum(self._prob(history, word) for word in after)
            if history:
                rest = self._share(history[1:]) - sum(self._prob(history[1:], word) for word in after)
                share += 10.0 ** self._backoff(history) * max(rest, 0.0)
            self._shares[history] = share
        return self._shares[history]

    def renormalised(self, order: int) -> Table:
        """The n-grams of this order, from 0, with the probabilities and back-off weights of the new model."""
        table: Table = {}
        for ngram, (prob, backoff) in self._tables[order].items():
            if prob > _NEVER:
                prob -= math.log10(1 + self._share(ngram[:-1]))
            if order + 1 < len(self._tables) and backoff > _NEVER:
                backoff += math.log10((1 + self._share(ngram[1:])) / (1 + self._share(ngram)))
            table[ngram] = prob, backoff
        return table
