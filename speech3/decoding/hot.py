"""Hot words: expected words and phrases that are made more probable in decoding, without a new graph.

A boost b makes each occurrence of a word or phrase e^b times as probable as in the language model. For single words
this is exact: the cost is lowered by b on every arc that outputs the word. A single arc cannot tell whether a phrase is
complete, so the search lowers the cost of each of its words by b / (number of words), which keeps phrases from being
pruned. In the lattice, these bonuses are then removed, and b is applied where the whole phrase occurs, which is exact
among the lattice's paths.

Axes: A arcs.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.corpus.langdir import read_utf8
from speech3.decoding.fst import Fst
from speech3.decoding.graph import Graph
from speech3.decoding.phrases import automaton
from speech3.decoding.pieces import are_sentencepieces
from speech3.errors import Speech3Error

BOOST = 3.0  # default; e^3 = 20 times as probable
_LARGEST = 50.0  # more is a mistake: no acoustic score could outweigh it
_SHOWN = 10
HotWords = dict[tuple[str, ...], float]


def read_hot(path: Path) -> HotWords:
    """Read lines `WORD [BOOST]` and `WORD WORD ... [BOOST]`: the boost of each word and phrase.

    Raises
    ------
    Speech3Error
        There is no line, a boost is out of range, or a word or phrase is listed twice with different boosts. The
        message names file and line.
    """
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for number, line in enumerate(read_utf8(path).splitlines(), 1):
        words = tuple(line.split())
        if not words:
            continue
        boost = BOOST
        if len(words) > 1 and (given := _boost(words[-1])) is not None:
            words, boost = words[:-1], given
            if not abs(boost) <= _LARGEST:
                raise Speech3Error(
                    f"{path}:{number}: give a boost between {-_LARGEST:g} and {_LARGEST:g} (3: 20 times as probable),"
                    f" not {line.split()[-1]}"
                )
        before = found.setdefault(words, (boost, number))
        if before[0] != boost:
            raise Speech3Error(
                f"{path}:{number}: {' '.join(words)} has the boost {boost:g} here and {before[0]:g} in line"
                f" {before[1]}; keep one of them"
            )
    if not found:
        raise Speech3Error(f"{path}: contains no word to boost; write one word or phrase per line")
    return {words: boost for words, (boost, _) in found.items()}


def _boost(field: str) -> float | None:
    try:
        return float(field) if field[0] in "+-.0123456789" else None
    except ValueError:
        return None


def with_hot_words(graph: Graph, hot: Mapping[tuple[str, ...], float], source: Path) -> Graph:
    """The graph with the costs of hot words lowered, and with the phrases to boost in its lattices.

    Raises
    ------
    Speech3Error
        The graph lacks a word, or its symbols are word pieces. The message names `source`.
    """
    if are_sentencepieces(graph.words):
        raise Speech3Error(f"{source}: {graph.path} writes pieces of words; hot words need a graph of whole words")
    unknown = dict.fromkeys(word for words in hot for word in words if word not in graph.label_of)
    if unknown:
        shown = ", ".join(list(unknown)[:_SHOWN]) + (" ..." if len(unknown) > _SHOWN else "")
        raise Speech3Error(
            f"{source}: not in the graph {graph.path}: {shown}; `speech3 graph MODEL OUT --add FILE` makes a graph that"
            " has them"
        )
    labelled = {tuple(graph.label_of[word] for word in words): boost for words, boost in hot.items()}
    phrases = {labels: boost for labels, boost in labelled.items() if len(labels) > 1}
    shares: dict[int, float] = {}
    for labels, boost in phrases.items():
        for label in labels:
            shares[label] = max(boost / len(labels), shares.get(label, 0.0))
    cost_of = np.zeros(len(graph.words), np.float32)
    for (first, *rest), boost in labelled.items():
        if not rest:
            cost_of[first] -= boost
    for label, share in shares.items():
        cost_of[label] -= share
    arcs_A = graph.fst.arcs_A.copy()
    arcs_A["weight"] += cost_of[arcs_A["olabel"]]
    boosted = Fst(graph.fst.start, graph.fst.final_S, graph.fst.source_A, arcs_A)
    return replace(graph, fst=boosted, phrases=automaton(phrases, shares) if phrases else None)
