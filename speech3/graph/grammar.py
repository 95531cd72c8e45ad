"""G, the acceptor of word sequences: from an n-gram model (Kaldi's arpa2fst) or a grammar."""

import math
from dataclasses import dataclass

import numpy as np

from speech3.errors import Speech3Error, listed
from speech3.io.fst import ARC, Fst, FstBuilder
from speech3.lexicon.lexicon import UNKNOWN, Lexicon
from speech3.lm.ngrams import EOS, NEVER, ArpaLm
from speech3.lm.states import states_of
from speech3.lm.word_graph import WordGraph

EPSILON, BACKOFF = "<eps>", "#0"
_LN10 = math.log(10)


@dataclass(frozen=True, eq=False)
class Grammar:
    """The word sequences that can be recognised, with their costs.

    Attributes
    ----------
    words
        The symbol table: `<eps>` first, then the words, `#0` (for back-off arcs) last; labels are indices into it.
    fst
        Input and output labels are words; back-off arcs have the input label `#0` and no output label.
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
    """The grammar of exactly one word of the lexicon, all equally probable, without `<unk>`.

    Raises
    ------
    Speech3Error
        The lexicon has no other word than `<unk>`.
    """
    words = [word for word in lexicon.by_word if word != UNKNOWN]
    if not words:
        raise Speech3Error("the lexicon has no word except <unk>, so a one-word grammar is empty; add words to it")
    builder = FstBuilder()
    start, end = builder.state(), builder.state(final=0.0)
    for label in range(1, len(words) + 1):
        builder.arc(start, end, label, label, math.log(len(words)))
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), "one-word")


def from_word_graph(graph: WordGraph, lexicon: Lexicon) -> Grammar:
    """The sentences of a JSGF grammar or of a list.

    Raises
    ------
    Speech3Error
        Words are not in the lexicon; the message names them.
    """
    words = graph.words
    if missing := [word for word in words if word not in lexicon.by_word]:
        raise Speech3Error(f"{graph.source}: not in the lexicon: {listed(missing)}")
    labels = {word: label for label, word in enumerate(words, 1)}
    builder = FstBuilder()
    for state in range(1 + max(max(source, target) for source, _, _, target in graph.arcs)):
        builder.state(graph.finals.get(state, np.inf))
    for source, word, cost, target in graph.arcs:
        builder.arc(source, target, labels[word], labels[word], cost)
    return Grammar((EPSILON, *words, BACKOFF), builder.fst(), graph.source)


def from_arpa(lm: ArpaLm, lexicon: Lexicon) -> Grammar:
    """An n-gram model restricted to words in the lexicon, with unchanged probabilities.

    `<unk>` is left out: users do not want it in transcripts, and its pronunciation, a noise phone trained on many
    different words, matches too many (GMMs recognised it for 7 % of the words of minilibri).

    A state is a history with n-grams or a back-off weight of its own; an n-gram leads to the longest suffix of its
    words that is a state.

    Raises
    ------
    Speech3Error
        No word of the model is in the lexicon.
    """
    words = [word for word in lm.words if word in lexicon.by_word and word != UNKNOWN]
    dropped = tuple(word for word in lm.words if word not in lexicon.by_word and word != UNKNOWN)
    if not words:
        raise Speech3Error(
            f"{lm.source}: none of its {len(dropped)} words ({listed(dropped, 5)}) is in the lexicon;"
            " spell both the same way (check upper and lower case)"
        )
    label_of = {word: label for label, word in enumerate(words, 1)}
    label_V = np.array([label_of.get(word, 0) for word in lm.vocabulary])
    states = states_of(lm, label_V > 0)
    if np.isinf(states.final_S).all():
        raise Speech3Error(f"{lm.source}: no sentence can end: {EOS} has no probability after any history")
    arcs_A, label_A = np.zeros(len(states.node_A), ARC), label_V[lm.word_G[states.node_A]]
    arcs_A["ilabel"] = arcs_A["olabel"] = label_A
    arcs_A["weight"], arcs_A["nextstate"] = -_LN10 * lm.prob_G[states.node_A], states.target_A
    back_S = np.flatnonzero((states.backoff_S >= 0) & (lm.backoff_H[states.node_S] > NEVER))
    back_A = np.zeros(len(back_S), ARC)
    back_A["ilabel"], back_A["nextstate"] = len(words) + 1, states.backoff_S[back_S]
    back_A["weight"] = -_LN10 * lm.backoff_H[states.node_S[back_S]]
    source_A = np.concatenate([states.source_A, back_S])
    order = np.argsort(source_A, kind="stable")
    final_S = (-_LN10 * states.final_S).astype(np.float32)
    fst = Fst(states.start, final_S, source_A[order].astype(np.int32), np.concatenate([arcs_A, back_A])[order])
    return Grammar((EPSILON, *words, BACKOFF), fst, lm.source, dropped)
