"""Beam search through a decoding graph: the one module that calls kaldi-decoder.

kaldi-decoder holds the GIL, so utterances are spread over processes. It ends the process on an empty graph, on a label
outside the score matrix, and when a graph is freed that a decoder still uses: graphs come here checked (`load_graph`),
scores are checked here, and a `_Searcher` holds graph and options for as long as a decoder lives.

Axes: T frames, P pdfs.
"""

import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from speech3.config import DecodeConfig
from speech3.decoding.fst import temporary_fst
from speech3.decoding.graph import Graph
from speech3.decoding.pieces import are_pieces, join_words
from speech3.errors import Speech3Error, check_bad
from speech3.io.parallel import end_with_parent, starting_workers

_ALONE_S = 2.0
Scores = Iterable[tuple[str, np.ndarray]]
Setting = tuple[float, float]  # acoustic scale, word penalty


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """The best path of one utterance.

    Attributes
    ----------
    units
        What the graph wrote: the words, or pieces that make them up (`speech3.decoding.pieces`).
    cost
        Acoustic and graph cost together, word penalties included; the acoustic part after scaling.
    acoustic_cost
        Minus the scaled log likelihoods along the path.
    pdfs_T
        int32: the pdf of each frame (of each output, where there is one for several frames).
    reached_final
        False: the recording stops within a sentence that the graph allows, and these are its words so far.
    """

    utterance: str
    words: tuple[str, ...]
    units: tuple[str, ...]
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

    Raises
    ------
    Speech3Error
        Scores that are NaN or have other columns than the graph has pdfs; more than 5 % failed, or there were none.
    """
    setting = (acoustic_scale, word_penalty)
    results = {utterance: found for utterance, (found,) in _search(graph, scores, config, [setting], jobs)}
    hypotheses = tuple(found for found in results.values() if isinstance(found, Hypothesis))
    failed = {utterance: found for utterance, found in results.items() if isinstance(found, str)}
    check_bad(failed, len(results), str(graph.path), "could not be decoded")
    return Decoding(hypotheses, failed)


def decode_settings(
    graph: Graph, scores: Scores, config: DecodeConfig, settings: Sequence[Setting], jobs: int = 1
) -> dict[str, list[tuple[str, ...]]]:
    """Find the words of each utterance under each of several settings (acoustic scale, word penalty).

    Scores are drawn once. An utterance whose search dies has no words there.

    Raises
    ------
    Speech3Error
        Scores that are NaN or have other columns than the graph has pdfs.
    """
    return {
        utterance: [one.words if isinstance(one, Hypothesis) else () for one in found]
        for utterance, found in _search(graph, scores, config, settings, jobs)
    }


def _search(
    graph: Graph, scores: Scores, config: DecodeConfig, settings: Sequence[Setting], jobs: int
) -> Iterator[tuple[str, list[Hypothesis | str]]]:
    """Yield (utterance, hypothesis or failure under each setting), in order, from `jobs` processes."""
    with ExitStack() as stack:
        paths = {penalty: stack.enter_context(_charging(graph, penalty)) for _, penalty in settings}
        searcher = _Searcher(paths, graph.words, config, tuple(settings))
        rest = iter(_checked(graph, scores))
        # Starting processes takes a second or two; what is done by then needs none.
        yield from _in_process(searcher, rest, seconds=None if jobs == 1 else _ALONE_S)
        if (first := next(rest, None)) is not None:
            yield from _pooled(searcher, chain([first], rest), jobs)


@contextmanager
def _charging(graph: Graph, word_penalty: float) -> Iterator[Path]:
    """Path of the graph's file, or of a temporary copy that charges for words."""
    if not word_penalty:
        yield graph.path / "HCLG.fst"
        return
    arcs_A = graph.fst.arcs_A.copy()
    arcs_A["weight"][arcs_A["olabel"] > 0] += word_penalty
    with temporary_fst(replace(graph.fst, arcs_A=arcs_A)) as path:
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
    """What a process needs: sent to it without graphs, which it then loads once.

    A search that ends outside a final state is done again with twice and four times the beam.
    """

    paths: dict[float, Path]  # for each word penalty
    words: tuple[str, ...]
    config: DecodeConfig
    settings: tuple[Setting, ...]
    fsts: dict[float, Any] = field(default_factory=dict)
    pieces: bool = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = are_pieces(self.words)  # asked once: there may be 200,000 words

    def load(self) -> None:
        import kaldifst

        self.fsts = {penalty: kaldifst.StdConstFst.read(str(path)) for penalty, path in self.paths.items()}

    def search(self, utterance: str, scores_TP: np.ndarray) -> list[Hypothesis | str]:
        return [self._best(utterance, scores_TP, scale, penalty) for scale, penalty in self.settings]

    def _best(self, utterance: str, scores_TP: np.ndarray, scale: float, word_penalty: float) -> Hypothesis | str:
        import kaldi_decoder
        import kaldifst

        frames = len(scores_TP)
        if not frames:
            return "it has no frames"
        scaled_TP = np.ascontiguousarray(scores_TP * scale, dtype=np.float32)
        fst, decodable = self.fsts[word_penalty], kaldi_decoder.DecodableCtc(scaled_TP)
        for beam in (self.config.beam, 2 * self.config.beam, 4 * self.config.beam):
            options = kaldi_decoder.FasterDecoderOptions(beam=beam, max_active=self.config.max_active)
            decoder = kaldi_decoder.FasterDecoder(fst, options)
            decoder.decode(decodable)
            found, path = decoder.get_best_path()
            if final := found and decoder.reached_final():
                break
        if not found:
            return f"no path survived its {frames} frames; widen decode.beam or look at the recording"
        _, labels, words, weight = kaldifst.get_linear_symbol_sequence(path)
        if not final and not words:
            return f"no word ends within its {frames} frames: it is too short, or decode.beam too narrow"
        units = tuple(self.words[word] for word in words)
        spelled = join_words(units) if self.pieces else units
        pdfs_T = np.array(labels, np.int32) - 1
        return Hypothesis(utterance, spelled, units, weight.value1 + weight.value2, weight.value2, pdfs_T, final)


def _in_process(
    searcher: _Searcher, scores: Scores, seconds: float | None
) -> Iterator[tuple[str, list[Hypothesis | str]]]:
    """Search here until `seconds` have passed (None: to the end); what is left stays in `scores`."""
    here, start = replace(searcher), time.monotonic()
    here.load()
    for utterance, scores_TP in scores:
        yield utterance, here.search(utterance, scores_TP)
        if seconds is not None and time.monotonic() - start > seconds:
            return


_searcher: _Searcher | None = None  # of a worker process


def _start_worker(searcher: _Searcher) -> None:
    global _searcher
    _searcher = searcher
    end_with_parent()
    searcher.load()


def _work(utterance: str, scores_TP: np.ndarray) -> list[Hypothesis | str]:
    assert _searcher is not None
    return _searcher.search(utterance, scores_TP)


def _pooled(searcher: _Searcher, scores: Scores, jobs: int) -> Iterator[tuple[str, list[Hypothesis | str]]]:
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker, (searcher,))
    waiting: deque[tuple[str, Future[list[Hypothesis | str]]]] = deque()
    utterance = "(start of the decoding processes)"
    try:
        for name, scores_TP in scores:
            with starting_workers():
                waiting.append((name, pool.submit(_work, name, scores_TP)))
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
