"""Rescoring of lattices with another language model: an n-gram model on all paths, or any function on the N best.

With a weight w, the cost of a path becomes ``cost + w * (new - old)``: old is the cost of its words in the language
model that was used in the search, new their cost in the other one. With w = 1 the other model replaces the first;
between 0 and 1 the log probabilities of both are interpolated.

Axes: W words of the symbol table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from speech3.decoding.tune import ErrorRate, rate_of
from speech3.errors import Speech3Error, listed
from speech3.graph.pieces import are_pieces
from speech3.lattices.compose import Composed, Reading, composed, numbers_of, plain_reading, pruned, spelled
from speech3.lattices.directory import LatticeDir
from speech3.lattices.lm_paths import cheapest_cost
from speech3.lattices.lm_states import NO_WORD, LmStates, of_arpa
from speech3.lattices.word_lattice import WordLattice
from speech3.lattices.word_paths import nbest
from speech3.lexicon.lexicon import UNKNOWN
from speech3.lm.arpa import ArpaLm

WEIGHTS = tuple(round(0.1 * step, 1) for step in range(11))
SentenceScorer = Callable[[list[tuple[str, ...]]], Sequence[float]]


class Rescored(Protocol):
    """An utterance with separate costs of the two language models."""

    def words(self, weight: float) -> tuple[str, ...]:
        """The best words with this weight of the other model."""
        ...


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
        """The labels of the best path with this weight of the other model."""
        return nbest(self.composed.mixed(weight), 1, self.directory.about.acoustic_scale)[0].words

    def words(self, weight: float) -> tuple[str, ...]:
        """The best words with this weight of the other model."""
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
        """The best words with this weight of the other model."""
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
            lattice, words, last = spelled(lattice, directory.symbols)
            reading = Reading(*(_numbers(part, numbers, lm.source, where) for part in (words, last)))
        else:
            _check_known(lattice, number_W, directory.symbols, lm.source, where)
            reading = plain_reading(lattice, number_W)
        try:
            both = composed(lattice, old[0], plain_reading(lattice, old[1]), new, reading)
        except Speech3Error as error:
            raise Speech3Error(f"{where}: {error}") from error
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
    raise Speech3Error(
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
                raise Speech3Error(f"{where}: has words that its language model lacks; give the right one with --old")
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
        raise Speech3Error(f"{name}: failed at {where}: {type(error).__name__}: {error}") from error
    if len(costs) != len(said):
        raise Speech3Error(
            f"{name}: returned {len(costs)} values for the {len(said)} sentences of {where}; return one for each"
        )
    if np.isnan(costs).any() or np.isneginf(costs).any() or not np.isfinite(costs).any():
        odd = int(np.flatnonzero(~np.isfinite(costs))[0])
        raise Speech3Error(
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
        weight: rate_of(references, {key: each.words(weight) for key, each in rescored.items()}, error_rate)
        for weight in weights
    }
    return min(rates, key=lambda weight: (rates[weight], abs(weight - 0.5))), rates
