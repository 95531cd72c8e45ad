"""Unseen words in a decoding graph: a letter model, the weight of new words, and the pronunciations of letters.

They are in the graph's directory: in ``letters.arpa.gz``, in ``graph.json`` and, with other pronunciations, in
``lexicon.txt``. So `speech3 graph` can make other graphs that spell unseen words as well, and decoded letters can be
aligned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from speech3.alignment.oov import has_phones, with_pronunciations
from speech3.errors import Speech3Error
from speech3.graph.pieces import bare
from speech3.hmm.model import Hmm, PdfsOnly
from speech3.io.atomic import read_json
from speech3.lexicon.lexicon import Lexicon, Pronunciation, read_lexicon, write_lexicon
from speech3.lexicon.subwords import JOINER
from speech3.lm.arpa import read_arpa, write_arpa
from speech3.lm.letters import with_letters
from speech3.lm.ngrams import ArpaLm

LETTERS = "letters.arpa.gz"  # in a graph's directory, if it spells unseen words
LEXICON = "lexicon.txt"  # in a graph's directory: pronunciations that the model's lexicon does not have
WEIGHT = "unseen_weight"  # in graph.json


@dataclass(frozen=True, eq=False)
class Spelling:
    """What a graph needs to spell unseen words.

    Attributes
    ----------
    letters
        The letter model (`speech3.lm.letters.letter_model`).
    weight
        The weight of new words, for `speech3.lm.letters.with_letters`.
    pronunciations
        Pronunciations of the letters, in phones without positions in the word.
    """

    letters: ArpaLm
    weight: float
    pronunciations: tuple[Pronunciation, ...]

    def added_to(self, lm: ArpaLm) -> ArpaLm:
        """The language model with unseen words added."""
        return with_letters(lm, self.letters, self.weight)

    def save(self, graph: Path) -> None:
        """Write the letter model and the pronunciations; the weight belongs in ``graph.json``."""
        write_arpa(self.letters, graph / LETTERS)
        write_lexicon(Lexicon(self.pronunciations), graph / LEXICON)


def spelling_with(hmm: Hmm, letters: ArpaLm, weight: float, phones: Mapping[str, tuple[str, ...]]) -> Spelling:
    """The spelling for a model; letters of which it lacks a phone are left out.

    Parameters
    ----------
    phones
        The phones of each letter.
    """
    every = (Pronunciation(unit, phones[bare(unit)]) for unit in letters.words)
    return Spelling(letters, weight, tuple(pron for pron in every if has_phones(pron, hmm.lexicon)))


def read_spelling(graph: Path) -> Spelling | None:
    """Read the spelling of a graph; None if it does not spell unseen words.

    Raises
    ------
    Speech3Error
        The graph has a letter model, but lacks the weight or the pronunciations.
    """
    if not (graph / LETTERS).exists():
        return None
    weight = read_json(graph / "graph.json").get(WEIGHT)
    if not isinstance(weight, float) or not (graph / LEXICON).exists():
        raise Speech3Error(f"{graph}: {LETTERS} does not belong to this graph; build it again, or remove the file")
    listed = read_lexicon(graph / LEXICON).pronunciations
    return Spelling(read_arpa(graph / LETTERS), weight, tuple(pron for pron in listed if JOINER in pron.word))


def with_lexicon_of(outputs: Hmm | PdfsOnly, graph: Path) -> Hmm | PdfsOnly:
    """The model with the pronunciations of a graph added, so that the words that the graph outputs can be aligned."""
    if not (graph / LEXICON).exists() or not isinstance(outputs, Hmm):
        return outputs
    return with_pronunciations(outputs, read_lexicon(graph / LEXICON).pronunciations, str(graph / LEXICON))
