"""The directory of `speech3 decode --lattice`, which `speech3 rescore` and `speech3 score` read.

    lat.ark, lat.scp    Kaldi's compact lattices, one per utterance (`lattice_archive`), acoustic costs unscaled
    words.txt           the symbol table of their labels
    lattice.json        `LatticesAbout`: the graph that was searched, and how

`decode_latticed` writes it, with N-best lists and minimum Bayes risk if wanted.

Axes: W words of the symbol table.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import DecodeConfig
from speech3.decode.beam_search import Lattice
from speech3.decode.grammar import BACKOFF, are_pieces, join_words, mark_of, read_spelling
from speech3.decode.graph import GRAMMAR, Graph
from speech3.decode.lattice_archive import read_lattices, write_lattices
from speech3.decode.lattice_composition import NO_WORD, LmStates, numbers_of, of_arpa, of_grammar
from speech3.decode.lattice_paths import confidences, minimum_bayes_risk, nbest
from speech3.decode.search import LATTICE_BEAM, Decoding, Hypothesis, confidences_in, latticed, small_enough, words_in
from speech3.decode.trained_model import Alternative, TrainedModel
from speech3.decode.word_lattice import WordLattice, words_of
from speech3.errors import DataError, MismatchError, MissingError, OccupiedError, check_bad
from speech3.hmm import read_symbol_table
from speech3.io import read_fst
from speech3.language import ArpaLm, read_arpa
from speech3.runtime import progress, read_json, say, write_json, write_text

ARCHIVE, INDEX, SYMBOLS, ABOUT = "lat.ark", "lat.scp", "words.txt", "lattice.json"
_REMEDY = "make the lattices again with speech3 decode --lattice"
NBEST_FILE = "nbest.jsonl"
Latticed = tuple[Hypothesis, WordLattice | None, list[Alternative]]


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
                raise MismatchError(f"{self.path}: not made with the graph that is in {graph} now; {_REMEDY}")
            if (graph / GRAMMAR).exists():
                backoff = self.symbols.index(BACKOFF) if BACKOFF in self.symbols else -1
                states = of_grammar(read_fst(graph / GRAMMAR), backoff, graph / GRAMMAR)
                return states, np.arange(len(self.symbols))
        if given is None:
            raise MissingError(
                f"{self.path}: the language model that it was decoded with is not in {graph}/{GRAMMAR}; pass its ARPA"
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
        raise MissingError(f"{archive}: no such file; {_REMEDY}")
    for utterance, lattice in read_lattices(archive):
        words = lattice if isinstance(lattice, WordLattice) else words_of(lattice, acoustic_scale)
        if len(words.word_A) and int(words.word_A.max()) >= len(symbols):
            raise MismatchError(
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
        raise MissingError(f"{path}: has no {ABOUT}; pass a directory that speech3 decode --lattice wrote")
    try:
        about = LatticesAbout(**read_json(path / ABOUT))
    except TypeError as error:
        raise MismatchError(f"{path / ABOUT}: has keys of another version of speech3; {_REMEDY}") from error
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
        raise OccupiedError(f"{out}: holds a decoding graph; choose another directory")
    if any((out / name).exists() for name in (ABOUT, INDEX, ARCHIVE)):
        for name in (ABOUT, INDEX, ARCHIVE, SYMBOLS):
            (out / name).unlink(missing_ok=True)


def save_about(out: Path, symbols: tuple[str, ...], about: LatticesAbout) -> None:
    write_text(out / SYMBOLS, "".join(f"{word} {label}\n" for label, word in enumerate(symbols)))
    write_json(out / ABOUT, asdict(about))


@dataclass(frozen=True)
class WantedResults:
    """The results to produce in addition to words and confidences.

    Attributes
    ----------
    nbest
        Length of the N-best lists; 0 for none.
    archive
        Write lattices.
    bayes_risk
        Return the words with the fewest expected errors in place of the best path's.
    """

    nbest: int = 0
    archive: bool = False
    bayes_risk: bool = False


@dataclass(eq=False)
class Kept:
    """Statistics of the lattices that `decode_latticed` made.

    Attributes
    ----------
    densities
        Mean number of arcs per frame in each utterance's lattice (Kaldi's lattice-depth).
    without
        For each decoded utterance without a lattice, the reason.
    """

    densities: dict[str, float] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)

    @property
    def density(self) -> float:
        return float(np.mean(list(self.densities.values()))) if self.densities else 0.0


def decode_latticed(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    out: Path,
    wanted: WantedResults,
    jobs: int = 1,
    graph: Graph | None = None,
) -> tuple[Decoding, Kept]:
    """Decode with the tuned settings; write ``lat.ark`` and its companion files, and ``nbest.jsonl``, if `wanted`.

    The hypotheses have confidences. Each lattice is written as soon as it is made.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances failed (such as by scores that are NaN), or there were none.
    """
    graph, tuned = graph or recognizer.graph, recognizer.settings
    config, setting = DecodeConfig(beam=tuned.beam, max_active=tuned.max_active), (
        tuned.acoustic_scale, tuned.word_penalty
    )  # fmt: skip

    def make(best: Hypothesis, lattice: Lattice | None) -> Latticed:
        return _made(graph, best, lattice, setting[0], wanted)

    few = 0
    found: dict[str, Hypothesis] = {}
    failed: dict[str, str] = {}
    lines: list[str] = []
    kept = Kept()
    shown = progress(recognizer.scores(feats), len(feats), "decoding")
    results = latticed(graph, shown, config, setting, jobs, make)

    def lattices() -> Iterator[tuple[str, WordLattice]]:
        nonlocal few
        for utterance, each in results:
            if isinstance(each, str):
                failed[utterance] = each
                continue
            found[utterance], lattice, paths = each
            few += len(paths) < wanted.nbest
            lines.append(nbest_lines(utterance, paths))
            if lattice is None:
                kept.without[utterance] = "its recording is too long"
            else:
                kept.densities[utterance] = lattice.density
                yield utterance, lattice

    forget_lattices(out)  # so that, if this is interrupted, those of an earlier decoding are not taken for this one's
    if wanted.archive:
        write_lattices(out / ARCHIVE, lattices(), out / INDEX)
        describe_lattices(out, graph, recognizer.directory, setting, LATTICE_BEAM)
    else:
        for _ in lattices():
            pass
    check_bad(failed, len(found) + len(failed), str(graph.path), "could not be decoded")
    if wanted.nbest:
        write_text(out / NBEST_FILE, "".join(lines))
        if few:
            say(f"{few} of {len(found)} utterances have fewer than {wanted.nbest} word sequences in their lattices")
    else:
        (out / NBEST_FILE).unlink(missing_ok=True)
    return Decoding(tuple(found.values()), failed), kept


def decode_one(recognizer: TrainedModel, name: str, feats_TF: np.ndarray, paths: int) -> Latticed:
    """Decode one recording with the tuned settings: hypothesis with confidences, word lattice, N best `paths`.

    Raises
    ------
    Speech3Error
        No path survived; the message has the `name`.
    """
    graph, tuned = recognizer.graph, recognizer.settings
    config = DecodeConfig(beam=tuned.beam, max_active=tuned.max_active)
    setting, wanted = (tuned.acoustic_scale, tuned.word_penalty), WantedResults(paths)
    ((_, found),) = latticed(
        graph, recognizer.scores({name: feats_TF}), config, setting, 1,
        lambda best, lattice: _made(graph, best, lattice, setting[0], wanted),
    )  # fmt: skip
    if isinstance(found, str):
        raise DataError(f"{name}: {found}")
    return found


def _made(graph: Graph, best: Hypothesis, lattice: Lattice | None, scale: float, wanted: WantedResults) -> Latticed:
    """For one utterance: hypothesis with confidences, word lattice, N best paths."""
    words = words_of(lattice, scale, LATTICE_BEAM) if lattice else None
    paths = [] if words is None else alternatives(words, graph.words, graph.mark, scale, wanted.nbest)
    said = tuple(graph.label_of[unit] for unit in best.units)
    if words is None or not small_enough(words, len(said)):
        # The lattice of the full beam is too large, so only narrower beams are tried.
        values = confidences_in(graph, lattice, best.units, scale, shares=(0.5, 0.25))
        return replace(best, confidences=values), words, paths
    risk = (minimum_bayes_risk if wanted.bayes_risk else confidences)(words, said, scale)
    units = tuple(graph.words[label] for label in risk.words)
    best = replace(best, units=units, words=words_in(graph, risk.words), confidences=risk.confidences)
    return best, words, paths


def alternatives(lattice: WordLattice, symbols: Sequence[str], mark: str, scale: float, n: int) -> list[Alternative]:
    """Up to `n` best paths of a lattice, best first; pieces with the `mark` are joined."""
    found = []
    for path in nbest(lattice, n, scale) if n else []:
        acoustic, units = scale * path.acoustic_cost(lattice), tuple(symbols[word] for word in path.words)
        found.append(Alternative(join_words(units, mark) if mark else units, acoustic, path.cost - acoustic))
    return found


def nbest_lines(utterance: str, paths: Iterable[Alternative]) -> str:
    """Lines of ``nbest.jsonl``: ``utterance``, ``rank`` from 1, ``cost``, its two parts, and ``words`` as a string."""
    lines = ({"utterance": utterance, **each} for each in ranked_paths(paths))
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def ranked_paths(paths: Iterable[Alternative]) -> Iterator[dict[str, Any]]:
    """JSON objects of the N best paths."""
    for rank, path in enumerate(paths, 1):
        costs = {"cost": path.cost, "acoustic_cost": path.acoustic_cost, "graph_cost": path.graph_cost}
        yield {"rank": rank, **{name: round(cost, 4) for name, cost in costs.items()}, "words": path.text}
