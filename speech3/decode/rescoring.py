"""`speech3 rescore`: lattices under an n-gram model, their N best paths under a neural one or any function.

With a weight w, the cost of a path becomes ``cost + w * (new - old)``: old is the cost of its words in the language
model that was used in the search, new their cost in the other one. With w = 1 the other model replaces the first;
between 0 and 1 the log probabilities of both are interpolated.

Axes: W words of the symbol table.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from speech3.decode.apply import decoded_features
from speech3.decode.grammar import are_pieces, join_words, parts_of_words
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
    Latticed,
    LatticeDir,
    alternatives,
    check_lattices,
    write_latticed,
)
from speech3.decode.lattice_paths import confidences, nbest
from speech3.decode.new_graph import replace_graph
from speech3.decode.output import write_decoding, write_hypotheses
from speech3.decode.recognizer import load_recognizer
from speech3.decode.search import Decoding, Hypothesis, small_enough
from speech3.decode.speaker_passes import SPK2UTT, speaker_model, with_known
from speech3.decode.trained_model import Alternative, TrainedModel, load_settings
from speech3.decode.tune import ErrorRate, check_references, error_rate_of
from speech3.errors import (
    DataError,
    MachineError,
    MismatchError,
    MissingError,
    SettingError,
    Speech3Error,
    counted,
    listed,
)
from speech3.hmm import ADAPTED, read_spk2utt
from speech3.io import GRAPH_DIR
from speech3.language import UNKNOWN, ArpaLm, NeuralLm, is_neural, is_word, read_checked, read_neural
from speech3.runtime import progress, read_utf8, say, write_json

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
NBEST = 100  # paths that a neural model or a function scores
SentenceScorer = Callable[[list[tuple[str, ...]]], Sequence[float]]


@dataclass(frozen=True)
class RescoreOptions:
    """How to rescore."""

    weight: float = 1.0  # weight of the other language model
    # if given, the weight with the lowest error rate on them is used instead
    references: Mapping[str, Sequence[str]] | None = None
    # number of paths in ``nbest.jsonl``, and of those that a neural model or function scores; 0: no file, or 100
    nbest: int = 0
    # ARPA file of the language model that was used in the search, if the graph does not keep it
    old: Path | None = None
    times: bool = False  # compute confidences of the hypotheses, for `write_times`
    error_rate: ErrorRate = jiwer.wer


@dataclass(frozen=True, eq=False)
class RescoredLattice:
    """A lattice with the costs of both models on all of its paths."""

    directory: LatticeDir
    composed: Composed

    def words(self, weight: float) -> tuple[str, ...]:
        """The words of the best path with this weight of the other model."""
        best = nbest(self.composed.mixed(weight), 1, self.directory.about.acoustic_scale)[0]
        return self.directory.spelled(best.words)

    def made(self, utterance: str, weight: float, options: RescoreOptions) -> Latticed:
        """The results with this weight; the lattice is pruned with the same beam as before."""
        directory, scale = self.directory, self.directory.about.acoustic_scale
        lattice = pruned(self.composed.mixed(weight), scale, directory.about.beam)
        best = nbest(lattice, 1, scale)[0]
        sure = options.times and small_enough(lattice, len(best.words))
        found = Hypothesis(
            utterance,
            directory.spelled(best.words),
            directory.units(best.words),
            best.cost,
            scale * best.acoustic_cost(lattice),
            reached_final=True,
            confidences=confidences(lattice, best.words, scale).confidences if sure else None,
        )
        return found, lattice, alternatives(lattice, directory.spelled, scale, options.nbest)


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

    def made(self, utterance: str, weight: float, _: RescoreOptions) -> Latticed:
        ranked = self.ranked(weight)
        best, cost = ranked[0], ranked[0].acoustic + ranked[0].graph_cost(weight)
        paths = [Alternative(each.words, each.acoustic, each.graph_cost(weight)) for each in ranked]
        return Hypothesis(utterance, best.words, best.units, cost, best.acoustic, True), None, paths


Rescored = RescoredLattice | RescoredSentences


def by_ngrams(
    directory: LatticeDir, lm: ArpaLm, old: tuple[LmStates, np.ndarray]
) -> Iterator[tuple[str, RescoredLattice]]:
    """Yield each utterance with its lattice and the costs of an n-gram model on it; `old` is from `LatticeDir.old_lm`.

    The model is one of words, even if the lattices are of pieces, or one of their pieces.

    Raises `Speech3Error`: the model lacks words of a lattice and has no `<unk>`; a lattice cannot be read, was made
    with a language model other than `old`, or becomes too large.
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
            if len(lacking := lattice.word_A[number_W[lattice.word_A] == NO_WORD]):
                _refuse([directory.symbols[word] for word in np.unique(lacking)], lm.source, where)
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
    directory: LatticeDir,
    function: SentenceScorer,
    name: str,
    n: int,
    old: tuple[LmStates, np.ndarray],
    further_cost: Callable[[tuple[str, ...]], float] = lambda units: 0.0,
) -> Iterator[tuple[str, RescoredSentences]]:
    """Yield each utterance with its N best paths and the costs that a function gives their words.

    The function takes the distinct word sequences of one utterance, and returns the natural logarithm of the
    probability of each, including the end of the sentence. `name` is that of the function, for messages.
    `further_cost`: what the units of a path cost besides (`_spelling_cost`).

    Raises `Speech3Error`: the function raised an exception or did not return one number for each sequence; a lattice
    cannot be read, or was made with a language model other than `old`.
    """
    scale, (states, number_W) = directory.about.acoustic_scale, old
    for utterance, lattice in directory.lattices():
        where, paths = f"{directory.path}: {utterance}", nbest(lattice, n, scale)
        olds = [cheapest_cost(states, number_W[list(path.words)].tolist()) for path in paths]
        if not np.isfinite(olds).all():
            raise DataError(f"{where}: has words that its language model lacks; pass the right one with --old")
        said = [directory.spelled(path.words) for path in paths]
        distinct = list(dict.fromkeys(said))  # pieces may spell the same words twice
        costs = dict(zip(distinct, _called(function, name, distinct, where), strict=True))
        sentences = []
        for path, words, old_cost in zip(paths, said, olds, strict=True):
            acoustic, units = scale * path.acoustic_cost(lattice), directory.units(path.words)
            graph_cost = path.cost - acoustic
            new_cost = costs[words] + further_cost(units)
            sentences.append(RescoredSentence(words, units, acoustic, graph_cost, old_cost, new_cost))
        yield utterance, RescoredSentences(tuple(sentences))


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
    rescored: Mapping[str, Rescored], references: Mapping[str, Sequence[str]], error_rate: ErrorRate
) -> tuple[float, dict[float, float]]:
    """The weight with the lowest error rate (of several, the one nearest to 0.5), and the error rate of each weight."""
    rates = {
        weight: error_rate_of(references, {key: each.words(weight) for key, each in rescored.items()}, error_rate)
        for weight in WEIGHTS
    }
    return min(rates, key=lambda weight: (rates[weight], abs(weight - 0.5))), rates


@dataclass(frozen=True)
class Rescoring:
    """The result of `rescore`: the weight, the error rate at each weight that was tried, and the hypotheses."""

    weight: float
    rates: Mapping[float, float]
    decoding: Decoding


def rescore(directory: LatticeDir, lm: str, out: Path, options: RescoreOptions) -> Rescoring:
    """Rescore lattices and write ``hyp.txt``, ``rescore.json`` and, with an n-gram model, the rescored lattices.

    `lm`: ARPA file, directory of a neural model, or ``module:function`` (`by_function`).

    Raises `Speech3Error`: the lattices were rescored before, or `out` is their own directory; a neural model lacks most
    of their words; also what `by_ngrams`, `by_function` and `LatticeDir.old_lm` raise.
    """
    if directory.about.rescored:
        raise MismatchError(f"{directory.path}: already rescored; rescore what speech3 decode --lattice wrote")
    check_lattices(out, [directory.path])
    index = directory.path / INDEX
    utterances = [line.split()[0] for line in read_utf8(index).splitlines()] if index.exists() else []
    if options.references is not None:
        check_references(options.references, utterances)  # before all lattices are rescored
    old = directory.old_lm(options.old)
    # The costs of the other model: on the lattices themselves, or on their N best paths.
    rescored: Iterator[tuple[str, Rescored]]
    is_function = ":" in lm and not Path(lm).exists()
    if is_neural(Path(lm)) or is_function:
        options = replace(options, nbest=options.nbest or NBEST)
        if is_function:
            rescored = by_function(directory, load_function(lm), lm, options.nbest, old)
        else:
            neural = _neural(Path(lm), directory)
            spelling_cost = partial(_spelling_cost, directory, neural)
            rescored = by_function(directory, neural.sentence_scores, lm, options.nbest, old, spelling_cost)
    else:
        model = directory.with_unseen(read_checked(Path(lm)))
        if lacking := unknown_words(directory, model):
            if set(filter(is_word, model.words)).isdisjoint(directory.symbols):
                raise MismatchError(
                    f"{lm}: has none of the words of {directory.path / 'words.txt'} ({listed(lacking, 5)}); spell both"
                    " the same way (upper or lower case?)"
                )
            say(
                f"{lm}: lacks {counted(len(lacking), 'word')} of the graph, such as {listed(lacking, 5)};"
                " they are scored"
                f" as {UNKNOWN}"
            )
        rescored = by_ngrams(directory, model, old)
    items: Iterator[tuple[str, Rescored]] = iter(progress(rescored, len(utterances), "rescoring"))
    # The weight that is given, or the best one; for that, all utterances are held in memory.
    weight, rates = options.weight, dict[float, float]()
    if options.references is not None:
        known = dict(items)
        weight, rates = best_weight(known, options.references, options.error_rate)
        items = iter(known.items())
    # What an earlier run wrote is removed only after the first lattice could be rescored.
    first = next(items, None)
    if first is None:
        raise DataError(f"{directory.path / ARCHIVE}: holds no lattice")
    (out / "hyp.ctm").unlink(missing_ok=True)
    about = replace(directory.about, rescored={"lm": lm, "weight": weight})
    made = (each.made(utterance, weight, options) for utterance, each in chain([first], items))
    has_lattices = isinstance(first[1], RescoredLattice)
    found, _ = write_latticed(out, made, directory.symbols, about if has_lattices else None, nbest=options.nbest > 0)
    decoding = Decoding(tuple(found), {})
    write_hypotheses(out / "hyp.txt", decoding)
    named = {f"{each:g}": rate for each, rate in rates.items()}
    summary = {"lattices": str(directory.path.resolve()), "lm": lm, "weight": weight, "error_rates": named}
    write_json(out / "rescore.json", summary)
    return Rescoring(weight, rates, decoding)


def _neural(path: Path, directory: LatticeDir) -> NeuralLm:
    """Read a neural model; refuse it if it lacks most words of the lattices, and name those that it lacks.

    Pieces are not checked.
    """
    lm = read_neural(path)
    words = [] if directory.mark else [word for word in directory.symbols if is_word(word) and not word.startswith("#")]
    lacking = [word for word in words if not lm.knows(word)]
    if 2 * len(lacking) > len(words):
        raise MismatchError(
            f"{lm.source}: lacks {len(lacking):,} of the {len(words):,} words of {directory.path / 'words.txt'}:"
            f" {listed(lacking, 5)}; train it with the words of the lexicon as --vocabulary, spelt the same way"
        )
    if lacking:
        say(
            f"{lm.source}: lacks {counted(len(lacking), 'word')} of the graph, such as {listed(lacking, 5)};"
            f" they are {UNKNOWN}"
        )
    return lm


def _spelling_cost(directory: LatticeDir, lm: NeuralLm, units: tuple[str, ...]) -> float:
    """What it costs to spell the words among these units that a neural model lacks, for which it has only ``<unk>``.

    Without it, any string of letters would be as probable as all unseen words together.
    """
    if not (spelling := directory.spelling):
        return 0.0
    words = [units[part] for part in parts_of_words(units, directory.mark)]
    unseen = (word for word in words if len(word) > 1)
    lacking = (word for word in unseen if not all(map(lm.knows, join_words(word, directory.mark, spelling.speller))))
    return sum(map(spelling.cost, lacking))


def load_function(name: str) -> SentenceScorer:
    """Import the function ``module:function`` from a module that is installed or in the working directory."""
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


def judges_lengths(directory: LatticeDir) -> bool:
    """Whether the model that decoded judges the lengths of words, so that the text depends on the words' times."""
    with suppress(Speech3Error):  # the model was moved, which matters only for times
        return load_settings(directory.about.model).lengths is not None
    return False


def write_times(directory: LatticeDir, out: Path, decoding: Decoding, jobs: int) -> None:
    """Write ``hyp.ctm``: times from an alignment with the model, graph and features that decoding used."""
    scp = directory.path / "feats" / "feats.scp"
    if not scp.exists():
        raise MissingError(f"{scp}: no such file; word times need these features of speech3 decode: decode again")
    model, graph = Path(directory.about.model), Path(directory.about.graph)
    adapted = model.name == ADAPTED
    loaded = load_recognizer(model.parent if adapted else model)
    if graph != (loaded.directory / GRAPH_DIR).resolve():
        loaded = replace_graph(loaded, graph)  # for the pronunciations of words that only this graph has
    recognizer: TrainedModel = loaded
    feats = decoded_features(recognizer, directory.path)
    if adapted and (speakers := speaker_model(recognizer)):
        speaker_of = read_spk2utt(directory.path / SPK2UTT)
        recognizer, feats = with_known(speakers, feats, speaker_of, directory.path)
    write_decoding(out, recognizer, feats, decoding, jobs)
