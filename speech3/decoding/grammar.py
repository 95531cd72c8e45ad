"""G, the acceptor of word sequences: from an n-gram model (Kaldi's arpa2fst) or a grammar."""

import math
from dataclasses import dataclass

import numpy as np

from speech3.decoding.fst import Fst, FstBuilder
from speech3.errors import Speech3Error
from speech3.hmm.lexicon import UNKNOWN, Lexicon
from speech3.lm.arpa import BOS, EOS, ArpaLm
from speech3.lm.word_graph import WordGraph

EPSILON, BACKOFF = "<eps>", "#0"


@dataclass(frozen=True, eq=False)
class Grammar:
    """What may be said.

    Attributes
    ----------
    words
        The symbol table: `<eps>` first, then the words, `#0` (the back-off arc) last; a label is an index in it.
    fst
        Input and output labels are words; back-off arcs read `#0` and write nothing.
    source
        File or name, for messages.
    dropped
        Words of the language model that the lexicon lacks.
    """

    words: tuple[str, ...]
    fst: Fst
    source: str
    dropped: tuple[str, ...] = ()


def one_word(lexicon: Lexicon) -> Grammar:
    """Exactly one word of the lexicon, all equally probable; `<unk>` is not among them."""
    words = [word for word in lexicon.by_word if word != UNKNOWN]
    if not words:
        raise Speech3Error("the lexicon holds no word but <unk>; a grammar of one word has nothing to accept")
    builder = FstBuilder()
    start, end = builder.state(), builder.state(final=0.0)
    for label in range(1, len(words) + 1):
        builder.arc(start, end, label, label, math.log(len(words)))
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), "one-word")


def from_word_graph(graph: WordGraph, lexicon: Lexicon) -> Grammar:
    """Sentences of a grammar or of a list.

    Raises
    ------
    Speech3Error
        A word is not in the lexicon; it is named.
    """
    words = graph.words
    if missing := [word for word in words if word not in lexicon.by_word]:
        raise Speech3Error(
            f"{graph.source}: not in the lexicon: {', '.join(missing[:10])}{' ...' if len(missing) > 10 else ''}"
        )
    labels = {word: label for label, word in enumerate(words, 1)}
    builder = FstBuilder()
    for state in range(1 + max(max(source, target) for source, _, _, target in graph.arcs)):
        builder.state(graph.finals.get(state, np.inf))
    for source, word, cost, target in graph.arcs:
        builder.arc(source, target, labels[word], labels[word], cost)
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), graph.source)


def from_arpa(lm: ArpaLm, lexicon: Lexicon) -> Grammar:
    """An n-gram model's words that the lexicon can pronounce; their probabilities stay as they are.

    `<unk>` is left out: it is no word that anybody wants to read, and its pronunciation, a noise that has been trained
    on all sorts of words, fits many (GMMs wrote it for 7 % of the words of minilibri).

    A state is a history that can be followed by something of its own (an n-gram, a back-off weight); an n-gram leads to
    the longest suffix of its words that is a state.

    Raises
    ------
    Speech3Error
        No word of the model is in the lexicon.
    """
    words = [word for word in lm.words if word in lexicon.by_word and word != UNKNOWN]
    dropped = tuple(word for word in lm.words if word not in lexicon.by_word and word != UNKNOWN)
    if not words:
        raise Speech3Error(
            f"{lm.source}: none of its {len(dropped)} words ({', '.join(dropped[:5])} ...) is in the lexicon;"
            " spell both the same way (upper or lower case?)"
        )
    labels = {word: label for label, word in enumerate(words, 1)}
    builder = FstBuilder()
    states = _states(lm, labels, builder)
    for ngrams in lm.ngrams:
        for ngram, (prob, _) in ngrams.items():
            *_, word = ngram
            source = states.get(ngram[:-1])
            if source is None or prob <= -99 or word == BOS:
                continue
            if word == EOS:
                builder.finals[source] = -prob * math.log(10)
            elif word in labels:
                label = labels[word]
                builder.arc(source, states[_longest(ngram, states)], label, label, -prob * math.log(10))
    _add_backoff(lm, states, builder, backoff_label=len(words) + 1)
    if np.isinf(builder.finals).all():
        raise Speech3Error(f"{lm.source}: no sentence can end: {EOS} has no probability after any history")
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), lm.source, dropped)


def _states(lm: ArpaLm, labels: dict[str, int], builder: FstBuilder) -> dict[tuple[str, ...], int]:
    start: tuple[str, ...] = (BOS,) if lm.order > 1 else ()
    states = {start: builder.state()}
    if start:
        states[()] = builder.state()
    for ngrams in lm.ngrams[1:]:
        for ngram in ngrams:
            history = ngram[:-1]
            if history not in states and _pronounceable(history, labels):
                states[history] = builder.state()
    for ngrams in lm.ngrams[:-1]:
        for ngram, (_, backoff) in ngrams.items():
            if backoff and ngram not in states and _pronounceable(ngram, labels):
                states[ngram] = builder.state()
    return states


def _pronounceable(history: tuple[str, ...], labels: dict[str, int]) -> bool:
    first, *rest = history
    return (first == BOS or first in labels) and all(word in labels for word in rest)


def _longest(ngram: tuple[str, ...], states: dict[tuple[str, ...], int]) -> tuple[str, ...]:
    while ngram not in states:
        ngram = ngram[1:]
    return ngram


def _add_backoff(lm: ArpaLm, states: dict[tuple[str, ...], int], builder: FstBuilder, backoff_label: int) -> None:
    for history, state in states.items():
        if history:
            weight = lm.ngrams[len(history) - 1].get(history, (0.0, 0.0))[1]
            if weight > -99:
                target = states[_longest(history[1:], states)]
                builder.arc(state, target, backoff_label, 0, -weight * math.log(10))
