"""`speech3 rescore`: rescores a directory of lattices and writes the results to another directory."""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jiwer

from speech3.decoding.chosen_graph import with_graph
from speech3.decoding.latticed import NBEST, nbest_line, nbest_lines
from speech3.decoding.output import write_decoding, write_hypotheses
from speech3.decoding.recognizer import load_recognizer
from speech3.decoding.rescore import (
    Rescored,
    RescoredLattice,
    RescoredSentences,
    SentenceScorer,
    best_weight,
    by_function,
    by_ngrams,
    unknown_words,
)
from speech3.decoding.search import Decoding, Hypothesis, small_enough
from speech3.decoding.tune import ErrorRate, check_references
from speech3.errors import Speech3Error, listed
from speech3.graph.places import GRAPH
from speech3.io.ark import ArkReader
from speech3.io.atomic import write_json, write_text
from speech3.io.progress import progress, say
from speech3.io.text import read_utf8
from speech3.lattices.archive import write_lattices
from speech3.lattices.bayes_risk import confidences
from speech3.lattices.directory import ARCHIVE, INDEX, LatticeDir, forget_lattices, save_about
from speech3.lattices.word_lattice import WordLattice
from speech3.lattices.word_paths import nbest
from speech3.lexicon.lexicon import UNKNOWN
from speech3.lm.normalize import read_checked


@dataclass(frozen=True)
class Options:
    """How to rescore.

    Attributes
    ----------
    weight
        Weight of the other language model.
    references
        If given, the weight with the lowest error rate on them is used instead.
    nbest
        Number of paths in ``nbest.jsonl``, and of those that a function scores; 0 (only for n-gram models): no file.
    old
        ARPA file of the language model that was used in the search, if the graph does not keep it.
    times
        Compute confidences of the hypotheses, for `write_times`.
    """

    weight: float = 1.0
    references: Mapping[str, Sequence[str]] | None = None
    nbest: int = 0
    old: Path | None = None
    times: bool = False
    error_rate: ErrorRate = jiwer.wer


@dataclass(frozen=True)
class Outcome:
    """The result of `rescore`: the weight, the error rate at each weight that was tried, and the hypotheses."""

    weight: float
    rates: Mapping[float, float]
    decoding: Decoding


def rescore(directory: LatticeDir, lm: str, out: Path, options: Options) -> Outcome:
    """Rescore lattices and write ``hyp.txt``, ``rescore.json`` and, with an n-gram model, the rescored lattices.

    Parameters
    ----------
    lm
        ARPA file, or ``module:function`` (`rescore.by_function`).

    Raises
    ------
    Speech3Error
        The lattices were rescored before, or `out` is their own directory; also what `speech3.decoding.rescore` and
        `speech3.lattices.directory` raise.
    """
    if directory.about.rescored:
        raise Speech3Error(f"{directory.path}: already rescored; rescore what speech3 decode --lattice wrote")
    if out.resolve() == directory.path.resolve():
        raise Speech3Error(f"{out}: this is the lattices' own directory; write to another one")
    utterances = _utterances(directory)
    if options.references is not None:
        check_references(options.references, utterances)  # before all lattices are rescored
    old = directory.old_lm(options.old)
    rescored: Iterator[tuple[str, Rescored]]
    if ":" in lm and not Path(lm).exists():
        rescored = by_function(directory, load_function(lm), lm, options.nbest, old)
    else:
        model = directory.with_unseen(read_checked(Path(lm)))
        if lacking := unknown_words(directory, model):
            say(
                f"{lm}: lacks {len(lacking):,} words of the graph, such as {listed(lacking, 5)}; they are scored"
                f" as {UNKNOWN}"
            )
        rescored = by_ngrams(directory, model, old)
    items: Iterator[tuple[str, Rescored]] = iter(progress(rescored, len(utterances), "rescoring"))
    weight, rates = options.weight, dict[float, float]()
    if options.references is not None:
        known = dict(items)
        weight, rates = best_weight(known, options.references, options.error_rate)
        items = iter(known.items())
    decoding = _write(directory, items, lm, weight, out, options)
    write_json(out / "rescore.json", {
        "lattices": str(directory.path.resolve()), "lm": lm, "weight": weight,
        "error_rates": {f"{each:g}": rate for each, rate in rates.items()},
    })  # fmt: skip
    return Outcome(weight, rates, decoding)


def _utterances(directory: LatticeDir) -> list[str]:
    path = directory.path / INDEX
    return [line.split()[0] for line in read_utf8(path).splitlines()] if path.exists() else []


def load_function(name: str) -> SentenceScorer:
    """Import the function ``module:function`` from a module that is installed or in the working directory.

    Raises
    ------
    Speech3Error
        There is no such function, or importing its module fails.
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise Speech3Error(f"{name}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise Speech3Error(f"{name}: the module {module} has no function {attribute}")
    return found


def _write(
    directory: LatticeDir, items: Iterator[tuple[str, Rescored]], lm: str, weight: float, out: Path, options: Options
) -> Decoding:
    hypotheses: list[Hypothesis] = []
    lines: list[str] = []

    def lattices() -> Iterator[tuple[str, WordLattice]]:
        for utterance, each in items:
            if isinstance(each, RescoredLattice):
                lattice = each.lattice(weight)
                hypotheses.append(_hypothesis(directory, utterance, lattice, options.times))
                scale = directory.about.acoustic_scale
                lines.append(nbest_lines(utterance, lattice, directory.symbols, directory.mark, scale, options.nbest))
                yield utterance, lattice
            elif isinstance(each, RescoredSentences):
                ranked = each.ranked(weight)
                best, cost = ranked[0], ranked[0].acoustic + ranked[0].graph_cost(weight)
                hypotheses.append(Hypothesis(utterance, best.words, best.units, cost, best.acoustic, True))
                lines.extend(
                    nbest_line(utterance, rank, one.acoustic, one.graph_cost(weight), one.words)
                    for rank, one in enumerate(ranked, 1)
                )

    first = next(items, None)
    if first is None:
        raise Speech3Error(f"{directory.path / ARCHIVE}: holds no lattice")
    items = _again(first, items)
    for stale in (NBEST, "hyp.ctm"):
        (out / stale).unlink(missing_ok=True)
    forget_lattices(out)
    if isinstance(first[1], RescoredLattice):
        about = replace(directory.about, rescored={"lm": lm, "weight": weight})
        write_lattices(out / ARCHIVE, lattices(), out / INDEX)
        save_about(out, directory.symbols, about)
    else:
        for _ in lattices():
            pass
    decoding = Decoding(tuple(hypotheses), {})
    write_hypotheses(out / "hyp.txt", decoding)
    if options.nbest:
        write_text(out / NBEST, "".join(lines))
    return decoding


def _again(first: tuple[str, Rescored], items: Iterator[tuple[str, Rescored]]) -> Iterator[tuple[str, Rescored]]:
    yield first
    yield from items


def _hypothesis(directory: LatticeDir, utterance: str, lattice: WordLattice, with_confidences: bool) -> Hypothesis:
    scale = directory.about.acoustic_scale
    best = nbest(lattice, 1, scale)[0]
    units = tuple(directory.symbols[label] for label in best.words)
    known = (
        confidences(lattice, best.words, scale).confidences
        if with_confidences and small_enough(lattice, len(units))
        else None
    )
    acoustic = scale * best.acoustic_cost(lattice)
    return Hypothesis(utterance, directory.spelled(best.words), units, best.cost, acoustic, True, known)


def write_times(directory: LatticeDir, out: Path, decoding: Decoding, jobs: int) -> None:
    """Write ``hyp.ctm``: times from an alignment with the model, graph and features that decoding used.

    Raises
    ------
    Speech3Error
        The model, the graph or the features no longer exist.
    """
    scp = directory.path / "feats" / "feats.scp"
    if not scp.exists():
        raise Speech3Error(f"{scp}: no such file; word times need these features of speech3 decode: decode again")
    recognizer, graph = load_recognizer(Path(directory.about.model)), Path(directory.about.graph)
    if graph != (recognizer.directory / GRAPH).resolve():
        recognizer = with_graph(recognizer, graph)  # for the pronunciations of words that only this graph has
    write_decoding(out, recognizer, ArkReader(scp), decoding, jobs)
