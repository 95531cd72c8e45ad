"""A recogniser with a graph other than its model's own, and with hot words."""

from dataclasses import replace
from pathlib import Path

from speech3.decoding.recognizer import Recognizer
from speech3.errors import Speech3Error
from speech3.graph.hot import read_hot, with_hot_words
from speech3.graph.spelling import with_lexicon_of


def with_graph(recognizer: Recognizer, graph: Path | None, hot: Path | None = None) -> Recognizer:
    """The recogniser with a graph from `speech3 graph` in place of its own, and with hot words (`speech3.graph.hot`).

    The tuned settings of the model stay in use. Graph and settings are read here, before hours of audio are.

    Raises
    ------
    Speech3Error
        There is no graph, or it belongs to another model; a hot word is not in it; the model is not tuned.
    """
    if graph:
        if not (graph / "graph.json").exists():
            raise Speech3Error(f"{graph}: not a decoding graph (it has no graph.json); `speech3 graph` makes one")
        chosen = recognizer.read_graph(graph)
        recognizer = replace(recognizer, outputs=with_lexicon_of(recognizer.outputs, graph), chosen_graph=chosen)
    _, searched = recognizer.settings, recognizer.graph
    return replace(recognizer, chosen_graph=with_hot_words(searched, read_hot(hot), hot) if hot else searched)
