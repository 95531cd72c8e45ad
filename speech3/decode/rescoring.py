"""`speech3 rescore`: lattices under an n-gram model, their N best paths under a neural one or any function.

With a weight w, the cost of a path becomes ``cost + w * (new - old)``: old is the cost of its words in the language
model that was used in the search, new their cost in the other one. With w = 1 the other model replaces the first;
between 0 and 1 the log probabilities of both are interpolated.

Axes: W words of the symbol table.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jiwer
import numpy as np

from speech3.decode.grammar import are_pieces
from speech3.decode.graph import GRAPH
from speech3.decode.hot_words import replace_graph
from speech3.decode.lattice_archive import write_lattices
from speech3.decode.lattice_composition import (
    NO_WORD,
    Composed,
    LmStates,
    Reading,
    cheapest_cost,
    composed,
    expand_pieces,
    numbers_of,
    of_arpa,
    plain_reading,
    pruned,
)
from speech3.decode.lattice_directory import (
    ARCHIVE,
    INDEX,
    NBEST_FILE,
    LatticeDir,
    alternatives,
    forget_lattices,
    nbest_lines,
    save_about,
)
from speech3.decode.lattice_paths import confidences, nbest
from speech3.decode.output import write_decoding, write_hypotheses
from speech3.decode.recognizer import load_recognizer
from speech3.decode.search import Decoding, Hypothesis, small_enough
from speech3.decode.speaker_passes import SPK2UTT, speaker_model, with_transforms
from speech3.decode.trained_model import Alternative, TrainedModel
from speech3.decode.tune import ErrorRate, check_references, error_rate_of
from speech3.decode.word_lattice import WordLattice
from speech3.errors import (
    DataError,
    MachineError,
    MismatchError,
    MissingError,
    OccupiedError,
    SettingError,
    Speech3Error,
    listed,
)
from speech3.hmm import ADAPTED, read_spk2utt
from speech3.io import ArkReader
from speech3.language import UNKNOWN, ArpaLm, NeuralLm, is_neural, is_word, read_checked, read_neural
from speech3.runtime import progress, read_utf8, say, write_json, write_text

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NBEST = 100  # paths that a neural model or a function scores
SentenceScorer = Callable[[list[tuple[str, ...]]], Sequence[float]]


class Rescored(Protocol):
    """An utterance with separate costs of the two language models."""

    def words(self, weight: float) -> tuple[str, ...]: ...


@dataclass(frozen=True, eq=False)
class RescoredLattice:
    """A lattice with the costs of both models on all of its paths."""

    directory: LatticeDir
    composed: Composed

    def lattice(self, weight: float) -> WordLattice:
        """The lattice with this weight of the other model, pruned with the same beam as before."""
        about = self.directory.about
        return pruned(self.composed.mixed(weight), about.acoustic_scale, about.beam)

    def units(self, weight: float) -> tuple[int, ...]:
        return nbest(self.composed.mixed(weight), 1, self.directory.about.acoustic_scale)[0].words

    def words(self, weight: float) -> tuple[str, ...]:
        return self.directory.spelled(self.units(weight))


@dataclass(frozen=True, eq=False)
class RescoredSentence:
    """One of the N best paths: its scaled acoustic cost, its graph cost, and the costs of its words in both models."""

    words: tuple[str, ...]
    units: tuple[str, ...]
    acoustic: float
    graph: float
    old: float
    new: float

    def graph_cost(self, weight: float) -> float:
        """The graph cost with this weight of the other model, whose cost may be infinite and is ignored at weight 0."""
        return self.graph + (weight * (self.new - self.old) if weight else 0.0)


@dataclass(frozen=True, eq=False)
class RescoredSentences:
    """The N best paths of a lattice."""

    sentences: tuple[RescoredSentence, ...]

    def ranked(self, weight: float) -> list[RescoredSentence]:
        """The sentences with this weight of the other model, cheapest first; ties keep their order."""
        return sorted(self.sentences, key=lambda each: each.acoustic + each.graph_cost(weight))

    def words(self, weight: float) -> tuple[str, ...]:
        return self.ranked(weight)[0].words


def by_ngrams(
    directory: LatticeDir, lm: ArpaLm, old: tuple[LmStates, np.ndarray]
) -> Iterator[tuple[str, RescoredLattice]]:
    """Yield each utterance with its lattice and the costs of an n-gram model on it.

    Parameters
    ----------
    lm
        Model of words, even if the lattices are of pieces; or a model of their pieces.
    old
        The result of `LatticeDir.old_lm`.

    Raises
    ------
    Speech3Error
        The model lacks words of a lattice and has no `<unk>`; a lattice cannot be read, was made with a language model
        other than `old`, or becomes too large.
    """
    new, numbers = of_arpa(lm)
    joined = bool(directory.mark) and not are_pieces(numbers)
    number_W = numbers_of(directory.symbols, numbers, UNKNOWN)
    for utterance, lattice in directory.lattices():
        where = f"{directory.path}: {utterance}"
        if joined:
            lattice, words, last = expand_pieces(lattice, directory.symbols)
            reading = Reading(*(_numbers(part, numbers, lm.source, where) for part in (words, last)))
        else:
            _check_known(lattice, number_W, directory.symbols, lm.source, where)
            reading = plain_reading(lattice, number_W)
        try:
            both = composed(lattice, old[0], plain_reading(lattice, old[1]), new, reading)
        except Speech3Error as error:
            raise error.restated(f"{where}: {error}") from error
        yield utterance, RescoredLattice(directory, both)


def unknown_words(directory: LatticeDir, lm: ArpaLm) -> list[str]:
    """Words of the symbol table, except special symbols, that an n-gram model lacks; none if it has pieces."""
    known = {*lm.words, "<eps>", "<s>", "</s>", "#0"}
    return [] if directory.mark else [word for word in directory.symbols if word not in known]


def _check_known(lattice: WordLattice, number_W: np.ndarray, symbols: Sequence[str], source: str, where: str) -> None:
    if (number_W[lattice.word_A] == NO_WORD).any():
        lacking = np.unique(lattice.word_A[number_W[lattice.word_A] == NO_WORD])
        _refuse([symbols[word] for word in lacking], source, where)


def _numbers(words: list[str], numbers: Mapping[str, int], source: str, where: str) -> np.ndarray:
    known = {"": NO_WORD, **numbers}
    if UNKNOWN not in numbers and (lacking := sorted(set(words) - set(known))):
        _refuse(lacking, source, where)
    return np.array([known.get(word, numbers.get(UNKNOWN, NO_WORD)) for word in words], np.int64)


def _refuse(lacking: list[str], source: str, where: str) -> None:
    raise MissingError(
        f"{source}: lacks words of the lattice of {where}, and has no {UNKNOWN}: {listed(lacking)};"
        " estimate it with the words of the lexicon as its vocabulary"
    )


def by_function(
    directory: LatticeDir, function: SentenceScorer, name: str, n: int, old: tuple[LmStates, np.ndarray]
) -> Iterator[tuple[str, RescoredSentences]]:
    """Yield each utterance with its N best paths and the costs that a function gives their words.

    Parameters
    ----------
    function
        Takes the distinct word sequences of one utterance; returns the natural logarithm of the probability of each,
        including the end of the sentence.
    name
        The function's name, for messages.

    Raises
    ------
    Speech3Error
        The function raised an exception or did not return one number for each sequence; a lattice cannot be read, or
        was made with a language model other than `old`.
    """
    scale, (states, number_W) = directory.about.acoustic_scale, old
    for utterance, lattice in directory.lattices():
        where = f"{directory.path}: {utterance}"
        sentences = []
        for path in nbest(lattice, n, scale):
            words = directory.spelled(path.words)
            olds = cheapest_cost(states, number_W[list(path.words)].tolist())
            if not np.isfinite(olds):
                raise DataError(f"{where}: has words that its language model lacks; pass the right one with --old")
            acoustic, units = (
                scale * path.acoustic_cost(lattice),
                tuple(directory.symbols[label] for label in path.words),
            )
            sentences.append(partial(RescoredSentence, words, units, acoustic, path.cost - acoustic, olds))
        said = list(dict.fromkeys(each.args[0] for each in sentences))  # pieces may spell the same words twice
        costs = dict(zip(said, _called(function, name, said, where), strict=True))
        yield utterance, RescoredSentences(tuple(each(costs[each.args[0]]) for each in sentences))


def _called(function: SentenceScorer, name: str, said: list[tuple[str, ...]], where: str) -> list[float]:
    """Costs of word sequences from the function; all its failures become Speech3Error."""
    try:
        given: Any = function(list(said))
        costs = -np.asarray(given, np.float64).reshape(-1)
    except Exception as error:
        raise SettingError(f"{name}: failed at {where}: {type(error).__name__}: {error}") from error
    if len(costs) != len(said):
        raise MismatchError(
            f"{name}: returned {len(costs)} values for the {len(said)} sentences of {where}; return one for each"
        )
    if np.isnan(costs).any() or np.isneginf(costs).any() or not np.isfinite(costs).any():
        odd = int(np.flatnonzero(~np.isfinite(costs))[0])
        raise SettingError(
            f"{name}: returned the log probability {-costs[odd]:g} at {where}, for `{' '.join(said[odd])}`; return a"
            " finite number, or -inf for some of the sentences only"
        )
    return costs.tolist()


def best_weight(
    rescored: Mapping[str, Rescored],
    references: Mapping[str, Sequence[str]],
    error_rate: ErrorRate,
    weights: Iterable[float] = WEIGHTS,
) -> tuple[float, dict[float, float]]:
    """The weight with the lowest error rate (of several, the one nearest to 0.5), and the error rate of each weight."""
    rates = {
        weight: error_rate_of(references, {key: each.words(weight) for key, each in rescored.items()}, error_rate)
        for weight in weights
    }
    return min(rates, key=lambda weight: (rates[weight], abs(weight - 0.5))), rates


@dataclass(frozen=True)
class RescoreOptions:
    """How to rescore.

    Attributes
    ----------
    weight
        Weight of the other language model.
    references
        If given, the weight with the lowest error rate on them is used instead.
    nbest
        Number of paths in ``nbest.jsonl``, and of those that a neural model or function scores; 0: no file, or 100.
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


def rescore(directory: LatticeDir, lm: str, out: Path, options: RescoreOptions) -> Outcome:
    """Rescore lattices and write ``hyp.txt``, ``rescore.json`` and, with an n-gram model, the rescored lattices.

    Parameters
    ----------
    lm
        ARPA file, directory of a neural model, or ``module:function`` (`by_function`).

    Raises
    ------
    Speech3Error
        The lattices were rescored before, or `out` is their own directory; a neural model lacks most of their words;
        also what `speech3.decode.rescoring` and
        `speech3.decode.lattice_directory` raise.
    """
    if directory.about.rescored:
        raise MismatchError(f"{directory.path}: already rescored; rescore what speech3 decode --lattice wrote")
    if out.resolve() == directory.path.resolve():
        raise OccupiedError(f"{out}: this is the lattices' own directory; write to another one")
    utterances = _utterances(directory)
    if options.references is not None:
        check_references(options.references, utterances)  # before all lattices are rescored
    old = directory.old_lm(options.old)
    rescored: Iterator[tuple[str, Rescored]]
    if is_neural(Path(lm)):
        neural = read_neural(Path(lm))
        _check_neural(neural, directory)
        options = replace(options, nbest=options.nbest or NBEST)
        rescored = by_function(directory, neural.sentence_scores, lm, options.nbest, old)
    elif ":" in lm and not Path(lm).exists():
        options = replace(options, nbest=options.nbest or NBEST)
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


def _check_neural(lm: NeuralLm, directory: LatticeDir) -> None:
    """Refuse a model that lacks most words of the lattices, and name those that it lacks; pieces are not looked at."""
    words = [] if directory.mark else [word for word in directory.symbols if is_word(word) and not word.startswith("#")]
    lacking = [word for word in words if not lm.knows(word)]
    if 2 * len(lacking) > len(words):
        raise MismatchError(
            f"{lm.source}: lacks {len(lacking):,} of the {len(words):,} words of {directory.path / 'words.txt'}:"
            f" {listed(lacking, 5)}; train it with the words of the lexicon as --vocabulary, spelt the same way"
        )
    if lacking:
        say(f"{lm.source}: lacks {len(lacking):,} words of the graph, such as {listed(lacking, 5)}; they are {UNKNOWN}")


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
        raise MachineError(f"{name}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise SettingError(f"{name}: the module {module} has no function {attribute}")
    return found


def _write(
    directory: LatticeDir,
    items: Iterator[tuple[str, Rescored]],
    lm: str,
    weight: float,
    out: Path,
    options: RescoreOptions,
) -> Decoding:
    hypotheses: list[Hypothesis] = []
    lines: list[str] = []

    def lattices() -> Iterator[tuple[str, WordLattice]]:
        for utterance, each in items:
            if isinstance(each, RescoredLattice):
                lattice = each.lattice(weight)
                hypotheses.append(_hypothesis(directory, utterance, lattice, options.times))
                scale = directory.about.acoustic_scale
                paths = alternatives(lattice, directory.symbols, directory.mark, scale, options.nbest)
                lines.append(nbest_lines(utterance, paths))
                yield utterance, lattice
            elif isinstance(each, RescoredSentences):
                ranked = each.ranked(weight)
                best, cost = ranked[0], ranked[0].acoustic + ranked[0].graph_cost(weight)
                hypotheses.append(Hypothesis(utterance, best.words, best.units, cost, best.acoustic, True))
                paths = [Alternative(one.words, one.acoustic, one.graph_cost(weight)) for one in ranked]
                lines.append(nbest_lines(utterance, paths))

    # What an earlier run wrote goes only after the first lattice could be rescored.
    first = next(items, None)
    if first is None:
        raise DataError(f"{directory.path / ARCHIVE}: holds no lattice")
    items = _again(first, items)
    for stale in (NBEST_FILE, "hyp.ctm"):
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
        write_text(out / NBEST_FILE, "".join(lines))
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
        raise MissingError(f"{scp}: no such file; word times need these features of speech3 decode: decode again")
    model, graph = Path(directory.about.model), Path(directory.about.graph)
    adapted = model.name == ADAPTED
    loaded = load_recognizer(model.parent if adapted else model)
    if graph != (loaded.directory / GRAPH).resolve():
        loaded = replace_graph(loaded, graph)  # for the pronunciations of words that only this graph has
    recognizer: TrainedModel = loaded
    feats: Mapping[str, np.ndarray] = ArkReader(scp)
    if adapted and (speakers := speaker_model(recognizer)):
        speaker_of = read_spk2utt(directory.path / SPK2UTT)
        recognizer, feats = with_transforms(speakers, feats, speaker_of, directory.path)
    write_decoding(out, recognizer, feats, decoding, jobs)
