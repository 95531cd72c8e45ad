"""Beam search through a decoding graph: the one module that calls kaldi-decoder.

kaldi-decoder holds the GIL, so utterances are spread over processes. It ends the process on an empty graph, on a label
outside the score matrix, and when a graph is freed that a decoder still uses: graphs come here checked (`load_graph`),
scores are checked here, and a `_Searcher` holds graph and options for as long as a decoder lives.

Axes: T frames, P pdfs.
"""

import multiprocessing
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from speech3.config import DecodeConfig
from speech3.decoding.fst import Fst, temporary_fst
from speech3.decoding.graph import Graph
from speech3.decoding.lattice import best_words, parse_lattice
from speech3.errors import Speech3Error

R = TypeVar("R")
Scores = Iterable[tuple[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """The best path of one utterance.

    Attributes
    ----------
    cost
        Acoustic and graph cost together, word penalties included; the acoustic part after scaling.
    acoustic_cost
        Minus the scaled log likelihoods along the path.
    pdfs_T
        int32: the pdf of each frame.
    reached_final
        False: the recording stops within a sentence that the graph allows, and these are its words so far.
    """

    utterance: str
    words: tuple[str, ...]
    cost: float
    acoustic_cost: float
    pdfs_T: np.ndarray
    reached_final: bool


@dataclass(frozen=True, eq=False)
class Decoding:
    """Hypotheses in the order of the scores, and why each of the other utterances has none."""

    hypotheses: tuple[Hypothesis, ...]
    failed: dict[str, str]


def decode(
    graph: Graph,
    scores: Scores,
    config: DecodeConfig,
    acoustic_scale: float,
    word_penalty: float = 0.0,
    jobs: int = 1,
    max_failed: float = 0.05,
) -> Decoding:
    """Find the best path of each utterance.

    Parameters
    ----------
    scores
        Pairs of utterance and float32 (T, P) log likelihoods (up to a constant for each frame), unscaled. Drawn as
        needed, so they need not fit in memory together.
    acoustic_scale
        Multiplied with the log likelihoods.
    word_penalty
        Cost of each word, added to the graph's.
    max_failed
        The fraction of utterances that may fail before that is an error.

    Raises
    ------
    Speech3Error
        Scores that are NaN or have other columns than the graph has pdfs; more than `max_failed` failed; none decoded.
    """
    with _penalised(graph, word_penalty) as path:
        searcher = _Searcher(path, graph.words, config, acoustic_scale)
        results = list(_search(searcher, _Searcher.best, _checked(graph, scores), jobs))
    hypotheses = tuple(result for _, result in results if isinstance(result, Hypothesis))
    failed = {utterance: result for utterance, result in results if isinstance(result, str)}
    if not hypotheses or len(failed) > max_failed * len(results):
        some = "; ".join(f"{utterance}: {why}" for utterance, why in list(failed.items())[:5])
        raise Speech3Error(f"{graph.path}: {len(failed)} of {len(results)} utterances could not be decoded. {some}")
    return Decoding(hypotheses, failed)


def grid_words(
    graph: Graph, scores: Scores, config: DecodeConfig, grid: list[tuple[float, float]], centre: float, jobs: int = 1
) -> dict[str, list[tuple[str, ...]]]:
    """Words of each utterance at each point (acoustic scale, word penalty) of a grid, from one lattice an utterance.

    The lattice is made at acoustic scale `centre` without word penalty; the points find in it what lies within
    ``config.lattice_beam`` of the best path there (Kaldi's lattice-scale and lattice-add-penalty). An utterance that
    reaches no final state has the same words, or none, at all points.

    Raises
    ------
    Speech3Error
        Scores that are NaN or have other columns than the graph has pdfs.
    """
    searcher = _Searcher(graph.path / "HCLG.fst", graph.words, config, centre)
    function = _Grid(np.array([scale / centre for scale, _ in grid]), np.array([penalty for _, penalty in grid]))
    return dict(_search(searcher, function, _checked(graph, scores), jobs))


@contextmanager
def _penalised(graph: Graph, word_penalty: float) -> Iterator[Path]:
    """Path of the graph's file, or of a temporary copy that charges for words."""
    if not word_penalty:
        yield graph.path / "HCLG.fst"
        return
    arcs_A = graph.fst.arcs_A.copy()
    arcs_A["weight"][arcs_A["olabel"] > 0] += word_penalty
    fst = graph.fst
    with temporary_fst(Fst(fst.start, fst.final_S, fst.source_A, arcs_A)) as path:
        yield path


def _checked(graph: Graph, scores: Scores) -> Iterator[tuple[str, np.ndarray]]:
    for utterance, scores_TP in scores:
        if scores_TP.ndim != 2 or scores_TP.shape[1] != graph.num_pdfs:
            raise Speech3Error(
                f"{utterance}: scores of shape {scores_TP.shape}, but the graph {graph.path} has {graph.num_pdfs} pdfs;"
                " it belongs to another model: build the graph of this one"
            )
        if np.isnan(scores_TP).any() or np.isposinf(scores_TP).any():
            raise Speech3Error(f"{utterance}: the model's scores are NaN or infinite; its training diverged")
        yield utterance, scores_TP


@dataclass(eq=False)
class _Searcher:
    path: Path
    words: tuple[str, ...]
    config: DecodeConfig
    acoustic_scale: float
    fst: Any = None

    def load(self) -> None:
        import kaldifst

        self.fst = kaldifst.StdConstFst.read(str(self.path))

    def decodable(self, scores_TP: np.ndarray) -> Any:
        import kaldi_decoder

        return kaldi_decoder.DecodableCtc(np.ascontiguousarray(scores_TP * self.acoustic_scale, dtype=np.float32))

    def best(self, utterance: str, scores_TP: np.ndarray) -> Hypothesis | str:
        import kaldi_decoder
        import kaldifst

        if not len(scores_TP):
            return "it has no frames"
        options = kaldi_decoder.FasterDecoderOptions(beam=self.config.beam, max_active=self.config.max_active)
        decoder, decodable = kaldi_decoder.FasterDecoder(self.fst, options), self.decodable(scores_TP)
        decoder.decode(decodable)
        found, path = decoder.get_best_path()
        if not found:
            return f"no path survived its {len(scores_TP)} frames; widen decode.beam or look at the recording"
        _, labels, words, weight = kaldifst.get_linear_symbol_sequence(path)
        final = decoder.reached_final()
        if not final and not words:
            return f"no word ends within its {len(scores_TP)} frames; it is too short, or decode.beam too narrow"
        spelled = tuple(self.words[word] for word in words)
        pdfs_T = np.array(labels, np.int32) - 1
        return Hypothesis(utterance, spelled, weight.value1 + weight.value2, weight.value2, pdfs_T, final)


@dataclass(frozen=True, eq=False)
class _Grid:
    factors_K: np.ndarray
    penalties_K: np.ndarray

    def __call__(self, searcher: _Searcher, utterance: str, scores_TP: np.ndarray) -> list[tuple[str, ...]]:
        import kaldi_decoder

        if not len(scores_TP):
            return [()] * len(self.factors_K)
        config = searcher.config
        options = kaldi_decoder.LatticeSimpleDecoderConfig(beam=config.beam, lattice_beam=config.lattice_beam)
        decoder, decodable = kaldi_decoder.LatticeSimpleDecoder(searcher.fst, options), searcher.decodable(scores_TP)
        if not decoder.decode(decodable):
            found = searcher.best(utterance, scores_TP)
            return [found.words if isinstance(found, Hypothesis) else ()] * len(self.factors_K)
        _, raw = decoder.get_raw_lattice()
        with tempfile.NamedTemporaryFile(prefix="speech3-") as stream:
            raw.write(stream.name)
            lattice = parse_lattice(Path(stream.name).read_bytes())
        labels = best_words(lattice, self.factors_K, self.penalties_K)
        return [tuple(searcher.words[label] for label in path) for path in labels]


_searcher: _Searcher | None = None  # of a worker process


def _start_worker(searcher: _Searcher) -> None:
    global _searcher
    _searcher = searcher
    searcher.load()


def _work(function: Callable[[_Searcher, str, np.ndarray], R], utterance: str, scores_TP: np.ndarray) -> R:
    assert _searcher is not None
    return function(_searcher, utterance, scores_TP)


def _search(
    searcher: _Searcher, function: Callable[[_Searcher, str, np.ndarray], R], scores: Scores, jobs: int
) -> Iterator[tuple[str, R]]:
    """Yield (utterance, function(searcher, utterance, scores)) in order, from `jobs` processes."""
    if jobs == 1:
        searcher = replace(searcher)
        searcher.load()
        for utterance, scores_TP in scores:
            yield utterance, function(searcher, utterance, scores_TP)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _start_worker, (searcher,))
    waiting: deque[tuple[str, Future[R]]] = deque()
    utterance = ""
    try:
        for utterance, scores_TP in scores:
            waiting.append((utterance, pool.submit(_work, function, utterance, scores_TP)))
            if len(waiting) > 2 * jobs:
                utterance, future = waiting.popleft()
                yield utterance, future.result()
        for utterance, future in waiting:
            yield utterance, future.result()
    except BrokenProcessPool as error:
        raise Speech3Error(
            f"{utterance}: a decoding process died at or near this utterance, most likely because memory ran out;"
            " run again with fewer jobs"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
