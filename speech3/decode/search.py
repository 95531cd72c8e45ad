"""The best paths of many utterances through a decoding graph, with utterances distributed over threads.

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
from speech3.decode.graph import DecodingGraph
from speech3.decode.hot_words import best_path, with_phrases
from speech3.decode.lattice_paths import confidences as confidences_of
from speech3.decode.word_lattice import WordLattice, words_of
from speech3.errors import check_bad, counted
from speech3.runtime import announce_compiling, explained_limits

LATTICE_BEAM = 8.0
_PIECE = 1000  # frames searched before `stopped` is checked again
# Limits on memory: frames of a recording that gets a lattice, and lattice states times positions of a hypothesis.
_MAX_FRAMES, _MAX_CELLS = 30_000, 2**23
Made = TypeVar("Made")
Scores = Iterable[tuple[str, np.ndarray]]
Setting = tuple[float, float]  # acoustic scale, word penalty


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """The best path of one utterance."""

    utterance: str
    words: tuple[str, ...]
    units: tuple[str, ...]  # the output symbols of the graph: words, or the pieces of words (`speech3.decode.grammar`)
    cost: float  # scaled acoustic cost plus graph cost, including word penalties
    acoustic_cost: float  # negative sum of the scaled log likelihoods along the path
    # if False, the recording ends in the middle of a sentence of the graph, and these are the words so far
    reached_final: bool
    # posterior of each unit at its position, from 0 to 1; None if not requested or the recording is too long
    confidences: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class Decoding:
    """Hypotheses in the order in which the scores were given, and for each other utterance the reason why it failed."""

    hypotheses: tuple[Hypothesis, ...]
    failed: dict[str, str]

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """The words of each utterance; an utterance that failed has none."""
        return {h.utterance: h.words for h in self.hypotheses} | dict.fromkeys(self.failed, ())


def without_words(decoding: Decoding, utterances: Set[str]) -> Decoding:
    """The decoding with no words in these utterances: in digital silence, a path has some that nobody said."""
    kept = (
        replace(h, words=(), units=(), confidences=None) if h.utterance in utterances else h
        for h in decoding.hypotheses
    )
    return replace(decoding, hypotheses=tuple(kept))


def decode(
    graph: DecodingGraph,
    scores: Scores,
    config: DecodeConfig,
    acoustic_scale: float,
    word_penalty: float = 0.0,
    jobs: int = 1,
    *,
    confidences: bool = False,
    tolerant: bool = False,
) -> Decoding:
    """Find the best path of each utterance, in so many threads, with the beam and `max_active` of `config`.

    Parameters
    ----------
    scores
        Utterances with float32 (T, P) unscaled log likelihoods, up to a constant for each frame. They are read as
        needed, so they need not fit in memory together.
    confidences
        Also make lattices and compute a confidence for each word; this takes two to three times as long.
    tolerant
        Any number of utterances may fail, except by scores that are NaN or infinite.

    Raises `Speech3Error`: the number of columns is not the graph's number of pdfs; more than 5 % of the utterances
    failed (such as by scores that are NaN), or there were none.
    """

    def make(best: Hypothesis, lattice: Lattice | None) -> Hypothesis:
        return replace(best, confidences=confidences_in(graph, lattice, best.units, acoustic_scale))

    setting, longest = (acoustic_scale, word_penalty), _MAX_FRAMES if confidences else 0
    found = dict(searched(graph, scores, config, setting, make, jobs, longest))
    failed = {utterance: each for utterance, each in found.items() if isinstance(each, str)}
    if tolerant:
        check_numbers(graph, failed, len(found))
    else:
        check_bad(failed, len(found), str(graph.path), "could not be decoded")
    return Decoding(tuple(each for each in found.values() if isinstance(each, Hypothesis)), failed)


def lattices(
    graph: DecodingGraph, scores: Scores, config: DecodeConfig, setting: Setting, jobs: int = 1
) -> Iterator[tuple[str, tuple[Hypothesis, Lattice] | None]]:
    """Yield each utterance with its best path and its state-level lattice, or None if the search fails.

    Raises `Speech3Error`: more than 5 % of the utterances have scores that are NaN or infinite, or the number of
    columns is not the graph's number of pdfs.
    """

    def make(best: Hypothesis, lattice: Lattice | None) -> tuple[Hypothesis, Lattice] | None:
        return (best, lattice) if lattice else None

    failed, total = dict[str, str](), 0
    for utterance, found in searched(graph, scores, config, setting, make, jobs, sys.maxsize):
        total += 1
        if isinstance(found, str):
            failed[utterance] = found
        yield utterance, None if isinstance(found, str) else found
    check_numbers(graph, failed, total)


def check_numbers(graph: DecodingGraph, failed: Mapping[str, str], total: int) -> None:
    """Refuse scores of which more than 5 % are NaN or infinite."""
    if bad := {utterance: reason for utterance, reason in failed.items() if reason == NOT_NUMBERS}:
        check_bad(bad, total, str(graph.path), "could not be decoded")


def searched(
    graph: DecodingGraph,
    scores: Scores,
    config: DecodeConfig,
    setting: Setting,
    make: Callable[[Hypothesis, Lattice | None], Made],
    jobs: int = 1,
    longest: int | None = None,
) -> Iterator[tuple[str, Made | str]]:
    """Yield each utterance, in order, with the result of `make`, or with the reason if there is no path.

    `make` is called in the threads with the best path and the lattice; None if the recording has more than `longest`
    frames. Raises a `Speech3Error` if the number of columns is not the graph's number of pdfs.
    """
    announce_compiling("the search")
    longest = _MAX_FRAMES if longest is None else longest
    longest = max(longest, _MAX_FRAMES) if graph.phrases else longest  # phrases are found in lattices
    arranged, stopped = with_word_penalty(graph.arranged, setting[1]), threading.Event()
    # One searcher for each thread, with memory of its own.
    searchers = [_Searcher(graph, arranged, config, setting[0], longest, stopped) for _ in range(jobs)]
    idle: SimpleQueue[_Searcher] = SimpleQueue()
    for searcher in searchers:
        idle.put(searcher)

    def work(utterance: str, scores_TP: np.ndarray) -> Made | str:
        searcher = idle.get()
        try:
            best, lattice = searcher.search(utterance, scores_TP)
            return best if isinstance(best, str) else make(best, lattice)
        finally:
            idle.put(searcher)

    if jobs == 1:  # no other thread is needed
        yield from ((utterance, work(utterance, scores_TP)) for utterance, scores_TP in _checked(graph, scores))
        return
    # Results are yielded in order; scores are read only two utterances per thread ahead.
    pool = ThreadPoolExecutor(jobs, "decoding")
    waiting: deque[tuple[str, Future[Made | str]]] = deque()
    try:
        for name, scores_TP in _checked(graph, scores):
            with explained_limits():
                waiting.append((name, pool.submit(work, name, scores_TP)))
            if len(waiting) > 2 * jobs:
                utterance, future = waiting.popleft()
                yield utterance, future.result()
        for utterance, future in waiting:
            yield utterance, future.result()
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _checked(graph: DecodingGraph, scores: Scores) -> Scores:
    for utterance, scores_TP in scores:
        if not not_numbers(scores_TP):  # that is the utterance's own failure, not an error
            check_scores(utterance, scores_TP, graph.num_pdfs, graph.path)
        yield utterance, scores_TP


@dataclass(eq=False)
class _Searcher:
    """A search with its own memory, for one thread at a time."""

    graph: DecodingGraph
    arranged: SearchGraph  # with the word penalty
    config: DecodeConfig
    scale: float
    longest: int  # most frames of an utterance that gets a lattice
    stopped: threading.Event
    beam_search: BeamSearch = field(default_factory=BeamSearch)

    def search(self, utterance: str, scores_TP: np.ndarray) -> tuple[Hypothesis | str, Lattice | None]:
        """The best path or the reason why there is none, and the lattice.

        A search that does not end in a final state is repeated with twice and then four times the beam.
        """
        frames = len(scores_TP)
        if not frames:
            return "it has no frames", None
        if not_numbers(scores_TP):
            return NOT_NUMBERS, None
        search, linked = self.beam_search, LATTICE_BEAM if frames <= self.longest else None
        for beam in (self.config.beam, 2 * self.config.beam, 4 * self.config.beam):
            search.begin(self.arranged, utterance, self.scale, beam, self.config.max_active, linked)
            for begin in range(0, frames, _PIECE):
                if self.stopped.is_set():
                    break
                search.read(scores_TP[begin : begin + _PIECE])
            best, lattice = best_and_lattice(search, self.graph, self.scale)
            if best and best.reached_final:
                break
        if best is None:
            return f"no path survived its {counted(frames, 'frame')}; widen decode.beam, or check the recording", None
        if not best.reached_final and not best.olabels:
            return (
                f"no word ends within its {counted(frames, 'frame')}: it is too short, or decode.beam too narrow",
                None,
            )
        return hypothesis_of(self.graph, utterance, best), lattice


def best_and_lattice(
    search: BeamSearch, graph: DecodingGraph, acoustic_scale: float
) -> tuple[BestPath | None, Lattice | None]:
    """What a search has found at the end of an utterance, with hot phrases boosted in both if there are any."""
    lattice = search.lattice()
    if lattice and graph.phrases:
        lattice = with_phrases(lattice, graph.phrases)
        return best_path(lattice, acoustic_scale), lattice
    return search.best_path(), lattice


def words_in(graph: DecodingGraph, olabels: Sequence[int], *, guess: bool = True) -> tuple[str, ...]:
    """Words from output labels of the graph; pieces are joined. `guess`: fillers are spelled where the graph can."""
    units = tuple(graph.words[label] for label in olabels)
    return join_words(units, graph.mark, graph.speller if guess else None) if graph.mark else units


def hypothesis_of(graph: DecodingGraph, utterance: str, best: BestPath) -> Hypothesis:
    units, spelled = tuple(graph.words[word] for word in best.olabels), words_in(graph, best.olabels)
    return Hypothesis(utterance, spelled, units, best.cost, best.acoustic_cost, best.reached_final)


def confidences_in(
    graph: DecodingGraph,
    lattice: Lattice | None,
    units: Sequence[str],
    scale: float,
    shares: Sequence[float] = (1, 0.5, 0.25),
) -> tuple[float, ...] | None:
    """Posterior of each unit at its position; None if there is no lattice or it is too large even when pruned.

    `shares`: fractions of `LATTICE_BEAM`, which are tried as beams until the lattice is small enough.
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
    return len(lattice.frame_S) * (2 * words + 1) <= _MAX_CELLS
