"""The directory of `speech3 decode --lattice`, which `speech3 rescore` and `speech3 score` read.

    lat.ark, lat.scp    Kaldi's compact lattices, one per utterance (`lattice_archive`), acoustic costs unscaled
    words.txt           the symbol table of their labels
    lattice.json        `LatticesAbout`: the graph that was searched, and how

`decode_latticed` writes it, with N-best lists and minimum Bayes risk if wanted. `oracle_texts` makes a hypothesis of
the path with the fewest errors of each lattice (Kaldi's lattice-oracle).

Axes: W words of the symbol table.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from speech3.decode.beam_search import Lattice
from speech3.decode.grammar import BACKOFF, Speller, Spelling, are_pieces, join_words, mark_of, read_spelling
from speech3.decode.graph import DecodingGraph
from speech3.decode.lattice_archive import read_lattices, write_lattices
from speech3.decode.lattice_composition import NO_WORD, LmStates, expand_pieces, numbers_of, of_arpa, of_grammar
from speech3.decode.lattice_paths import confidences, minimum_bayes_risk, nbest, oracle_words
from speech3.decode.search import LATTICE_BEAM, Decoding, Hypothesis, confidences_in, searched, small_enough, words_in
from speech3.decode.speaker_passes import TRANSFORMS, TRANSFORMS_INDEX
from speech3.decode.trained_model import Alternative, TrainedModel
from speech3.decode.word_lattice import WordLattice, words_of
from speech3.errors import DataError, MismatchError, MissingError, SettingError, check_bad
from speech3.hmm import read_symbol_table
from speech3.io import A_DATADIR, A_GRAPH, GRAMMAR_FILE, GRAPH_FILE, read_fst
from speech3.language import JOINER, ArpaLm, read_arpa
from speech3.runtime import check_output, progress, read_json, say, write_json, write_text

ARCHIVE, INDEX, SYMBOLS, ABOUT = "lat.ark", "lat.scp", "words.txt", "lattice.json"
_DECODED = "hyp.txt", "hyp.ctm", "failed.txt"
_REMEDY = "make the lattices again with speech3 decode --lattice"
NBEST_FILE = "nbest.jsonl"
Latticed = tuple[Hypothesis, WordLattice | None, list[Alternative]]  # with its N best paths


@dataclass(frozen=True)
class LatticesAbout:
    """How lattices were made."""

    # model, graph: directories
    model: str
    graph: str
    # the contents of the graph's ``graph.json``: if they have changed, the graph has been rebuilt
    graph_about: dict[str, Any]
    # acoustic_scale, word_penalty: settings of the search. The penalty is included in the graph costs.
    acoustic_scale: float
    word_penalty: float
    beam: float  # paths whose cost exceeded that of the best path by more than this were left out
    # the language model that replaced the graph's, and its weight; None if the lattices were not rescored
    rescored: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class LatticeDir:
    """A directory of lattices; `symbols` is the content of ``words.txt``."""

    path: Path
    symbols: tuple[str, ...]
    about: LatticesAbout

    def lattices(self) -> Iterator[tuple[str, WordLattice]]:
        """Read the lattices, one at a time; state-level ones are determinised.

        Raises `Speech3Error`: the archive is missing or damaged, or its words are not those of ``words.txt``.
        """
        archive, number = self.path / ARCHIVE, len(self.symbols)
        if not archive.exists():
            raise MissingError(f"{archive}: no such file; {_REMEDY}")
        for utterance, lattice in read_lattices(archive):
            words = lattice if isinstance(lattice, WordLattice) else words_of(lattice, self.about.acoustic_scale)
            if (last := int(words.word_A.max(initial=0))) >= number:
                raise MismatchError(
                    f"{archive}: {utterance}: word {last}, but the {SYMBOLS} beside it has {number:,}: they belong to"
                    f" different graphs; {_REMEDY}"
                )
            yield utterance, words

    def units(self, labels: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.symbols[label] for label in labels)

    def spelled(self, labels: Sequence[int]) -> tuple[str, ...]:
        return join_words(self.units(labels), self.mark, self._speller) if self.mark else self.units(labels)

    def filled(self, word: str) -> str:
        """A word of joined pieces, such as ``<AH><T>``: if it is a filler, what `spelled` makes of it, or nothing."""
        phones = re.findall("<[^<>]+>", word)
        if len(phones) < 2 or "".join(phones) != word:
            return word
        first, *others = phones
        return " ".join(join_words([first + JOINER, *(JOINER + phone for phone in others)], self.mark, self._speller))

    @property
    def _speller(self) -> Speller | None:
        return self.spelling.speller if self.spelling else None

    @cached_property
    def mark(self) -> str:
        """The mark of word pieces among the symbols; empty if there are none."""
        return mark_of(self.symbols)

    def with_unseen(self, lm: ArpaLm) -> ArpaLm:
        """A language model of words, to which the unseen words that the graph can spell are added, if it spells any."""
        return self.spelling.added_to(lm) if self.spelling and not are_pieces(lm.words) else lm

    @cached_property
    def spelling(self) -> Spelling | None:
        """How the graph spells unseen words, if it does."""
        return read_spelling(Path(self.about.graph))

    def old_lm(self, given: Path | None = None) -> tuple[LmStates, np.ndarray]:
        """The language model used in the search, and (W,) its number of each symbol.

        It is the graph's G.fst, or the ARPA file `given`; refused if there is none, or if the graph is not the one that
        the lattices were made with.
        """
        graph = Path(self.about.graph)
        if given is not None and (graph / GRAMMAR_FILE).exists():
            raise SettingError(
                f"--old {given}: {graph} keeps the language model of the search ({GRAMMAR_FILE}); remove --old"
            )
        if given is None and (graph / GRAPH_FILE).exists():
            symbols = read_symbol_table(graph / SYMBOLS, _REMEDY)
            if symbols != self.symbols or read_json(graph / GRAPH_FILE) != self.about.graph_about:
                raise MismatchError(f"{self.path}: not made with the graph that is in {graph} now; {_REMEDY}")
            if (graph / GRAMMAR_FILE).exists():
                backoff = self.symbols.index(BACKOFF) if BACKOFF in self.symbols else -1
                states = of_grammar(read_fst(graph / GRAMMAR_FILE), backoff, graph / GRAMMAR_FILE)
                return states, np.arange(len(self.symbols))
        if given is None:
            raise MissingError(
                f"{self.path}: the language model that it was decoded with is not in {graph}/{GRAMMAR_FILE}; pass its"
                " ARPA file with --old, or build the graph again and decode with it"
            )
        states, numbers = of_arpa(self.with_unseen(read_arpa(given)))
        number_W = numbers_of(self.symbols, numbers, "")
        number_W[1:][number_W[1:] == NO_WORD] = len(numbers)  # on no arc, so that its cost is infinite and not 0
        return states, number_W


def open_lattices(path: Path) -> LatticeDir:
    """Open a directory that `speech3 decode --lattice` wrote; refuse any other."""
    if not (path / ABOUT).exists():
        raise MissingError(f"{path}: has no {ABOUT}; pass a directory that speech3 decode --lattice wrote")
    try:
        about = LatticesAbout(**read_json(path / ABOUT))
    except TypeError as error:
        raise MismatchError(f"{path / ABOUT}: has keys of another version of speech3; {_REMEDY}") from error
    return LatticeDir(path, read_symbol_table(path / SYMBOLS, _REMEDY), about)


def lattices_about(recognizer: TrainedModel, graph: DecodingGraph) -> LatticesAbout:
    """What is said of lattices that are made with the tuned settings."""
    model, path, tuned = str(recognizer.directory.resolve()), str(graph.path.resolve()), recognizer.settings
    return LatticesAbout(model, path, graph.about, tuned.acoustic_scale, tuned.word_penalty, LATTICE_BEAM)


def save_lattices(
    out: Path, items: Iterable[tuple[str, WordLattice]], symbols: tuple[str, ...], about: LatticesAbout
) -> None:
    """Write the directory, in place of the lattices of an earlier decoding, ``lattice.json`` last."""
    forget_lattices(out)
    write_lattices(out / ARCHIVE, items, out / INDEX)
    write_text(out / SYMBOLS, "".join(f"{word} {label}\n" for label, word in enumerate(symbols)))
    write_json(out / ABOUT, asdict(about))


def check_lattices(out: Path, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a directory with other lattices, or with another symbol table, such as that of a graph."""
    check_output(out, inputs, (ARCHIVE, INDEX, SYMBOLS), marks=[ABOUT], not_in=[A_GRAPH])


def check_decoding(out: Path, inputs: Sequence[Path | None], *, lattices: bool) -> None:
    """Refuse a directory where the files of a decoding would replace others; a model's own directory may be used."""
    files = (*_DECODED, NBEST_FILE, ARCHIVE, INDEX, ABOUT, "feats", "pass*", "sat", "with[0-9]*")
    check_output(out, inputs, files, not_in=[A_DATADIR, A_GRAPH])
    if lattices:
        check_lattices(out, inputs)
    # The directory of a model that adapts to speakers has the transforms of those that it was trained on.
    check_output(out, inputs, [TRANSFORMS, TRANSFORMS_INDEX], marks=["feats", *_DECODED])


def forget_lattices(out: Path) -> None:
    """Remove the lattices of an earlier decoding; any others are not ours."""
    if (out / ABOUT).exists():
        for name in (INDEX, ARCHIVE, SYMBOLS, ABOUT):
            (out / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class WantedResults:
    """The results to produce in addition to words and confidences."""

    nbest: int = 0  # length of the N-best lists; 0 for none
    archive: bool = False  # write lattices
    bayes_risk: bool = False  # return the words with the fewest expected errors in place of the best path's


@dataclass(eq=False)
class Kept:
    """The lattices that were made."""

    # mean number of arcs per frame in each utterance's lattice (Kaldi's lattice-depth)
    densities: dict[str, float] = field(default_factory=dict)
    without: dict[str, str] = field(default_factory=dict)  # for each decoded utterance without a lattice, the reason

    @property
    def density(self) -> float:
        return float(np.mean(list(self.densities.values()))) if self.densities else 0.0


def decode_latticed(
    recognizer: TrainedModel,
    feats: Mapping[str, np.ndarray],
    out: Path,
    wanted: WantedResults,
    jobs: int = 1,
    graph: DecodingGraph | None = None,
) -> tuple[Decoding, Kept]:
    """Decode with the tuned settings; write ``lat.ark`` and its companion files, and ``nbest.jsonl``, if `wanted`.

    The hypotheses have confidences. Raises an error if more than 5 % of the utterances failed, or there were none.
    """
    graph, tuned = graph or recognizer.graph, recognizer.settings
    make = functools.partial(_latticed, graph, tuned.acoustic_scale, wanted)
    few = 0
    failed: dict[str, str] = {}

    def made() -> Iterator[Latticed]:
        nonlocal few
        shown = progress(recognizer.scores(feats), len(feats), "decoding")
        for utterance, each in searched(graph, shown, tuned.search, tuned.setting, make, jobs):
            if isinstance(each, str):
                failed[utterance] = each
            else:
                few += len(each[2]) < wanted.nbest
                yield each

    about = lattices_about(recognizer, graph) if wanted.archive else None
    hypotheses, kept = write_latticed(out, made(), graph.words, about, nbest=wanted.nbest > 0)
    check_bad(failed, len(hypotheses) + len(failed), str(graph.path), "could not be decoded")
    if few:
        say(f"{few} of {len(hypotheses)} utterances have fewer than {wanted.nbest} word sequences in their lattices")
    return Decoding(tuple(hypotheses), failed), kept


def write_latticed(
    out: Path, made: Iterable[Latticed], symbols: tuple[str, ...], about: LatticesAbout | None, *, nbest: bool
) -> tuple[list[Hypothesis], Kept]:
    """Write what is made of each utterance as soon as it is made: the lattices if `about`, the N-best lists if `nbest`.

    Files of an earlier run are removed first, so that those of an interrupted run are not mistaken for complete ones.
    """
    hypotheses: list[Hypothesis] = []
    lines: list[str] = []
    kept = Kept()

    def lattices() -> Iterator[tuple[str, WordLattice]]:
        for best, lattice, paths in made:
            hypotheses.append(best)
            lines.append(nbest_lines(best.utterance, paths))
            if lattice is None:
                kept.without[best.utterance] = "its recording is too long"
            else:
                kept.densities[best.utterance] = lattice.density
                yield best.utterance, lattice

    if about:
        check_lattices(out)
    else:
        forget_lattices(out)
    (out / NBEST_FILE).unlink(missing_ok=True)
    if about:
        save_lattices(out, lattices(), symbols, about)
    else:
        for _ in lattices():
            pass
    if nbest:
        write_text(out / NBEST_FILE, "".join(lines))
    return hypotheses, kept


def decode_one(recognizer: TrainedModel, name: str, feats_TF: np.ndarray, paths: int) -> Latticed:
    """Decode one recording with the tuned settings: hypothesis with confidences, word lattice, N best `paths`.

    An error that no path survived has the `name`.
    """
    graph, tuned = recognizer.graph, recognizer.settings
    make = functools.partial(_latticed, graph, tuned.acoustic_scale, WantedResults(paths))
    ((_, found),) = searched(graph, recognizer.scores({name: feats_TF}), tuned.search, tuned.setting, make)
    if isinstance(found, str):
        raise DataError(f"{name}: {found}")
    return found


def _latticed(
    graph: DecodingGraph, scale: float, wanted: WantedResults, best: Hypothesis, lattice: Lattice | None
) -> Latticed:
    """For one utterance: hypothesis with confidences, word lattice, N best paths."""
    words = words_of(lattice, scale, LATTICE_BEAM) if lattice else None
    paths = [] if words is None else alternatives(words, functools.partial(words_in, graph), scale, wanted.nbest)
    said = tuple(graph.label_of[unit] for unit in best.units)
    if words is None or not small_enough(words, len(said)):
        # The lattice of the full beam is too large, so only narrower beams are tried.
        values = confidences_in(graph, lattice, best.units, scale, shares=(0.5, 0.25))
        return replace(best, confidences=values), words, paths
    risk = (minimum_bayes_risk if wanted.bayes_risk else confidences)(words, said, scale)
    units = tuple(graph.words[label] for label in risk.words)
    best = replace(best, units=units, words=words_in(graph, risk.words), confidences=risk.confidences)
    return best, words, paths


def alternatives(
    lattice: WordLattice, spelled: Callable[[Sequence[int]], tuple[str, ...]], scale: float, n: int
) -> list[Alternative]:
    """Up to `n` best paths of a lattice, best first; `spelled` makes words of output labels."""
    found = []
    for path in nbest(lattice, n, scale) if n else []:
        acoustic = scale * path.acoustic_cost(lattice)
        found.append(Alternative(spelled(path.words), acoustic, path.cost - acoustic))
    return found


def nbest_lines(utterance: str, paths: Iterable[Alternative]) -> str:
    """Lines of ``nbest.jsonl``: ``utterance``, ``rank`` from 1, ``cost``, its two parts, and ``words`` as a string."""
    lines = ({"utterance": utterance, **each} for each in ranked_paths(paths))
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def ranked_paths(paths: Iterable[Alternative]) -> Iterator[dict[str, Any]]:
    """JSON objects of the N best paths; a cost is null where it is infinite, for which JSON has no number."""
    for rank, path in enumerate(paths, 1):
        costs = {"cost": path.cost, "acoustic_cost": path.acoustic_cost, "graph_cost": path.graph_cost}
        yield {
            "rank": rank,
            **{name: round(cost, 4) if math.isfinite(cost) else None for name, cost in costs.items()},
            "words": path.text,
        }


def oracle_texts(archive: Path, references: Mapping[str, str]) -> dict[str, str]:
    """For each utterance with a lattice and a reference, the words of the lattice's path with the fewest errors.

    Raises `Speech3Error`: the archive was not written by `speech3 decode --lattice`, or has no utterance of the
    reference.
    """
    directory = open_lattices(archive.parent)
    number = {name: label for label, name in enumerate(directory.symbols)}
    texts = {
        utterance: _oracle_text(lattice, directory, number, references[utterance].split())
        for utterance, lattice in directory.lattices()
        if utterance in references
    }
    if not texts:
        raise MismatchError(f"{archive}: has no utterance of the reference; they belong to different sets")
    return texts


def _oracle_text(lattice: WordLattice, directory: LatticeDir, number: dict[str, int], reference: list[str]) -> str:
    names: Sequence[str] = directory.symbols
    if directory.mark:
        lattice, names = _whole_words(lattice, directory)
        number = {name: label for label, name in enumerate(names)}
    found = oracle_words(lattice, [number.get(word, -1) for word in reference])
    return " ".join(names[word] for word in found if word)


def _whole_words(lattice: WordLattice, directory: LatticeDir) -> tuple[WordLattice, list[str]]:
    """A lattice of whole words from one of pieces, and the words' names, with fillers as the text has them.

    Each word is on the arc that completes it; words that are completed where a path ends are on arcs to one more state.
    """
    expanded, words, last = expand_pieces(lattice, directory.symbols)
    words, last = ([directory.filled(word) for word in each] for each in (words, last))
    names = ["", *sorted({*words, *last} - {""})]
    number = {name: label for label, name in enumerate(names)}
    ends, state = np.flatnonzero(np.isfinite(expanded.final_graph_S)), len(last)
    source_A = np.concatenate([expanded.source_A, ends])
    order_A = np.argsort(source_A, kind="stable")
    word_A = np.array([number[word] for word in (*words, *(last[end] for end in ends))], np.int32)
    target_A = np.concatenate([expanded.target_A, np.full(len(ends), state)])
    final_S = np.append(np.full(state, np.inf), 0.0)
    spoken = replace(
        expanded, source_A=source_A[order_A], target_A=target_A[order_A], word_A=word_A[order_A], final_graph_S=final_S
    )
    return spoken, names
