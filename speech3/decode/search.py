"""The best paths of utterances through a decoding graph, with utterances distributed over threads.

The search itself (`beam_search`) is compiled and releases the GIL, so threads search in parallel and share one copy of
the graph.

Axes: T frames, P pdfs.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from speech3.config import DecodeConfig
from speech3.decode.beam_search import (
    NOT_NUMBERS,
    BeamSearch,
    BestPath,
    Lattice,
    SearchGraph,
    check_scores,
    not_numbers,
    with_word_penalty,
)
from speech3.decode.grammar import join_words
from speech3.decode.graph import Graph
from speech3.decode.lattice_paths import confidences as confidences_of
from speech3.decode.phrases import best_path, with_phrases
from speech3.decode.word_lattice import WordLattice, words_of
from speech3.errors import check_bad
from speech3.runtime import announce_compiling, explained_limits

LATTICE_BEAM = 8.0
_PIECE = 1000  # frames searched before `stopped` is checked again
# Limits on memory: frames of a recording that gets a lattice, and lattice states times positions of a hypothesis.
_LONGEST, _CELLS = 30_000, 2**23
Found = TypeVar("Found")
Scores = Iterable[tuple[str, np.ndarray]]
Setting = tuple[float, float]  # acoustic scale, word penalty


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """The best path of one utterance.

    Attributes
    ----------
    units
        The output symbols of the graph: words, or the pieces of words (`speech3.decode.grammar`).
    cost
        Scaled acoustic cost plus graph cost, including word penalties.
    acoustic_cost
        Negative sum of the scaled log likelihoods along the path.
    reached_final
        If False, the recording ends in the middle of a sentence of the graph, and these are the words so far.
    confidences
        Posterior of each unit at its position, from 0 to 1 (`bayes_risk`); None if it was not requested or the
        recording is too long for it.
    """

    utterance: str
    words: tuple[str, ...]
    units: tuple[str, ...]
    cost: float
    acoustic_cost: float
    reached_final: bool
    confidences: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Decoding:
    """Hypotheses in the order in which the scores were given, and for each other utterance the reason why it failed."""

    hypotheses: tuple[Hypothesis, ...]
    failed: dict[str, str]


def without_words(decoding: Decoding, utterances: Set[str]) -> Decoding:
    """The decoding with no words in these utterances: in digital silence, a path has some that nobody said."""
    kept = (
        replace(h, words=(), units=(), confidences=None) if h.utterance in utterances else h
        for h in decoding.hypotheses
    )
    return replace(decoding, hypotheses=tuple(kept))


def decode(
    graph: Graph,
    scores: Scores,
    config: DecodeConfig,
    acoustic_scale: float,
    word_penalty: float = 0.0,
    jobs: int = 1,
    *,
    confidences: bool = False,
) -> Decoding:
    """Find the best path of each utterance.

    Parameters
    ----------
    scores
        Pairs of utterance and float32 (T, P) log likelihoods (up to a constant for each frame), unscaled. They are
        read as needed, so they need not fit in memory together.
    config
        Only its `beam` and `max_active` are used.
    acoustic_scale
        Factor of the log likelihoods.
    word_penalty
        Cost added to the graph's for each word.
    jobs
        Threads.
    confidences
        Also make lattices and compute a confidence for each word; this takes two to three times as long.

    Raises
    ------
    Speech3Error
        The number of columns is not the graph's number of pdfs; more than 5 % of the utterances failed (such as by
        scores that are NaN), or there were none.
    """
    setting = (acoustic_scale, word_penalty)
    results = {utterance: found for utterance, (found,) in _search(graph, scores, config, [setting], jobs, confidences)}
    hypotheses = tuple(found for found in results.values() if isinstance(found, Hypothesis))
    failed = {utterance: found for utterance, found in results.items() if isinstance(found, str)}
    check_bad(failed, len(results), str(graph.path), "could not be decoded")
    return Decoding(hypotheses, failed)


def decode_settings(
    graph: Graph, scores: Scores, config: DecodeConfig, settings: Sequence[Setting], jobs: int = 1
) -> dict[str, list[tuple[str, ...]]]:
    """Find the words of each utterance under each of several settings (acoustic scale, word penalty).

    Scores are read once. An utterance whose search fails under a setting has no words there.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances have scores that are NaN or infinite, or the number of columns is not the
        graph's number of pdfs.
    """
    results = dict(_search(graph, scores, config, settings, jobs))
    bad = {utterance: NOT_NUMBERS for utterance, found in results.items() if found[0] == NOT_NUMBERS}
    if bad:
        check_bad(bad, len(results), str(graph.path), "could not be decoded")
    return {
        utterance: [one.words if isinstance(one, Hypothesis) else () for one in found]
        for utterance, found in results.items()
    }


def lattices(
    graph: Graph, scores: Scores, config: DecodeConfig, setting: Setting, jobs: int = 1
) -> Iterator[tuple[str, tuple[Hypothesis, Lattice] | None]]:
    """Yield each utterance with its best path and its state-level lattice, or None if the search fails.

    Raises
    ------
    Speech3Error
        More than 5 % of the utterances have scores that are NaN or infinite, or the number of columns is not the
        graph's number of pdfs.
    """
    searchers = _searchers(graph, config, [setting], jobs, sys.maxsize)
    bad, total = dict[str, str](), 0

    def noted() -> Scores:
        nonlocal total
        for utterance, scores_TP in _checked(graph, scores):
            total += 1
            if not_numbers(scores_TP):
                bad[utterance] = NOT_NUMBERS
            yield utterance, scores_TP

    yield from _spread(searchers, _Searcher.lattice, noted())
    if bad:
        check_bad(bad, total, str(graph.path), "could not be decoded")


def latticed(
    graph: Graph,
    scores: Scores,
    config: DecodeConfig,
    setting: Setting,
    jobs: int,
    make: Callable[[Hypothesis, Lattice | None], Found],
) -> Iterator[tuple[str, Found | str]]:
    """Yield each utterance with the result of `make`, or with the reason if there is no path.

    `make` is called in the threads with the best path and the lattice; the lattice is None if the recording is too long
    for one.

    Raises
    ------
    Speech3Error
        The number of columns is not the graph's number of pdfs.
    """

    def method(searcher: "_Searcher", utterance: str, scores_TP: np.ndarray) -> Found | str:
        best = searcher.best(utterance, scores_TP)
        return best if isinstance(best, str) else make(best, searcher.lattice_with_phrases())

    return _spread(_searchers(graph, config, [setting], jobs, _LONGEST), method, _checked(graph, scores))


def words_in(graph: Graph, olabels: Sequence[int]) -> tuple[str, ...]:
    """Words from output labels of the graph; pieces are joined."""
    units = tuple(graph.words[label] for label in olabels)
    return join_words(units, graph.mark) if graph.mark else units


def hypothesis_of(graph: Graph, utterance: str, best: BestPath) -> Hypothesis:
    units, spelled = tuple(graph.words[word] for word in best.olabels), words_in(graph, best.olabels)
    return Hypothesis(utterance, spelled, units, best.cost, best.acoustic_cost, best.reached_final)


def confidences_in(
    graph: Graph, lattice: Lattice | None, units: Sequence[str], scale: float, shares: Sequence[float] = (1, 0.5, 0.25)
) -> tuple[float, ...] | None:
    """Posterior of each unit at its position; None if there is no lattice or it is too large even when pruned.

    Parameters
    ----------
    shares
        Fractions of `LATTICE_BEAM`, which are tried as beams until the lattice is small enough.
    """
    if lattice is None:
        return None
    said = tuple(graph.label_of[unit] for unit in units)
    for share in shares:
        words = words_of(lattice, scale, share * LATTICE_BEAM)
        if small_enough(words, len(said)):
            return confidences_of(words, said, scale).confidences
    return None


def small_enough(lattice: WordLattice, words: int) -> bool:
    """Whether the posteriors of a hypothesis of `words` words in this lattice stay within the memory limit."""
    return len(lattice.frame_S) * (2 * words + 1) <= _CELLS


def _search(
    graph: Graph,
    scores: Scores,
    config: DecodeConfig,
    settings: Sequence[Setting],
    jobs: int,
    confidences: bool = False,
) -> Iterator[tuple[str, list[Hypothesis | str]]]:
    """Yield (utterance, hypothesis or failure under each setting), in order, from `jobs` threads."""
    yield from _spread(
        _searchers(graph, config, settings, jobs, _LONGEST if confidences else 0),
        _Searcher.search,
        _checked(graph, scores),
    )


def _searchers(
    graph: Graph, config: DecodeConfig, settings: Sequence[Setting], jobs: int, longest: int
) -> list["_Searcher"]:
    announce_compiling("the search")
    graphs = {penalty: with_word_penalty(graph.arranged, penalty) for _, penalty in settings}
    longest = max(longest, _LONGEST) if graph.phrases else longest  # phrases are found in lattices
    stopped = threading.Event()
    return [_Searcher(graph, graphs, config, tuple(settings), longest, stopped) for _ in range(jobs)]


def _checked(graph: Graph, scores: Scores) -> Iterator[tuple[str, np.ndarray]]:
    for utterance, scores_TP in scores:
        if not not_numbers(scores_TP):  # that is the utterance's own failure, not an error
            check_scores(utterance, scores_TP, graph.num_pdfs, graph.path)
        yield utterance, scores_TP


@dataclass(eq=False)
class _Searcher:
    """A search with its own memory, for one thread at a time.

    A search that does not end in a final state is repeated with twice and then four times the beam.
    """

    graph: Graph
    graphs: Mapping[float, SearchGraph]  # for each word penalty
    config: DecodeConfig
    settings: tuple[Setting, ...]
    longest: int  # most frames of an utterance that gets a lattice
    stopped: threading.Event
    beam_search: BeamSearch = field(default_factory=BeamSearch)

    def search(self, utterance: str, scores_TP: np.ndarray) -> list[Hypothesis | str]:
        """Hypothesis or reason of failure under each setting, with confidences if there are lattices."""
        found: list[Hypothesis | str] = []
        for scale, penalty in self.settings:
            best = self._best(utterance, scores_TP, scale, penalty)
            if isinstance(best, Hypothesis):
                values = confidences_in(self.graph, self.lattice_with_phrases(), best.units, scale)
                best = replace(best, confidences=values)
            found.append(best)
        return found

    def lattice(self, utterance: str, scores_TP: np.ndarray) -> tuple[Hypothesis, Lattice] | None:
        best = self.best(utterance, scores_TP)
        lattice = self.lattice_with_phrases() if isinstance(best, Hypothesis) else None
        return (best, lattice) if isinstance(best, Hypothesis) and lattice else None

    def best(self, utterance: str, scores_TP: np.ndarray) -> Hypothesis | str:
        return self._best(utterance, scores_TP, *self.settings[0])

    def _best(self, utterance: str, scores_TP: np.ndarray, scale: float, word_penalty: float) -> Hypothesis | str:
        frames = len(scores_TP)
        if not frames:
            return "it has no frames"
        if not_numbers(scores_TP):
            return NOT_NUMBERS
        for beam in (self.config.beam, 2 * self.config.beam, 4 * self.config.beam):
            best = self._path(utterance, scores_TP, scale, word_penalty, beam)
            if best and best.reached_final:
                break
        if best is None:
            return f"no path survived its {frames} frames; widen decode.beam, or check the recording"
        if not best.reached_final and not best.olabels:
            return f"no word ends within its {frames} frames: it is too short, or decode.beam too narrow"
        return hypothesis_of(self.graph, utterance, best)

    def lattice_with_phrases(self) -> Lattice | None:
        """The lattice of the search; its costs include the boosts of hot phrases, if there are any."""
        lattice = self.beam_search.lattice()
        return with_phrases(lattice, self.graph.phrases) if lattice and self.graph.phrases else lattice

    def _path(
        self, utterance: str, scores_TP: np.ndarray, scale: float, word_penalty: float, beam: float
    ) -> BestPath | None:
        search = self.beam_search
        linked = len(scores_TP) <= self.longest
        search.begin(
            self.graphs[word_penalty], utterance, scale, beam, self.config.max_active, LATTICE_BEAM if linked else None
        )
        for begin in range(0, len(scores_TP), _PIECE):
            if self.stopped.is_set():
                break
            search.read(scores_TP[begin : begin + _PIECE])
        if self.graph.phrases and (lattice := self.lattice_with_phrases()):
            return best_path(lattice, scale)
        return search.best_path()


def _spread(
    searchers: list[_Searcher], method: Callable[[_Searcher, str, np.ndarray], Found], scores: Scores
) -> Iterator[tuple[str, Found]]:
    """Yield (utterance, result) in order, with one thread per searcher; a single searcher runs in this thread."""
    if len(searchers) == 1:
        yield from ((utterance, method(searchers[0], utterance, scores_TP)) for utterance, scores_TP in scores)
        return
    idle: SimpleQueue[_Searcher] = SimpleQueue()
    for searcher in searchers:
        idle.put(searcher)

    def work(utterance: str, scores_TP: np.ndarray) -> Found:
        searcher = idle.get()
        try:
            return method(searcher, utterance, scores_TP)
        finally:
            idle.put(searcher)

    pool = ThreadPoolExecutor(len(searchers), "decoding")
    waiting: deque[tuple[str, Future[Found]]] = deque()
    try:
        for name, scores_TP in scores:
            with explained_limits():
                waiting.append((name, pool.submit(work, name, scores_TP)))
            if len(waiting) > 2 * len(searchers):
                utterance, future = waiting.popleft()
                yield utterance, future.result()
        for utterance, future in waiting:
            yield utterance, future.result()
    finally:
        searchers[0].stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
