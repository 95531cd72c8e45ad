"""Hot words: words and phrases that are expected, made more probable when decoding, without a new graph.

A boost b makes each saying of a word or phrase e^b times as probable as the language model has it. For a word that is
exact: its cost is lowered by b wherever the graph writes it. A phrase is not known by a graph's arc, so while searching
each of its words is cheaper by b / (number of words), which keeps phrases from being pruned, and then, in the lattice,
what was given to words is taken back and b is given where the whole phrase is said. Among the lattice's paths that is
exact.

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
from speech3.errors import Speech3Error

BOOST = 3.0  # default; e^3 = 20 times as probable
_LARGEST = 50.0  # more is a mistake: no acoustic score would speak against the word
_SHOWN = 10
HotWords = dict[tuple[str, ...], float]


def read_hot(path: Path) -> HotWords:
    """Read lines `WORD [BOOST]` and `WORD WORD ... [BOOST]`: the boost of each word and phrase.

    Raises
    ------
    Speech3Error
        Naming file and line: there is none, a boost is out of range, one stands there twice with different boosts.
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
                    f"{path}:{number}: a boost lies between {-_LARGEST:g} and {_LARGEST:g} (3: 20 times as probable),"
                    f" not {line.split()[-1]}"
                )
        before = found.setdefault(words, (boost, number))
        if before[0] != boost:
            raise Speech3Error(
                f"{path}:{number}: {' '.join(words)} has the boost {boost:g} here and {before[0]:g} in line"
                f" {before[1]}; leave one of them"
            )
    if not found:
        raise Speech3Error(f"{path}: holds no word to boost; write a word or a phrase a line")
    return {words: boost for words, (boost, _) in found.items()}


def _boost(field: str) -> float | None:
    try:
        return float(field) if field[0] in "+-.0123456789" else None
    except ValueError:
        return None


def with_hot_words(graph: Graph, hot: Mapping[tuple[str, ...], float], source: Path) -> Graph:
    """The graph with costs of hot words lowered; its lattices are searched for the phrases.

    Raises
    ------
    Speech3Error
        Naming `source`: the graph does not write a word, or writes pieces of words.
    """
    if graph.writes_pieces:
        raise Speech3Error(
            f"{source}: {graph.path} writes pieces of words, and hot words are boosted in graphs of words"
        )
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
