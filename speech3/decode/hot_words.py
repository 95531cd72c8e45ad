"""Words and phrases to expect: a decoding graph in which they are more probable, and the choice of another graph.

A boost b makes each occurrence of a word or phrase e^b times as probable as in the language model. For single words
this is exact: the cost is lowered by b on every arc that outputs the word. For a phrase, the search lowers the cost of
each of its words by b / (number of words), which keeps it from being pruned; in the lattice, these bonuses are removed,
and b is applied where the whole phrase occurs. In a graph of pieces a single word is a phrase, too, of its characters.

Axes: A arcs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from speech3.data import symbols_in
from speech3.decode.grammar import GRAPH_LEXICON, with_lexicon_of
from speech3.decode.graph import DecodingGraph
from speech3.decode.new_graph import GraphSources, make_graph
from speech3.decode.phrases import Phrases, automaton
from speech3.decode.trained_model import TrainedModel
from speech3.errors import DataError, FormatError, MissingError, Speech3Error, listed
from speech3.io import GRAPH_FILE, LM_FILE
from speech3.language import WORD_START, number_in
from speech3.runtime import composed, read_utf8, say, write_text

BOOST = 3.0  # default; e^3 = 20 times as probable
_MAX_BOOST = 50.0  # a larger boost is a mistake: no acoustic score could outweigh it
HotWords = dict[tuple[str, ...], float]
Model = TypeVar("Model", bound=TrainedModel)


def read_hot(path: Path) -> HotWords:
    """Read lines `WORD [BOOST]` and `WORD WORD ... [BOOST]`: the boost of each word and phrase."""
    return parse_hot(read_utf8(path).splitlines(), path)


def parse_hot(lines: Iterable[str], path: Path | str = "hot") -> HotWords:
    """As `read_hot`, of lines; `path` is their name for messages.

    Raises `Speech3Error`: there is no line, a word is a symbol such as `<eps>`, a boost is out of range, or a word or
    phrase is listed twice with different boosts.
    """
    found: dict[tuple[str, ...], tuple[float, int]] = {}
    for number, line in enumerate((composed(line, path) for line in lines), 1):
        words = tuple(line.split())
        if not words:
            continue
        if symbols := symbols_in(words):
            raise FormatError(f"{path}:{number}: {symbols[0]} is not a word that can be spoken; remove it")
        boost = BOOST
        if len(words) > 1 and (given := number_in(words[-1])) is not None:
            words, boost = words[:-1], given
            if not abs(boost) <= _MAX_BOOST:
                raise FormatError(
                    f"{path}:{number}: boosts must be between {-_MAX_BOOST:g} and {_MAX_BOOST:g}"
                    f" (3: 20 times as probable), not {line.split()[-1]}"
                )
        before = found.setdefault(words, (boost, number))
        if before[0] != boost:
            raise FormatError(
                f"{path}:{number}: {' '.join(words)} has the boost {boost:g} here and {before[0]:g} in line"
                f" {before[1]}; keep one of them"
            )
    if not found:
        raise DataError(f"{path}: contains no word to boost; write one word or phrase per line")
    return {words: boost for words, (boost, _) in found.items()}


def with_hot_words(graph: DecodingGraph, hot: Mapping[tuple[str, ...], float], source: Path | str) -> DecodingGraph:
    """The graph with the costs of hot words lowered, and with the phrases to boost in its lattices.

    Raises `Speech3Error`: the graph lacks a word, or its pieces cannot spell it; the message names `source`.
    """
    cost_of, phrases = (_of_pieces if graph.mark == WORD_START else _of_words)(graph, hot, source)
    return replace(graph.with_costs(cost_of), phrases=phrases)


def _of_words(
    graph: DecodingGraph, hot: Mapping[tuple[str, ...], float], source: Path | str
) -> tuple[np.ndarray, Phrases | None]:
    """The cost to add for each output label, float32, and the automaton of the phrases, if there are any."""
    unknown = dict.fromkeys(word for words in hot for word in words if word not in graph.label_of)
    if unknown:
        raise DataError(
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


def _of_pieces(
    graph: DecodingGraph, hot: Mapping[tuple[str, ...], float], source: Path | str
) -> tuple[np.ndarray, Phrases]:
    """As `_of_words`; every hot word is a phrase, a sequence of characters; a piece's share is that of its characters.

    SentencePiece's model is not used, because the graph can output a word in any division into pieces.
    """
    pieces = set(graph.words[1:])
    unknown = dict.fromkeys(word for words in hot for word in words if not _can_spell(WORD_START + word, pieces))
    if unknown:
        raise DataError(
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


def _costs(graph: DecodingGraph, shares: Mapping[int, float]) -> np.ndarray:
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


def replace_graph(recognizer: Model, graph: Path | None, hot: Path | Sequence[str] | None = None) -> Model:
    """The recogniser with a graph from `speech3 graph` in place of its own, and with hot words: a file, or its lines.

    Hot words that the graph lacks are added to it, as by `speech3 graph --add`, with guessed pronunciations.

    The tuned settings of the model stay in use. Graph and settings are read here, before hours of audio are.

    Raises `Speech3Error`: there is no graph, or it belongs to another model; the model is not tuned; a hot word is not
    in the graph and cannot be added to it, since it cannot be pronounced or the graph is that of a grammar.
    """
    if graph:
        if not (graph / GRAPH_FILE).exists():
            raise MissingError(f"{graph}: not a decoding graph (it has no graph.json); `speech3 graph` makes one")
        chosen = recognizer.read_graph(graph)
        recognizer = replace(recognizer, outputs=with_lexicon_of(recognizer.outputs, graph), chosen_graph=chosen)
    _, searched = recognizer.settings, recognizer.graph
    if not hot:
        return replace(recognizer, chosen_graph=searched)
    if isinstance(hot, Path) and not hot.exists():
        raise MissingError(f"{hot}: no such file; write the words to expect into a file, one word or phrase a line")
    found, source = (read_hot(hot), hot) if isinstance(hot, Path) else (parse_hot(hot), Path("hot"))
    new = dict.fromkeys(word for words in found for word in words if word not in searched.label_of)
    if new and searched.mark != WORD_START and (searched.path / LM_FILE).exists():
        recognizer = _with_words(recognizer, searched.path, list(new), source)
        searched = recognizer.graph
    return replace(recognizer, chosen_graph=with_hot_words(searched, found, source))


def _with_words(recognizer: Model, graph: Path, words: Sequence[str], source: Path) -> Model:
    """The recogniser with words added to its graph."""
    with TemporaryDirectory(prefix="speech3-") as scratch:
        added, out = Path(scratch) / "words.txt", Path(scratch) / "graph"
        write_text(added, "".join(f"{word}\n" for word in words))
        try:
            given = graph / GRAPH_LEXICON  # words that were added to a chosen graph
            lexicon = given if graph.parent != recognizer.directory and given.exists() else None
            made = make_graph(recognizer.directory, out, GraphSources(lm=graph / LM_FILE, add=added, lexicon=lexicon))
        except Speech3Error as error:
            told = str(error).replace(str(added), str(source))
            where = " (options of `speech3 graph MODEL OUT --add FILE`)" if "--" in told else ""
            raise error.restated(told + where) from error
        say(f"{source}: not in the graph, and added to it: {listed(words)}")
        for pron in made.guessed.pronunciations:
            say(f"  {pron.word} {' '.join(pron.phones)}")
        outputs = with_lexicon_of(recognizer.outputs, out)
        return replace(recognizer, outputs=outputs, chosen_graph=recognizer.read_graph(out))
