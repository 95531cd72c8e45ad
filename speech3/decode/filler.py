"""A filler: a loop of phones that takes the place of words that a graph lacks, of noise and of other speech.

The phones are those of words or, in a model that was trained with negatives (`speech3.data.augment.negatives`), the two
of noise and other speech. A path through the filler is written `<unk>`, or not at all if it begins with noise. It is
spelled as an unseen word is (`speech3.decode.grammar`), in units that are phones instead of letters, such as
``<AH>￭ ￭<T>￭ ￭<S>``; all phones are equally probable everywhere. So it can stand where the language model backs off,
and before, after or in place of the sentences of a grammar; it can be aligned, and its probability in a lattice lowers
the confidence of the words that it competes with (compare Bazzi and Glass 2000).

Each phone costs `PHONE_COST`, less than its probability would, or the filler could not compete with words of many
phones. A cost of the whole filler, chosen on dev (`speech3.decode.tune`), is added to the arcs that write its first
phone when the graph is read; it cannot be much larger, since it is paid at once and must not exceed the beam.

Axes: V symbols of a graph.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from speech3.data import NOISE
from speech3.decode.grammar import BACKOFF, Grammar, Spelling, bare, begins_filler, spelling_with
from speech3.hmm import Hmm, phone_groups
from speech3.io import Fst, FstBuilder
from speech3.language import BOS, EOS, JOINER, NEVER, UNKNOWN, ArpaLm, from_ngrams, letter_units

_WEIGHT = 0.01  # of a filler before its cost; so small that the words keep their probabilities
_LENGTH = 6.0  # mean number of phones of a filler
PHONE_COST = 0.45  # nats; chosen on dev of `digits` and 30 s of each kind of sound of tests/benchmarks/false_words.py
_SILENCE_COST = 0.0  # of silence alone, where the language model is an n-gram; a cost of 2 leaves more words in tones
FILLER_OFF = 100.0  # a cost with which no filler survives a beam


def phone_filler(hmm: Hmm, *, phones: bool = True, garbage: bool = False) -> Spelling | None:
    """The filler for a model, of the `phones` of words, those of `garbage`, or both; None if the lexicon lacks them.

    Phones that differ only in stress, tone or position in the word are one: the most frequent of them.
    """
    lexicon, apart = hmm.lexicon, {*hmm.lexicon.silence_phones, *hmm.lexicon.noise_phones}
    counts = dict.fromkeys(lexicon.phones, 0)
    for pron in lexicon.pronunciations:
        for phone in pron.phones:
            counts[phone] += 1
    spoken = [
        lexicon.base_phone(max(names, key=counts.__getitem__))
        for names in ([lexicon.phones[number - 1] for number in group] for group in phone_groups(lexicon))
        if apart.isdisjoint(names)
    ]
    units: dict[str, tuple[str, ...]] = {f"<{phone}>": (phone,) for phone in spoken if phones and len(spoken) > 1}
    if garbage:
        symbols = (word for word in (UNKNOWN, NOISE) if word in lexicon.by_word)
        units |= {word: lexicon.by_word[word][0].phones for word in symbols}
    return spelling_with(hmm, _uniform(list(units)), _WEIGHT, units) if units else None


def _uniform(letters: Sequence[str]) -> ArpaLm:
    """A model of spellings in which all letters have the same probability everywhere."""
    each, last = -math.log10(len(letters)), math.log10(1 / (_LENGTH - 1))
    unigrams: dict[tuple[str, ...], tuple[float, float]] = {(BOS,): (NEVER, NEVER), (EOS,): (NEVER, 0.0)}
    bigrams: dict[tuple[str, ...], tuple[float, float]] = {}
    for letter in letters:
        first, inner, end = letter_units((letter, letter, letter))
        unigrams |= {
            (first,): (NEVER, 0.0),
            (inner,): (each + math.log10(1 - 10**last), 0.0),
            (end,): (each + last, NEVER),
        }
        bigrams |= {(BOS, first): (each, 0.0), (end, EOS): (0.0, 0.0)}
    return from_ngrams([unigrams, bigrams], "the phones of the filler")


def with_filler(grammar: Grammar, filler: Spelling) -> Grammar:
    """The grammar with any number of fillers before, after or in place of its sentences.

    Silence alone is accepted, too, at the cost of a filler. Fillers are entered and left through arcs that read the
    symbol of back-off arcs, so the composed graph can be made deterministic.
    """
    words = (*grammar.words[:-1], *filler.letters.words, BACKOFF)
    label = {word: number for number, word in enumerate(words)}
    old, backoff = grammar.fst, label[BACKOFF]
    builder = FstBuilder()
    for final in old.final_S.tolist():
        builder.state(final)
    for source, arc in zip(old.source_A.tolist(), old.arcs_A.tolist(), strict=True):
        ilabel, olabel, weight, target = arc
        builder.arc(source, target, backoff if ilabel == len(grammar.words) - 1 else ilabel, olabel, weight)
    before, within, after = builder.state(), builder.state(), builder.state(final=0.0)
    builder.arc(old.start, before, backoff, 0)
    builder.arc(after, old.start, backoff, 0)
    builder.finals[old.start] = min(builder.finals[old.start], -math.log(filler.weight))  # silence alone
    for state in np.flatnonzero(np.isfinite(old.final_S)).tolist():
        if state != old.start:
            builder.arc(state, before, backoff, 0, float(old.final_S[state]))
    usable = {pron.word for pron in filler.pronunciations}
    firsts = [word for word in usable if not word.startswith(JOINER)]
    for word in sorted(usable):
        if word in firsts:
            builder.arc(before, within, label[word], label[word], math.log(len(firsts)) - math.log(filler.weight))
        else:
            cost = -math.log(10) * filler.letters.prob_G[1 + filler.letters.numbers[word]]
            builder.arc(within, within if word.endswith(JOINER) else after, label[word], label[word], float(cost))
    return Grammar(words, builder.fst(), grammar.source, grammar.dropped)


def with_silence(grammar: Grammar) -> Grammar:
    """The grammar of an n-gram model, which seldom knows an empty sentence, with silence alone at a cost of its own.

    Without it a recording in which nobody speaks gets the word that fits it least badly.
    """
    # A start of its own, since other sentences may end in the old one: all of them, if it is the state of a unigram.
    old, start = grammar.fst, len(grammar.fst.final_S)
    first_A = old.source_A == old.start
    source_A = np.concatenate([old.source_A, np.full(first_A.sum(), start, old.source_A.dtype)])
    final_S = np.append(old.final_S, np.float32(min(old.final_S[old.start], _SILENCE_COST)))
    return replace(grammar, fst=Fst(start, final_S, source_A, np.concatenate([old.arcs_A, old.arcs_A[first_A]])))


def phone_costs(words: Sequence[str]) -> np.ndarray:
    """(V,) float32: what makes `PHONE_COST` of the uniform probability of a filler's phone."""
    phones = sum(map(begins_filler, words))
    less = PHONE_COST - math.log(max(phones, 1))
    return np.array([less * (JOINER in word and bare(word).startswith("<")) for word in words], np.float32)


def filler_costs(words: Sequence[str], cost: float) -> np.ndarray:
    """(V,) float32: `cost` for the symbols that begin a filler, 0 for the others."""
    return np.array([cost * begins_filler(word) for word in words], np.float32)
