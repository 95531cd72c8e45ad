"""The directory of `speech3 decode --lattice`, which `speech3 rescore` and `speech3 score` read.

    lat.ark, lat.scp    Kaldi's compact lattices, one per utterance (`archive`), acoustic costs unscaled
    words.txt           the symbol table of their labels
    lattice.json        `LatticesAbout`: the graph that was searched, and how

Axes: W words of the symbol table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.errors import Speech3Error
from speech3.graph.decoding_graph import GRAMMAR, Graph
from speech3.graph.grammar import BACKOFF
from speech3.graph.pieces import are_pieces, join_words, mark_of
from speech3.graph.spelling import read_spelling
from speech3.io.atomic import read_json, write_json, write_text
from speech3.io.fst import read_fst
from speech3.kaldi.lang import read_symbol_table
from speech3.lattices.archive import read_lattices
from speech3.lattices.compose import numbers_of
from speech3.lattices.lm_states import NO_WORD, LmStates, of_arpa, of_grammar
from speech3.lattices.word_lattice import WordLattice, words_of
from speech3.lm.arpa import read_arpa
from speech3.lm.ngrams import ArpaLm

ARCHIVE, INDEX, SYMBOLS, ABOUT = "lat.ark", "lat.scp", "words.txt", "lattice.json"
_REMEDY = "make the lattices again with speech3 decode --lattice"


@dataclass(frozen=True)
class LatticesAbout:
    """How lattices were made.

    Attributes
    ----------
    model, graph
        Directories.
    graph_about
        The contents of the graph's ``graph.json``: if they have changed, the graph has been rebuilt.
    acoustic_scale, word_penalty
        Settings of the search. The penalty is included in the graph costs.
    beam
        Paths whose cost exceeded that of the best path by more than this were left out.
    rescored
        The language model that replaced the graph's, and its weight; None if the lattices were not rescored.
    """

    model: str
    graph: str
    graph_about: dict[str, Any]
    acoustic_scale: float
    word_penalty: float
    beam: float
    rescored: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class LatticeDir:
    """A directory of lattices; `symbols` is the content of ``words.txt``."""

    path: Path
    symbols: tuple[str, ...]
    about: LatticesAbout

    def lattices(self) -> Iterator[tuple[str, WordLattice]]:
        """Read the lattices, one at a time.

        Raises
        ------
        Speech3Error
            The archive is missing or damaged, or its words are not those of ``words.txt``.
        """
        yield from read_word_lattices(self.path / ARCHIVE, self.symbols, self.about.acoustic_scale)

    def spelled(self, labels: Sequence[int]) -> tuple[str, ...]:
        """The words of labels, with pieces joined."""
        units = tuple(self.symbols[label] for label in labels)
        return join_words(units, self.mark) if self.mark else units

    @cached_property
    def mark(self) -> str:
        """The mark of word pieces among the symbols; empty if there are none."""
        return mark_of(self.symbols)

    def with_unseen(self, lm: ArpaLm) -> ArpaLm:
        """A language model of words, to which the unseen words that the graph can spell are added, if it spells any."""
        spelling = None if are_pieces(lm.words) else read_spelling(Path(self.about.graph))
        return spelling.added_to(lm) if spelling else lm

    def old_lm(self, given: Path | None = None) -> tuple[LmStates, np.ndarray]:
        """The language model used in the search, and (W,) its number of each symbol.

        It is the graph's G.fst, or the ARPA file `given`.

        Raises
        ------
        Speech3Error
            There is none, or the graph is not the one that the lattices were made with.
        """
        graph = Path(self.about.graph)
        if given is None and (graph / "graph.json").exists():
            symbols = read_symbol_table(graph / SYMBOLS, _REMEDY)
            if symbols != self.symbols or read_json(graph / "graph.json") != self.about.graph_about:
                raise Speech3Error(f"{self.path}: not made with the graph that is in {graph} now; {_REMEDY}")
            if (graph / GRAMMAR).exists():
                backoff = self.symbols.index(BACKOFF) if BACKOFF in self.symbols else -1
                states = of_grammar(read_fst(graph / GRAMMAR), backoff, graph / GRAMMAR)
                return states, np.arange(len(self.symbols))
        if given is None:
            raise Speech3Error(
                f"{self.path}: the language model that it was decoded with is not in {graph}/{GRAMMAR}; give its ARPA"
                " file with --old, or build the graph again and decode with it"
            )
        states, numbers = of_arpa(self.with_unseen(read_arpa(given)))
        number_W = numbers_of(self.symbols, numbers, "")
        number_W[1:][number_W[1:] == NO_WORD] = len(numbers)  # on no arc, so that its cost is infinite and not 0
        return states, number_W


def read_word_lattices(
    archive: Path, symbols: tuple[str, ...], acoustic_scale: float
) -> Iterator[tuple[str, WordLattice]]:
    """Read an archive as word lattices; state-level lattices are determinised at `acoustic_scale`.

    Raises
    ------
    Speech3Error
        The archive is missing or damaged, or has words that `symbols` lacks.
    """
    if not archive.exists():
        raise Speech3Error(f"{archive}: no such file; {_REMEDY}")
    for utterance, lattice in read_lattices(archive):
        words = lattice if isinstance(lattice, WordLattice) else words_of(lattice, acoustic_scale)
        if len(words.word_A) and int(words.word_A.max()) >= len(symbols):
            raise Speech3Error(
                f"{archive}: {utterance}: word {int(words.word_A.max())}, but the {SYMBOLS} beside it has"
                f" {len(symbols):,}: they belong to different graphs; {_REMEDY}"
            )
        yield utterance, words


def open_lattices(path: Path) -> LatticeDir:
    """Open a directory that `speech3 decode --lattice` wrote.

    Raises
    ------
    Speech3Error
        `path` is not such a directory.
    """
    if not (path / ABOUT).exists():
        raise Speech3Error(f"{path}: has no {ABOUT}; give a directory that speech3 decode --lattice wrote")
    try:
        about = LatticesAbout(**read_json(path / ABOUT))
    except TypeError as error:
        raise Speech3Error(f"{path / ABOUT}: has keys of another version of speech3; {_REMEDY}") from error
    return LatticeDir(path, read_symbol_table(path / SYMBOLS, _REMEDY), about)


def describe_lattices(out: Path, graph: Graph, model: Path, setting: tuple[float, float], beam: float) -> None:
    """Write the files that belong beside the archive: ``words.txt`` and ``lattice.json``."""
    about = LatticesAbout(str(model.resolve()), str(graph.path.resolve()), graph.about, *setting, beam)
    save_about(out, graph.words, about)


def forget_lattices(out: Path) -> None:
    """Remove the lattices of an earlier decoding, before another one begins.

    Raises
    ------
    Speech3Error
        The directory holds a decoding graph, which has the same symbol table.
    """
    if (out / "graph.json").exists():
        raise Speech3Error(f"{out}: holds a decoding graph; give another directory")
    if any((out / name).exists() for name in (ABOUT, INDEX, ARCHIVE)):
        for name in (ABOUT, INDEX, ARCHIVE, SYMBOLS):
            (out / name).unlink(missing_ok=True)


def save_about(out: Path, symbols: tuple[str, ...], about: LatticesAbout) -> None:
    """Write ``words.txt`` and ``lattice.json``."""
    write_text(out / SYMBOLS, "".join(f"{word} {label}\n" for label, word in enumerate(symbols)))
    write_json(out / ABOUT, asdict(about))
