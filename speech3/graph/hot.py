"""Hot words: expected words and phrases that are made more probable in decoding, without a new graph.

A boost b makes each occurrence of a word or phrase e^b times as probable as in the language model. For single words
this is exact: the cost is lowered by b on every arc that outputs the word. A single arc cannot tell whether a phrase is
complete, so the search lowers the cost of each of its words by b / (number of words), which keeps phrases from being
pruned. In the lattice, these bonuses are then removed, and b is applied where the whole phrase occurs, which is exact
among the lattice's paths.

In a graph of pieces (`speech3.graph.pieces`) a single word is treated as a phrase, too: as the sequence of its
characters.

Axes: A arcs.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from speech3.errors import Speech3Error, listed
from speech3.graph.decoding_graph import Graph
from speech3.io.fst import Fst
from speech3.io.text import read_utf8
from speech3.io.unicode_form import composed
from speech3.lexicon.subwords import WORD_START
from speech3.search.phrases import Phrases, automaton

BOOST = 3.0  # default; e^3 = 20 times as probable
_LARGEST = 50.0  # a larger boost is a mistake: no acoustic score could outweigh it
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
    for number, line in enumerate(composed(read_utf8(path), path).splitlines(), 1):
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
        The graph lacks a word, or its pieces cannot spell it. The message names `source`.
    """
    cost_of, phrases = (_of_pieces if graph.mark == WORD_START else _of_words)(graph, hot, source)
    arcs_A = graph.fst.arcs_A.copy()
    arcs_A["weight"] += cost_of[arcs_A["olabel"]]
    boosted = Fst(graph.fst.start, graph.fst.final_S, graph.fst.source_A, arcs_A)
    return replace(graph, fst=boosted, phrases=phrases)


def _of_words(graph: Graph, hot: Mapping[tuple[str, ...], float], source: Path) -> tuple[np.ndarray, Phrases | None]:
    """The cost to add for each output label, float32, and the automaton of the phrases, if there are any."""
    unknown = dict.fromkeys(word for words in hot for word in words if word not in graph.label_of)
    if unknown:
        raise Speech3Error(
            f"{source}: not in the graph {graph.path}: {listed(unknown)}; `speech3 graph MODEL OUT --add FILE` makes a"
            " graph that has them"
        )
    labelled = {tuple(graph.label_of[word] for word in words): boost for words, boost in hot.items()}
    phrases = {labels: boost for labels, boost in labelled.items() if len(labels) > 1}
    shares: dict[int, float] = {}
    for labels, boost in phrases.items():
        for label in labels:
            shares[label] = max(boost / len(labels), shares.get(label, 0.0))
    cost_of = _costs(graph, shares)
    for (first, *rest), boost in labelled.items():
        if not rest:
            cost_of[first] -= boost
    return cost_of, automaton(phrases, shares) if phrases else None


def _of_pieces(graph: Graph, hot: Mapping[tuple[str, ...], float], source: Path) -> tuple[np.ndarray, Phrases]:
    """As `_of_words`; every hot word is a phrase, a sequence of characters; a piece's share is that of its characters.

    SentencePiece's model is not used, because the graph can output a word in any division into pieces.
    """
    pieces = set(graph.words[1:])
    unknown = dict.fromkeys(word for words in hot for word in words if not _can_spell(WORD_START + word, pieces))
    if unknown:
        raise Speech3Error(
            f"{source}: the pieces of {graph.path} cannot spell {listed(unknown)}; write them as in the training text"
            " (small and capital letters differ)"
        )
    spelled = {"".join(WORD_START + word for word in words): boost for words, boost in hot.items()}
    shares = {
        label: share
        for label, piece in enumerate(graph.words)
        if (share := max((b * len(piece) / len(text) for text, b in spelled.items() if piece in text), default=0.0)) > 0
    }
    phrases = {tuple(map(ord, text)): boost for text, boost in spelled.items()}
    return _costs(graph, shares), automaton(phrases, shares, graph.words)


def _costs(graph: Graph, shares: Mapping[int, float]) -> np.ndarray:
    cost_of = np.zeros(len(graph.words), np.float32)
    for label, share in shares.items():
        cost_of[label] -= share
    return cost_of


def _can_spell(text: str, pieces: Collection[str]) -> bool:
    """Whether a text is a sequence of pieces."""
    longest = max(map(len, pieces))
    reached = [True]  # how much of the text has been spelled
    for end in range(1, len(text) + 1):
        reached.append(any(reached[begin] and text[begin:end] in pieces for begin in range(max(0, end - longest), end)))
    return reached[-1]
